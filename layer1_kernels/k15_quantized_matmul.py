"""k15 · Weights of 8 or 4 bits: y[t, n] = sum over k of x[t, k] · w[n, k], w dequantised on the way

T: tokens, one row of x each   N: numbers out   K: numbers in   G: groups of w, N·K / group
A weight is q · scale: q is an integer of 8 or 4 bits, scale one fp32 number shared by `group`
weights.
One token: 2 FLOPs per weight.
Memory is the limit, so fewer bits take less time.
From a few hundred tokens on, arithmetic is the limit, and fewer bits save nothing.

Packed int8: q as it is, (N, K).
Packed int4: two in a byte, (N, K/2), stored as q + 8.
Byte i of a group holds weight i of the group in its low 4 bits and weight i + group/2 in its high
4.
"""

from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from lab import simulator
from layer1_kernels.gradients import without_gradients
from layer1_kernels.k05_matmul_tiled import GROUP as ROWS_OF_TILES
from layer1_kernels.k05_matmul_tiled import grouped_triton
from layer1_kernels.k08_rmsnorm import FLOATS, at_least_fp32

__all__ = ["dequantize_weight", "quantize_weight", "quantized_matmul", "quantized_matmul_cuda",
           "quantized_matmul_torch"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
WARPS = 4               # of a block of the CUDA kernels, one a row of w
MIN_PROGRAMS = 264      # two for each of the 132 SMs of an H200
LARGEST = 2**31 - 2**19     # size: indices have 32 bits, and the last split may pass a row's end

# Rows of w and packed bytes of each that a program of the GEMV takes at a time; warps, stages.
GEMV = {"BN": 8, "BB": 1024, "num_warps": 4, "num_stages": 1}
# {bytes of a number of x: {largest number of rows: (BT, BN, BB, warps, stages)}}; BB is in packed
# bytes. Chosen because they compile for Hopper without spills; not timed.
TILES = {2: {16: (16, 32, 128, 4, 4), 64: (64, 64, 64, 4, 4), LARGEST: (128, 128, 64, 8, 3)},
         4: {16: (16, 32, 32, 4, 2), LARGEST: (64, 64, 16, 8, 3)}}


# ---- integers and scales


def predict_bytes_ratio(bits, group):
    """Bytes of the quantised weights and their scales, divided by those of the weights in fp16."""
    # exercise: bytes for each weight
    return (bits / 8 + 4 / group) / 2


def quantize_groups(w, bits):                       # (G, group) -> (G, group), (G,)
    """Integers q and one fp32 scale for each row: q · scale is as close to w as integers allow.

    q: int8, from -top to top, where top = 2^(bits - 1) - 1. The largest |w| of a row becomes ±top;
    halves are rounded to the even integer, as round() does.
    A row of zeros has scale 0 and q = 0.
    """
    top = 2 ** (bits - 1) - 1
    # exercise: compute the scales; divide w by them and round; a row of zeros must not give 0 / 0
    scales = w.abs().amax(-1) / top                 # (G,)
    divisor = torch.where(scales > 0, scales, 1)    # (G,)
    q = (w / divisor[:, None]).round().clamp(-top, top)     # (G, group)
    return q.to(torch.int8), scales


def quantize_weight(w, bits, group):                # (N, K) -> packed, (N, K / group)
    """The weights as packed integers and fp32 scales; the layout is at the top of this file.

    w: floats, any strides, on any device   bits: 4 or 8   group: neighbours along K that share a
    scale, a power of two, 16 or more.
    ValueError if it does not divide K or w is not finite.
    """
    check_kind("quantize_weight", bits, group)
    if w.ndim != 2 or w.shape[1] % group:
        raise ValueError(f"quantize_weight: w has shape {tuple(w.shape)}, expected (N, K) with K "
                         f"a multiple of the group, {group}")
    if not w.is_floating_point():
        raise TypeError(f"quantize_weight: w is {w.dtype}, expected floats")
    N, K = w.shape
    w = w.float()                                   # (N, K)
    if not w.isfinite().all():
        raise ValueError("quantize_weight: w has values that are not finite in float32; expected "
                         "finite weights")
    q, scales = quantize_groups(w.reshape(N * K // group, group), bits)
    if bits == 4:
        low, high = (q + 8).to(torch.uint8).chunk(2, dim=-1)        # 2 × (G, group/2)
        q = low | high << 4
    return q.reshape(N, K * bits // 8), scales.reshape(N, K // group)


def dequantize_weight(packed, scales, bits, group):     # -> (N, K)
    """q · scale in fp32, from what quantize_weight gives."""
    check_kind("dequantize_weight", bits, group)
    N, groups = scales.shape
    K = scales.shape[1] * group
    check_packed("dequantize_weight", packed, scales, N, K, bits, group)
    q = packed.reshape(N, groups, group * bits // 8)
    if bits == 4:
        q = torch.cat((q & 15, q >> 4), dim=-1).to(torch.int8) - 8      # (N, groups, group)
    return (q * scales[..., None]).reshape(N, K)


def quantized_matmul_torch(x, packed, scales, bits, group):     # (T, K), … -> (T, N)
    """As quantized_matmul, by PyTorch, which dequantises all of w in memory; float64 too."""
    w = dequantize_weight(packed, scales, bits, group)          # (N, K)
    v = at_least_fp32(x)                                        # (T, K)
    return (v @ w.to(v.dtype).T).to(x.dtype)


def quantized_matmul_oracle(x, packed, scales, bits, group):    # (T, K), … -> (T, N)
    """float64."""
    N, groups = scales.shape
    x = x.astype(np.float64)
    q = packed.reshape(N, groups, -1)
    if bits == 4:
        q = np.concatenate((q & 15, q >> 4), axis=-1).astype(int) - 8   # (N, groups, group)
    return x @ (q * scales[..., None].astype(np.float64)).reshape(N, -1).T


def largest_group(w, bits, limit):                  # (N, K) -> int or None
    """The largest of the groups 1024, 512, … 16 whose error is `limit` or less, or None.

    error: sqrt(sum of (dequantised - w)² / sum of w²).
    K: a multiple of 1024
    """
    # exercise: try one group after the other with relative_error, the largest first
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
    # exercise: separate the halves, convert to float32, subtract the 8 that was added
    return (packed & 15).to(tl.float32) - 8, (packed >> 4).to(tl.float32) - 8


@triton.jit
def unpack_all_triton(packed, low, high, n, BLOCK: tl.constexpr):
    """Unpacks n bytes, to test unpack_triton."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    lows, highs = unpack_triton(tl.load(packed + i, i < n))
    tl.store(low + i, lows, i < n)
    tl.store(high + i, highs, i < n)


@triton.jit
def quantized_gemv_triton(x, packed, scales, y, N, row, groups, span, BITS: tl.constexpr,
                          GROUP: tl.constexpr, BN: tl.constexpr, BB: tl.constexpr):
    """For one row of x. Program (p, s) takes BN rows of w, bytes s·span to (s + 1)·span of each,
    and stores their sums in y[s].

    row: packed bytes of a row of w   groups: scales of a row   span: a multiple of BB
    """
    BYTES: tl.constexpr = GROUP * BITS // 8         # of a group
    PART: tl.constexpr = min(BYTES, 16)             # bytes that one thread loads, all of one scale
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
        # exercise: load; multiply; add each part's sum, times its scale, to sums; then store y[s]
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
    the rows of w. The weights are dequantised to x's dtype for tl.dot."""
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

    If y has fewer than MIN_PROGRAMS tiles, K is split, at most into one step of BB bytes each.
    The result depends only on the sizes, so the same call always gives the same bits.
    """
    if T == 1:
        meta = dict(GEMV)
        programs = triton.cdiv(N, GEMV["BN"])
    else:
        BT, BN, BB, warps, stages = next(tile for rows, tile in TILES[itemsize].items()
                                         if rows >= T)
        meta = {"BT": BT, "BN": BN, "BB": BB, "ROWS": ROWS_OF_TILES, "num_warps": warps,
                "num_stages": stages}
        programs = triton.cdiv(T, BT) * triton.cdiv(N, BN)
    steps = triton.cdiv(row, meta["BB"])
    each = triton.cdiv(steps, triton.cdiv(MIN_PROGRAMS, programs))      # steps of a split
    return meta, programs, triton.cdiv(steps, each), each * meta["BB"]


@without_gradients
def quantized_matmul(x, packed, scales, bits, group):   # (T, K), … -> (T, N)
    """x · dequantised(w)ᵀ by a Triton kernel, in x's dtype, from what quantize_weight gives.

    x: float32, float16 or bfloat16, contiguous, on the CPU or on CUDA; any size may be 0. Sums are
    fp32.
    With one row of x, the dequantised weights stay in fp32.
    With more they are rounded to x's dtype for the tensor cores (in float16 a weight beyond 65,504
    is inf). float32: IEEE, not TF32.
    """
    check("quantized_matmul", FLOATS, x, packed, scales, bits, group)
    T, K = x.shape
    N = len(packed)
    row = packed.shape[1]
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
    """As quantized_matmul, by a CUDA kernel for one row of x; each further row reads w again.

    x: float32    kernel: "gemv_bytes" or "gemv_wide"; the default is "gemv_wide" if a group has at
    least 16 bytes.
    ValueError if "gemv_wide" is named and a group has fewer.
    """
    check("quantized_matmul_cuda", FLOATS[:1], x, packed, scales, bits, group)
    fits = group * bits >= 128 and x.data_ptr() % 16 == 0 and packed.data_ptr() % 16 == 0
    kernel = kernel or ("gemv_wide" if fits else "gemv_bytes")
    if kernel == "gemv_wide" and not fits:
        raise ValueError(f"gemv_wide: groups of {group} × {bits} bits; expected at least 16 bytes "
                         f"a group, and arrays at multiples of 16 bytes")
    T, K = x.shape
    N = len(packed)
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
    """ValueError or TypeError unless the quantised weights have these shapes, fitting dtypes and
    one device."""
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
    """ValueError or TypeError unless the arguments are what the kernels assume; they take
    contiguous arrays only."""
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
            raise ValueError(f"{op}: {name} has strides {tensor.stride()}, expected it to be "
                             f"contiguous; {name}.contiguous() makes it so")
        if max(tensor.shape) > LARGEST:
            raise ValueError(f"{op}: {name} has shape {tuple(tensor.shape)}, expected sizes up to "
                             f"{LARGEST}")
