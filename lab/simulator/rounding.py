"""Floating-point numbers that numpy does not have, and roundings that it does not do.

An exact result that does not fit into a double is first rounded to odd: of its two neighbours the
one whose last bit is set.
A later rounding to fewer bits, in whatever direction, then gives what rounding the exact result
once would have given (Boldo and Melquiond 2005), since an odd number is neither representable in
fewer bits nor halfway between two that are.
"""

import numpy as np

from .dtypes import F16, F32, F64, U16, U32, UNSIGNED

TINY = {F16: 2.0**-14, F32: 2.0**-126}          # the smallest normal numbers
FP8 = {"e4m3": (3, -6), "e5m2": (2, -14)}       # bits of mantissa, least exponent
# The NaN that arithmetic gives on a GPU (CUDA C++ Programming Guide, Floating-Point Standard).
NAN_F32 = U32.type(0x7FFFFFFF).view(F32)
NAN_F16 = U16.type(0x7FFF).view(F16)
NAN_BF16 = U16.type(0x7FFF)
NAN_FP8 = U16.type(0x7F)


# ---- formats

def bf16_to_f32(bits):
    """bfloat16 is the upper half of a float32."""
    return (bits.astype(U32) << U32.type(16)).view(F32)


def f32_to_bf16(value):
    """Round to nearest, ties to even."""
    bits = np.ascontiguousarray(value, F32).view(U32)
    rounded = (bits + U32.type(0x7FFF) + ((bits >> U32.type(16)) & U32.type(1))) >> U32.type(16)
    return np.where(np.isnan(value), NAN_BF16, rounded.astype(U16))


def f32_to_tf32(value, mode):
    """tf32 is a float32 with 10 bits of mantissa. rna: to nearest, ties away from zero."""
    bits = value.view(U32)
    half = {"rna": U32.type(0x1000), "rz": U32.type(0),
            "rn": U32.type(0x0FFF) + ((bits >> U32.type(13)) & U32.type(1))}[mode]
    rounded = (bits + half) & U32.type(0xFFFFE000)
    return np.where(np.isnan(value), NAN_F32.view(U32), rounded)


def to_fp8(value, kind):
    """float64 within the range of e4m3 or e5m2 -> its bits as uint16, to nearest even."""
    mantissa, least = FP8[kind]
    nan = np.isnan(value)
    magnitude = np.where(nan, 0.0, np.abs(value))
    exponent = np.where(magnitude == 0, least, np.maximum(np.frexp(magnitude)[1] - 1, least))
    steps = np.rint(np.ldexp(magnitude, mantissa - exponent)).astype(np.int64)
    code = ((exponent - least) << mantissa) + steps         # a carry moves on to the exponent
    return np.where(nan, NAN_FP8, (code | np.where(np.signbit(value), 0x80, 0)).astype(U16))


def fp8_to_f16(kind):
    """-> the 256 numbers as float16, which holds them exactly."""
    code = np.arange(256)
    if kind == "e5m2":                                      # the upper half of a float16
        return canonical((code << 8).astype(U16).view(F16))
    exponent = code >> 3 & 15
    steps = code & 7
    value = np.ldexp(np.where(exponent > 0, 8.0 + steps, steps), np.maximum(exponent, 1) - 10)
    value = np.where(code & 0x7F == 0x7F, np.nan, value)    # no infinities
    return canonical(np.copysign(value, np.where(code & 0x80, -1, 1)).astype(F16))


# ---- exact results

def two_sum(a, b):
    """float64 a + b = total + error, exactly (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def sum_to_odd(a, b):
    """float64 a + b, rounded to odd."""
    return to_odd(*two_sum(a, b))


def to_odd(near, error):
    """near, the nearest number to the exact near + error -> the odd one of its two neighbours."""
    unsigned = UNSIGNED[near.dtype.itemsize]
    bits = near.view(unsigned)
    even = (error != 0) & (bits & unsigned.type(1) == 0) & np.isfinite(near)
    if not even.any():
        return near
    return neighbour(near, (error > 0) != np.signbit(near), even)


def neighbour(near, outward, chosen):
    """Where chosen, the next number away from zero or, if not outward, towards it."""
    unsigned = UNSIGNED[near.dtype.itemsize]
    step = np.where(outward, unsigned.type(1), ~unsigned.type(0))
    return (near.view(unsigned) + step * chosen).view(near.dtype)


def two_product(a, b):
    """float64 a · b = product + error, exactly (Dekker 1971, Veltkamp's splitting)."""
    product = a * b
    a_high, b_high = (x * 134217729.0 - (x * 134217729.0 - x) for x in (a, b))
    a_low = a - a_high
    b_low = b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


# ---- one rounding

def round_to(value, ptx_type, mode="rn"):
    """float64, exact or rounded to odd -> f32, f16 or bf16 as registers hold them.

    mode: rn to nearest, ties to even; rz to zero; rm down; rp up"""
    if ptx_type == "bf16":
        return round_to_bf16(value, mode)
    near = value.astype(F16 if ptx_type == "f16" else F32)
    return canonical(near if mode == "rn" else step_back(value, near, mode))


def round_to_bf16(value, mode):
    if mode == "rn":
        return f32_to_bf16(narrow_to_odd(value))
    bits = step_back(value, value.astype(F32), mode).view(U32)      # to 24 bits, then to 8: both
    leaving = outward(bits >> U32.type(31) == 1, mode)              # in the same direction
    bits = bits + np.where(leaving, U32.type(0xFFFF), U32.type(0))
    return np.where(np.isnan(value), NAN_BF16, (bits >> U32.type(16)).astype(U16))


def narrow_to_odd(value):
    """float64 -> float32, rounded to odd."""
    near = value.astype(F32)
    return to_odd(near, value - near.astype(F64))


def step_back(value, near, mode):
    """Where the nearest number lies on the wrong side of the exact value, take its neighbour."""
    back = near.astype(F64)
    wrong = {"rz": np.abs(back) > np.abs(value), "rm": back > value, "rp": back < value}[mode]
    if not wrong.any():
        return near
    return neighbour(near, outward(np.signbit(near), mode), wrong)


def outward(negative, mode):
    """Does a directed rounding lead away from zero?"""
    return {"rz": np.zeros_like(negative), "rm": negative, "rp": ~negative}[mode]


def canonical(value):
    """float32 or float16 with every NaN as a GPU makes it."""
    if value.dtype == F32:
        bad = np.isnan(value)
        nan = NAN_F32
    else:                                                   # by its bits, which is much faster
        bad = value.view(U16) & U16.type(0x7FFF) > 0x7C00
        nan = NAN_F16
    return np.where(bad, nan, value) if bad.any() else value


def flush(value):
    """.ftz: subnormal numbers of float32 or float16 become zero and keep their sign."""
    return flush_below(value, TINY[value.dtype])


def flush_below(value, tiny):
    small = np.abs(value) < tiny
    return np.where(small, np.copysign(value.dtype.type(0), value), value) if small.any() else value
