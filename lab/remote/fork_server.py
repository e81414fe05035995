"""A warm process that forks: imports are paid once, and every child starts clean.

The server imports the heavy modules and then only accepts and forks.
It never runs a learner's code, so what it forks has never met any.
A child talks over the connection that asked for it; when either side hangs up, the server ends the
child and all that it started, before its number is free.

A server may serve many processes, one after another (servers.py).
An answer cannot change what the others get: the server reads nothing that a client sends, the fork
does, which then has the request alone.
All that a client can do is to have forks made, of the same modules and the same user, and it could
start those itself.
Others than that user cannot reach the socket.
A process of the same user can write to any other's memory by means of a debugger, and to the
course's files as well: that is the learner, on the learner's own desk.
So an instructor's grading shares nothing, and a box does not show its sockets.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

from lab.remote.servers import Servers, close, fingerprint, log_of

COLLECT = 50_000        # new objects between two collections: imports leave no garbage
REQUEST_PART = 1 << 16  # bytes
# The last two bytes of a connection are the server's: how the child ended, and with which exit
# status or by which signal. They are fewer than a frame begins with (wire.py).
EXITED, KILLED = 0xFE, 0xFF


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
        self.folders = {}               # process ID -> where its temporary files are
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
            folder = tempfile.mkdtemp(prefix="lab-")
            os.chmod(folder, 0o711)     # a sandbox of another user may lie below
            pid = os.fork()
        except OSError:                 # no room: the client is told, and may ask again
            connection.close()
            return
        if pid == 0:
            self.forget()
            become(connection, self.servers, folder)
        self.children[pid] = connection
        self.folders[pid] = folder
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
            shutil.rmtree(self.folders.pop(ended.si_pid), ignore_errors=True)

    def unneeded(self):
        """Whether it may end; asked again and again in quiet times.
        One that is to end first takes its name away, so that whoever comes starts another."""
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
            shutil.rmtree(self.folders[pid], ignore_errors=True)


def end_group(pid):
    """End a process, and its group where it leads one already.
    Its number must not be free yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def become(connection, servers, folder):
    """In the forked child: own session, own output, then the role; never returns.

    folder: for its temporary files, removed when it has ended, even by a kill
    """
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
            tempfile.tempdir = folder
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
    """The program: see Servers.launch.
    The socket listens already."""
    servers = Servers(spec["folder"], spec["course"], spec["leashed"], tuple(spec["here"]))
    gc.set_threshold(COLLECT)
    for name in servers.here:
        importlib.import_module(name)
    gc.freeze()             # a collection in a child would copy every page that it looks at
    with socket.socket(fileno=spec["listener"]) as listener:
        Server(listener, spec["address"], servers, spec["idle"], spec["quiet"]).serve()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
