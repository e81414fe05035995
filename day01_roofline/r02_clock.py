"""r02 · The clock: prepared work, a warm machine, a cold cache, an idle device, a median

run: a function without arguments, the work to time    seconds: a list, one entry a run
device: a Cpu or a Gpu, below    n: numbers in an array    M N K: matmul sizes
"""

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

import lab.device
from day01_roofline.r01_roofline import count_add, count_matmul

__all__ = ["Cpu", "Gpu", "Job", "Roofs", "Timing", "add_job", "copy_job", "large_side",
           "matmul_job", "measure", "median_interval", "read_job", "roof_jobs", "speedup",
           "summarise", "take_turns", "this_device", "time_call"]

KNOWN = 0.02        # `measure` stops when every median is known to within 2 %
# Rounds at a time. The fewest runs of which the fastest and the slowest enclose the true median in
# 95 of 100 cases: they both lie on one side of it in 2 · (1/2)⁶ of all cases, 3 %.
ROUNDS = 6
MOST_FLUSHES = 16   # before a run on a GPU: about a millisecond, in which the host launches it


# ---- from runs to numbers


def time_call(run, device, repeats, warmup=1, cold=False):
    """[seconds] of `repeats` calls of `run()`, each until the device has finished: with the launch.

    warmup: calls before these, not timed    cold: empty the caches before each timed call
    """
    # exercise: warm up; then for each run: an empty cache if `cold`, an idle device, two readings
    for _ in range(warmup):
        run()
    seconds = []
    for _ in range(repeats):
        if cold:
            device.flush()
        device.synchronise()            # earlier work must not count
        began = device.clock()
        run()
        device.synchronise()            # a launch returns long before its work is done
        seconds.append(device.clock() - began)
    return seconds


def summarise(seconds):
    """(median, spread) of a list of runs.

    spread: the distance from the 20th to the 80th percentile, as a share of the median
    """
    # exercise: np.quantile gives all three
    low, median, high = np.quantile(seconds, (0.2, 0.5, 0.8))
    return median, (high - low) / median


def take_turns(timers, rounds):
    """{name: [seconds]}: each timer once per round, in every second round in reverse order.

    timers: {name: a function that does its work once and returns the seconds it took}
    """
    # exercise: round 0 in the order of `timers`, round 1 in reverse, and so on
    seconds = {name: [] for name in timers}
    for number in range(rounds):
        order = list(timers) if number % 2 == 0 else list(timers)[::-1]
        for name in order:
            seconds[name].append(timers[name]())
    return seconds


def speedup(before, after):
    """(low, median, high): how many times as fast `after` is as `before`, pair by pair.

    before, after: seconds, of the same length; run i of both was taken in the same round
    low, high: the 20th and the 80th percentile; three pairs in five lie between them
    """
    # exercise: one ratio per pair, since a pair shares its conditions; then the three quantiles
    ratios = np.divide(before, after)
    return tuple(np.quantile(ratios, (0.2, 0.5, 0.8)))


def median_interval(seconds):
    """(low, high) that enclose the true median in 95 of 100 lists of six independent runs or more.

    Whatever the distribution, the runs below the median are as many as heads among n coins; so the
    ends are 1.96 times √n/2 from the middle (Conover, Practical Nonparametric Statistics).
    """
    ranked = sorted(seconds)
    n = len(seconds)
    away = 0.98 * math.sqrt(n)
    low, high = math.floor(n / 2 - away), math.ceil(n / 2 + 1 + away)      # ranks, counted from 1
    return ranked[max(low, 1) - 1], ranked[min(high, n) - 1]


@dataclass(frozen=True)
class Timing:
    """The summary of a list of runs."""

    seconds: float          # the median
    spread: float           # how much single runs differ; more runs do not make it smaller
    uncertainty: float      # by what share the median may be off, less with more runs; inf below 6
    runs: int

    @classmethod
    def of(cls, seconds):
        median, spread = summarise(seconds)
        low, high = median_interval(seconds)
        off = (high - low) / 2 / median if len(seconds) >= 6 else math.inf
        return cls(float(median), float(spread), float(off), len(seconds))


# ---- prepared work


@dataclass(frozen=True)
class Job:
    """Prepared work and its counts: run() does the work alone, on arrays that hold numbers."""

    name: str
    run: Callable
    flops: int
    moved: int              # bytes that the work reads plus bytes that it writes, each once

    @property
    def intensity(self):
        """FLOP/byte."""
        return self.flops / self.moved


def copy_job(device):
    """The Job "copy", which copies one array of `device.large` bytes into another.

    Bytes count as in STREAM (McCalpin 1995): those that the program reads and those that it writes.
    A CPU may also read a line before it overwrites it (write-allocate); no copy needs that.
    """
    # exercise: make two arrays of n numbers; then the Job whose run calls device.copy(to, from)
    n = device.large // device.itemsize
    source = device.array(n)
    target = device.array(n)
    return Job("copy", lambda: device.copy(target, source), 0, source.nbytes + target.nbytes)


def read_job(device):
    """The Job "read", which reads a matrix of about `device.large` bytes and writes little."""
    source = device.array(large_side(device), large_side(device))
    return Job("read", lambda: device.read(source), 0, source.nbytes)


def add_job(device):
    """The Job "add": x + y into z, each of `device.large` bytes."""
    n = device.large // device.itemsize
    x = device.array(n)
    y = device.array(n)
    z = device.array(n)
    return Job("add", lambda: device.add(z, x, y), *count_add(n, device.itemsize))


def matmul_job(device, M, N, K, name="matmul"):
    """The Job `name`: a (M, K) @ b (K, N) into c (M, N)."""
    a = device.array(M, K)
    b = device.array(K, N)
    c = device.array(M, N)
    return Job(name, lambda: device.matmul(c, a, b), *count_matmul(M, N, K, device.itemsize))


def large_side(device):
    """Rows of a square matrix of about `device.large` bytes; each row fills whole cache lines."""
    return math.isqrt(device.large // device.itemsize) // 64 * 64


# ---- measuring


def measure(jobs, device, limit=8.0):
    """{name: Timing}. The jobs take turns, from cold caches, so that they can be compared.

    Rounds go on until every median is known to within KNOWN, or for `limit` seconds.
    """
    timers = {job.name: lambda run=job.run: device.sample(run, 1)[0] for job in jobs}
    if len(timers) < len(jobs):
        raise ValueError(f"jobs need a name each, got {', '.join(job.name for job in jobs)}")
    warm_up([job.run for job in jobs], device)
    seconds = {name: [] for name in timers}
    end = device.clock() + limit
    while True:
        for name, more in take_turns(timers, ROUNDS).items():
            seconds[name] += more
        timings = {name: Timing.of(runs) for name, runs in seconds.items()}
        if device.clock() >= end or all(t.uncertainty <= KNOWN for t in timings.values()):
            return timings


def warm_up(runs, device):
    """Run all until the one-time costs are paid and the clock rate has risen."""
    for run in runs:
        time_call(run, device, 1)
    end = device.clock() + device.ramp
    while device.clock() < end:
        for run in runs:
            time_call(run, device, 1, warmup=0)


@dataclass(frozen=True)
class Roofs:
    """The rates that a machine reached; its true roofs are usually a little higher."""

    copy: float             # byte/s, read and written
    read: float             # byte/s
    matmul: float           # FLOP/s, in the device's own number format

    @property
    def bandwidth(self):
        """byte/s of the memory: the better of the two."""
        return max(self.copy, self.read)

    @classmethod
    def of(cls, jobs, timings):
        """From a measurement that had the roof_jobs among its jobs."""
        by_name = {job.name: (job, timings[job.name].seconds) for job in jobs}
        (copy, t_copy), (read, t_read), (matmul, t_matmul) = (
            by_name[name] for name in ("copy", "read", "matmul"))
        return cls(copy.moved / t_copy, read.moved / t_read, matmul.flops / t_matmul)


def roof_jobs(device):
    """The jobs whose rates are the roofs of the device: copy, read, matmul."""
    side = device.side
    return [copy_job(device), read_job(device), matmul_job(device, side, side, side)]


# ---- devices


class Cpu:
    """The cores that this process may use, through NumPy and float32.

    cache: bytes of last-level cache    large: bytes of an array of which no cache holds much
    side: rows of a matrix large enough for the full matmul rate    ramp: see warm_up
    """

    itemsize = 4
    side = 2048
    ramp = 0.1

    def __init__(self):
        cores = os.sched_getaffinity(0)
        self.pool = ThreadPoolExecutor(len(cores))
        self.parts = len(cores)
        self.name = f"{lab.device.cpu_model()}, {len(cores)} cores"
        self.cache = lab.device.last_level_cache(cores)
        self.large = 4 * self.cache             # STREAM's rule for each array
        self.spill = self.array(self.large // self.itemsize)

    def clock(self):
        return time.perf_counter()

    def synchronise(self):
        """NumPy has finished when it returns."""

    def flush(self):
        # By reading: a plain fill may bypass the caches, and the lines it leaves in them would be
        # written back later, during a timed run. On every core, since each has its own caches.
        self.split(np.max, self.spill)

    def sample(self, run, repeats, cold=True):
        """Seconds of each run of warm work."""
        return time_call(run, self, repeats, 0, cold)

    def array(self, *shape):
        """Random numbers: some hardware is faster on zeros."""
        numbers = np.empty(shape, np.float32)
        self.split(lambda part: np.random.default_rng().random(out=part, dtype=np.float32), numbers)
        return numbers

    def copy(self, target, source):
        """Write the numbers of source into target."""
        self.split(np.copyto, target, source)

    def read(self, source):
        # The sum of each column, as a row of ones times the matrix: on all cores, several rows at a
        # time. NumPy's sum() is slower than the memory and would measure its own additions.
        np.ones(len(source), np.float32) @ source

    def add(self, out, x, y):
        self.split(np.add, x, y, out)

    def matmul(self, out, a, b):
        np.matmul(a, b, out=out)                # the same library

    def split(self, function, *arrays):
        """Call function(*parts) on every core, each with its part of the arrays."""
        parts = [[p for p in np.array_split(a.reshape(-1), self.parts) if p.size] for a in arrays]
        list(self.pool.map(function, *parts))


class Gpu:
    """The first CUDA device, through torch and float16, with the attributes of Cpu."""

    itemsize = 2
    side = 8192
    ramp = 0.5

    def __init__(self):
        import torch  # here: on a machine without a GPU this lesson needs only NumPy

        facts = torch.cuda.get_device_properties(0)
        self.torch = torch
        self.name = facts.name
        self.cache = facts.L2_cache_size
        self.large = 16 * self.cache            # four take 0.1 ms on an H100: too little
        self.spill = self.array(4 * self.cache // self.itemsize)
        self.flushes = {}                       # {run: how many it takes}

    def clock(self):
        return time.perf_counter()

    def synchronise(self):
        self.torch.cuda.synchronize()

    def flush(self):
        self.read(self.spill)

    def sample(self, run, repeats, cold=True):
        """Seconds of each run of warm work, by the GPU's own clock.

        While the GPU is busy with flushes, the host gets ahead: so the launch is not in the time.
        What takes the host longer than MOST_FLUSHES, such as a model op by op, keeps its launches.
        """
        if cold and run not in self.flushes:
            self.flushes[run] = self.enough(run)
        return [self.between_marks(run, cold and self.flushes[run])[0] for _ in range(repeats)]

    def enough(self, run):
        """Flushes in which the host launches `run`, and as many again; 1 if no number will do."""
        return next((2 * n for n in (1, 2, 4, 8, MOST_FLUSHES)
                     if not self.between_marks(run, n)[1]), 1)

    def between_marks(self, run, flushes):
        """(seconds of one run, whether the GPU was there before all of it was launched).

        Events are marks in the queue of torch's current stream; their clock ticks twice in a µs.
        """
        began, ended = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(flushes):
            self.flush()
        began.record()
        run()
        late = began.query()                    # has the GPU passed this mark?
        ended.record()
        self.synchronise()
        return began.elapsed_time(ended) / 1e3, late

    def array(self, *shape):
        """Random numbers: on zeros a GPU draws less power and clocks higher."""
        return self.torch.randn(shape, dtype=self.torch.float16, device="cuda")

    def copy(self, target, source):
        target.copy_(source)

    def read(self, source):
        source.view(self.torch.float32).sum()   # any bits will do: NaN is read as fast

    def add(self, out, x, y):
        self.torch.add(x, y, out=out)

    def matmul(self, out, a, b):
        self.torch.matmul(a, b, out=out)


def this_device():
    """The GPU where there is one, else the CPU."""
    return Gpu() if lab.device.gpu() else Cpu()


# ---- predictions


def predict_rate_without_synchronise():
    """Your guess, in TB/s: you read the clock, launch a copy of 1.5 GB, read it again, and divide.

    The GPU's memory moves 3 TB/s; the launch takes 5 µs on the host.
    """
    # exercise: within 5 % is right; a copy of 1.5 GB reads 1.5 GB and writes 1.5 GB
    return 2 * 1.5e9 / 5e-6 / 1e12


def predict_utilisation():
    """Your guess: the utilisation, in percent, that nvidia-smi shows.

    A kernel runs for 90 ms of every 100 ms and uses 1 of the GPU's 132 cores; the others are idle.
    """
    # exercise: what does it count: cores, or time?
    return 90
