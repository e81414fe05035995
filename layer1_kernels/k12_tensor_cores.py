"""k12 · Matmul on tensor cores: c[m, n] = sum over k of a[m, k] · w[n, k], that is c = a · wᵀ

a: (M, K)   w: (N, K), as a model keeps a weight: numbers out, numbers in   c: (M, N)
BM BN BK: tile of c of a program, and how many k are fetched for it at a time
2·M·N·K FLOPs. One instruction of a warp does 2·16³ = 8,192 of them, where a multiply-add does 64.
A warp that makes WM rows and WN columns of c reads (WM + WN) · 2 bytes of shared memory for each k
and does 2·WM·WN FLOPs: with 32 x 32 in fp16, a byte for 16 FLOPs.
"""

from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from lab import simulator
from layer1_kernels.gradients import without_gradients
from layer1_kernels.k05_matmul_tiled import (
    check,
    grouped_triton,
)

__all__ = ["matmul_persistent", "matmul_wmma_cuda"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
TILE = 64
THREADS = 128                                       # as in the .cu

# How matmul_persistent launches. Chosen from what Triton makes of it for Hopper (see shipped), not
# from times; what else was tried is in benchmarks/LOG.md.
PERSISTENT = {"BM": 128, "BN": 256, "BK": 64, "GROUP": 8, "num_warps": 8, "num_stages": 3}
ALIGNED = 16                                        # bytes: what a descriptor's rows start at


def matmul_oracle(a, w):                            # (M, K), (N, K) -> (M, N)
    """float64, by the book."""
    return a.astype(np.float64) @ w.astype(np.float64).T


def predict_mma_flops():
    """FLOPs of one wmma::mma_sync of a warp: a matrix of 16 x 16 times one of 16 x 16, added to a
    third."""
    # exercise: 16 · 16 results, and for each 16 multiplications and as many additions
    return 2 * 16 * 16 * 16


@triton.jit
def matmul_dot_triton(a, w, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                      PRECISION: tl.constexpr):
    """One program per tile (BM, BN) of c. PRECISION of fp32 products: "ieee", "tf32", "tf32x3"."""
    tl.assume(K > 0)                    # without it, Hopper's matmul instructions may be serialised
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    m_inside, n_inside = m < M, n < N
    a += m.to(tl.int64)[:, None] * K                        # (BM, 1), the tile's rows
    w += n.to(tl.int64)[:, None] * K                        # (BN, 1)
    c += m.to(tl.int64)[:, None] * N + n                    # (BM, BN)
    # exercise: the loop of k05, fp32 sums, but tl.dot gets PRECISION; then store
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

    dtype of c: float16 or float32. a and w are contiguous. Rows that start at multiples of 16 bytes
    are fetched faster.
    """
    check(a, w, torch.float16)
    if dtype not in (torch.float16, torch.float32):
        raise TypeError(f"matmul: c of {dtype} is asked for, expected torch.float16 or "
                        f"torch.float32")
    for name, x in (("a", a), ("w", w)):
        if not x.is_contiguous():
            raise ValueError(f"matmul: {name} has strides {x.stride()}, expected rows one after "
                             f"the other, {(x.shape[1], 1)}; {name}.contiguous() makes them so")
    M, K = a.shape
    N = len(w)
    if M > TILE * 65_535:
        raise ValueError(f"matmul_wmma_cuda: a has {M} rows, expected at most {TILE * 65_535}: the "
                         f"y of a grid counts their tiles")
    c = a.new_empty(M, N, dtype=dtype)              # (M, N)
    if c.numel():
        grid = triton.cdiv(N, TILE), triton.cdiv(M, TILE)
        KERNELS.get("wmma_tiled_cuda")(grid, THREADS, (a, w, c, c.itemsize, M, N, K))
    return c


@triton.jit
def matmul_persistent_triton(a, w, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                             GROUP: tl.constexpr):
    """No more programs than run at once: of P programs, program i makes tiles i, i + P, i + 2·P ...

    a, w, c: descriptors with tiles (BM, BK), (BN, BK) and (BM, BN). They know the sizes: the part
    of a tile beyond them is loaded as 0 and not stored.
    """
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    # flatten makes one loop of the two: the next tile is being loaded while this one is stored
    for p in tl.range(tl.program_id(0), rows * columns, tl.num_programs(0), flatten=True):
        row, column = grouped_triton(p, rows, columns, GROUP)
        sums = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            sums = tl.dot(a.load([row * BM, k]), w.load([column * BN, k]).T, sums)
        c.store([row * BM, column * BN], sums.to(c.dtype))


@without_gradients
def matmul_persistent(a, w):                        # (M, K), (N, K) -> (M, N)
    """a · wᵀ by tiles that the hardware copies, of a's dtype; for many rows. Any size may be 0.

    float16 or bfloat16, with fp32 sums. The numbers of a row are neighbours, and rows of a and of w
    start at multiples of 16 bytes; so do those of c, which is contiguous if N is a multiple of 8.
    """
    check(a, w, torch.float16, torch.bfloat16)
    check_rows("a", a)
    check_rows("w", w)
    device = triton.runtime.driver.active
    properties = device.utils.get_device_properties(device.get_current_device())
    return launch_persistent(a, w, properties["multiprocessor_count"], PERSISTENT)


def launch_persistent(a, w, programs, how):         # (M, K), (N, K) -> (M, N)
    """matmul_persistent by at most `programs` programs; how: as PERSISTENT."""
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
    """What a descriptor of a matrix (rows, K) assumes."""
    apart, step = x.stride()
    if x.numel() and (step != 1 or apart < x.shape[1] or apart * x.itemsize % ALIGNED
                      or x.data_ptr() % ALIGNED):
        raise ValueError(f"matmul_persistent: {name} has strides {x.stride()} and starts at byte "
                         f"{x.data_ptr() % ALIGNED} of {ALIGNED}, expected rows of neighbours that "
                         f"start at multiples of {ALIGNED} bytes; pad K to a multiple of "
                         f"{ALIGNED // x.itemsize}, or call matmul")


def error(c, a, w):                                 # (M, N), (M, K), (N, K)
    """The largest error of c, as a share of the largest number in a · wᵀ by float64."""
    want = matmul_oracle(a, w)                      # (M, N)
    return float(np.abs(c.astype(np.float64) - want).max() / np.abs(want).max())


def holders():                                      # -> (16, 16)
    """The thread that holds each number of a fragment of sums, as the simulator deals them out."""
    threads = np.empty((16, 16), np.float32)
    KERNELS.get("holders_cuda")(1, 32, (threads,))
    return threads.astype(int)


def errors_of_sums(K):
    """Sums of K products of numbers between 0 and 1: {type of sums: error}. K % 16 is 0."""
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
    """Random fp32 numbers, multiplied in various ways: {way: error}."""
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
