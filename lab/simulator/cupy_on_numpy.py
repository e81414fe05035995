"""As much of CuPy as tests of kernels use, on numpy: arrays, RawKernel and RawModule.

Whatever numpy has under the same name is numpy's, and what it returns has `get()`.
"""

import contextlib
import functools
import sys
from types import ModuleType, SimpleNamespace

import numpy as np

from . import kernel

RUNTIME_ERROR = type("CUDARuntimeError", (RuntimeError,), {})


class ndarray(np.ndarray):
    """An array of "the device": numpy's, and `get` copies it."""

    def get(self):
        return np.array(self)


def asnumpy(array):
    return np.array(array)


class RawModule:
    """CuPy's: a text or a file of CUDA C."""

    def __init__(self, *, code=None, path=None, options=(), backend="nvrtc", name_expressions=None,
                 **more):
        own = {"names": tuple(name_expressions or ()), "options": options}
        self.module = kernel.RawModule(code, is_text=True, **own) if path is None else \
            kernel.RawModule(path, **own)

    def get_function(self, name):
        return Kernel(self.module.get(name))


class Kernel:
    """What is launched: `kernel(grid, block, args, shared_mem=0)`."""

    def __init__(self, own):
        self.own = own

    def __call__(self, grid, block, args, *, shared_mem=0, stream=None):
        self.own(grid, block, args, shared_mem)


def raw_kernel(code, name, options=(), backend="nvrtc", **more):
    return Kernel(kernel.RawKernel(code, name, options))


def nothing(*args, **kwargs):
    """Everything has happened already when a launch returns."""


class Stream(contextlib.nullcontext):
    null = SimpleNamespace(synchronize=nothing, ptr=0)
    synchronize = nothing


def wrapped(value):
    """A function of numpy's whose arrays have `get`; anything else as it is."""
    if not callable(value) or isinstance(value, type):
        return value

    @functools.wraps(value)
    def call(*args, **kwargs):
        result = value(*args, **kwargs)
        return result.view(ndarray) if type(result) is np.ndarray else result

    return call


def module(name, own, numpy_module):
    """A module with names of its own and, for others, those of numpy's."""
    stand_in = ModuleType(name, __doc__)
    stand_in.__dict__.update(own)
    stand_in.__getattr__ = lambda missing: wrapped(getattr(numpy_module, missing))
    return stand_in


def stand_ins():
    """{name: module} of what is imported as cupy and below."""
    device = SimpleNamespace(compute_capability="80", synchronize=nothing)
    cuda = module("cupy.cuda", {
        "Device": lambda number=0: device, "Stream": Stream, "is_available": lambda: True,
        "get_current_stream": lambda: Stream.null, "runtime": SimpleNamespace(
            getDeviceCount=lambda: 1, deviceSynchronize=nothing, CUDARuntimeError=RUNTIME_ERROR)},
        SimpleNamespace())
    testing = module("cupy.testing", {}, np.testing)
    random = module("cupy.random", {}, np.random)
    cupy = module("cupy", {
        "STAND_IN": True, "ndarray": ndarray, "asnumpy": asnumpy, "RawKernel": raw_kernel,
        "RawModule": RawModule, "cuda": cuda, "testing": testing, "random": random}, np)
    return {each.__name__: each for each in (cupy, cuda, testing, random)}


@contextlib.contextmanager
def imported():
    """While this lasts, `import cupy` gives the stand-in."""
    modules = stand_ins()
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
