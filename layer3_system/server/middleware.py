"""Checks that every request passes before it reaches an address: name, size, host and origin"""

import json
import re
import secrets

from fastapi import FastAPI, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware

from layer3_system.api_error import ApiError
from layer3_system.server.hosts import host_of, is_trusted

MAX_HEADER_BYTES = 2**16
ID = "X-Request-Id"
WORD = re.compile(r"[!-~]{1,200}")          # visible ASCII


def as_json(content, status=200, headers=None):
    return Response(json.dumps(content, allow_nan=False), status, headers, "application/json")


def new_request_id():
    return secrets.token_hex(16)


def too_large():
    return ApiError(431, f"the headers are larger than {MAX_HEADER_BYTES} bytes")


class GuardedApp(FastAPI):
    """A FastAPI app that answers the clients that an Access lets in."""

    def __init__(self, access, **options):
        self.access = access
        super().__init__(**options)

    def build_middleware_stack(self):
        """The gate is outermost, so that answers to faults pass it, too."""
        app = super().build_middleware_stack()
        if self.access.origins:
            app = CORSMiddleware(app, self.access.origins, ["GET", "POST"], ["*"],
                                 expose_headers=[ID])
        return Gate(app, self.access)


class Gate:
    """Names each request, and refuses those that are too large or meant for another host."""

    def __init__(self, app, access):
        self.app = app
        self.access = access

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":                         # the start and the end of the server
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        name = headers.get(ID, "")
        if not WORD.fullmatch(name):
            name = new_request_id()

        async def send_named(message):
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[ID] = name
            await send(message)

        error = self.refusal(scope, headers)
        answer = as_json(error.content(), error.status) if error else self.app
        await answer(scope, receive, send_named)

    def refusal(self, scope, headers):
        """The ApiError of a request that is refused, or None."""
        lines = [scope["raw_path"], scope["query_string"], *(
            part for pair in scope["headers"] for part in pair)]
        if sum(map(len, lines)) > MAX_HEADER_BYTES:
            return too_large()
        header = headers.get("host", "")
        host = host_of(header)
        if not is_trusted(host, self.access):
            return ApiError(421, f"the Host header {header!r} is not one of this server's names; "
                                 f"`--allow-host {host or 'NAME'}` lets it in", code="unknown_host")
