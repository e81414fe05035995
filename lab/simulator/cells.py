"""What the race detector knows of one memory: for every few bytes a cell, with the stamps of its
last write and its last reads (stamps.py)."""

from functools import cached_property, lru_cache

import numpy as np

from .dtypes import SIZES
from .stamps import (
    ATOMIC,
    BLOCK_SHIFT,
    IN_BLOCK,
    LANE,
    SEVERAL_BLOCKS,
    SEVERAL_LANES,
    SEVERAL_WARPS,
    WARP_SHIFT,
    WHO,
)

LISTED = 1 << 22            # reads listed at most, 32 MB of them
OVERHEAD = 256              # what listing a load costs, in reads


class Cells:
    """The shadow of one memory: a cell for every few bytes. 0: not touched yet."""

    def __init__(self, count, size):
        self.shift = size.bit_length() - 1
        self.writes = np.zeros(count, np.int64)
        self.reads = None                               # made when there is one to look up
        self.listed = []
        self.amount = 0
        self.last_write = self.last_read = 0            # stamps; last_read of reads looked up
        self.full_at = None                             # last write when complete() last looked
        self.full = False
        self.told = {}                                  # {cell: View}: flags.py

    @cached_property
    def hot(self):
        """Where copies.py looks (bool)."""
        return np.zeros(len(self.writes), bool)

    def complete(self):
        """Has every cell been written?"""
        if not self.full and self.full_at != self.last_write:
            self.full_at, self.full = self.last_write, bool(self.writes.all())
        return self.full

    def forget(self, start, end):
        """These bytes have no owner now: what was done to them does not concern the next one."""
        self.look_up(0)
        part = slice(start >> self.shift, end >> self.shift)
        self.writes[part] = 0
        if self.reads is not None:
            self.reads[part] = 0
        for cell in [cell for cell in self.told if part.start <= cell < part.stop]:
            del self.told[cell]

    # ---- reads

    def list(self, access):
        """Reads beyond a limit are not listed, and later writes to their places are not compared
        with them: the checks are a sample of a large launch anyway."""
        if self.amount < LISTED:
            self.listed.append(access)
            self.amount += access.raw_offset.size + OVERHEAD

    def look_up(self, harmless):
        """Enter the listed reads in their cells, except those older than the stamp `harmless`."""
        for access in self.listed:
            if access.stamp > harmless:
                if self.reads is None:
                    self.reads = np.zeros(len(self.writes), np.int64)
                for place in access.places():
                    remember(self.reads, access, place)
                self.last_read = access.stamp
                if access.shadow.copies and access.between_blocks:
                    access.shadow.copies.keep_read(self, access)
        self.listed = []
        self.amount = 0

    # ---- writes

    def store(self, access, values, assign, has_readers):
        mine = access.stamp | access.who
        for cell, place in enumerate(access.places()):
            access.check(self.writes[place], "written", "written", values, cell)
            if has_readers:
                access.check(self.reads[place], "written", "read", cell=cell)
            self.writes[place] = mine
        self.last_write = access.stamp
        assign()
        for cell, place in enumerate(access.places()):
            winner = self.writes[place]
            beaten = winner != mine
            if beaten.any():
                lost = beaten & access.clash(values, winner, cell)
                access.one_place(np.flatnonzero(lost), winner)

    def atomic(self, access):
        for place in access.places():
            access.check(self.writes[place], "changed by an atomic", "written")
            if self.reads is not None:
                access.check(self.reads[place], "changed by an atomic", "read")
            if access.between_blocks:
                self.writes[place] = access.stamp | (access.who & ~LANE) | ATOMIC
            else:
                remember(self.writes, access, place)        # of other warps too: no race as yet
        self.last_write = access.stamp


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


def remember(stamps, access, place):
    """Merge the lanes of one step with earlier ones that nothing separates from it.

    stamps: of all cells, such as those of their last reads
    """
    who = access.who
    last = stamps[place]
    if last.any():
        live = np.flatnonzero(access.unordered(last))
        live = live[~access.order.handshake(last[live], access.numbers[live])]
        if len(live):
            who = who.copy()
            who[live] = several(last[live] & WHO, who[live])
    mine = access.stamp | who
    stamps[place] = mine                                            # of several lanes one wins
    winner = stamps[place]
    beaten = np.flatnonzero(winner != mine)
    if len(beaten):
        place = place[beaten]
        who = who[beaten]
        winner = winner[beaten] & WHO
        both = several(winner, who)
        for kind in (both & LANE == SEVERAL_LANES, both & IN_BLOCK == SEVERAL_WARPS,
                     both == SEVERAL_BLOCKS):
            stamps[place[kind]] = access.stamp | both[kind]


def several(one, other):
    """Two different `who`, taken together."""
    return np.where(one >> WARP_SHIFT == other >> WARP_SHIFT, other & ~LANE | SEVERAL_LANES,
                    np.where(one >> BLOCK_SHIFT == other >> BLOCK_SHIFT, other | SEVERAL_WARPS,
                             SEVERAL_BLOCKS))


class Values:
    """What a store writes, and what is in its places now."""

    def __init__(self, wave, memory, index, value):
        self.wave = wave
        self.memory = memory
        self.index = index
        self.value = value

    def differ(self, cell, size):
        """Lane by lane, by the bits of one cell of `size` bytes (n,): a wide store may agree with a
        narrow one before it where the two meet."""
        now = self.memory[self.wave.per_lane(self.index)]
        part = np.dtype(f"u{min(size, now.itemsize)}")
        now, mine = (np.ascontiguousarray(x).view(part).reshape(len(now), -1)[:, cell]
                     for x in (now, self.wave.per_lane(self.value)))
        return now != mine


@lru_cache(64)
def cell_size(module, space):
    """Bytes that a cell of the shadow stands for: the narrowest access of the module to the space,
    at most 4. With wider cells two halves in one word would seem to race."""
    elsewhere = {"param", "global", "shared", "local", "const"} - {space}
    sizes = [min((SIZES[m] for m in inst.modifiers if m in SIZES), default=4)
             for function in module.functions.values() for inst in function.code
             if inst.opcode in ("ld", "st", "atom", "red", "wmma")
             and not elsewhere & set(inst.modifiers)]
    return min([4, *sizes])
