"""A process forked by a server, as the process that asked for it sees it."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import threading
import time
from pathlib import Path

from lab.remote.fork_server import EXITED, KILLED, end_group
from lab.remote.servers import common, last_words

OUTPUT_KEPT = 64 * 1024          # bytes of a child's standard output that a message may quote
MAX_OUTPUT_BYTES = 16 * 1024 * 1024  # bytes after which a child is a flood and is killed
STARTING = 300                   # seconds in which a server has imported everything, on busy cores


class HungUp(RuntimeError):
    """The server has closed the connection before it forked."""


class Child:
    """A forked process, its connection, and what it printed.

    role: the module whose main(connection, request) it runs.
    A request with a `box` names the module whose move_in(box, connection) comes first.
    """

    def __init__(self, role, request, modules=(), servers=None, more=()):
        """modules, more: as for Servers.connect    servers: None for `common`"""
        request = {**request, "role": role}
        servers = servers or common()
        try:
            reader = self._ask(request, servers.connect(modules, more))
        except HungUp:                  # it has just ended: `connect` starts another
            reader = self._ask(request, servers.connect(modules, more))
        self.connection.settimeout(None)
        # Its number is its own until it has ended: this says whether it has.
        self.process = None
        with contextlib.suppress(ProcessLookupError):
            self.process = os.fdopen(os.pidfd_open(self.pid))
        self.printed = bytearray()
        self.flooded = False
        self.last = b""                 # what came before the connection ended, too little to use
        self._listener = threading.Thread(target=self._listen, args=(reader,), daemon=True)
        self._listener.start()

    def _ask(self, request, connection):
        """Have a process forked: the descriptor of its output.
        RuntimeError if that fails."""
        self.connection = connection
        reader, writer = os.pipe()
        try:
            socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], [writer])
            self.pid = int(self._line())
        except (OSError, ValueError) as error:          # ValueError: no number, but how it ended
            os.close(reader)
            connection.close()
            kind = HungUp if isinstance(error, ConnectionError) else RuntimeError
            raise kind(f"the warm process could not fork: {error}{last_words()}") from None
        finally:
            os.close(writer)
        return reader

    def _line(self):
        text = b""
        self.connection.settimeout(STARTING)
        while not text.endswith(b"\n"):
            byte = self.connection.recv(1)
            if not byte:
                raise ConnectionError("it hung up")
            text += byte
        return text

    def _listen(self, reader):
        total = 0
        with open(reader, "rb", buffering=0) as stream:
            while data := stream.read(65536):
                total += len(data)
                self.printed += data[:max(0, OUTPUT_KEPT - len(self.printed))]
                if total > MAX_OUTPUT_BYTES:
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
        """Exactly n bytes.
        TimeoutError past the deadline, EOFError when the child is gone."""
        data = bytearray()
        while len(data) < n:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.connection.settimeout(left)
            data += self.part(n - len(data), data)
        return bytes(data)

    def part(self, most, before=b""):
        """The bytes that are there, at least one.
        EOFError when the child is gone.
        before: those that are to make a whole with them"""
        try:
            data = self.connection.recv(min(most, 1 << 20))
        except ConnectionResetError:
            data = b""
        if not data:
            self.last = bytes(before[-2:])
            raise EOFError
        return data

    def ending(self):
        """How it ended, in words, if its server could say; else ""."""
        with contextlib.suppress(OSError):      # it may have ended before it was asked
            self.connection.setblocking(False)
            self.last = (self.last + self.connection.recv(MAX_OUTPUT_BYTES))[-2:]
        how, number = self.last if len(self.last) == 2 else (None, None)
        if how == EXITED:
            return f"it ended itself with exit status {number}"
        if how == KILLED:
            with contextlib.suppress(ValueError):
                return f"{signal.Signals(number).name} ended it"
        return ""

    def stack(self):
        """[(file, line)] of where it is now, innermost first; empty if it cannot say."""
        before = len(self.printed)
        if not self.runs():
            return []
        with contextlib.suppress(ProcessLookupError):       # it ends just now
            os.kill(self.pid, signal.SIGUSR1)
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline and b"in <module>" not in self.printed[before:]:
            time.sleep(0.02)
        return places(self.printed[before:].decode("utf-8", "replace"))

    def crash(self):
        """(what ended it, [(file, line)] of where it was, innermost first), by faulthandler or by
        the exception that it printed last; "" and [] where there is neither.
        The child's own words:
        data, not truth."""
        self._listener.join(1)
        text = self.output()
        if crashed := re.search(r"^Fatal Python error: (.+)", text, re.M):
            return crashed[1], places(text[crashed.end():])
        raised = re.search(r"^(\w+(Error|Exception)\b.*)\Z", text.rstrip(), re.M)
        return (raised[1], []) if raised else ("", [])

    def work(self):
        """(seconds of CPU that its session and all that this started have used, whether some thread
        of these could run now or waits for a disk).
        Where the system does not say, the time is the clock's."""
        if not Path("/proc/self/stat").exists():
            return time.monotonic(), False
        stats = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):                  # it has ended
                stats[process.name] = fields(process / "stat")
        own = family(stats, str(self.pid))
        # user and system time, its own and that of the children it waited for
        ticks = sum(int(number) for pid in own for number in stats[pid][11:15])
        return ticks / os.sysconf("SC_CLK_TCK"), any(map(could_run, own))

    def runs(self):
        """Whether it has not ended, so that its number is still its own."""
        ended = select.poll()
        with contextlib.suppress(ValueError, TypeError):        # closed, or None
            ended.register(self.process, select.POLLIN)
            return not ended.poll(0)
        return False

    def end(self):
        """End the process and everything it started.
        If it has ended by itself, its server has ended the rest."""
        if self.runs():
            end_group(self.pid)

    def kill(self):
        """End it and hang up."""
        self.end()
        self.connection.close()
        if self.process is not None:
            self.process.close()


def places(text):
    """[(file, line)] of a stack that faulthandler wrote."""
    return [(file, int(line)) for file, line in re.findall(r'File "(.+)", line (\d+) in', text)]


def family(stats, session):
    """The processes of a session, and those that they started in sessions of their own."""
    own = {pid for pid, stat in stats.items() if stat[3] == session}    # proc_pid_stat(5)
    while started := {pid for pid, stat in stats.items() if stat[1] in own} - own:
        own |= started
    return own


def could_run(pid):
    """Whether some thread of a process could run now or waits for a disk."""
    with contextlib.suppress(OSError):                          # it has ended
        return any(fields(task / "stat")[0] in ("R", "D")
                   for task in Path("/proc", pid, "task").iterdir())
    return False


def fields(stat):
    """The fields of a process's or thread's stat after its name, which may hold anything."""
    return stat.read_text("utf-8", "replace").rpartition(")")[2].split()
