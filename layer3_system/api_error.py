"""What a client gets in place of an answer

It stands outside s08, so that a Bridge from a learner's desk raises the class that server/ answers.
"""

from typing import Any

MAX_MESSAGE = 500       # characters of a message: a wrong value may be as long as the body


class ApiError(Exception):
    """An error in OpenAI's shape."""

    def __init__(self, status: int, message: str, field: str | None = None,
                 code: str | None = None, headers: dict[str, str] | None = None):
        super().__init__(message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " …")
        self.status = status
        self.field = field
        self.code = code
        self.headers = headers or {}

    def content(self) -> dict[str, Any]:
        kind = ("server_error" if self.status >= 500 else
                "rate_limit_error" if self.status == 429 else "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.field,
                          "code": self.code}}
