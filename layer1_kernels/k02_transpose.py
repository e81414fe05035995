"""k02 · Transpose: y[n, m] = x[m, n]

M, N: rows and columns of x   m, n: a row and a column of it
Reads M·N numbers and writes M·N, computes nothing: 0 FLOP per byte.
Memory is the limit: at best a transpose is as fast as a copy.
"""

import math
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from lab import simulator
from layer1_kernels.gradients import without_gradients

__all__ = ["transpose", "transpose_cuda", "transpose_torch"]

CU = Path(__file__).with_suffix(".cu")
KERNELS = simulator.RawModule(CU)
PADDED = simulator.RawModule(CU, ["-DPITCH=33"])    # rows of the tile one word further apart
TILE = 32               # as in the .cu
MOST_ROWS = 65_535 * TILE       # a grid has at most 65,535 blocks in y
BLOCK = 64              # rows and columns of a Triton program's tile: 32 numbers a thread
BANKS = 32              # of shared memory, each of them 4 bytes wide


def transpose_oracle(x):                            # (M, N) -> (N, M)
    """NumPy.
    Nothing is computed, so every bit is unchanged."""
    return np.array(x.T, order="C")


def predict_sectors_per_store():
    """The number of sectors that one store request of transpose_naive_cuda touches, for a full warp
    and a large M."""
    # exercise: the 32 lanes write to 32 rows of y; a sector has 32 bytes
    return 32


def column_wavefronts(pitch):
    """The number of wavefronts when a warp reads a column of a tile in shared memory: lane l wants
    word l · pitch.

    pitch: words from one row of the tile to the next, any whole number from 1
    """
    # exercise: word w is in bank w % 32; count the lanes that want one bank, and take the most
    return math.gcd(pitch, BANKS)


@triton.jit
def transpose_triton(x, y, M, N, stride_m, stride_n, BLOCK: tl.constexpr):
    """One program per tile. x[m, n] lies at m · stride_m + n · stride_n, y row after row."""
    tiles = tl.cdiv(N, BLOCK)                       # side by side in a row of tiles
    m = tl.program_id(0) // tiles * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(0) % tiles * BLOCK + tl.arange(0, BLOCK)
    inside = (m < M)[:, None] & (n < N)[None, :]
    row, column = m.to(tl.int64), n.to(tl.int64)    # M·N may not fit 32 bits
    tile = tl.load(x + row[:, None] * stride_m + column[None, :] * stride_n, inside)
    tl.store(y + column[:, None] * M + row[None, :], tl.trans(tile), tl.trans(inside))


@without_gradients
def transpose(x):                                   # (M, N) -> (N, M)
    """x with rows and columns exchanged, in new memory, by the Triton kernel.

    float32, float16 or bfloat16 on the CPU or on CUDA; any strides; M or N may be 0.
    """
    check(x, torch.float32, torch.float16, torch.bfloat16)
    M, N = x.shape
    y = x.new_empty(x.shape[::-1])                              # (N, M)
    if x.numel():
        tiles = triton.cdiv(M, BLOCK) * triton.cdiv(N, BLOCK)
        transpose_triton[(tiles,)](x, y, M, N, *x.stride(), BLOCK=BLOCK, num_warps=4)
    return y


@without_gradients
def transpose_cuda(x, kernel=None):                 # (M, N) -> (N, M)
    """x with rows and columns exchanged, in new memory, by one of the CUDA kernels of LADDER.

    float32, contiguous, at most 2,097,120 rows; M or N may be 0.
    kernel: None for transpose_vector_cuda if x can be read 16 bytes at a time, else
    transpose_swizzled_cuda; transpose_padded_cuda is transpose_tile_cuda with a pitch of 33
    """
    check(x, torch.float32)
    if not x.is_contiguous():
        raise ValueError(f"transpose_cuda: x has strides {x.stride()}, expected rows one after the "
                         f"other, {(x.shape[1], 1)}; x.contiguous() makes them so")
    if x.shape[0] > MOST_ROWS:
        raise ValueError(f"transpose_cuda: x has {x.shape[0]} rows, expected at most {MOST_ROWS}; "
                         f"transpose takes more")
    M, N = x.shape
    y = x.new_empty(x.shape[::-1])                              # (N, M)
    by_four = M % 4 == N % 4 == x.data_ptr() % 16 == 0
    kernel = kernel or ("transpose_vector_cuda" if by_four else "transpose_swizzled_cuda")
    if kernel == "transpose_vector_cuda" and not by_four:
        raise ValueError(f"transpose_vector_cuda: x is {M} × {N} at address {x.data_ptr():#x}, "
                         f"expected multiples of 4 rows and columns, and of 16 bytes")
    if x.numel():
        threads = (TILE // 4, TILE) if kernel == "transpose_vector_cuda" else (TILE, 8)
        grid = (triton.cdiv(N, TILE), triton.cdiv(M, TILE))
        launch = PADDED.get("transpose_tile_cuda") if kernel == "transpose_padded_cuda" else \
            KERNELS.get(kernel)
        launch(grid, threads, (x, y, M, N))
    return y


def transpose_torch(x):                             # (M, N) -> (N, M)
    """x with rows and columns exchanged, in new memory, by PyTorch."""
    return x.T.clone(memory_format=torch.contiguous_format)


def check(x, *dtypes):
    """What the kernels assume; they count rows and columns with 32 bits."""
    if x.ndim != 2:
        raise ValueError(f"transpose: x has shape {tuple(x.shape)}, expected (rows, columns)")
    if x.dtype not in dtypes:
        raise TypeError(f"transpose: expected {' or '.join(map(str, dtypes))}, got {x.dtype}")
    if max(x.shape) >= 2**31 - BLOCK:
        raise ValueError(f"transpose: x has shape {tuple(x.shape)}, expected fewer than "
                         f"2^31 - {BLOCK} rows and columns")
