"""Sets of lanes.

A wave is B blocks of T lanes that run together (T is rounded up to whole warps).
A value in a register is an array that broadcasts to (B, T): (1, 1) if all lanes agree, (1, T) if it
depends on the thread alone, (B, 1) on the block alone.
Most index arithmetic is of these small kinds, and so costs next to nothing.
The same holds for the set of lanes that an instruction runs for.

A set with few lanes is `sparse`: values are then gathered into arrays (n,), one per lane.
"""

from functools import cached_property

import numpy as np

WARP = 32
SPARSE = 8                  # gathering pays when fewer than one lane in 8 takes part (measured)


class Lanes:
    """Some of the lanes of a wave: a mask that broadcasts to (B, T), or sorted lane numbers."""

    def __init__(self, shape, mask=None, index=None):
        self.shape = shape
        self.size = shape[0] * shape[1]
        if mask is not None:
            self.mask = mask
            self.count = int(np.count_nonzero(mask)) * (self.size // mask.size)
        else:
            self.index = index
            self.count = len(index)
        self.sparse = self.count * SPARSE <= self.size
        self.whole = self.count == self.size

    @cached_property
    def mask(self):
        """bool, broadcasts to (B, T)"""
        mask = np.zeros(self.size, bool)
        mask[self.index] = True
        return mask.reshape(self.shape)

    @cached_property
    def index(self):
        """Sorted lane numbers within the wave, block by block (n,)."""
        return np.flatnonzero(np.broadcast_to(self.mask, self.shape))

    @cached_property
    def threads(self):
        return self.index % self.shape[1]           # (n,) number of the thread within its block

    @cached_property
    def blocks(self):
        return self.index // self.shape[1]          # (n,) number of the block within the wave

    @cached_property
    def warp_of(self):
        return self.index >> 5                      # (n,) number of the warp within the wave

    @cached_property
    def warps(self):
        """How many warps have a lane in the set."""
        if self.whole:
            return self.size // WARP
        if "mask" in self.__dict__:
            mask = self.mask
            if mask.shape[1] == 1:
                return self.count // WARP
            rows = mask.reshape(-1, WARP).any(axis=1)
            return int(np.count_nonzero(rows)) * (self.shape[0] // mask.shape[0])
        return int(np.count_nonzero(np.diff(self.warp_of))) + 1 if self.count else 0

    @cached_property
    def present(self):
        """Which warps have a lane in the set: bool, broadcasts to (B, T / 32)."""
        if "mask" in self.__dict__:
            rows, columns = self.mask.shape
            return self.mask if columns == 1 else self.mask.reshape(rows, -1, WARP).any(axis=2)
        warps = np.zeros(self.size // WARP, bool)
        warps[self.warp_of] = True
        return warps.reshape(self.shape[0], -1)

    @cached_property
    def bits(self):
        """Per warp of the wave the members as 32 bits, as __activemask() shows them (B, T / 32)."""
        mask = np.broadcast_to(self.mask, self.shape).reshape(-1, WARP)
        return np.packbits(mask, axis=1, bitorder="little").view(np.uint32).reshape(
            self.shape[0], self.shape[1] // WARP)

    def split(self, predicate):
        """-> members for which the predicate holds, and the others.
        The predicate comes in the form that values have here: (n,) in a sparse set, else
        something that broadcasts to (B, T)."""
        if predicate.size == 1:
            no_lanes = Lanes(self.shape, index=np.zeros(0, np.int64))
            return (self, no_lanes) if predicate.flat[0] else (no_lanes, self)
        if predicate.ndim == 1:
            return (Lanes(self.shape, index=self.index[predicate]),
                    Lanes(self.shape, index=self.index[~predicate]))
        return (Lanes(self.shape, self.mask & predicate), Lanes(self.shape, self.mask & ~predicate))

    def __or__(self, other):
        return Lanes(self.shape, self.mask | other.mask)

    def __sub__(self, other):
        return Lanes(self.shape, self.mask & ~other.mask)

    def __and__(self, other):
        return self if self is other else Lanes(self.shape, self.mask & other.mask)
