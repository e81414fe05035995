"""uvicorn as this server runs it: it reports when it listens, and ends when told to"""

import signal
import threading
from contextlib import contextmanager
from functools import partial

import uvicorn

from layer3_system.server.connection import Connection
from layer3_system.server.middleware import MAX_HEADER_BYTES


class Listener(uvicorn.Server):
    """SIGTERM or SIGINT ends it after the open calls; a second SIGINT ends those at once.

    uvicorn raises the signal again at the end.
    Here the process goes on, to exit with 0.
    """

    def __init__(self, app, listening=None, **options):
        """listening: called once connections are answered"""
        self.bridge = app.state.bridge
        self.listening = listening
        grace = int(self.bridge.limits.grace) + 5           # for clients that do not read
        super().__init__(uvicorn.Config(
            app, http=partial(Connection, app.access.patience), log_level="warning", ws="none",
            h11_max_incomplete_event_size=MAX_HEADER_BYTES, timeout_graceful_shutdown=grace,
            **options))

    async def startup(self, sockets=None):
        await super().startup(sockets)
        if self.listening:
            self.listening()

    async def shutdown(self, sockets=None):
        self.bridge.drain()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self):
        """Signals that come later, while the process ends, are ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield                                           # only the main thread gets signals
            return
        signals = signal.SIGINT, signal.SIGTERM
        for number in signals:
            signal.signal(number, self.handle_exit)
        yield
        for number in signals:
            signal.signal(number, signal.SIG_IGN)

    def handle_exit(self, sig, frame):
        if self.should_exit and sig == signal.SIGINT:
            self.bridge.loop.call_soon_threadsafe(self.bridge.end_all)
        self.should_exit = True
