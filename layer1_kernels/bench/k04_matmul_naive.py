"""Ladder, targets and measurements of k04_matmul_naive: see lab/measure/bench.py."""

from functools import partial
from typing import NamedTuple

import torch
import triton

from lab import simulator
from layer1_kernels.k04_matmul_naive import (
    BK,
    BN,
    dots_triton,
    matmul_few_rows,
    matmul_untiled_cuda,
)


class Rung(NamedTuple):
    """One rung of the ladder, as counted in the simulator."""

    name: str
    asked: float            # bytes asked for by all loads, divided by those of a and w
    load: float             # 32-byte sectors that one load request touches
    store: float            # sectors that one store request touches
    sectors: float          # sectors loaded, divided by those that hold a and w
    instructions: int       # of all warps
    changed: str


def ladder(M, N, K):
    """Every kernel of this lesson on random float32 numbers: [Rung]."""
    rng = torch.Generator().manual_seed(0)
    a, w = (torch.randn(rows, K, generator=rng) for rows in (M, N))
    c = torch.empty(M, N)                           # (M, N)
    changes = ("one element for each thread", "x and y swapped: only the store gains",
               "one warp for each element", "16 elements share a row of a")
    with simulator.trace() as trace:
        for kernel in ("matmul_naive_cuda", "matmul_swapped_cuda", "matmul_coalesced_cuda"):
            matmul_untiled_cuda(a, w, kernel)
        dots_triton[(triton.cdiv(N, 16), M)](a, w, c, N, K, K, 1, K, 1, BN=16, BK=64)
    return [rung(launch, a.nbytes + w.nbytes, changed)
            for launch, changed in zip(trace.launches, changes, strict=True)]


def rung(launch, least, changed):
    """The Rung of one launch. least: bytes of a and w."""
    sectors = launch.totals.access("global", "load").transactions
    return Rung(launch.name, launch.bytes_loaded / least, launch.sectors_per_request(op="load"),
                launch.sectors_per_request(op="store"), 32 * sectors / least, launch.steps,
                changed)


def shipped():
    """What matmul_few_rows compiles for Hopper: {name: simulator.Hopper}. One row of a."""
    strides = {"a_row": "i32:16", "a_k": 1, "w_row": "i32:16", "w_k": 1}
    return {f"dots_triton_{kind}": simulator.hopper(
        dots_triton, dict.fromkeys("awc", f"*{kind}") | {"N": "i32:16", "K": "i32:16"} | strides,
        {"BN": BN, "BK": BK}) for kind in ("fp32", "bf16")}


def bench(M=2048, N=2048, K=2048):
    """On a GPU: every kernel of this lesson, cuBLAS (through torch) and the roofs, by turns; rows
    of lab.measure.bench.
    Also for one row of a, where a tile would have nothing to share."""
    from day01_roofline import count_matmul, measure_side_by_side

    families = {}
    compiled = torch.compile(torch.matmul, dynamic=False)
    for family, rows, *peak in (("many rows", M, torch.float32), ("one row", 1)):
        a, w = (torch.randn(size, K, device="cuda") for size in (rows, N))
        ways = {"cublas": partial(torch.matmul, a, w.T),
                "torch.compile": partial(compiled, a, w.T),
                "dots_triton": partial(matmul_few_rows, a, w)}
        for kernel in ("matmul_naive_cuda", "matmul_swapped_cuda", "matmul_coalesced_cuda"):
            ways[kernel] = partial(matmul_untiled_cuda, a, w, kernel)
        families[family] = *count_matmul(rows, N, K, a.element_size()), ways, *peak
    return measure_side_by_side(families)
