"""atom and red: read, change and write in one step that nobody can interrupt.

Lanes that hit the same place take turns, in the order of their numbers. A GPU promises no order, so
sums of floats may differ in the last bits.
"""

import numpy as np

from ..access import place
from ..decode import MEMORY, address, destination, opcode, source
from ..dtypes import DTYPES, F16, F32, SIZES, U16, U32, is_float
from ..ptx import Sink
from ..rounding import bf16_to_f32, f32_to_bf16
from .loads import take_hints, take_space

UFUNCS = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
          "or": np.bitwise_or, "xor": np.bitwise_xor}
OPERATIONS = (*UFUNCS, "exch", "cas", "inc", "dec")


@opcode("atom", "red", kind=MEMORY)
def atom(inst, mods):
    mods.flag("relaxed", "acquire", "release", "acq_rel")
    take_hints(mods)
    space, name = take_space(mods), mods.one_of(*OPERATIONS)
    mods.flag("noftz")
    ptx_type = mods.type()
    if name is None or (is_float(ptx_type) and name not in ("add", "exch")):
        mods.refuse()
    operands = list(inst.operands)
    target = operands.pop(0) if inst.opcode == "atom" else Sink()
    where, write = address(operands[0]), destination(target, ptx_type)
    read = source(operands[1], ptx_type)
    read_second = source(operands[2], ptx_type) if name == "cas" else None
    wanted = not isinstance(target, Sink)
    size = SIZES[ptx_type]

    def run(wave):
        memory, index = place(wave, inst, where(wave), size, space)
        memory = memory.view(DTYPES[ptx_type])
        value = wave.per_lane(read(wave))
        if name == "cas":
            old = compare_and_swap(memory, index, value, wave.per_lane(read_second(wave)))
        elif name in UFUNCS and not wanted and ptx_type[:2] not in ("f1", "bf"):
            UFUNCS[name].at(memory, index, value)
            return
        else:
            old = in_turns(memory, index, value, step_of(name, ptx_type), UFUNCS.get(name))
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
    if ptx_type in ("f16", "bf16"):
        return lambda current, value: add_half(current, value, ptx_type)
    if ptx_type in ("f16x2", "bf16x2"):
        def step(current, value):
            low, high = (add_half((current >> U32.type(s)).astype(U16), (value >> U32.type(s)).astype(
                U16), ptx_type[:-2]).view(U16).astype(U32) for s in (0, 16))
            return low | (high << U32.type(16))
        return step
    return UFUNCS[name]


def add_half(a, b, ptx_type):
    if ptx_type == "bf16":
        return f32_to_bf16(bf16_to_f32(a) + bf16_to_f32(b))
    return (a.view(F16).astype(F32) + b.view(F16).astype(F32)).astype(F16)


def turns(index):
    """-> order (n,) that sorts lanes by place, and each one's turn at its place (n,)."""
    order = np.argsort(index, kind="stable")
    same = index[order]
    first = np.ones(len(same), bool)
    first[1:] = same[1:] != same[:-1]
    start = np.maximum.accumulate(np.where(first, np.arange(len(same)), 0))
    return order, np.arange(len(same)) - start


def in_turns(memory, index, value, step, ufunc):
    """Every lane sees the value that the lanes before it left -> old values (n,)."""
    old = np.empty(len(index), memory.dtype)
    order, turn = turns(index)
    if ufunc is not None and memory.dtype.kind in "iuf" and len(np.unique(index)) == 1 and \
            step is ufunc:
        row = np.concatenate([memory[index[:1]], value]).astype(memory.dtype)
        running = ufunc.accumulate(row, dtype=memory.dtype)  # all lanes hit one place
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
