"""What holds for all launches of the process: device, budget, checks, traces, the last launch."""

from contextlib import contextmanager

LARGEST_SHARED = {80: 163 * 1024, 89: 99 * 1024}    # compute capability -> bytes a block can have


class Session:
    def __init__(self):
        self.chosen = None              # "simulator", "cuda" or None for "cuda if there is a GPU"
        self.step_budget = None         # warp instructions, or None for the default patience
        self.checks = True
        self.cache_dir = None
        self.compiler = None            # another process that compiles, see lab/remote/compiler.py
        self.capability = 80            # of the simulator, see triton_default.capability()
        self.traces = []
        self.last = None
        self.has_gpu = None

    def device(self):
        """Where RawKernel launches now: "cuda" or "simulator"."""
        if self.chosen:
            return self.chosen
        if self.has_gpu is None:
            self.has_gpu = gpu_visible()
        return "cuda" if self.has_gpu else "simulator"

    @property
    def arch(self):
        return f"sm_{self.capability}"

    def finish(self, launch):
        self.last = launch
        for trace in self.traces:
            trace.launches.append(launch)


def gpu_visible():
    """Is CuPy installed and does it see a device?"""
    try:
        import cupy
    except ImportError:
        return False
    try:
        return cupy.cuda.runtime.getDeviceCount() > 0
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


session = Session()


class Trace:
    """The launches within a `with trace() as t:`."""

    def __init__(self):
        self.launches = []

    def __str__(self):
        return "\n\n".join(str(launch) for launch in self.launches) or "no launches"


@contextmanager
def trace(checks=True):
    """Collect the launches inside: t.launches. checks=False: no race detection, faster."""
    record = Trace()
    before = session.checks
    session.traces.append(record)
    session.checks = checks
    try:
        yield record
    finally:
        session.traces.remove(record)
        session.checks = before


@contextmanager
def budget(steps):
    """A launch inside that runs more than `steps` warp instructions raises kind "endless"."""
    before = session.step_budget
    session.step_budget = steps
    try:
        yield
    finally:
        session.step_budget = before


def last_launch():
    """The most recent simulated launch that ended, or None."""
    return session.last


def use(device):
    """Where RawKernel launches: "simulator", "cuda", or None for CUDA if CuPy sees a device."""
    if device not in ("simulator", "cuda", None):
        raise ValueError(f'device {device!r}: expected "simulator", "cuda" or None')
    session.chosen = device


def cache_dir(path):
    """Keep compiled kernels in this folder; None: keep none."""
    session.cache_dir = path
