"""Ladder, limits, targets and measurements of k16_warp_tiles: see lab/measure/bench.py."""

from functools import partial
from typing import NamedTuple

import torch

from lab import simulator
from layer1_kernels.k05_matmul_tiled import matmul_torch
from layer1_kernels.k06_matmul_registers import KERNELS as BEFORE
from layer1_kernels.k06_matmul_registers import matmul_registers_cuda
from layer1_kernels.k16_warp_tiles import BM, BN, KERNELS, THREADS, matmul_warp_tiles_cuda

NAMES = "matmul_warp_cuda", "matmul_buffered_cuda"
WARPS = THREADS // 32


class Rung(NamedTuple):
    """One rung of the ladder, as counted in the simulator."""

    name: str
    asked: float            # numbers that lanes ask of shared memory for each multiplication
    wanted: float           # numbers of shared memory that a warp wants for one k
    wavefronts: int         # of shared memory, as lanes read it
    conflicts: float        # passes through shared memory, divided by the fewest possible
    barriers: int           # that a warp reaches
    distance: int           # multiplications between a load and its first use, in the code
    instructions: int       # of all warps
    changed: str


class Limit(NamedTuple):
    """What the assembler makes of one kernel, and how many of its blocks an SM holds."""

    name: str
    k: int                  # fetched in one step
    bound: bool             # whether two blocks on an SM are asked for
    arch: str
    registers: int          # of a thread
    spills: int             # bytes of a thread
    blocks: int             # on an SM
    limiter: str            # what allows no more of them


def variant(k, bound=True):
    """This lesson's kernels with k at a time instead of 8 -> RawModule

    bound: ask for two blocks on an SM, which they do not
    """
    source = KERNELS.source.replace("BK = 8;", f"BK = {k};")
    return simulator.RawModule(source.replace("(THREADS)", "(THREADS, 2)") if bound else source)


def ladder(M, N, K):
    """k06's last kernel, this lesson's, and the last one with 16 k at a time, on random float32
    numbers: [Rung].
    Sizes are multiples of 128, 128 and 16."""
    rng = torch.Generator().manual_seed(0)
    a, w = (torch.randn(rows, K, generator=rng) for rows in (M, N))
    changes = ("k06: tiles of threads", "a tile for each warp",
               "two pairs of tiles", "16 k at a time")
    with simulator.trace() as trace:
        matmul_registers_cuda(a, w)
        for kernel in NAMES:
            matmul_warp_tiles_cuda(a, w, kernel)
        grid = -(-N // BN), -(-M // BM)
        args = a, w, torch.empty(M, N), M, N, K
        variant(16).get(NAMES[1])(grid, THREADS, args)
    return [rung(launch, M, N, K, changed)
            for launch, changed in zip(trace.launches, changes, strict=True)]


def rung(launch, M, N, K, changed):
    """The Rung of one launch."""
    loads = launch.totals.access("shared", "load")
    warps = WARPS * launch.grid[0] * launch.grid[1]
    return Rung(launch.name, loads.bytes / 4 / (M * N * K), loads.distinct / 4 / (warps * K),
                loads.transactions, launch.bank_conflict_degree(),
                round(launch.totals.barriers / warps), launch.load_to_use, launch.steps, changed)


def limits():
    """What ptxas makes of k06's last kernel and of this lesson's, with 8 and 16 k at a time, with
    and without a bound, for an A100 (sm_80) and an H200 (sm_90): [Limit].
    Needs no GPU."""
    rows = [("matmul_vector_cuda", 8, False, BEFORE), ("matmul_warp_cuda", 8, False, KERNELS)]
    rows += [("matmul_buffered_cuda", k, bound, variant(k, bound))
             for k in (8, 16) for bound in (True, False)]
    return [limit(*row, arch) for row in rows for arch in ("sm_80", "sm_90")]


def limit(name, k, bound, module, arch):
    """The Limit of one kernel.
    The SMs of an A100 and an H200 have as many registers and warps."""
    needs = module.resources(name, arch)
    fits = simulator.occupancy(needs, THREADS, gpu="H200" if arch == "sm_90" else "A100")
    return Limit(name, k, bound, arch, needs.registers, needs.spill_stores, fits.blocks,
                 fits.limiter)


def shipped():
    """This lesson's kernels, compiled for Hopper: {name: Hopper}."""
    return {name: simulator.hopper_cuda(KERNELS.get(name), THREADS) for name in NAMES}


H200_TARGETS = {"matmul: matmul_buffered_cuda": {"times_cublas": 0.90}}


def bench(M=4096, N=4096, K=4096):
    """On a GPU: this lesson's kernels, k06's last one and cuBLAS (through torch, no TF32) by turns;
    rows of lab.measure.bench.
    K is a multiple of 4."""
    from day01_roofline import count_matmul, measure_side_by_side

    a, w = (torch.randn(rows, K, device="cuda") for rows in (M, N))         # (M, K), (N, K)
    ways = {"cublas": partial(matmul_torch, a, w),
            "matmul_vector_cuda": partial(matmul_registers_cuda, a, w)}
    ways |= {kernel: partial(matmul_warp_tiles_cuda, a, w, kernel) for kernel in NAMES}
    return measure_side_by_side({
        "matmul": (*count_matmul(M, N, K, a.element_size()), ways, a.dtype)})
