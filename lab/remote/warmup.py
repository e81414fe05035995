"""Imported by a warm process alone: pays once what each of its children would pay again.

Triton hashes its own files, which takes most of a second.
"""

import importlib

import torch
import triton
import triton.language as tl

from lab import device


@triton.jit
def fill(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0)


importlib.import_module("lab.remote.warm_cuda")
device.use_simulator()
fill[(1,)](torch.empty(32), BLOCK=32)
