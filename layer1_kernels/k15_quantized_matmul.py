"""k15 · Weights of 8 or 4 bits: y[t, n] = sum over k of x[t, k] · w[n, k], w dequantised on the way

T: tokens, one row of x each   N: numbers out   K: numbers in   G: groups of w, N·K / group
A weight is q · scale: q an integer of 8 or 4 bits, scale one fp32 number for `group` weights.
One token: 2 FLOPs for a weight of bits/8 + 4/group bytes. Memory decides, so fewer bits are less
time. From a few hundred tokens on arithmetic decides, and they are not.

Packed int8: q as it is, (N, K). Packed int4: two in a byte, (N, K/2). A group has its own bytes;
byte i of a group holds number i in its low 4 bits and number i + group/2 in its high 4, as q + 8.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from lab import simulator
from layer1_kernels.gradients import without_gradients
from layer1_kernels.k05_matmul_tiled import GROUP as ROWS_OF_TILES
from layer1_kernels.k05_matmul_tiled import grouped_triton, matmul
from layer1_kernels.k08_rmsnorm import FLOATS, at_least_fp32

__all__ = ["dequantize_weight", "quantize_weight", "quantized_matmul", "quantized_matmul_cuda",
           "quantized_matmul_torch"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
WARPS = 4               # of a block of the CUDA kernels, one a row of w
ENOUGH = 264            # programs: two for each of the 132 SMs of an H200
LARGEST = 2**31 - 2**19     # sizes; the kernels count with 32 bits, the last split beyond row

# Rows of w and packed bytes of each that a program of the GEMV takes at a time; warps, stages.
GEMV = {"BN": 8, "BB": 1024, "num_warps": 4, "num_stages": 1}
# BT, BN, BB (packed bytes of a row at a time), warps, stages, by bytes of a number of x, for up to
# so many rows. Chosen from what Triton makes of them for Hopper (no spills), not from times.
TILES = {2: {16: (16, 32, 128, 4, 4), 64: (64, 64, 64, 4, 4), LARGEST: (128, 128, 64, 8, 3)},
         4: {16: (16, 32, 32, 4, 2), LARGEST: (64, 64, 16, 8, 3)}}


# ---- integers and scales


def predict_bytes_ratio(bits, group):
    """Bytes of the quantised weights, their scales too, over those of the weights in fp16."""
    # exercise: bytes for each weight
    return (bits / 8 + 4 / group) / 2


def quantize_groups(w, bits):                       # (G, group) -> (G, group), (G,)
    """Integers q and fp32 scales, a scale a row: w ≈ q · scale, as near as such q can be.

    q: int8, from -top to top, where top = 2^(bits - 1) - 1. The largest |w| of a row becomes ±top;
    halves round to the even integer. A row of zeros has scale 0 and q = 0.
    """
    top = 2 ** (bits - 1) - 1
    # exercise: the scales, then w over its scale, rounded; mind the row of zeros
    scales = w.abs().amax(-1) / top                 # (G,)
    divisor = torch.where(scales > 0, scales, 1)    # (G,)
    q = (w / divisor[:, None]).round().clamp(-top, top)     # (G, group)
    return q.to(torch.int8), scales


def quantize_weight(w, bits, group):                # (N, K) -> packed, (N, K / group)
    """The weights as packed integers and fp32 scales; the layout is at the top of this file.

    w: floats, any strides, on any device   bits: 4 or 8   group: neighbours along K that share a
    scale, a power of two, 16 or more. ValueError where K is no multiple of it, or w not finite.
    """
    check_kind("quantize_weight", bits, group)
    if w.ndim != 2 or w.shape[1] % group:
        raise ValueError(f"quantize_weight: w has shape {tuple(w.shape)}, expected (N, K) with K "
                         f"a multiple of the group, {group}")
    if not w.is_floating_point():
        raise TypeError(f"quantize_weight: w is {w.dtype}, expected floats")
    (N, K), w = w.shape, w.float()                  # (N, K)
    if not w.isfinite().all():
        raise ValueError("quantize_weight: w has values that are not finite in float32, "
                         "expected none")
    q, scales = quantize_groups(w.reshape(N * K // group, group), bits)
    if bits == 4:
        low, high = (q + 8).to(torch.uint8).chunk(2, dim=-1)        # 2 × (G, group/2)
        q = low | high << 4
    return q.reshape(N, K * bits // 8), scales.reshape(N, K // group)


def dequantize_weight(packed, scales, bits, group):     # -> (N, K)
    """q · scale in fp32, from what quantize_weight gives."""
    check_kind("dequantize_weight", bits, group)
    (N, groups), K = scales.shape, scales.shape[1] * group
    check_packed("dequantize_weight", packed, scales, N, K, bits, group)
    q = packed.reshape(N, groups, group * bits // 8)
    if bits == 4:
        q = torch.cat((q & 15, q >> 4), dim=-1).to(torch.int8) - 8      # (N, groups, group)
    return (q * scales[..., None]).reshape(N, K)


def quantized_matmul_torch(x, packed, scales, bits, group):     # (T, K), … -> (T, N)
    """As quantized_matmul, by PyTorch: w is dequantised whole, in memory; float64 too."""
    w = dequantize_weight(packed, scales, bits, group)          # (N, K)
    v = at_least_fp32(x)                                        # (T, K)
    return (v @ w.to(v.dtype).T).to(x.dtype)


def quantized_matmul_oracle(x, packed, scales, bits, group):    # (T, K), … -> (T, N)
    """float64."""
    (N, groups), x = scales.shape, x.astype(np.float64)
    q = packed.reshape(N, groups, -1)
    if bits == 4:
        q = np.concatenate((q & 15, q >> 4), axis=-1).astype(int) - 8   # (N, groups, group)
    return x @ (q * scales[..., None].astype(np.float64)).reshape(N, -1).T


def largest_group(w, bits, limit):                  # (N, K) -> int or None
    """The largest group, of 1024, 512, … 16, with an error of `limit` or less; None if none has.

    error: sqrt(sum of (dequantised - w)² / sum of w²). K: a multiple of 1024
    """
    # exercise: quantise and dequantise by one group after the other, the largest first
    for group in (1024, 512, 256, 128, 64, 32, 16):
        if relative_error(w, bits, group) <= limit:
            return group
    return None


def relative_error(w, bits, group):                 # (N, K) -> float
    """sqrt(sum of (dequantised - w)² / sum of w²)."""
    got = dequantize_weight(*quantize_weight(w, bits, group), bits, group)
    return float(((got - w).square().sum() / w.square().sum()).sqrt())


# ---- the kernels


@triton.jit
def unpack_triton(packed):
    """Bytes of int4 -> (numbers of the low 4 bits, numbers of the high 4), -8 to 7, as float32."""
    # exercise: cut, make float32, and take off the 8 that was added
    return (packed & 15).to(tl.float32) - 8, (packed >> 4).to(tl.float32) - 8


@triton.jit
def unpack_all_triton(packed, low, high, n, BLOCK: tl.constexpr):
    """Unpacks n bytes, so that one can look at unpack_triton."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    lows, highs = unpack_triton(tl.load(packed + i, i < n))
    tl.store(low + i, lows, i < n)
    tl.store(high + i, highs, i < n)


@triton.jit
def quantized_gemv_triton(x, packed, scales, y, N, row, groups, span, BITS: tl.constexpr,
                          GROUP: tl.constexpr, BN: tl.constexpr, BB: tl.constexpr):
    """One row of x. Program (p, s): BN rows of w and bytes s·span to (s + 1)·span of each -> y[s].

    row: packed bytes of a row of w   groups: scales of a row   span: a multiple of BB
    """
    BYTES: tl.constexpr = GROUP * BITS // 8         # of a group
    PART: tl.constexpr = min(BYTES, 16)             # bytes that one lane loads, all of one group
    n, b = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BB)
    part = tl.arange(0, BB // PART) * PART          # where each part begins
    split, n_inside = tl.program_id(1), (n < N)[:, None]
    packed += n.to(tl.int64)[:, None] * row         # (BN, 1)
    scales += n.to(tl.int64)[:, None] * groups      # (BN, 1)
    sums = tl.zeros((BN, BB // PART), tl.float32)   # one for each part
    for start in range(split * span, min(row, (split + 1) * span), BB):
        inside = start + b < row
        k = (start + b) // BYTES * GROUP + (start + b) % BYTES          # of the (low) numbers
        scale = tl.load(scales + (start + part) // BYTES, n_inside & (start + part < row), 0)
        # exercise: load w and x, multiply (BN, BB), add the scaled sums of parts; then store y[s]
        w = tl.load(packed + start + b, n_inside & inside, 0)
        v = tl.load(x + k, inside, 0).to(tl.float32)
        if BITS == 8:
            products = v * w.to(tl.float32)
        else:
            low, high = unpack_triton(w)
            u = tl.load(x + k + GROUP // 2, inside, 0).to(tl.float32)
            products = v * low + u * high
        sums += tl.sum(products.reshape(BN, BB // PART, PART), 2) * scale
    tl.store(y + split.to(tl.int64) * N + n, tl.sum(sums, 1), n < N)


@triton.jit
def quantized_tiled_triton(x, packed, scales, y, T, N, K, row, groups, span, BITS: tl.constexpr,
                           GROUP: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr,
                           BB: tl.constexpr, ROWS: tl.constexpr):
    """Program (p, s): tile p (BT, BN) of y[s], in k05's order, from bytes s·span to (s + 1)·span of
    the rows of w. They are dequantised to x's dtype, for tl.dot."""
    tl.assume(span > 0)                 # as in k05: keeps Hopper's matmul instructions apart
    r, c = grouped_triton(tl.program_id(0), tl.cdiv(T, BT), tl.cdiv(N, BN), ROWS)
    t, n, b = r * BT + tl.arange(0, BT), c * BN + tl.arange(0, BN), tl.arange(0, BB)
    BYTES: tl.constexpr = GROUP * BITS // 8         # of a group
    PART: tl.constexpr = min(BYTES, BB)             # bytes of this step that share a scale
    part = tl.arange(0, BB // PART) * PART
    split, t_inside, n_inside = tl.program_id(1), (t < T)[:, None], (n < N)[:, None]
    x += t.to(tl.int64)[:, None] * K                # (BT, 1)
    packed += n.to(tl.int64)[:, None] * row         # (BN, 1)
    scales += n.to(tl.int64)[:, None] * groups      # (BN, 1)
    sums = tl.zeros((BT, BN), tl.float32)
    for start in range(split * span, min(row, (split + 1) * span), BB):
        inside = start + b < row
        k = (start + b) // BYTES * GROUP + (start + b) % BYTES
        w = tl.load(packed + start + b, n_inside & inside, 0)                       # (BN, BB)
        scale = tl.load(scales + (start + part) // BYTES, n_inside & (start + part < row), 0)
        scale = tl.broadcast_to(scale[:, :, None], BN, BB // PART, PART).reshape(BN, BB)
        v = tl.load(x + k, t_inside & inside, 0)                                    # (BT, BB)
        if BITS == 8:
            weights = (w.to(tl.float32) * scale).to(v.dtype)                        # (BN, BB)
            sums = tl.dot(v, weights.T, sums, input_precision="ieee")
        else:
            low, high = unpack_triton(w)                                            # (BN, BB)
            u = tl.load(x + k + GROUP // 2, t_inside & inside, 0)                   # (BT, BB)
            sums = tl.dot(v, (low * scale).to(v.dtype).T, sums, input_precision="ieee")
            sums = tl.dot(u, (high * scale).to(v.dtype).T, sums, input_precision="ieee")
    y += (split * T + t.to(tl.int64))[:, None] * N + n
    tl.store(y, sums, t_inside & (n < N))


# ---- the launchers


def configuration(T, N, row, itemsize):
    """-> (constexprs, warps and stages; programs; splits; span) for T rows of x.

    Where the tiles of y are fewer than ENOUGH, K is split, at most into steps of BB bytes. It
    depends on nothing but the sizes, so that results never change.
    """
    if T == 1:
        meta, programs = dict(GEMV), triton.cdiv(N, GEMV["BN"])
    else:
        BT, BN, BB, warps, stages = next(tile for rows, tile in TILES[itemsize].items()
                                         if rows >= T)
        meta = {"BT": BT, "BN": BN, "BB": BB, "ROWS": ROWS_OF_TILES, "num_warps": warps,
                "num_stages": stages}
        programs = triton.cdiv(T, BT) * triton.cdiv(N, BN)
    steps = triton.cdiv(row, meta["BB"])
    each = triton.cdiv(steps, triton.cdiv(ENOUGH, programs))    # steps of a split
    return meta, programs, triton.cdiv(steps, each), each * meta["BB"]


@without_gradients
def quantized_matmul(x, packed, scales, bits, group):   # (T, K), … -> (T, N)
    """x · dequantised(w)ᵀ by a Triton kernel, in x's dtype, from what quantize_weight gives.

    x: float32, float16 or bfloat16, contiguous, on the CPU or on CUDA; any size may be 0. Sums are
    fp32. For one row of x weights are not rounded; for more they are, to x's dtype, so that tensor
    cores can take them (in float16 a weight beyond 65,504 is inf). float32: IEEE, not TF32.
    """
    check("quantized_matmul", FLOATS, x, packed, scales, bits, group)
    (T, K), N, row = x.shape, len(packed), packed.shape[1]
    if T == 0 or N == 0 or K == 0:
        return x.new_zeros((T, N))
    meta, programs, splits, span = configuration(T, N, row, x.element_size())
    dtype = x.dtype if splits == 1 else torch.float32
    y = torch.empty((splits, T, N), dtype=dtype, device=x.device)       # (splits, T, N)
    meta |= {"BITS": bits, "GROUP": group}
    if T == 1:
        quantized_gemv_triton[(programs, splits)](x, packed, scales, y, N, row, K // group, span,
                                                  **meta)
    else:
        quantized_tiled_triton[(programs, splits)](x, packed, scales, y, T, N, K, row, K // group,
                                                   span, **meta)
    return y[0] if splits == 1 else y.sum(0).to(x.dtype)


@without_gradients
def quantized_matmul_cuda(x, packed, scales, bits, group, kernel=None):     # (T, K), … -> (T, N)
    """As quantized_matmul, by a CUDA kernel for one row: more of them read w again. float32.

    kernel: "gemv_bytes" or "gemv_wide", by default the second where a group has 16 bytes.
    ValueError where that one is asked for and it has fewer.
    """
    check("quantized_matmul_cuda", FLOATS[:1], x, packed, scales, bits, group)
    fits = group * bits >= 128 and x.data_ptr() % 16 == 0 and packed.data_ptr() % 16 == 0
    kernel = kernel or ("gemv_wide" if fits else "gemv_bytes")
    if kernel == "gemv_wide" and not fits:
        raise ValueError(f"gemv_wide: groups of {group} x {bits} bits, expected 16 bytes or more, "
                         f"and arrays that begin at a multiple of 16 bytes")
    (T, K), N = x.shape, len(packed)
    if T > 65_535:
        raise ValueError(f"quantized_matmul_cuda: x has {T} rows, expected at most 65535")
    y = x.new_empty((T, N))                         # (T, N)
    if y.numel():
        KERNELS.get(f"{kernel}_int{bits}_cuda")((triton.cdiv(N, WARPS), T), 32 * WARPS,
                                                (x, packed, scales, y, N, K, group))
    return y


def check_kind(op, bits, group):
    if bits not in (4, 8):
        raise ValueError(f"{op}: bits is {bits}, expected 4 or 8")
    if not isinstance(group, int) or group < 16 or group & (group - 1):
        raise ValueError(f"{op}: group is {group}, expected a power of two, 16 or more")


def check_packed(op, packed, scales, N, K, bits, group):
    """Shapes, dtypes and device of the quantised weights."""
    if scales.shape != (N, K // group) or packed.shape != (N, K * bits // 8):
        raise ValueError(f"{op}: packed has shape {tuple(packed.shape)} and scales "
                         f"{tuple(scales.shape)}, expected {(N, K * bits // 8)} and "
                         f"{(N, K // group)} for {bits} bits in groups of {group}")
    integers = torch.int8 if bits == 8 else torch.uint8
    if packed.dtype != integers or scales.dtype != torch.float32:
        raise TypeError(f"{op}: packed is {packed.dtype} and scales {scales.dtype}, expected "
                        f"{integers} and torch.float32")
    if packed.device != scales.device:
        raise ValueError(f"{op}: packed is on {packed.device} and scales on {scales.device}, "
                         f"expected one device")


def check(op, dtypes, x, packed, scales, bits, group):
    """What the kernels assume; they know no strides."""
    check_kind(op, bits, group)
    if x.ndim != 2 or packed.ndim != 2 or x.shape[1] % group:
        raise ValueError(f"{op}: x has shape {tuple(x.shape)} and packed {tuple(packed.shape)}, "
                         f"expected (T, K) and (N, K · {bits} / 8), K a multiple of the group, "
                         f"{group}")
    if x.dtype not in dtypes:
        raise TypeError(f"{op}: x is {x.dtype}, expected {' or '.join(map(str, dtypes))}")
    check_packed(op, packed, scales, len(packed), x.shape[1], bits, group)
    if x.device != packed.device:
        raise ValueError(f"{op}: x is on {x.device} and packed on {packed.device}, expected one "
                         f"device")
    for name, tensor in (("x", x), ("packed", packed), ("scales", scales)):
        if not tensor.is_contiguous():
            raise ValueError(f"{op}: {name} has strides {tensor.stride()}, expected it contiguous; "
                             f"{name}.contiguous() makes it so")
        if max(tensor.shape) > LARGEST:
            raise ValueError(f"{op}: {name} has shape {tuple(tensor.shape)}, expected sizes up to "
                             f"{LARGEST}")


# ---- what is counted and measured


# The simulator's names of arrays: those of Triton's arguments, and the places of CUDA's.
ARRAYS = {"w": "weights", "packed": "weights", "parameter 1": "weights",
          "scales": "scales", "parameter 2": "scales"}


class Step(NamedTuple):
    """One rung of the ladder, as counted, for one row of x."""

    name: str
    weights: float          # bytes of w that are asked for, over those of w in fp16
    scales: float           # bytes of scales that are asked for, likewise
    sectors: float          # bytes of all sectors, those of x among them, likewise
    at_once: int            # bytes of w that a lane asks for at once, the most
    instructions: float     # of a lane, for each weight
    changed: str


def ladder(N, K, group):
    """Every way of this lesson to multiply one row by w (N, K), and k05's fp16 matmul: [Step].

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
    changes = ("16 bits", "half the weights, one by one", "two in a byte",
               "16 bytes at once; loses in x", "two in a byte, again", "rows of w share x",
               "loses instructions to unpacking")
    steps = []
    for (name, run), changed in zip(ways.items(), changes, strict=True):
        with simulator.trace() as trace:
            run()
        steps.append(step(name, trace.launches[0], N * K, changed))
    return steps


def step(name, launch, weights, changed):
    """The Step of one launch, of so many weights."""
    asked, at_once = {"weights": 0, "scales": 0}, 0
    for (line, space, op), request in launch.requests.items():
        what = ARRAYS.get(next(iter(request.lanes.values()))[0])
        if op == "load" and what:
            asked[what] += launch.lines[line].access(space, op).bytes
            at_once = max(at_once, request.size) if what == "weights" else at_once
    return Step(name, asked["weights"] / (2 * weights), asked["scales"] / (2 * weights),
                launch.totals.bytes_moved / (2 * weights), at_once, 32 * launch.steps / weights,
                changed)


def shipped(N=4096, K=4096, group=128):
    """What quantized_matmul compiles for Hopper: {name: simulator.Hopper}."""
    found = {}
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
            found[f"int{bits}_{kind}_{T}_rows"] = simulator.hopper(
                kernel, args, how | {"BITS": bits, "GROUP": group}, **compiling)
    return found


H200_TARGETS = {"int4, T = 1: gemv_triton": {"share_of_copy": 0.55}}


def bench(N=28_672, K=8192, group=128):
    """On a GPU: this lesson's kernels, cuBLAS on 16-bit weights (through torch) and the roofs, by
    turns; rows of lab.bench.

    Weights of 8192 x 28,672, 470 MB in bf16 and 125 MB in int4, both beyond the L2 cache; 1, 16 and
    512 rows of x. torch.compile: of the dequantising formula. gemv_triton is the kernel alone, and
    is credited with the packed integers only.
    """
    from day01_roofline import beside

    w = torch.randn(N, K, device="cuda", dtype=torch.bfloat16) / K**0.5         # (N, K)
    compiled, families = torch.compile(quantized_matmul_torch, dynamic=False), {}
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
    return beside(families)
