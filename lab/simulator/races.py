"""The race detector: a shadow of shared memory that remembers who touched what, and when.

Two threads race if both touch a place, at least one writes, and nothing orders them. A block-wide
barrier orders all threads of a block, __syncwarp() those of a warp. So an access is ordered before
mine if it is older than the last barrier of my block or, within my warp, than the last of my warp.

Per cell two numbers, the last write and the last reads, each as `step << 12 | who`. Steps count the
accesses of the wave. `who` is `warp << 6 | lane`. For reads the lane may also be "several" and the
warp "several", which is enough: one of them is not me. Reads that a barrier has made harmless are
forgotten when the next one comes. Atomics do not race with each other, so they sign as "atomic".

Stamps compare as numbers: one that is greater than a barrier's stamp is younger than the barrier.
"""

import numpy as np

from .dtypes import SIZES
from .lanes import WARP

STEP_BITS, WARP_BITS = 12, 6
WHO = (1 << STEP_BITS) - 1
LANE = (1 << WARP_BITS) - 1
SEVERAL_LANES, ATOMIC = 32, 33          # in place of a lane
SEVERAL_WARPS = WHO                     # in place of a warp and lane
NOBODY = -1                             # older than everything


class Shadow:
    """Shadow of the shared memory of one wave."""

    def __init__(self, wave):
        self.cell = cell_size(wave.launch)
        B, T = wave.shape
        self.cells = -(-wave.shared.shape[1] // self.cell)
        self.writes = np.full(B * self.cells, NOBODY, np.int64)
        self.reads = np.full(B * self.cells, NOBODY, np.int64)
        thread = np.tile(np.arange(T), B)
        self.who = thread // WARP << WARP_BITS | thread % WARP      # (B·T,)
        self.first_cell = np.repeat(np.arange(B) * self.cells, T)   # (B·T,) of the lane's block
        self.block_barrier = np.zeros((B, T), np.int64)             # stamp of the last barrier
        self.warp_barrier = np.zeros((B, T), np.int64)              # never older than that
        self.fences = np.zeros((B, T), np.int64)                    # stamp of the lane's last fence
        self.history = [None]                                       # step -> Instruction

    def stamp(self, inst=None):
        """The next step, shifted to where stamps have it."""
        self.history.append(inst)
        return len(self.history) - 1 << STEP_BITS

    # ---- what orders accesses

    def barrier(self, blocks):
        """All threads of these blocks have met; None: of all blocks."""
        chosen = slice(None) if blocks is None else blocks
        self.block_barrier[chosen] = self.warp_barrier[chosen] = self.stamp()

    def warp_barrier_of(self, wave):
        """__syncwarp() of the active lanes."""
        self.warp_barrier.reshape(-1)[wave.lanes.index] = self.stamp()

    def fence(self, wave):
        self.fences.reshape(-1)[wave.lanes.index] = self.stamp()

    # ---- accesses

    def load(self, wave, inst, offset, size):
        access = Access(self, wave, inst, offset, size)
        for cells in access.cells():
            last = self.writes[cells]
            self.check_initialised(access, last)
            access.check(last, "read", "written")
            self.remember_reads(access, cells)

    def store(self, wave, inst, offset, size, differs, lost):
        """differs: the lane's value is not the one that was there (n,); lost: it is not the one
        that is there now, since another lane has written the place in this instruction."""
        access = Access(self, wave, inst, offset, size)
        mine = access.stamp | access.who
        for cells in access.cells():
            access.check(np.where(differs, self.writes[cells], NOBODY), "written", "written")
            access.check(self.reads[cells], "written", "read")
            self.writes[cells] = mine
            if lost.any():
                winners = self.writes[cells]
                self.one_place(access, np.flatnonzero(lost & (winners != mine)), winners)

    def atomic(self, wave, inst, offset, size):
        access = Access(self, wave, inst, offset, size)
        for cells in access.cells():
            last = self.writes[cells]
            self.check_initialised(access, last)
            plain = np.where(last & LANE == ATOMIC, NOBODY, last)
            access.check(plain, "changed by an atomic", "written")
            access.check(self.reads[cells], "changed by an atomic", "read")
            self.writes[cells] = access.stamp | (access.who & ~LANE) | ATOMIC

    def remember_reads(self, access, cells):
        """Merge the readers of this step with those that no barrier has separated from it."""
        who = access.who
        last = self.reads[cells]
        if (last > access.block_barrier).any():
            other = last & WHO
            same_warp = other >> WARP_BITS == who >> WARP_BITS
            live = last > np.where(same_warp, access.warp_barrier, access.block_barrier)
            several = np.where(same_warp, who & ~LANE | SEVERAL_LANES, SEVERAL_WARPS)
            who = np.where(live & (other != who), several, who)
        mine = access.stamp | who
        self.reads[cells] = mine                                    # of several lanes one wins
        winner = self.reads[cells]
        beaten = np.flatnonzero(winner != mine)
        if len(beaten):
            cells, who, winner = cells[beaten], who[beaten], winner[beaten] & WHO
            same_warp = winner >> WARP_BITS == who >> WARP_BITS
            self.reads[cells] = access.stamp | who & ~LANE | SEVERAL_LANES
            self.reads[cells[~same_warp | (who == SEVERAL_WARPS)]] = access.stamp | SEVERAL_WARPS

    # ---- complaints

    def check_initialised(self, access, last):
        if last.min() == NOBODY:
            i = int(np.flatnonzero(last == NOBODY)[0])
            raise access.error("uninitialised", i,
                               f"read of {access.name(i)}, which nobody has written")

    def one_place(self, access, losers, winners):
        if len(losers):
            i = int(losers[0])
            raise access.error(
                "race", i, f"race: {access.name_of(int(winners[i]) & WHO)} and this thread write "
                f"{access.name(i)} in the same instruction")


class Access:
    """One instruction's accesses to shared memory, one entry per lane."""

    def __init__(self, shadow, wave, inst, offset, size):
        self.shadow, self.wave, self.inst, self.size = shadow, wave, inst, size
        self.stamp = shadow.stamp(inst)
        self.offset = wave.per_lane(offset)                         # (n,)
        lane = slice(None) if wave.lanes.whole else wave.lanes.index
        self.who, self.first_cell = shadow.who[lane], shadow.first_cell[lane]
        self.block_barrier = shadow.block_barrier.reshape(-1)[lane]
        self.warp_barrier = shadow.warp_barrier.reshape(-1)[lane]

    def cells(self):
        """-> for each cell of the access, its number for every lane (n,)."""
        first = self.first_cell + (self.offset >> (self.shadow.cell.bit_length() - 1))
        for i in range(max(1, self.size // self.shadow.cell)):
            yield first + i

    def check(self, last, mine, theirs):
        """Raise if the recorded access is someone else's and nothing orders it before mine."""
        if not (last > self.block_barrier).any():
            return
        other = last & WHO
        same_warp = other >> WARP_BITS == self.who >> WARP_BITS
        hazard = (last > np.where(same_warp, self.warp_barrier, self.block_barrier)) & \
            (other != self.who)
        for i in np.flatnonzero(hazard):
            text = self.describe(i, int(last[i]), mine, theirs)
            if self.handshake(i, int(last[i])):
                self.wave.launch.warn(self.inst, "ordering not proven: " + text)
            else:
                raise self.error("race", i, text)

    def describe(self, i, last, mine, theirs):
        location = self.shadow.history[last >> STEP_BITS].location
        line = f"in line {location.line}" if location else "before"
        return (f"race: {self.name(i)} is {mine} here and {theirs} {line} by "
                f"{self.name_of(last & WHO)}, with no __syncthreads() between")

    def handshake(self, i, last):
        """Has the other thread fenced since? Then flags or locks may order the two; who knows."""
        fences = self.shadow.fences[self.lane(i) // self.wave.shape[1]]
        warp, lane = (last & WHO) >> WARP_BITS, last & LANE
        if lane < WARP:
            return bool(fences[warp * WARP + lane] > last)
        return bool((fences > last).any())

    def lane(self, i):
        """Number of the lane within the wave."""
        return int(i) if self.wave.lanes.whole else int(self.wave.lanes.index[i])

    def name(self, i):
        return self.wave.launch.shared_name(int(self.offset[i]), self.size)

    def name_of(self, who):
        warp, lane = who >> WARP_BITS, who & LANE
        if who == SEVERAL_WARPS:
            return "several warps"
        if lane == ATOMIC:
            return f"an atomic of warp {warp}"
        if lane == SEVERAL_LANES:
            return f"several threads of warp {warp}"
        return f"thread {self.wave.thread_of(warp * WARP + lane)}"

    def error(self, kind, i, message):
        return self.wave.launch.error(self.inst, kind, message, self.wave, self.lane(i))


def cell_size(launch):
    """Bytes that a cell of the shadow stands for: the narrowest shared access of the module, at
    most 4. With wider cells two halves in one word would seem to race."""
    elsewhere = {"param", "global", "local", "const"}
    sizes = [min((SIZES[m] for m in inst.modifiers if m in SIZES), default=4)
             for function in launch.module.functions.values() for inst in function.code
             if inst.opcode in ("ld", "st", "atom", "red") and not elsewhere & set(inst.modifiers)]
    return min([4, *sizes])
