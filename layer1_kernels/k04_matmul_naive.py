"""k04 · Matmul: c[m, n] = sum over k of a[m, k] · w[n, k], that is c = a · wᵀ

a: (M, K)   w: (N, K), as a model stores a weight: outputs × inputs   c: (M, N)
2·M·N·K FLOPs on M·K + N·K + M·N numbers: for M = N = K = n, n/6 FLOP per byte in fp32.
For a large n compute-bound, if each number moved once; these kernels load each number many times.
"""

from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from lab import simulator
from layer1_kernels.gradients import without_gradients

__all__ = ["matmul_few_rows", "matmul_untiled_cuda"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
WARPS = 8               # of a block; they share a row of a
LARGEST = 65_535        # the largest y of a grid
BN, BK = 8, 256         # of dots_triton: 8 KB of fp32 in flight for each program


def matmul_oracle(a, w):                            # (M, K), (N, K) -> (M, N)
    """float64, by the book."""
    return a.astype(np.float64) @ w.astype(np.float64).T


def predict_read_ratio(M, N, K):
    """Numbers loaded by all threads of matmul_naive_cuda, divided by the numbers in a and w."""
    # exercise: how many numbers does one element of c need, and how many elements are there?
    return 2 * K * M * N / (M * K + N * K)


def predict_sectors():
    """Sectors that a warp of matmul_naive_cuda touches for one k, in a and in w together.

    K is large, and all 32 threads have an element of c.
    """
    # exercise: lane t reads row m + t of a and row n of w; a sector has 32 bytes
    return 32 + 1


@triton.jit
def dots_triton(a, w, c, N, K, a_row, a_k, w_row, w_k, BN: tl.constexpr, BK: tl.constexpr):
    """One program multiplies one row of a by BN rows of w, BK numbers of each at a time.

    a_row, w_row: numbers from one row to the next   a_k, w_k: numbers from one k to the next
    """
    m = tl.program_id(1)
    n = tl.program_id(0) * BN + tl.arange(0, BN)                                    # (BN,)
    k = tl.arange(0, BK)                                                            # (BK,)
    a += m.to(tl.int64) * a_row + k * a_k                                           # (BK,)
    w += n[:, None].to(tl.int64) * w_row + k * w_k                                  # (BN, BK)
    sums = tl.zeros((BN, BK), tl.float32)
    for start in range(0, K, BK):
        inside = start + k < K
        part = tl.load(w, (n < N)[:, None] & inside, 0).to(tl.float32)
        sums += part * tl.load(a, inside, 0).to(tl.float32)
        a += BK * a_k
        w += BK * w_k
    tl.store(c + m.to(tl.int64) * N + n, tl.sum(sums, 1), n < N)


@without_gradients
def matmul_few_rows(a, w):                          # (M, K), (N, K) -> (M, N)
    """a · wᵀ by the Triton kernel, which loads w once for each row of a.

    float32, float16 or bfloat16, fp32 sums; any strides, any size may be 0, at most 65,535 rows.
    """
    check(a, w, torch.float32, torch.float16, torch.bfloat16)
    M, K = a.shape
    N = len(w)
    c = a.new_empty(M, N)                           # (M, N)
    if c.numel():
        dots_triton[(triton.cdiv(N, BN), M)](a, w, c, N, K, *a.stride(), *w.stride(), BN=BN, BK=BK)
    return c


@without_gradients
def matmul_untiled_cuda(a, w, kernel="matmul_coalesced_cuda"):      # (M, K), (N, K) -> (M, N)
    """a · wᵀ by one of the CUDA kernels of this lesson. float32, contiguous; any size may be 0."""
    check(a, w, torch.float32)
    for name, x in (("a", a), ("w", w)):
        if not x.is_contiguous():
            raise ValueError(f"matmul: {name} has strides {x.stride()}, expected rows one after "
                             f"the other, {(x.shape[1], 1)}; {name}.contiguous() makes them so")
    M, K = a.shape
    N = len(w)
    c = a.new_empty(M, N)                           # (M, N)
    grids = {"matmul_naive_cuda": (triton.cdiv(M, 32), triton.cdiv(N, WARPS)),
             "matmul_swapped_cuda": (triton.cdiv(N, 32), triton.cdiv(M, WARPS)),
             "matmul_coalesced_cuda": (triton.cdiv(N, WARPS), M)}
    if c.numel():
        KERNELS.get(kernel)(grids[kernel], (32, WARPS), (a, w, c, M, N, K))
    return c


def check(a, w, *dtypes):
    """What the kernels assume; they count rows and columns in 32 bits."""
    check_arrays(a, w, *dtypes)
    if len(a) > LARGEST or len(w) > WARPS * LARGEST or a.shape[1] >= 2**31 - BK:
        raise ValueError(f"matmul: a has shape {tuple(a.shape)} and w {tuple(w.shape)}, expected "
                         f"at most {LARGEST} rows of a, {WARPS * LARGEST} rows of w, and "
                         f"fewer than 2^31 - {BK} columns")


def check_arrays(a, w, *dtypes):
    """What every matmul of the course assumes: matching shapes, dtypes and devices."""
    if a.ndim != 2 or w.ndim != 2 or a.shape[1] != w.shape[1]:
        raise ValueError(f"matmul: a has shape {tuple(a.shape)} and w {tuple(w.shape)}, "
                         f"expected (M, K) and (N, K)")
    if a.dtype not in dtypes or w.dtype != a.dtype:
        raise TypeError(f"matmul: a is {a.dtype} and w {w.dtype}, expected both "
                        f"{' or both '.join(map(str, dtypes))}")
    if a.device != w.device:
        raise ValueError(f"matmul: a is on {a.device} and w on {w.device}, expected one device")
