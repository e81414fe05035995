"""k16 · Warp tiles: c[m, n] = sum over k of a[m, k] · w[n, k], that is c = a · wᵀ, in fp32

a: (M, K)   w: (N, K), as a model stores a weight: outputs × inputs   c: (M, N)
BM BN: tile of c of a block   WM WN: of a warp   TM TN: of a thread   BK: k fetched at a time
2·M·N·K FLOPs.
For one k a warp wants WM + WN numbers of shared memory for WM·WN multiplications.
A block that loads the next tiles while it multiplies these needs registers for them.
"""

from pathlib import Path

import torch

from lab import simulator
from layer1_kernels.gradients import without_gradients
from layer1_kernels.k05_matmul_tiled import check

__all__ = ["matmul_warp_tiles_cuda"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
BM = BN = 128                                       # as in the .cu
THREADS = 256
ALIGNED = 16                                        # bytes that one load takes
REGISTERS = 65_536                                  # of an SM of an A100, an H100 or an H200
MOST_REGISTERS = 255                                # that an instruction can name


def best_warp_tile(BM, BN, warps):
    """(WM, WN): the tile of each of `warps` warps that share a block's tile (BM, BN), such that one
    warp wants the fewest numbers for one k; of two that want as many, the one with more rows.

    BM, BN, warps, and the answer's WM and WN: powers of two. warps is at most BM and at most BN.
    """
    # exercise: the warps stand in rows of equal length; try 1, 2, 4 … rows
    rows = [2 ** i for i in range(warps.bit_length())]
    tiles = [(BM // r, BN // (warps // r)) for r in rows]
    return min(tiles, key=lambda tile: (sum(tile), -tile[0]))


def predict_warp_ratio():
    """How many times as many numbers of shared memory a warp of k06's matmul_vector_cuda wants for
    one k, as one with a tile of 64 x 32.
    What several lanes read in one request counts once."""
    # exercise: count the rows of the tile that the warp's lanes have between them, and the columns
    return (16 + 128) / (64 + 32)


def registers_allowed(threads, blocks):
    """The most registers that a thread may have, such that an SM has enough for `blocks` blocks of
    `threads` threads at once.

    threads: a multiple of 128, at most 1,024. blocks: at least 1, and blocks · threads ≤ 2,048.
    """
    # exercise: an SM has REGISTERS, a thread gets a multiple of 8, and at most MOST_REGISTERS
    return min(MOST_REGISTERS, REGISTERS // (threads * blocks) // 8 * 8)


@without_gradients
def matmul_warp_tiles_cuda(a, w, kernel="matmul_buffered_cuda"):    # (M, K), (N, K) -> (M, N)
    """a · wᵀ of float32 by one of this lesson's CUDA kernels.
    Any size may be 0.

    ValueError where rows are not neighbours that start at multiples of 16 bytes.
    """
    check(a, w, torch.float32)
    check_rows("a", a)
    check_rows("w", w)
    M, K = a.shape
    N = len(w)
    if M > BM * 65_535:
        raise ValueError(f"matmul_warp_tiles_cuda: a has {M} rows, expected at most "
                         f"{BM * 65_535}: the y dimension of a grid has at most 65,535 blocks")
    c = a.new_empty(M, N)                           # (M, N)
    if c.numel():
        grid = -(-N // BN), -(-M // BM)
        KERNELS.get(kernel)(grid, THREADS, (a, w, c, M, N, K))
    return c


def check_rows(name, x):
    """What loads of 16 bytes assume of a matrix."""
    if not x.is_contiguous():
        raise ValueError(f"matmul_warp_tiles_cuda: {name} has strides {x.stride()}, expected rows "
                         f"one after the other, {(x.shape[1], 1)}")
    if x.shape[1] % 4 or x.data_ptr() % ALIGNED:
        raise ValueError(f"matmul_warp_tiles_cuda: {name} has rows of {x.shape[1]} numbers and "
                         f"starts at byte {x.data_ptr() % ALIGNED} of {ALIGNED}, expected a "
                         f"multiple of 4 and a multiple of {ALIGNED}")
