"""Comparisons and choices: setp, set, selp, slct."""

import numpy as np

from ..decode import destination, opcode, source
from ..dtypes import F16, SIZES, U16, U32, UNSIGNED, is_float
from ..ptx import Pair
from ..rounding import bf16_to_f32, flush
from .integer import BITS, INTEGERS

EQUAL = {"eq": np.equal, "ne": np.not_equal}
ORDER = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
UNSIGNED_ORDER = {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}
UNORDERED = {f"{name}u": function for name, function in (EQUAL | ORDER).items()}
NAN_TESTS = {"num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
             "nan": lambda a, b: np.isnan(a) | np.isnan(b)}
COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
FLUSHED = ("f16", "f16x2", "f32")
CHOSEN = (*BITS, *INTEGERS, "f32", "f64")


def comparison(name, ptx_type):
    """-> f(a, b), or None if the type has no such comparison.
    The forms with a u (equ, ltu, ...) also hold if either is NaN, the others do not."""
    if not is_float(ptx_type):
        order = {"b": {}, "s": ORDER, "u": ORDER | UNSIGNED_ORDER}[ptx_type[0]]
        return (EQUAL | order).get(name)
    if name in UNORDERED:
        return lambda a, b: UNORDERED[name](a, b) | np.isnan(a) | np.isnan(b)
    if name == "ne":
        return lambda a, b: (a != b) & ~(np.isnan(a) | np.isnan(b))
    return (EQUAL | ORDER | NAN_TESTS).get(name)


def results_of(ptx_type):
    """The types that `set` can give for a comparison of this type."""
    if ptx_type.endswith("x2"):
        return ptx_type, "u32", "s32"
    if ptx_type in ("f16", "bf16"):
        return ptx_type, "u16", "s16", "u32", "s32"
    return "f32", "f16", "u32", "s32"


@opcode("setp", "set")
def setp(inst, mods):
    """setp p|q: p is the truth of the comparison, q its opposite, or in packed types the truth for
    the upper halves. set gives 1.0 or, as an integer, all ones."""
    name = mods.need(*EQUAL, *ORDER, *UNSIGNED_ORDER, *UNORDERED, *NAN_TESTS)
    combine, ftz = mods.one_of(*COMBINE), mods.flag("ftz")
    wanted = mods.type(*results_of(inst.modifiers[-1])) if inst.opcode == "set" else "pred"
    ptx_type = mods.type(*BITS, *INTEGERS, *FLOATS)
    function, target = comparison(name, ptx_type), inst.operands[0]
    packed, pair = ptx_type.endswith("x2"), isinstance(target, Pair)
    if function is None or (ftz and ptx_type not in FLUSHED):
        mods.refuse()
    if pair and (wanted != "pred" or ptx_type in ("f16", "bf16")):
        mods.refuse()
    if packed and wanted == "pred" and not pair:
        mods.refuse()
    a, b = (source(operand, ptx_type) for operand in inst.operands[1:3])
    c = source(inst.operands[3], "pred") if combine else None
    targets = (target.first, target.second) if pair else (target,)
    writes = [destination(operand, wanted) for operand in targets]

    def truths(wave):
        """[of the value], or [of the low half, of the high half]"""
        x, y = (parts(read(wave), ptx_type, ftz) for read in (a, b))
        bits = [function(*pair) for pair in zip(x, y, strict=True)]
        if wanted == "pred" and pair and not packed:
            bits.append(~bits[0])
        return [COMBINE[combine](truth, c(wave)) for truth in bits] if combine else bits

    def run(wave):
        results = truths(wave)
        if wanted != "pred":
            results = [as_number(results, wanted)]
        for write, result in zip(writes, results, strict=True):
            write(wave, result)
    return run


def parts(value, ptx_type, ftz):
    """A register -> the numbers in it, which numpy can compare."""
    if ptx_type.endswith("x2"):
        halves = (value & U32.type(0xFFFF)).astype(U16), (value >> U32.type(16)).astype(U16)
        return [part for half in halves for part in parts(half, ptx_type[:-2], ftz)]
    if ptx_type == "bf16":
        return [bf16_to_f32(value)]
    value = value.view(F16) if ptx_type == "f16" else value
    return [flush(value) if ftz else value]


def as_number(truths, ptx_type):
    """What `set` gives, as bits."""
    one = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}.get(ptx_type.removesuffix("x2"))
    unsigned, width = UNSIGNED[SIZES[ptx_type]], 8 * SIZES[ptx_type] // len(truths)
    one = (1 << width) - 1 if one is None else one
    low, *high = (np.where(truth, unsigned.type(one << width * i), unsigned.type(0))
                  for i, truth in enumerate(truths))
    return low | high[0] if high else low


@opcode("selp")
def selp(inst, mods):
    """d = p ? a : b"""
    ptx_type = mods.type(*CHOSEN)
    a, b = (source(operand, ptx_type) for operand in inst.operands[1:3])
    p, write = source(inst.operands[3], "pred"), destination(inst.operands[0], ptx_type)
    return lambda wave: write(wave, np.where(p(wave), a(wave), b(wave)))


@opcode("slct")
def slct(inst, mods):
    """d = c >= 0 ? a : b"""
    ftz, ptx_type, condition = mods.flag("ftz"), mods.type(*CHOSEN), mods.type("s32", "f32")
    if ftz and condition != "f32":
        mods.refuse()
    a, b = (source(operand, ptx_type) for operand in inst.operands[1:3])
    c, write = source(inst.operands[3], condition), destination(inst.operands[0], ptx_type)
    read = (lambda wave: flush(c(wave))) if ftz else c
    return lambda wave: write(wave, np.where(read(wave) >= 0, a(wave), b(wave)))
