"""Hold a box without bubblewrap: namespaces, a bare tree of read-only mounts, then wait.

    python -I -S namespaces.py FD '{"mounts": {inside: outside}, "scratch": bytes, "user": number}'

Writes {"child-pid": …} to FD, as bwrap does, and ends when its standard input does. mount(2),
pivot_root(2), namespaces(7) and user_namespaces(7) say what each call is for.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import tempfile

NEWNS = 0x00020000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
SIOCSIFFLAGS = 0x8914           # netdevice(7)
IFF_UP = 1
DEVICES = ("null", "zero", "full", "random", "urandom")
libc = ctypes.CDLL(None, use_errno=True)


def call(name, *args):
    args = [a.encode() if isinstance(a, str) else a for a in args]
    if getattr(libc, name)(*args):
        error = ctypes.get_errno()
        raise OSError(error, f"{name}{tuple(args)}: {os.strerror(error)}")


def main(info_fd, mounts, scratch, user):
    own = os.getuid()
    group = os.getgid()
    call("unshare", NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS | (NEWUSER if own else 0))
    if own:
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{user} {own} 1")
        write("/proc/self/gid_map", f"{user} {group} 1")
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(info_fd)
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        raise_loopback()
        furnish(mounts, scratch)
        os.write(done, b"x")
        signal.pause()                      # the first process of the box: it ends with us
    os.close(done)
    if os.read(ready, 1) == b"x":
        with open(info_fd, "w") as stream:
            json.dump({"child-pid": child}, stream)
        print("ready", flush=True)
        sys.stdin.read()
        os.kill(child, signal.SIGKILL)


def raise_loopback():
    """Bring lo up, as bwrap does: a new network namespace has it, and nothing else, down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))


def furnish(mounts, scratch):
    """Make the bare tree the only thing to be seen."""
    call("mount", "none", "/", None, MS_REC | MS_PRIVATE, None)
    root = tempfile.mkdtemp(prefix="box-")
    outside = os.open(os.path.dirname(root), os.O_PATH | os.O_DIRECTORY)
    try:
        enter(root, mounts, scratch)
    finally:
        libc.umount2(root.encode(), MNT_DETACH)     # still mounted only where a later mount failed
        os.rmdir(os.path.basename(root), dir_fd=outside)    # no path leads to it any more
        os.close(outside)
    call("sethostname", b"box", 3)


def enter(root, mounts, scratch):
    """Make the tree in the folder `root`, and change the root to it."""
    call("mount", "tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, b"mode=755")
    for name in DEVICES:
        bind(f"/dev/{name}", f"{root}/dev/{name}", read_only=False)
    for folder, kind, options in (("/proc", "proc", None),
                                  ("/tmp", "tmpfs", f"mode=1777,size={scratch}".encode())):
        os.makedirs(root + folder, exist_ok=True)
        call("mount", kind, root + folder, kind, MS_NOSUID | MS_NODEV, options)
    for inside, outside in mounts.items():
        bind(outside, root + inside, read_only=not inside.startswith("/dev/"))
    os.chdir(root)
    os.mkdir("old")
    call("pivot_root", ".", "old")
    call("umount2", "/old", MNT_DETACH)
    os.rmdir("/old")
    call("mount", "none", "/", None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, None)


def bind(outside, place, read_only=True):
    """Mount `outside` at `place`.
    A link of the system stays one: /bin to usr/bin."""
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.islink(outside):
        os.symlink(os.readlink(outside), place)
        return
    if os.path.isdir(outside):
        os.makedirs(place, exist_ok=True)
    elif not os.path.exists(place):
        write(place, "")
    call("mount", outside, place, None, MS_BIND | MS_REC, None)
    if read_only:                           # flags that the mount already has must stay
        flags = os.statvfs(place).f_flag & (MS_RDONLY | MS_NOSUID | MS_NODEV | 8 | 1024)
        call("mount", "none", place, None,
             MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | flags, None)


def write(path, text):
    with open(path, "w") as stream:
        stream.write(text)


if __name__ == "__main__":
    main(int(sys.argv[1]), **json.loads(sys.argv[2]))
