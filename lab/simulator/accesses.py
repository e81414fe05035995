"""What the race detector knows of one instruction's accesses, and how it judges them: which of them
nothing orders, whether that matters, and what it says of it."""

from functools import cached_property

import numpy as np

from .flags import is_atomic, is_plain, is_strong
from .hearsay import is_volatile
from .lanes import WARP
from .stamps import (
    ATOMIC,
    BLOCK_SHIFT,
    IN_BLOCK,
    LANE,
    MOST_BLOCKS,
    SEVERAL_BLOCKS,
    SEVERAL_LANES,
    SEVERAL_WARPS,
    WARP_SHIFT,
    WHO,
    WHO_BITS,
)

COLLECTIVE = ("ldmatrix", "wmma")   # the warp accesses memory as one: instructions/collective.py


class Access:
    """One instruction's accesses, one entry per lane.
    Much of it is worked out only if needed."""

    between_blocks = False

    def __init__(self, shadow, wave, inst, offset, size):
        self.shadow, self.wave, self.inst, self.size = shadow, wave, inst, size
        self.order, self.lanes = shadow.order, wave.lanes
        self.stamp = self.order.stamp(inst)
        if not self.plain:
            self.order.flagged[shadow.blocks(wave)] = self.stamp    # perhaps it sees a flag
        self.raw_offset = offset
        if shadow.copies:
            shadow.copies.act(self)

    @cached_property
    def offset(self):
        """Bytes (n,)"""
        offset, lanes = self.raw_offset, self.lanes
        if offset.ndim == 1:
            return np.broadcast_to(offset, (lanes.count,))
        offset = np.broadcast_to(offset, lanes.shape).reshape(-1)
        return offset if lanes.whole else offset[lanes.index]

    @cached_property
    def place_in_order(self):
        return self.shadow.lanes(self.lanes)

    @cached_property
    def numbers(self):
        """Each lane's number in the launch (n,)."""
        start = self.shadow.start
        return np.arange(start, start + self.lanes.size) if self.lanes.whole \
            else start + self.lanes.index

    @cached_property
    def who(self):
        who = self.order.who[self.place_in_order]
        return who & ~LANE | SEVERAL_LANES if self.inst.opcode in COLLECTIVE else who

    @property
    def plain(self):
        return is_plain(self.inst)

    def places(self):
        """-> for each cell of the access, its number for every lane (n,)."""
        first = self.first_place
        cell = self.cell
        for i in range(max(1, self.size // cell)):
            yield first + i if i else first

    # ---- judgement

    def unordered(self, last):
        """Which of these stamps are someone else's and nothing orders them before mine? (n,)"""
        other, place = last & WHO, self.place_in_order
        barrier = np.where(other >> WARP_SHIFT == self.who >> WARP_SHIFT,
                           self.order.warp_barrier[place], self.order.block_barrier[place])
        if self.between_blocks:
            barrier = np.where(other >> BLOCK_SHIFT == self.who >> BLOCK_SHIFT, barrier,
                               self.order.grid_barrier)
        return (last > barrier) & (other != self.who)

    def check(self, last, mine, theirs, values=None, cell=0):
        """Raise if a recorded access is someone else's and nothing orders it before mine.
        Lanes that write what this cell holds already, as `values` says, are let off."""
        if not last.any():
            return
        hazard = self.unordered(last)
        if values is not None and hazard.any():
            hazard &= self.clash(values, last, cell)
        if hazard.any():
            self.judge(np.flatnonzero(hazard), last, mine, theirs, cell)

    def clash(self, values, theirs, cell):
        """Where two threads have written a place: do they differ, and does it matter? (n,) A block
        of a Triton kernel keeps copies of a value, which may differ in the last bit."""
        differ = values.differ(cell, self.cell)
        if self.wave.launch.keeps_copies:
            differ &= ~self.copies_of_one(theirs)
        return differ

    def copies_of_one(self, theirs):
        """Do these stamps and mine stand for copies of one value of a Triton program? (n,)"""
        return theirs >> BLOCK_SHIFT & MOST_BLOCKS == self.who >> BLOCK_SHIFT

    def judge(self, lanes, last, mine, theirs, cell):
        """Lanes with an unordered access: no race, a warning or an error?"""
        stamps = last[lanes]
        apart = (stamps ^ self.who[lanes]) & WHO
        excused, doubtful = np.zeros((2, len(lanes)), bool)
        for step in np.unique(stamps >> WHO_BITS):
            here = stamps >> WHO_BITS == step
            excused[here], doubtful[here] = self.verdict(self.order.history[step], apart[here])
        same, other = self.order.met_at_named(stamps, self.numbers[lanes])
        handshake = self.order.handshake(stamps, self.numbers[lanes])
        excused |= same | (doubtful & handshake & self.between_blocks)
        relied = self.relied_on(lanes, last, mine, theirs)
        excused &= ~relied
        if self.between_blocks and not excused.all():
            left = np.flatnonzero(~excused)
            excused[left] = self.order.flags.ordered(stamps[left], self.numbers[lanes[left]])
        shuffled = self.order.met_at_shuffle(stamps, self.numbers[lanes])
        doubtful |= other | handshake | shuffled | relied
        excused |= self.copied(lanes, stamps, ~excused & (apart >> BLOCK_SHIFT == 0), mine, theirs,
                               cell)
        self.tell(lanes[~excused & ~doubtful], lanes[~excused & doubtful], last, lanes[shuffled],
                  mine, theirs)

    def tell(self, raced, doubtful, last, shuffled, mine, theirs):
        """Raise for the first lane that raced, else warn for the first doubtful one."""
        for lanes in (raced, doubtful):
            if not len(lanes):
                continue
            i = int(lanes[0])
            text = self.describe(i, int(last[i]), mine, theirs)
            if lanes is raced:
                raise self.error("race", i, f"race: {text}, {self.missing_order(i, int(last[i]))}")
            why = "a shuffle makes the lanes meet but promises no order of memory; " \
                "__syncwarp() does" if i in shuffled else \
                self.order.flags.missing(int(last[i]), int(self.numbers[i]))
            self.wave.launch.warn(self.inst, f"ordering not proven: {text}; {why}")

    def one_place(self, losers, winners):
        """Lanes of one instruction wrote different values to one place."""
        if len(losers) and self.plain_or_shared:
            i = int(losers[0])
            line = f" of line {self.inst.location.line}" if self.inst.location else ""
            raise self.error(
                "race", i, f"race: {self.name_of(int(winners[i]) & WHO)} and this thread write "
                f"different values to {self.name(i)} in the same instruction{line}")

    # ---- words

    def describe(self, i, last, mine, theirs):
        location = self.order.inst(last).location
        line = f"in line {location.line}" if location else "before"
        return f"{self.name(i)} is {mine} here and {theirs} {line} by {self.name_of(last & WHO)}"

    def missing_order(self, i, last):
        other = last & WHO
        if other != SEVERAL_BLOCKS and self.order.fenced[other >> BLOCK_SHIFT] > last:
            return "with only a fence between them, which makes no thread wait"
        if other >> BLOCK_SHIFT != int(self.who[i]) >> BLOCK_SHIFT:
            return "and nothing orders two blocks of a launch"
        warp = " or __syncwarp()" if other >> WARP_SHIFT == int(self.who[i]) >> WARP_SHIFT else ""
        return f"with no __syncthreads(){warp} between them that both reach"

    def lane(self, i):
        """Number of the lane within the wave."""
        return int(i) if self.lanes.whole else int(self.lanes.index[i])

    def name_of(self, who):
        if who == SEVERAL_BLOCKS:
            return "threads of several blocks"
        launch = self.wave.launch
        block = ""
        if self.between_blocks:
            block = f" of block {launch.checked_block(who >> BLOCK_SHIFT)}"
        warp, lane = who >> WARP_SHIFT & LANE, who & LANE
        if who & IN_BLOCK == SEVERAL_WARPS:
            return f"several warps{block}"
        if lane == ATOMIC:
            return f"an atomic of warp {warp}{block}"
        if lane == SEVERAL_LANES:
            return f"several threads of warp {warp}{block}"
        return f"thread {self.wave.thread_of(warp * WARP + lane)}{block}"

    def error(self, kind, i, message):
        return self.wave.launch.error(self.inst, kind, message, self.wave, self.lane(i))


class SharedAccess(Access):
    plain_or_shared = True

    def copied(self, *_):
        return False

    def relied_on(self, lanes, *_):
        return np.zeros(len(lanes), bool)

    @property
    def cell(self):
        return self.shadow.cell

    @cached_property
    def first_place(self):
        block = np.repeat(np.arange(self.lanes.shape[0]), self.lanes.shape[1]) \
            if self.lanes.whole else self.lanes.blocks
        return block * self.shadow.row + (self.offset >> self.shadow.shared.shift)

    def verdict(self, theirs, apart):
        """-> (excused, doubtful), by the two instructions and how far the threads are apart."""
        volatile = not is_plain(theirs) and not is_plain(self.inst)
        return is_strong(theirs) and is_strong(self.inst), volatile & (apart >> WARP_SHIFT != 0)

    def name(self, i):
        return self.wave.launch.shared_name(int(self.offset[i]), self.size)


class GlobalAccess(Access):
    between_blocks = True

    def __init__(self, shadow, wave, inst, offset, size, segment):
        super().__init__(shadow, wave, inst, offset, size)
        self.segment = segment

    @property
    def cell(self):
        return self.shadow.global_cell

    @property
    def plain_or_shared(self):
        return self.plain

    @cached_property
    def first_place(self):
        return (self.offset >> self.segment.cells.shift) + self.segment.first_cell

    def copies_of_one(self, theirs):
        """Whole numbers have no last bit: two that one line of a program writes to one place are
        two values."""
        copies = super().copies_of_one(theirs)
        if self.segment.element.startswith(("int", "uint")):
            steps, which = np.unique(theirs >> WHO_BITS, return_inverse=True)
            copies &= ~np.array([self.same_line(step) for step in steps])[which]
        return copies

    def same_line(self, step):
        """Is this step a store of the line that I am in?"""
        inst = self.order.history[step]
        return inst is not None and inst.location == self.inst.location

    def verdict(self, theirs, apart):
        plain = self.plain, is_plain(theirs)
        return not any(plain), not all(plain)

    def copied(self, lanes, stamps, within, mine, theirs, cell):
        """Are these a Triton program's own reads and writes, which copies.py judges? (k,)"""
        copies = self.shadow.copies
        if not copies or {mine, theirs} != {"read", "written"} or not within.any():
            return False
        if mine == "read":
            copies.read(self, lanes[within], stamps[within])
        else:
            copies.written(self, lanes[within], cell)
        return within

    def relied_on(self, lanes, last, mine, theirs):
        """Do these lanes read volatile data because a flag was raised, see hearsay.py? (k,)"""
        hearsay = self.order.flags.hearsay
        if not hearsay or (mine, theirs) != ("read", "written"):
            return np.zeros(len(lanes), bool)
        return np.array([self.volatile_with(last[i]) and hearsay.told(
            int(last[i]), int(self.numbers[i]), self.flags_of(i)) for i in lanes.tolist()])

    def volatile_with(self, stamp):
        writer = self.order.inst(stamp)
        return not is_atomic(writer) and (is_volatile(writer) or is_volatile(self.inst))

    def flags_of(self, i):
        """As which flags hearsay.py would know what this lane accesses."""
        first = int(self.first_place[i])
        return [(id(self.segment.cells.told), first + k)
                for k in range(max(1, self.size // self.cell))]

    def again(self):
        """The same access without what has been worked out about it."""
        access = object.__new__(GlobalAccess)
        for name in ("shadow", "wave", "inst", "size", "order", "lanes", "stamp", "raw_offset",
                     "segment"):
            setattr(access, name, getattr(self, name))
        return access

    def name(self, i):
        return self.segment.name_of(int(self.offset[i]))
