"""A Triton driver whose device is the simulator.

Triton compiles a kernel as for a GPU of compute capability 8.0, or 8.9 for its fp8 formats, with
its own compiler; only the launch is ours.
So unmodified `kernel[grid](...)` runs on CPU tensors.
The device's key is a word of its own, since Triton keeps compiled kernels by device.
"""

import sys
from functools import cache

from . import cubin
from .session import LARGEST_SHARED
from .triton_launch import Launcher
from .triton_tuning import DeviceInterface, naming_disk_cache, tuning

DEVICES = {                 # compute capability -> key, and the properties that Triton asks for
    80: ("simulator", {"max_shared_mem": LARGEST_SHARED[80], "multiprocessor_count": 108,   # A100
                       "sm_clock_rate": 1410000, "mem_clock_rate": 1215000,
                       "mem_bus_width": 5120}),
    89: ("simulator sm_89", {"max_shared_mem": LARGEST_SHARED[89],
                             "multiprocessor_count": 128,                           # RTX 4090
                             "sm_clock_rate": 2520000, "mem_clock_rate": 10501000,
                             "mem_bus_width": 384}),
}


def capability_of(frame, now):
    """What a launch by Triton needs: 89 for arrays of fp8, else 80. now: what stands where this
    frame launches nothing"""
    from triton.runtime.jit import JITFunction
    if frame.f_code is not JITFunction.run.__code__:
        return now
    arguments = *frame.f_locals["args"], *frame.f_locals["kwargs"].values()
    return 89 if any("float8" in str(getattr(a, "dtype", "")) for a in arguments) else 80


@cache
def make_driver(capability):
    """The driver class needs Triton to be defined, so it is made on demand.
    None: a capability that suits each launch"""
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class SimulatorDriver(DriverBase):
        """What Triton asks of a device."""

        def __init__(self):
            self.capability = capability or 80
            self.utils = Utils(self)
            self.launcher_cls = Launcher

        @classmethod
        def is_active(cls):
            return False                                    # Fallback is, see triton_default.py

        def map_python_to_cpp_type(self, ty):
            return ty

        def get_current_target(self):
            arch = self.capability
            if naming_disk_cache(sys._getframe(1)):
                arch = -arch
            return GPUTarget("cuda", arch, 32)

        def get_active_torch_device(self):
            import torch
            return torch.device("cpu")

        def get_device_interface(self):
            return DeviceInterface()

        def get_current_device(self):
            if capability is None:
                self.capability = capability_of(sys._getframe(1), self.capability)
            return DEVICES[self.capability][0]

        def set_current_device(self, device):
            pass

        def get_current_stream(self, device=None):
            return 0

        def get_device_capability(self, device=None):
            return divmod(self.capability, 10)

        def get_benchmarker(self):
            return tuning.benchmark

        def get_empty_cache_for_benchmark(self):
            return None

        def clear_cache(self, cache):
            pass

    return SimulatorDriver()


class Utils:
    """What Triton's own CUDA driver gets from a small C library."""

    def __init__(self, driver):
        self.driver = driver

    def get_device_properties(self, device):
        return {"warpSize": 32, "max_num_regs": 65536} | DEVICES[self.driver.capability][1]

    def load_binary(self, name, binary, shared, device):
        """-> module, function, registers, spilled words, threads a block may have"""
        needs = cubin.needs(binary, name)
        return name, name, needs.registers, needs.stack // 4, 1024

    def unload_module(self, module):
        pass
