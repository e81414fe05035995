"""Ladder, targets and measurements of k17_pipelines: see lab/measure/bench.py."""

from functools import partial
from typing import NamedTuple

import torch

from lab import simulator
from layer1_kernels.gpu import properties
from layer1_kernels.k05_matmul_tiled import matmul_torch
from layer1_kernels.k12_tensor_cores import (
    PERSISTENT,
    matmul_persistent,
    matmul_wmma_cuda,
)
from layer1_kernels.k17_pipelines import (
    KERNELS,
    THREADS,
    launch_flat,
    matmul_flat_triton,
    matmul_pipelined_cuda,
)

WARPS = 4                   # that multiply, in all of these kernels


class Rung(NamedTuple):
    """One rung of the ladder, as counted in the simulator."""

    name: str
    barriers: float         # of the whole block that a warp reaches, for each step of 64 k
    in_flight: float | None     # KB of a block on their way when a wait for them returns; None
    #                             where nothing waits for groups of copies
    conflicts: float        # passes through shared memory, divided by the fewest possible
    shared: float           # bytes read from shared memory for each FLOP
    registers: int          # of a thread, on sm_90
    others: int             # instructions that are not the tensor cores', for each step of a block
    changed: str


def ladder(M, N, K):
    """The kernels of k12 and of this lesson, on random numbers: [Rung].
    All sizes are multiples of 64."""
    from layer1_kernels.k12_tensor_cores import KERNELS as BEFORE
    from layer1_kernels.k17_pipelines import KERNELS

    rng = torch.Generator().manual_seed(0)
    a, w = (torch.randn(rows, K, generator=rng).half() for rows in (M, N))
    with simulator.trace() as trace:
        matmul_wmma_cuda(a, w)
        for kernel in THREADS:
            matmul_pipelined_cuda(a, w, kernel)
    changes = ("k12: fetch, wait, multiply, wait", "swizzled rows; c from registers",
               "three stages, one barrier a step", "a fifth warp copies; two stages")
    modules = (BEFORE, KERNELS, KERNELS, KERNELS)
    return [rung(launch, module.resources(launch.name, "sm_90").registers, K // 64, changed)
            for launch, module, changed in zip(trace.launches, modules, changes, strict=True)]


def rung(launch, registers, steps, changed):
    """The Rung of one launch."""
    totals = launch.totals
    blocks = launch.grid[0] * launch.grid[1]
    warps = launch.block[0] // 32
    in_flight = None if launch.in_flight is None else launch.in_flight / 1024
    return Rung(launch.name, totals.barriers / (blocks * warps * steps), in_flight,
                launch.bank_conflict_degree(),
                totals.access("shared", "load").bytes / launch.flops, registers,
                round((launch.steps - totals.instructions["tensor core"]) / (blocks * steps)),
                changed)


def shipped():
    """matmul_flat_triton and this lesson's kernels in CUDA C, compiled for Hopper: {name: Hopper}.
    """
    how = {key: PERSISTENT[key] for key in ("num_warps", "num_stages")}
    sizes = {key: size for key, size in PERSISTENT.items() if key not in how}
    BM = sizes["BM"]
    BN = sizes["BN"]
    BK = sizes["BK"]
    tiles = {"a": [BM, BK], "w": [BN, BK], "c": [BM, BN]}
    args = {x: f"tensordesc<bf16{tile}>".replace(" ", "") for x, tile in tiles.items()}
    flat = simulator.hopper(matmul_flat_triton, args | dict.fromkeys("MNK", "i32:16"), sizes, **how,
                            needs=["wgmma", "tma_loads"])
    return {"matmul_flat_bf16": flat} | {
        name: simulator.hopper_cuda(KERNELS.get(name), threads, needs=["mma_sync", "cp_async"])
        for name, threads in THREADS.items()}


H200_TARGETS = {"fp16: matmul_staged_cuda": {"times_cublas": 0.55},
                "bf16: matmul_flat": {"times_cublas": 0.90}}


def bench(M=8192, N=8192, K=8192):
    """On a GPU: this lesson's kernels, those of k12 and cuBLAS (through torch) by turns; rows of
    lab.measure.bench.
    All sizes are multiples of 64."""
    from day01_roofline import count_matmul, measure_side_by_side

    programs = properties()["multiprocessor_count"]
    a, w = (torch.randn(rows, K, device="cuda") for rows in (M, N))         # (M, K), (N, K)

    def flat(a, w):
        c = torch.empty(M, N, dtype=a.dtype, device=a.device)               # (M, N)
        launch_flat(a, w, c, programs, PERSISTENT)
        return c

    kernels = {
        torch.float16: {"matmul_wmma_cuda": matmul_wmma_cuda} | {
            kernel: partial(matmul_pipelined_cuda, kernel=kernel) for kernel in THREADS},
        torch.bfloat16: {"matmul_persistent": matmul_persistent, "matmul_flat": flat}}
    families = {}
    for name, dtype in zip(("fp16", "bf16"), kernels, strict=True):
        args = a.to(dtype), w.to(dtype)
        ways = {way: partial(run, *args)
                for way, run in ({"cublas": matmul_torch} | kernels[dtype]).items()}
        families[name] = *count_matmul(M, N, K, dtype.itemsize), ways, dtype
    return measure_side_by_side(families)
