"""Limits of one connection: it must speak HTTP, in time, and not too much at once

uvicorn and h11 read the requests.
Added here: a client that does not finish what it began is disconnected, and h11's refusals have the
same shape as all other errors.
"""

import json
import sys
from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from layer3_system.api_error import ApiError
from layer3_system.server.middleware import ID, new_request_id, too_large


class Connection(H11Protocol):
    """uvicorn's, with `patience` seconds for the headers of each request, and as many for the rest
    of a body that was refused before its end."""

    def __init__(self, patience, **options):
        super().__init__(**options)
        self.patience = patience
        self.deadline = None

    def connection_made(self, transport):
        super().connection_made(transport)
        self.set_deadline()

    def data_received(self, data):
        if not self.transport.is_closing():
            self.set_deadline()
            super().data_received(data)
            if not self.is_waiting():
                self.drop_deadline()

    def connection_lost(self, exc):
        self.drop_deadline()
        super().connection_lost(exc)

    def is_waiting(self):
        """Whether headers are incomplete, or a body goes on whose answer was sent."""
        theirs = self.conn.their_state
        answered = self.conn.our_state is h11.DONE
        return theirs is h11.IDLE or theirs is h11.SEND_BODY and answered

    def set_deadline(self):
        if self.deadline is None and self.is_waiting():
            self.deadline = self.loop.call_later(self.patience, self.transport.close)

    def drop_deadline(self):
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def send_400_response(self, msg):
        """Called while an error of h11's is being handled."""
        refused = getattr(sys.exception(), "error_status_hint", 400)
        error = too_large() if refused == 431 else ApiError(400, msg)
        body = json.dumps(error.content()).encode()
        head = [("Content-Type", "application/json"), ("Content-Length", str(len(body))),
                ("Connection", "close"), (ID, new_request_id())]
        begin = h11.Response(status_code=error.status, headers=head,
                             reason=HTTPStatus(error.status).phrase.encode())
        for event in (begin, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
