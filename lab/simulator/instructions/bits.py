"""Logic, shifts and bit fields."""

import numpy as np

from ..decode import destination, opcode, source
from ..dtypes import DTYPES, S64, SIZES, U32, U64, UNSIGNED, is_signed
from .integer import BITS, INTEGERS, WORDS, sources

LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@opcode("and", "or", "xor")
def logic(inst, mods):
    ptx_type, function = mods.type("pred", *BITS), LOGIC[inst.opcode]
    (a, b), write = sources(inst, ptx_type), destination(inst.operands[0], ptx_type)
    return lambda wave: write(wave, function(a(wave), b(wave)))


@opcode("not")
def invert(inst, mods):
    ptx_type = mods.type("pred", *BITS)
    (a,), write = sources(inst, ptx_type), destination(inst.operands[0], ptx_type)
    return lambda wave: write(wave, ~a(wave))


@opcode("cnot")
def cnot(inst, mods):
    ptx_type = mods.type(*BITS)
    (a,), write = sources(inst, ptx_type), destination(inst.operands[0], ptx_type)
    return lambda wave: write(wave, (a(wave) == 0).astype(DTYPES[ptx_type]))


@opcode("shl", "shr")
def shift(inst, mods):
    """A shift by the width or more gives zero, or the sign."""
    ptx_type = mods.type(*BITS, *(INTEGERS if inst.opcode == "shr" else ()))
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
    left, wrap = mods.need("l", "r") == "l", mods.need("wrap", "clamp") == "wrap"
    mods.type("b32")
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
    mods.type("b32")
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
    (a,), write = sources(inst, mods.type("b32", "b64")), destination(inst.operands[0], "u32")
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
    ptx_type = mods.type("b32", "b64")
    bits = U32.type(8 * SIZES[ptx_type])
    (a,), write = sources(inst, ptx_type), destination(inst.operands[0], "u32")
    return lambda wave: write(wave, bits - np.bitwise_count(smear(a(wave))).astype(U32))


@opcode("bfind")
def bfind(inst, mods):
    """The place of the highest bit that differs from the sign; -1 if there is none."""
    shiftamt, ptx_type = mods.flag("shiftamt"), mods.type(*WORDS)
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
    ptx_type = mods.type("b32", "b64")
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
    """Extract `length` bits from `start`.
    Above them comes zero, or for s32 and s64 the field's top bit; bits beyond the end of a count
    as its top bit."""
    ptx_type = mods.type(*WORDS)
    dtype, bits = DTYPES[ptx_type], 8 * SIZES[ptx_type]
    a = source(inst.operands[1], ptx_type)
    start, length = (source(operand, "u32") for operand in inst.operands[2:4])
    write = destination(inst.operands[0], ptx_type)

    def run(wave):
        first, count = (place_in(wave, inst, read(wave), bits).astype(S64)
                        for read in (start, length))
        count = np.minimum(count, bits - np.minimum(first, bits - is_signed(ptx_type)))
        above = (bits - count).clip(0, bits - 1).astype(dtype)      # room above the field
        field = a(wave) >> np.minimum(first, bits - 1).astype(dtype)
        write(wave, np.where(count == 0, dtype.type(0), field << above >> above))
    return run


@opcode("bfi")
def bfi(inst, mods):
    """Insert the low `length` bits of a into b at `start`."""
    ptx_type = mods.type("b32", "b64")
    dtype, bits = DTYPES[ptx_type], 8 * SIZES[ptx_type]
    a, b = (source(operand, ptx_type) for operand in inst.operands[1:3])
    start, length = (source(operand, "u32") for operand in inst.operands[3:5])
    write = destination(inst.operands[0], ptx_type)

    def run(wave):
        first, count = (place_in(wave, inst, read(wave), bits) for read in (start, length))
        low = np.where(count >= bits, ~dtype.type(0),
                       (dtype.type(1) << np.minimum(count, bits - 1).astype(dtype)) - dtype.type(1))
        by = np.minimum(first, bits - 1).astype(dtype)
        mask = np.where(first >= bits, dtype.type(0), low << by)
        write(wave, (b(wave) & ~mask) | ((a(wave) << by) & mask))
    return run


def place_in(wave, inst, value, bits):
    """A bit position or length: its low 8 bits count, says the manual, and at most `bits`.
    In the 64-bit forms NVIDIA's assembler takes them whole."""
    if bits == 64 and wave.per_lane(value > U32.type(0xFF)).any():
        raise wave.launch.error(
            inst, "unsupported", "a bit position or length above 255, where the PTX manual and "
            "NVIDIA's assembler disagree", wave)
    return np.minimum(value & U32.type(0xFF), U32.type(bits))


@opcode("prmt")
def prmt(inst, mods):
    """Pick four bytes of the eight in {b, a}; bit 3 of a selector repeats the byte's sign."""
    mods.type("b32")
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
