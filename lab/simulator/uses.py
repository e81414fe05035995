"""Which registers an instruction reads and writes."""

from dataclasses import dataclass
from functools import lru_cache

from .ptx import Address, Not, Pair, Register, Vector

NO_RESULT = {"st", "red", "bra", "brx", "ret", "exit", "trap", "membar", "fence", "prefetch",
             "prefetchu", "cp", "call", "stmatrix", "nanosleep", "brkpt", "discard"}
LOADS = {"ld", "ldu", "ldmatrix", "wmma"}
STORES = {"st", "stmatrix", "wmma"}
JUMPS = {"bra", "brx", "ret", "exit", "call"}


@dataclass(frozen=True)
class Uses:
    """The registers of an instruction, by what they are to it."""
    reads: frozenset            # all but the guard
    writes: tuple
    address: tuple
    data: tuple
    everything: frozenset
    loads: bool                 # perhaps from shared or local memory
    stores: bool


@lru_cache(1 << 16)
def uses_of(inst):
    operands = list(inst.operands) if inst.opcode != "call" else inst.operands[1:]
    stores = inst.opcode in STORES and (inst.opcode != "wmma" or "store" in inst.modifiers)
    loads = inst.opcode in LOADS and not stores and "mma" not in inst.modifiers and not (
        {"global", "const"} & set(inst.modifiers))
    no_result = inst.opcode in NO_RESULT or stores or (
        inst.opcode in ("bar", "barrier") and "red" not in inst.modifiers)
    no_result = no_result or not operands or isinstance(operands[0], Address)
    result = [] if no_result else [operands.pop(0)]
    address = [n for o in operands if isinstance(o, Address) for n in names(o)]
    data = [n for o in operands if not isinstance(o, Address) for n in names(o)]
    writes = [n for o in result for n in names(o)]
    guard = [inst.guard.name] if inst.guard else []
    return Uses(frozenset(address + data), tuple(writes), tuple(address), tuple(data),
                frozenset(address + data + writes + guard), loads, stores)


def names(operand):
    """The registers in an operand."""
    if isinstance(operand, Register):
        return [operand.name]
    if isinstance(operand, Not):
        return [operand.register.name]
    if isinstance(operand, Address):
        return names(operand.base)
    if isinstance(operand, Vector):
        return [n for item in operand.items for n in names(item)]
    if isinstance(operand, Pair):
        return names(operand.first) + names(operand.second)
    return []


@lru_cache(1 << 12)
def never_written(function):
    """Registers that an instruction reads and none writes: variables that were never set."""
    uses = [uses_of(inst) for inst in function.code]
    return frozenset(n for u in uses for n in u.everything) - {n for u in uses for n in u.writes}


@lru_cache(1 << 12)
def last_uses(function):
    """-> {pc: registers that no later instruction needs}. Only those that serve within one basic
    block, where a lane must pass their first write to come to the others; that is nearly all."""
    starts = set(function.labels.values()) | {
        pc + 1 for pc, inst in enumerate(function.code) if inst.opcode in JUMPS}
    block, homes, last = 0, {}, {}
    for pc, inst in enumerate(function.code):
        block = pc if pc in starts else block
        uses = uses_of(inst)
        for name in uses.everything:
            if name not in homes:
                set_here = inst.guard is None and name in uses.writes and name not in uses.reads
                homes[name] = block if set_here else None
            elif homes[name] != block:
                homes[name] = None
            last[name] = pc
    dying = {}
    for name, pc in last.items():
        if homes[name] is not None:
            dying.setdefault(pc, []).append(name)
    return dying
