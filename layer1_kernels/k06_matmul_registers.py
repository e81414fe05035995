"""k06 · Matmul from registers: c[m, n] = sum over k of a[m, k] · w[n, k], that is c = a · wᵀ

a: (M, K)   w: (N, K), as a model stores a weight: outputs × inputs   c: (M, N)
BM BN: a block's tile of c   TM TN: a thread's tile of c   BK: k fetched in one step
2·M·N·K FLOPs.
A block fetches the sides of its tile, with 128 x 128 in fp32 a byte for 32 FLOPs.
A thread reads the sides of its own tile from shared memory.
"""

from pathlib import Path

import numpy as np
import torch

from lab import simulator
from layer1_kernels.gradients import without_gradients
from layer1_kernels.k05_matmul_tiled import check

__all__ = ["matmul_registers_cuda"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
BLOCKS = {"matmul_strip_cuda": (64, 512), "matmul_square_cuda": (128, 256),
          "matmul_vector_cuda": (128, 256)}         # kernel: (rows and columns, threads) of a block


def matmul_oracle(a, w):                            # (M, K), (N, K) -> (M, N)
    """float64, by the book."""
    return a.astype(np.float64) @ w.astype(np.float64).T


def shared_reads(TM, TN):
    """Numbers that a thread with a tile (TM, TN) of c reads from shared memory, per multiplication.
    For each k it reads every number once and keeps it in a register."""
    # exercise: for one k, how many numbers are read, and how many multiplications follow?
    return (TM + TN) / (TM * TN)


@without_gradients
def matmul_registers_cuda(a, w, kernel="matmul_vector_cuda"):       # (M, K), (N, K) -> (M, N)
    """a · wᵀ by one of the CUDA kernels of this lesson. float32, contiguous; any size may be 0.

    ValueError if the kernel is matmul_vector_cuda and the rows of a or w do not start at multiples
    of 16 bytes; the other kernels take any rows.
    """
    check(a, w, torch.float32)
    for name, x in (("a", a), ("w", w)):
        if not x.is_contiguous():
            raise ValueError(f"matmul: {name} has strides {x.stride()}, expected rows one after "
                             f"the other, {(x.shape[1], 1)}; {name}.contiguous() makes them so")
        if kernel == "matmul_vector_cuda" and (x.shape[1] % 4 or x.data_ptr() % 16):
            raise ValueError(f"matmul_vector_cuda: {name} has rows of {x.shape[1]} numbers at "
                             f"address {x.data_ptr():#x}; expected a multiple of 4 numbers, at a "
                             f"multiple of 16 bytes. matmul_square_cuda takes any.")
    M, K = a.shape
    N = len(w)
    c = a.new_empty(M, N)                           # (M, N)
    if c.numel():
        side, threads = BLOCKS[kernel]
        grid = -(-N // side), -(-M // side)
        KERNELS.get(kernel)(grid, threads, (a, w, c, M, N, K))
    return c
