"""Data that are volatile, read because of a flag: what a program relies on without a fence.

Two volatile accesses are no race, since flags are made of them. But data are not a flag: who reads
them because a flag has been raised takes it that the writer's store came before the flag, and its
own load after it. Only fences promise that, volatile or not (PTX ISA manual, "Causality Order").

So here is kept, where a kernel has volatile accesses, which thread raised which flag, and which
block has seen it, fenced or not. flags.py knows what the fences have ordered.
"""

from functools import lru_cache
from typing import NamedTuple

from .lanes import WARP
from .stamps import BLOCK_SHIFT, LANE, WARP_SHIFT, WHO, WHO_BITS


class Raising(NamedTuple):
    """A thread's write of a flag. Three stamps: its own, its last warp's and block's barrier."""

    turn: int           # among the flags' events
    who: int
    moment: int
    warp_barrier: int
    block_barrier: int

    def follows(self, stamp):
        """Did its thread, or one that it had met, do this access before?"""
        who = stamp & WHO
        before = self.moment if who == self.who else 0
        if who >> BLOCK_SHIFT == self.who >> BLOCK_SHIFT:
            before = max(before, self.block_barrier)
        if who >> WARP_SHIFT == self.who >> WARP_SHIFT and who & LANE < WARP:
            before = max(before, self.warp_barrier)
        return before > stamp


class Hearsay:
    """Who raised the flags of one launch, and who saw them. A flag: (id of its array, place)."""

    def __init__(self, order):
        self.order = order
        self.turns = 0
        self.raised = {}        # {flag: {block: [Raising]}}
        self.seen = {}          # {block: {flag: turn}}, the last time

    def note(self, told, lanes, places, reads, writes):
        """These lanes look at flags or raise them, or both, one after the other."""
        for lane, place in zip(lanes.tolist(), places.tolist(), strict=True):
            flag = id(told), place
            self.turns += 1
            if reads and flag in self.raised:
                self.seen.setdefault(lane // self.order.threads, {})[flag] = self.turns
            if writes:
                self.raised.setdefault(flag, {}).setdefault(
                    lane // self.order.threads, []).append(self.raising(lane))

    def raising(self, lane):
        order = self.order
        moment = len(order.history) - 1 << WHO_BITS
        return Raising(self.turns, int(order.who[lane]), moment, int(order.warp_barrier[lane]),
                       int(order.block_barrier[lane]))

    def told(self, stamp, lane, own):
        """Has this lane's block seen a flag, other than the places `own` of this access, that was
        raised after this access of another block?"""
        other = (stamp & WHO) >> BLOCK_SHIFT
        if other == lane // self.order.threads:
            return False
        for flag, turn in self.seen.get(lane // self.order.threads, {}).items():
            if flag not in own and any(raising.turn < turn and raising.follows(stamp)
                                       for raising in self.raised[flag].get(other, ())):
                return True
        return False


@lru_cache(64)
def has_volatile(module):
    """Does a program read or write volatile variables?"""
    return any(is_volatile(inst) for function in module.functions.values()
               for inst in function.code)


def is_volatile(inst):
    return inst.opcode in ("ld", "st") and "volatile" in inst.modifiers
