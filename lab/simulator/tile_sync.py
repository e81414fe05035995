"""sync() of cooperative groups' tiles that are larger than a warp.

Its header counts in shared memory that the driver keeps for it: a word for every size of tile holds
a bit for every warp that has come, and the last warp of a tile clears the tile's bits.
The race detector takes that for what it is: everything before it is ordered before everything after
it, for the threads of the tile.
"""

import numpy as np

from .lanes import WARP
from .ordering import BARRIERS
from .ptx import RESERVED, RESERVED_BYTES

SIZES = 5                       # of tiles: 2, 4, 8, 16 and 32 warps


def clear(wave):
    """What the driver does before a block starts."""
    if RESERVED in wave.launch.addresses:
        start = wave.launch.addresses[RESERVED]
        wave.shared[:, start:start + RESERVED_BYTES] = 0


class TileSync:
    """The words of the blocks of a checked wave."""

    def __init__(self, wave, events):
        self.wave = wave
        self.events = events
        self.start = wave.launch.addresses.get(RESERVED)

    def holds(self, offset):
        """Is this access to shared memory one of cooperative groups' own?"""
        return self.start is not None and \
            self.start <= int(offset.flat[0]) < self.start + RESERVED_BYTES

    def atomic(self, inst, offset):
        """An atomic of the active lanes: is it that of a tile's last warp?"""
        if inst.opcode != "red" or "and" not in inst.modifiers:
            return
        wave = self.wave
        warps = self.wave.shape[1] // WARP
        words = wave.shared[:, self.start:].view(np.uint32)
        for lane, place in zip(wave.lanes.index, wave.per_lane(offset) - self.start, strict=True):
            block = lane // wave.shape[1]
            size = 2 << int(place) // 4
            first = lane % wave.shape[1] // WARP // size * size
            tile = (1 << size) - 1 << int(first)
            if place // 4 < SIZES and int(words[block, place // 4]) & tile == tile:
                start = (block * warps + first) * WARP
                self.events.named_barrier(np.arange(start, start + size * WARP), BARRIERS + first)
