"""Where the warm processes are: whoever needs one finds it by its name, or starts it.

A server (fork_server.py) listens at a socket whose name is a digest of all that decides what it
forks: the course's files, the modules it has imported, settings of libraries, the machine.
So a changed course has other servers, and the old ones end by themselves.

private   in a temporary folder of this process; they end with it.
Grading a class has no others.
shared    one a user and course, below the cache, for `lab check`, `lab watch` and notebooks alike;
          they end after IDLE seconds without a request
common    what a test or an author's command has: where LAB_WARM names a folder, all processes of
          the run share what is there; else private ones
"""

import atexit
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import shutil
import socket
import stat
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import course, device
from lab.course import ROOT, VERSION, CourseError

IDLE = 600              # seconds without work after which a shared server ends,
RUN_IDLE = 60           # and one of a run, which comes to a lesson once
QUIET = 10              # seconds without an event after which a server looks whether it is needed
WAITING = 128           # connections that wait while the server imports
LOG_QUOTED = 500        # characters of what a server said last
ABSENT = (FileNotFoundError, ConnectionRefusedError)        # what dial raises where none listens
PRIVATE = []            # the one Servers of this process alone, if there is one
ONE_THREAD = threading.Lock()
STARTED = []            # (process, address) of each server that this process has started
# What tells the containers of a machine from each other: a server is of use in its own alone.
SYSTEM = ("/proc/self/ns/mnt", "/proc/self/ns/pid", "/proc/self/ns/net", "/proc/self/ns/user")


@dataclass(frozen=True)
class Servers:
    """A folder with servers.

    course: the fingerprint of the course's files
    leashed: a server ends with the process that started it
    here: the modules of the server that this process is to use, such as the one that forked it
    """

    folder: str
    course: str
    leashed: bool
    here: tuple = ()

    def connect(self, modules, more=()):
        """A connection to a server that has imported these modules; it answers as soon as it has.
        more: modules that a server started for this imports as well"""
        if set(modules) <= set(self.here):
            modules = self.here
        elif self.here and self.leashed:    # it would end with this process, under others' hands
            return common().connect(modules, more)
        else:
            modules = (*modules, *more)
        try:
            return dial(self.address(modules))
        except ABSENT:
            if self.here and self.leashed:  # the same: others would find what this process starts
                return common().connect(modules, more)
            return dial(self.start(modules))

    def start(self, modules):
        """The address of the server with these modules, which may still be importing."""
        address = self.address(modules)
        if not listens(address):
            with alone(self.folder):
                if not listens(address):            # no other process was faster
                    self.launch(modules, address)
        return address

    def address(self, modules):
        parts = [self.course, list(modules), sys.executable, sys.version, device.settings(),
                 machine()]
        return Path(self.folder, hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24])

    def launch(self, modules, address):
        address.unlink(missing_ok=True)             # of a server that was killed
        spec = asdict(self) | {"here": list(modules), "address": str(address),
                               "idle": None if self.leashed else idle(), "quiet": QUIET}
        environment = None if self.leashed else device.settings()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, \
                open(log_of(address), "wb") as log:
            with reachable(address) as path:
                listener.bind(path)
            listener.listen(WAITING)
            spec["listener"] = listener.fileno()
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "lab.remote.fork_server", json.dumps(spec)],
                stdin=subprocess.PIPE if self.leashed else subprocess.DEVNULL, stdout=log,
                stderr=log, pass_fds=[listener.fileno()], start_new_session=True, cwd="/",
                env=device.child_environment(environment=environment))
        STARTED.append((process, address))


def private():
    """Servers of this process alone."""
    with ONE_THREAD:
        if not PRIVATE:
            PRIVATE.append(Servers(tempfile.mkdtemp(prefix="lab-"), fingerprint(), leashed=True))
            atexit.register(close)
        return PRIVATE[0]


def close():
    """End the servers that end with this process."""
    if not PRIVATE:
        return
    leashed = [process for process, _ in STARTED if process.stdin is not None]
    for process in leashed:
        process.stdin.close()
    for process in leashed:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    shutil.rmtree(PRIVATE.pop().folder)


def shared():
    """The servers of this user, for the course as it is now."""
    folder = device.run_folder() or device.cache_folder() / f"warm-{os.geteuid()}"
    return Servers(str(own(folder)), fingerprint(), leashed=False)


def idle():
    """Seconds without work after which a shared server ends."""
    return IDLE if device.run_folder() is None else RUN_IDLE


@functools.cache
def common():
    """The servers of the run, or of this process."""
    return private() if device.run_folder() is None else shared()


def own(folder):
    """The folder, made where it is missing.
    CourseError where that cannot be, or where another user could put a socket."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
    except OSError as error:
        raise CourseError(f"cannot use {folder}, where the processes that grade are: "
                          f"{error.strerror}; XDG_CACHE_HOME may name another folder") from None
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise CourseError(f"{folder}: expected a folder of user {os.geteuid()}, it is one of user "
                          f"{facts.st_uid} or a link: remove it")
    folder.chmod(0o700)
    return folder


def fingerprint():
    """A digest of where the course's own files are, their sizes and times, and of when a package
    was installed last.
    The desk is not among them."""
    digest = hashlib.sha256(f"{VERSION} {ROOT} {packages()}".encode())
    for top in ("lab", *(floor.name for floor in course.floors())):
        for folder, folders, names in os.walk(ROOT / top):
            folders[:] = sorted(set(folders) - {"__pycache__"})
            for name in sorted(names):
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):        # an editor's, just removed
                    facts = os.stat(path)
                    digest.update(f"{path} {facts.st_mtime_ns} {facts.st_size}\n".encode())
    return digest.hexdigest()


def packages():
    return os.stat(sysconfig.get_path("purelib")).st_mtime_ns


@functools.cache
def machine():
    """What a server's children share: this boot of this machine, and the container."""
    places = [os.stat(path).st_ino for path in SYSTEM if os.path.exists(path)]
    boot = Path("/proc/sys/kernel/random/boot_id")
    return [platform.node(), boot.read_text() if boot.exists() else "", *places]


# ---- sockets

def listens(address):
    """Whether a server is there.
    It takes a connection and forks; the fork ends without a request.
    """
    try:
        dial(address).close()
    except ABSENT:
        return False
    return True


def dial(address):
    """A connection.
    CourseError where another user listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reachable(address) as path:
            connection.connect(path)
        _, user, _ = struct.unpack("3i", connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))      # unix(7)
        if user != os.geteuid():
            raise CourseError(f"{address}: expected a server of user {os.geteuid()}, it is one of "
                              f"user {user}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def reachable(address):
    """A path of a socket that is short enough for an address, however deep its folder lies."""
    folder = os.open(Path(address).parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{Path(address).name}"
    finally:
        os.close(folder)


@contextlib.contextmanager
def alone(folder):
    """While this lasts, no other process starts a server in the folder."""
    with open(Path(folder, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def log_of(address):
    return Path(address).with_suffix(".log")


def last_words():
    """What the server that this process started last has said, to be added to a message."""
    log = STARTED and log_of(STARTED[-1][1])
    text = log.read_text("utf-8", "replace").strip() if log and log.exists() else ""
    return f": {text[-LOG_QUOTED:]}" if text else ""
