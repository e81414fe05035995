"""k17 · Pipelines: c[m, n] = sum over k of a[m, k] · w[n, k], while the next tiles are on their way

a: (M, K)   w: (N, K), as a model stores a weight: outputs × inputs   c: (M, N)
STAGES: tiles of a and of w that a block holds, 64 x 64 numbers of fp16 each: 16 KB for both
2·M·N·K FLOPs.
A block of four warps multiplies one pair of tiles while those of the next steps are being copied,
so that copying costs time only where it takes longer than multiplying.
"""

from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from lab import simulator
from layer1_kernels.gradients import without_gradients
from layer1_kernels.k05_matmul_tiled import check, grouped_triton

__all__ = ["matmul_pipelined_cuda"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
TILE = 64
BK = 64
STAGES = 3
THREADS = {"matmul_mma_cuda": 128, "matmul_staged_cuda": 128, "matmul_ring_cuda": 160}  # as in .cu
ALIGNED = 16                                        # bytes of a copy


def bytes_in_flight(stages):
    """Bytes that a block of `stages` stages has on their way while it multiplies a pair of tiles
    (64, 64) of fp16."""
    # exercise: how many pairs of tiles are being copied, and how large is one?
    return (stages - 1) * 2 * TILE * BK * 2


def predict_ways():
    """How many times as long one ldmatrix takes where rows begin 128 bytes apart as one without
    bank conflicts."""
    # exercise: it serves eight rows of 16 bytes at a time; in which banks do they begin?
    return 8


@triton.jit
def matmul_flat_triton(a, w, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                       GROUP: tl.constexpr):
    """Of P programs, program i makes tiles i, i + P, i + 2·P … of c, in one loop over all their
    steps.
    K > 0.

    a, w, c: descriptors with tiles (BM, BK), (BN, BK) and (BM, BN)
    """
    p = tl.program_id(0)
    P = tl.num_programs(0)
    rows, columns, steps = tl.cdiv(M, BM), tl.cdiv(N, BN), tl.cdiv(K, BK)
    own = tl.cdiv(rows * columns - p, P)            # tiles of this program
    sums = tl.zeros((BM, BN), tl.float32)
    tile, step, row, column = p - P, steps - 1, 0, 0    # as after a tile before the first
    for _ in range(own * steps):
        # exercise: count; where a tile begins, find it; add a step's products; store after the last
        step = tl.where(step < steps - 1, step + 1, 0)
        if step == 0:
            tile += P
            row, column = grouped_triton(tile, rows, columns, GROUP)
        k = step * BK
        sums = tl.dot(a.load([row * BM, k]), w.load([column * BN, k]).T, sums)
        if step == steps - 1:
            c.store([row * BM, column * BN], sums.to(c.dtype))
            sums = tl.zeros((BM, BN), tl.float32)


@without_gradients
def matmul_pipelined_cuda(a, w, kernel="matmul_staged_cuda"):   # (M, K), (N, K) -> (M, N)
    """a · wᵀ of float16 by the CUDA kernel with three stages: c is float32.
    Any size may be 0.

    Rows are neighbours, start at multiples of 16 bytes and have a multiple of 8 numbers.
    """
    check(a, w, torch.float16)
    check_rows("a", a)
    check_rows("w", w)
    M, K = a.shape
    N = len(w)
    if M > TILE * 65_535:
        raise ValueError(f"matmul_pipelined_cuda: a has {M} rows, expected at most "
                         f"{TILE * 65_535}: the y dimension of a grid has at most 65,535 blocks")
    c = a.new_empty(M, N, dtype=torch.float32)      # (M, N)
    if c.numel():
        grid = triton.cdiv(N, TILE), triton.cdiv(M, TILE)
        KERNELS.get(kernel)(grid, THREADS[kernel], (a, w, c, M, N, K))
    return c


def check_rows(name, x):
    """What copies of 16 bytes assume of a matrix."""
    numbers = ALIGNED // x.itemsize
    if x.shape[1] % numbers:
        raise ValueError(f"matmul_pipelined_cuda: rows of {x.shape[1]} numbers, expected a "
                         f"multiple of {numbers}, the {ALIGNED} bytes of a copy")
    if not x.is_contiguous():
        raise ValueError(f"matmul_pipelined_cuda: {name} has strides {x.stride()}, expected rows "
                         f"one after the other, {(x.shape[1], 1)}")
    if x.data_ptr() % ALIGNED:
        raise ValueError(f"matmul_pipelined_cuda: {name} starts at byte {x.data_ptr() % ALIGNED} "
                         f"of {ALIGNED}, expected a multiple of {ALIGNED}")


def launch_flat(a, w, c, programs, how):            # (M, K), (N, K), (M, N)
    """a · wᵀ into c by at most `programs` programs of the Triton kernel. how: BM, BN, BK, GROUP,
    num_warps and num_stages.
    Rows of a, w and c start at multiples of 16 bytes; no size is 0."""
    M, K = a.shape
    N = len(w)
    BM = how["BM"]
    BN = how["BN"]
    BK = how["BK"]
    descriptors = (TensorDescriptor.from_tensor(x, tile) for x, tile in
                   ((a, [BM, BK]), (w, [BN, BK]), (c, [BM, BN])))
    tiles = triton.cdiv(M, BM) * triton.cdiv(N, BN)
    matmul_flat_triton[(min(tiles, programs),)](*descriptors, M, N, K, **how)


def read_rows(apart):
    """The launch of one ldmatrix of 16 rows, `apart` numbers from row to row: a multiple of 8, at
    most 120."""
    out = torch.empty(32, 4, dtype=torch.int32)
    with simulator.trace() as trace:
        KERNELS.get("read_rows_cuda")(1, 32, (out, apart))
    return trace.launches[0]
