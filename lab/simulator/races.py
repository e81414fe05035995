"""The race detector: shadows of shared and global memory that remember who touched what, and when.

Two threads race if both touch a place, at least one writes, and nothing orders them. Per cell of
memory two stamps are kept (stamps.py), of the last write and of the last reads; for reads the
lane may also be "several", and so may the warp and the block. That is enough: one of them is not
me. Reads that a barrier has made harmless are forgotten when the next one comes.

Most reads are never followed by a write that could harm them: inputs are not written at all, and a
tile in shared memory not before the next barrier. So reads are only listed, and their cells looked
up when a write comes.

Atomics do not race with each other. In global memory neither do volatile accesses, which flags and
locks are made of; and an atomic against a plain access is a warning there. In shared memory both
are errors, except volatile accesses of two warps: within a warp they are the old habit of leaving
out __syncwarp(). Two threads that write the same value do no harm and are not reported:
many kernels raise a flag that way, and Triton has several threads store one element.
"""

from functools import cached_property

import numpy as np

from .cells import Cells, Values, cell_size
from .copies import Copies
from .flags import RELEASES, is_plain, is_strong
from .grid_sync import GridWorkspace
from .lanes import WARP
from .ordering import Events
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
from .tile_sync import TileSync

COLLECTIVE = ("ldmatrix", "wmma")   # the warp accesses memory as one: instructions/collective.py


class Shadow(Events):
    """What a checked wave reports its accesses and barriers to."""

    def __init__(self, wave, order):
        super().__init__(order, wave)
        self.cell = cell_size(wave.launch.module, "shared")
        self.global_cell = cell_size(wave.launch.module, "global")
        self.row = -(-wave.shared.shape[1] // self.cell)            # cells of a block
        self.shared = Cells(wave.shape[0] * self.row, self.cell)
        self.in_flight = None           # what cp.async is copying, see in_flight.py
        self.tiles = TileSync(wave, self)
        self.copies = Copies(self) if wave.launch.keeps_copies else None

    def settle(self):
        """The blocks of the wave have ended."""
        if self.copies:
            self.copies.settle()

    # ---- shared memory

    def load(self, wave, inst, offset, size):
        if self.tiles.holds(offset):
            return
        access = SharedAccess(self, wave, inst, offset, size)
        self.check_landed(access, "read")
        cells = self.shared
        if not cells.complete():
            for place in access.places():
                last = cells.writes[place]
                if not last.all():
                    wave.taint.never_stored(access, int(np.flatnonzero(last == 0)[0]))
        if cells.last_write > self.oldest_barrier:
            for place in access.places():
                access.check(cells.writes[place], "read", "written")
        cells.list(access)

    def store(self, wave, inst, offset, size, memory, index, value, assign):
        """`assign` writes the values, between the checks of earlier accesses and of the winner."""
        if self.tiles.holds(offset):
            return assign()
        if not RELEASES.isdisjoint(inst.modifiers):
            self.release(wave)
        access = SharedAccess(self, wave, inst, offset, size)
        self.check_landed(access, "written")
        self.shared.look_up(self.oldest_barrier)
        self.shared.store(access, Values(wave, memory, index, value), assign,
                          self.shared.last_read > self.oldest_barrier)

    def atomic(self, wave, inst, offset, size):
        if self.tiles.holds(offset):
            return self.tiles.atomic(inst, offset)
        if not RELEASES.isdisjoint(inst.modifiers):
            self.release(wave)
        access = SharedAccess(self, wave, inst, offset, size)
        self.check_landed(access, "changed by an atomic")
        if "exch" not in inst.modifiers:
            for place in access.places():
                last = self.shared.writes[place]
                if not last.all():
                    i = int(np.flatnonzero(last == 0)[0])
                    raise access.error("uninitialised", i, "atomic on "
                                       f"{access.name(i)}, which nobody has written")
        self.shared.look_up(self.oldest_barrier)
        self.shared.atomic(access)

    def check_landed(self, access, verb):
        if self.in_flight:
            self.in_flight.check(access, verb)

    # ---- global memory

    def global_load(self, wave, inst, segment, offset, size):
        if not segment.writable:
            return
        access = GlobalAccess(self, wave, inst, offset, size, segment)
        cells = self.cells(wave, segment)
        if not access.plain:
            self.handshake(wave, False, True)
            self.order.flags.load(*self.flag(access, cells))
        if cells.last_write:
            for place in access.places():
                access.check(cells.writes[place], "read", "written")
        cells.list(access)

    def global_store(self, wave, inst, segment, offset, size, memory, index, value, assign):
        access = GlobalAccess(self, wave, inst, offset, size, segment)
        cells = self.cells(wave, segment)
        if not access.plain:
            self.handshake(wave, True, False)
            self.order.flags.store(*self.flag(access, cells))
        cells.look_up(0)
        cells.store(access, Values(wave, memory, index, value), assign, cells.reads is not None)

    def global_atomic(self, wave, inst, segment, offset, size):
        access = GlobalAccess(self, wave, inst, offset, size, segment)
        cells = self.cells(wave, segment)
        self.handshake(wave, True, True)
        self.order.flags.atomic(*self.flag(access, cells))
        if isinstance(segment, GridWorkspace) and segment.arrive(wave.lanes.count):
            self.order.grid_barrier = self.order.stamp()
        cells.look_up(0)
        cells.atomic(access)

    def flag(self, access, cells):
        return cells.told, access.numbers, access.first_place, access.inst.modifiers

    def cells(self, wave, segment):
        if segment.cells is None:
            give_cells(segment, wave.launch.space.segments, self.global_cell)
        return segment.cells


def give_cells(segment, segments, size):
    """Arguments that share memory share a shadow of cells of this size: an array that is given
    twice, or parts of one that overlap."""
    place = {other: other.bytes.ctypes.data for other in segments}
    start = place[segment]
    end = start + segment.length
    for other in segments:
        first = place[other] - other.first_cell * size
        if other.cells and first <= start and end <= first + len(other.cells.writes) * size and (
                start - first) % size == 0:
            segment.cells = other.cells
            segment.first_cell = (start - first) // size
            return
    group = []
    while more := [other for other in segments if other.cells is None and other not in group
                   and place[other] < end and place[other] + other.length > start
                   and (place[other] - start) % size == 0]:
        group += more
        start = min(place[other] for other in group)
        end = max(place[other] + other.length for other in group)
    cells = Cells(-(-(end - start) // size), size)
    for other in group or [segment]:
        other.cells = cells
        other.first_cell = (place[other] - start) // size


class Access:
    """One instruction's accesses, one entry per lane. Much of it is worked out only if needed."""

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
        """Raise if a recorded access is someone else's and nothing orders it before mine. Lanes
        that write what this cell holds already, as `values` says, are let off."""
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
        if self.between_blocks and not excused.all():
            left = np.flatnonzero(~excused)
            excused[left] = self.order.flags.ordered(stamps[left], self.numbers[lanes[left]])
        shuffled = self.order.met_at_shuffle(stamps, self.numbers[lanes])
        doubtful |= other | handshake | shuffled
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
            return "with only a fence between them, which makes nobody wait"
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

    def again(self):
        """The same access without what has been worked out about it."""
        access = object.__new__(GlobalAccess)
        for name in ("shadow", "wave", "inst", "size", "order", "lanes", "stamp", "raw_offset",
                     "segment"):
            setattr(access, name, getattr(self, name))
        return access

    def name(self, i):
        return self.segment.name_of(int(self.offset[i]))
