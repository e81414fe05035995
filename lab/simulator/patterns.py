"""Addresses in shared memory that depend on the thread alone, so that all blocks have the same.

Loops over a tile use the same few of them again and again, and so does the next launch.
What there is to know about them is worked out once: whether they are in bounds and aligned, what
they cost, how to fetch them.
"""

from typing import NamedTuple

import numpy as np

from .memory import raw
from .remembered import Remembered

patterns = Remembered(1024)     # of all launches: what decides about an access -> Pattern
PIECES = (32, 16, 8)            # bytes that numpy's take moves in one go
REPEATS = 16                    # lanes at one address that are fetched once (measured)


class Pattern(NamedTuple):
    """The addresses (1, T) of one instruction, checked."""
    offset: np.ndarray          # (1, T) bytes
    index: np.ndarray           # (1, T) elements
    counts: tuple               # of the whole wave, see Counts.wavefronts()
    fetch: object               # memory (B, elements) -> (B, T) elements, or what a fetcher gives
    run: slice | None           # the elements, where they follow each other in some order:
    order: np.ndarray | None    # the lanes in that order (T,), None if they are in it


def pattern_of(offset, size, counts, fetcher=None):
    """fetcher: (T,) elements -> Pattern.fetch, for loads that deal them out in their own way"""
    index = offset >> (size.bit_length() - 1)
    row = index[0]
    order = None if follows(row) else row.argsort()
    first = int(row[0] if order is None else row[order[0]])
    run = slice(first, first + len(row)) if order is None or follows(row[order]) else None
    fetch = fetcher(row) if fetcher else plain_fetcher(row, size, run if order is None else None)
    return Pattern(offset, index, counts, fetch, run, order)


def follows(row):
    """Is each index the one before plus 1? For a row, or for all rows of a table."""
    return bool((row[..., 1:] - row[..., :-1] == 1).all())


def plain_fetcher(row, size, run):
    """The quickest of several ways to copy memory[:, row]."""
    if run:
        return lambda memory: memory[:, run].copy()
    if len(row) % REPEATS == 0:
        table = row.reshape(-1, REPEATS)
        if (table == table[:, :1]).all():
            few = np.ascontiguousarray(table[:, 0])
            return lambda memory: memory.take(few, axis=1, mode="wrap").repeat(REPEATS, axis=1)
    for piece in PIECES:
        n = piece // size
        table = row.reshape(-1, n) if n > 1 else None
        if n > 1 and follows(table) and not (table[:, 0] % n).any():
            wide = table[:, 0] // n
            dtype = np.dtype(f"V{piece}")
            return lambda memory: memory.view(dtype).take(wide, axis=1, mode="wrap").view(raw(size))
    return lambda memory: memory.take(row, axis=1, mode="wrap")
