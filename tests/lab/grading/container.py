"""A container as Docker makes one: its own files, root with few rights, none to make namespaces."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lab.check import NotProvenHere

DOCKER = ("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID",
          "SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE")


def start():
    """The start of a command that runs in one. NotProvenHere where there is no root to give."""
    if shutil.which("bwrap") is None or os.getuid() != 0:
        raise NotProvenHere("needs bubblewrap and root, to run as in a container")
    folders = {"/usr", "/etc", *filter(os.path.exists, ("/bin", "/sbin", "/lib", "/lib64")),
               os.path.realpath(sys.base_prefix)}
    words = ["bwrap", "--cap-drop", "ALL", "--unshare-pid", "--unshare-net", "--unshare-ipc",
             "--die-with-parent", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv",
             "HOME", "/root", "--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs",
             "/tmp", *(word for name in DOCKER for word in ("--cap-add", f"CAP_{name}")),
             # bwrap's own would be closed to other users: a Python may be in /root
             *(word for path in reversed(Path(sys.base_prefix).resolve().parents[:-1])
               for word in ("--dir", str(path))),
             *(word for path in sorted(folders) for word in ("--ro-bind", path, path))]
    if subprocess.run([*words, "true"], capture_output=True).returncode:
        raise NotProvenHere("this machine makes no containers with bubblewrap")
    return words
