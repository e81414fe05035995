"""Which block has seen which flag: what a release and an acquire order between blocks.

A thread that fences and then writes a flag, by an atomic or a volatile store, tells what happened
before its fence.
A thread that reads the flag and then fences knows it too, and at the next barrier so does its
block.
An atomic passes on what the flag told before. (PTX ISA manual, "Release and Acquire Patterns" and
"Causality Order".) Flags in global memory count, and fences and atomics that are not only for a
block.

A View is what happened before whatever comes next: {who: stamp}, as in stamps.py: all that this
thread, warp or block did up to the stamp.
"""

from collections import deque

import numpy as np

from .lanes import WARP
from .stamps import (
    BLOCK_SHIFT,
    IN_BLOCK,
    LANE,
    SEVERAL_BLOCKS,
    SEVERAL_LANES,
    WHO,
    WHO_BITS,
)

STRONG = {"relaxed", "acquire", "release", "acq_rel"}
RELEASES = {"release", "acq_rel"}
ACQUIRES = {"acquire", "acq_rel"}
UNCACHED = {*STRONG, "volatile", "mmio", "cv", "wt"}
VIEWS_JOINED = 20_000   # at most: what is beyond is not known


class View:
    """{who: stamp} of its parents and of its own.
    A chain of a thousand flags shares what it can: the whole is put together when somebody asks,
    the youngest first."""

    def __init__(self, parents, own=None):
        self.parents = parents
        self.own = own or {}
        self.whole = None

    def flat(self):
        """{who: stamp}"""
        if self.whole is None:
            stamps, waiting, done = {}, deque([self]), set()
            while waiting and len(done) < VIEWS_JOINED:
                view = waiting.popleft()
                if id(view) not in done:
                    done.add(id(view))
                    known = view.own if view.whole is None else view.whole
                    for who, stamp in known.items():
                        stamps[who] = max(stamps.get(who, 0), stamp)
                    waiting += view.parents if view.whole is None else ()
            self.whole = stamps
        return self.whole


class Flags:
    """The views of one launch's lanes.
    Where nothing is kept, nothing is known of other blocks."""

    def __init__(self, order):
        self.order = order
        self.blocks = len(order.who) // order.threads
        self.of_block = {}      # {block: View} of all its threads
        self.learnt = {}        # {lane: {id: View}}, since its block's last barrier
        self.read = {}          # {lane: {flag: View}}: what flags told it, since its last fence
        self.at_fence = {}      # {lane: View}, at its last fence; its stamp then, and those of its
        self.fences = np.zeros((3, len(order.who)), np.int64)       # warp's and block's barriers
        self.hearsay = None     # a Hearsay, where the kernel has volatile data

    # ---- events

    def fence(self, lanes):
        """What flags told these lanes counts now, and their flags will tell what was before."""
        self.fences[:, lanes] = self.now(lanes)
        if self.read or self.learnt or self.of_block:
            for lane in lanes.tolist():
                self.learn(lane, self.read.pop(lane, {}))
                self.at_fence[lane] = self.view(lane)

    def barrier(self, blocks):
        """All threads of these blocks meet: what one knows, all know."""
        for lane in [lane for lane in self.learnt if lane // self.order.threads in blocks]:
            block = lane // self.order.threads
            views = [self.of_block.get(block), *self.learnt.pop(lane).values()]
            self.of_block[block] = joined(views)

    def warp_barrier(self, lanes):
        """These lanes of warps meet: what one knows, those of its warp know."""
        known = {}                                          # {warp: {id: View}}
        for lane in lanes.tolist():
            known.setdefault(lane // WARP, {}).update(self.learnt.get(lane, {}))
        for lane in lanes.tolist():
            if known[lane // WARP]:
                self.learnt[lane] = dict(known[lane // WARP])

    def load(self, told, lanes, places, modifiers):
        """These lanes read flags. told: {place: View} of the array"""
        if self.hearsay:
            self.hearsay.note(told, lanes, places, True, False)
        if told and "cta" not in modifiers:
            for i in np.flatnonzero(np.isin(places, list(told))):
                self.see(int(lanes[i]), int(places[i]), told, modifiers)

    def store(self, told, lanes, places, modifiers):
        """These lanes overwrite flags."""
        if self.hearsay:
            self.hearsay.note(told, lanes, places, False, True)
        for i in self.of_interest(told, lanes, places, modifiers):
            told[int(places[i])] = self.message(int(lanes[i]), modifiers)

    def atomic(self, told, lanes, places, modifiers):
        """These lanes change flags, one after the other."""
        if self.hearsay:
            self.hearsay.note(told, lanes, places, True, True)
        for i in self.of_interest(told, lanes, places, modifiers):
            lane, place = int(lanes[i]), int(places[i])
            before = told.get(place)
            message = self.message(lane, modifiers)
            self.see(lane, place, told, modifiers)
            told[place] = joined([before, message])

    # ---- parts

    def now(self, lanes):
        """Stamps: of this moment, of the lanes' last warp barrier, of their last block barrier."""
        order = self.order
        moment = np.full(len(lanes), len(order.history) - 1 << WHO_BITS)
        return moment, order.warp_barrier[lanes], order.block_barrier[lanes]

    def of_interest(self, told, lanes, places, modifiers):
        """Those lanes that write a flag which tells something, or whose own flag does; in order.
        What is only for a block tells others nothing."""
        if "cta" in modifiers:
            return ()
        some = (self.fences[0, lanes] > 0) | (not RELEASES.isdisjoint(modifiers))
        if told:
            some |= np.isin(places, list(told))
        return np.flatnonzero(some)

    def see(self, lane, place, told, modifiers):
        view = told.get(place)
        if view and ACQUIRES.isdisjoint(modifiers):
            self.read.setdefault(lane, {})[id(told), place] = view
        elif view:
            self.learn(lane, {place: view})

    def learn(self, lane, views):
        if views:
            self.learnt.setdefault(lane, {}).update((id(view), view) for view in views.values())

    def view(self, lane):
        return joined([self.of_block.get(lane // self.order.threads),
                       *self.learnt.get(lane, {}).values()])

    def message(self, lane, modifiers):
        """What this lane's flag tells: all before its last fence, or before a release itself."""
        if RELEASES.isdisjoint(modifiers):
            stamps, view = self.fences[:, lane], self.at_fence.get(lane)
        else:
            stamps, view = np.concatenate(self.now(np.array([lane]))), self.view(lane)
        if not stamps[0]:
            return None
        who = int(self.order.who[lane])
        names = who, warp_of(who), who | IN_BLOCK
        return View([view] if view else [], dict(zip(names, stamps.tolist(), strict=True)))

    # ---- questions

    def ordered(self, stamps, lanes):
        """Do these accesses of others happen before what my lanes do next? (k,) bool"""
        if not self.learnt and not self.of_block:
            return np.zeros(len(stamps), bool)
        views = {lane: self.view(lane) for lane in set(lanes.tolist())}
        return np.array([views[lane] is not None and self.knows(views[lane].flat(), stamp)
                         for stamp, lane in zip(stamps.tolist(), lanes.tolist(), strict=True)])

    def missing(self, stamp, lane):
        """What is not there, in words, so that this access of another happens before what my lane
        does next."""
        order, block = self.order, lane // self.order.threads
        unfenced = [view for other, views in self.read.items() if other // order.threads == block
                    for view in views.values()]
        if unfenced and self.knows(joined(unfenced).flat(), stamp):
            return "this block has read a flag that tells of it, but has not fenced since"
        other = (stamp & WHO) >> BLOCK_SHIFT
        if stamp & WHO == SEVERAL_BLOCKS or order.released[other] <= stamp:
            return "only a fence with a flag or a lock can order the two"
        if order.fenced[other] <= stamp:
            return "a flag tells only what a thread did before its last fence, and this came later"
        return "no flag that this block has read tells of it: those that wrote must first meet " \
            "at a barrier, then one of them must fence (for all blocks) and raise the flag"

    def knows(self, known, stamp):
        who = stamp & WHO
        if who == SEVERAL_BLOCKS:
            return all(known.get(block << BLOCK_SHIFT | IN_BLOCK, 0) > stamp
                       for block in range(self.blocks))
        names = [who | IN_BLOCK, warp_of(who)] + ([who] if who & LANE < WARP else [])
        return max(known.get(name, 0) for name in names) > stamp


def joined(views):
    """One View of those that are there; None if none is."""
    views = [view for view in views if view]
    return views[0] if len(views) == 1 else View(views) if views else None


def warp_of(who):
    """All lanes of its warp."""
    return who & ~LANE | SEVERAL_LANES


def is_atomic(inst):
    on_mbarrier = "mbarrier" in (inst.opcode, *inst.modifiers) and "init" not in inst.modifiers
    return inst.opcode in ("atom", "red") or on_mbarrier


def is_strong(inst):
    """An atomic, or a load or store of cuda::atomic: two of these never race."""
    return is_atomic(inst) or not STRONG.isdisjoint(inst.modifiers)


def is_plain(inst):
    """Neither an atomic nor volatile, so that the compiler and the caches may do as they like."""
    return not is_atomic(inst) and UNCACHED.isdisjoint(inst.modifiers)
