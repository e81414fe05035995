"""Comparisons and choices: setp, set, selp, slct."""

import numpy as np

from ..decode import destination, opcode, source
from ..dtypes import DTYPES, F16, F32, U16, U32, UNSIGNED, is_float
from ..ptx import Pair
from ..rounding import bf16_to_f32, flush

ORDERED = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
           "gt": np.greater, "ge": np.greater_equal}
UNSIGNED_NAMES = {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}
COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def comparison(name, ptx_type):
    """-> f(a, b). The u forms (equ, ltu, ...) also hold if either is NaN, the others do not."""
    if not is_float(ptx_type):
        return {**ORDERED, **UNSIGNED_NAMES}[name]
    if name == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if name == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    if name in ORDERED:
        function = ORDERED[name]
        if name == "ne":
            return lambda a, b: (a != b) & ~(np.isnan(a) | np.isnan(b))
        return function
    function = ORDERED[name[:-1]]
    return lambda a, b: function(a, b) | np.isnan(a) | np.isnan(b)


def take_comparison(mods):
    names = [*ORDERED, *UNSIGNED_NAMES, "num", "nan", "equ", "neu", "ltu", "leu", "gtu", "geu"]
    return mods.one_of(*[m for m in mods.left if m in names][:1]) or mods.refuse()


@opcode("setp", "set")
def setp(inst, mods):
    name, combine = take_comparison(mods), mods.one_of("and", "or", "xor")
    ftz, wanted = mods.flag("ftz"), mods.type() if inst.opcode == "set" else "pred"
    ptx_type = mods.type()
    if ptx_type.endswith("x2"):
        return packed_comparison(inst, mods, name, combine, wanted, ptx_type)
    function = comparison(name, ptx_type)
    a, b = (source(operand, ptx_type) for operand in inst.operands[1:3])
    c = source(inst.operands[3], "pred") if combine else None
    target = inst.operands[0]
    targets = [target.first, target.second] if isinstance(target, Pair) else [target]
    writes = [destination(operand, wanted) for operand in targets]
    widen = bf16_to_f32 if ptx_type == "bf16" else flush if ftz else None

    def run(wave):
        x, y = a(wave), b(wave)
        if widen:
            x, y = widen(x), widen(y)
        result = function(x, y)
        for i, write in enumerate(writes):
            value = result if i == 0 else ~result
            if combine:
                value = COMBINE[combine](value, c(wave))
            write(wave, value if wanted == "pred" else as_number(value, wanted))
    return run


def as_number(truth, ptx_type):
    """What `set` gives: 1.0 for float types, all ones for integers."""
    dtype = DTYPES[ptx_type]
    if ptx_type == "f32":
        return truth.astype(F32)
    if ptx_type in ("f16", "bf16"):
        return np.where(truth, U16.type(0x3C00 if ptx_type == "f16" else 0x3F80), U16.type(0))
    return np.where(truth, ~UNSIGNED[dtype.itemsize].type(0), UNSIGNED[dtype.itemsize].type(0))


def packed_comparison(inst, mods, name, combine, wanted, ptx_type):
    """Two halves at a time: set gives two halves, setp gives p|q."""
    function = comparison(name, "f32")
    if combine or (inst.opcode == "set" and wanted not in (ptx_type, "u32", "s32", "b32")):
        mods.refuse()
    a, b = (source(operand, ptx_type) for operand in inst.operands[1:3])

    def halves(word):
        parts = (word & U32.type(0xFFFF)).astype(U16), (word >> U32.type(16)).astype(U16)
        return [bf16_to_f32(p) if ptx_type[0] == "b" else p.view(F16).astype(F32) for p in parts]

    if inst.opcode == "setp":
        low, high = (destination(o, "pred") for o in (inst.operands[0].first, inst.operands[0].second))

        def run(wave):
            (x0, x1), (y0, y1) = halves(a(wave)), halves(b(wave))
            low(wave, function(x0, y0))
            high(wave, function(x1, y1))
        return run
    one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(wanted, 0xFFFF)
    write = destination(inst.operands[0], "b32")

    def run(wave):
        (x0, x1), (y0, y1) = halves(a(wave)), halves(b(wave))
        write(wave, np.where(function(x0, y0), U32.type(one), U32.type(0))
              | np.where(function(x1, y1), U32.type(one << 16), U32.type(0)))
    return run


@opcode("selp")
def selp(inst, mods):
    """d = p ? a : b"""
    ptx_type = mods.type()
    a, b = (source(operand, ptx_type) for operand in inst.operands[1:3])
    p, write = source(inst.operands[3], "pred"), destination(inst.operands[0], ptx_type)
    return lambda wave: write(wave, np.where(p(wave), a(wave), b(wave)))


@opcode("slct")
def slct(inst, mods):
    """d = c >= 0 ? a : b"""
    ftz, ptx_type, condition = mods.flag("ftz"), mods.type(), mods.type()
    a, b = (source(operand, ptx_type) for operand in inst.operands[1:3])
    c, write = source(inst.operands[3], condition), destination(inst.operands[0], ptx_type)
    read = (lambda wave: flush(c(wave))) if ftz else c
    return lambda wave: write(wave, np.where(read(wave) >= 0, a(wave), b(wave)))
