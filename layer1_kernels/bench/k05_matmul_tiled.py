"""Ladder, targets and measurements of k05_matmul_tiled: see lab/measure/bench.py."""

from functools import partial
from typing import NamedTuple

import torch
import triton

from lab import simulator
from layer1_kernels.k04_matmul_naive import matmul_untiled_cuda
from layer1_kernels.k05_matmul_tiled import (
    GROUP,
    configuration,
    matmul,
    matmul_cuda,
    matmul_tiled_triton,
    matmul_torch,
)


class Rung(NamedTuple):
    """One rung of the ladder, as counted in the simulator."""

    name: str
    asked: float            # bytes asked for by all loads, divided by those of a and w
    intensity: float        # FLOPs per byte asked for
    sectors: float          # 32-byte sectors loaded, divided by those that hold a and w
    wavefronts: int         # of shared memory
    conflicts: float        # these, divided by the fewest possible; None without shared memory
    instructions: int       # of all warps
    changed: str


def ladder(M, N, K):
    """The kernels of k04 and of this lesson on random float32 numbers: [Rung].
    The last has a and w transposed in memory first."""
    rng = torch.Generator().manual_seed(0)
    a, w = (torch.randn(rows, K, generator=rng) for rows in (M, N))
    c = torch.empty(M, N)                           # (M, N)
    changes = ("k04: no sharing", "k04: neighbours along k", "tile in shared memory",
               "same tile, bank conflicts", "tiles of 64 x 64", "a and w transposed first")
    with simulator.trace() as trace:
        matmul_untiled_cuda(a, w, "matmul_naive_cuda")
        matmul_untiled_cuda(a, w, "matmul_coalesced_cuda")
        matmul_cuda(a, w)
        for side, x, y in ((32, a, w), (64, a, w), (64, a.T.contiguous().T, w.T.contiguous().T)):
            programs = triton.cdiv(M, side) * triton.cdiv(N, side)
            matmul_tiled_triton[(programs,)](x, y, c, M, N, K, *x.stride(), *y.stride(),
                                             BM=side, BN=side, BK=32, GROUP=GROUP)
    return [rung(launch, a.nbytes + w.nbytes, 2 * M * N * K, changed)
            for launch, changed in zip(trace.launches, changes, strict=True)]


def rung(launch, least, flops, changed):
    """The Rung of one launch. least: bytes of a and w    flops: of the matmul"""
    loads = launch.totals.access("global", "load")
    return Rung(launch.name, loads.bytes / least, flops / loads.bytes,
                32 * loads.transactions / least, launch.totals.sum("transactions", "shared"),
                launch.bank_conflict_degree(), launch.steps, changed)


def shipped(N=4096):
    """What matmul compiles for Hopper: {name: simulator.Hopper}.

    fp32 and a few rows cannot have wgmma, which multiplies 64 rows of 16 bits.
    Without the kernel's tl.assume(K > 0), ptxas serialises the wgmma of the largest tile that
    Triton 3.6.0 makes (warning C7515); it does not do so for that of Triton 3.7.1.
    """
    kernels = {}
    for name, M, dtype in (("matmul_bf16_8192_rows", 8192, torch.bfloat16),
                           ("matmul_fp16_8192_rows", 8192, torch.float16),
                           ("matmul_bf16_512_rows", 512, torch.bfloat16),
                           ("matmul_bf16_256_rows", 256, torch.bfloat16),
                           ("matmul_bf16_64_rows", 64, torch.bfloat16),
                           ("dots_bf16_1_row", 1, torch.bfloat16),
                           ("dots_fp32_8192_rows", 8192, torch.float32),
                           ("dots_fp32_256_rows", 256, torch.float32),
                           ("dots_fp32_16_rows", 16, torch.float32)):
        how = configuration(M, N, dtype.itemsize)
        compiling = {key: how.pop(key) for key in ("num_warps", "num_stages")}
        next_row, next_k = (1, "i32:16") if dtype == torch.float32 else ("i32:16", 1)
        args = dict.fromkeys("awc", "*" + name.split("_")[1]) | \
            dict.fromkeys("MNK", "i32:16") | {"M": 1 if M == 1 else "i32:16"} | \
            dict.fromkeys(("a_row", "w_row"), next_row) | dict.fromkeys(("a_k", "w_k"), next_k)
        needs = [] if dtype == torch.float32 or M == 1 else ["wgmma"]
        kernels[name] = simulator.hopper(matmul_tiled_triton, args, how, **compiling, needs=needs)
    return kernels


H200_TARGETS = {"bf16: matmul": {"times_cublas": 0.75}, "fp32: matmul": {"times_cublas": 0.80}}


def bench(M=8192, N=8192, K=8192):
    """On a GPU: this lesson's kernels, cuBLAS (through torch) and the roofs, by turns; rows of
    lab.measure.bench.

    M rows of a in bf16 and half as many in fp32, where arithmetic decides; one row in bf16, where
    memory does. torch.compile may call cuBLAS too.
    """
    from day01_roofline import count_matmul, measure_side_by_side

    families = {}
    bf16 = torch.bfloat16
    fp32 = torch.float32
    compiled = torch.compile(matmul_torch, dynamic=False)
    for family, rows, dtype, launchers, *peak in (
            ("bf16", M, bf16, [matmul], bf16), ("bf16, one row", 1, bf16, [matmul]),
            ("fp32", M // 2, fp32, [matmul, matmul_cuda], fp32)):
        a, w = (torch.randn(size, K, device="cuda").to(dtype) for size in (rows, N))
        ways = {"cublas": partial(matmul_torch, a, w), "torch.compile": partial(compiled, a, w)}
        ways |= {launcher.__name__: partial(launcher, a, w) for launcher in launchers}
        families[family] = *count_matmul(rows, N, K, dtype.itemsize), ways, *peak
    return measure_side_by_side(families)
