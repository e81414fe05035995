"""k12 · Matmul on tensor cores: c[m, n] = sum over k of a[m, k] · w[n, k], that is c = a · wᵀ

a: (M, K)   w: (N, K), as a model stores a weight: outputs × inputs   c: (M, N)
BM BN BK: tile of c of a program, and how many k are fetched for it at a time
2·M·N·K FLOPs, of which a multiply-add of a warp does 64.
For each k, a warp with WM rows and WN columns of c reads 2·(WM + WN) bytes of shared memory and
does 2·WM·WN FLOPs: with 32 x 32, one byte for 16 FLOPs.
"""

from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from lab import simulator
from layer1_kernels.gpu import properties
from layer1_kernels.gradients import without_gradients
from layer1_kernels.k05_matmul_tiled import (
    check,
    grouped_triton,
)

__all__ = ["matmul_persistent", "matmul_wmma_cuda"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
TILE = 64
THREADS = 128                                       # as in the .cu

# Tile sizes and launch options of matmul_persistent. Chosen from the code compiled for Hopper (see
# shipped), and the fastest of four on an H200; benchmarks/LOG.md lists what else was tried.
PERSISTENT = {"BM": 128, "BN": 256, "BK": 64, "GROUP": 8, "num_warps": 8, "num_stages": 3}
ALIGNED = 16                                        # bytes: a descriptor's rows start at multiples


def matmul_oracle(a, w):                            # (M, K), (N, K) -> (M, N)
    """float64, by the book."""
    return a.astype(np.float64) @ w.astype(np.float64).T


def predict_mma_flops():
    """FLOPs of one wmma::mma_sync: the product of two 16 x 16 matrices, added to a third."""
    # exercise: count the results, then the FLOPs of each
    return 2 * 16 * 16 * 16


@triton.jit
def matmul_dot_triton(a, w, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                      PRECISION: tl.constexpr):
    """One program per tile (BM, BN) of c. PRECISION of fp32 products: "ieee", "tf32", "tf32x3"."""
    tl.assume(K > 0)                    # without it each wgmma may wait for the one before
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    m_inside, n_inside = m < M, n < N
    a += m.to(tl.int64)[:, None] * K                        # (BM, 1), the tile's rows
    w += n.to(tl.int64)[:, None] * K                        # (BN, 1)
    c += m.to(tl.int64)[:, None] * N + n                    # (BM, BN)
    # exercise: the loop of k05 with fp32 sums; give tl.dot input_precision=PRECISION; store
    sums = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        inside = start + k < K
        a_tile = tl.load(a + start + k, m_inside[:, None] & inside, 0)              # (BM, BK)
        w_tile = tl.load(w + start + k, n_inside[:, None] & inside, 0)              # (BN, BK)
        sums = tl.dot(a_tile, w_tile.T, sums, input_precision=PRECISION)
    tl.store(c, sums, m_inside[:, None] & n_inside)


@without_gradients
def matmul_wmma_cuda(a, w, dtype=torch.float16):    # (M, K), (N, K) -> (M, N)
    """a · wᵀ of float16 by the CUDA kernel, with fp32 sums; any size may be 0.

    dtype of c: float16 or float32. a and w are contiguous.
    Rows that start at multiples of 16 bytes are fetched faster.
    """
    check(a, w, torch.float16)
    if dtype not in (torch.float16, torch.float32):
        raise TypeError(f"matmul: dtype is {dtype}, expected torch.float16 or torch.float32")
    for name, x in (("a", a), ("w", w)):
        if not x.is_contiguous():
            raise ValueError(f"matmul: {name} has strides {x.stride()}, expected contiguous "
                             f"rows, {(x.shape[1], 1)}; call {name}.contiguous()")
    M, K = a.shape
    N = len(w)
    if M > TILE * 65_535:
        raise ValueError(f"matmul_wmma_cuda: a has {M} rows, expected at most {TILE * 65_535}, "
                         f"because the grid's y counts tiles of rows")
    c = a.new_empty(M, N, dtype=dtype)              # (M, N)
    if c.numel():
        grid = triton.cdiv(N, TILE), triton.cdiv(M, TILE)
        KERNELS.get("wmma_tiled_cuda")(grid, THREADS, (a, w, c, c.itemsize, M, N, K))
    return c


@triton.jit
def matmul_persistent_triton(a, w, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                             GROUP: tl.constexpr):
    """At most as many programs as run at once: of P, program i computes tiles i, i + P, i + 2·P ...

    a, w, c: descriptors with tiles (BM, BK), (BN, BK) and (BM, BN).
    They hold the sizes of the arrays: beyond the end a tile loads zeros and stores nothing.
    """
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    # flatten makes one loop of the two, so that the next tile can be loaded during this store
    for p in tl.range(tl.program_id(0), rows * columns, tl.num_programs(0), flatten=True):
        row, column = grouped_triton(p, rows, columns, GROUP)
        sums = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            sums = tl.dot(a.load([row * BM, k]), w.load([column * BN, k]).T, sums)
        c.store([row * BM, column * BN], sums.to(c.dtype))


@without_gradients
def matmul_persistent(a, w):                        # (M, K), (N, K) -> (M, N)
    """a · wᵀ in a's dtype, with tiles copied by the hardware; for many rows.
    Any size may be 0.

    float16 or bfloat16, with fp32 sums.
    The numbers of a row are neighbours, and rows of a and of w start at multiples of 16 bytes; so
    do those of c, which is contiguous if N is a multiple of 8.
    """
    check(a, w, torch.float16, torch.bfloat16)
    check_rows("a", a)
    check_rows("w", w)
    return launch_persistent(a, w, properties()["multiprocessor_count"], PERSISTENT)


def launch_persistent(a, w, programs, how):         # (M, K), (N, K) -> (M, N)
    """As matmul_persistent, with at most `programs` programs; how: like PERSISTENT."""
    M, K = a.shape
    N = len(w)
    c = a.new_empty(M, N + -N % (ALIGNED // a.itemsize))[:, :N]     # (M, N)
    if K == 0:
        return c.zero_()
    if c.numel():
        BM = how["BM"]
        BN = how["BN"]
        BK = how["BK"]
        tiles = triton.cdiv(M, BM) * triton.cdiv(N, BN)
        descriptors = (TensorDescriptor.from_tensor(x, tile) for x, tile in
                       ((a, [BM, BK]), (w, [BN, BK]), (c, [BM, BN])))
        matmul_persistent_triton[(min(tiles, programs),)](*descriptors, M, N, K, **how)
    return c


def check_rows(name, x):
    """ValueError unless x (rows, K) has the strides and the alignment that a descriptor needs."""
    apart, step = x.stride()
    if x.numel() and (step != 1 or apart < x.shape[1] or apart * x.itemsize % ALIGNED
                      or x.data_ptr() % ALIGNED):
        raise ValueError(f"matmul_persistent: {name} has strides {x.stride()} and starts at byte "
                         f"{x.data_ptr() % ALIGNED} of {ALIGNED}, expected contiguous rows that "
                         f"start at multiples of {ALIGNED} bytes; pad K to a multiple of "
                         f"{ALIGNED // x.itemsize}, or use matmul")


def error(c, a, w):                                 # (M, N), (M, K), (N, K)
    """The largest error of c, divided by the largest number of a · wᵀ in float64."""
    want = matmul_oracle(a, w)                      # (M, N)
    return float(np.abs(c.astype(np.float64) - want).max() / np.abs(want).max())


def holders():                                      # -> (16, 16)
    """The thread that holds each number of a fragment of sums, in the simulator."""
    threads = np.empty((16, 16), np.float32)
    KERNELS.get("holders_cuda")(1, 32, (threads,))
    return threads.astype(int)


def errors_of_sums(K):
    """{type of the sums: error}, of K products of numbers between 0 and 1; K % 16 is 0."""
    rng = np.random.default_rng(0)
    a, w = (rng.random((16, K)).astype(np.float16) for _ in range(2))
    errors = {}
    for name, kernel, dtype in (("fp32", "wmma_warp_cuda", np.float32),
                                ("fp16", "wmma_half_sums_cuda", np.float16)):
        c = np.empty((16, 16), dtype)
        KERNELS.get(kernel)(1, 32, (a, w, c, 16, K))
        errors[name] = error(c, a, w)
    return errors


def errors_of_products(K):
    """{way of multiplying: error}, of random fp32 numbers."""
    rng = torch.Generator().manual_seed(0)
    a, w = (torch.randn(16, K, generator=rng) for _ in range(2))
    errors = {}
    for way, dtype, precision in (("ieee", torch.float32, "ieee"),
                                  ("tf32x3", torch.float32, "tf32x3"),
                                  ("tf32", torch.float32, "tf32"),
                                  ("as fp16", torch.float16, "ieee"),
                                  ("as bf16", torch.bfloat16, "ieee")):
        c = torch.empty(16, 16)
        matmul_dot_triton[(1, 1)](a.to(dtype), w.to(dtype), c, 16, 16, K, BM=16, BN=16, BK=64,
                                  PRECISION=precision)
        errors[way] = error(c.numpy(), a.numpy(), w.numpy())
    return errors
