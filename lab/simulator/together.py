"""Lanes of a warp that meet at several instructions of one kind.

Those that a mask names must come to the same kind of instruction with the same mask, and not to the
same one of the program (PTX ISA manual, "shfl.sync", "vote.sync", "bar.warp.sync" and their like):
both branches of an if may have one.
Then one instruction runs for all of them.
Its operands are moved into registers of its own, and its results from there.
"""

from dataclasses import replace

import numpy as np

from .decode import decode
from .lanes import Lanes
from .ptx import Pair, Register


def result_types(inst):
    """Of the results of an instruction that may be met at several places; None of another."""
    return {"shfl": ("b32", "pred"), "match": ("b32", "pred"), "redux": ("b32",),
            "vote": ("b32" if "ballot" in inst.modifiers else "pred",),
            "bar": (), "barrier": ()}.get(inst.opcode)


def operand_types(inst):
    """Of what it reads; the last is its mask."""
    return {"shfl": ("b32", "u32", "u32"), "vote": ("pred",), "bar": (), "barrier": ()}.get(
        inst.opcode, inst.modifiers[-1:]) + ("u32",)


def results(inst):
    """The operands that it writes."""
    if not result_types(inst):
        return []
    target = inst.operands[0]
    return [target.first, target.second] if isinstance(target, Pair) else [target]


def run_together(wave, frame, groups):
    """Run [(instruction, its lanes)] of one kind and one frame as one."""
    wave.enter(frame)
    inst = groups[0][0]
    count = max(len(results(other)) for other, _ in groups)
    answers = own_registers(frame, "result", result_types(inst)[:count])
    values = own_registers(frame, "operand", operand_types(inst))
    for other, lanes in groups:
        for value, operand in zip(values, other.operands[-len(values):], strict=True):
            run(wave, other, lanes, "mov", (value.type,), [value, operand])
    everyone = Lanes(wave.shape, index=np.sort(np.concatenate([own.index for _, own in groups])))
    target = answers if count < 2 else [Pair(*answers)]
    run(wave, inst, everyone, inst.opcode, inst.modifiers, [*target, *values])
    for other, lanes in groups:
        for operand, answer in zip(results(other), answers, strict=False):
            run(wave, other, lanes, "mov", (answer.type,), [operand, answer])
        ran = wave.launch.counts.lanes
        ran[other] = ran.get(other, 0) + lanes.count
    wave.forget(register.name for register in (*answers, *values))


def own_registers(frame, role, types):
    """Registers that no program has."""
    registers = [Register(f"%{role} {i} {kind}", kind) for i, kind in enumerate(types)]
    frame.registers.types.update(registers)
    return registers


def run(wave, like, lanes, opcode, modifiers, operands):
    """Run an instruction of these parts, which stands in the place of another."""
    inst = replace(like, opcode=opcode, modifiers=modifiers, operands=operands, guard=None,
                   dying=(), series=None, elementwise=None)
    decode(inst)
    wave.select(lanes, True)
    if wave.taint:
        wave.taint.run(inst)
    else:
        wave.run(inst)
