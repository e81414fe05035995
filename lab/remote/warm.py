"""A warm process that forks: imports are paid once, and every child starts clean.

The server imports the heavy modules and then only accepts and forks. It never runs a learner's
code, so what it forks has never met any. A child talks over the connection that asked for it.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from lab import device

COLLECT = 50_000                 # new objects between two collections: a child lives a second
OUTPUT_KEPT = 64 * 1024          # bytes of a child's standard output that a message may quote
OUTPUT_MOST = 16 * 1024 * 1024   # bytes after which a child is a flood and is killed


class Server:
    """The forking process, which ends with this one."""

    def __init__(self, preload=()):
        self.folder = tempfile.TemporaryDirectory(prefix="lab-")
        self.address = os.path.join(self.folder.name, "warm")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lab.remote.warm", self.address, *preload],
            stdin=subprocess.PIPE, start_new_session=True, cwd=self.folder.name,
            env=device.child_environment())
        atexit.register(self.close)

    def connect(self, seconds=120):
        """A connection to the server; waits while it is still importing."""
        deadline = time.monotonic() + seconds
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(self.address)
                return connection
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the warm process did not start") from None
                time.sleep(0.01)

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.folder.cleanup()


@functools.cache
def server(preload=()):
    """The one server of this process for this list of modules."""
    return Server(preload)


class Child:
    """A forked process, its connection, and what it printed.

    role: the module whose main(connection, request) it runs. A request with a `box` names the
    module whose move_in(box, connection) comes first.
    """

    def __init__(self, role, request, preload=(), address=None):
        request = {**request, "role": role}
        self.connection = server(preload).connect() if address is None else dial(address)
        reader, writer = os.pipe()
        socket.send_fds(self.connection, [json.dumps(request).encode() + b"\n"], [writer])
        os.close(writer)
        self.printed = bytearray()
        self.flooded = False
        self.pid = int(self._line())
        self._listener = threading.Thread(target=self._listen, args=(reader,), daemon=True)
        self._listener.start()

    def _line(self):
        text = b""
        while not text.endswith(b"\n"):
            byte = self.connection.recv(1)
            if not byte:
                raise RuntimeError("the warm process could not fork")
            text += byte
        return text

    def _listen(self, reader):
        total = 0
        with open(reader, "rb", buffering=0) as stream:
            while data := stream.read(65536):
                total += len(data)
                self.printed += data[:max(0, OUTPUT_KEPT - len(self.printed))]
                if total > OUTPUT_MOST:
                    self.flooded = True
                    self.end()
                    return

    def output(self):
        """What the child printed so far, at most OUTPUT_KEPT bytes of it."""
        return self.printed.decode("utf-8", "replace")

    def answers(self, deadline):
        """Wait until there is something to read or the connection ends; False past the deadline."""
        left = max(0, deadline - time.monotonic())
        return bool(select.select([self.connection], [], [], left)[0])

    def read(self, n, deadline):
        """Exactly n bytes. TimeoutError past the deadline, EOFError when the child is gone."""
        data = bytearray()
        while len(data) < n:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.connection.settimeout(left)
            data += self.part(n - len(data))
        return bytes(data)

    def part(self, most):
        """The bytes that are there, at least one. EOFError when the child is gone."""
        try:
            data = self.connection.recv(min(most, 1 << 20))
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError
        return data

    def stack(self):
        """[(file, line)] of where it is now, innermost first; empty if it cannot say."""
        before = len(self.printed)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline and b"in <module>" not in self.printed[before:]:
            time.sleep(0.02)
        text = self.printed[before:].decode("utf-8", "replace")
        return [(file, int(line)) for file, line in re.findall(r'File "(.+)", line (\d+) in', text)]

    def work(self):
        """(seconds of CPU that its session has used, whether some thread of it could run now).
        Where the system does not say, the time is the clock's."""
        if not Path("/proc/self/stat").exists():
            return time.monotonic(), False
        seconds, runs = 0.0, False
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):                  # it has ended
                stat = fields(process / "stat")
                if stat[3] == str(self.pid):                    # proc_pid_stat(5): session
                    # user and system time, its own and that of the children it waited for
                    ticks = sum(map(int, stat[11:15]))
                    seconds += ticks / os.sysconf("SC_CLK_TCK")
                    runs = runs or any(fields(task / "stat")[0] == "R"
                                       for task in (process / "task").iterdir())
        return seconds, runs

    def end(self):
        """End the process and everything it started."""
        with contextlib.suppress(ProcessLookupError):           # it had ended by itself
            os.killpg(self.pid, signal.SIGKILL)

    def kill(self):
        """End it and hang up."""
        self.end()
        self.connection.close()


def fields(stat):
    """The fields of a process's or thread's stat after its name, which may hold anything."""
    return stat.read_text("utf-8", "replace").rpartition(")")[2].split()


def dial(address):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(address)
    return connection


def main(address, preload):
    """Serve until standard input closes, which it does when the owner ends."""
    for name in preload:
        importlib.import_module(name)
    gc.freeze()             # a collection in a child would copy every page that it looks at
    gc.set_threshold(COLLECT)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)       # the kernel reaps
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(64)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        # The first byte alone: what this process reads stays in its memory and so in that of all it
        # forks, and a request may hold a submission's text and the secret seed.
        request, fds, _, _ = socket.recv_fds(connection, 1, 1)
        if not fds:                                     # a client that connected and left
            connection.close()
            continue
        pid = os.fork()
        if pid == 0:
            listener.close()
            become(connection, request, fds[0], address)
        connection.close()
        os.close(fds[0])


def become(connection, request, output, address):
    """In the forked child: own session, own output, then the role; never returns."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        while not request.endswith(b"\n"):
            request += connection.recv(1 << 20)
        request = json.loads(request)
        if "box" in request:
            box = importlib.import_module(request["box"]["module"])
            box.move_in(request["box"], connection)
        else:
            connection.sendall(b"%d\n" % os.getpid())
        request["warm"] = address
        importlib.import_module(request["role"]).main(connection, request)
        status = 0
    except BrokenPipeError:
        status = 0              # the other side has gone
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
