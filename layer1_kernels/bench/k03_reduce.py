"""Ladder, targets and measurements of k03_reduce: see lab/measure/bench.py."""

from functools import partial
from typing import NamedTuple

import torch

from lab import simulator
from layer1_kernels.k03_reduce import (
    BLOCK,
    LADDER,
    reduce_sum,
    reduce_sum_cuda,
    reduce_sum_torch,
    sum_triton,
)


class Rung(NamedTuple):
    """One rung of the ladder, as counted in the simulator, all its passes together."""

    name: str
    launches: int
    bytes: int              # that lanes ask of global memory
    sectors: int            # of 32 bytes that they touch
    loads: int              # requests of global memory
    shared: int             # requests of shared memory
    barriers: int           # that warps waited at
    instructions: int       # of a warp, all of them
    changed: str


def ladder(n):
    """Every kernel of this lesson on n float32 numbers: [Rung]."""
    x = torch.ones(n)                               # (n,)
    changes = ("pairs add, in every warp", "neighbouring threads add",
               "registers instead of shared memory", "16 bytes a lane, many numbers",
               "one launch; order not fixed", "written by the compiler")
    runs = {kernel: lambda kernel=kernel: reduce_sum_cuda(x, kernel) for kernel in LADDER}
    runs["sum_triton"] = lambda: reduce_sum(x)
    return [rung(name, run, changed)
            for (name, run), changed in zip(runs.items(), changes, strict=True)]


def rung(name, run, changed):
    """The Rung of what `run` launches."""
    with simulator.trace() as trace:
        run()
    totals = [launch.totals for launch in trace.launches]
    return Rung(name, len(totals), sum(t.bytes_asked for t in totals),
                sum(t.sum("transactions", "global") for t in totals),
                sum(t.sum("requests", "global", ("load",)) for t in totals),
                sum(t.sum("requests", "shared") for t in totals),
                sum(t.barriers for t in totals), sum(t.steps for t in totals), changed)


def shipped():
    """What `reduce_sum` launches for many bf16 numbers, compiled for Hopper: {name: Hopper}."""
    return {"sum_triton": simulator.hopper(sum_triton, ("*bf16", "*fp32", "i32:16"),
                                           {"BLOCK": BLOCK}, num_warps=4)}


H200_TARGETS = {"sum: sum_vector_cuda": {"share_of_copy": 1.02},     # it writes next to nothing
                "sum: sum_triton": {"share_of_copy": 1.02}}


def bench(n=2**28):
    """On a GPU: every kernel of this lesson, torch's sum and the roofs, by turns; rows of
    lab.measure.bench.
    The input is a gigabyte, far beyond the L2 cache."""
    from day01_roofline import measure_side_by_side

    x = torch.randn(n, device="cuda")               # (n,)
    compiled = torch.compile(reduce_sum_torch)
    ways = {kernel: partial(reduce_sum_cuda, x, kernel) for kernel in LADDER}
    ways |= {"sum_triton": lambda: reduce_sum(x), "torch": lambda: reduce_sum_torch(x),
             "torch.compile": lambda: compiled(x)}
    return measure_side_by_side({"sum": (n, x.nbytes, ways)})
