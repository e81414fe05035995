"""Ladder, targets and measurements of k08_rmsnorm: see lab/measure/bench.py."""

from typing import NamedTuple

import torch

from lab import simulator
from layer1_kernels.k01_vector_add import vector_add, vector_add_cuda
from layer1_kernels.k08_rmsnorm import (
    BLOCK,
    Eager,
    add_rmsnorm,
    add_rmsnorm_cuda,
    add_rmsnorm_loop_triton,
    add_rmsnorm_torch,
    add_rmsnorm_triton,
    layernorm,
    layernorm_loop_triton,
    layernorm_torch,
    layernorm_triton,
    plan,
    rmsnorm,
    rmsnorm_cuda,
    rmsnorm_loop_triton,
    rmsnorm_torch,
    rmsnorm_triton,
)


class Rung(NamedTuple):
    """One rung of the ladder: y and the new residual from x and residual."""

    name: str
    launches: int
    reads: float            # numbers read, in sizes of x; w is left out
    writes: float           # numbers written, likewise
    moved: float            # both
    sectors: float | None   # of 32 bytes that are touched, likewise; None where PyTorch runs
    changed: str


def ladder(T, C):
    """Every way of this lesson to add and normalise (T, C) float32 numbers, as counted: [Rung].

    C: at most 12,000.
    """
    x, residual = torch.linspace(-4, 4, 2 * T * C).reshape(2, T, C)             # (T, C)
    w = torch.ones(C)
    y = torch.empty_like(x)
    total = torch.empty_like(x)
    with Eager() as eager:
        add_rmsnorm_torch(x, residual, w, 1e-5)
    reads = (eager.loaded - w.nbytes) / x.nbytes
    writes = eager.stored / x.nbytes
    steps = [Rung("PyTorch, op by op", eager.launches, reads, writes, reads + writes, None,
                  "each operation stores")]
    changes = ("two kernels; the norm reads twice", "the row stays on the chip",
               "so does the sum", "two kernels; rows in registers", "one kernel",
               "any length; one read more")
    ways = {
        "CUDA: add, norm in two reads": lambda: rmsnorm_cuda(
            vector_add_cuda(x, residual), w, 1e-5, "rmsnorm_two_read_cuda"),
        "CUDA: add, norm in one read": lambda: rmsnorm_cuda(
            vector_add_cuda(x, residual), w, 1e-5),
        "CUDA: fused": lambda: add_rmsnorm_cuda(x, residual, w, 1e-5),
        "Triton: add, norm": lambda: rmsnorm(vector_add(x, residual), w, 1e-5),
        "Triton: fused": lambda: add_rmsnorm(x, residual, w, 1e-5),
        "Triton: fused, in a loop": lambda: add_rmsnorm_loop_triton[(T,)](
            x, residual, w, y, total, C, 1e-5, BLOCK=512)}
    for (name, run), changed in zip(ways.items(), changes, strict=True):
        with simulator.trace() as trace:
            run()
        loaded = sum(launch.bytes_loaded for launch in trace.launches) - T * w.nbytes
        stored = sum(launch.bytes_stored for launch in trace.launches)
        sectors = sum(launch.totals.bytes_moved for launch in trace.launches) - T * w.nbytes
        steps.append(Rung(name, len(trace.launches), loaded / x.nbytes, stored / x.nbytes,
                          (loaded + stored) / x.nbytes, sectors / x.nbytes, changed))
    return steps


def shipped(C=8192):
    """{name: what the launchers compile for rows of C bf16 numbers, on Hopper}. C % 16 is 0."""
    kernels = {}
    for whole, loop, arrays in ((rmsnorm_triton, rmsnorm_loop_triton, 3),
                                (add_rmsnorm_triton, add_rmsnorm_loop_triton, 5),
                                (layernorm_triton, layernorm_loop_triton, 4)):
        kernel, meta = plan(C, whole, loop)
        kernels[kernel.__name__] = simulator.hopper(
            kernel, ["*bf16"] * arrays + ["i32:16", "fp32"], {"BLOCK": meta["BLOCK"]},
            num_warps=meta["num_warps"])
    return kernels


H200_TARGETS = {"rmsnorm: triton": {"share_of_copy": 0.93},
                "layernorm: triton": {"share_of_copy": 0.93},
                "add_rmsnorm: triton": {"times_torch": 2.2}}         # op by op: nothing fused


def bench(T=16_384, C=8_192):
    """On a GPU: the kernels of this lesson, torch's and the roofs by turns; lab.measure.bench rows.

    An array is a quarter of a gigabyte in bf16, half of one in fp32, far beyond the L2 cache.
    """
    from day01_roofline import measure_side_by_side

    eps = 1e-5
    nn = torch.nn.functional
    x32, r32 = (torch.randn(T, C, device="cuda") for _ in range(2))             # (T, C)
    w32, b32 = (torch.randn(C, device="cuda") for _ in range(2))                # (C,)
    x, r, w, b = (array.bfloat16() for array in (x32, r32, w32, b32))
    compiled = [torch.compile(formula, dynamic=False) for formula in
                (rmsnorm_torch, layernorm_torch, add_rmsnorm_torch)]
    y = torch.empty_like(x)
    total = torch.empty_like(x)                                                 # (T, C)

    def loop(kernel, *arrays):          # what rows longer than MAX_ROW get
        kernel[(T,)](*arrays, C, eps, BLOCK=BLOCK, num_warps=8)
        return y

    return measure_side_by_side({
        "rmsnorm": (4 * T * C, 2 * x.nbytes, {
            "torch": lambda: rmsnorm_torch(x, w, eps),
            "torch.compile": lambda: compiled[0](x, w, eps),
            "library": lambda: nn.rms_norm(x, (C,), w, eps),
            "triton": lambda: rmsnorm(x, w, eps),
            "loop_triton": lambda: loop(rmsnorm_loop_triton, x, w, y)}),
        "layernorm": (7 * T * C, 2 * x.nbytes, {
            "torch": lambda: layernorm_torch(x, w, b, eps),
            "torch.compile": lambda: compiled[1](x, w, b, eps),
            "library": lambda: nn.layer_norm(x, (C,), w, b, eps),
            "triton": lambda: layernorm(x, w, b, eps),
            "loop_triton": lambda: loop(layernorm_loop_triton, x, w, b, y)}),
        "add_rmsnorm": (5 * T * C, 4 * x.nbytes, {
            "torch": lambda: add_rmsnorm_torch(x, r, w, eps),
            "torch.compile": lambda: compiled[2](x, r, w, eps),
            "library": lambda: nn.rms_norm(x + r, (C,), w, eps),
            "pair": lambda: rmsnorm(vector_add(x, r), w, eps),
            "triton": lambda: add_rmsnorm(x, r, w, eps),
            "loop_triton": lambda: loop(add_rmsnorm_loop_triton, x, r, w, y, total)}),
        "rmsnorm fp32": (4 * T * C, 2 * x32.nbytes, {
            "torch": lambda: rmsnorm_torch(x32, w32, eps),
            "torch.compile": lambda: compiled[0](x32, w32, eps),
            "library": lambda: nn.rms_norm(x32, (C,), w32, eps),
            "two_read_cuda": lambda: rmsnorm_cuda(x32, w32, eps, "rmsnorm_two_read_cuda"),
            "one_read_cuda": lambda: rmsnorm_cuda(x32, w32, eps),
            "triton": lambda: rmsnorm(x32, w32, eps)}),
        "add_rmsnorm fp32": (5 * T * C, 4 * x32.nbytes, {
            "torch": lambda: add_rmsnorm_torch(x32, r32, w32, eps),
            "torch.compile": lambda: compiled[2](x32, r32, w32, eps),
            "library": lambda: nn.rms_norm(x32 + r32, (C,), w32, eps),
            "add, two_read_cuda": lambda: rmsnorm_cuda(vector_add_cuda(x32, r32), w32, eps,
                                                       "rmsnorm_two_read_cuda"),
            "add, one_read_cuda": lambda: rmsnorm_cuda(vector_add_cuda(x32, r32), w32, eps),
            "fused_cuda": lambda: add_rmsnorm_cuda(x32, r32, w32, eps),
            "triton": lambda: add_rmsnorm(x32, r32, w32, eps)})})
