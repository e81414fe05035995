"""Ladder, targets and measurements of k10_swiglu: see lab/measure/bench.py."""

from typing import NamedTuple

import torch

from lab import simulator
from layer1_kernels.k05_matmul_tiled import GROUP, matmul_tiled_triton
from layer1_kernels.k08_rmsnorm import Eager
from layer1_kernels.k10_swiglu import (
    BLOCK,
    matmul_swiglu,
    matmul_swiglu_triton,
    swiglu,
    swiglu_cuda,
    swiglu_torch,
    swiglu_triton,
    tiles,
)


class Rung(NamedTuple):
    """One rung of the ladder, as counted, on (T, F) results."""

    name: str
    launches: int
    reads: float            # numbers read for each result
    writes: float           # numbers written for each
    moved: float            # both
    sectors: float | None   # of 32 bytes, in numbers for each; None where PyTorch runs
    requests: int | None    # loads of a warp
    changed: str


def ladder(T, C, F):
    """Every way of this lesson to get (T, F) float32 results, from gate and up or from x: [Rung].

    T and F are multiples of 32, so every tile is complete.
    """
    x = torch.linspace(-1, 1, T * C).reshape(T, C)                      # (T, C)
    w = torch.linspace(-1, 1, 2 * F * C).reshape(2 * F, C)              # (2*F, C)
    both = torch.empty(T, 2 * F)
    y = torch.empty(T, F)
    gate, up = torch.linspace(-4, 4, 2 * T * F).reshape(2, T, F)        # (T, F)
    with Eager() as eager:
        swiglu_torch(gate, up)
    reads = eager.loaded / y.nbytes
    writes = eager.stored / y.nbytes
    steps = [Rung("PyTorch: SiLU, times up", eager.launches, reads, writes, reads + writes, None,
                  None, "each operation stores its result")]
    changes = ("SiLU(gate) stays in a register", "16 bytes a thread", "the compiler's layout",
               "from x; gate and up go through memory", "from x; gate and up stay in registers")
    side = 32
    grid = (T * F // 32**2,)

    def pair():             # tiles of the same size: as many sums a program, as many loads
        matmul_tiled_triton[grid](x, w, both, T, 2 * F, C, C, 1, C, 1,
                                  BM=side, BN=2 * side, BK=side, GROUP=GROUP)
        swiglu(*both.chunk(2, dim=-1))

    ways = {
        "CUDA: one a thread": lambda: swiglu_cuda(gate, up, "swiglu_scalar_cuda"),
        "CUDA: four a thread": lambda: swiglu_cuda(gate, up),
        "Triton": lambda: swiglu(gate, up),
        "Triton: matmul, then SwiGLU": pair,
        "Triton: SwiGLU in the matmul":
            lambda: matmul_swiglu_triton[grid](x, w, y, T, C, F, BT=side, BF=side, BC=side,
                                               GROUP=GROUP)}
    for (name, run), changed in zip(ways.items(), changes, strict=True):
        with simulator.trace() as trace:
            run()
        loaded, stored = (sum(getattr(launch, what) for launch in trace.launches)
                          for what in ("bytes_loaded", "bytes_stored"))
        sectors = sum(launch.totals.bytes_moved for launch in trace.launches)
        requests = sum(launch.totals.access("global", "load").requests
                       for launch in trace.launches)
        steps.append(Rung(name, len(trace.launches), loaded / y.nbytes, stored / y.nbytes,
                          (loaded + stored) / y.nbytes, sectors / y.nbytes, requests, changed))
    return steps


def shipped(T=8192):
    """{name: what the launchers compile for T rows of bf16 numbers, on Hopper}.

    The other sizes are multiples of 16.
    """
    meta = tiles(T, torch.bfloat16)
    shape = {name: meta[name] for name in ("BT", "BF", "BC", "GROUP")}
    return {
        "swiglu_triton": simulator.hopper(swiglu_triton, ["*bf16"] * 3 + ["i32:16"] * 3,
                                          {"BLOCK": BLOCK}),
        "matmul_swiglu_triton": simulator.hopper(
            matmul_swiglu_triton, ["*bf16"] * 3 + ["i32:16"] * 3, shape,
            num_warps=meta["num_warps"], num_stages=meta["num_stages"], needs=["wgmma"])}


H200_TARGETS = {"swiglu: triton": {"share_of_copy": 0.95}}

def bench(T=8192, C=4096, F=14_336):
    """On a GPU: the kernels of this lesson, torch's and the roofs by turns; lab.measure.bench rows.

    Sizes of the MLP of an 8-billion Llama. gate and up are 470 MB in bf16, far beyond the L2 cache.
    """
    from day01_roofline import measure_side_by_side
    from layer1_kernels.k05_matmul_tiled import matmul

    silu = torch.nn.functional.silu
    x = torch.randn(T, C, device="cuda", dtype=torch.bfloat16)          # (T, C)
    w = torch.randn(2 * F, C, device="cuda", dtype=torch.bfloat16) / C**0.5     # (2*F, C)
    gate, up = (x @ w.T).chunk(2, dim=-1)                               # (T, F)
    gate32 = gate.float().contiguous()
    up32 = up.float().contiguous()                                      # (T, F)
    compiled = torch.compile(lambda gate, up: silu(gate) * up, dynamic=False)
    compiled_matmul = torch.compile(lambda x, w: swiglu_torch(*(x @ w.T).chunk(2, dim=-1)))
    return measure_side_by_side({
        "swiglu": (5 * T * F, 3 * T * F * 2, {
            "torch": lambda: silu(gate) * up,
            "torch.compile": lambda: compiled(gate, up),
            "triton": lambda: swiglu(gate, up)}),
        "swiglu fp32": (5 * T * F, 3 * T * F * 4, {
            "torch": lambda: silu(gate32) * up32,
            "torch.compile": lambda: compiled(gate32, up32),
            "scalar_cuda": lambda: swiglu_cuda(gate32, up32, "swiglu_scalar_cuda"),
            "vector_cuda": lambda: swiglu_cuda(gate32, up32),
            "triton": lambda: swiglu(gate32, up32)}),
        "matmul_swiglu": ((4 * C + 5) * T * F, 2 * (T * C + 2 * F * C + T * F), {
            "torch": lambda: swiglu_torch(*(x @ w.T).chunk(2, dim=-1)),
            "torch.compile": lambda: compiled_matmul(x, w),
            "pair": lambda: swiglu(*(x @ w.T).chunk(2, dim=-1)),
            "matmul, swiglu": lambda: swiglu(*matmul(x, w).chunk(2, dim=-1)),
            "triton": lambda: matmul_swiglu(x, w)}, x.dtype)})
