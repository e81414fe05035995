"""From an instruction to a Python function that runs it.

Decoding happens once, when an instruction is reached for the first time.
It checks every modifier (an unknown one is an error, never a guess), picks dtypes, and returns
`run(wave)`.
The parts of `run` are readers and writers of registers, which hide how a value is laid out.
"""

from typing import NamedTuple

import numpy as np

from .dtypes import (
    BOOL,
    DTYPES,
    FLOATS,
    SIGNED,
    SIZES,
    U64,
    UNSIGNED,
    is_float,
    is_signed,
)
from .errors import Unsupported
from .hints import refusal
from .ptx import Immediate, Not, Register, Sink, Special, Symbol, Vector

# How the scheduler treats an instruction. ALU: any layout of values. MEMORY: all lanes of the
# wave, or one value per lane. The others move lanes about.
ALU, MEMORY, WARP_SYNC, BRANCH, EXIT, BARRIER, CALL, BRANCH_TABLE = range(8)

TABLE = {}                          # opcode -> (decoder, kind)


def opcode(*names, kind=ALU):
    """Register a decoder: `decoder(inst, mods)` returns `run(wave)`."""
    def register(decoder):
        for name in names:
            TABLE[name] = decoder, kind
        return decoder
    return register


def decode(inst):
    """Fill in inst.run and inst.kind."""
    if inst.opcode not in TABLE:
        raise Unsupported(refusal(inst.text) or
                          f"the simulator lacks the instruction: `{inst.text}`")
    decoder, kind = TABLE[inst.opcode]
    inst.kind = kind                    # a decoder may know better: bar.warp.sync
    mods = Modifiers(inst)
    try:
        run = decoder(inst, mods)
        mods.finish()
    except Unsupported as error:
        raise Unsupported(refusal(inst.text) or f"{error}: `{inst.text}`") from None
    inst.run = run


class Modifiers:
    """The dotted words after an opcode.
    A decoder takes what it knows; the rest is refused."""

    def __init__(self, inst):
        self.inst = inst
        self.left = list(inst.modifiers)

    def flag(self, *words):
        """Take one of the words if it is there -> bool."""
        return self.one_of(*words) is not None

    def one_of(self, *words, default=None):
        for word in words:
            if word in self.left:
                self.left.remove(word)
                return word
        return default

    def need(self, *words):
        """Take one of the words, which must be there."""
        return self.one_of(*words) or self.refuse()

    def type(self, *allowed):
        """Take the first type, such as f32; it must be one of those allowed, if any are given."""
        type_word = next((word for word in self.left if word in SIZES), None)
        return self.need(*[type_word] if type_word in allowed or not allowed else [])

    def finish(self):
        if self.left:
            self.refuse()

    def refuse(self):
        raise Unsupported("the simulator lacks this form of the instruction")


class Elementwise(NamedTuple):
    """What an instruction does to each lane by itself.
    Instructions of the same opcode and modifiers have the same function."""
    function: object                # operands, numpy arrays of any shape -> result
    reads: list                     # of its operands
    write: object


def elementwise(inst, function, reads, write):
    """-> run(wave)"""
    inst.elementwise = Elementwise(function, reads, write)
    return lambda wave: write(wave, function(*[read(wave) for read in reads]))


def source(operand, ptx_type, wider=False):
    """-> read(wave), the value of an operand as an array of the dtype of `ptx_type`. wider: the
    register may be wider than the type, as ld, st and cvt allow; then its low bits count."""
    if isinstance(operand, Register):
        check_width(operand, ptx_type, wider)
        return register_reader(operand.name, SIZES[operand.type], DTYPES[ptx_type])
    if isinstance(operand, Immediate):
        return constant(immediate(operand, ptx_type))
    if isinstance(operand, Special):
        return special_reader(operand.name, DTYPES[ptx_type])
    if isinstance(operand, Symbol):
        if operand.name.startswith("%"):
            raise Unsupported(f"the simulator lacks the special register {operand.name}")
        dtype = DTYPES[ptx_type]
        return lambda wave: np.asarray(wave.symbol(operand)).astype(dtype).reshape(
            (1,) if wave.flat else (1, 1))
    if isinstance(operand, Not):
        read = source(operand.register, ptx_type)
        return lambda wave: ~read(wave)
    if isinstance(operand, Vector):
        return packed(operand, ptx_type)
    raise Unsupported(f"the simulator does not know the operand {operand}")


def check_width(register, ptx_type, wider):
    size = SIZES[register.type]
    wanted = SIZES[ptx_type]
    if (register.type == "pred") != (ptx_type == "pred") or size < wanted or (
            size > wanted and not wider):
        raise Unsupported(f"a value of type .{ptx_type} does not fit the register {register.name}, "
                          f"which is .{register.type}")


def register_reader(name, size, dtype):
    if dtype.itemsize == size:
        def read(wave):
            value = wave.registers[name]
            if value.dtype is not dtype:
                value = value.view(dtype)
            return wave.gather(value) if wave.flat else value
    else:
        bits = UNSIGNED[size]
        unsigned = UNSIGNED[dtype.itemsize]

        def read(wave):
            value = wave.registers[name].view(bits).astype(unsigned).view(dtype)
            return wave.gather(value) if wave.flat else value
    return read


def immediate(operand, ptx_type):
    """-> numpy scalar.
    A float literal is converted to the type of float that is wanted."""
    dtype = DTYPES[ptx_type]
    if dtype == BOOL:
        return np.bool_(operand.bits)
    if operand.size and ptx_type in ("f32", "f64"):
        literal = UNSIGNED[operand.size].type(operand.bits).view(FLOATS[operand.size])
        return literal.astype(dtype)
    if operand.size not in (None, dtype.itemsize) or (operand.size is None and is_float(ptx_type)):
        raise Unsupported(f"PTX has no such literal of type .{ptx_type}")
    bits = operand.bits & (2 ** (8 * dtype.itemsize) - 1)
    return UNSIGNED[dtype.itemsize].type(bits).view(dtype)


def constant(scalar):
    dense = np.array([[scalar]])
    sparse = np.array([scalar])
    dense.setflags(write=False)
    sparse.setflags(write=False)
    return lambda wave: sparse if wave.flat else dense


def special_reader(name, dtype):
    def read(wave):
        value = wave.special(name)
        if value.dtype.itemsize != dtype.itemsize:
            value = value.astype(UNSIGNED[dtype.itemsize])
        return wave.gather(value.view(dtype)) if wave.flat else value.view(dtype)
    return read


def packed(vector, ptx_type):
    """{lo, hi} read as one wide value: the first item holds the low bits."""
    wide = UNSIGNED[SIZES[ptx_type]]
    size = wide.itemsize // len(vector.items)
    readers = [source(item, f"b{8 * size}") for item in vector.items]

    def read(wave):
        value = readers[0](wave).astype(wide)
        for i, part in enumerate(readers[1:], 1):
            value = value | (part(wave).astype(wide) << wide.type(8 * size * i))
        return value.view(DTYPES[ptx_type])
    return read


def destination(operand, ptx_type, wider=False):
    """-> write(wave, value). wider: the register may be wider than the type, as ld and cvt allow;
    the result is extended to it by its own sign."""
    if isinstance(operand, Sink):
        return lambda wave, value: None
    if isinstance(operand, Vector):
        return unpacked(operand, ptx_type)
    if not isinstance(operand, Register):
        raise Unsupported(f"the simulator cannot write to {operand}")
    check_width(operand, ptx_type, wider)
    name = operand.name
    size = SIZES[operand.type]
    if SIZES[ptx_type] == size:
        return lambda wave, value: wave.write(name, value)
    narrow = DTYPES[ptx_type] if is_signed(ptx_type) else UNSIGNED[SIZES[ptx_type]]
    wide = (SIGNED if is_signed(ptx_type) else UNSIGNED)[size]
    return lambda wave, value: wave.write(name, value.view(narrow).astype(wide))


def unpacked(vector, ptx_type):
    wide = UNSIGNED[SIZES[ptx_type]]
    part = UNSIGNED[wide.itemsize // len(vector.items)]
    writers = [destination(item, f"b{8 * part.itemsize}") for item in vector.items]

    def write(wave, value):
        value = value.view(wide)
        for i, writer in enumerate(writers):
            writer(wave, (value >> wide.type(8 * part.itemsize * i)).astype(part))
    return write


def address(operand):
    """[register + offset] -> read(wave), byte addresses as uint64."""
    base = operand.base
    offset = operand.offset
    if isinstance(base, Register) and SIZES[base.type] == 4:         # the 32-bit shared window
        read = source(base, "u32")
        if offset:
            step = np.uint32(offset & 0xFFFFFFFF)
            return lambda wave: (read(wave) + step).astype(U64)
        return lambda wave: read(wave).astype(U64)
    if isinstance(base, Symbol):
        return source(Symbol(base.name, base.offset + offset), "u64")
    read = source(base, "u64")
    if offset:
        step = np.uint64(offset & (2**64 - 1))
        return lambda wave: read(wave) + step
    return read
