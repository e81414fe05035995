"""Which registers an instruction reads and writes."""

from dataclasses import dataclass
from functools import lru_cache

from .ptx import Address, Immediate, Not, Pair, Register, Vector

NO_RESULT = {"st", "red", "bra", "brx", "ret", "exit", "trap", "membar", "fence", "prefetch",
             "prefetchu", "cp", "call", "stmatrix", "nanosleep", "brkpt", "discard"}
LOADS = {"ld", "ldu", "ldmatrix", "wmma"}
STORES = {"st", "stmatrix", "wmma"}
JUMPS = {"bra", "brx", "ret", "exit", "call"}


@dataclass(frozen=True)
class Uses:
    """The registers of an instruction, by their role."""
    reads: tuple                # all but the guard, in the order of the instruction
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
    return Uses(tuple(dict.fromkeys(address + data)), tuple(writes), tuple(address), tuple(data),
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
def unset_registers(function):
    """Registers that may be read before they are written: variables that were not set, on some
    path at least."""
    return frozenset(Flow(function).needed_at_entry())


class Flow:
    """The basic blocks of a function, and what flows through them."""

    def __init__(self, function):
        self.code = code = function.code
        self.false = self.always_false()
        jumps = [inst for inst in code if inst.opcode in JUMPS and inst.opcode != "call"]
        targets = [place for inst in jumps for place in self.targets(function, inst)]
        starts = sorted({0, *targets, *(inst.pc + 1 for inst in jumps)} - {len(code)})
        self.blocks = list(zip(starts, [*starts[1:], len(code)], strict=True))
        number = {start: i for i, start in enumerate(starts)} | {len(code): None}
        self.next = [self.followers(function, last, number) for _, last in self.blocks]
        self.before = [[] for _ in self.blocks]
        for i, following in enumerate(self.next):
            for j in following:
                self.before[j].append(i)

    def always_false(self):
        """Predicates that are set to 0 and to nothing else: the guards of loops that always run."""
        zero = set()
        others = set()
        for inst in self.code:
            if inst.opcode == "mov" and inst.operands[1] == Immediate(0, None):
                zero.update(names(inst.operands[0]))
            elif inst.opcode not in NO_RESULT:
                others.update(uses_of(inst).writes)
        return zero - others

    @staticmethod
    def targets(function, inst):
        """Where an instruction may jump to."""
        labels = ()
        if inst.opcode == "bra":
            labels = (inst.operands[0].name,)
        elif inst.opcode == "brx":
            labels = [label for table in function.branch_targets.values() for label in table]
        return [function.labels[label] for label in labels]

    def followers(self, function, last, number):
        """-> numbers of the blocks that may come after the one that ends at pc `last`."""
        inst = function.code[last - 1]
        never = inst.guard and inst.guard.name in self.false and not inst.guard_negated
        places = [] if never else self.targets(function, inst)
        if inst.guard or inst.opcode not in ("bra", "brx", "ret", "exit", "trap"):
            places.append(last)
        return {number[place] for place in places} - {None}

    def needed_at_entry(self):
        """Registers that an instruction may read and that no earlier one on its path writes."""
        reads = []
        writes = []
        for start, last in self.blocks:
            first = set()
            done = set()
            for inst in self.code[start:last]:
                uses = uses_of(inst)
                guard = [inst.guard.name] if inst.guard else []
                first.update({*uses.reads, *guard} - done)
                if inst.guard is None:
                    done.update(uses.writes)
            reads.append(first)
            writes.append(done)
        needed = [set(first) for first in reads]
        left = set(range(len(reads)))
        while left:
            i = left.pop()
            for j in self.before[i]:
                more = needed[i] - writes[j] - needed[j]
                if more:
                    needed[j] |= more
                    left.add(j)
        return needed[0] if needed else set()

    def forward(self, after):
        """Follow bits that hold on every path: after(inst, bits) -> bits.
        Where a loop ends at its head, it is taken to have run once."""
        through = [[-1, -1] for _ in self.blocks]       # after a block: in its loop, out of it
        loops = [self.loop(i) for i in range(len(self.blocks))]
        changed = True
        while changed:
            changed = False
            for i, (start, last) in enumerate(self.blocks):
                states = []
                for only in (False, True):
                    bits = 0 if i == 0 and not only else -1
                    for j in self.before[i]:
                        if j in loops[i] or not (only and loops[i]):
                            bits &= through[j][i not in loops[j] and bool(loops[j])]
                    for inst in self.code[start:last]:
                        bits = after(inst, bits)
                    states.append(bits)
                changed |= states != through[i]
                through[i] = states

    def loop(self, head):
        """Numbers of the blocks in the loop that begins there; empty if none does."""
        inside = {head}
        left = [j for j in self.before[head] if j >= head]
        if not left:
            return set()
        while left:
            j = left.pop()
            if j not in inside:
                inside.add(j)
                left += self.before[j]
        return inside


@lru_cache(1 << 12)
def last_uses(function):
    """-> {pc: registers that no later instruction needs}. Only those used within one basic block,
    where a lane must pass the first write to reach the other uses; that is nearly all."""
    starts = set(function.labels.values()) | {
        pc + 1 for pc, inst in enumerate(function.code) if inst.opcode in JUMPS}
    block = 0
    homes = {}
    last = {}
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
