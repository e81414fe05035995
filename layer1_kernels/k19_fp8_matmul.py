"""k19 · Matmul in eight bits: c[m, n] = sum over k of a[m, k] · w[n, k], from e4m3 and scales

a: (M, K)   w: (N, K), numbers out, numbers in, as in k05   c: (M, N)   x: a before it has 8 bits
A number is q · s: q in e4m3, s one fp32 scale for a group of them.
With groups of G, row m of a has a scale for each G numbers, and w one for each block of G x G.
BM BN BK: tile of c of a program, and how many k are fetched for it at a time
2·M·N·K FLOPs on (M + N)·K bytes: half of 16 bits' bytes, at twice their FLOP/s on tensor cores.
"""

from collections import deque

import numpy as np
import torch
import triton
import triton.language as tl

from lab import simulator
from layer1_kernels.gpu import properties
from layer1_kernels.gradients import without_gradients
from layer1_kernels.k05_matmul_tiled import GROUP as ROWS_OF_TILES
from layer1_kernels.k05_matmul_tiled import grouped_triton
from layer1_kernels.k08_rmsnorm import FLOATS

__all__ = ["dequantize_blocks", "encode_weight", "fp8_matmul", "fp8_matmul_torch", "quantize_rows",
           "scaled_matmul_fp8"]

E4M3 = torch.float8_e4m3fn
TOP = 448               # the largest number of e4m3
FP8_GPU = 89            # compute capability: the first with fp8
BLOCK = 128             # numbers of a row, and rows of w, that share a scale of fp8_matmul
LARGEST = 2**31 - 2**16     # sizes: the kernels count with 32 bits, a last tile beyond the end

# BM, BN, BK, warps, stages. Chosen from what Triton makes of them for Hopper (see shipped: no
# spills, wgmma from 64 rows on), not from times. Blocks of scales need registers for two sums.
TILES = [(128, 128, 128, 8, 3), (64, 128, 128, 4, 3), (16, 64, 128, 4, 3)]
TILES_OF_ROWS = [(128, 256, 128, 8, 3), *TILES]     # the first has no room on sm_89
MIN_TILES = 100         # so most of the 132 SMs of an H200 get one


# ---- by the book


def quantize_blocks(x, rows, group):            # (M, K) -> (M, K), (⌈M/rows⌉, ⌈K/group⌉)
    """(e4m3, fp32 scales) of floats, a scale for each rows x group of them: the largest becomes
    448.
    Zeros have scale 0.
    Each number is rounded once, to the nearest."""
    M, K = x.shape
    down = triton.cdiv(M, rows)
    across = triton.cdiv(K, group)
    padded = torch.nn.functional.pad(x.float(), (0, across * group - K, 0, down * rows - M))
    blocks = padded.reshape(down, rows, across, group)
    scales = blocks.abs().amax((1, 3)) / TOP        # (down, across)
    divisor = torch.where(scales > 0, scales, 1)[:, None, :, None]
    q = (blocks / divisor).reshape(padded.shape)[:M, :K]            # (M, K)
    return q.clamp(-TOP, TOP).to(E4M3).contiguous(), scales


def encode_weight(w, group=128):                # (N, K) -> (N, K), (⌈N/group⌉, ⌈K/group⌉)
    """A weight for fp8_matmul: e4m3, and an fp32 scale for each group x group numbers.

    w: floats, any strides, on any device.
    ValueError where they are not finite in float32.
    """
    if w.ndim != 2 or not w.is_floating_point() or not w.float().isfinite().all():
        raise ValueError(f"encode_weight: w is {w.dtype} of shape {tuple(w.shape)}, expected "
                         f"floats (N, K) that are finite in float32")
    return quantize_blocks(w, group, group)


def dequantize_blocks(q, scales, rows, group):  # (M, K), (⌈M/rows⌉, ⌈K/group⌉) -> (M, K)
    """q · scale in fp32."""
    M, K = q.shape
    wide = scales.repeat_interleave(rows, 0)[:M].repeat_interleave(group, 1)[:, :K]     # (M, K)
    return q.float() * wide


def scaled_matmul_oracle(a, w, a_scales, w_scales, group):      # (M, K), (N, K) … -> (M, N)
    """float64, of numbers as NumPy has them: group by group."""
    M, K = a.shape
    N = len(w)
    c = np.zeros((M, N))
    for g, k in enumerate(range(0, K, group)):
        part = a[:, k:k + group].astype(np.float64) @ w[:, k:k + group].astype(np.float64).T
        w_scale = w_scales[np.arange(N) // group, g].astype(np.float64)         # (N,)
        c += part * a_scales[:, g, None] * w_scale
    return c


def predict_outlier_loss():
    """How many times as large the error of 1,023 channels becomes when the last channel is 100
    times as large as they are: rows of 1,024 numbers in e4m3, one scale for all."""
    # exercise: what is the error of an e4m3 number relative to?
    return 1.0


# ---- scales


def predict_scale_bytes():
    """Bytes of scales over bytes of numbers: e4m3 in groups of 128 of a row, scales in fp32."""
    # exercise: the bytes of one group
    return 4 / 128


@triton.jit
def quantize_triton(x, q, scales, K, groups, GROUP: tl.constexpr):
    """Program (m, g) makes numbers g·GROUP to (g + 1)·GROUP of row m: q = x / scale in e4m3, and
    scales[m, g], with which the largest becomes 448.

    x, q: (M, K), any floats and e4m3   scales: (M, groups), fp32   groups: ⌈K/GROUP⌉
    """
    m = tl.program_id(0).to(tl.int64)
    g = tl.program_id(1)
    k = g * GROUP + tl.arange(0, GROUP)
    x += m * K
    q += m * K
    scales += m * groups
    # exercise: load the group as fp32, store its scale and its numbers; mind a group of zeros
    v = tl.load(x + k, k < K, 0.0).to(tl.float32)
    scale = tl.max(tl.abs(v)) / 448
    tl.store(scales + g, scale)
    v /= tl.where(scale > 0, scale, 1.0)
    tl.store(q + k, v.to(tl.float8e4nv), k < K)


class DelayedScale:
    """The scale of an array that comes again each step, from the steps before."""

    def __init__(self, steps):
        """steps: how many maxima are remembered."""
        self.history = deque(maxlen=steps)          # largest |x| of the last steps

    def update(self, x):
        """The scale for this x: with it, the largest number remembered becomes 448. 1.0 if no
        number above 0 is remembered.
        Afterwards this x's largest is remembered too.

        self.history: the largest |x| of the last steps, a deque that drops what is too old
        """
        # exercise: the scale first, from the history alone; then this x's largest joins it
        scale = max(self.history, default=0.0) / 448
        self.history.append(float(np.abs(x).max()))
        return scale or 1.0


# ---- the product


@triton.jit
def fp8_matmul_triton(a, w, a_scales, w_scales, c, M, N, K, groups, GROUP: tl.constexpr,
                      BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ROWS: tl.constexpr):
    """A program makes a tile (BM, BN) of c, in k05's order.

    a (M, K), w (N, K): e4m3   a_scales: (M, groups)   w_scales: (⌈N/GROUP⌉, groups)
    groups: ⌈K/GROUP⌉   BK divides GROUP
    """
    tl.assume(K > 0)                    # as in k05: keeps Hopper's matmul instructions apart
    row, column = grouped_triton(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), ROWS)
    m = row * BM + tl.arange(0, BM)
    n = column * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a += m.to(tl.int64)[:, None] * K                # (BM, 1): where rows begin
    w += n.to(tl.int64)[:, None] * K                # (BN, 1)
    m_inside = m < M
    n_inside = n < N
    sums = tl.zeros((BM, BN), tl.float32)
    # exercise: per step of BK, a part by tl.dot from zero, times both scales, added to sums
    a_scales += m.to(tl.int64) * groups             # (BM,)
    w_scales += n // GROUP * groups                 # (BN,)
    for start in range(0, K, BK):
        inside = start + k < K
        x = tl.load(a + start + k, m_inside[:, None] & inside, 0.0)                 # (BM, BK)
        y = tl.load(w + start + k, n_inside[:, None] & inside, 0.0)                 # (BN, BK)
        a_scale = tl.load(a_scales + start // GROUP, m_inside, 0.0)                 # (BM,)
        w_scale = tl.load(w_scales + start // GROUP, n_inside, 0.0)                 # (BN,)
        sums += tl.dot(x, y.T) * a_scale[:, None] * w_scale
    tl.store(c + m.to(tl.int64)[:, None] * N + n, sums, m_inside[:, None] & n_inside)


@triton.jit
def fp8_epilogue_triton(a, w, a_scales, w_scales, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr,
                        BK: tl.constexpr, ROWS: tl.constexpr):
    """As fp8_matmul_triton where a row has one scale: it leaves the whole sum, and comes last.

    a_scales: (M,)   w_scales: (N,)
    """
    tl.assume(K > 0)
    row, column = grouped_triton(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), ROWS)
    m = row * BM + tl.arange(0, BM)
    n = column * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a += m.to(tl.int64)[:, None] * K                # (BM, 1)
    w += n.to(tl.int64)[:, None] * K                # (BN, 1)
    m_inside = m < M
    n_inside = n < N
    sums = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        inside = start + k < K
        x = tl.load(a + start + k, m_inside[:, None] & inside, 0.0)                 # (BM, BK)
        y = tl.load(w + start + k, n_inside[:, None] & inside, 0.0)                 # (BN, BK)
        sums = tl.dot(x, y.T, sums)
    sums *= tl.load(a_scales + m, m_inside, 0.0)[:, None] * tl.load(w_scales + n, n_inside, 0.0)
    tl.store(c + m.to(tl.int64)[:, None] * N + n, sums, m_inside[:, None] & n_inside)


# ---- few bits for sums


def cut(x, bits):
    """x with the first `bits` binary digits of each number, the rest cut off."""
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.trunc(np.ldexp(fraction, bits)), exponent - bits)


def part_sums(a, w, step):                          # (M, K), (N, K) -> (K / step, M, N)
    """Exact sums of a · wᵀ over each `step` neighbours along K, in float64. step divides K."""
    a, w = (np.asarray(x, np.float64).reshape(len(x), -1, step) for x in (a, w))
    return np.einsum("msk,nsk->smn", a, w)


def promoted_sum(parts, bits, every):               # (S, M, N) -> (M, N)
    """The sum of S parts, added one by one to a sum of `bits` bits.
    After each `every` parts, and after the last, that sum is added to a total in fp32, and
    begins at 0 again."""
    # exercise: two loops; cut each sum to bits, but not the total
    total = np.zeros(parts.shape[1:], np.float32)   # (M, N)
    for first in range(0, len(parts), every):
        few = np.zeros_like(total, np.float64)      # (M, N)
        for part in parts[first:first + every]:
            few = cut(few + part, bits)
        total += few.astype(np.float32)
    return total


# ---- the launchers


def configuration(M, N, tiles, room):
    """The arguments of a kernel that say how: those of the largest tile that M fills by more than
    half and of which there are MIN_TILES, else those of the smallest.

    room: bytes of shared memory that a block can have
    """
    *larger, smallest = tiles
    BM, BN, BK, warps, stages = next(
        (tile for tile in larger
         if tile[0] < 2 * M and triton.cdiv(M, tile[0]) * triton.cdiv(N, tile[1]) >= MIN_TILES
         and (tile[0] + tile[1]) * tile[2] * tile[4] <= room), smallest)
    return {"BM": BM, "BN": BN, "BK": BK, "ROWS": ROWS_OF_TILES, "num_warps": warps,
            "num_stages": stages}


@without_gradients
def quantize_rows(x, group=BLOCK):                  # (M, K) -> (M, K), (M, ⌈K/group⌉)
    """(e4m3, fp32 scales) by the Triton kernel: the largest of each `group` numbers of a row
    becomes 448; zeros have scale 0. A NaN stays one, and an inf makes one.

    x: float32, float16 or bfloat16, contiguous, on the CPU or on CUDA   group: a power of two
    Before Hopper, Triton 3.7 rounds to fp16 first, towards zero: a few codes in a thousand are the
    neighbour of the nearest.
    """
    check_array("quantize_rows", "x", x, "TC", FLOATS, x)
    check_group("quantize_rows", group)
    M, K = x.shape
    groups = triton.cdiv(K, group)
    q = torch.empty(M, K, dtype=E4M3, device=x.device)              # (M, K)
    scales = torch.empty(M, groups, device=x.device)                # (M, groups)
    if q.numel():
        with simulator.capability(FP8_GPU):
            quantize_triton[(M, groups)](x, q, scales, K, groups, GROUP=group, num_warps=1)
    return q, scales


@without_gradients
def scaled_matmul_fp8(a, w, a_scales, w_scales, group=None, dtype=torch.float32):
    """(M, K), (N, K) in e4m3 -> (M, N) in `dtype`: decoded(a) · decoded(w)ᵀ by a Triton kernel.

    group: None: a row has one scale, a_scales (M,) and w_scales (N,); for one scale of an array,
    expand it.
    Else a power of two, 32 or more: a_scales (M, ⌈K/group⌉) and w_scales (⌈N/group⌉, ⌈K/group⌉).
    Arrays are contiguous, on the CPU or on CUDA; sizes may be 0.
    Sums are fp32.
    """
    op = "scaled_matmul_fp8"
    check_array(op, "a", a, "MK", (E4M3,), a)
    M, K = a.shape
    check_array(op, "w", w, ("N", K), (E4M3,), a)
    N = len(w)
    if group is not None:
        check_group(op, group)
    shapes = ((M,), (N,)) if group is None else blocks(M, N, K, group)
    for name, scales, shape in zip(("a_scales", "w_scales"), (a_scales, w_scales), shapes,
                                   strict=True):
        check_array(op, name, scales, shape, (torch.float32,), a)
    if 0 in (M, N, K):
        return torch.zeros(M, N, dtype=dtype, device=a.device)
    c = torch.empty(M, N, dtype=dtype, device=a.device)             # (M, N)
    with simulator.capability(FP8_GPU):
        how = configuration(M, N, TILES_OF_ROWS if group is None else TILES,
                            properties()["max_shared_mem"])
        programs = triton.cdiv(M, how["BM"]) * triton.cdiv(N, how["BN"])
        arrays = a, w, a_scales, w_scales, c
        if group is None:
            fp8_epilogue_triton[(programs,)](*arrays, M, N, K, **how)
        else:
            how["BK"] = min(how["BK"], group)
            fp8_matmul_triton[(programs,)](*arrays, M, N, K, triton.cdiv(K, group), GROUP=group,
                                           **how)
    return c


def fp8_matmul(x, w, scales):           # (T, C), (N, C), (⌈N/128⌉, ⌈C/128⌉) -> (T, N)
    """x · decoded(w)ᵀ in x's dtype, with w and scales as encode_weight gives them. x is rounded to
    e4m3 too, in groups of 128 of each row.
    Two launches of Triton kernels.

    x: float32, float16 or bfloat16, contiguous, on the CPU or on CUDA; T, N and C may be 0.
    """
    check("fp8_matmul", x, w, scales)
    q, x_scales = quantize_rows(x)
    return scaled_matmul_fp8(q, w, x_scales, scales, BLOCK, x.dtype)


def fp8_matmul_torch(x, w, scales):     # (T, C), (N, C), (⌈N/128⌉, ⌈C/128⌉) -> (T, N)
    """As fp8_matmul, by PyTorch: both are decoded, in memory, and multiplied in fp32."""
    check("fp8_matmul_torch", x, w, scales)
    rows = dequantize_blocks(*quantize_blocks(x, 1, BLOCK), 1, BLOCK)           # (T, C)
    return (rows @ dequantize_blocks(w, scales, BLOCK, BLOCK).T).to(x.dtype)


def blocks(M, N, K, group):
    """Shapes of the scales of a (M, K) and w (N, K)."""
    across = triton.cdiv(K, group)
    return (M, across), (triton.cdiv(N, group), across)


def check(op, x, w, scales):
    """What fp8_matmul assumes."""
    check_array(op, "x", x, "TC", FLOATS, x)
    check_array(op, "w", w, ("N", x.shape[1]), (E4M3,), x)
    _, shape = blocks(0, *w.shape, BLOCK)
    check_array(op, "scales", scales, shape, (torch.float32,), x)


def check_group(op, group):
    if not isinstance(group, int) or group < 32 or group & (group - 1):
        raise ValueError(f"{op}: group is {group}, expected a power of two, 32 or more")


def check_array(op, name, array, shape, dtypes, first):
    """shape: sizes, a letter for any   first: an array on the same device"""
    words = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    fits = array.ndim == len(shape) and all(
        isinstance(want, str) or want == n for want, n in zip(shape, array.shape, strict=True))
    if not fits or max(array.shape, default=0) > LARGEST:
        raise ValueError(f"{op}: {name} has shape {tuple(array.shape)}, expected {words}, sizes up "
                         f"to {LARGEST}")
    if array.dtype not in dtypes or array.device != first.device:
        raise TypeError(f"{op}: {name} is {array.dtype} on {array.device}, expected "
                        f"{' or '.join(map(str, dtypes))} on {first.device}")
    if not array.is_contiguous():
        raise ValueError(f"{op}: {name} has strides {array.stride()}, expected it to be "
                         f"contiguous; {name}.contiguous() makes it so")
