"""Ladder, targets and measurements of k09_rope: see lab/measure/bench.py."""

from typing import NamedTuple

import torch
import triton

from lab import simulator
from layer1_kernels.k08_rmsnorm import Eager
from layer1_kernels.k09_rope import (
    plan,
    rope,
    rope_and_cache,
    rope_and_cache_torch,
    rope_and_cache_triton,
    rope_angles,
    rope_cuda,
    rope_heads_triton,
    rope_torch,
    rope_triton,
)

SECTOR = 32             # bytes


class Rung(NamedTuple):
    """One rung of the ladder: q and k rotated in place."""

    name: str
    launches: int
    asked: float            # bytes that lanes ask for, in sizes of q and k together
    reads: float            # in sectors, likewise
    writes: float
    sectors: float | None   # both; None where PyTorch runs
    changed: str


def ladder(T, H, G, D):
    """Every way of this lesson to turn float32 q (T, H, D) and k (T, G, D), as counted: [Rung].

    In sectors of 32 bytes, lanes that want the same number count once.
    D % 64 is 0.
    """
    cos, sin = (torch.from_numpy(table).float() for table in rope_angles(T, D, 10_000.0))
    positions = torch.arange(T)
    q = torch.ones(T, H, D)
    k = torch.ones(T, G, D)
    size = q.nbytes + k.nbytes
    half = D // 2
    with Eager() as eager:
        rope_torch(q, k, cos, sin, positions)
    reads = eager.loaded / size
    writes = eager.stored / size
    steps = [Rung("PyTorch, op by op", eager.launches, reads + writes, reads, writes, None,
                  "each operation stores")]

    def heads():
        for x in (q, k):
            rope_heads_triton[(T * x.shape[1],)](x, cos, sin, positions, *x.stride()[:2],
                                                 x.shape[1], half, num_warps=1,
                                                 BLOCK=triton.next_power_of_2(half))

    ways = {
        "CUDA: a head a block": lambda: rope_cuda(q, k, cos, sin, positions, "rope_heads_cuda"),
        "CUDA: a token a block": lambda: rope_cuda(q, k, cos, sin, positions),
        "Triton: a head a program": heads,
        "Triton: a token a program": lambda: rope(q, k, cos, sin, positions)}
    changes = ("in place", "one launch; angles once per token", "a head each again",
               "one launch; the heads of a token in a tile")
    for (name, run), changed in zip(ways.items(), changes, strict=True):
        with simulator.trace() as trace:
            run()
        bytes_asked = sum(launch.totals.bytes_asked for launch in trace.launches) / size
        reads, writes = (SECTOR * sum(launch.totals.access("global", op).transactions
                                      for launch in trace.launches) / size
                         for op in ("load", "store"))
        steps.append(Rung(name, len(trace.launches), bytes_asked, reads, writes, reads + writes,
                          changed))
    return steps


def shipped(H=32, G=8, D=128):
    """{name: what the launchers compile for bf16 heads, on Hopper}. D is a multiple of 32."""
    kernels = {}
    half = "i32:16"
    for kernel, heads, args, fixed in (
            (rope_triton, H + G, ["*bf16"] * 2 + ["*fp32"] * 2 + ["*i64"] + ["i32:16"] * 4,
             {"WAY": 1}),
            (rope_and_cache_triton, H + 2 * G, ["*bf16"] * 3 + ["*fp32"] * 2 + ["*i64"] +
             ["*bf16"] * 2 + ["*i64"] + ["i32:16"] * 6, {})):
        meta = plan(heads, D // 2)
        warps = meta.pop("num_warps")
        kernels[kernel.__name__] = simulator.hopper(kernel, [*args, "i32", "i32", half],
                                                  fixed | meta, num_warps=warps)
    return kernels


H200_TARGETS = {"rope: triton": {"share_of_copy": 0.85}}


def bench(T=32_768, H=32, G=8, D=128):
    """On a GPU: the kernels of this lesson, torch's and the roofs by turns; lab.measure.bench rows.

    Heads of an 8-billion Llama. q and k are a third of a gigabyte in bf16, beyond the L2 cache.
    Turning in place again and again keeps the length of each pair, except for rounding.
    """
    from day01_roofline import measure_side_by_side

    half = D // 2
    cos, sin = (torch.from_numpy(table).float().cuda() for table in rope_angles(T, D, 500_000.0))
    positions = torch.arange(T, device="cuda")                          # (T,)
    qkv = torch.randn(T, H + 2 * G, D, device="cuda", dtype=torch.bfloat16)     # (T, H+2*G, D)
    q = qkv[:, :H]
    k = qkv[:, H:H + G]
    v = qkv[:, H + G:]
    q32, k32 = q.float(), k.float()                 # (T, H, D), (T, G, D)
    pages = torch.empty(2, T // 16, 16, G, D, device="cuda", dtype=torch.bfloat16)
    compiled, compiled_cache = (torch.compile(formula, dynamic=False)
                                for formula in (rope_torch, rope_and_cache_torch))
    table = cos, sin, positions

    def heads():
        for x in (q32, k32):
            rope_heads_triton[(T * x.shape[1],)](x, *table, *x.stride()[:2], x.shape[1], half,
                                                 BLOCK=half, num_warps=1)

    def pair():
        rope(q, k, *table)
        pages[0].view(T, G, D).copy_(k)
        pages[1].view(T, G, D).copy_(v)

    flops = 6 * T * (H + G) * half                  # 6 for each pair of numbers
    angles = T * (2 * half * 4 + 8)                 # bytes
    return measure_side_by_side({
        "rope": (flops, angles + 2 * T * (H + G) * D * 2, {
            "torch": lambda: rope_torch(q, k, *table),
            "torch.compile": lambda: compiled(q, k, *table),
            "triton": lambda: rope(q, k, *table)}),
        "rope fp32": (flops, angles + 2 * T * (H + G) * D * 4, {
            "torch": lambda: rope_torch(q32, k32, *table),
            "torch.compile": lambda: compiled(q32, k32, *table),
            "heads_triton": heads,
            "triton": lambda: rope(q32, k32, *table),
            "heads_cuda": lambda: rope_cuda(q32, k32, *table, "rope_heads_cuda"),
            "fused_cuda": lambda: rope_cuda(q32, k32, *table)}),
        "rope_and_cache": (flops, angles + 8 * T + 2 * T * (H + 2 * G) * D * 2, {
            "torch": lambda: rope_and_cache_torch(q, k, v, *table, *pages, positions),
            "torch.compile": lambda: compiled_cache(q, k, v, *table, *pages, positions),
            "pair": pair,
            "triton": lambda: rope_and_cache(q, k, v, *table, *pages, positions)})})
