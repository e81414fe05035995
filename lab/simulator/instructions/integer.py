"""Integer arithmetic.

numpy wraps around as the hardware does.
C division truncates towards zero, numpy's floors.
"""

import numpy as np

from ..decode import destination, opcode, source
from ..dtypes import DTYPES, S64, SIGNED, SIZES, U32, U64, UNSIGNED, is_float
from ..ptx import Register
from .floating import float_arithmetic

INTEGERS = ("u16", "u32", "u64", "s16", "s32", "s64")
NARROW = ("u16", "u32", "s16", "s32")
WORDS = ("u32", "s32", "u64", "s64")
BITS = ("b16", "b32", "b64")
BINARY = {"add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum}


def sources(inst, ptx_type, first=1):
    return [source(operand, ptx_type) for operand in inst.operands[first:]]


@opcode("add", "sub", "min", "max")
def add(inst, mods):
    if is_float(inst.modifiers[-1]):
        return float_arithmetic(inst, mods)
    ptx_type = mods.type(*INTEGERS)
    if inst.opcode in ("add", "sub"):
        if mods.flag("cc"):
            return with_carry(inst, mods, ptx_type, carry_out=True)
        if ptx_type == "s32" and mods.flag("sat"):
            return saturating(inst)
    function = BINARY[inst.opcode]
    (a, b), write = sources(inst, ptx_type), destination(inst.operands[0], ptx_type)
    return lambda wave: write(wave, function(a(wave), b(wave)))


def saturating(inst):
    """add.sat.s32: clamp to the range instead of wrapping around."""
    function, limits = BINARY[inst.opcode], np.iinfo(DTYPES["s32"])
    (a, b), write = sources(inst, "s32"), destination(inst.operands[0], "s32")

    def run(wave):
        exact = function(a(wave).astype(S64), b(wave).astype(S64))
        write(wave, np.clip(exact, limits.min, limits.max).astype(DTYPES["s32"]))
    return run


# ---- numbers of several words

def carry_flag(inst):
    """The carry bit of the condition code register, one a lane: as a register of the function."""
    inst.function.registers.setdefault("%CC.CF", "pred")
    return Register("%CC.CF", "pred")


@opcode("addc", "subc")
def addc(inst, mods):
    return with_carry(inst, mods, mods.type(*WORDS), carry_out=mods.flag("cc"), carry_in=True)


@opcode("madc")
def madc(inst, mods):
    part, ptx_type = mods.need("lo", "hi"), mods.type(*WORDS)
    return with_carry(inst, mods, ptx_type, mods.flag("cc"), carry_in=True, part=part)


def with_carry(inst, mods, ptx_type, carry_out, carry_in=False, part=None):
    """add, sub, or mad where `part` of the product is given, with the carry from the words below
    and to the words above.
    The manual says that sub leaves its borrow in the flag; NVIDIA's assembler leaves the
    opposite, the carry of a + ~b + 1, which shows if addc follows sub.cc."""
    if ptx_type not in WORDS:
        mods.refuse()
    unsigned, minus = UNSIGNED[SIZES[ptx_type]], inst.opcode in ("sub", "subc")
    *factors, b = sources(inst, ptx_type)
    write = destination(inst.operands[0], ptx_type)
    read_carry, write_carry = (use(carry_flag(inst), "pred") for use in (source, destination))

    def run(wave):
        x = product(*(read(wave) for read in factors), part) if part else factors[0](wave)
        x, y = x.view(unsigned), b(wave).view(unsigned)
        y = ~y if minus else y
        before = read_carry(wave).astype(unsigned) if carry_in else unsigned.type(minus)
        middle = x + y
        result = middle + before
        if carry_out:
            write_carry(wave, (middle < x) | (result < middle))
        write(wave, result)
    return run


@opcode("neg", "abs")
def neg(inst, mods):
    if is_float(inst.modifiers[-1]):
        return float_arithmetic(inst, mods)
    ptx_type = mods.type("s16", "s32", "s64")
    function = {"neg": np.negative, "abs": np.abs}[inst.opcode]
    (a,), write = sources(inst, ptx_type), destination(inst.operands[0], ptx_type)
    return lambda wave: write(wave, function(a(wave)))


def product(a, b, part):
    """lo: the low half of the product, hi: the high half, wide: all of it."""
    dtype = a.dtype
    kinds = SIGNED if dtype.kind == "i" else UNSIGNED
    if part == "lo":
        return a * b
    if dtype.itemsize == 8:
        return high_64(a, b)
    wide = kinds[2 * dtype.itemsize]
    exact = a.astype(wide) * b.astype(wide)
    return exact if part == "wide" else (exact >> wide.type(8 * dtype.itemsize)).astype(dtype)


def high_64(a, b):
    """The upper 64 bits of a 64 x 64 bit product, by 32-bit digits."""
    x, y = a.view(U64), b.view(U64)
    mask, half = U64.type(0xFFFFFFFF), U64.type(32)
    x0, x1, y0, y1 = x & mask, x >> half, y & mask, y >> half
    middle = (x0 * y0 >> half) + (x0 * y1 & mask) + (x1 * y0 & mask)
    high = x1 * y1 + (x0 * y1 >> half) + (x1 * y0 >> half) + (middle >> half)
    if a.dtype.kind == "u":
        return high
    high = high - np.where(a < 0, y, U64.type(0)) - np.where(b < 0, x, U64.type(0))
    return high.view(S64)


@opcode("mul")
def mul(inst, mods):
    if is_float(inst.modifiers[-1]):
        return float_arithmetic(inst, mods)
    part = mods.need("lo", "hi", "wide")
    ptx_type = mods.type(*(NARROW if part == "wide" else INTEGERS))
    a, b = sources(inst, ptx_type)
    write = destination(inst.operands[0], result_type(ptx_type, part))
    return lambda wave: write(wave, product(a(wave), b(wave), part))


def result_type(ptx_type, part):
    return f"{ptx_type[0]}{16 * SIZES[ptx_type]}" if part == "wide" else ptx_type


@opcode("mad")
def mad(inst, mods):
    if is_float(inst.modifiers[-1]):
        return float_arithmetic(inst, mods)
    part = mods.need("lo", "hi", "wide")
    ptx_type = mods.type(*(NARROW if part == "wide" else INTEGERS))
    if part != "wide" and mods.flag("cc"):
        return with_carry(inst, mods, ptx_type, carry_out=True, part=part)
    wide = result_type(ptx_type, part)
    a, b = source(inst.operands[1], ptx_type), source(inst.operands[2], ptx_type)
    c, write = source(inst.operands[3], wide), destination(inst.operands[0], wide)
    return lambda wave: write(wave, product(a(wave), b(wave), part) + c(wave))


@opcode("mul24", "mad24")
def mul24(inst, mods):
    """The product of the low 24 bits, which has 48: lo takes its low 32 bits, hi its high ones."""
    part, ptx_type = mods.need("lo", "hi"), mods.type("u32", "s32")
    a, b, *c = sources(inst, ptx_type)
    write, wide = destination(inst.operands[0], ptx_type), S64 if ptx_type == "s32" else U64
    drop, wanted = wide.type(16 if part == "hi" else 0), DTYPES[ptx_type]

    def run(wave):
        x, y = (low_24(read(wave)).astype(wide) for read in (a, b))
        result = (x * y >> drop).astype(wanted)
        write(wave, result + c[0](wave) if c else result)
    return run


def low_24(value):
    return (value << value.dtype.type(8)) >> value.dtype.type(8)


@opcode("sad")
def sad(inst, mods):
    ptx_type = mods.type(*INTEGERS)
    (a, b, c), write = sources(inst, ptx_type), destination(inst.operands[0], ptx_type)

    def run(wave):
        x, y = a(wave), b(wave)
        write(wave, np.where(x < y, y - x, x - y) + c(wave))
    return run


@opcode("div", "rem")
def div(inst, mods):
    if inst.opcode == "div" and is_float(inst.modifiers[-1]):
        return float_arithmetic(inst, mods)
    ptx_type = mods.type(*INTEGERS)
    (a, b), write = sources(inst, ptx_type), destination(inst.operands[0], ptx_type)
    ones = np.invert(DTYPES[ptx_type].type(0))

    def run(wave):
        x, y = a(wave), b(wave)
        zero = y == 0
        y = np.where(zero, y.dtype.type(1), y)
        remainder = np.fmod(x, y)
        result = remainder if inst.opcode == "rem" else (x - remainder) // y
        if wave.per_lane(zero).any():
            wave.launch.warn(inst, "integer division by zero: its result is unspecified. Here all "
                                   "bits are set, as NVIDIA's assembler has it")
        write(wave, np.where(zero, ones, result))
    return run


@opcode("dp4a", "dp2a")
def dot_product(inst, mods):
    """c plus the dot product of the bytes of a and b (dp4a), or of the halves of a and the low or
    high two bytes of b (dp2a)."""
    parts = [0, 1, 2, 3]
    if inst.opcode == "dp2a":
        parts = [0, 1] if mods.need("lo", "hi") == "lo" else [2, 3]
    size = 4 // len(parts)                                  # bytes of an element of a
    types = [mods.type("u32", "s32") for _ in range(2)]
    kinds = [SIGNED if ptx_type == "s32" else UNSIGNED for ptx_type in types]
    a, b, c = sources(inst, "b32")
    write = destination(inst.operands[0], "b32")

    def run(wave):
        x = items(a(wave), kinds[0][size])
        y = items(b(wave), kinds[1][1])[..., parts]
        write(wave, (x * y).sum(axis=-1).astype(U32) + c(wave))
    return run


@opcode("vabsdiff4")
def vabsdiff4(inst, mods):
    """The absolute differences of four bytes, as bytes or (.add) summed and added to c."""
    _, *types = [mods.type("u32", "s32") for _ in range(3)]
    add = mods.flag("add")
    a, b, c = sources(inst, "b32")
    write = destination(inst.operands[0], "b32")
    kinds = [(SIGNED if ptx_type == "s32" else UNSIGNED)[1] for ptx_type in types]

    def run(wave):
        x, y = a(wave), b(wave)
        difference = np.abs(items(x, kinds[0]) - items(y, kinds[1]))
        if add:
            write(wave, difference.sum(axis=-1).astype(U32) + c(wave))
        else:
            write(wave, difference.astype(np.uint8).view(U32)[..., 0])
    return run


def items(word, dtype):
    """The parts of a 32-bit register, lowest first, as int64 in a last axis of their own."""
    return np.ascontiguousarray(word)[..., None].view(dtype).astype(S64)


@opcode("bmsk")
def bmsk(inst, mods):
    """b one bits from bit a up; .wrap takes both modulo 32, .clamp stops at bit 31."""
    clamp = mods.one_of("clamp", "wrap")
    if clamp is None or mods.type() != "b32":
        mods.refuse()
    a, b = source(inst.operands[1], "u32"), source(inst.operands[2], "u32")
    write = destination(inst.operands[0], "b32")

    def run(wave):
        start, length = a(wave).astype(U64), b(wave).astype(U64)
        if clamp == "wrap":
            start, length = start & U64.type(31), length & U64.type(31)
        start, length = np.minimum(start, U64.type(32)), np.minimum(length, U64.type(32))
        ones = (U64.type(1) << length) - U64.type(1)
        write(wave, (ones << start).astype(U32))
    return run
