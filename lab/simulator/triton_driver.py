"""A Triton driver whose device is the simulator.

Triton compiles a kernel as for a GPU of compute capability 8.0, with its own compiler; only the
launch is ours. So unmodified `kernel[grid](...)` runs on CPU tensors. The device's key is a word of
its own, since Triton keeps compiled kernels by device.
"""

import time
from functools import cache
from pathlib import Path

from . import ptx
from .arguments import bind
from .errors import Unsupported
from .report import make_launch
from .run import MAX_SHARED, Run
from .session import session
from .signature import Parameter

DEVICE = "simulator"
CAPABILITY = 80


def activate_triton():
    """Make the simulator Triton's active driver."""
    import triton
    triton.runtime.driver.set_active(make_driver())


def deactivate_triton():
    """Give Triton its default driver back; where there is no GPU it looks for one again later."""
    import triton
    try:
        triton.runtime.driver.reset_active()
    except RuntimeError:
        triton.runtime.driver.set_active(None)


@cache
def make_driver():
    """The driver class needs Triton to be defined, so it is made on demand."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class SimulatorDriver(DriverBase):
        """What Triton asks of a device."""

        def __init__(self):
            self.utils = Utils()
            self.launcher_cls = Launcher

        @classmethod
        def is_active(cls):
            return False                                    # only by activate_triton()

        def map_python_to_cpp_type(self, ty):
            return ty

        def get_current_target(self):
            return GPUTarget("cuda", CAPABILITY, 32)

        def get_active_torch_device(self):
            import torch
            return torch.device("cpu")

        def get_device_interface(self):
            import torch
            return torch.cpu

        def get_current_device(self):
            return DEVICE

        def set_current_device(self, device):
            pass

        def get_current_stream(self, device=None):
            return 0

        def get_device_capability(self, device=None):
            return CAPABILITY // 10, CAPABILITY % 10

        def get_benchmarker(self):
            return count_steps

        def get_empty_cache_for_benchmark(self):
            return None

        def clear_cache(self, cache):
            pass

    return SimulatorDriver()


def count_steps(call, *, quantiles=None, **_):
    """What autotuning compares. There is no time here: the fewest warp instructions win."""
    start = time.perf_counter()
    call()
    cost = session.last.steps if session.last else time.perf_counter() - start
    return [cost] * len(quantiles) if quantiles else cost


class Utils:
    """Device properties of an A100, which is the GPU that sm_80 stands for."""

    def get_device_properties(self, device):
        return {"max_shared_mem": MAX_SHARED, "multiprocessor_count": 108, "warpSize": 32,
                "max_num_regs": 65536, "sm_clock_rate": 1410000, "mem_clock_rate": 1215000,
                "mem_bus_width": 5120}

    def load_binary(self, name, binary, shared, device):
        return None, name, 0, 0, 1024               # module, function, registers, spills, threads

    def unload_module(self, module):
        pass


class Launcher:
    """Triton makes one of these for a compiled kernel and calls it for every launch."""

    def __init__(self, source, metadata):
        self.name = metadata.name
        self.threads = 32 * metadata.num_warps
        self.shared = metadata.shared
        self.scratch = metadata.global_scratch_size
        if getattr(metadata, "num_ctas", 1) != 1:
            raise Unsupported("the simulator runs no clusters: num_ctas must be 1")
        self.module = parse_cached(ptx_file(metadata))
        self.kernel = self.module.functions[self.name]
        names = source.fn.arg_names if hasattr(source, "fn") else list(source.signature)
        self.kinds = list(source.signature.values())
        self.parameters = [Parameter(name, str(kind).lstrip("*"), str(kind).startswith("*"))
                           for name, kind in zip(names, self.kinds, strict=True)
                           if kind != "constexpr"]
        self.globals = {}

    def __call__(self, grid_x, grid_y, grid_z, stream, function, kernel_metadata, launch_metadata,
                 enter_hook, exit_hook, *args):
        import torch
        if enter_hook is not None:
            enter_hook(launch_metadata)
        run = Run(self.module, self.kernel, (grid_x, grid_y, grid_z), (self.threads, 1, 1),
                  sources={}, dynamic_shared=self.shared, budget=session.step_budget,
                  checks=session.checks)
        values = [by_type(value, kind) for value, kind in zip(args, self.kinds, strict=True)
                  if kind != "constexpr"]
        scratch = torch.zeros(self.scratch * grid_x * grid_y * grid_z, dtype=torch.uint8) \
            if self.scratch else None
        values += [scratch, None]                           # global scratch, profile scratch
        hidden = [Parameter("global scratch", "", True), Parameter("profile scratch", "", True)]
        run.parameters = bind(self.name, self.kernel.parameters, self.parameters + hidden, values,
                              run.space)
        run.place_globals(self.globals)
        if grid_x * grid_y * grid_z:
            run.run()
        session.finish(make_launch(run, self.name))
        if exit_hook is not None:
            exit_hook(launch_metadata)


def by_type(value, kind):
    """Triton's scalars by the type it has compiled for: an integer may be meant as a float."""
    if str(kind).startswith("fp"):
        return float(value)
    if isinstance(value, bool):
        return int(value)
    return value.base if hasattr(value, "base") and hasattr(value, "data_ptr") and not hasattr(
        value, "untyped_storage") else value


def ptx_file(metadata):
    """The path of the PTX in Triton's cache."""
    from triton.runtime.cache import get_cache_manager
    group = get_cache_manager(metadata.hash).get_group(f"{metadata.name}.json") or {}
    found = [path for name, path in group.items() if name.endswith(".ptx")]
    if not found:
        raise Unsupported(f"Triton's cache has no PTX of `{metadata.name}`; is its cache off?")
    return found[0]


@cache
def parse_cached(path):
    return ptx.parse(Path(path).read_text(encoding="utf-8"))
