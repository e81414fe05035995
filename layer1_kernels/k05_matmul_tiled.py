"""k05 · Matmul in tiles: c[m, n] = sum over k of a[m, k] · w[n, k], that is c = a · wᵀ

a: (M, K)   w: (N, K), as a model stores a weight: outputs × inputs   c: (M, N)
BM BN BK: rows and columns of a tile of c, and how many k are loaded for it at a time
2·M·N·K FLOPs.
A tile of c loads its two sides and computes its area.
HBM moves fewer bytes than the tiles load if tiles that need the same rows run at the same time.
"""

from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from lab import simulator
from layer1_kernels.gradients import without_gradients
from layer1_kernels.k02_transpose import transpose
from layer1_kernels.k04_matmul_naive import check_arrays, matmul_few_rows

__all__ = ["matmul", "matmul_cuda", "matmul_torch"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
TILE = 32               # as in the .cu
MAX_NAIVE_ROWS = 4      # float32: with at most this many rows of a, k04's kernel is used
GROUP = 8               # rows of tiles in a group
MIN_TILES = 100         # so most of an H200's 132 SMs get one

# BM, BN, BK, warps, stages by bytes of a number. Chosen from what Triton makes of them for Hopper
# (see shipped: no spills, wgmma from 64 rows on), not from times.
TILES = {2: [(128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (64, 64, 128, 4, 4), (64, 32, 128, 4, 4),
             (16, 32, 256, 4, 4)],
         4: [(128, 128, 16, 8, 3), (64, 64, 32, 4, 3), (16, 32, 64, 4, 3)]}


def matmul_oracle(a, w):                            # (M, K), (N, K) -> (M, N)
    """float64, by the book."""
    return a.astype(np.float64) @ w.astype(np.float64).T


def tile_intensity(BM, BN, itemsize):
    """FLOPs per byte loaded when a program computes a tile (BM, BN) of c; numbers have `itemsize`
    bytes.
    The store of c is not counted: for a long K it is negligible."""
    # exercise: for one k, how many FLOPs, and how many numbers loaded?
    return 2 * BM * BN / ((BM + BN) * itemsize)


@triton.jit
def grouped_triton(p, rows, columns, GROUP: tl.constexpr):
    """(row, column) of program p's tile, out of rows · columns tiles.

    GROUP rows of tiles form a group; the last group may have fewer.
    Tiles are numbered group by group, and within a group column by column.
    """
    # exercise: find p's group, its first row and its height; then count p from the group's start
    first = p // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    p %= GROUP * columns
    return first + p % height, p // height


@triton.jit
def order_triton(tiles, rows, columns, GROUP: tl.constexpr):
    """Writes each program's tile (row, column), so that the order can be seen."""
    p = tl.program_id(0)
    row, column = grouped_triton(p, rows, columns, GROUP)
    tl.store(tiles + 2 * p, row)
    tl.store(tiles + 2 * p + 1, column)


@triton.jit
def matmul_tiled_triton(a, w, c, M, N, K, a_row, a_k, w_row, w_k,
                        BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """One program per tile (BM, BN) of c.

    a_row, w_row: numbers from one row to the next   a_k, w_k: numbers from one k to the next
    """
    tl.assume(K > 0)                    # only for the assembler: see shipped() in bench/
    row, column = grouped_triton(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    m = row * BM + tl.arange(0, BM)                         # (BM,)
    n = column * BN + tl.arange(0, BN)                      # (BN,)
    k = tl.arange(0, BK)                                    # (BK,)
    m_inside = m < M
    n_inside = n < N
    a += m.to(tl.int64)[:, None] * a_row + k * a_k          # (BM, BK), the first tile
    w += n.to(tl.int64)[:, None] * w_row + k * w_k          # (BN, BK)
    c += m.to(tl.int64)[:, None] * N + n                    # (BM, BN)
    # exercise: in each step load two tiles, add their tl.dot to fp32 sums; then store
    sums = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        inside = start + k < K
        a_tile = tl.load(a, m_inside[:, None] & inside, 0)
        w_tile = tl.load(w, n_inside[:, None] & inside, 0)
        sums = tl.dot(a_tile, w_tile.T, sums, input_precision="ieee")
        a += BK * a_k
        w += BK * w_k
    tl.store(c, sums, m_inside[:, None] & n_inside)


def configuration(M, N, itemsize):
    """Tile, warps and stages for matmul_tiled_triton: the largest tile that M fills by more than
    half and of which there are MIN_TILES, otherwise the smallest."""
    *larger, smallest = TILES[itemsize]
    BM, BN, BK, warps, stages = next(
        (tile for tile in larger
         if tile[0] < 2 * M and triton.cdiv(M, tile[0]) * triton.cdiv(N, tile[1]) >= MIN_TILES),
        smallest)
    return {"BM": BM, "BN": BN, "BK": BK, "GROUP": GROUP, "num_warps": warps, "num_stages": stages}


@without_gradients
def matmul(a, w):                                   # (M, K), (N, K) -> (M, N)
    """a · wᵀ by the Triton kernel, of a's dtype, on a's device; any strides, any size may be 0.

    float32 (IEEE products, not TF32), float16 or bfloat16, all with fp32 sums.
    Without tensor cores, threads read single numbers from shared memory, and without bank conflicts
    only if numbers of one k are neighbours.
    So float32 is transposed first, into new memory.
    For up to MAX_NAIVE_ROWS rows that does not pay, and k04's kernel is used.
    """
    check(a, w, torch.float32, torch.float16, torch.bfloat16)
    M, K = a.shape
    N = len(w)
    if a.dtype == torch.float32 and M <= MAX_NAIVE_ROWS:
        return matmul_few_rows(a, w)
    c = a.new_empty(M, N)                           # (M, N)
    if K == 0:
        return c.zero_()
    if c.numel():
        if a.dtype == torch.float32:
            a = transpose(a).T
            w = transpose(w).T
        how = configuration(M, N, a.element_size())
        programs = triton.cdiv(M, how["BM"]) * triton.cdiv(N, how["BN"])
        matmul_tiled_triton[(programs,)](a, w, c, M, N, K, *a.stride(), *w.stride(), **how)
    return c


@without_gradients
def matmul_cuda(a, w, kernel="matmul_tiled_cuda"):  # (M, K), (N, K) -> (M, N)
    """a · wᵀ by the CUDA kernel. float32, contiguous; any size may be 0."""
    check(a, w, torch.float32)
    for name, x in (("a", a), ("w", w)):
        if not x.is_contiguous():
            raise ValueError(f"matmul: {name} has strides {x.stride()}, expected rows one after "
                             f"the other, {(x.shape[1], 1)}; {name}.contiguous() makes them so")
    M, K = a.shape
    N = len(w)
    if M > TILE * 65_535:
        raise ValueError(f"matmul_cuda: a has {M} rows, expected at most {TILE * 65_535}: a grid "
                         f"has at most 65,535 blocks in y")
    c = a.new_empty(M, N)                           # (M, N)
    if c.numel():
        grid = triton.cdiv(N, TILE), triton.cdiv(M, TILE)
        KERNELS.get(kernel)(grid, (TILE, TILE), (a, w, c, M, N, K))
    return c


def matmul_torch(a, w):                             # (M, K), (N, K) -> (M, N)
    """a · wᵀ by PyTorch, which calls the vendor's library; any dtype and strides it accepts."""
    return a @ w.T


def first_wave(rows, columns, GROUP, programs=132):
    """(strips of a, strips of w) that the first wave of programs loads.

    programs: how many run at once; an H200 has 132 SMs
    """
    tiles = torch.empty(rows * columns, 2, dtype=torch.int32)       # (programs, 2)
    order_triton[(rows * columns,)](tiles, rows, columns, GROUP=GROUP)
    first = tiles[:programs]
    return len(first[:, 0].unique()), len(first[:, 1].unique())


def check(a, w, *dtypes):
    """What the kernels assume; they count rows and columns in 32 bits."""
    check_arrays(a, w, *dtypes)
    if max(*a.shape, len(w)) >= 2**31 - 256:
        raise ValueError(f"matmul: a has shape {tuple(a.shape)} and w {tuple(w.shape)}, expected "
                         f"fewer than 2^31 - 256 rows and columns")
