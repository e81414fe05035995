"""Undefined bits: a 1 for each, in unsigned integers of a register's size."""

import numpy as np

from .dtypes import BOOL, DTYPES, UNSIGNED


def anything(elements):
    return bool(np.ascontiguousarray(elements).view(np.uint8).any())


def bits_type(ptx_type):
    dtype = DTYPES[ptx_type]
    return BOOL if dtype == BOOL else UNSIGNED[dtype.itemsize]


def zero(ptx_type):
    return bits_type(ptx_type).type(0)


def ones(ptx_type):
    dtype = bits_type(ptx_type)
    return ~dtype.type(0)


def differing_bits(a, b):
    """The bits in which raw elements (n,) differ."""
    if a.dtype != np.complex128:
        return a ^ b.view(a.dtype)
    a, b = (np.ascontiguousarray(x).view(np.uint64) for x in (a, b))
    return (a ^ b).view(np.complex128)


def whole_elements(bits, inst, result=False):
    """Undefined bits of a matrix fragment -> the whole elements that they are in: all ones is a NaN
    in every float type, which then marks all that depends on it."""
    types = [m for m in inst.modifiers if m in DTYPES]
    half = DTYPES[types[0 if result else 1]].itemsize == 2 or types[1] in ("f16", "bf16")
    if result:
        half = types[0] == "f16"
    if bits.dtype.itemsize == 4 and half:
        parts = np.ascontiguousarray(bits).view(np.uint16)
        return np.where(parts != 0, np.uint16(0xFFFF), np.uint16(0)).view(np.uint32)
    return np.where(bits != 0, ~bits.dtype.type(0), bits.dtype.type(0))
