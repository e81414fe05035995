"""Imported by the warm process alone: pays once what each of its children would pay again.

NVRTC loads and compiles once; Triton hashes its own files, which takes most of a second.
"""

import torch
import triton
import triton.language as tl

from lab import device, simulator


@triton.jit
def fill(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0)


device.use_simulator()
simulator.self_test()
fill[(1,)](torch.empty(32), BLOCK=32)
