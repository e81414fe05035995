"""A server in a thread of this process, for lessons and for tests."""

import threading
import time
from typing import Any

from layer3_system.s07_engine import Engine
from layer3_system.s08_server import LIMITS, Bridge, Limits
from layer3_system.server.app import make_app
from layer3_system.server.listener import Listener
from layer3_system.server.sockets import listen


class ServerThread:
    """What `lab serve` runs, on a free port of this machine.
    It answers from now on."""

    def __init__(self, engine: Engine, name: str, limits: Limits = LIMITS,
                 kind: type[Bridge] = Bridge, key: str | None = None):
        """name, limits, kind, key: as make_app has them"""
        listening = listen("127.0.0.1", 0)
        app = make_app(engine, name, limits, key, kind)
        self.engine = engine
        self.bridge: Any = app.state.bridge
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.listener = Listener(app)
        self.thread = threading.Thread(target=self.listener.run,
                                       kwargs={"sockets": [listening]}, daemon=True)
        self.thread.start()

    def wait(self) -> None:
        """Return once no request is left."""
        while self.bridge.calls or self.engine.busy or not self.bridge.mail.empty():
            time.sleep(0.01)

    def stop(self) -> None:
        """Return once the open answers have ended, and the thread."""
        self.listener.should_exit = True
        self.thread.join()
