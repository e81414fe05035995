"""atom and red: read, change and write in one step that nothing can interrupt.

Lanes that hit the same place take turns, in the order of their numbers.
A GPU promises no order, so sums of floats may differ in the last bits.
"""

import numpy as np

from ..access import place
from ..decode import MEMORY, address, destination, opcode, source
from ..dtypes import DTYPES, SIZES
from ..ptx import Sink
from .floating import arithmetic, packable
from .loads import take_hints, take_space

UFUNCS = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
          "or": np.bitwise_or, "xor": np.bitwise_xor}
HALVES = ("f16", "f16x2", "bf16", "bf16x2")
TYPES = {                       # operation -> its types
    "add": ("u32", "s32", "u64", "f32", "f64", *HALVES), "inc": ("u32",), "dec": ("u32",),
    "exch": ("b32", "b64"), "cas": ("b16", "b32", "b64"),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64")),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
}


@opcode("atom", "red", kind=MEMORY)
def atom(inst, mods):
    mods.flag("relaxed", "acquire", "release", "acq_rel")
    take_hints(mods)
    space, name = take_space(mods), mods.need(*TYPES)
    ptx_type = mods.type(*TYPES[name])
    if mods.flag("noftz") != (ptx_type in HALVES) or (inst.opcode, name) in (
            ("red", "exch"), ("red", "cas")):
        mods.refuse()
    operands = list(inst.operands)
    target = operands.pop(0) if inst.opcode == "atom" else Sink()
    where, write = address(operands[0]), destination(target, ptx_type)
    read = source(operands[1], ptx_type)
    read_second = source(operands[2], ptx_type) if name == "cas" else None
    wanted = not isinstance(target, Sink)
    size = SIZES[ptx_type]

    def run(wave):
        memory, index, space_of = place(wave, inst, where(wave), size, space)
        memory = memory.view(DTYPES[ptx_type])
        value = wave.per_lane(read(wave))
        if name == "cas":
            old = compare_and_swap(memory, index, value, wave.per_lane(read_second(wave)))
        elif ptx_type == "f32" and space_of == "global" and near_zero(memory[index], value):
            old = in_turns(memory, index, value, add_flushed)
        elif name in UFUNCS and not wanted and ptx_type not in HALVES:
            UFUNCS[name].at(memory, index, value)
            return
        else:
            old = in_turns(memory, index, value, step_of(name, ptx_type))
        if wanted:
            write(wave, old if wave.flat else old.reshape(wave.shape))
    return run


def step_of(name, ptx_type):
    """-> f(current, value), arrays to array"""
    if name == "exch":
        return lambda current, value: value
    if name == "inc":                                       # wraps to 0 beyond the limit
        return lambda current, value: np.where(current >= value, 0, current + 1).astype(value.dtype)
    if name == "dec":
        return lambda current, value: np.where((current == 0) | (current > value), value,
                                               current - 1).astype(value.dtype)
    if ptx_type in HALVES:
        base = ptx_type.removesuffix("x2")
        return packable(ptx_type, lambda *values: arithmetic("add", base, values))
    return UFUNCS[name]


def add_flushed(a, b):
    """Global memory adds floats with .ftz, says the PTX ISA manual; shared memory does not."""
    return arithmetic("add", "f32", (a, b), ftz=True)


def near_zero(a, b):
    """May a sum of these be subnormal?
    It is a multiple of the last bit of the smallest number."""
    return any(((x != 0) & (np.abs(x) < 2.0**-102)).any() for x in (a, b))


def turns(index):
    """-> order (n,) that sorts lanes by place, and each one's turn at its place (n,)."""
    order = np.argsort(index, kind="stable")
    same = index[order]
    first = np.ones(len(same), bool)
    first[1:] = same[1:] != same[:-1]
    start = np.maximum.accumulate(np.where(first, np.arange(len(same)), 0))
    return order, np.arange(len(same)) - start


def in_turns(memory, index, value, step):
    """Every lane sees the value that the lanes before it left -> old values (n,)."""
    old = np.empty(len(index), memory.dtype)
    order, turn = turns(index)
    if isinstance(step, np.ufunc) and (index == index[0]).all():
        row = np.concatenate([memory[index[:1]], value]).astype(memory.dtype)
        running = step.accumulate(row, dtype=memory.dtype)  # all lanes hit one place
        memory[index[0]] = running[-1]
        return running[:-1]
    for t in range(int(turn.max()) + 1):
        now = order[turn == t]
        old[now] = memory[index[now]]
        memory[index[now]] = step(old[now], value[now])
    return old


def compare_and_swap(memory, index, expected, new):
    old = np.empty(len(index), memory.dtype)
    order, turn = turns(index)
    for t in range(int(turn.max()) + 1):
        now = order[turn == t]
        old[now] = memory[index[now]]
        memory[index[now]] = np.where(old[now] == expected[now], new[now], old[now])
    return old
