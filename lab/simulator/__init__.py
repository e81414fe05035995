"""A simulator of NVIDIA GPUs that runs real CUDA C and unmodified Triton kernels on a CPU.

NVRTC or Triton compile to PTX; this package interprets the PTX with numpy, for all lanes at once.
It checks what a kernel does, counts what it moves, and says where in the source. It needs numpy and
the NVRTC wheels; torch and triton only for what uses them.
"""

from . import pictures
from .errors import CompileError, KernelError, Unsupported
from .hopper import hopper
from .kernel import RawKernel, RawModule
from .occupancy import occupancy
from .report import Launch
from .sass import sass
from .self_test import self_test
from .session import budget, cache_dir, last_launch, trace, use
from .textures import Texture
from .triton_default import join
from .triton_driver import activate_triton, deactivate_triton

__all__ = [
    "CompileError", "KernelError", "Launch", "RawKernel", "RawModule", "Texture", "Unsupported",
    "activate_triton", "budget", "cache_dir", "deactivate_triton", "hopper", "last_launch",
    "occupancy", "pictures", "sass", "self_test", "trace", "use",
]

join()
