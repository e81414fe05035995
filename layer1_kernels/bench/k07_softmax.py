"""Ladder, targets and measurements of k07_softmax: see lab/measure/bench.py."""

from functools import partial
from typing import NamedTuple

import torch
import triton

from lab import simulator
from layer1_kernels.k07_softmax import (
    BLOCK,
    MAX_ROW,
    softmax,
    softmax_cuda,
    softmax_fused_triton,
    softmax_online_triton,
    softmax_torch,
)


class Rung(NamedTuple):
    """One rung of the ladder, as counted in the simulator."""

    name: str
    reads: float            # times that each number of x is read
    writes: float           # times that each number of y is written
    sectors: float          # 32-byte sectors that a load of a warp touches
    barriers: int           # that a warp waits at, for one row
    instructions: int       # of a warp, all of them
    changed: str


def ladder(R, C):
    """Every kernel of this lesson on (R, C) float32 numbers, C at most FITS: [Rung]."""
    x = torch.linspace(-4, 4, R * C).reshape(R, C)  # (R, C)
    y = torch.empty_like(x)                         # (R, C)
    changes = ("three passes", "the row stays in shared memory", "any length; one read more",
               "the row stays in registers", "any length, in blocks of columns")
    with simulator.trace() as trace:
        for kernel in ("softmax_three_pass_cuda", "softmax_fused_cuda", "softmax_online_cuda"):
            softmax_cuda(x, kernel)
        softmax_fused_triton[(R,)](x, y, C, BLOCK=triton.next_power_of_2(C))
        softmax_online_triton[(R,)](x, y, C, BLOCK=512)
    return [rung(launch, x.nbytes, changed)
            for launch, changed in zip(trace.launches, changes, strict=True)]


def rung(launch, least, changed):
    """The Rung of one launch. least: bytes of x, and of y."""
    warps = launch.grid[0] * launch.block[0] // 32
    return Rung(launch.name, launch.bytes_loaded / least, launch.bytes_stored / least,
                launch.sectors_per_request(op="load"), launch.totals.barriers // warps,
                launch.steps, changed)


def shipped():
    """What Triton makes of the public kernels for Hopper: {name: simulator.Hopper}."""
    kinds = ["*bf16", "*bf16", "i32:16"]
    return {"softmax_fused_triton": simulator.hopper(
                softmax_fused_triton, kinds, {"BLOCK": MAX_ROW}, num_warps=16),
            "softmax_online_triton": simulator.hopper(
                softmax_online_triton, kinds, {"BLOCK": BLOCK}, num_warps=8)}


H200_TARGETS = {
    "fp32: softmax_fused_triton": {"share_of_copy": 0.95, "times_torch": 1.3},
    "bf16: softmax_fused_triton": {"share_of_copy": 0.95, "times_torch": 1.3},
    "bf16, long rows: softmax_fused_triton": {"share_of_copy": 0.95, "times_torch": 1.3}}


def bench(R=16_384, C=8_192):
    """On a GPU: every kernel of this lesson, torch's softmax, eager and compiled, and the roofs, by
    turns; rows of lab.measure.bench.

    R rows of C numbers in fp32 and in bf16; and a quarter as many in bf16, but four times as long:
    the longest that a program holds.
    An input is a quarter of a gigabyte or more, far beyond the L2 cache.
    """
    from day01_roofline import count_softmax, measure_side_by_side

    compiled = torch.compile(softmax_torch, dynamic=False)

    def online(x):
        R, C = x.shape
        y = torch.empty_like(x)                     # (R, C)
        softmax_online_triton[(R,)](x, y, C, BLOCK=BLOCK, num_warps=8)
        return y

    families = {}
    ways = {"torch": softmax_torch, "torch.compile": compiled,
            "softmax_fused_triton": softmax, "softmax_online_triton": online}
    cuda = {kernel: partial(softmax_cuda, kernel=kernel) for kernel in (
        "softmax_three_pass_cuda", "softmax_fused_cuda", "softmax_online_cuda")}
    wide = torch.randn(R, C, device="cuda")         # (R, C)
    narrow = wide.bfloat16()                        # (R, C)
    for family, x, those in (("fp32", wide, ways | cuda), ("bf16", narrow, ways),
                             ("bf16, long rows", narrow.view(R // 4, 4 * C), ways)):
        families[family] = *count_softmax(*x.shape, x.element_size()), {
            way: partial(run, x) for way, run in those.items()}
    return measure_side_by_side(families)
