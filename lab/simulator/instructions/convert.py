"""cvt: from any numeric type to any other.

Between integers it truncates or extends, from float to integer it rounds as its modifier says and
saturates, from integer or wider float to float it rounds once.
"""

import numpy as np

from ..decode import destination, elementwise, opcode, source
from ..dtypes import DTYPES, F16, F32, F64, SIZES, U16, U64, UNSIGNED, is_float
from ..exact import integer_to_f64
from ..rounding import (
    FP8,
    bf16_to_f32,
    canonical,
    f32_to_bf16,
    f32_to_tf32,
    flush,
    fp8_to_f16,
    round_to,
    to_fp8,
)
from .floating import MODES, clamp, widen

INTEGERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")
TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
GREATEST = {"f16": 65504.0, "bf16": (2 - 2.0**-7) * 2.0**127, "e4m3": 448.0, "e5m2": 57344.0}


@opcode("cvt")
def cvt(inst, mods):
    to, frm = inst.modifiers[-2:]
    if to.endswith("x2"):
        return packed_cvt(inst, mods, to, frm)
    to, frm = mods.type(*INTEGERS, *FLOATS, "tf32"), mods.type(*INTEGERS, *FLOATS)
    if "bf16" in (to, frm) and (SIZES[to] == 1 or SIZES[frm] == 1):
        mods.refuse()
    if to == "tf32":
        change = to_tf32(mods, frm)
    elif is_float(to):
        change = (float_to_float if is_float(frm) else integer_to_float)(mods, to, frm)
    else:
        change = (float_to_integer if is_float(frm) else integer_to_integer)(mods, to, frm)
    read, write = (use(operand, kind, wider=True) for use, operand, kind in (
        (source, inst.operands[1], frm), (destination, inst.operands[0], to)))
    return elementwise(inst, change, [read], write)


def take_sat(mods, *types):
    """.sat, which bf16 does not have."""
    return mods.flag("sat") and ("bf16" not in types or mods.refuse())


def take_ftz(mods, *types):
    """.ftz, which is for f32."""
    return mods.flag("ftz") and ("f32" in types or mods.refuse())


# ---- to integers

def integer_to_integer(mods, to, frm):
    own, limits = np.iinfo(DTYPES[frm]), np.iinfo(DTYPES[to])
    if not mods.flag("sat"):
        return lambda value: value.astype(DTYPES[to])
    low, high = max(own.min, limits.min), min(own.max, limits.max)
    if (low, high) == (own.min, own.max):                   # nothing to saturate
        mods.refuse()
    return lambda value: np.clip(value, low, high).astype(DTYPES[to])


def float_to_integer(mods, to, frm):
    """A value out of range goes to the nearest integer there is, so .sat changes nothing.
    NaN gives 0, or, where a double or a 64-bit integer is involved, the integer with only the
    top bit set."""
    whole, ftz = TO_INTEGER[mods.need(*TO_INTEGER)], take_ftz(mods, frm)
    take_sat(mods, frm)
    target, limits = DTYPES[to], np.iinfo(DTYPES[to])
    low, high = float(limits.min), float(limits.max)        # 2^63 and 2^64 for 64-bit integers
    top_bit = limits.min or limits.max // 2 + 1
    of_nan = target.type(top_bit if frm == "f64" or target.itemsize == 8 else 0)

    def change(value):
        value = whole(widen(value, frm, ftz))
        inside = (value > low) & (value < high)
        if inside.all():
            return value.astype(target)
        edge = np.where(value <= low, target.type(limits.min), target.type(limits.max))
        edge = np.where(np.isnan(value), of_nan, edge)
        return np.where(inside, np.where(inside, value, 0).astype(target), edge)
    return change


# ---- to floats

def integer_to_float(mods, to, frm):
    mode = mods.need(*MODES)
    saturate = take_sat(mods, to)
    take_ftz(mods, to)                                      # no integer is subnormal

    def change(value):
        if saturate:
            value = value.clip(0, 1)
        if to == "f64" and SIZES[frm] == 8 and mode != "rn":
            return integer_to_f64(value, mode)
        if mode == "rn" and to in ("f32", "f64"):
            return value.astype(DTYPES[to])                 # numpy rounds once
        exact = odd_double(value)
        return exact if to == "f64" else round_to(exact, to, mode)
    return change


def odd_double(value):
    """Integers -> float64; what is beyond 53 bits goes into one odd bit, see rounding.py."""
    if value.dtype.itemsize < 8:
        return value.astype(F64)
    negative = value < 0
    magnitude = np.where(negative, U64.type(0) - value.view(U64), value.view(U64))
    low = magnitude & U64.type(0x7FF)
    odd = (magnitude - low) | np.where(low != 0, U64.type(0x800), U64.type(0))
    result = np.where(magnitude >> U64.type(53) != 0, odd, magnitude).astype(F64)
    return np.where(negative, -result, result)


def float_to_float(mods, to, frm):
    narrower = SIZES[to] < SIZES[frm] or {to, frm} == {"f16", "bf16"}
    mode = mods.need(*MODES) if narrower else "rn"
    whole = TO_INTEGER.get(mods.one_of(*TO_INTEGER)) if to == frm else None
    ftz, saturate = take_ftz(mods, to, frm), take_sat(mods, to, frm)
    limit = None
    if narrower and frm == "f32" and mode in ("rn", "rz") and not (ftz or saturate):
        limit = take_limit(mods, to)
    if whole is None and to == frm == "bf16":
        mods.refuse()
    if not (whole or ftz or saturate or limit):
        if to == frm:
            return lambda value: value
        if (to, frm, mode) in DIRECT:
            return DIRECT[to, frm, mode]

    def change(value):
        value = widen(value, frm, ftz and frm == "f32")
        value = whole(value) if whole else value
        value = clamp(value) if saturate else value
        value = limit(value) if limit else value
        if to == "f64":
            return value
        result = round_to(value, to, mode)
        return flush(result) if ftz and to == "f32" else result
    return change


DIRECT = {                      # what numpy does by itself
    ("f32", "f16", "rn"): lambda value: canonical(value.astype(F32)),
    ("f16", "f32", "rn"): lambda value: canonical(value.astype(F16)),
    ("f32", "bf16", "rn"): bf16_to_f32, ("bf16", "f32", "rn"): f32_to_bf16,
}


def take_limit(mods, to):
    """.relu and .satfinite -> f(float64), or None if neither is there. relu: negative numbers
    become 0; satfinite: what is too large becomes the greatest number."""
    relu, satfinite = mods.flag("relu"), mods.flag("satfinite")
    if not (relu or satfinite):
        return None
    low = 0.0 if relu else -GREATEST[to]
    high = GREATEST[to] if satfinite else np.inf
    return lambda value: np.where(value <= low, low, np.minimum(value, high))


def to_tf32(mods, frm):
    mode = mods.need("rna", "rn", "rz")
    relu = mode != "rna" and mods.flag("relu")
    if frm != "f32":
        mods.refuse()
    return lambda value: f32_to_tf32(np.where(value <= 0, F32.type(0), value) if relu else value,
                                     mode)


# ---- packed types

def packed_cvt(inst, mods, to, frm):
    """Two numbers into one register: cvt.rn.f16x2.f32 d, a, b makes a the upper half."""
    half, bits = to[:-2], 8 if to[:-2] in FP8 else 16
    if half in ("f16", "bf16") and frm == "f32":
        encode = half_encoder(mods, half)
    elif half in FP8 and frm in ("f32", "f16x2"):
        encode = fp8_encoder(mods, half, frm.removesuffix("x2"))
    elif to == "f16x2" and frm[:-2] in FP8:
        encode = fp8_decoder(mods, frm[:-2])
    else:
        mods.refuse()
    mods.need(to), mods.need(frm)
    reads = [source(operand, frm) for operand in reversed(inst.operands[1:])]
    write, unsigned = destination(inst.operands[0], to), DTYPES[to].type
    if len(reads) != (2 if frm == "f32" else 1):
        mods.refuse()

    def pack(*values):
        low, high = values if frm == "f32" else split(*values)
        low, high = (encode(value).view(U16).astype(unsigned) for value in (low, high))
        return low | (high << unsigned(bits))
    return elementwise(inst, pack, reads, write)


def split(word):
    """A register -> its low and its high half."""
    half = UNSIGNED[word.dtype.itemsize // 2]
    return word.astype(half), (word >> word.dtype.type(8 * half.itemsize)).astype(half)


def half_encoder(mods, half):
    mode, limit = mods.need("rn", "rz"), take_limit(mods, half)
    if mode == "rn" and not limit:
        return DIRECT[half, "f32", "rn"]
    return lambda value: round_to((limit or np.asarray)(widen(value, "f32")), half, mode)


def fp8_encoder(mods, kind, frm):
    mods.need("rn")
    if "satfinite" not in mods.left:
        mods.refuse()
    limit = take_limit(mods, kind)
    return lambda value: to_fp8(limit(widen(value, frm)), kind)


def fp8_decoder(mods, kind):
    mods.need("rn")
    table = fp8_to_f16(kind)
    table = np.where(table <= 0, F16.type(0), table) if mods.flag("relu") else table
    return lambda code: table[code]
