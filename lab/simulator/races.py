"""The race detector: shadows of shared and global memory that remember what touched them, and when.

Two threads race if both touch a place, at least one writes, and nothing orders them.
Per cell of memory two stamps are kept (stamps.py), of the last write and of the last reads; for
reads the lane may also be "several", and so may the warp and the block.
That is enough: one of them is not me.
Reads that a barrier has made harmless are forgotten when the next one comes.

Most reads are never followed by a write that could harm them: inputs are not written at all, and a
tile in shared memory not before the next barrier.
So reads are only listed, and their cells looked up when a write comes.

Atomics do not race with each other.
In global memory neither do volatile accesses, which flags and locks are made of; and an atomic
against a plain access is a warning there.
In shared memory both are errors, except volatile accesses of two warps: within a warp they are the
old habit of leaving out __syncwarp().
Two threads that write the same value do no harm and are not reported:
many kernels raise a flag that way, and Triton has several threads store one element.
"""

import numpy as np

from .accesses import GlobalAccess, SharedAccess
from .cells import Cells, Values, cell_size, give_cells
from .copies import Copies
from .flags import RELEASES
from .grid_sync import GridWorkspace
from .ordering import Events
from .tile_sync import TileSync


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
                                       f"{access.name(i)}, which was never written")
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
