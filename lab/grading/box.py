"""A box: where untrusted code runs.
It sees a few folders, read only, and no network.

A box is held by a process with namespaces of its own (mounts, processes, network, and users where
we are not root).
A child that the warm process has forked moves in, drops every privilege and forks again; so imports
are paid for once, and the sandbox is entered after the fork.
When the holder ends, the kernel ends every process in the box.

bubblewrap    bwrap holds it (a well-maintained sandbox for ordinary users; a Debian package)
namespaces    lab/grading/namespaces.py does, with the same system calls
limits        no box: only limits on memory, processes, files and time

At each level a filter refuses system calls that no exercise needs (lab/grading/seccomp.py).
"""

import contextlib
import ctypes
import functools
import json
import os
import re
import resource
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from lab import device
from lab.course import ROOT, CourseError
from lab.grading import seccomp
from lab.remote.warm import end_group

LEVELS = ("bubblewrap", "namespaces", "limits")
HOLDER = Path(__file__).with_name("namespaces.py")
SCRATCH = 256 * 2**20           # bytes of /tmp in a box: compiled kernels and what a learner writes
LIMITS = {                      # of one process; a lower hard limit that it moves in with stays
    "RLIMIT_DATA": 4 * 2**30,   # bytes: torch itself takes under 1 GiB
    "RLIMIT_FSIZE": 64 * 2**20, # bytes of a file: a compiled kernel has a few MiB
    "RLIMIT_NPROC": 128,        # threads of the box; Triton starts ptxas, a server's test threads
    "RLIMIT_NOFILE": 256,
    "RLIMIT_CPU": 900,          # seconds: nine times what the longest grader takes
    "RLIMIT_CORE": 0,
}
# Bytes of a box as a whole: one process at its limit, with torch. An honest box has one such
# process and a compiler that it started; a box without a limit can make the kernel kill others.
BOX_MEMORY = LIMITS["RLIMIT_DATA"] + 2**30
LOOK = 0.25                     # seconds between two looks at a box's memory
LAST = 60                       # seconds for what was killed to be gone; a bomb takes up to 5
NOBODY = 65_000                 # user in a box; where we are root, each job has one of its own
USERS = (61_184, 65_472)        # in that case: within the range of systemd's dynamic users
# System folders that a Python process may need, where they exist.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives",
          "/etc/ld.so.cache", "/etc/localtime")

# The first process of a box in which all processes have one user: no other may read it.
CLOSED = """
import ctypes, sys
ctypes.CDLL(None).prctl(4, 0)       # PR_SET_DUMPABLE
print("ready", flush=True)
sys.stdin.read()
"""

# <linux/sched.h>
NEWNS = 0x00020000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000
PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION = 0x20080522


class Box:
    """A box that exists until `close`. binds: {path inside: file or folder outside}.

    loopback: its processes may open sockets, which lead to nothing but each other.
    Two candidates never share such a box.
    Without walls there is none: the network would be the machine's.
    """

    def __init__(self, level, binds, user=NOBODY, loopback=False):
        self.level = level
        self.loopback = loopback and level != "limits"
        self.user = user
        self.holder = None
        self.closed = threading.Event()
        self.full = False
        self.scratch = "/tmp"               # of the box, and empty
        if level == "limits":
            self.scratch = tempfile.mkdtemp(prefix="lab-box-")
            if os.getuid() == 0:
                os.chown(self.scratch, user, user)
            return
        command = {"bubblewrap": bubblewrap, "namespaces": namespaces}[level](binds)
        out, info_fd = os.pipe()
        try:
            self.process = subprocess.Popen(
                command(info_fd), pass_fds=[info_fd], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        finally:
            os.close(info_fd)
        with open(out, "rb") as stream:
            reply = stream.read()
        if self.process.stdout.readline() != b"ready\n":   # bwrap gives the number, then mounts
            reason = self.process.communicate()[1].decode(errors="replace").strip()
            raise OSError(f"{level}: {reason[-300:] or 'the box did not start'}")
        self.holder = json.loads(reply)["child-pid"]
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        """End a box that holds more than BOX_MEMORY: `full` then says why it ended."""
        processes = Path(f"/proc/{self.holder}/root/proc")      # only those in it
        while not self.closed.wait(LOOK):
            if resident(processes) > BOX_MEMORY:
                self.full = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.holder, signal.SIGKILL)
                return

    def request(self):
        """What a child of the warm process needs to move in."""
        return {"module": __name__, "holder": self.holder,
                "user": self.user if os.getuid() == 0 else None, "scratch": self.scratch,
                "filtered": seccomp.problem() is None, "loopback": self.loopback}

    def close(self):
        """End everything in it, and wait until it is gone: the kernel counts a user's processes
        up to their last moment."""
        self.closed.set()
        if self.holder is None:
            shutil.rmtree(self.scratch, ignore_errors=True)
            return
        with contextlib.suppress(ProcessLookupError), open(os.pidfd_open(self.holder)) as holder:
            signal.pidfd_send_signal(holder.fileno(), signal.SIGKILL)   # with it all of them end
            select.select([holder], [], [], LAST)                       # and it is the last to go
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
        self.process.wait()


def draw_users(jobs):
    """A user for each job of a grading process, drawn from thousands: the kernel counts processes
    by user, and a fork bomb in one run must not use up those of a run beside it.
    Drawn, since a process in another container may have the same process ID.
    Two runs of four jobs share a user once in 600.
    A user who has a process already is left out."""
    first, end = USERS
    start = secrets.randbelow(end - first)
    users = [first + (start + slot) % (end - first) for slot in range(end - first)]
    busy = processes()
    return [user for user in users if user not in busy][:jobs]


def vacate(user, level):
    """Wait until a job's user has no process left, so that the next one has its limits.
    Where no box ends what a submission left, this does."""
    deadline = time.monotonic() + LAST
    while (left := processes().get(user)) and time.monotonic() < deadline:
        for process in left if level == "limits" else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def processes():
    """{user: numbers of the processes}"""
    numbers = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):                      # it has ended
            user = re.search(r"^Uid:\s(\d+)", (process / "status").read_text(), re.M)
            numbers.setdefault(int(user[1]), []).append(int(process.name))
    return numbers


def resident(processes):
    """Bytes of memory that the processes of a box hold, shared pages counted once.

    The sum of RSS is never less, and costs one read per process.
    PSS, for which the kernel walks all pages, is read only where that sum is too large.
    """
    sizes = {}
    with contextlib.suppress(OSError):                          # the box has ended
        for one in processes.glob("[0-9]*"):
            with contextlib.suppress(OSError):                  # the process has
                _, rss, shared, *_ = map(int, (one / "statm").read_text().split())
                sizes[one] = rss * resource.getpagesize(), shared * resource.getpagesize()
    if sum(rss for rss, _ in sizes.values()) <= BOX_MEMORY:
        return 0
    return sum(proportional(one, rss - shared) for one, (rss, shared) in sizes.items())


def proportional(one, own):
    """The PSS of a process; `own` where it may not be read, 0 where the process has ended."""
    try:
        pss = re.search(r"^Pss: +(\d+) kB", (one / "smaps_rollup").read_text(), re.M)
        return int(pss[1]) * 1024 if pss else 0
    except PermissionError:
        return own
    except OSError:
        return 0


def bubblewrap(binds):
    own = [] if os.getuid() == 0 else ["--unshare-user", "--uid", str(NOBODY),
                                       "--gid", str(NOBODY)]
    mounts = []
    bound = []
    for inside, outside in everything(binds).items():
        for folder in reversed(Path(inside).parents[:-1]):      # bwrap's would be closed to us
            if folder != Path("/tmp") and not any(map(folder.is_relative_to, bound)):
                mounts += ["--dir", str(folder)]
        mounts += ["--dev-bind" if is_node(inside) else "--ro-bind", str(outside), inside]
        bound.append(inside)
    return lambda info_fd: [
        "bwrap", *own, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
        "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv",
        "--info-fd", str(info_fd), "--hostname", "box", "--proc", "/proc", "--dev", "/dev",
        "--perms", "1777", "--size", str(SCRATCH), "--tmpfs", "/tmp", *mounts,
        "--remount-ro", "/dev", "--remount-ro", "/",    # where we are not root, both would be ours
        *(["sh", "-c", "echo ready && exec cat"] if not own else
          [sys.executable, "-I", "-S", "-c", CLOSED])]


def namespaces(binds):
    mounts = {inside: str(outside) for inside, outside in everything(binds).items()}
    request = {"mounts": mounts, "scratch": SCRATCH, "user": NOBODY}
    return lambda info_fd: [sys.executable, "-I", "-S", str(HOLDER), str(info_fd),
                            json.dumps(request)]


def gpu_nodes():
    """The device files of NVIDIA's driver; empty where there are none."""
    return sorted(map(str, [*Path("/dev").glob("nvidia*"), *Path("/dev").glob("dxg")]))


def is_node(inside):
    """True for a device, which cannot be opened on a mount for data."""
    return inside.startswith("/dev/")


def everything(binds):
    """The mounts of a box, outer folders before those in them: the system, Python, `binds`."""
    folders = [*SYSTEM, sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)]
    own = {path: path for path in map(str, folders) if os.path.exists(path)}
    return dict(sorted((own | binds).items()))


# ---- in the child

def move_in(request, connection):
    """Called in the forked child: enter the box and continue there in a new process.

    The parent stays outside and waits; it sends the process ID that the child has outside.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if request["holder"] is not None:
        with open(os.pidfd_open(request["holder"])) as holder:
            spaces = NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS
            if os.getuid() != 0:
                spaces |= NEWUSER
            checked(libc.setns(holder.fileno(), spaces))
    child = os.fork()                                   # only a new process gets a PID of the box
    if child:
        connection.sendall(b"%d\n" % child)
        connection.close()
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        end_group(child)                    # what it started, while its number is its own
        os.waitpid(child, 0)
        os._exit(0)
    os.setsid()
    os.closerange(3, connection.fileno())
    os.closerange(connection.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    bare(request["user"], request["scratch"], libc)
    if request["filtered"]:
        seccomp.install(request["loopback"])


def bare(user, scratch, libc):
    """Set limits, drop privileges, and leave only a place to write in the environment."""
    Path("/proc/self/oom_score_adj").write_text("1000")     # out of memory: this is killed first
    for name, most in LIMITS.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    checked(libc.capset(header, (ctypes.c_uint32 * 6)()))
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    device.bare_environment(scratch)
    os.chdir(scratch)


def checked(result):
    if result:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


# ---- which level works here

@functools.cache
def best():
    """(the first level that works here, why those before it do not)."""
    reasons = []
    for level in LEVELS:
        problem = trial(level)
        if problem is None:
            return level, reasons
        reasons.append(f"{level}: {problem}")
    raise CourseError(f"nothing can be graded here: {'; '.join(reasons)}")


def trial(level):
    """Move into a box of this level and look around.
    None, or why it cannot be used."""
    if level == "limits":
        return unreadable() if os.getuid() == 0 else None
    if sys.platform != "linux":
        return f"needs Linux, this is {sys.platform}"
    if folder := next((path for path in everything({}) if ROOT.is_relative_to(path)), None):
        return f"the course is in {folder}, which every box shows"
    if level == "bubblewrap" and shutil.which("bwrap") is None:
        return "bwrap is not installed (Debian's package bubblewrap)"
    probe = subprocess.run([sys.executable, "-P", "-m", "lab.grading.box_selftest", level],
                           capture_output=True, text=True, cwd="/",
                           env=device.child_environment())
    if probe.returncode == 0:
        return None
    return (probe.stderr.strip().splitlines() or ["it ended without a message"])[-1]


def unreadable():
    """Where we are root, code runs as another user: why right answers could not run, or None."""
    try:
        probe = subprocess.run([sys.executable, "-P", "-c", "import lab.remote.child"], cwd="/",
                               env=device.child_environment(), capture_output=True, user=NOBODY,
                               group=NOBODY, extra_groups=[])
    except OSError:
        probe = None
    if probe is not None and probe.returncode == 0:
        return None
    return ("users other than root cannot read Python or the course: install both where every user "
            "may read them")
