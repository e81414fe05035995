"""cvt: from any numeric type to any other.

Between integers it truncates or extends, from float to integer it rounds as told and saturates, from
integer or wider float to float it rounds once.
"""

import numpy as np

from ..decode import destination, opcode, source
from ..dtypes import DTYPES, F16, F32, F64, U16, U32, is_float
from ..rounding import bf16_to_f32, f32_to_bf16, f64_to_bf16, flush, round_to

TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@opcode("cvt")
def cvt(inst, mods):
    integral = mods.one_of(*TO_INTEGER)
    mode = mods.one_of("rn", "rz", "rm", "rp", "rna", default="rn")
    ftz, saturate = mods.flag("ftz"), mods.flag("sat")
    relu, satfinite = mods.flag("relu"), mods.flag("satfinite")
    to, frm = mods.type(), mods.type()
    if to in ("f16x2", "bf16x2") and frm == "f32":
        return pack_halves(inst, to, mode, relu)
    if "x2" in to or "x2" in frm or satfinite or (relu and to not in ("f16", "bf16")):
        mods.refuse()
    if mode == "rna" and to != "tf32":
        mods.refuse()
    read, write = source(inst.operands[1], frm), destination(inst.operands[0], to)
    change = converter(to, frm, integral, mode, ftz, saturate)
    if relu:
        plain = change
        zero = DTYPES[to].type(0)

        def change(value):
            result = plain(value)
            return np.where(value < 0, zero, result)
    return lambda wave: write(wave, change(read(wave)))


def converter(to, frm, integral, mode, ftz, saturate):
    """-> f(array of the source dtype), an array of the destination dtype"""
    target = DTYPES[to]
    if to == "tf32":
        return lambda value: round_to_tf32(value, mode)
    if not is_float(to):
        if is_float(frm):
            return lambda value: to_integer(widen(value, frm, ftz), frm, to, integral or "rzi")
        if saturate:
            limits = np.iinfo(target)
            return lambda value: clamp_integer(value, limits).astype(target)
        return lambda value: value.astype(target)
    if not is_float(frm):
        return lambda value: from_integer(value, to, mode)
    rounds = TO_INTEGER.get(integral)

    def change(value):
        value = widen(value, frm, ftz)
        if rounds:
            value = rounds(value)
        if saturate:
            value = np.where(np.isnan(value), value.dtype.type(0), np.clip(value, 0, 1)).astype(
                value.dtype)
        result = narrow(value, to, mode)
        return flush(result) if ftz and to == "f32" else result
    return change


def widen(value, frm, ftz):
    """A float of any kind as float32 or float64."""
    if frm == "bf16":
        return bf16_to_f32(value)
    if frm == "f16":
        return value.astype(F32)
    return flush(value) if ftz and frm == "f32" else value


def narrow(value, to, mode):
    """float32 or float64 -> the destination, rounded once."""
    if to == "f64":
        return value.astype(F64)
    if to == "bf16":
        return f32_to_bf16(value) if mode == "rn" and value.dtype == F32 else \
            f64_to_bf16(value.astype(F64), mode)
    if to == "f32" and value.dtype == F32:
        return value
    if to == "f16" and mode == "rn" and value.dtype == F32:
        return value.astype(F16)
    return round_to(value.astype(F64), DTYPES[to], mode)


def to_integer(value, frm, to, integral):
    """Out of range goes to the nearest integer there is. NaN gives 0, or, where a double or a
    64-bit integer is involved, the integer with only the top bit set, as the hardware has it."""
    target, limits = DTYPES[to], np.iinfo(DTYPES[to])
    value = TO_INTEGER[integral](value).astype(F64)
    inside = (value > limits.min) & (value < float(limits.max))
    result = np.where(inside, value, 0).astype(target)
    result = np.where(value <= limits.min, target.type(limits.min), result)
    result = np.where(value >= float(limits.max), target.type(limits.max), result)
    odd = frm == "f64" or target.itemsize == 8
    nan = target.type(1 << (8 * target.itemsize - 1) if limits.min == 0 else limits.min) if odd \
        else target.type(0)
    return np.where(np.isnan(value), nan, result)


def clamp_integer(value, limits):
    """Into the destination's range, as far as the source's own range reaches beyond it."""
    own = np.iinfo(value.dtype)
    return np.clip(value, max(limits.min, own.min), min(limits.max, own.max))


def from_integer(value, to, mode):
    if to == "bf16":
        return f64_to_bf16(value.astype(F64), mode)
    if mode == "rn" and to != "f16":
        return value.astype(DTYPES[to])                     # rounds once, straight from the integer
    if value.dtype.itemsize < 8:
        return round_to(value.astype(F64), DTYPES[to], mode)
    exact = value.astype(np.longdouble)                     # 64 bits of mantissa
    near = exact.astype(DTYPES[to])
    wrong = {"rn": False, "rz": np.abs(near.astype(np.longdouble)) > np.abs(exact),
             "rm": near.astype(np.longdouble) > exact, "rp": near.astype(np.longdouble) < exact}[mode]
    towards = DTYPES[to].type({"rn": 0, "rz": 0, "rm": -np.inf, "rp": np.inf}[mode])
    return np.where(wrong, np.nextafter(near, towards), near)


def round_to_tf32(value, mode):
    """tf32 is a float32 with 10 bits of mantissa: rna rounds ties away from zero, rn to even."""
    bits = value.view(U32)
    half = U32.type(0x1000) if mode == "rna" else \
        U32.type(0x0FFF) + ((bits >> U32.type(13)) & U32.type(1))
    if mode == "rz":
        half = U32.type(0)
    rounded = (bits + half) & U32.type(0xFFFFE000)
    return np.where(np.isfinite(value), rounded, bits)


def pack_halves(inst, to, mode, relu):
    """cvt.rn.f16x2.f32 d, a, b: a becomes the upper half, b the lower."""
    half = to.removesuffix("x2")
    high, low = (source(operand, "f32") for operand in inst.operands[1:3])
    write = destination(inst.operands[0], "b32")

    def bits(value):
        value = np.maximum(value, np.float32(0)) if relu else value
        return narrow(value, half, mode).view(U16).astype(U32)

    return lambda wave: write(wave, bits(low(wave)) | (bits(high(wave)) << U32.type(16)))
