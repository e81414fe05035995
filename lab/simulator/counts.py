"""What a launch did, counted per instruction: steps, requests, sectors, wavefronts, bytes.

These are counts at PTX level.
The assembler that makes machine code may still merge or widen accesses; caches are not modelled.

request    one load or store of one warp, even if its lanes point into several arrays
sector     32 bytes of global memory, the unit that travels.
           A request touches at least as many as hold its distinct bytes: the ideal
wavefront  one pass through the 32 banks of shared memory, 4 bytes wide each.
           Lanes that want different words of one bank wait for each other.
           A request of 8 or 16 bytes a lane is served by half or quarter warps, so that it takes 2
           or 4 wavefronts at best: the ideal
word       of constant memory, which serves one address at a time: all lanes at one is the ideal
distinct   bytes of a request, each counted once: lanes that read the same element share it

Lanes whose atomics hit one word take turns on a GPU.
These turns are not counted: how far the hardware merges them is not documented.

Local memory lies in global memory, dealt out so that word i of all lanes of a warp is one piece
of 128 bytes (CUDA Programming Guide, "Local Memory"): lanes that agree on i touch 4 sectors.
"""

from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from .lanes import WARP
from .remembered import Remembered

SECTOR = 32
BANKS = 32
BANK_BYTES = 4
REMEMBERED = 64             # instructions whose offsets are kept, at half a megabyte each
SMALL = 64                  # warps of a pattern that is remembered, at 16 kilobytes

patterns = Remembered(1024)  # of all launches: small pattern -> transactions, the fewest possible


class Request(NamedTuple):
    """One request: what each lane of a warp asked for."""
    space: str
    size: int                   # bytes a lane
    warp: int                   # number within its block
    block: tuple
    lanes: dict                 # lane -> (array, byte offset); the offset counts from a boundary of
                                # 32 bytes, so that // 32 is the sector


class Counts:
    """The counters of one launch."""

    def __init__(self):
        self.warps = {}             # Instruction -> warp instructions issued
        self.lanes = {}             # Instruction -> lanes that ran it
        self.memory = {}            # Instruction -> space -> the numbers of MemoryCounts
        self.first = {}             # Instruction, space -> what makes its first Request
        self.splits = {}            # branch Instruction -> times that its lanes disagreed
        self.divergent = {}         # branch Instruction -> warps whose own lanes disagreed
        self.earlier = {}           # Instruction -> (offsets it had in all lanes, their counts)
        self.parts = None           # of a request that is being put together
        self.timeline = None        # of the first block
        self.busiest = 0            # instructions of the warp that runs the most
        self.waits = [0, 0, 0]      # for cp.async groups, of one lane each; the lanes that waited;
                                    # bytes of theirs still on their way afterwards, summed

    def add(self, wave, inst, space, offset, size, numbers, name=""):
        """numbers: requests, transactions, ideal, distinct bytes"""
        spaces = self.memory.setdefault(inst, {})
        if space not in spaces:
            spaces[space] = [0] * 5
            index, place = first_warp(wave.lanes.index, wave.per_lane(offset))
            self.first[inst, space] = request(wave, space, size, index, place, [name] * len(index))
        row = spaces[space]
        for i, number in enumerate(numbers):
            row[i] += number
        row[4] += wave.lanes.count * size

    def global_access(self, wave, inst, offset, size, segment):
        """offset: bytes within the segment, (B, T) or a broadcast, or (n,)."""
        lanes = wave.lanes
        if segment.skew % SECTOR:
            offset = offset + segment.skew % SECTOR
        if self.parts is not None:
            self.parts.append((lanes, wave.per_lane(offset), size, segment))
            return
        self.count_global(wave, inst, offset, size, segment)

    def count_global(self, wave, inst, offset, size, segment):
        space = space_of(inst)
        if offset.size == 1 or (offset.ndim == 2 and offset.shape[1] == 1):
            warps = wave.lanes.warps                    # all lanes of a warp want one element
            self.add(wave, inst, space, offset, size, (warps, warps, warps, warps * size),
                     segment.name)
            return
        whole = offset.shape == wave.shape
        before, numbers = self.earlier.get(inst, (None, None))
        if before is None or not whole or not same_sectors(offset, before):
            numbers = offset.ndim == 1 and space == "global" and \
                in_order(wave.lanes.warp_of, offset, size)
            if not numbers:
                table, times = warp_table(wave, offset)
                count = sectors_of if space == "global" else words_of
                numbers = [n * times for n in (
                    len(table), *of_pattern(table, size, count, SECTOR))]
            if whole and (inst in self.earlier or len(self.earlier) < REMEMBERED):
                self.earlier[inst] = offset, numbers
        self.add(wave, inst, space, offset, size, numbers, segment.name)

    def shared_access(self, wave, inst, offset, size):
        self.add(wave, inst, "shared", offset, size, self.wavefronts(wave, offset, size))

    def wavefronts(self, wave, offset, size):
        """-> requests, wavefronts, the fewest possible, distinct bytes"""
        if offset.size == 1 or (offset.ndim == 2 and offset.shape[1] == 1):
            return wave.lanes.warps, *one_address(wave, size)
        table, times = warp_table(wave, offset)
        numbers = of_pattern(table, size, wavefronts_of, BANKS * BANK_BYTES)
        return [n * times for n in (len(table), *numbers)]

    def local_access(self, wave, inst, address, size):
        """address: bytes within the thread's local memory."""
        if "param" in inst.modifiers:                   # arguments of a call, in registers mostly
            return
        lane = wave.lanes.index % WARP if address.ndim == 1 else \
            np.arange(wave.shape[1]).reshape(1, -1) % WARP
        offset = address.view(np.int64)
        word = offset // BANK_BYTES * (WARP * BANK_BYTES) + lane * BANK_BYTES
        table, times = warp_table(wave, word)
        best, _ = warp_table(wave, lane * BANK_BYTES)   # if all lanes agreed
        words = max(1, size // BANK_BYTES)
        self.add(wave, inst, "local", offset, size, (
            len(table) * times, sectors_of(table, BANK_BYTES)[0] * words * times,
            sectors_of(best, BANK_BYTES)[0] * words * (len(table) * times // len(best)),
            wave.lanes.count * size))

    # ---- a request whose lanes point into several arrays, or one that is read in pieces

    @contextmanager
    def one_request(self, wave, inst):
        """All that a warp reads or writes in global memory inside counts as one request."""
        if self.parts is not None:                      # inside of another
            yield
            return
        self.parts = []
        try:
            yield
            parts = self.parts
            self.parts = None
            if len(parts) == 1:
                self.count_part(wave, inst, *parts[0])
            elif parts:
                self.count_parts(wave, inst, parts)
        finally:
            self.parts = None

    def count_part(self, wave, inst, lanes, offset, size, segment):
        """It was a plain request of these lanes after all."""
        others = wave.lanes
        wave.lanes = lanes
        self.count_global(wave, inst, offset, size, segment)
        wave.lanes = others

    def count_parts(self, wave, inst, parts):
        index = np.concatenate([p[0].index for p in parts])
        size = np.concatenate([np.full(len(p[1]), p[2]) for p in parts])
        place = np.concatenate([p[1] for p in parts])                   # within its array
        array = np.concatenate([np.full(len(p[1]), p[3].number) for p in parts])
        names = {p[3].number: p[3].name for p in parts}
        warp = index // WARP
        elements = distinct(warp, array, place)
        needed = np.bincount(warp[elements], weights=size[elements]).astype(np.int64)
        warps = len(np.unique(warp))
        space = space_of(inst)
        if space == "global":
            transactions = len(distinct(warp, array, place // SECTOR))
            ideal = int((-(-needed // SECTOR)).sum())
        else:
            transactions = len(distinct(warp, array, place // BANK_BYTES))
            ideal = warps
        spaces = self.memory.setdefault(inst, {})
        if space not in spaces:
            order = np.argsort(index, kind="stable")
            order = order[warp[order] == warp.min()]
            self.first[inst, space] = request(wave, space, int(size[order].max()), index[order],
                                              place[order], [names[a] for a in array[order]])
        row = spaces.setdefault(space, [0] * 5)
        for i, number in enumerate(
                (warps, transactions, ideal, int(needed.sum()), int(size.sum()))):
            row[i] += number

    def wait(self, lanes, new, in_flight):
        """Lanes have waited for cp.async groups, `new` of them for the first time. in_flight: bytes
        of their copies that still have not landed"""
        for i, number in enumerate((lanes, new, in_flight)):
            self.waits[i] += number

    # ---- branches

    def split(self, inst, group, parts):
        """The lanes of a group part at a branch.
        A warp is divergent if its own lanes do."""
        self.splits[inst] = self.splits.get(inst, 0) + 1
        both = sum(part.warps for part in parts) - group.warps
        self.divergent[inst] = self.divergent.get(inst, 0) + both


def space_of(inst):
    """ld.const and a kernel's parameters are served by the constant cache."""
    return "const" if "const" in inst.modifiers or "param" in inst.modifiers else "global"


def distinct(*columns):
    """Positions of the first of each distinct row."""
    rows = np.stack([np.asarray(c, np.int64) for c in columns], axis=1)
    return np.unique(rows, axis=0, return_index=True)[1]


def first_warp(index, place):
    """Lane numbers (n,) and what belongs to them -> those of the first warp."""
    n = int(np.searchsorted(index, (index[0] // WARP + 1) * WARP))
    return index[:n], place[:n]


def request(wave, space, size, index, place, names):
    """-> a function that makes the Request of one warp, given its lanes' numbers within the wave.
    A launch shows few of those that it could."""
    first = int(index[0])
    lane = index % WARP
    place = place.copy()

    def make():
        lanes = {}
        for i, p, name in zip(lane.tolist(), place.tolist(), names, strict=True):
            lanes.setdefault(i, (name, p))
        return Request(space, size, warp, block, lanes)
    warp = first % wave.shape[1] // WARP
    block = wave.block_of(first)
    return make


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


def of_pattern(table, size, count, unit):
    """count(table, size) of offsets (warps, 32), which depends on where they lie relative to each
    other and within `unit` bytes.
    Small patterns recur and are remembered."""
    if len(table) > SMALL:
        return count(table, size)
    table = table - (max(int(table.min()), 0) & -unit)      # absent lanes stay -1
    return patterns.get((count, size, table.tobytes()), lambda: count(table, size))


def same_sectors(offset, before):
    """Has a loop moved all lanes on by the same whole sectors?
    Then the counts are the same."""
    if offset.shape != before.shape or (offset.flat[0] - before.flat[0]) % SECTOR:
        return False
    moved = offset - before
    return bool((moved == moved.flat[0]).all())


def sectors_of(table, size):
    """Offsets (warps, 32) -> sectors touched, the fewest that hold the distinct elements, and the
    bytes of these."""
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
    return int(touched) + int(np.count_nonzero(active[:, 0])), ideal, int(distinct.sum()) * size


def in_order(warp, offset, size):
    """Offsets of some lanes, and their warps (n,) -> requests and what sectors_of()
    says; None where an offset is below the one before it in the warp.
    Without a table."""
    other = warp[1:] != warp[:-1]
    step = offset[1:] - offset[:-1]
    if not ((step >= 0) | other).all():
        return None
    starts = np.concatenate([[0], np.flatnonzero(other) + 1])
    sector = offset >> 5
    touched = np.count_nonzero((sector[1:] != sector[:-1]) | other) + 1
    new = np.ones(len(offset), np.int64)
    new[1:] = (step != 0) | other
    distinct = np.add.reduceat(new, starts)
    ideal = int(((distinct * size + SECTOR - 1) // SECTOR).sum())
    return len(starts), int(touched), ideal, int(distinct.sum()) * size


def words_of(table, size):
    """Offsets (warps, 32) -> words of constant memory that each warp wants, summed; the fewest
    possible; distinct bytes."""
    words = elements_of(np.where(table < 0, -1, table // BANK_BYTES))
    return words, len(table), elements_of(table) * size


def elements_of(table):
    """Offsets (warps, 32) -> how many differ within their warp, summed."""
    ordered = np.sort(table, axis=1)
    new = ordered >= 0
    new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    return int(np.count_nonzero(new))


def one_address(wave, size):
    """Wavefronts where all lanes of a warp want one element: one for each part of a warp that is
    served at a time and has a lane -> wavefronts, ideal, distinct bytes."""
    parts = max(1, size // BANK_BYTES)
    if wave.lanes.whole:
        return wave.lanes.warps * parts, wave.lanes.warps * parts, wave.lanes.warps * size
    served = len(np.unique(wave.lanes.index // (WARP // parts)))
    return served, served, wave.lanes.warps * size


def wavefronts_of(table, size):
    """Offsets (warps, 32) -> wavefronts, the fewest possible, distinct bytes."""
    width = max(size, BANK_BYTES)
    group = WARP * BANK_BYTES // width                  # lanes served at a time, and bank groups
    unit = (table // width).reshape(-1, group)
    unit[(table < 0).reshape(-1, group)] = -1
    unit.sort(axis=1)
    new = unit >= 0
    new[:, 1:] &= unit[:, 1:] != unit[:, :-1]
    phase, lane = np.nonzero(new)
    hits = np.bincount(phase * group + unit[phase, lane] % group, minlength=len(unit) * group)
    elements = len(phase) if size == BANK_BYTES else elements_of(table)
    return (int(hits.reshape(-1, group).max(axis=1).sum()),
            int(np.count_nonzero(unit[:, -1] >= 0)), elements * size)
