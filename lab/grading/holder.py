"""Hold a box without bubblewrap: namespaces, a bare tree of read-only mounts, then wait.

    python -I -S holder.py FD '{"mounts": {inside: outside}, "scratch": bytes, "user": number}'

Writes {"child-pid": …} to FD, as bwrap does, and ends when its standard input does. mount(2),
pivot_root(2), namespaces(7) and user_namespaces(7) say what each call is for.
"""

import ctypes
import json
import os
import signal
import sys
import tempfile

NEWNS, NEWUTS, NEWIPC = 0x00020000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH, PR_SET_PDEATHSIG = 2, 1
DEVICES = ("null", "zero", "full", "random", "urandom")
libc = ctypes.CDLL(None, use_errno=True)


def call(name, *args):
    args = [a.encode() if isinstance(a, str) else a for a in args]
    if getattr(libc, name)(*args):
        error = ctypes.get_errno()
        raise OSError(error, f"{name}{tuple(args)}: {os.strerror(error)}")


def main(told, mounts, scratch, user):
    own, group = os.getuid(), os.getgid()
    call("unshare", NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS | (NEWUSER if own else 0))
    if own:
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{user} {own} 1")
        write("/proc/self/gid_map", f"{user} {group} 1")
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        furnish(mounts, scratch)
        os.write(done, b"x")
        signal.pause()                      # the first process of the box: it ends with us
    os.close(done)
    if os.read(ready, 1) == b"x":
        with open(told, "w") as stream:
            json.dump({"child-pid": child}, stream)
        print("ready", flush=True)
        sys.stdin.read()
        os.kill(child, signal.SIGKILL)


def furnish(mounts, scratch):
    """The bare tree, and nothing else to be seen."""
    call("mount", "none", "/", None, MS_REC | MS_PRIVATE, None)
    root = tempfile.mkdtemp(prefix="box-")
    outside = os.open(os.path.dirname(root), os.O_PATH | os.O_DIRECTORY)
    try:
        enter(root, mounts, scratch)
    finally:
        libc.umount2(root.encode(), MNT_DETACH)     # only there where a mount failed on the way
        os.rmdir(os.path.basename(root), dir_fd=outside)    # no path leads to it any more
        os.close(outside)
    call("sethostname", b"box", 3)


def enter(root, mounts, scratch):
    """Make the tree in the folder `root`, and that the only one."""
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
    """A link of the system stays one: /bin to usr/bin."""
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.islink(outside):
        os.symlink(os.readlink(outside), place)
        return
    if os.path.isdir(outside):
        os.makedirs(place, exist_ok=True)
    elif not os.path.exists(place):
        write(place, "")
    call("mount", outside, place, None, MS_BIND | MS_REC, None)
    if read_only:                           # what the mount has already must stay: statvfs tells
        flags = os.statvfs(place).f_flag & (MS_RDONLY | MS_NOSUID | MS_NODEV | 8 | 1024)
        call("mount", "none", place, None,
             MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | flags, None)


def write(path, text):
    with open(path, "w") as stream:
        stream.write(text)


if __name__ == "__main__":
    main(int(sys.argv[1]), **json.loads(sys.argv[2]))
