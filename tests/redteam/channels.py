"""Ways for one submission to pass a word to the next: `python -m tests.redteam.channels LEVEL`.

Two boxes of one level, under one user, as those of two students in one job.
The first leaves a word by every way and stays; the second looks for it.
The ways that worked are printed as JSON.
LEVEL is one of lab.grading.box, or `none`: two processes without a box, where all ways must work,
or their tests prove nothing.
A second argument, `unfiltered`, leaves out the filter of calls.
"""

import contextlib
import ctypes
import fcntl
import glob
import json
import mmap
import os
import secrets
import socket
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

from lab.grading import box

WORD = b"word-" + secrets.token_hex(5).encode()     # differs from what another run left
TITLE = b"lab-channel-" + WORD
KEY = 0x5517                    # for System V; also ports
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.shmat.restype = ctypes.c_void_p
WRITERS, READERS = {}, {}


def way(name):
    """Register two functions of a class, `write` and `read`, which get the shared file."""
    def register(pair):
        WRITERS[name], READERS[name] = pair.write, pair.read
        return pair
    return register


def called(result):
    if result in (-1, None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "refused")
    return result


# ---- the kernel's keyrings, keyctl(2); x86-64 or aarch64

ADD_KEY, KEYCTL = ((248, 250) if os.uname().machine == "x86_64" else (217, 219))
JOIN, PERMIT, LINK, SEARCH, READ, TIMEOUT, PERSISTENT = 1, 5, 8, 10, 11, 15, 22
PROCESS = -2                    # a process's own ring: the process possesses what is linked to it


def keyctl(*args):
    return called(LIBC.syscall(KEYCTL, *args))


def keyring(name, ring):
    class Keyring:
        @staticmethod
        def write(shared):
            keyctl(LINK, ring(), PROCESS)
            key = called(LIBC.syscall(ADD_KEY, b"user", TITLE, WORD, len(WORD), ring()))
            keyctl(PERMIT, key, 0x3F3F3F3F)
            keyctl(TIMEOUT, key, 60)

        @staticmethod
        def read(shared):
            keyctl(LINK, ring(), PROCESS)
            held = ctypes.create_string_buffer(64)
            key = keyctl(SEARCH, ring(), b"user", TITLE, 0)
            keyctl(READ, key, held, 64)
            return held.value == WORD

    way(name)(Keyring)


keyring("session keyring", lambda: -3)
keyring("user keyring", lambda: -4)
keyring("user session keyring", lambda: -5)
keyring("persistent keyring", lambda: keyctl(PERSISTENT, -1, PROCESS))


# ---- sockets

@way("abstract socket")
class Abstract:
    family, place = socket.AF_UNIX, "\0lab-channel"

    @classmethod
    def write(cls, shared):
        server = socket.socket(cls.family, socket.SOCK_STREAM)
        server.bind(cls.place)
        server.listen()
        threading.Thread(target=cls.serve, args=(server,), daemon=True).start()

    @staticmethod
    def serve(server):
        while True:
            server.accept()[0].sendall(WORD)

    @classmethod
    def read(cls, shared):
        with socket.socket(cls.family, socket.SOCK_STREAM) as client:
            client.settimeout(2)
            client.connect(cls.place)
            return client.recv(64) == WORD


@way("TCP")
class Tcp(Abstract):
    family, place = socket.AF_INET, ("127.0.0.1", KEY)


@way("UDP")
class Udp:
    @staticmethod
    def write(shared):
        Udp.kept = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        Udp.kept.bind(("127.0.0.1", KEY))

    @staticmethod
    def read(shared):
        """The port is taken: one bit."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            try:
                other.bind(("127.0.0.1", KEY))
            except OSError as error:
                return error.errno == 98
        return False


# ---- shared memory, semaphores, queues

@way("System V shared memory")
class SharedMemory:
    @staticmethod
    def write(shared):
        ctypes.memmove(called(LIBC.shmat(called(LIBC.shmget(KEY, 4096, 0o1666)), None, 0)), WORD,
                       len(WORD))

    @staticmethod
    def read(shared):
        at = called(LIBC.shmat(called(LIBC.shmget(KEY, 4096, 0)), None, 0))
        return ctypes.string_at(at, len(WORD)) == WORD


@way("System V semaphore")
class Semaphore:
    @staticmethod
    def write(shared):
        called(LIBC.semctl(called(LIBC.semget(KEY, 1, 0o1666)), 0, 16, 7))      # SETVAL

    @staticmethod
    def read(shared):
        return called(LIBC.semctl(called(LIBC.semget(KEY, 1, 0)), 0, 12, 0)) == 7


@way("System V message queue")
class Messages:
    @staticmethod
    def write(shared):
        called(LIBC.msgsnd(called(LIBC.msgget(KEY, 0o1666)), struct.pack("l16s", 1, WORD), 16,
                           0o4000))

    @staticmethod
    def read(shared):
        held = ctypes.create_string_buffer(64)
        called(LIBC.msgrcv(called(LIBC.msgget(KEY, 0)), held, 16, 0, 0o4000))
        return WORD in held.raw


@way("POSIX message queue")
class PosixMessages:
    @staticmethod
    def write(shared):
        queue = called(LIBC.mq_open(b"/" + TITLE, os.O_CREAT | os.O_RDWR, 0o666, None))
        called(LIBC.mq_send(queue, WORD, len(WORD), 0))

    @staticmethod
    def read(shared):
        held = ctypes.create_string_buffer(8192)
        queue = called(LIBC.mq_open(b"/" + TITLE, os.O_RDONLY | os.O_NONBLOCK))
        called(LIBC.mq_receive(queue, held, 8192, None))
        return held.value == WORD


# ---- files

def folder(path):
    class Folder:
        @staticmethod
        def write(shared):
            file = Path(path, "lab-channel")
            file.write_bytes(WORD)
            file.chmod(0o666)

        @staticmethod
        def read(shared):
            return Path(path, "lab-channel").read_bytes() == WORD

    way(f"file in {path}")(Folder)


for each in ("/tmp", "/var/tmp", "/dev/shm"):
    folder(each)


@way("pipe in a folder")
class Fifo:
    @staticmethod
    def write(shared):
        os.mkfifo("/tmp/lab-channel-pipe")
        os.chmod("/tmp/lab-channel-pipe", 0o666)

    @staticmethod
    def read(shared):
        return Path("/tmp/lab-channel-pipe").is_fifo()


@way("time of a shared file's last reading")
class Read:
    @staticmethod
    def write(shared):
        Path(shared).read_bytes()

    @staticmethod
    def read(shared):
        return os.stat(shared).st_atime > 1_000_000_000


@way("flock")
class Flock:
    @staticmethod
    def write(shared):
        Flock.kept = open(shared)      # noqa: SIM115 - held on purpose
        fcntl.flock(Flock.kept, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @staticmethod
    def read(shared):
        with open(shared) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


@way("lock by fcntl")
class Lock:
    FORM = "hhqqi4x"            # l_type, l_whence, l_start, l_len, l_pid

    @classmethod
    def write(cls, shared):
        cls.kept = open(shared)         # noqa: SIM115 - held on purpose
        cls.ask(cls.kept, 37, fcntl.F_RDLCK)        # F_OFD_SETLK: closing other files keeps it

    @classmethod
    def read(cls, shared):
        with open(shared) as file:
            return cls.ask(file, fcntl.F_GETLK, fcntl.F_WRLCK) != fcntl.F_UNLCK

    @classmethod
    def ask(cls, file, command, kind):
        said = fcntl.fcntl(file, command, struct.pack(cls.FORM, kind, 0, 0, 0, 0))
        return struct.unpack(cls.FORM, said)[0]


@way("inotify")
class Inotify:
    @staticmethod
    def write(shared):
        def touch():
            while True:
                open(shared).close()
                time.sleep(0.01)
        threading.Thread(target=touch, daemon=True).start()

    @staticmethod
    def read(shared):
        watch = called(LIBC.inotify_init1(os.O_NONBLOCK))
        called(LIBC.inotify_add_watch(watch, shared.encode(), 0x20))        # IN_OPEN
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                return bool(os.read(watch, 4096))
            time.sleep(0.02)
        return False


# ---- other processes

@way("name of a process")
class Name:
    @staticmethod
    def write(shared):
        LIBC.prctl(15, WORD, 0, 0, 0)       # PR_SET_NAME

    @staticmethod
    def read(shared):
        return any(in_file(file, WORD) for file in glob.glob("/proc/[0-9]*/comm")
                   if file != f"/proc/{os.getpid()}/comm")


@way("environment of a process")
class Environment:
    @staticmethod
    def write(shared):
        if os.fork() == 0:
            os.execve("/bin/sleep", ["sleep", "60"], {"LAB": WORD.decode()})

    @staticmethod
    def read(shared):
        return any(in_file(file, WORD) for file in glob.glob("/proc/[0-9]*/environ"))


def in_file(file, word):
    with contextlib.suppress(OSError):
        return word in Path(file).read_bytes()
    return False


@way("signal")
class Signal:
    @staticmethod
    def write(shared):
        pass

    @staticmethod
    def read(shared):
        """The first process can be signalled, by the process ID that it has outside."""
        os.kill(int(os.environ["FIRST"]), 0)
        return True


@way("anonymous memory of a process")
class Memory:
    @staticmethod
    def write(shared):
        Memory.kept = os.memfd_create("lab-channel")
        os.write(Memory.kept, WORD)

    @staticmethod
    def read(shared):
        for link in glob.glob("/proc/[0-9]*/fd/*"):
            with contextlib.suppress(OSError):
                if "memfd:lab-channel" in os.readlink(link):
                    return Path(link).read_bytes() == WORD
        return False


# ---- two boxes

def main(level, filtered):
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(folder, "shared")
        shared.write_bytes(bytes(mmap.PAGESIZE))
        Path(folder).chmod(0o755)
        os.utime(shared, (1, 1))
        with contextlib.suppress(OSError):      # as at a login: all that it starts get the ring
            keyctl(JOIN, None)
        pid, wrote = one(level, shared, filtered, WRITERS)
        _, worked = one(level, shared, filtered, READERS, pid)
        os.killpg(pid, 9)
        print(json.dumps({"written": wrote, "read": worked}))


def one(level, shared, filtered, functions, first=None):
    """Run functions in a box of its own: (pid, names of those that worked).
    The process stays if it is the first one."""
    inside = str(shared) if level in ("none", "limits") else "/shared"
    walls = None if level == "none" else box.Box(level, {"/shared": shared})
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        here.close()
        if walls is None:
            os.setsid()
            there.sendall(b"%d\n" % os.getpid())
        else:
            request = walls.request()
            box.move_in(request | ({} if filtered else {"filtered": False}), there)
        there.recv(1)
        os.environ["FIRST"] = str(first)
        there.sendall(json.dumps(tried(functions, inside)).encode() + b"\n")
        time.sleep(0 if first else 120)
        os._exit(0)
    there.close()
    with here, here.makefile() as lines:
        pid = int(lines.readline())
        here.sendall(b"x")
        names = json.loads(lines.readline())
    if walls is not None and first:
        walls.close()
    return pid, names


def tried(functions, shared):
    names = []
    for name, function in functions.items():
        with contextlib.suppress(OSError, ValueError):
            if function(shared) is not False:
                names.append(name)
    return names


if __name__ == "__main__":
    main(sys.argv[1], "unfiltered" not in sys.argv[2:])
