"""Ladder, targets and measurements of k02_transpose: see lab/measure/bench.py."""

from functools import partial
from typing import NamedTuple

import torch

from lab import simulator
from layer1_kernels.k02_transpose import (
    BLOCK,
    transpose,
    transpose_cuda,
    transpose_torch,
    transpose_triton,
)

LADDER = ("transpose_naive_cuda", "transpose_tile_cuda", "transpose_padded_cuda",
          "transpose_swizzled_cuda", "transpose_vector_cuda")


class Rung(NamedTuple):
    """One rung of the ladder, as counted in the simulator."""

    name: str
    bytes: int              # asked for by all loads and stores
    load: float             # 32-byte sectors that a load touches, over the fewest possible
    store: float            # and a store
    banks: float            # passes through shared memory, divided by the fewest possible, or None
    shared: int             # bytes of shared memory of a block
    requests: int           # loads and stores of global memory
    instructions: int       # of a warp, all of them
    changed: str


def ladder(M, N):
    """Every kernel of this lesson on (M, N) float32 numbers, M and N multiples of 4: [Rung]."""
    x = torch.arange(M * N, dtype=torch.float32).reshape(M, N)  # (M, N)
    changes = ("the direct way", "through a tile; bank conflicts", "the same with a pitch of 33",
               "swizzled, no extra word", "16 bytes a lane", "the compiler's tile")
    with simulator.trace() as trace:
        for kernel in LADDER:
            transpose_cuda(x, kernel)
        transpose(x)
    names = *LADDER, "transpose_triton"
    return [rung(*each) for each in zip(names, trace.launches, changes, strict=True)]


def rung(name, launch, changed):
    """The Rung of one launch."""
    load, store = (launch.totals.access("global", op) for op in ("load", "store"))
    return Rung(name, launch.totals.bytes_asked, load.transactions / load.ideal,
                store.transactions / store.ideal, launch.bank_conflict_degree(),
                launch.shared_bytes, load.requests + store.requests, launch.steps, changed)


def shipped():
    """What `transpose` launches for a large bf16 matrix, compiled for Hopper: {name: Hopper}."""
    args = ("*bf16", "*bf16", "i32:16", "i32:16", "i32:16", 1)
    return {"transpose_triton": simulator.hopper(transpose_triton, args, {"BLOCK": BLOCK},
                                                 num_warps=4)}


H200_TARGETS = {"transpose: transpose_vector_cuda": {"share_of_copy": 0.92},
                "transpose: transpose_triton": {"share_of_copy": 0.88}}


def bench(M=16_384, N=8_192):
    """On a GPU: every kernel of this lesson, torch's transpose and the roofs, by turns; rows of
    lab.measure.bench.
    The matrix is half a gigabyte, far beyond the L2 cache."""
    from day01_roofline import measure_side_by_side

    x = torch.randn(M, N, device="cuda")            # (M, N)
    compiled = torch.compile(transpose_torch)
    ways = {kernel: partial(transpose_cuda, x, kernel) for kernel in LADDER}
    ways |= {"transpose_triton": lambda: transpose(x), "torch": lambda: transpose_torch(x),
             "torch.compile": lambda: compiled(x)}
    return measure_side_by_side({"transpose": (0, 2 * x.nbytes, ways)})
