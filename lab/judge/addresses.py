"""Whether a kernel counts numbers of large arrays in 64 bits, shown on arrays that hold a few."""

import math
import re

from lab.judge.mistakes import mistake
from lab.judge.subject import Raised

FAR = 2**28             # numbers of a row: row 16 begins at 2^32, which 32 bits take for 0
ROWS = 17               # 0 to 16
BEYOND = re.compile(r"of `(\w+)`.*?(?: and (\d+) other threads|$)", re.DOTALL)


def in_64_bits(subject, name, grid, block, args, threads, what, row=ROWS - 1, **meta):
    """AssertionError where row 16 of an array, of rows of FAR numbers, is taken for row 0.

    args: with FAR as the length of a row and ROWS as the number of rows; each array holds what
    row 0 needs, so that all threads but those of row 0 reach beyond it
    threads: of each row;  what: the array and its address, in words
    row: the last one where it is not 16 and a row in args has 2^32 / row numbers
    """
    beyond = threads_beyond(subject, name, grid, block, args, **meta)
    expected = row * threads
    wide = "a size_t" if block else "64 bits wide, as by .to(tl.int64),"     # no block: Triton
    assert beyond >= expected, mistake("short_index", (
        f"{name}, rows of 2^{33 - row.bit_length()} numbers: row {row} begins at 2^32, which a "
        f"product of 32 bits cannot hold. Make one factor {wide} before you multiply. {beyond} "
        f"threads reach beyond row 0 of {what}, expected {expected}"))


def tiles_in_64_bits(subject, name, grid, block, args, what, **meta):
    """AssertionError where tiles of 16 rows of FAR numbers that begin at 2^32, with row 16, are
    taken for the first tile.

    grid: of the first tile, and of tiles that begin with row 16
    args: as in_64_bits has them.
    As many threads of every tile reach beyond row 0 only if each tile is the first
    what: the product and its array, in words
    """
    first, every = (threads_beyond(subject, name, tiles, block, args, **meta)
                    for tiles in ((1,) * len(grid), grid))
    wide = "a size_t" if block else "64 bits wide, as by .to(tl.int64),"
    assert every != first * math.prod(grid), mistake("short_index", (
        f"{name}, rows of 2^28 numbers: the tile of row 16 is taken for that of row 0. Row 16 "
        f"begins at 2^32, which a product of 32 bits cannot hold. Make one factor of {what} {wide} "
        f"before you multiply"))


def threads_beyond(subject, name, grid, block, args, **meta):
    """How many threads the first access outside an array has there, 0 if a launch has none."""
    try:
        subject.launch(name, grid, block, args, **meta)
    except Raised as error:
        place = BEYOND.search(error.text)
        if "out-of-bounds" not in error.text or place is None:
            raise
        return int(place[2] or 0) + 1
    return 0
