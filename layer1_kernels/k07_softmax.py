"""k07 · Softmax of each row: y = exp(x - max) / sum of exp(x - max)

R: rows   C: columns   m, s: the maximum of a row, or of a part of it, and the sum of exp(x - m)
Reads R·C numbers, writes R·C, 5 FLOPs each: 5/8 FLOP per byte in fp32.
Memory is the limit.
Recurrence: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
"""

import math
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from lab import simulator
from layer1_kernels.gradients import without_gradients

__all__ = ["softmax", "softmax_cuda", "softmax_torch"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
THREADS = 256           # a block of the CUDA kernels, one a row
FITS = 12_000           # longest row in shared memory: 48 KB a block, on every GPU
BLOCK = 4096            # columns that softmax_online_triton takes at a time
MAX_ROW = 32_768        # longest row in registers: 64 in each thread of 16 warps
LOWEST = tl.constexpr(torch.finfo(torch.float32).min)       # as -FLT_MAX in the .cu


def softmax_oracle(x):                              # (R, C) -> (R, C)
    """float64, by the formula.
    A row of only -inf gives NaN, as in torch."""
    x = x.astype(np.float64)                        # (R, C)
    with np.errstate(invalid="ignore"):             # -inf minus -inf
        e = np.exp(x - x.max(-1, keepdims=True))    # (R, C)
        return e / e.sum(-1, keepdims=True)


def predict_bytes_ratio():
    """Your guess: the bytes that softmax_three_pass_cuda moves, divided by those of a kernel that
    reads each number of x once.
    Both write y."""
    # exercise: how often does each kernel read a number, and how often does it write one?
    return (3 + 1) / (1 + 1)


def merge(a, b):
    """The pair (m, s) of two parts of a row together. a, b: the pairs of the two parts.

    m: maximum of the part   s: sum of exp(x - m)   Numbers are finite or -inf.
    A part that is empty, or contains only -inf, has the pair (-inf, 0).
    """
    # exercise: rescale both sums to the larger maximum; two empty parts give an empty part
    m = max(a[0], b[0])
    if m == -math.inf:
        return m, 0.0
    return m, a[1] * math.exp(a[0] - m) + b[1] * math.exp(b[0] - m)


@triton.jit
def softmax_fused_triton(x, y, C, BLOCK: tl.constexpr):
    """One program per row, the whole row at once.
    BLOCK: a power of two, at least C."""
    x += tl.program_id(0).to(tl.int64) * C          # this program's row; R·C may not fit 32 bits
    y += tl.program_id(0).to(tl.int64) * C
    c = tl.arange(0, BLOCK)
    v = tl.load(x + c, c < C, -float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v))
    tl.store(y + c, e / tl.sum(e), c < C)


@triton.jit
def softmax_online_triton(x, y, C, BLOCK: tl.constexpr):
    """One program per row, BLOCK columns at a time.
    Rows of any length."""
    x += tl.program_id(0).to(tl.int64) * C
    y += tl.program_id(0).to(tl.int64) * C
    m = LOWEST                                      # finite, so that no -inf - (-inf) arises
    s = 0.0                                         # both fp32 for every dtype of x
    # exercise: one loop over blocks of columns to compute (m, s), one loop to write y
    for start in range(0, C, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + c, c < C, -float("inf")).to(tl.float32)
        larger = tl.maximum(m, tl.max(v))
        s = s * tl.exp(m - larger) + tl.sum(tl.exp(v - larger))
        m = larger
    for start in range(0, C, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + c, c < C).to(tl.float32)
        tl.store(y + c, tl.exp(v - m) / s, c < C)


@without_gradients
def softmax(x):                                     # (R, C) -> (R, C)
    """Softmax of each row by Triton: the fused kernel if a row fits in registers, else the online.

    float32, float16 or bfloat16 on the CPU or on CUDA, contiguous; sums are fp32.
    R or C may be 0.
    """
    check(x, torch.float32, torch.float16, torch.bfloat16)
    R, C = x.shape
    y = torch.empty_like(x)                         # (R, C)
    if x.numel() and C <= MAX_ROW:
        width = triton.next_power_of_2(C)
        warps = min(max(width // 1024, 4), 16)
        softmax_fused_triton[(R,)](x, y, C, BLOCK=width, num_warps=warps)
    elif x.numel():
        softmax_online_triton[(R,)](x, y, C, BLOCK=BLOCK, num_warps=8)
    return y


def softmax_torch(x):                               # (R, C) -> (R, C)
    """The same by PyTorch."""
    return torch.softmax(x, -1)


@without_gradients
def softmax_cuda(x, kernel="softmax_online_cuda"):  # (R, C) -> (R, C)
    """Softmax of each row by one of the CUDA kernels. float32, contiguous; R or C may be 0.

    ValueError if softmax_fused_cuda gets a row that does not fit in shared memory.
    """
    check(x, torch.float32)
    R, C = x.shape
    y = torch.empty_like(x)                         # (R, C)
    fused = kernel == "softmax_fused_cuda"
    if fused and C > FITS:
        raise ValueError(f"softmax_fused_cuda: rows of {C:,} numbers do not fit in shared memory "
                         f"(at most {FITS:,}); use softmax_online_cuda")
    if x.numel():
        KERNELS.get(kernel)(R, THREADS, (x, y, C), shared_mem=x.element_size() * C * fused)
    return y


def check(x, *dtypes):
    """What the kernels assume: contiguous rows, and columns counted in 32 bits."""
    if x.ndim != 2:
        raise ValueError(f"softmax: x has shape {tuple(x.shape)}, expected (rows, columns)")
    if x.dtype not in dtypes:
        raise TypeError(f"softmax: expected {' or '.join(map(str, dtypes))}, got {x.dtype}")
    if not x.is_contiguous():
        raise ValueError(f"softmax: x has strides {x.stride()}, expected contiguous rows, "
                         f"{(x.shape[1], 1)}; x.contiguous() makes them so")
    if max(x.shape) >= 2**31 - BLOCK:
        raise ValueError(f"softmax: x has shape {tuple(x.shape)}, expected fewer than "
                         f"2^31 - {BLOCK} rows and columns")
