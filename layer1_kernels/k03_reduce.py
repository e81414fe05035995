"""k03 · Sum: s = x[0] + x[1] + ... + x[n-1]

n: numbers
Reads n numbers and writes one, adds n - 1 times: 1/4 FLOP per byte in fp32.
Memory is the limit, and the kernel only reads: its roof is the bandwidth of reading, not of
copying.
"""

from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from lab import simulator
from layer1_kernels.gradients import without_gradients

__all__ = ["reduce_sum", "reduce_sum_cuda", "reduce_sum_torch"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
LADDER = ("sum_tree_cuda", "sum_sequential_cuda", "sum_shuffle_cuda", "sum_vector_cuda",
          "sum_atomic_cuda")
BY_FOUR = ("sum_vector_cuda", "sum_atomic_cuda")        # these take float4, any number a thread
THREADS = 256           # a block of the CUDA kernels
BLOCK = 4096            # numbers that a Triton program takes at a time: 32 a thread
MAX_BLOCKS = 1024       # or programs: enough for 132 SMs, few enough for one second pass


def reduce_sum_oracle(x):                           # (...) -> ()
    """float64, by the book."""
    return x.astype(np.float64).sum()


def predict_tree_warps():
    """The number of warps that add in sum_tree_cuda, summed over all rounds, in a block of 256
    threads."""
    # exercise: in round s thread t adds if t % (2 * s) == 0, for s = 1, 2, 4, ... 128
    return 5 * 8 + 4 + 2 + 1


def predict_resident_blocks():
    """The number of blocks of 256 threads that are resident on one SM of an H200, for a kernel with
    40 registers a thread and no shared memory."""
    # exercise: at most 64 warps, 32 blocks and 65,536 registers; what runs out first?
    return 65_536 // (40 * 256)


@triton.jit
def sum_triton(x, partial, n, BLOCK: tl.constexpr):
    """Program p of P adds up the blocks p, p + P, p + 2P, ... of x."""
    first = tl.program_id(0).to(tl.int64) * BLOCK   # n may not fit 32 bits
    v = tl.zeros((BLOCK,), tl.float32)              # fp32, whatever x is
    for start in range(first, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        v += tl.load(x + i, i < n, 0).to(tl.float32)
    tl.store(partial + tl.program_id(0), tl.sum(v))


@without_gradients
def reduce_sum(x):                                  # (...) -> ()
    """The sum of all numbers of x as float32, by the Triton kernel in at most two passes.

    float32, float16 or bfloat16 on the CPU or on CUDA, contiguous, of any shape; 0 if x is empty.
    Sums are fp32, and the order in which they are added depends only on how many numbers there are:
    equal inputs give equal bits.
    """
    check(x, torch.float32, torch.float16, torch.bfloat16)
    partial = program_sums(x)
    return (program_sums(partial) if partial.numel() > 1 else partial)[0]


def program_sums(x):                                # (...) -> (P,)
    """One pass of reduce_sum: a sum a program, MAX_BLOCKS of them at most."""
    P = max(min(triton.cdiv(x.numel(), BLOCK), MAX_BLOCKS), 1)
    partial = x.new_zeros(P, dtype=torch.float32)   # (P,)
    if x.numel():
        sum_triton[(P,)](x, partial, x.numel(), BLOCK=BLOCK, num_warps=4)
    return partial


@without_gradients
def reduce_sum_cuda(x, kernel="sum_vector_cuda"):   # (...) -> ()
    """The sum of all numbers of x as float32, by one of the CUDA kernels of LADDER.

    float32, contiguous, fewer than 2^31 - 2^18 numbers; for a kernel in BY_FOUR, x begins at a
    multiple of 16 bytes; 0 if x is empty.
    All but sum_atomic_cuda add in the same order every time.
    """
    check(x, torch.float32)
    if x.numel() >= 2**31 - MAX_BLOCKS * THREADS:   # index plus stride must fit 32 bits
        raise ValueError(f"reduce_sum_cuda: x has {x.numel()} numbers, expected fewer than "
                         f"2^31 - {MAX_BLOCKS * THREADS}; reduce_sum takes more")
    if kernel in BY_FOUR and x.data_ptr() % 16:
        raise ValueError(f"{kernel}: x begins at address {x.data_ptr():#x}, expected a multiple of "
                         f"16 bytes; x.clone() begins at one")
    partial = block_sums(x, kernel)
    while partial.numel() > 1:                      # once, unless a thread takes only one number
        partial = block_sums(partial, kernel)
    return partial[0]


def block_sums(x, kernel):                          # (...) -> (P,)
    """One pass of reduce_sum_cuda: a sum a block; or the total, where the blocks share one."""
    blocks = triton.cdiv(x.numel(), THREADS)
    if kernel in BY_FOUR:
        blocks = min(triton.cdiv(x.numel(), 4 * THREADS), MAX_BLOCKS)
    P = 1 if kernel == "sum_atomic_cuda" else max(blocks, 1)
    partial = x.new_zeros(P)                        # (P,)
    if blocks:
        shared = THREADS * x.element_size() if kernel in LADDER[:2] else 0
        KERNELS.get(kernel)(blocks, THREADS, (x, partial, x.numel()), shared_mem=shared)
    return partial


def reduce_sum_torch(x):                            # (...) -> ()
    """The sum of all numbers of x as float32, by PyTorch."""
    return x.sum(dtype=torch.float32)


def check(x, *dtypes):
    """What the kernels assume: they ignore strides."""
    if x.dtype not in dtypes:
        raise TypeError(f"reduce_sum: expected {' or '.join(map(str, dtypes))}, got {x.dtype}")
    if not x.is_contiguous():
        raise ValueError(f"reduce_sum: x of shape {tuple(x.shape)} has strides {x.stride()}, "
                         f"expected it to be contiguous; x.contiguous() makes it so")
