"""Given code round the exercises of s20, run on each rank.
It returns what came out and judges
nothing: a rank that raised would leave the others with sends that no rank receives."""

import time

import torch
import torch.distributed as dist

from lab.remote.recorder import mark
from layer3_system.s20_collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast_tree,
    exchange,
    reduce_scatter,
)

__all__ = ["case", "gather_cases", "late_exchange", "reduce_beside_work", "scatter_cases",
           "to_all_cases", "tree_cases"]

LATER = 0.1             # seconds that a late rank comes after the others


def case(i: int) -> str:
    """The label of case i in a RankRun."""
    return f"case {i}"


def late_exchange(out: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    """What `into` gets where every second rank comes late, and a rank writes over `out` as soon as
    its exchange has returned."""
    time.sleep(LATER * (dist.get_rank() % 2))
    exchange(out, into)
    out.fill_(-1)
    return into


def scatter_cases(arrays: list[torch.Tensor]) -> list[torch.Tensor]:
    """reduce_scatter of each array."""
    results = []
    for i, x in enumerate(arrays):
        mark(case(i))
        results.append(reduce_scatter(x))
    return results


def gather_cases(parts: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
    """all_gather of each piece."""
    results = []
    for i, (piece, N) in enumerate(zip(parts, sizes, strict=True)):
        mark(case(i))
        results.append(all_gather(piece, N))
    return results


def to_all_cases(cases: list[list[torch.Tensor]],
                 sizes: list[list[int]]) -> list[list[torch.Tensor]]:
    """What all_to_all fills, for each list of pieces. sizes: of what comes"""
    results = []
    for i, (out, numbers) in enumerate(zip(cases, sizes, strict=True)):
        mark(case(i))
        into = [torch.full((k,), -1.0) for k in numbers]
        all_to_all(out, into)
        results.append(into)
    return results


def tree_cases(x: torch.Tensor) -> list[torch.Tensor]:
    """What x is after a broadcast from each rank in turn."""
    results = []
    for root in range(dist.get_world_size()):
        mark(case(root))
        copy = x.clone()
        broadcast_tree(copy, root)
        results.append(copy)
    return results


def reduce_beside_work(x: torch.Tensor, m: torch.Tensor) -> None:
    """A matrix product, an all-reduce, and a product again: for a picture of lanes."""
    m @ m
    all_reduce(x)
    m @ m
