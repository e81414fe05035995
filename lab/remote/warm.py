"""A warm process that forks: imports are paid once, and every child starts clean.

The server imports the heavy modules and then only accepts and forks. It never runs a learner's
code, so what it forks has never met any. A child talks over the connection that asked for it; when
either side hangs up, the server ends the child and all that it started, before its number is free.

A server may serve many processes, one after another (servers.py). An answer cannot change what the
others get: the server reads nothing that a client sends, the fork does, which then has the request
alone. All that a client can do is to have forks made, of the same modules and the same user, and it
could start those itself. Others than that user cannot reach the socket. A process of the same user
can write to any other's memory by means of a debugger, and to the course's files as well: that is
the learner, on the learner's own desk. So an instructor's grading shares nothing, and a box does
not show its sockets.
"""

import contextlib
import gc
import importlib
import json
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from lab.remote.servers import Servers, close, common, fingerprint, last_words, log_of

OUTPUT_KEPT = 64 * 1024          # bytes of a child's standard output that a message may quote
MAX_OUTPUT_BYTES = 16 * 1024 * 1024  # bytes after which a child is a flood and is killed
COLLECT = 50_000                 # new objects between two collections: imports leave no garbage
STARTING = 300                   # seconds in which a server has imported everything, on busy cores
REQUEST_PART = 1 << 16           # bytes
# The last two bytes of a connection are the server's: how the child ended, and with which exit
# status or by which signal. They are fewer than a frame begins with (wire.py).
EXITED, KILLED = 0xFE, 0xFF


class HungUp(RuntimeError):
    """The server has closed the connection before it forked."""


class Child:
    """A forked process, its connection, and what it printed.

    role: the module whose main(connection, request) it runs. A request with a `box` names the
    module whose move_in(box, connection) comes first.
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
        """Have a process forked; where its output can be read. RuntimeError if that fails."""
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
        """Exactly n bytes. TimeoutError past the deadline, EOFError when the child is gone."""
        data = bytearray()
        while len(data) < n:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.connection.settimeout(left)
            data += self.part(n - len(data), data)
        return bytes(data)

    def part(self, most, before=b""):
        """The bytes that are there, at least one. EOFError when the child is gone.
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
        the exception that it printed last; "" and [] where there is neither. The child's own words:
        data, not truth."""
        self._listener.join(1)
        text = self.output()
        if crashed := re.search(r"^Fatal Python error: (.+)", text, re.M):
            return crashed[1], places(text[crashed.end():])
        raised = re.search(r"^(\w+(Error|Exception)\b.*)\Z", text.rstrip(), re.M)
        return (raised[1], []) if raised else ("", [])

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

    def runs(self):
        """Whether it has not ended, so that its number is still its own."""
        ended = select.poll()
        with contextlib.suppress(ValueError, TypeError):        # closed, or None
            ended.register(self.process, select.POLLIN)
            return not ended.poll(0)
        return False

    def end(self):
        """End the process and everything it started. If it has ended by itself, its server has
        ended the rest."""
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


def end_group(pid):
    """End a process, and its group where it leads one already. Its number must not be free yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def fields(stat):
    """The fields of a process's or thread's stat after its name, which may hold anything."""
    return stat.read_text("utf-8", "replace").rpartition(")")[2].split()


class Server:
    """The process that forks."""

    def __init__(self, listener, address, servers, idle, quiet):
        """servers: the place it is in    idle: seconds without work after which it ends, or None
        quiet: seconds without an event after which it looks whether it is needed"""
        self.listener = listener
        self.address = Path(address)
        self.servers = servers
        self.idle = idle
        self.quiet = quiet
        self.children = {}              # process ID -> its connection
        self.last = time.monotonic()    # when it had a child
        self.socket = self.address.stat().st_ino
        self.bell, self.rope = os.pipe()
        os.set_blocking(self.bell, False)
        os.set_blocking(self.rope, False)
        signal.set_wakeup_fd(self.rope)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.poller = select.poll()
        for what in (listener, self.bell, *([sys.stdin] if servers.leashed else [])):
            self.poller.register(what, select.POLLIN)

    def serve(self):
        while True:
            events = self.poller.poll(1000 * self.quiet)
            for number, _ in events:
                if number == self.listener.fileno():
                    self.fork()
                elif number == sys.stdin.fileno():
                    return self.end()
                elif number != self.bell:
                    self.hung_up(number)
            self.bury()                 # last: it closes files, whose numbers are then others'
            if not events and self.unneeded():
                return self.end()

    def fork(self):
        connection, _ = self.listener.accept()
        try:
            pid = os.fork()
        except OSError:                 # no room: who asked is told, and may ask again
            connection.close()
            return
        if pid == 0:
            self.forget()
            become(connection, self.servers)
        self.children[pid] = connection
        self.poller.register(connection, 0)             # tells of a hang-up alone

    def forget(self):
        """In a fork: close what is the server's and its other children's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for connection in (self.listener, *self.children.values()):
            connection.close()
        os.close(self.bell)
        os.close(self.rope)

    def hung_up(self, number):
        """End the child whose other side has gone, if it is not buried yet."""
        for pid, connection in self.children.items():
            if connection.fileno() == number:
                self.poller.unregister(number)
                end_group(pid)

    def bury(self):
        """Let go of the children that have ended, and end all that they started."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.bell, REQUEST_PART)
        if self.children:
            self.last = time.monotonic()
        while self.children and (ended := os.waitid(
                os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            end_group(ended.si_pid)     # buried last, so the number is not another's yet
            os.waitpid(ended.si_pid, 0)
            by_itself = ended.si_code == os.CLD_EXITED
            connection = self.children.pop(ended.si_pid, None)
            if connection is None:      # a program that a library had started
                continue
            with contextlib.suppress(KeyError):
                self.poller.unregister(connection)
            with contextlib.suppress(OSError):      # as a rule the other side has gone
                connection.send(bytes([EXITED if by_itself else KILLED, ended.si_status]),
                                socket.MSG_DONTWAIT)
            connection.close()

    def unneeded(self):
        """Whether it may end; asked again and again in quiet times. One that is to end first takes
        its name away, so that whoever comes starts another."""
        if not self.is_there():
            return not self.children
        if not self.children and self.idle is not None and (
                time.monotonic() - self.last > self.idle or fingerprint() != self.servers.course):
            log_of(self.address).unlink(missing_ok=True)
            self.address.unlink()
        return False

    def is_there(self):
        """Whether the socket of its name is still its own."""
        with contextlib.suppress(FileNotFoundError):
            return self.address.stat().st_ino == self.socket
        return False

    def end(self):
        for pid in self.children:
            end_group(pid)


def become(connection, servers):
    """In the forked child: own session, own output, then the role; never returns."""
    status = 1
    try:
        os.setsid()
        request = received(connection)
        if request is None:             # a client that connected and left
            os._exit(0)
        if "box" in request:
            box = importlib.import_module(request["box"]["module"])
            box.move_in(request["box"], connection)
        else:
            connection.sendall(b"%d\n" % os.getpid())
            request["warm"] = servers
        importlib.import_module(request["role"]).main(connection, request)
        status = 0
    except BrokenPipeError:
        status = 0              # the other side has gone
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def received(connection):
    """The request, after its file has become the process's output; None where there is none."""
    text, outputs, _, _ = socket.recv_fds(connection, REQUEST_PART, 1)
    if not outputs:
        return None
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number in (1, 2):
        os.dup2(outputs[0], number)
    os.close(outputs[0])
    while not text.endswith(b"\n"):
        part = connection.recv(REQUEST_PART)
        if not part:
            return None
        text += part
    return json.loads(text)


def main(spec):
    """The program: see Servers.launch. The socket listens already."""
    servers = Servers(spec["folder"], spec["course"], spec["leashed"], tuple(spec["here"]))
    gc.set_threshold(COLLECT)
    for name in servers.here:
        importlib.import_module(name)
    gc.freeze()             # a collection in a child would copy every page that it looks at
    with socket.socket(fileno=spec["listener"]) as listener:
        Server(listener, spec["address"], servers, spec["idle"], spec["quiet"]).serve()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
