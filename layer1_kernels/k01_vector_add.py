"""k01 · Vector add: z[i] = x[i] + y[i]

n: elements
Reads 2n numbers, writes n, does n additions: 1/12 FLOP per byte in fp32.
Memory is the limit.
"""

from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from lab import simulator
from layer1_kernels.gradients import without_gradients

__all__ = ["vector_add", "vector_add_cuda"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
THREADS = 256           # a block: 8 warps, enough to hide some latency, few enough to spread
BLOCK = 1024            # elements of a Triton program
LARGEST = 2**31 // 5 * 4 - 4 * THREADS  # elements: a grid-stride loop steps a quarter past the end


def vector_add_oracle(x, y):                        # (n,), (n,) -> (n,)
    """float64, by the book."""
    return x.astype(np.float64) + y.astype(np.float64)


@triton.jit
def add_triton(x, y, z, n, BLOCK: tl.constexpr):
    """z[i] = x[i] + y[i] for i below n; one program per BLOCK elements."""
    # exercise: load this program's block of x and of y, store their sum; touch nothing from n on
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n                                  # n need not be a multiple of BLOCK
    tl.store(z + i, tl.load(x + i, inside) + tl.load(y + i, inside), inside)


def predict_sectors_per_request():
    """The number of sectors that one load request of add_chunk_cuda touches, for a full warp."""
    # exercise: 32 threads read 4 bytes each, 16 bytes apart; a sector has 32 bytes
    return 16


@without_gradients
def vector_add(x, y):                               # (n,), (n,) -> (n,)
    """x + y by the Triton kernel.
    CPU or CUDA tensors of one dtype, contiguous, of any length."""
    check(x, y)
    z = torch.empty_like(x)                         # (n,)
    if x.numel():
        add_triton[(triton.cdiv(x.numel(), BLOCK),)](x, y, z, x.numel(), BLOCK=BLOCK)
    return z


@without_gradients
def vector_add_cuda(x, y, kernel=None):             # (n,), (n,) -> (n,)
    """x + y by one of the CUDA kernels. float32 tensors, contiguous, of any length.

    kernel: None for add_vector_cuda where both addresses are multiples of 16, else
    add_grid_stride_cuda.
    """
    check(x, y)
    if x.dtype != torch.float32:
        raise TypeError(f"vector_add_cuda: expected float32, got {x.dtype}")
    wide = all(a.data_ptr() % 16 == 0 for a in (x, y))
    kernel = kernel or ("add_vector_cuda" if wide else "add_grid_stride_cuda")
    if kernel == "add_vector_cuda" and not wide:
        raise ValueError("vector_add_cuda: add_vector_cuda loads 16 bytes at a time; expected x "
                         "and y at addresses that are multiples of 16")
    z = torch.empty_like(x)                         # (n,)
    n = x.numel()
    each = 1 if kernel == "add_cuda" else 4         # elements a thread
    if n:
        KERNELS.get(kernel)(triton.cdiv(n, THREADS * each), THREADS, (x, y, z, n))
    return z


def check(x, y):
    """What the kernels assume; they compute with 32-bit indices and without strides."""
    if x.shape != y.shape or x.dtype != y.dtype or x.device != y.device:
        raise ValueError(f"vector_add: x is {tuple(x.shape)} {x.dtype} on {x.device}, "
                         f"y is {tuple(y.shape)} {y.dtype} on {y.device}; expected the same")
    for name, tensor in (("x", x), ("y", y)):
        if not tensor.is_contiguous():
            raise ValueError(f"vector_add: {name} has strides {tensor.stride()}, "
                             f"expected it to be contiguous")
    if x.numel() > LARGEST:
        raise ValueError(f"vector_add: {x.numel()} elements, expected at most {LARGEST}")
