"""What comes before what: the clock that the race detector reads.

Every access, barrier and fence of the checked blocks of a launch gets a step of its own, in the
order in which they run here.
A GPU may run them in another order unless something forbids it:

- a block-wide barrier orders all threads of a block, a named one (bar.sync a, b) those who took
  part in it, __syncwarp() the lanes that it names;
- grid.sync() orders all blocks.
  Else nothing orders two of them but a handshake: one thread writes, fences and raises a flag, the
  other sees the flag.
  The accesses alone do not show whether that happened.
  So a fence or an atomic in between makes an order likely and not proven.
  A fence alone makes no thread wait: without an atomic or volatile access there is no flag to be
  seen.

What a stamp is says stamps.py; whose flag was seen by whom, flags.py.
"""

import numpy as np

from .flags import Flags
from .lanes import WARP
from .stamps import (
    BARRIERS,
    BLOCK_SHIFT,
    LANE,
    MEETINGS,
    SEVERAL_BLOCKS,
    WARP_SHIFT,
    WHO,
    WHO_BITS,
)


class Order:
    """The clock of one launch.

    blocks   how many blocks are checked
    threads  threads of a block, in whole warps
    """

    def __init__(self, blocks, threads):
        self.threads = threads
        self.history = [None]                                       # step -> Instruction
        thread = np.tile(np.arange(threads), blocks)
        block = np.repeat(np.arange(blocks), threads)
        self.who = block << BLOCK_SHIFT | thread // WARP << WARP_SHIFT | thread % WARP
        lanes = blocks * threads
        self.block_barrier = np.zeros(lanes, np.int64)      # stamp of the lane's last barrier
        self.warp_barrier = np.zeros(lanes, np.int64)       # never older than that
        self.shuffles = np.zeros(lanes, np.int64)           # stamp of the lane's last shuffle
        self.fences = np.zeros(lanes, np.int64)             # stamp of the lane's last fence
        self.grid_barrier = 0                               # stamp of the last grid.sync()
        self.named = None                                   # (lanes, MEETINGS): a part of the block
        self.fenced = np.zeros(blocks, np.int64)            # the block's last fence,
        self.released = np.zeros(blocks, np.int64)          # fence, atomic or volatile store,
        self.acquired = np.zeros(blocks, np.int64)          # fence, atomic or volatile load,
        self.flagged = np.zeros(blocks, np.int64)           # atomic or volatile access
        self.taken = 0                                      # lanes that earlier waves have
        self.flags = Flags(self)

    def stamp(self, inst=None):
        self.history.append(inst)
        return len(self.history) - 1 << WHO_BITS

    def inst(self, stamp):
        return self.history[int(stamp) >> WHO_BITS]

    def handshake(self, stamp, lane):
        """May flags or locks order these accesses of others before those of my lanes? (k,) bool"""
        other = stamp & WHO
        block = other >> BLOCK_SHIFT
        code = other & LANE
        anywhere = other == SEVERAL_BLOCKS
        block = np.where(anywhere, 0, block)
        one = code < WARP
        warp = np.where(one, other >> WARP_SHIFT & LANE, 0)
        thread = np.where(one, block * self.threads + warp * WARP + code, 0)
        fenced = np.where(one, self.fences[thread], self.fenced[block])
        released = self.released[block]
        if anywhere.any():
            fenced = np.where(anywhere, self.fenced.max(), fenced)
            released = np.where(anywhere, self.released.max(), released)
        mine = lane // self.threads
        met = (released > stamp) & (self.acquired[mine] > stamp) & (anywhere | (block != mine))
        return ((fenced > stamp) | met) & (self.flagged[mine] > stamp)

    def met_at_shuffle(self, stamp, lane):
        """Has a shuffle or a vote of its warp come between?
        It makes the lanes meet, but promises no order of memory (CUDA Programming Guide, "Warp
        Shuffle Functions") (k,) bool"""
        same_warp = (stamp & WHO) >> WARP_SHIFT == self.who[lane] >> WARP_SHIFT
        return same_warp & (self.shuffles[lane] > stamp)

    def met_at_named(self, stamp, lane):
        """-> (same, other), (k,) bool each: since the stamp, have the thread that left it and mine
        both passed the same named barrier, or two different ones through which they may have met?
        Tiles that do not share a thread never meet."""
        no_lanes = np.zeros(len(stamp), bool)
        if self.named is None:
            return no_lanes, no_lanes
        who = stamp & WHO
        warp = who >> WARP_SHIFT & LANE
        one = warp < WARP                                   # barriers count whole warps
        first = np.where(one, (who >> BLOCK_SHIFT) * self.threads + warp * WARP, lane)
        theirs = self.named[first] > stamp[:, None]
        mine = self.named[lane] > stamp[:, None]
        same = (theirs & mine).any(axis=1)
        by_number = theirs[:, :BARRIERS].any(axis=1) & mine[:, :BARRIERS].any(axis=1)
        return same & one, by_number | (mine.any(axis=1) & ~one)


class Events:
    """One wave's view of the clock: what its blocks do that orders accesses."""

    def __init__(self, order, wave):
        self.order = order
        self.shape = wave.shape
        self.start = order.taken
        order.taken = order.taken + wave.shape[0] * wave.shape[1]
        self.oldest_barrier = 0                             # of all blocks of the wave

    def lanes(self, lanes):
        """Where a set of lanes is in the arrays of the launch."""
        if lanes.whole:
            return slice(self.start, self.start + lanes.size)
        return self.start + lanes.index

    def barrier(self, blocks=None):
        """All threads of these blocks have met; None: of all blocks."""
        order = self.order
        stamp = self.order.stamp()
        mine = slice(self.start, self.start + self.shape[0] * self.shape[1])
        for stamps in (order.block_barrier, order.warp_barrier):
            stamps[mine].reshape(self.shape)[slice(None) if blocks is None else blocks] = stamp
        if order.flags.learnt:
            first = self.start // self.shape[1]
            order.flags.barrier(range(first, first + self.shape[0]) if blocks is None
                                else {first + int(block) for block in blocks})
        self.oldest_barrier = stamp if blocks is None else int(order.block_barrier[mine].min())

    def named_barrier(self, index, number):
        """These lanes of the wave have met at named barriers, or have arrived there."""
        order = self.order
        if order.named is None:
            order.named = np.zeros((len(order.who), MEETINGS), np.int64)
        order.named[self.start + index, number] = order.stamp()

    def warp_barrier_of(self, wave):
        """__syncwarp() of the active lanes."""
        self.order.warp_barrier[self.lanes(wave.lanes)] = self.order.stamp()
        if self.order.flags.learnt:
            self.order.flags.warp_barrier(self.start + wave.lanes.index)

    def shuffle(self, wave):
        self.order.shuffles[self.lanes(wave.lanes)] = self.order.stamp()

    def fence(self, wave, of_block=False):
        order = self.order
        stamp = self.order.stamp()
        if not of_block:
            order.flags.fence(self.start + wave.lanes.index)
        blocks = self.blocks(wave)
        order.fences[self.lanes(wave.lanes)] = stamp
        order.fenced[blocks] = order.released[blocks] = order.acquired[blocks] = stamp

    def release(self, wave):
        """A store or an atomic with .release is a fence before it, which also covers what others of
        its warp did before they last met (PTX ISA manual, "Release and Acquire Patterns")."""
        order = self.order
        warps = np.unique(wave.lanes.warp_of)
        lanes = self.start + (warps[:, None] * WARP + np.arange(WARP)).reshape(-1)
        order.fences[lanes] = np.maximum(order.fences[lanes], order.warp_barrier[lanes])
        self.fence(wave)

    def handshake(self, wave, released, acquired):
        """An atomic or volatile access of the active lanes: perhaps a flag."""
        order = self.order
        stamp = self.order.stamp()
        blocks = self.blocks(wave)
        if released:
            order.released[blocks] = stamp
        if acquired:
            order.acquired[blocks] = stamp

    def blocks(self, wave):
        first = self.start // self.shape[1]
        return slice(first, first + self.shape[0]) if wave.lanes.whole \
            else first + wave.lanes.blocks
