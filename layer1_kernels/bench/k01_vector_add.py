"""Ladder, targets and measurements of k01_vector_add: see lab/measure/bench.py."""

from functools import partial
from typing import NamedTuple

import torch

from lab import simulator
from layer1_kernels.k01_vector_add import BLOCK, add_triton, vector_add, vector_add_cuda


class Rung(NamedTuple):
    """One rung of the ladder, as counted in the simulator."""

    name: str
    bytes: int              # asked for by all loads and stores
    requests: int           # load requests of all warps
    sectors: float          # 32-byte sectors that one load request touches
    ideal: float            # fewest sectors that could hold its bytes
    instructions: int       # of all warps
    changed: str


def ladder(n):
    """Every kernel of this lesson on n elements: [Rung]."""
    x = torch.ones(n)
    y = torch.ones(n)                               # (n,)
    changes = {"add_cuda": "one element a thread",
               "add_chunk_cuda": "worse: four neighbours a thread, one by one",
               "add_grid_stride_cuda": "four a thread, a whole grid apart",
               "add_vector_cuda": "four neighbours in one load",
               "add_triton": "the same requests, chosen by the compiler"}
    with simulator.trace() as trace:
        for kernel in list(changes)[:-1]:
            vector_add_cuda(x, y, kernel)
        vector_add(x, y)
    return [rung(launch, changes[launch.name]) for launch in trace.launches]


def rung(launch, changed):
    """The Rung of one launch."""
    load = launch.totals.access("global", "load")
    return Rung(launch.name, launch.totals.bytes_asked, load.requests,
                load.transactions / load.requests, load.ideal / load.requests, launch.steps,
                changed)


def shipped():
    """What Triton makes of the public kernel for Hopper: {name: simulator.Hopper}."""
    return {"add_triton": simulator.hopper(add_triton, ["*fp32"] * 3 + ["i32:16"],
                                           {"BLOCK": BLOCK})}


H200_TARGETS = {"add: add_triton": {"share_of_copy": 0.97},
                "add: add_vector_cuda": {"share_of_copy": 0.97}}


def bench(n=2**27):
    """On a GPU: this lesson's kernels, torch's add, eager and compiled, and the roofs, by turns;
    rows of lab.measure.bench."""
    from day01_roofline import measure_side_by_side

    x, y = (torch.randn(n, device="cuda") for _ in range(2))        # (n,)
    compiled = torch.compile(torch.add)
    ways = {"torch": lambda: torch.add(x, y), "torch.compile": lambda: compiled(x, y),
            "add_triton": lambda: vector_add(x, y)}
    for kernel in ("add_cuda", "add_chunk_cuda", "add_grid_stride_cuda", "add_vector_cuda"):
        ways[kernel] = partial(vector_add_cuda, x, y, kernel)
    return measure_side_by_side({"add": (n, 3 * x.nbytes, ways)})
