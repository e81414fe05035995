"""Data that are volatile, read because of a flag: what a program relies on without a fence.

Two volatile accesses are no race, since flags are made of them.
But data are not a flag: who reads them because a flag has been raised takes it that the writer's
store came before the flag, and its own load after it.
Only fences promise that, volatile or not (PTX ISA manual, "Causality Order").

So here is kept, where a kernel has volatile accesses, which thread raised which flag, and which
block has seen it, fenced or not. flags.py knows what the fences have ordered.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from .lanes import WARP
from .stamps import BLOCK_SHIFT, LANE, WARP_SHIFT, WHO, WHO_BITS


class Raising(NamedTuple):
    """A thread's write of a flag.
    Three stamps: its own, its last warp's and block's barrier."""

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


class Event(NamedTuple):
    """An instruction that looks at flags, or raises them, or both.
    An entry a lane, in order"""

    told: int           # id of the flags' array
    lanes: np.ndarray
    places: np.ndarray
    reads: bool
    moment: int
    barriers: tuple     # two arrays of stamps, as in Raising, if it raises flags


class Hearsay:
    """Who raised the flags of one launch, and who saw them.
    A flag: (id of its array, place).

    Instructions are noted whole, and taken apart when somebody asks: most programs never do.
    """

    def __init__(self, order):
        self.order = order
        self.turns = 0
        self.raised = {}        # {flag: {block: [Raising]}}
        self.seen = {}          # {block: {flag: turn}}, the last time
        self.forget()

    def forget(self):
        self.events = []        # that have not been taken apart
        self.numbers = {}       # {what an instruction does: its place in events, the last time}
        self.looked = self.wrote = -1       # the last place of a read, and of a write

    def note(self, told, lanes, places, reads, writes):
        """These lanes look at flags or raise them, or both."""
        key = id(told), reads, writes, lanes.tobytes(), places.tobytes()
        last = self.numbers.get(key, -1)
        if not writes and last > self.wrote:
            return                                      # a spinning wait: there is nothing new
        order = self.order
        barriers = (order.warp_barrier[lanes], order.block_barrier[lanes]) if writes else ()
        moment = len(order.history) - 1 << WHO_BITS
        event = Event(id(told), lanes, places, reads, moment, barriers)
        if not reads and last > self.looked:
            self.events[last] = event                   # none has looked at the one before
            return
        self.numbers[key] = len(self.events)
        if reads:
            self.looked = len(self.events)
        if writes:
            self.wrote = len(self.events)
        self.events.append(event)

    def take_apart(self):
        for event in self.events:
            for i, lane in enumerate(event.lanes.tolist()):         # one after the other
                self.turns += 1
                block = lane // self.order.threads
                flag = event.told, int(event.places[i])
                if event.reads and flag in self.raised:
                    self.seen.setdefault(block, {})[flag] = self.turns
                if event.barriers:
                    stamps = (int(barrier[i]) for barrier in event.barriers)
                    self.raised.setdefault(flag, {}).setdefault(block, []).append(
                        Raising(self.turns, int(self.order.who[lane]), event.moment, *stamps))
        self.forget()

    def told(self, stamp, lane, own):
        """Has this lane's block seen a flag, other than the places `own` of this access, that was
        raised after this access of another block?"""
        other = (stamp & WHO) >> BLOCK_SHIFT
        if other == lane // self.order.threads:
            return False
        self.take_apart()
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
