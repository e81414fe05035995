"""What a launch did, counted per instruction: steps, requests, sectors, wavefronts, bytes.

These are counts at PTX level. The assembler that makes machine code may still merge or widen
accesses; caches are not modelled.

request    one load or store of one warp
sector     32 bytes of global memory, the unit that travels. A request touches at least as many as
           hold its distinct bytes: the ideal
wavefront  one pass through the 32 banks of shared memory, 4 bytes wide each. Lanes that want
           different words of one bank wait for each other. A request of 8 or 16 bytes a lane is
           served by half or quarter warps, so that it takes 2 or 4 wavefronts at best: the ideal
"""

import numpy as np

from .lanes import WARP

SECTOR = 32
BANKS = 32
BANK_BYTES = 4


class Counts:
    """The counters of one launch."""

    def __init__(self):
        self.warps = {}             # Instruction -> warp instructions issued
        self.lanes = {}             # Instruction -> lanes that ran it
        self.memory = {}            # Instruction -> space -> [requests, transactions, ideal, bytes]
        self.splits = {}            # branch Instruction -> times that its lanes disagreed
        self.patterns = {}          # shared access pattern -> (wavefronts, ideal)

    def add(self, inst, space, requests, transactions, ideal, size):
        row = self.memory.setdefault(inst, {}).setdefault(space, [0, 0, 0, 0])
        row[0] += requests
        row[1] += transactions
        row[2] += ideal
        row[3] += size

    def global_access(self, wave, inst, offset, size):
        """offset: bytes within one segment, (B, T) or a broadcast, or (n,)."""
        lanes = wave.lanes
        if offset.size == 1 or (offset.ndim == 2 and offset.shape[1] == 1):
            warps = lanes.warps                         # all lanes of a warp want one element
            self.add(inst, "global", warps, warps, warps, lanes.count * size)
            return
        table, times = warp_table(wave, offset)
        sectors, ideal = sectors_of(table, size)
        self.add(inst, "global", len(table) * times, sectors * times, ideal * times,
                 lanes.count * size)

    def shared_access(self, wave, inst, offset, size):
        lanes = wave.lanes
        if offset.size == 1 or (offset.ndim == 2 and offset.shape[1] == 1):
            warps = lanes.warps
            phases = warps * max(1, size // BANK_BYTES)
            self.add(inst, "shared", warps, phases, phases, lanes.count * size)
            return
        table, times = warp_table(wave, offset)
        if len(table) <= 64:                            # a small pattern is worth remembering
            start = table.flat[0] & ~(BANKS * BANK_BYTES - 1)
            key = size, table.shape, (table - start).tobytes()
            if key not in self.patterns:
                self.patterns[key] = wavefronts_of(table, size)
            wavefronts, ideal = self.patterns[key]
        else:
            wavefronts, ideal = wavefronts_of(table, size)
        self.add(inst, "shared", len(table) * times, wavefronts * times, ideal * times,
                 lanes.count * size)


def warp_table(wave, offset):
    """-> (warps, 32) offsets, -1 where a lane takes no part, and how many blocks each row stands
    for (more than one where the offsets depend on the thread alone)."""
    if offset.ndim == 2:
        if offset.shape[0] == 1:
            return offset.reshape(-1, WARP), wave.shape[0]
        return np.broadcast_to(offset, wave.shape).reshape(-1, WARP), 1
    lanes = wave.lanes
    warp = lanes.warp_of
    row = np.zeros(len(warp), np.int64)
    row[1:] = np.cumsum(warp[1:] != warp[:-1])
    table = np.full((int(row[-1]) + 1, WARP), -1, np.int64)
    table[row, lanes.index % WARP] = offset
    return table, 1


def sectors_of(table, size):
    """Offsets (warps, 32) -> sectors touched, and the fewest that hold the distinct elements."""
    active = table >= 0
    rising = (table[:, 1:] >= table[:, :-1]).all()
    ordered = table if rising else np.sort(table, axis=1)
    if not rising:
        active = ordered >= 0
    new = np.empty(table.shape, bool)
    new[:, 0] = active[:, 0]
    new[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]) & active[:, 1:]
    distinct = np.count_nonzero(new, axis=1)
    ideal = int(((distinct * size + SECTOR - 1) // SECTOR).sum())
    sector = ordered >> 5
    touched = np.count_nonzero((sector[:, 1:] != sector[:, :-1]) & active[:, 1:])
    return int(touched) + int(np.count_nonzero(active[:, 0])), ideal


def wavefronts_of(table, size):
    """Offsets (warps, 32) -> wavefronts, and the fewest possible."""
    width = max(size, BANK_BYTES)
    group = WARP * BANK_BYTES // width                  # lanes served at a time, and bank groups
    unit = (table // width).reshape(-1, group)
    unit[(table < 0).reshape(-1, group)] = -1
    unit.sort(axis=1)
    new = unit >= 0
    new[:, 1:] &= unit[:, 1:] != unit[:, :-1]
    phase, lane = np.nonzero(new)
    hits = np.bincount(phase * group + unit[phase, lane] % group, minlength=len(unit) * group)
    return int(hits.reshape(-1, group).max(axis=1).sum()), int(np.count_nonzero(unit[:, -1] >= 0))
