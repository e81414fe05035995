"""The simulator as the driver that Triton takes where it finds no GPU.

Triton looks through its back ends for one that is active when a kernel is first launched.
The simulator joins them: at once where Triton is imported already, else when it is.
Nothing here imports Triton.
"""

import sys
from contextlib import contextmanager
from importlib.machinery import PathFinder

from .errors import KernelError
from .session import LARGEST_SHARED, session
from .triton_driver import DEVICES, make_driver
from .triton_tuning import tuning

BACKENDS = "triton.backends"
NAME = "simulator"
# What Triton raises where it finds no driver; the second where torch says that a GPU is there.
NO_DRIVER = (RuntimeError, AssertionError)


class Fallback:
    """A driver that is active where no other is."""

    wanted = True                           # deactivate_triton() ends that

    @classmethod
    def is_active(cls):
        others = [b.driver for name, b in sys.modules[BACKENDS].backends.items() if name != NAME]
        return cls.wanted and not any(driver.is_active() for driver in others)

    def __new__(cls):
        return make_driver(None)


class Compiler:
    """Triton's own compiler compiles for the simulator."""

    @staticmethod
    def supports_target(target):
        return False


class Backend:
    driver = Fallback
    compiler = Compiler


class Watch:
    """Joins the back ends as soon as Triton's module of back ends is there."""

    def find_spec(self, name, path=None, target=None):
        if name != BACKENDS:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            load = spec.loader.exec_module

            def load_and_join(module):
                load(module)
                module.backends[NAME] = Backend
            spec.loader.exec_module = load_and_join
        return spec


def join():
    if BACKENDS in sys.modules:
        sys.modules[BACKENDS].backends[NAME] = Backend
    elif not any(isinstance(finder, Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, Watch())


def activate_triton(capability=80):
    """Make the simulator Triton's active driver. capability: 80, or 89 for kernels with fp8.
    Where Triton finds no GPU, it takes the simulator by itself, with 89 for arrays of fp8 and
    else 80.
    """
    import triton
    if capability not in DEVICES:
        raise KernelError(f"compute capability {capability}: the simulator has "
                          f"{' and '.join(map(str, DEVICES))}", "argument")
    Fallback.wanted = True
    triton.runtime.driver.set_active(make_driver(capability))


@contextmanager
def capability(number):
    """The simulator is a GPU of compute capability 80, or 89 for fp8, for the launches inside:
    CUDA C's, and Triton's where the simulator is its driver.
    Nothing changes on a real GPU."""
    if number not in LARGEST_SHARED:
        raise KernelError(f"compute capability {number}: the simulator has "
                          f"{' and '.join(map(str, LARGEST_SHARED))}", "argument")
    before = session.capability
    driver = triton_driver()
    session.capability = number
    if driver is not None:
        sys.modules["triton"].runtime.driver.set_active(make_driver(number))
    try:
        yield
    finally:
        session.capability = before
        if driver is not None:
            sys.modules["triton"].runtime.driver.set_active(driver)


def triton_driver():
    """Triton's active driver if it is the simulator, else None.
    A process that has not imported Triton launches none of its kernels."""
    if "triton" not in sys.modules or session.device() == "cuda":
        return None
    try:
        active = sys.modules["triton"].runtime.driver.active
    except NO_DRIVER:                   # no GPU, and `deactivate_triton` was called
        return None
    return active if active in map(make_driver, (None, *DEVICES)) else None


def deactivate_triton():
    """Give Triton its default driver back; where there is no GPU it looks for one again later, and
    does not take the simulator."""
    import triton
    tuning.forget()
    Fallback.wanted = False
    if triton.runtime.driver._default in map(make_driver, (None, *DEVICES)):
        triton.runtime.driver._default = None
    try:
        triton.runtime.driver.reset_active()
    except NO_DRIVER:
        triton.runtime.driver.set_active(None)
