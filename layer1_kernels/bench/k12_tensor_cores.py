"""Ladder, targets and measurements of k12_tensor_cores: see lab/measure/bench.py."""

from functools import partial
from typing import NamedTuple

import torch
import triton

from lab import simulator
from layer1_kernels.k05_matmul_tiled import matmul, matmul_cuda, matmul_torch
from layer1_kernels.k06_matmul_registers import matmul_registers_cuda
from layer1_kernels.k12_tensor_cores import (
    KERNELS,
    PERSISTENT,
    TILE,
    launch_persistent,
    matmul_dot_triton,
    matmul_persistent,
    matmul_persistent_triton,
    matmul_wmma_cuda,
)

MULTIPLY_ADD = 2 * 32    # FLOPs of one fp32 instruction of a warp


class Rung(NamedTuple):
    """One rung of the ladder, as counted in the simulator."""

    name: str
    bytes: int              # that threads ask of global memory
    sectors: int            # of 32 bytes that they touch
    intensity: float        # FLOP for each byte that they ask to load
    shared: float           # bytes read from shared memory for each FLOP
    multiply: int           # instructions of a warp that multiply and add
    others: int             # all others
    each: float             # FLOP for an instruction
    changed: str


def rung(launch, changed):
    """The Rung of one launch."""
    totals = launch.totals
    multiply = totals.instructions["tensor core"] or launch.flops // MULTIPLY_ADD
    return Rung(launch.name, totals.bytes_asked, totals.sum("transactions", "global"),
                launch.flops / launch.bytes_loaded,
                totals.access("shared", "load").bytes / launch.flops, multiply,
                launch.steps - multiply, launch.flops / launch.steps, changed)


def ladder(M, N, K):
    """The kernels of k05, k06 and this lesson on random numbers: [Rung].
    All sizes are multiples of 16.
    The first two take them as float32."""
    rng = torch.Generator().manual_seed(0)
    a, w = (torch.randn(rows, K, generator=rng) for rows in (M, N))
    half = (a.half(), w.half())
    tile = {"BM": TILE, "BN": TILE, "BK": 32}
    with simulator.trace() as trace:
        matmul_cuda(a, w)
        matmul_registers_cuda(a, w)
        KERNELS.get("wmma_warp_cuda")((N // 16, M // 16), 32, (*half, torch.empty(M, N), N, K))
        matmul_wmma_cuda(*half)
        matmul_dot_triton[triton.cdiv(M, TILE), triton.cdiv(N, TILE)](
            *half, torch.empty(M, N).half(), M, N, K, **tile, PRECISION="ieee")
        launch_persistent(*half, 2, {**tile, "GROUP": 8, "num_warps": 4, "num_stages": 3})
    changes = ("k05, fp32", "k06, fp32: 8 x 8 a thread", "tensor cores; more bytes again",
               "a tile in shared memory", "the compiler's; c in 16 bits",
               "descriptors; slow without TMA")
    return [rung(*each) for each in zip(trace.launches, changes, strict=True)]


def shipped(size="i32:16"):
    """What matmul_persistent launches, compiled for Hopper: {name: Hopper}.

    size: type of M, N and K, "i32" where they are not multiples of 16
    """
    compiling = {key: PERSISTENT[key] for key in ("num_warps", "num_stages")}
    sizes = {key: size for key, size in PERSISTENT.items() if key not in compiling}
    BM = sizes["BM"]
    BN = sizes["BN"]
    BK = sizes["BK"]
    kernels = {}
    for dtype in ("bf16", "fp16"):
        tiles = {"a": [BM, BK], "w": [BN, BK], "c": [BM, BN]}
        args = {x: f"tensordesc<{dtype}{tile}>".replace(" ", "") for x, tile in tiles.items()}
        kernels[f"matmul_persistent_{dtype}"] = simulator.hopper(
            matmul_persistent_triton, args | dict.fromkeys("MNK", size), sizes, **compiling,
            needs=["wgmma", "tma_loads"])
    return kernels


H200_TARGETS = {"bf16: matmul": {"times_cublas": 0.75},
                "bf16: matmul_persistent": {"times_cublas": 0.88}}

def bench(M=8192, N=8192, K=8192):
    """On a GPU: the kernels of k05 and of this lesson, cuBLAS (through torch) and the roofs, by
    turns; rows of lab.measure.bench.
    All sizes are multiples of 16. torch.compile may call cuBLAS.

    fp16, for which the CUDA kernels are; bf16; and fp32, whose products can be made in three ways.
    """
    from day01_roofline import count_matmul, measure_side_by_side

    def warp(a, w):
        c = a.new_empty(M, N, dtype=torch.float32)  # (M, N)
        KERNELS.get("wmma_warp_cuda")((N // 16, M // 16), 32, (a, w, c, N, K))
        return c

    def dot(precision, BM, BN, BK, warps):
        def run(a, w):
            c = torch.empty(M, N, dtype=a.dtype, device=a.device)           # (M, N)
            matmul_dot_triton[(triton.cdiv(M, BM), triton.cdiv(N, BN))](
                a, w, c, M, N, K, BM=BM, BN=BN, BK=BK, PRECISION=precision, num_warps=warps)
            return c
        return run

    a, w = (torch.randn(rows, K, device="cuda") for rows in (M, N))         # (M, K), (N, K)
    always = {"cublas": matmul_torch, "torch.compile": torch.compile(matmul_torch, dynamic=False)}
    kernels = {
        torch.float16: {"matmul": matmul, "matmul_dot_triton": dot("ieee", 128, 128, 64, 8),
                        "wmma_warp_cuda": warp, "matmul_wmma_cuda": matmul_wmma_cuda,
                        "matmul_persistent": matmul_persistent},
        torch.bfloat16: {"matmul": matmul, "matmul_persistent": matmul_persistent},
        torch.float32: {f"dot, {way}": dot(way, 64, 64, 32, 4)
                        for way in ("ieee", "tf32x3", "tf32")}}
    families = {}
    for name, dtype in zip(("fp16", "bf16", "fp32"), kernels, strict=True):
        args = a.to(dtype), w.to(dtype)
        ways = {way: partial(run, *args) for way, run in (always | kernels[dtype]).items()}
        families[name] = *count_matmul(M, N, K, dtype.itemsize), ways, dtype
    return measure_side_by_side(families)
