"""Ladder, targets and measurements of k06_matmul_registers: see lab/measure/bench.py."""

from functools import partial
from typing import NamedTuple

import torch

from lab import simulator
from layer1_kernels.k05_matmul_tiled import matmul_cuda, matmul_torch
from layer1_kernels.k06_matmul_registers import BLOCKS, matmul_registers_cuda


class Rung(NamedTuple):
    """One rung of the ladder, as counted in the simulator."""

    name: str
    asked: float            # bytes asked for by all loads, divided by those of a and w
    sectors: float          # 32-byte sectors loaded, divided by those that hold a and w
    intensity: float        # FLOPs per byte asked of global memory
    reads: float            # numbers read from shared memory per multiplication
    conflicts: float        # passes through shared memory, divided by the fewest possible
    multiply: int           # warp instructions that multiply and add
    shared: int             # warp instructions that read or write shared memory
    rest: int               # all other warp instructions
    changed: str


def ladder(M, N, K):
    """The kernels of k05 and of this lesson on random float32 numbers: [Rung].
    K % 4 is 0."""
    rng = torch.Generator().manual_seed(0)
    a, w = (torch.randn(rows, K, generator=rng) for rows in (M, N))
    changes = ("k05: one element a thread", "8 x 1 elements a thread", "8 x 8 elements a thread",
               "the same, read by float4")
    with simulator.trace() as trace:
        matmul_cuda(a, w)
        for kernel in BLOCKS:
            matmul_registers_cuda(a, w, kernel)
    return [rung(launch, a.nbytes + w.nbytes, M * N * K, changed)
            for launch, changed in zip(trace.launches, changes, strict=True)]


def rung(launch, least, multiplications, changed):
    """The Rung of one launch. least: bytes of a and w"""
    shared = launch.totals.sum("requests", "shared")
    multiply = launch.flops // 64
    loads = launch.totals.access("global", "load")
    return Rung(launch.name, loads.bytes / least, 32 * loads.transactions / least,
                2 * multiplications / loads.bytes,
                launch.totals.access("shared", "load").bytes / 4 / multiplications,
                launch.bank_conflict_degree(), multiply, shared, launch.steps - multiply - shared,
                changed)


H200_TARGETS = {"matmul: matmul_vector_cuda": {"times_cublas": 0.65}}


def bench(M=4096, N=4096, K=4096):
    """On a GPU: the kernels of k05 and of this lesson, cuBLAS (through torch) and the roofs, by
    turns; rows of lab.measure.bench. torch.compile may call cuBLAS too."""
    from day01_roofline import count_matmul, measure_side_by_side

    a, w = (torch.randn(rows, K, device="cuda") for rows in (M, N))         # (M, K), (N, K)
    compiled = torch.compile(matmul_torch, dynamic=False)
    ways = {"cublas": partial(matmul_torch, a, w), "torch.compile": partial(compiled, a, w),
            "matmul_tiled_cuda": partial(matmul_cuda, a, w)}
    ways |= {kernel: partial(matmul_registers_cuda, a, w, kernel) for kernel in BLOCKS}
    return measure_side_by_side({
        "matmul": (*count_matmul(M, N, K, a.element_size()), ways, a.dtype)})
