"""Ladder, targets and measurements of k15_quantized_matmul: see lab/measure/bench.py."""

from functools import partial
from typing import NamedTuple

import torch
import triton

from lab import simulator
from layer1_kernels.k05_matmul_tiled import matmul
from layer1_kernels.k15_quantized_matmul import (
    GEMV,
    configuration,
    quantize_weight,
    quantized_gemv_triton,
    quantized_matmul,
    quantized_matmul_cuda,
    quantized_matmul_torch,
    quantized_tiled_triton,
)

# The simulator's names of arrays: those of Triton's arguments, and the places of CUDA's.
ARRAYS = {"w": "weights", "packed": "weights", "parameter 1": "weights",
          "scales": "scales", "parameter 2": "scales"}

class Rung(NamedTuple):
    """One rung of the ladder, as counted, for one row of x."""

    name: str
    weights: float          # bytes of w asked for, divided by the bytes of w in fp16
    scales: float           # bytes of scales asked for, divided likewise
    sectors: float          # bytes of all sectors touched, those of x included, divided likewise
    at_once: int            # the most bytes of w in one load of a thread
    instructions: float     # thread instructions per weight
    changed: str


def ladder(N, K, group):
    """Every way of this lesson to multiply one row by w (N, K), and k05's fp16 matmul: [Rung].

    The Triton GEMV does not split K, as with the thousands of rows that a real w has.
    K: a multiple of 2048   group: 32 or more
    """
    x, w = torch.linspace(-1, 1, K).reshape(1, K), torch.randn(
        N, K, generator=torch.Generator().manual_seed(0))               # (1, K), (N, K)
    y = torch.empty(1, N)                                               # (1, N)
    packed = {bits: quantize_weight(w, bits, group) for bits in (8, 4)}
    ways = {"Triton: k05, fp16": lambda: matmul(x.half(), w.half())}
    for bits, kernel in ((8, "gemv_bytes"), (4, "gemv_bytes"), (8, "gemv_wide"), (4, "gemv_wide")):
        ways[f"CUDA: {kernel}, int{bits}"] = lambda bits=bits, kernel=kernel: \
            quantized_matmul_cuda(x, *packed[bits], bits, group, kernel)
    for bits in (8, 4):
        row = K * bits // 8
        ways[f"Triton: GEMV, int{bits}"] = lambda bits=bits, row=row: \
            quantized_gemv_triton[(triton.cdiv(N, GEMV["BN"]), 1)](
                x.half(), *packed[bits], y, N, row, K // group, row, BITS=bits, GROUP=group, **GEMV)
    changes = ("16 bits", "half the bytes, one at a time", "two in a byte",
               "16 bytes at once; more sectors of x", "two in a byte, 16 at once",
               "eight rows of w share x", "more instructions to unpack")
    steps = []
    for (name, run), changed in zip(ways.items(), changes, strict=True):
        with simulator.trace() as trace:
            run()
        steps.append(rung(name, trace.launches[0], N * K, changed))
    return steps


def rung(name, launch, weights, changed):
    """The Rung of one launch, on `weights` weights."""
    bytes_asked = {"weights": 0, "scales": 0}
    at_once = 0
    for (line, space, op), request in launch.requests.items():
        what = ARRAYS.get(next(iter(request.lanes.values()))[0])
        if op == "load" and what:
            bytes_asked[what] += launch.lines[line].access(space, op).bytes
            at_once = max(at_once, request.size) if what == "weights" else at_once
    return Rung(name, bytes_asked["weights"] / (2 * weights), bytes_asked["scales"] / (2 * weights),
                launch.totals.bytes_moved / (2 * weights), at_once, 32 * launch.steps / weights,
                changed)


def shipped(N=4096, K=4096, group=128):
    """What quantized_matmul compiles for Hopper: {name: simulator.Hopper}."""
    kernels = {}
    for bits in (4, 8):
        for T, dtype in ((1, torch.bfloat16), (1, torch.float16), (1, torch.float32),
                         (16, torch.bfloat16), (64, torch.bfloat16), (8192, torch.bfloat16),
                         (8192, torch.float16), (16, torch.float32), (8192, torch.float32)):
            kind = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]
            how, _, splits, _ = configuration(T, N, K * bits // 8, dtype.itemsize)
            compiling = {key: how.pop(key) for key in ("num_warps", "num_stages")}
            args = {"x": f"*{kind}", "packed": "*i8" if bits == 8 else "*u8", "scales": "*fp32",
                    "y": f"*{kind}" if splits == 1 else "*fp32"}
            sizes = ("N", "row", "groups", "span") if T == 1 else ("T", "N", "K", "row", "groups",
                                                                   "span")
            args |= dict.fromkeys(sizes, "i32:16")
            kernel = quantized_gemv_triton if T == 1 else quantized_tiled_triton
            kernels[f"int{bits}_{kind}_{T}_rows"] = simulator.hopper(
                kernel, args, how | {"BITS": bits, "GROUP": group}, **compiling)
    return kernels


H200_TARGETS = {"int4, T = 1: gemv_triton": {"share_of_copy": 0.55}}

def bench(N=28_672, K=8192, group=128):
    """On a GPU: this lesson's kernels, cuBLAS on 16-bit weights (through torch) and the roofs, by
    turns; rows of lab.measure.bench.

    Weights of 8192 x 28,672, 470 MB in bf16 and 125 MB in int4, both beyond the L2 cache; 1, 16 and
    512 rows of x. torch.compile: of the dequantising formula. gemv_triton is the kernel alone, and
    is credited with the packed integers only.
    """
    from day01_roofline import measure_side_by_side

    w = torch.randn(N, K, device="cuda", dtype=torch.bfloat16) / K**0.5         # (N, K)
    compiled = torch.compile(quantized_matmul_torch, dynamic=False)
    families = {}
    y = torch.empty(1, N, device="cuda", dtype=w.dtype)                         # (1, N)

    def gemv(x, packed, scales, bits, group):
        row = packed.shape[1]
        quantized_gemv_triton[(triton.cdiv(N, GEMV["BN"]), 1)](
            x, packed, scales, y, N, row, K // group, row, BITS=bits, GROUP=group, **GEMV)
        return y
    for bits in (8, 4):
        weights = *quantize_weight(w, bits, group), bits, group
        moved = sum(part.nbytes for part in weights[:2])
        for T in (1, 16, 512):
            x = torch.randn(T, K, device="cuda", dtype=torch.bfloat16)
            ends = 2 * T * (N + K)              # bytes of x and y
            ways = {"cublas": (w.nbytes + ends, partial(torch.matmul, x, w.T)),
                    "torch": partial(quantized_matmul_torch, x, *weights),
                    "torch.compile": partial(compiled, x, *weights),
                    "triton": partial(quantized_matmul, x, *weights)}
            if T == 1:
                ways["gemv_triton"] = weights[0].nbytes, partial(gemv, x, *weights)
                for kernel in ("gemv_bytes", "gemv_wide"):      # x and y in fp32
                    ways[kernel] = moved + 2 * ends, partial(quantized_matmul_cuda, x.float(),
                                                             *weights, kernel)
            peak = [x.dtype] if T > 1 else []
            families[f"int{bits}, T = {T}"] = 2 * T * N * K, moved + ends, ways, *peak
    return measure_side_by_side(families)
