"""Mocks of the course: machines whose every cost is known, and watched functions.

No machine here takes real time.
A test builds one beside the code under test, subject.make("lab.judge.mocks:FakeGpu", ...), and
others for itself, to work out what the wrong ways of using it would give.
"""

import inspect
import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class FakeArray:
    """An array without elements; it equals only itself."""

    nbytes: int


class SharpSoftmax:
    """Stands in for a softmax that is handed in: the softmax of twice the scores, over the last
    axis.
    What is left out gets nothing, and neither does -inf."""

    def __call__(self, scores):
        e = np.exp(2 * (scores - scores.max(-1, keepdims=True)))
        return e / e.sum(-1, keepdims=True)


class FakeGpu:
    """A GPU and its host, each with its own time.

    A launch returns to the host at once and the work ends later, in the device's queue; only
    synchronise() makes the host wait for it.
    The cache holds the arrays of the last copy where they fit into it together; flush() evicts
    them.

    bandwidth, cached: byte/s of the memory and of the cache    cache: bytes of it
    launch, allocate: seconds of the host for a launch and for array()
    first: additional seconds of the very first copy on the host, to load its code
    noise: factors; copy number k takes noise[k] times its time, and the list repeats
    itemsize: bytes of a number
    """

    def __init__(self, bandwidth=0.3e12, cached=1.2e12, cache=32_000_000, launch=5e-6,
                 allocate=1e-3, first=0.02, noise=(1.0,), itemsize=4):
        self.bandwidth = bandwidth
        self.cached = cached
        self.cache = cache
        self.launch = launch
        self.allocate = allocate
        self.first = first
        self.noise = tuple(noise)
        self.itemsize = itemsize
        self.large = 4 * cache
        self.now = 0.0                  # the host's time
        self.free = 0.0                 # when the queue will be empty
        self.executing = 0.0            # seconds in which a kernel ran
        self.readings = self.copies = 0
        self.onto_itself = 0            # copies of an array onto itself
        self.held = None                # the arrays in the cache

    def clock(self):
        self.readings += 1
        return self.now

    def synchronise(self):
        self.now = max(self.now, self.free)

    def wait(self, seconds):
        """The host does something else, or nothing."""
        self.now += seconds

    def array(self, *shape):
        self.now += self.allocate
        return FakeArray(math.prod(shape) * self.itemsize)

    def flush(self):
        self.held = None
        self.enqueue(self.large / self.bandwidth)

    def copy(self, target, source):
        arrays = {target, source}
        moved = target.nbytes + source.nbytes
        rate = self.cached if self.held == arrays else self.bandwidth
        self.held = arrays if moved <= self.cache else None
        if not self.copies:
            self.now += self.first
        self.enqueue(moved / rate * self.noise[self.copies % len(self.noise)])
        self.copies += 1
        if target is source:
            self.onto_itself += 1

    def copier(self, nbytes):
        """A function without arguments that copies nbytes; its arrays exist already."""
        source = FakeArray(nbytes)
        target = FakeArray(nbytes)
        return lambda: self.copy(target, source)

    def enqueue(self, seconds):
        """Launch a kernel that takes this long, on however few of the cores."""
        self.now += self.launch
        self.free = max(self.now, self.free) + seconds
        self.executing += seconds

    def utilisation(self):
        """Percent of the time so far in which one or more kernels ran: what nvidia-smi shows."""
        return 100 * self.executing / self.now


class Weather:
    """A machine that gets slower or faster: its run number k takes factors[k] times as long."""

    def __init__(self, factors):
        self.factors = tuple(factors)
        self.runs = 0

    def timer(self, seconds):
        """A function that runs something of this length once and returns the seconds it took."""
        def run():
            self.runs += 1
            return seconds * self.factors[(self.runs - 1) % len(self.factors)]
        return run


def in_order(function, args, kwargs):
    """The arguments of a call as if none had been given by its name.
    Without a function they are taken to be in order already."""
    if function is None:
        return *args, *kwargs.values()
    return inspect.signature(function).bind(*args, **kwargs).args


class Watched:
    """A function that keeps copies of the arguments of every call.

    It does what `function` does; without one it returns `answer`.
    """

    def __init__(self, function=None, answer=None):
        self.function = function
        self.answer = answer
        self.calls = []

    def __call__(self, *args, **kwargs):
        if kwargs:
            args = in_order(self.function, args, kwargs)
        self.calls.append([a.copy() if isinstance(a, np.ndarray) else
                           a.clone() if hasattr(a, "clone") else a for a in args])
        return self.answer if self.function is None else self.function(*args)
