"""Floating-point numbers that numpy does not have, and roundings that it does not do.

bfloat16 is the upper half of a float32. A directed rounding is taken from the double that holds the
exact result, or nearly so: round to nearest, then step back by one if that went the wrong way.
"""

import numpy as np

from .dtypes import F16, F32, F64, U16, U32

TINY = {F32: np.float32(2.0**-126), F16: np.float16(2.0**-14), F64: 2.0**-1022}


def bf16_to_f32(bits):
    return (bits.astype(U32) << U32.type(16)).view(F32)


def f32_to_bf16(value):
    """Round to nearest, ties to even. NaN becomes the canonical 0x7FFF."""
    bits = np.ascontiguousarray(value, F32).view(U32)
    rounded = (bits + U32.type(0x7FFF) + ((bits >> U32.type(16)) & U32.type(1))) >> U32.type(16)
    return np.where(np.isnan(value), U32.type(0x7FFF), rounded).astype(U16)


def f64_to_bf16(value, mode="rn"):
    """Round once: the float32 in between is rounded to odd, which keeps ties apart."""
    return f32_to_bf16(to_odd(value)) if mode == "rn" else directed_bf16(value, mode)


def to_odd(value):
    """float64 -> float32 whose last bit is set where it is inexact; a later rounding to fewer bits
    is then the right one (Boldo and Melquiond, 2005)."""
    near = value.astype(F32)
    error = value - near.astype(F64)
    bits = near.view(U32)
    even = (bits & U32.type(1)) == 0
    up = (error > 0) != (near < 0)                          # away from zero
    step = np.where(up, U32.type(1), U32.type(0xFFFFFFFF))
    return np.where((error != 0) & even & np.isfinite(near), bits + step, bits).view(F32)


def directed_bf16(value, mode):
    nearest = f32_to_bf16(to_odd(value))
    back = bf16_to_f32(nearest).astype(F64)
    return step_back(value, back, nearest, mode, U16)


def round_to(value, dtype, mode="rn"):
    """float64 -> dtype with rounding rn (nearest even), rz (to zero), rm (down) or rp (up)."""
    if dtype == F64:
        return value
    if dtype == F16 and mode == "rn":
        return to_odd(value).astype(F16)
    nearest = value.astype(dtype)
    if mode == "rn":
        return nearest
    bits = U16 if dtype == F16 else U32
    return step_back(value, nearest.astype(F64), nearest.view(bits), mode, bits).view(dtype)


def step_back(value, back, bits, mode, unsigned):
    """Move the nearest number by one where it lies on the wrong side of the exact value."""
    if mode == "rz":
        wrong = np.abs(back) > np.abs(value)
        return np.where(wrong, bits - unsigned.type(1), bits)
    wrong = back > value if mode == "rm" else back < value
    grow = (back <= 0) if mode == "rm" else (back >= 0)     # the step leads away from zero
    stepped = np.where(grow, bits + unsigned.type(1), bits - unsigned.type(1))
    return np.where(wrong, stepped, bits)


def flush(value):
    """.ftz: subnormal numbers become zero and keep their sign."""
    return np.where(np.abs(value) < TINY[value.dtype], np.copysign(value.dtype.type(0), value), value)


def two_product(a, b):
    """a · b = product + error, exactly (Dekker 1971, Veltkamp's splitting)."""
    product = a * b
    a_high, b_high = (x * 134217729.0 - (x * 134217729.0 - x) for x in (a, b))
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, np.where(np.isfinite(product) & np.isfinite(error), error, 0.0)


def fma_f64(a, b, c):
    """a · b + c in double precision with the product unrounded: at most one unit in the last place
    from the right rounding, and almost always equal to it."""
    product, low = two_product(a, b)
    total = product + c
    virtual = total - product
    rest = (product - (total - virtual)) + (c - virtual)    # Knuth's two-sum
    fixed = total + (rest + low)
    return np.where(np.isfinite(fixed), fixed, total)
