"""What this machine has, and the only place where environment variables are read."""

import functools
import importlib.util
import math
import os
import platform
import re
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from lab.course import ROOT, CourseError

WORKER_BYTES = 3 * 2**30        # a grader with torch and Triton, and the processes that it starts
MEMORY_FACTS = Path("/proc/meminfo")            # these three are there on Linux
OWN_GROUPS = Path("/proc/self/cgroup")
CONTROL_GROUPS = Path("/sys/fs/cgroup")


# Variables that decide how libraries work and where programs and folders are.
SETTINGS = re.compile(
    r"HOME|PATH|LANG|TZ|TMPDIR|USER|XDG_CACHE_HOME|"
    r"(LC|LD|LAB|PYTHON|CUDA|NVIDIA|OMP|GOMP|KMP|MKL|OPENBLAS|TORCH|PYTORCH|TRITON|MALLOC)_?\w*")
FOR_CHILDREN = {"PYTHONDONTWRITEBYTECODE": "1"}


def child_environment(root=ROOT, environment=None):
    """The environment of a child process: this one's or another, with the course importable."""
    environment = os.environ if environment is None else environment
    return {**environment, "PYTHONPATH": str(root), **FOR_CHILDREN}


def settings():
    """The part of the environment that decides what a process of the course does, but for what
    `child_environment` adds.
    No secret is in it, nor what differs between two terminals."""
    return {name: value for name, value in sorted(os.environ.items())
            if SETTINGS.fullmatch(name) and name not in ("PYTHONPATH", *FOR_CHILDREN)}


def run_folder():
    """The folder in which all processes of a run share warm processes, by the variable LAB_WARM;
    None where there is no such run."""
    folder = os.environ.get("LAB_WARM")
    return Path(folder) if folder else None


def run_environment(warm):
    """The environment of a proof's processes: what they compile is kept in the course's own folder,
    so that no other run of the machine has a part in it, and warm processes in the folder `warm`.
    There is one for each core, so PyTorch has one thread: more wait for each other, spinning.
    """
    cache = ROOT / ".cache"
    return {**os.environ, "LAB_WARM": str(warm), "OMP_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(cache),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}


def repository():
    """The address of the repository that the site's pages link to, by the variable SITE_REPOSITORY;
    "" where there is none."""
    return os.environ.get("SITE_REPOSITORY", "")


def forget_environment():
    """Reduce this process's environment to what finds programs and folders: processes that it
    starts from now on inherit no secrets."""
    names = ("PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "OMP_NUM_THREADS")
    values = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.clear()
    os.environ.update(values)


def grading_seed():
    """The seed of the random inputs of an instructor's run: drawn, so that no one knows it before,
    or LAB_SEED, which repeats a run."""
    return int(os.environ.get("LAB_SEED") or secrets.randbits(128))


def bare_environment(folder):
    """The environment of a process in a box: only the folder that it may write to."""
    os.environ.clear()
    os.environ.update(PATH="/usr/bin:/bin", LANG="C.UTF-8", OMP_NUM_THREADS="1", HOME=folder,
                      TMPDIR=folder, TRITON_CACHE_DIR=f"{folder}/triton", TRITON_HOME=folder)


def on_loopback():
    """Ranks of this process meet on this machine alone.
    Without the interface's name gloo looks up the machine's own, for half a minute where that
    has no address."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"


def ranks_here():
    """How many ranks `torchrun` started on this machine; 0 without it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 0))


def restarts():
    """How often torchrun has started this process's ranks again: 0 the first time, and without
    torchrun."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def cpu_model():
    """The processor's name where Linux gives it, else its architecture."""
    try:
        model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    except FileNotFoundError:
        model = None
    return model[1] if model else platform.machine()


def last_level_cache(cores, root="/sys/devices/system/cpu"):
    """Bytes of the last-level caches of these cores together; 64 MiB where Linux does not say."""
    sizes = {}
    for core in cores:
        for cache in Path(root, f"cpu{core}", "cache").glob("index*"):
            level, shared, size = (cache / name for name in ("level", "shared_cpu_list", "size"))
            if size.exists():
                key = int(level.read_text()), shared.read_text()    # a shared cache counts once
                sizes[key] = int(size.read_text().strip().removesuffix("K")) * 1024
    last = max((level for level, _ in sizes), default=None)
    return sum(size for (level, _), size in sizes.items() if level == last) or 64 * 2**20


def workers():
    """How many processes that grade may run at once: one for each core that this process may use,
    by its affinity and by the quota of its control group, and for each WORKER_BYTES of free
    memory; at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, int(min(cores, quota(), free_memory() / WORKER_BYTES)))


def quota():
    """The cores that the control group's time is worth, rounded up; infinite without a limit."""
    shares = [math.inf]
    for folder in control_groups("cpu"):
        if (folder / "cpu.max").exists():                               # of version 2
            limit, period = (folder / "cpu.max").read_text().split()
        elif (folder / "cpu.cfs_quota_us").exists():                    # of version 1
            limit, period = (read_number(folder / f"cpu.cfs_{what}_us")
                             for what in ("quota", "period"))
        else:
            continue
        if limit not in ("max", -1):
            shares.append(math.ceil(int(limit) / int(period)))
    return min(shares)


def free_memory():
    """Bytes that this process and its children may yet take: of the machine's memory and of the
    control group's; infinite where the system does not say.
    Cached files make room."""
    rooms = [math.inf]
    if MEMORY_FACTS.exists():
        kib = re.search(r"^MemAvailable: *(\d+) kB$", MEMORY_FACTS.read_text(), re.M)
        rooms.append(1024 * int(kib[1]))
    for folder in control_groups("memory"):
        for limit, usage in (("memory.max", "memory.current"),          # of version 2
                             ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            if (folder / limit).exists() and (folder / limit).read_text().strip() != "max":
                *_, cached = re.findall(r"^(?:total_)?inactive_file (\d+)$",
                                        (folder / "memory.stat").read_text(), re.M)
                rooms.append(read_number(folder / limit) - read_number(folder / usage)
                             + int(cached))
    return min(rooms)


def read_number(file):
    return int(file.read_text())


def control_groups(controller):
    """The folders of the control groups that this process is in, its own and those above it."""
    for line in OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CONTROL_GROUPS / (controller if controllers else "")
        folder = root / path.strip("/")
        yield from (each for each in (folder, *folder.parents) if each.is_relative_to(root))


def library_settings():
    """{variable: value} of the variables set here that choose the processor or the number of
    threads for NumPy's and PyTorch's libraries."""
    return {name: value for name, value in sorted(os.environ.items())
            if name.startswith(("OPENBLAS_", "OMP_", "MKL_"))}


def cache_folder():
    """Where compiled kernels and prepared lessons are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "three-floors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CourseError(f"cannot make {folder}, where what is compiled is kept: "
                          f"{error.strerror}; XDG_CACHE_HOME may name another folder") from None
    return folder


@dataclass(frozen=True)
class Gpu:
    name: str
    capability: tuple[int, int]
    memory: int                 # bytes


@functools.cache
def gpu():
    """The first CUDA device as torch sees it, or None."""
    if importlib.util.find_spec("torch") is None or not maybe_driver():
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    facts = torch.cuda.get_device_properties(0)
    return Gpu(facts.name, (facts.major, facts.minor), facts.total_memory)


def maybe_driver():
    """A cheap sign of an NVIDIA driver, so that torch is imported only where it can matter."""
    return any(Path(p).exists() for p in
               ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"))


def torch_device():
    return "cuda" if gpu() else "cpu"


def in_notebook():
    """True inside an IPython kernel."""
    shell = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None


def use_simulator(triton=True):
    """Judge with the simulator: our RawKernel and, where `triton`, unmodified Triton run on CPU
    tensors."""
    from lab import simulator

    simulator.use("simulator")
    simulator.cache_dir(cache_folder() / "kernels")
    if triton and importlib.util.find_spec("triton") is not None:
        simulator.activate_triton()


def use_best():
    """A GPU where there is one, the simulator elsewhere."""
    if gpu() is None:
        use_simulator()


def terminal_environment():
    """For JupyterLab: `lab` and this Python first on the path of its terminals."""
    own = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": own + os.pathsep + os.environ.get("PATH", "")}


def has_screen():
    """True where a browser window can open."""
    screens = [os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")]
    return any(screens) or sys.platform == "darwin"
