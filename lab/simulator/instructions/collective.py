"""Accesses to shared memory that a warp makes as one: ldmatrix, wmma.load and wmma.store.

No lane can say which element it touches, so the race detector takes each access for the whole
warp's. All lanes arrive before the first access, so the accesses come after what the lanes did
before.
A load is complete when the instruction is; what a store has written becomes visible to other lanes
of the warp by __syncwarp().
"""

from contextlib import contextmanager


@contextmanager
def by_the_warp(wave, stores=False):
    if wave.shadow:
        wave.shadow.warp_barrier_of(wave)
    yield
    if wave.shadow and not stores:
        wave.shadow.warp_barrier_of(wave)
