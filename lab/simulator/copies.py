"""Triton's threads load an element together, and one of them stores it.

Where a tensor has fewer elements than its program has threads, several threads hold a copy of each.
All of them load it; those that are not to store it have their stores masked off.
So in a kernel that works in place the others may read an element before or after it is stored.
Nothing orders the two, and it does no harm as long as the others do nothing with what they have
read.

So a read that nothing orders against a write of the same program is recorded here, with the thread
that reads.
Once the blocks have ended it is known which threads have stored something that depends on such a
read; those are reported.
Lanes of one warp are left out where the read comes first: Triton keeps a warp together.
"""

from collections import deque
from functools import lru_cache

import numpy as np

from .lanes import WARP
from .stamps import BLOCK_SHIFT, WARP_SHIFT, WHO, WHO_BITS
from .uses import JUMPS, uses_of

READS_KEPT = 256            # instructions, 32 MB or less
LOADS = ("ld", "ldu", "ldmatrix")
ACROSS = {"shfl", "vote", "match", "redux", "mma", "wmma", "movmatrix", "activemask"}
MEETINGS = {"bar", "barrier", "mbarrier"}


class Copies:
    """The reads of one wave whose order is doubtful, and the lanes that have stored something."""

    def __init__(self, shadow):
        self.shadow = shadow
        self.reads = deque(maxlen=READS_KEPT)       # (cells, access)
        self.acted = {}                             # instruction -> lanes of the launch (bool)
        self.doubtful = {}                          # (read, write) -> Doubt

    def keep_read(self, cells, access):
        """Keep a read that is entered in its cells: where several read, these forget which."""
        self.reads.append((cells, access.again()))

    def act(self, access):
        """Lanes store something, or change it."""
        if access.inst.opcode not in LOADS:
            lanes = self.acted.setdefault(access.inst, np.zeros(len(access.order.who), bool))
            lanes[access.place_in_order] = True

    # ---- what is doubtful

    def written(self, access, lanes, cell):
        """These lanes (k,) write where others of their block have read."""
        place = access.first_place[lanes] + cell
        barrier = access.order.block_barrier[access.numbers[lanes]]
        cells = access.segment.cells
        oldest = barrier.min()
        cells.hot[place] = True
        for whose, read in self.reads:
            if whose is cells and read.stamp > oldest:
                for theirs in read.places():
                    if cells.hot[theirs].any():
                        self.both(access, lanes, place, barrier, read.again(), theirs)
        cells.hot[place] = False

    def both(self, access, lanes, place, barrier, read, theirs):
        """Record which lanes of a read have read where these lanes (k,) write."""
        order = np.argsort(place)
        mine = order[np.minimum(np.searchsorted(place[order], theirs), len(order) - 1)]
        apart = (read.who ^ access.who[lanes[mine]]) & WHO
        met = (place[mine] == theirs) & (read.stamp > barrier[mine]) & (
            apart >> BLOCK_SHIFT == 0) & (apart >> WARP_SHIFT != 0)
        if met.any():
            mine = lanes[mine[met]]
            self.doubt(read.inst, access.inst, access).add(
                read.numbers[met], access.offset[mine], access.who[mine])

    def read(self, access, lanes, last):
        """These lanes (k,) read what others of their block have written."""
        for stamp in np.unique(last >> WHO_BITS):
            here = last >> WHO_BITS == stamp
            self.doubt(access.inst, access.order.history[stamp], access).add(
                access.numbers[lanes[here]], access.offset[lanes[here]], last[here] & WHO)

    def doubt(self, read, write, access):
        if (read, write) not in self.doubtful:
            self.doubtful[read, write] = Doubt(access)
        return self.doubtful[read, write]

    # ---- what becomes of it

    def settle(self):
        """The blocks have ended: which of these reads have come to something?"""
        for (read, write), doubt in self.doubtful.items():
            reader, offset, writer = (np.concatenate(rows) for rows in zip(*doubt.rows,
                                                                           strict=True))
            guilty = self.came_to_something(read)[reader]
            if guilty.any():
                i = int(np.flatnonzero(guilty)[0])
                self.refuse(doubt.access, read, write, int(reader[i]), int(offset[i]),
                            int(writer[i]))

    def came_to_something(self, read):
        """-> the lanes of the launch (bool) that have stored what depends on the read"""
        everywhere = np.zeros(len(self.shadow.order.who), bool)
        alone, together = effects(read)
        for inst, lanes in self.acted.items():
            if inst in together:
                everywhere |= lanes.reshape(-1, WARP).any(axis=1).repeat(WARP)
            elif inst in alone:
                everywhere |= lanes
        return everywhere

    def refuse(self, access, read, write, reader, offset, writer):
        wave = access.wave
        line = f"in line {write.location.line}" if write.location else "elsewhere"
        raise wave.launch.error(
            read, "race", f"race: {access.segment.name_of(offset)} is read here, by a thread that "
            f"goes on to use it, and written {line} by {access.name_of(writer)}; only "
            f"tl.debug_barrier() between the two orders them", wave, reader - self.shadow.start)


class Doubt:
    """Reads by one instruction and writes by another that nothing orders."""

    def __init__(self, access):
        self.access = access
        self.seen = np.zeros(len(access.order.who), bool)       # lanes of the launch that read
        self.rows = []                                  # (reader, offset, writer), each (k,)

    def add(self, reader, offset, writer):
        new = ~self.seen[reader]
        if new.any() or not self.rows:
            self.seen[reader] = True
            self.rows.append((reader[new], offset[new], writer[new]))


@lru_cache(1 << 10)
def effects(read):
    """-> the instructions that store what depends on a load: by the same lane, and by any lane of
    its warp.
    Where a jump or a barrier depends on it, all of them."""
    code = read.function.code
    users = {}
    for inst in code:
        guard = {inst.guard.name} if inst.guard else set()
        for name in guard.union(uses_of(inst).reads):
            users.setdefault(name, []).append(inst)
    alone = set()
    together = set()
    left = [(name, False) for name in uses_of(read).writes]
    locations = set(left)
    while left:
        name, spread = left.pop()
        for inst in users.get(name, ()):
            across = spread or inst.opcode in ACROSS
            if inst.opcode in JUMPS or inst.opcode in MEETINGS:
                return frozenset(), frozenset(code)
            (together if across else alone).add(inst)
            new = {(n, across) for n in uses_of(inst).writes} - locations
            locations |= new
            left += new
    return frozenset(alone), frozenset(together)
