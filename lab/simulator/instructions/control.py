"""Branches, barriers, calls and the end."""

import re

import numpy as np

from ..decode import (
    BARRIER,
    BRANCH,
    BRANCH_TABLE,
    CALL,
    EXIT,
    MEMORY,
    WARP_SYNC,
    destination,
    opcode,
    source,
)
from ..dtypes import U32
from ..hints import refusal
from ..lanes import Lanes
from ..ptx import Immediate
from ..system_calls import SYSTEM_CALLS


@opcode("bra", kind=BRANCH)
def bra(inst, mods):
    mods.flag("uni")
    return lambda wave: None                                # the scheduler moves the lanes


@opcode("brx", kind=BRANCH_TABLE)
def brx(inst, mods):
    """A switch: jump to the label with this number in a table."""
    if not mods.flag("idx"):
        mods.refuse()
    mods.flag("uni")
    read = source(inst.operands[0], "u32")
    function = inst.function
    targets = [function.labels[name] for name in function.branch_targets[inst.operands[1].name]]

    def run(wave):
        choice = wave.per_lane(read(wave))
        return [(targets[i], Lanes(wave.shape, index=wave.lanes.index[choice == i]))
                for i in np.unique(choice)]
    return run


@opcode("ret", "exit", kind=EXIT)
def ret(inst, mods):
    mods.flag("uni")
    return lambda wave: None


@opcode("trap", kind=MEMORY)
def trap(inst, mods):
    def run(wave):
        raise wave.launch.error(inst, "assert", "the kernel stopped itself with a trap", wave,
                                int(wave.lanes.index[0]))
    return run


@opcode("brkpt", "nanosleep", "pmevent", "griddepcontrol")
def nothing(inst, mods):
    mods.flag("u32", "mask", "launch_dependents", "wait")
    return lambda wave: None


@opcode("membar", "fence", kind=MEMORY)
def fence(inst, mods):
    """Memory here is always in order; the race detector wants to know."""
    mods.flag("sc", "acq_rel", "acquire", "release")
    mods.flag("cta", "gl", "sys", "gpu", "cluster")

    def run(wave):
        if wave.shadow:
            wave.shadow.fence(wave, "cta" in inst.modifiers)
    return run


@opcode("bar", "barrier", kind=BARRIER)
def bar(inst, mods):
    """bar.sync a: wait at barrier a for the block; bar.sync a, n: for n threads; bar.red: and
    combine a predicate; bar.warp.sync mask: wait for lanes of the warp."""
    mods.flag("cta")
    if mods.flag("warp"):
        return warp_barrier(inst, mods)
    action = mods.one_of("sync", "arrive", "red")
    mods.flag("aligned")
    operands = list(inst.operands)
    write = None
    if action == "red":
        how = mods.one_of("popc", "and", "or")
        mods.type()
        write = destination(operands.pop(0), "u32" if how == "popc" else "pred")
        predicate = source(operands.pop(), "pred")
        results = {"popc": lambda yes, total: yes.astype(U32),
                   "and": lambda yes, total: yes == total, "or": lambda yes, total: yes > 0}
        inst.reduction = lambda wave, yes, total: write(wave, results[how](yes, total))
    reads = [source(operand, "u32") for operand in operands]
    inst.simple_barrier = action == "sync" and operands == [Immediate(0, None)]

    def run(wave):
        number, needed = (wave.per_lane(read(wave)).astype(np.int64) for read in
                          (reads + [lambda wave: np.zeros(1, U32)])[:2])
        truth = wave.per_lane(predicate(wave)) if write else False
        return number, needed, truth, action != "arrive"
    return run


def warp_barrier(inst, mods):
    mods.flag("sync")
    inst.kind = WARP_SYNC
    inst.mask = source(inst.operands[0], "u32")

    def run(wave):
        if wave.shadow:
            wave.shadow.warp_barrier_of(wave)
    return run


CALL_OPERANDS = re.compile(
    r"(?:\(([^)]*)\)\s*,\s*)?([\w$%]+)(?:\s*,\s*\(([^)]*)\))?(?:\s*,\s*([\w$]+))?$")


@opcode("call", kind=CALL)
def call(inst, mods):
    """call (result), function, (arguments): the names are .param variables of the caller.
    The function may be an address in a register; lanes with different ones part."""
    mods.flag("uni")
    match = CALL_OPERANDS.match(inst.operands[0])
    results, name, arguments, _ = match.groups()
    results, arguments = ([part.strip() for part in (text or "").split(",") if part.strip()]
                          for text in (results, arguments))
    if name in SYSTEM_CALLS:
        return lambda wave: SYSTEM_CALLS[name](wave, inst, results, arguments)

    def enter(wave, callee, lanes):
        place, variables = wave.frame.local, callee.parameters + callee.results
        operands = arguments + results
        if len(variables) != len(operands):
            raise wave.launch.error(inst, "argument", "this calls a function with other "
                                    f"parameters: `{callee.name}`", wave, int(lanes.index[0]))
        return callee, {v.name: place[n] for v, n in zip(variables, operands, strict=True)}, lanes

    def run(wave):
        callee = wave.launch.module.functions.get(name)
        if callee is None:
            raise wave.launch.error(inst, "unsupported", refusal(name) or
                                    f"the simulator cannot call `{name}`", wave)
        return [enter(wave, callee, wave.lanes)]

    def run_by_address(wave):
        addresses, functions = wave.per_lane(read(wave)), wave.launch.functions_at
        parts = [(functions.get(int(a)), Lanes(wave.shape, index=wave.lanes.index[addresses == a]))
                 for a in np.unique(addresses)]
        for callee, lanes in parts:
            if callee is None:
                raise wave.launch.error(inst, "out_of_bounds", "call by a pointer that is not "
                                        "the address of a function", wave, int(lanes.index[0]),
                                        lanes.count)
        return [enter(wave, callee, lanes) for callee, lanes in parts]

    if len(inst.operands) > 1:
        read = source(inst.operands[1], "u64")
        return run_by_address
    return run
