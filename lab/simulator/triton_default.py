"""The simulator as the driver that Triton takes where it finds no GPU.

Triton looks through its back ends for one that is active when a kernel is first launched. The
simulator joins them: at once where Triton is imported already, else when it is. Nothing here
imports Triton.
"""

import sys
from importlib.machinery import PathFinder

BACKENDS = "triton.backends"
NAME = "simulator"


class Fallback:
    """A driver that is active where no other is."""

    wanted = True                           # deactivate_triton() ends that

    @classmethod
    def is_active(cls):
        others = [b.driver for name, b in sys.modules[BACKENDS].backends.items() if name != NAME]
        return cls.wanted and not any(driver.is_active() for driver in others)

    def __new__(cls):
        from .triton_driver import make_driver
        return make_driver(80)


class Compiler:
    """Triton's own compiles for the simulator."""

    @staticmethod
    def supports_target(target):
        return False


class Backend:
    driver, compiler = Fallback, Compiler


class Watch:
    """Joins the back ends as soon as Triton's module of them is there."""

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
