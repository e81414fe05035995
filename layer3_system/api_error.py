"""What a client is told in place of an answer."""

MAX_MESSAGE = 500       # characters of a message: a wrong value may be as long as the body


class ApiError(Exception):
    """An error in OpenAI's shape."""

    def __init__(self, status, message, field=None, code=None, headers=None):
        super().__init__(message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " …")
        self.status, self.field, self.code, self.headers = status, field, code, headers or {}

    def content(self):
        kind = ("server_error" if self.status >= 500 else
                "rate_limit_error" if self.status == 429 else "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.field,
                          "code": self.code}}
