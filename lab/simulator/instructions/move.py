"""Moves between registers, and addresses from one window to another."""

from ..decode import destination, opcode, source
from ..dtypes import U64
from ..memory import LOCAL_WINDOW, OFFSET_BITS, SEGMENT_SHIFT, SHARED_WINDOW
from ..ptx import Vector
from .integer import BITS, INTEGERS


@opcode("mov")
def mov(inst, mods):
    ptx_type = mods.type("pred", *BITS, *INTEGERS, "f32", "f64")
    target, value = inst.operands
    if ptx_type not in BITS and any(isinstance(one, Vector) for one in inst.operands):
        mods.refuse()
    write, read = destination(target, ptx_type), source(value, ptx_type)
    return lambda wave: write(wave, read(wave))


@opcode("cvta")
def cvta(inst, mods):
    """Between a generic address, which says by itself what it points to, and one in a window."""
    to = mods.flag("to")
    space, ptx_type = mods.one_of("global", "shared", "local", "const", "param"), mods.type()
    mods.flag("cta")
    read, write = source(inst.operands[1], ptx_type), destination(inst.operands[0], ptx_type)
    if space in ("global", "const", "param"):               # their addresses are generic already
        return lambda wave: write(wave, read(wave))
    number = SHARED_WINDOW if space == "shared" else LOCAL_WINDOW
    base, offset = U64.type(number << SEGMENT_SHIFT), U64.type(OFFSET_BITS)
    if to:
        return lambda wave: write(wave, read(wave) & offset)
    return lambda wave: write(wave, read(wave) | base)


@opcode("isspacep")
def isspacep(inst, mods):
    space = mods.one_of("global", "shared", "local", "const")
    mods.flag("cta")
    read, write = source(inst.operands[1], "u64"), destination(inst.operands[0], "pred")

    def run(wave):
        number = read(wave) >> U64.type(SEGMENT_SHIFT)
        shared, local = number == SHARED_WINDOW, number == LOCAL_WINDOW
        write(wave, {"shared": shared, "local": local, "const": shared & local,
                     "global": ~(shared | local)}[space])
    return run

