"""Containers to grade in: one like Docker's, and one that any user can use as well as root."""

import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

from lab.course import ROOT
from lab.judge.plugin import NotProvenHere

DOCKER = ("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID",
          "SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE")
NUMBER = str(20_000 + secrets.randbelow(20_000))    # not that of a run in another container
USER = ("setpriv", "--reuid", NUMBER, "--regid", NUMBER, "--clear-groups")
OPENED = 'chmod 1777 /tmp /var/tmp /dev/shm && exec "$@"'


def start():
    """The start of a command that runs as in Docker: its own files, root with few rights, none of
    them to make namespaces.
    NotProvenHere where we are not root."""
    if shutil.which("bwrap") is None or os.getuid() != 0:
        raise NotProvenHere("needs bubblewrap and root, to run as in a container")
    folders = {"/usr", "/etc", *filter(os.path.exists, ("/bin", "/sbin", "/lib", "/lib64")),
               os.path.realpath(sys.base_prefix)}
    words = ["bwrap", "--cap-drop", "ALL", "--unshare-pid", "--unshare-net", "--unshare-ipc",
             "--die-with-parent", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv",
             "HOME", "/root", "--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs",
             "/tmp", *(word for name in DOCKER for word in ("--cap-add", f"CAP_{name}")),
             # bwrap's would be closed to other users: a Python may be in /root
             *(word for path in reversed(Path(sys.base_prefix).resolve().parents[:-1])
               for word in ("--dir", str(path))),
             *(word for path in sorted(folders) for word in ("--ro-bind", path, path))]
    if subprocess.run([*words, "true"], capture_output=True).returncode:
        raise NotProvenHere("this machine makes no containers with bubblewrap")
    return words


def for_everybody(*folders):
    """The start of a command with this machine's files, empty temporary folders, and Python
    and the course where every user may read them. folders: every user may write to these."""
    if shutil.which("bwrap") is None or os.getuid() != 0:
        raise NotProvenHere("needs bubblewrap and root, to be both root and another user")
    base = Path(sys.base_prefix).resolve()
    words = ["bwrap", "--cap-add", "ALL", "--dev-bind", "/", "/", "--unshare-ipc", "--unshare-net",
             *(word for path in ("/tmp", "/var/tmp", "/dev/shm", f"/{base.parts[1]}")
               for word in ("--tmpfs", path) if path != "/usr"),
             # bwrap's own would be closed to other users, and a clone may be in /tmp
             *(word for own in (base, Path(sys.prefix), ROOT, *folders)
               for path in reversed(own.parents[:-1])
               if path not in (Path("/usr"), Path("/tmp")) for word in ("--dir", str(path))),
             *(word for path in (base, sys.prefix, ROOT) for word in ("--ro-bind", path, path)),
             *(word for path in folders for word in ("--bind", path, path)),
             "--die-with-parent", "sh", "-c", OPENED, "sh"]
    # by way of `env`: what setpriv itself starts may read more than its user
    trial = [*words, *USER, "env", sys.executable, "-c", ""]
    if subprocess.run(trial, capture_output=True).returncode:
        raise NotProvenHere("this machine makes no such container with bubblewrap")
    return words
