"""Integer arithmetic, logic and shifts.

numpy wraps around as the hardware does. C division truncates towards zero, numpy's floors.
"""

import numpy as np

from ..decode import destination, opcode, source
from ..dtypes import DTYPES, S64, SIGNED, SIZES, U32, U64, UNSIGNED, is_float, is_signed
from .floating import float_arithmetic

BINARY = {"add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum}
LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def sources(inst, ptx_type, first=1):
    return [source(operand, ptx_type) for operand in inst.operands[first:]]


@opcode("add", "sub", "min", "max")
def add(inst, mods):
    ptx_type = mods.inst.modifiers[-1]
    if is_float(ptx_type):
        return float_arithmetic(inst, mods)
    ptx_type = mods.type()
    if mods.flag("sat"):
        return saturating(inst, ptx_type)
    function = BINARY[inst.opcode]
    (a, b), write = sources(inst, ptx_type), destination(inst.operands[0], ptx_type)
    return lambda wave: write(wave, function(a(wave), b(wave)))


def saturating(inst, ptx_type):
    """add.sat.s32: clamp to the range instead of wrapping around."""
    function, limits = BINARY[inst.opcode], np.iinfo(DTYPES[ptx_type])
    (a, b), write = sources(inst, ptx_type), destination(inst.operands[0], ptx_type)

    def run(wave):
        exact = function(a(wave).astype(S64), b(wave).astype(S64))
        write(wave, np.clip(exact, limits.min, limits.max).astype(DTYPES[ptx_type]))
    return run


@opcode("neg", "abs")
def neg(inst, mods):
    ptx_type = mods.inst.modifiers[-1]
    if is_float(ptx_type):
        return float_arithmetic(inst, mods)
    ptx_type = mods.type()
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


@opcode("mul", "mul24")
def mul(inst, mods):
    if is_float(mods.inst.modifiers[-1]):
        return float_arithmetic(inst, mods)
    part, ptx_type = mods.one_of("lo", "hi", "wide"), mods.type()
    if inst.opcode == "mul24" and part != "lo":
        mods.refuse()
    (a, b) = sources(inst, ptx_type)
    write = destination(inst.operands[0], result_type(ptx_type, part))
    if inst.opcode == "mul24":
        return lambda wave: write(wave, low_24(a(wave)) * low_24(b(wave)))
    return lambda wave: write(wave, product(a(wave), b(wave), part))


def low_24(value):
    return (value << value.dtype.type(8)) >> value.dtype.type(8)


def result_type(ptx_type, part):
    return f"{ptx_type[0]}{16 * SIZES[ptx_type]}" if part == "wide" else ptx_type


@opcode("mad", "mad24")
def mad(inst, mods):
    if is_float(mods.inst.modifiers[-1]):
        return float_arithmetic(inst, mods)
    part, ptx_type = mods.one_of("lo", "hi", "wide"), mods.type()
    if inst.opcode == "mad24":
        mods.refuse()
    wide = result_type(ptx_type, part)
    a, b = source(inst.operands[1], ptx_type), source(inst.operands[2], ptx_type)
    c, write = source(inst.operands[3], wide), destination(inst.operands[0], wide)
    return lambda wave: write(wave, product(a(wave), b(wave), part) + c(wave))


@opcode("sad")
def sad(inst, mods):
    ptx_type = mods.type()
    (a, b, c), write = sources(inst, ptx_type), destination(inst.operands[0], ptx_type)

    def run(wave):
        x, y = a(wave), b(wave)
        write(wave, np.where(x < y, y - x, x - y) + c(wave))
    return run


@opcode("div", "rem")
def div(inst, mods):
    if is_float(mods.inst.modifiers[-1]):
        return float_arithmetic(inst, mods)
    ptx_type = mods.type()
    (a, b), write = sources(inst, ptx_type), destination(inst.operands[0], ptx_type)

    def run(wave):
        x, y = a(wave), b(wave)
        zero = y == 0
        y = np.where(zero, y.dtype.type(1), y)
        remainder = np.fmod(x, y)
        if inst.opcode == "rem":
            write(wave, np.where(zero, x, remainder))
        else:                                               # by zero: all ones, as the hardware has it
            write(wave, np.where(zero, x.dtype.type(-1) if x.dtype.kind == "i" else ~x.dtype.type(0),
                                 (x - remainder) // y))
    return run


@opcode("and", "or", "xor")
def logic(inst, mods):
    ptx_type, function = mods.type(), LOGIC[inst.opcode]
    (a, b), write = sources(inst, ptx_type), destination(inst.operands[0], ptx_type)
    return lambda wave: write(wave, function(a(wave), b(wave)))


@opcode("not")
def invert(inst, mods):
    ptx_type = mods.type()
    (a,), write = sources(inst, ptx_type), destination(inst.operands[0], ptx_type)
    return lambda wave: write(wave, ~a(wave))


@opcode("cnot")
def cnot(inst, mods):
    ptx_type = mods.type()
    (a,), write = sources(inst, ptx_type), destination(inst.operands[0], ptx_type)
    return lambda wave: write(wave, (a(wave) == 0).astype(DTYPES[ptx_type]))


@opcode("shl", "shr")
def shift(inst, mods):
    """A shift by the width or more gives zero, or the sign."""
    ptx_type = mods.type()
    dtype, bits = DTYPES[ptx_type], 8 * SIZES[ptx_type]
    a, b = source(inst.operands[1], ptx_type), source(inst.operands[2], "u32")
    write = destination(inst.operands[0], ptx_type)
    function = np.left_shift if inst.opcode == "shl" else np.right_shift
    sign = inst.opcode == "shr" and is_signed(ptx_type)

    def run(wave):
        value, amount = a(wave), b(wave)
        result = function(value, np.minimum(amount, U32.type(bits - 1)).astype(dtype))
        if not sign and int(amount.max()) >= bits:
            result = np.where(amount >= bits, dtype.type(0), result)
        write(wave, result)
    return run


@opcode("shf")
def funnel_shift(inst, mods):
    """Shift the pair {b, a} and keep one half: rotations are made of it."""
    left, wrap = mods.one_of("l", "r") == "l", mods.one_of("wrap", "clamp") == "wrap"
    mods.type()
    (low, high, amount), write = sources(inst, "u32"), destination(inst.operands[0], "u32")

    def run(wave):
        pair = low(wave).astype(U64) | (high(wave).astype(U64) << U64.type(32))
        by = amount(wave).astype(U64)
        by = by & U64.type(31) if wrap else np.minimum(by, U64.type(32))
        write(wave, ((pair << by) >> U64.type(32) if left else pair >> by).astype(U32))
    return run


@opcode("lop3")
def lop3(inst, mods):
    """Any logic function of three bits, given as its truth table."""
    mods.type()
    a, b, c = (source(operand, "b32") for operand in inst.operands[1:4])
    table, write = inst.operands[4].bits, destination(inst.operands[0], "b32")

    def run(wave):
        x, y, z = a(wave), b(wave), c(wave)
        result = np.zeros_like(x & y & z)
        for row in range(8):
            if table >> row & 1:
                result |= (x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z)
        write(wave, result)
    return run


@opcode("popc")
def popc(inst, mods):
    (a,), write = sources(inst, mods.type()), destination(inst.operands[0], "u32")
    return lambda wave: write(wave, np.bitwise_count(a(wave)).astype(U32))


def smear(value):
    """Set every bit below the highest one that is set."""
    step = 1
    while step < 8 * value.dtype.itemsize:
        value = value | (value >> value.dtype.type(step))
        step *= 2
    return value


@opcode("clz")
def clz(inst, mods):
    ptx_type = mods.type()
    bits = U32.type(8 * SIZES[ptx_type])
    (a,), write = sources(inst, ptx_type), destination(inst.operands[0], "u32")
    return lambda wave: write(wave, bits - np.bitwise_count(smear(a(wave))).astype(U32))


@opcode("bfind")
def bfind(inst, mods):
    """The place of the highest bit that differs from the sign; -1 if there is none."""
    shiftamt, ptx_type = mods.flag("shiftamt"), mods.type()
    bits = U32.type(8 * SIZES[ptx_type])
    (a,), write = sources(inst, ptx_type), destination(inst.operands[0], "u32")

    def run(wave):
        value = a(wave)
        if is_signed(ptx_type):
            value = np.where(value < 0, ~value, value).view(UNSIGNED[SIZES[ptx_type]])
        top = np.bitwise_count(smear(value)).astype(U32) - U32.type(1)
        none = top == U32.type(0xFFFFFFFF)
        write(wave, np.where(none, top, bits - U32.type(1) - top) if shiftamt else top)
    return run


@opcode("brev")
def brev(inst, mods):
    ptx_type = mods.type()
    dtype = DTYPES[ptx_type]
    (a,), write = sources(inst, ptx_type), destination(inst.operands[0], ptx_type)

    def run(wave):
        value = a(wave).byteswap()
        for step, mask in ((4, 0x0F), (2, 0x33), (1, 0x55)):
            mask = dtype.type(int.from_bytes(bytes([mask] * dtype.itemsize), "little"))
            value = ((value >> dtype.type(step)) & mask) | ((value & mask) << dtype.type(step))
        write(wave, value)
    return run


@opcode("bfe")
def bfe(inst, mods):
    """Extract `length` bits from `start`, sign-extended for s32 and s64."""
    ptx_type = mods.type()
    dtype, bits = DTYPES[ptx_type], 8 * SIZES[ptx_type]
    a = source(inst.operands[1], ptx_type)
    start, length = (source(operand, "u32") for operand in inst.operands[2:4])
    write = destination(inst.operands[0], ptx_type)

    def run(wave):
        value = a(wave)
        first, count = (read(wave).astype(S64) & 0xFF for read in (start, length))
        first, count = np.minimum(first, bits), np.minimum(count, bits)
        # Where the field reaches beyond the top it is filled with the sign, or with zero.
        reach = np.minimum(count, bits - first)
        wide = S64 if is_signed(ptx_type) else U64
        left = (64 - first - reach).astype(wide)
        filled = value.astype(wide) << np.minimum(left, 63)
        result = filled >> np.minimum(64 - reach, 63).astype(wide)
        empty = (reach == 0) & (count > 0)                  # all of it beyond the top
        sign = np.where(value < 0, wide.type(-1), wide.type(0)) if is_signed(ptx_type) else 0
        write(wave, np.where(count == 0, 0, np.where(empty, sign, result)).astype(wide).astype(dtype))
    return run


@opcode("bfi")
def bfi(inst, mods):
    """Insert the low `length` bits of a into b at `start`."""
    ptx_type = mods.type()
    dtype, bits = DTYPES[ptx_type], 8 * SIZES[ptx_type]
    a, b = (source(operand, ptx_type) for operand in inst.operands[1:3])
    start, length = (source(operand, "u32") for operand in inst.operands[3:5])
    write = destination(inst.operands[0], ptx_type)

    def run(wave):
        first, count = (np.minimum(read(wave) & 0xFF, bits) for read in (start, length))
        low = np.where(count >= bits, ~dtype.type(0),
                       (dtype.type(1) << np.minimum(count, bits - 1).astype(dtype)) - dtype.type(1))
        by = np.minimum(first, bits - 1).astype(dtype)
        mask = np.where(first >= bits, dtype.type(0), low << by)
        write(wave, (b(wave) & ~mask) | ((a(wave) << by) & mask))
    return run


@opcode("prmt")
def prmt(inst, mods):
    """Pick four bytes of the eight in {b, a}; bit 3 of a selector repeats the byte's sign."""
    mods.type()
    (a, b, selector), write = sources(inst, "u32"), destination(inst.operands[0], "u32")

    def run(wave):
        pair = a(wave).astype(U64) | (b(wave).astype(U64) << U64.type(32))
        select = selector(wave).astype(U64)
        result = U64.type(0)
        for i in range(4):
            pick = (select >> U64.type(4 * i)) & U64.type(15)
            byte = (pair >> ((pick & U64.type(7)) * U64.type(8))) & U64.type(0xFF)
            signs = np.where(byte & U64.type(0x80), U64.type(0xFF), U64.type(0))
            result = result | (np.where(pick & U64.type(8), signs, byte) << U64.type(8 * i))
        write(wave, result.astype(U32))
    return run


@opcode("dp4a")
def dp4a(inst, mods):
    """Dot product of four bytes with four bytes, added to c."""
    kinds = [{"s32": SIGNED[1], "u32": UNSIGNED[1]}[mods.type()] for _ in range(2)]
    signed = any(kind == SIGNED[1] for kind in kinds)
    a, b = (source(operand, "b32") for operand in inst.operands[1:3])
    c = source(inst.operands[3], "s32" if signed else "u32")
    write = destination(inst.operands[0], "b32")

    def run(wave):
        x, y = (np.ascontiguousarray(read(wave))[..., None].view(kind).astype(S64)
                for read, kind in zip((a, b), kinds))
        write(wave, ((x * y).sum(axis=-1) + c(wave)).astype(U64 if not signed else S64).astype(U32))
    return run
