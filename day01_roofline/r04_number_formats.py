"""r04 · Number formats: what is left of a number in 32, 16, 8 or 4 bits

A float is sign, exponent field e (E bits), mantissa field m (M bits). bias = 2^(E-1) - 1.
    e > 0:  ± (1 + m / 2^M) · 2^(e - bias)          normal
    e = 0:  ± (0 + m / 2^M) · 2^(1 - bias)          subnormal
A number's code is these fields side by side, read as an integer.
An integer format stores q and means q · scale.
A memory-bound kernel takes time in proportion to the bits; this lesson counts what fewer bits cost
in accuracy.
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["FORMATS", "Float", "best_scale", "decode", "dot", "encode", "from_mxfp4",
           "from_nvfp4", "largest", "nearest_code", "pack_int4", "pack_trits", "quantize_int",
           "round_log", "round_scaled", "round_to", "snr", "spacing", "to_mxfp4", "to_nvfp4",
           "unpack_int4", "unpack_trits"]


@dataclass(frozen=True)
class Float:
    """A signed floating-point format.

    ieee: the codes with an exponent field of ones are inf if the mantissa is 0, else NaN   nan: the
    last code is NaN   none: all codes are finite numbers
    """

    name: str
    E: int                  # bits of the exponent field
    M: int                  # bits of the mantissa field
    specials: str           # which of the largest codes are not finite: ieee, nan or none

    @property
    def bias(self):
        """2^(E-1) - 1."""
        return 2 ** (self.E - 1) - 1

    @property
    def top(self):
        """Code of the largest finite number, without the sign bit."""
        lost = {"ieee": 2**self.M, "nan": 1, "none": 0}[self.specials]
        return 2 ** (self.E + self.M) - 1 - lost

    @property
    def inf(self):
        """Code of infinity, or None if the format has none."""
        return self.top + 1 if self.specials == "ieee" else None

    @property
    def nan(self):
        """Code of the NaN that encode returns (IEEE: a quiet one), or None if f has none."""
        quiet = 2 ** (self.M - 1) if self.specials == "ieee" else 0
        return None if self.specials == "none" else self.top + 1 + quiet


# Sources: IEEE 754 (fp32, fp16), OCP OFP8 1.0 (e4m3, e5m2), OCP Microscaling 1.0 (e2m1), NVIDIA's
# PTX ISA (tf32, bf16). tf32's 19 bits are the upper ones of a 32-bit register.
FORMATS = {f.name: f for f in (
    Float("fp32", 8, 23, "ieee"), Float("tf32", 8, 10, "ieee"), Float("bf16", 8, 7, "ieee"),
    Float("fp16", 5, 10, "ieee"), Float("e5m2", 5, 2, "ieee"), Float("e4m3", 4, 3, "nan"),
    Float("e2m1", 2, 1, "none"))}


def integers(op, q, low, high):
    """q as int64.
    ValueError unless all are integers from low to high."""
    q = np.asarray(q)
    if q.dtype.kind not in "iu" or q.size and not low <= q.min() <= q.max() <= high:
        raise ValueError(f"{op}: expected integers from {low} to {high}, got {q.dtype}" + (
            f" from {q.min()} to {q.max()}" if q.size else ""))
    return q.astype(np.int64)


def finite(op, x):
    """x as float64.
    ValueError if it holds inf or NaN."""
    x = np.asarray(x, np.float64)
    if not np.isfinite(x).all():
        raise ValueError(f"{op}: x holds inf or NaN, expected finite numbers")
    return x


def blocks(op, x, size):                            # (K,) -> (K/size, size)
    """x in rows of `size` neighbours.
    ValueError unless K is a positive multiple of size."""
    x = finite(op, x)
    if x.ndim != 1 or not x.size or x.size % size:
        raise ValueError(f"{op}: x has shape {x.shape}, expected (K,), K a multiple of {size}")
    return x.reshape(-1, size)


# ---- one number


def decode(f, code):
    """The float64 numbers that codes stand for.

    code: integers of any shape, 0 <= code < 2^(1 + E + M)
    """
    code = integers("decode", code, 0, 2 ** (1 + f.E + f.M) - 1)
    # exercise: separate the fields; handle e = 0 and e > 0; then codes above f.top; then the sign
    magnitude = code & (2 ** (f.E + f.M) - 1)
    e = magnitude >> f.M
    m = magnitude & (2**f.M - 1)
    value = np.ldexp(m + np.where(e > 0, 2.0**f.M, 0.0), np.maximum(e, 1) - f.bias - f.M)
    value = np.where(magnitude > f.top, np.nan, value)
    value = np.where(magnitude == f.inf, np.inf, value)
    return np.where(code >> (f.E + f.M), -value, value)


def spacing(f, x):
    """The distance from the largest number of f that is not above |x| to the next larger one.

    x: finite floats of any shape; beyond f's range, as if the exponents went on
    """
    x = np.abs(finite("spacing", x))
    # exercise: find k with 2^k <= |x| < 2^(k+1); below the smallest normal number, k stays
    k = np.frexp(np.maximum(x, 2.0 ** (1 - f.bias)))[1] - 1
    return np.ldexp(1.0, k - f.M)


def nearest_code(f, x):
    """The codes of the numbers nearest to x >= 0; in a tie, the even code.

    x: float64 of any shape.
    Where x is too large, the code is what it would be if the exponents continued, above f.top.
    """
    bits = np.asarray(x, np.float64).view(np.int64)
    exponent = (bits >> 52) - 1023                      # float64 has E = 11, M = 52
    significand = (bits & (2**52 - 1)) | 2**52          # 1 + m / 2^52, times 2^52
    # exercise: the exponent that f can have; how many bits to drop; round them away; the fields
    least = np.maximum(exponent, 1 - f.bias)            # all subnormals have the lowest exponent
    drop = np.minimum(52 - f.M + least - exponent, 54)  # 54: so small that nothing is left
    odd = significand >> drop & 1
    rounded = (significand + (1 << (drop - 1)) - 1 + odd) >> drop
    return ((least + f.bias - 1) << f.M) + rounded         # the leading 1, or a carry, adds to e


def encode(f, x, saturate=False):
    """Codes, int64, of f's numbers nearest to x, ties to even. x: float64 of any shape.

    A number that rounds beyond the largest one becomes inf; NaN if f has no inf; the largest number
    if f has neither, or with `saturate` (like PTX's .satfinite).
    ValueError if x holds a NaN and f has none.
    """
    x = np.asarray(x, np.float64)
    if f.nan is None and np.isnan(x).any():
        raise ValueError(f"encode: x holds a NaN, and {f.name} has none; expected numbers")
    over = f.inf or f.nan
    code = nearest_code(f, np.abs(x))
    code = np.where(code > f.top, f.top if saturate or over is None else over, code)
    code = np.where(np.isnan(x), f.nan or 0, code)
    return code | np.signbit(x).astype(np.int64) << (f.E + f.M)


def round_to(f, x, saturate=False):
    """x rounded to f, as float64."""
    return decode(f, encode(f, x, saturate))


def predict_largest_e4m3():
    """The largest finite number of e4m3: E = 4, M = 3, and only the last code is NaN."""
    # exercise: what are e and m of the second-last code?
    return 448              # e = 15, m = 6: (1 + 6/8) · 2^(15 - 7)


def predict_error_bound(M):
    """The largest possible |rounded x - x| / |x| for M mantissa bits, x in the normal range."""
    # exercise: a formula in M; at which x is half the spacing largest, relative to x?
    return 2.0 ** -(M + 1)  # half of 2^-M, just above a power of two


def predict_lost():
    """(inf, zero): how many of the 4,096 products 2^i · 2^j become inf in fp16, how many become 0.

    i and j run from -32 to 31.
    The product is exact before it is rounded, once.
    """
    # exercise: which i + j overflow, and which become 0? Then count the pairs
    pairs = [i + j for i in range(-32, 32) for j in range(-32, 32)]
    return sum(s >= 16 for s in pairs), sum(s <= -25 for s in pairs)


# ---- integers and scales


def largest(kind):
    """The largest number of a format. kind: a Float, or an int, the bits of an integer format"""
    if isinstance(kind, Float):
        return float(decode(kind, kind.top))
    if kind < 2:
        raise ValueError(f"largest: an integer of {kind} bits, expected 2 or more")
    return 2 ** (kind - 1) - 1


def quantize_int(x, bits, scale):
    """q, int64: x / scale, rounded to the nearest integer (ties to even) and clipped to
    ±(2^(bits-1) - 1).

    x: finite   scale: >= 0, a number or an array that broadcasts; q is 0 where scale is 0
    """
    x = finite("quantize_int", x)
    scale = finite("quantize_int", scale)
    top = largest(bits)
    q = np.clip(np.rint(x / np.where(scale > 0, scale, 1)), -top, top)
    return np.where(scale > 0, q, 0).astype(np.int64)


def best_scale(x, bits, shares):
    """The scale with the smallest sum of squared errors, among share · max|x| / largest(bits).

    x: float64   shares: list of 0 < share <= 1; in a tie, the first wins
    """
    x = finite("best_scale", x)
    # exercise: quantise and dequantise x with each scale; compare the squared errors
    scales = np.array(shares) * np.abs(x).max() / largest(bits)
    errors = [((quantize_int(x, bits, s) * s - x) ** 2).sum() for s in scales]
    return float(scales[np.argmin(errors)])


def pack_int4(q):
    """n integers from -7 to 7 -> n/2 bytes, uint8; n even.

    Byte i holds number i in its low 4 bits and number i + n/2 in its high 4, each as q + 8.
    """
    q = integers("pack_int4", q, -7, 7)
    if q.ndim != 1 or q.size % 2:
        raise ValueError(f"pack_int4: q has shape {q.shape}, expected (n,), n even")
    # exercise: add 8 to both halves, shift one of them by 4 bits, combine
    low, high = np.split(q + 8, 2)
    return (low | high << 4).astype(np.uint8)


def unpack_int4(packed):
    """n/2 bytes of pack_int4 -> n integers, int64."""
    packed = integers("unpack_int4", packed, 0, 255)
    # exercise: undo the steps of pack_int4
    return np.concatenate((packed & 15, packed >> 4)) - 8


def pack_trits(q):
    """n numbers, each -1, 0 or 1 -> n/5 bytes, uint8: 3^5 = 243 fit in 256. n: a multiple of 5."""
    q = integers("pack_trits", q, -1, 1)
    if q.ndim != 1 or q.size % 5:
        raise ValueError(f"pack_trits: q has shape {q.shape}, expected (n,), n a multiple of 5")
    return ((q.reshape(-1, 5) + 1) @ 3 ** np.arange(5)).astype(np.uint8)


def unpack_trits(packed):
    """Bytes of pack_trits -> numbers, each -1, 0 or 1."""
    packed = integers("unpack_trits", packed, 0, 3**5 - 1)
    return (packed[:, None] // 3 ** np.arange(5) % 3 - 1).ravel()


def round_scaled(kind, x, block=None):
    """x rounded to `kind`, with the largest |x| of each block scaled to kind's largest number.
    The scales are not rounded.

    kind: as in `largest`   x: (K,)   block: neighbours that share a scale, all of x by default
    """
    rows = blocks("round_scaled", x, block or len(x))
    scale = np.abs(rows).max(-1, keepdims=True) / largest(kind)
    if isinstance(kind, int):
        return (quantize_int(rows, kind, scale) * scale).ravel()
    return (round_to(kind, rows / np.where(scale > 0, scale, 1), saturate=True) * scale).ravel()


def round_log(x, bits, steps):                      # (K,) -> (K,)
    """x in a logarithmic format: a sign and k, which stand for ±max|x| · 2^(-k / steps).

    bits: of a code, its sign included; k goes from 0 to 2^(bits - 1) - 2, and the last code is 0
    steps: numbers in each doubling. k is rounded, so what is rounded is the logarithm of |x|.
    Source: Miyashita, Lee and Murmann, "Convolutional Neural Networks using Logarithmic Data
    Representation", 2016.
    """
    x = finite("round_log", x)
    top = np.abs(x).max() or 1.0
    with np.errstate(divide="ignore"):
        k = np.rint(-steps * np.log2(np.abs(x) / top))
    return np.where(k <= 2 ** (bits - 1) - 2, np.sign(x) * top * 2.0 ** (-k / steps), 0)


# ---- fp4 in blocks


def to_mxfp4(x):
    """(K,) -> e2m1 codes (K/32, 32), e8m0 codes (K/32,): bytes c that stand for 2^(c - 127).

    OCP Microscaling 1.0, 6.3: the scale's exponent is that of the largest |x| less 2, e2m1's own
    largest exponent; what is then above 6 saturates.
    A block of zeros gets c = 0.
    """
    rows = blocks("to_mxfp4", x, 32)
    top = np.abs(rows).max(-1)
    exponent = np.where(top > 0, np.frexp(top)[1] - 1 - 2, -127)
    scale = np.clip(exponent, -127, 127)
    return encode(FORMATS["e2m1"], np.ldexp(rows, -scale[:, None]), saturate=True), scale + 127


def from_mxfp4(elements, scales):
    """The result of to_mxfp4 -> (K,) float64."""
    return np.ldexp(decode(FORMATS["e2m1"], elements), (scales - 127)[:, None]).ravel()


def to_nvfp4(x):
    """(K,) -> e2m1 codes (K/16, 16), e4m3 codes of the block scales (K/16,), and one fp32 scale for
    all, chosen so that the largest block scale is e4m3's largest number.

    x: in the range of fp32
    """
    e2m1 = FORMATS["e2m1"]
    e4m3 = FORMATS["e4m3"]
    rows = blocks("to_nvfp4", x, 16)
    top = np.abs(rows).max(-1)
    whole = float(np.float32(top.max() / (largest(e2m1) * largest(e4m3))))
    whole = whole or (2.0 ** -149 if top.any() else 1.0)            # fp32's smallest number
    scales = encode(e4m3, top / largest(e2m1) / whole, saturate=True)
    scale = decode(e4m3, scales) * whole
    return encode(e2m1, rows / np.where(scale > 0, scale, 1)[:, None], True), scales, whole


def from_nvfp4(elements, scales, whole):
    """The result of to_nvfp4 -> (K,) float64."""
    e2m1 = FORMATS["e2m1"]
    e4m3 = FORMATS["e4m3"]
    return (decode(e2m1, elements) * decode(e4m3, scales)[:, None] * whole).ravel()


# ---- measuring the loss


def snr(x, rounded):
    """Signal to noise in dB: 10 · log10 of sum x² over sum (rounded - x)²; 6 dB are one bit."""
    return float(10 * np.log10((x**2).sum() / ((rounded - x) ** 2).sum()))


def dot(a, b, inputs, sums):
    """Sums over K of a · b, (R, K) -> (R, K): every running sum, as a matmul makes them.

    inputs: Float that a and b are rounded to; their products are exact   sums: Float that the sum
    is rounded to after each addition, one product at a time.
    A tensor core adds several at a time.
    """
    products = round_to(inputs, a) * round_to(inputs, b)
    total = np.zeros(len(a))
    running = np.empty_like(products)
    for k in range(products.shape[1]):
        total = round_to(sums, total + products[:, k])
        running[:, k] = total
    return running
