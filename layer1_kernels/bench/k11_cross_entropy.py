"""Ladder, targets and measurements of k11_cross_entropy: see lab/measure/bench.py."""

from typing import NamedTuple

import torch

from lab import simulator
from layer1_kernels.k08_rmsnorm import Eager
from layer1_kernels.k11_cross_entropy import (
    BLOCK,
    PART,
    cross_entropy,
    cross_entropy_cuda,
    cross_entropy_overwriting_logits,
    cross_entropy_torch,
    cross_entropy_triton,
    gradient_triton,
)

SECTOR = 32             # bytes

class Rung(NamedTuple):
    """One rung of the ladder: losses of (T, V) logits, or losses and gradient."""

    name: str
    launches: int
    asked: float            # bytes that threads ask for, in sizes of logits
    reads: float            # in sectors, likewise
    writes: float
    sectors: float | None   # both; None where PyTorch runs
    arrays: int             # new ones of that size
    changed: str


def ladder(T, V):
    """Every way of this lesson to get losses of float32 logits, or the gradient too: [Rung].

    In sectors of 32 bytes; for PyTorch, the arrays that its operations read and write.
    """
    torch.manual_seed(0)
    x, targets = torch.randn(T, V), torch.arange(T) % V                 # (T, V), (T,)
    size = x.nbytes
    up = torch.ones(T)
    steps = []

    def on_cpu(name, backward, changed):
        leaf = x.clone().requires_grad_()
        with Eager() as eager:
            losses = cross_entropy_torch(leaf, targets)
            if backward:
                torch.autograd.grad(losses, leaf, up)
        reads = eager.loaded / size
        writes = eager.stored / size
        steps.append(Rung(name, eager.launches, reads + writes, reads, writes, None, round(writes),
                          changed))

    def counted(name, run, changed):
        with simulator.trace() as trace:
            arrays = run()
        bytes_asked = sum(launch.totals.bytes_asked for launch in trace.launches) / size
        reads, writes = (SECTOR * sum(launch.totals.access("global", op).transactions
                                      for launch in trace.launches) / size
                         for op in ("load", "store"))
        steps.append(Rung(name, len(trace.launches), bytes_asked, reads, writes, reads + writes,
                          arrays, changed))

    def loss(function, *more):
        function(x, targets, -100, *more)
        return 0

    def both(function):
        logits = x.clone().requires_grad_() * 1
        gradient, = torch.autograd.grad(function(logits, targets), logits, up)
        return int(gradient.data_ptr() != logits.data_ptr())

    on_cpu("PyTorch, loss", False, "stores a log-softmax")
    counted("CUDA: loss, two reads", lambda: loss(cross_entropy_cuda,
                                                  "cross_entropy_two_read_cuda"), "stores losses")
    counted("CUDA: loss, online", lambda: loss(cross_entropy_cuda), "m and s in one read")
    counted("Triton: loss, online", lambda: loss(cross_entropy), "the compiler's layout")
    on_cpu("PyTorch, loss and gradient", True, "stores arrays forward and backward")
    counted("Triton: loss and gradient", lambda: both(cross_entropy), "computes the softmax again")
    counted("Triton: over the logits", lambda: both(cross_entropy_overwriting_logits),
            "no new array; logits overwritten")
    return steps


def shipped():
    """{name: what the launchers compile for bf16 logits of a large vocabulary, on Hopper}."""
    half = ["*bf16", "*i64"]
    floats = ["*fp32"]
    return {
        "cross_entropy_triton": simulator.hopper(
            cross_entropy_triton, [*half, *floats * 3, "i32:16", "i32:16", "i32"],
            {"BLOCK": BLOCK}, num_warps=4),
        "gradient_triton": simulator.hopper(
            gradient_triton, [*half, *floats * 3, "*bf16", *["i32:16"] * 3, "i32"],
            {"BLOCK": PART})}


H200_TARGETS = {"loss: triton": {"share_of_copy": 0.95, "times_torch": 1.5}}

def bench(T=8192, V=128_256):
    """On a GPU: the kernels of this lesson, torch's and the roofs by turns; lab.measure.bench rows.

    The logits are 2.1 GB in bf16, 4.2 GB in fp32.
    """
    from day01_roofline import measure_side_by_side

    cross = torch.nn.functional.cross_entropy
    x = torch.randn(T, V, device="cuda", dtype=torch.bfloat16)          # (T, V)
    x32 = x.float()                                                     # (T, V)
    targets = torch.randint(V, (T,), device="cuda")                     # (T,)
    compiled = torch.compile(lambda x: cross(x, targets, reduction="none"), dynamic=False)
    leaf, lost = (x.clone().requires_grad_() for _ in range(2))         # (T, V)

    def backward(function, leaf=leaf):
        return lambda: torch.autograd.grad(function(leaf).sum(), leaf)

    def overwriting(x):                 # from the second run on, the logits are the last gradient
        return cross_entropy_overwriting_logits(x.view_as(x), targets)

    flops = 5 * T * V
    return measure_side_by_side({
        "loss": (flops, x.nbytes, {
            "torch": lambda: cross(x, targets, reduction="none"),
            "torch.compile": lambda: compiled(x),
            "triton": lambda: cross_entropy(x, targets)}),
        "loss fp32": (flops, x32.nbytes, {
            "torch": lambda: cross(x32, targets, reduction="none"),
            "torch.compile": lambda: compiled(x32),
            "two_read_cuda": lambda: cross_entropy_cuda(x32, targets,
                                                        kernel="cross_entropy_two_read_cuda"),
            "online_cuda": lambda: cross_entropy_cuda(x32, targets),
            "triton": lambda: cross_entropy(x32, targets)}),
        "loss and gradient": (flops, 3 * x.nbytes, {
            "torch": backward(lambda x: cross(x, targets, reduction="none")),
            "torch.compile": backward(compiled),
            "triton": backward(lambda x: cross_entropy(x, targets)),
            "overwriting_logits": backward(overwriting, lost)})})
