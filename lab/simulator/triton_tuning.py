"""What Triton's autotuner compares where there is no time: warp instructions.

The count of a launch is always the same, so the choice is too.
It says nothing about a GPU: when the simulator is switched off, the autotuners that chose by it
forget what they chose.
"""

import sys
import weakref

from .errors import Unsupported


class Tuning:
    """The count so far, and the autotuners that have asked for it."""

    def __init__(self):
        self.steps = 0                                      # of all launches
        self.autotuners = weakref.WeakSet()

    def benchmark(self, call, *, quantiles=None, **_):
        """What Autotuner takes in place of triton.testing.do_bench."""
        self.remember(asking_autotuner())
        before = self.steps
        call()
        cost = self.steps - before
        return [cost] * len(quantiles) if quantiles else cost

    def remember(self, autotuner):
        if autotuner is not None:
            self.autotuners.add(autotuner)

    def forget(self):
        for autotuner in self.autotuners:
            autotuner.cache.clear()
            autotuner.__dict__.pop("do_bench", None)        # cached: the driver is asked again
        self.autotuners.clear()


def asking_autotuner():
    """The Autotuner that is comparing configurations now, or None."""
    from triton.runtime.autotuner import Autotuner
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is Autotuner._bench.__code__:
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


def naming_disk_cache(frame):
    """Is this an Autotuner that asks where on disk the choices for the current target are kept?
    Those of the simulator must not be taken for those of a GPU of the same architecture."""
    from triton.runtime.autotuner import Autotuner
    return frame.f_code is Autotuner.check_disk_cache.__code__


tuning = Tuning()


class DeviceInterface:
    """The part of torch.cuda that Triton and its tests ask for.
    An autotuner that was made for a GPU, or with its own warmup and rep, times with events; here
    they count."""

    def __init__(self):
        import torch
        self.torch = torch.cpu

    def __getattr__(self, name):
        return getattr(self.torch, name)

    class Event:
        def __init__(self, enable_timing=False, **_):
            self.steps = None
            if enable_timing:
                autotuner = asking_autotuner()
                if autotuner is None:
                    raise Unsupported("the simulator measures no time; simulator.trace() counts "
                                      "instructions, bytes and flops")
                tuning.remember(autotuner)

        def record(self, stream=None):
            self.steps = tuning.steps

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return float(max(end.steps - self.steps, 1))
