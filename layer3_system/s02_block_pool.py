"""s02 · Pages: an allocator for the memory of keys and values

P: pages of the pool   S: slots of a page, one token each   N: tokens of a sequence   B: sequences
A sequence holds ceil(N / S) pages, in any order and any place. At most S - 1 of its slots are
empty, however long a sequence may become. A page that two sequences share is held once, with a
count; the first to write into it copies it.
Costs O(1) a page taken or given back, on the host.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from itertools import accumulate

import torch

from lab import plots
from layer2_graph import Batch, Config, PagedCache
from layer3_system.s01_request import Request

__all__ = ["BlockPool", "Broken", "Pages", "check_pool", "slots_of"]


class Broken(AssertionError):
    """A pool that contradicts itself or the tables made from it."""


def predict_pages(n, prompt, answer, S):
    """Pages that n answers to one prompt hold: (with sharing, without: each has all of its own).

    prompt, answer: tokens of the prompt and of each answer, 1 or more   S: slots of a page
    A page is held once for all n as long as the same tokens are in it.
    """
    # exercise: how many pages does one answer hold, and how many of them are full of prompt?
    full = prompt // S
    each = -(-(prompt + answer) // S)
    return full + n * (each - full), n * each


def pages_for(N, S):
    """How many pages hold N tokens."""
    return -(-N // S)


def slots_of(table: list[int], begin: int, end: int, S: int) -> list[int]:
    """Slots of the tokens begin to end - 1 of a sequence: [page · S + place].

    table: [page], its block table
    """
    # exercise: token i lies in the page i // S of the sequence. Which page of the pool is that?
    return [table[i // S] * S + i % S for i in range(begin, end)]


class BlockPool:
    """Which pages are held, and how often. The keys and values themselves are in `Pages`.

    A table is the list of a sequence's pages, in order. It belongs to the sequence; the pool
    changes it when asked to.
    """

    def __init__(self, P: int, S: int = 16):
        self.P = P
        self.S = S
        self.refs = [0] * P                         # tables that hold each page
        # The first is taken next. A dict would search for it past all that were taken before.
        self.free = OrderedDict.fromkeys(range(P))

    @property
    def used(self) -> int:
        """Pages in at least one table."""
        return self.P - len(self.free)

    def take(self) -> int | None:
        """A page for one holder; None if all are held."""
        if not self.free:
            return None
        page, _ = self.free.popitem(last=False)
        self.refs[page] = 1
        self.evict(page)
        return page

    def share(self, pages: Iterable[int]) -> None:
        """One more table holds these pages; free ones among them leave the free list."""
        for page in pages:
            self.free.pop(page, None)
            self.refs[page] += 1

    def release(self, table: list[int]) -> None:
        """A table gives its pages back, and is then empty.

        The last page becomes free first, so it is taken first: the beginning of a text is what
        others may want again. A page that others hold stays theirs.
        """
        # exercise: from the last to the first; free only when no holder is left
        for page in reversed(table):
            self.refs[page] -= 1
            if self.refs[page] == 0:
                self.free[page] = None
        table.clear()

    def grow(self, table: list[int], N: int) -> bool:
        """Make room for N tokens. False, and nothing changed, if there are too few pages."""
        # exercise: how many are missing, are that many free, take them
        missing = pages_for(N, self.S) - len(table)
        if missing > len(self.free):
            return False
        table += [self.take() for _ in range(missing)]
        return True

    def copy_on_write(self, table: list[int], place: int) -> tuple[int, int] | None:
        """Before a write into the page table[place]: make sure that no other table holds it.

        (old page, new page) if its contents must be copied, None if no other table held it.
        Expects a free page; RuntimeError, and nothing changed, if there is none.
        """
        # exercise: shared? then a new page, and one holder fewer for the old one
        old = table[place]
        if self.refs[old] == 1:
            return None
        new = self.take()
        if new is None:
            raise RuntimeError("BlockPool.copy_on_write: no free page to copy to")
        table[place] = new
        self.refs[old] -= 1
        return old, new

    # s06 remembers the contents of pages. This pool knows none.

    def match_prefix(self, request: Request) -> list[int]:
        """Pages that already hold the beginning of a request: none."""
        return []

    def cache_pages(self, request: Request) -> None:
        """Remember the contents of a request's full pages."""

    def evict(self, page: int) -> None:
        """Forget the contents of a page that is about to hold something else."""

    def is_cached(self, page: int) -> bool:
        """Whether the contents of a page are remembered: never."""
        return False


def check_pool(pool: BlockPool, tables: Iterable[list[int]]) -> None:
    """Broken if the pool and the tables made from it disagree."""
    holders = [0] * pool.P
    for table in tables:
        for page in table:
            holders[page] += 1
    for page, (count, counted) in enumerate(zip(holders, pool.refs, strict=True)):
        if count != counted:
            raise Broken(f"page {page} is in {count} tables and counts {counted}")
        if (count == 0) != (page in pool.free):
            raise Broken(f"page {page} is in {count} tables and "
                         f"{'is' if page in pool.free else 'is not'} free")
    used = sum(count > 0 for count in holders)
    if used + len(pool.free) != pool.P:
        raise Broken(f"{used} pages used and {len(pool.free)} free of {pool.P}")


class Pages:
    """The keys and values themselves, of every layer: what the pool deals out."""

    def __init__(self, config: Config, P: int, S: int = 16, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu"):
        shape = (config.L, P, S, config.G, config.D)
        self.k = torch.zeros(shape, dtype=dtype, device=device)     # (L, P, S, G, D)
        self.v = torch.zeros(shape, dtype=dtype, device=device)     # (L, P, S, G, D)

    attend = PagedCache.attend

    def copy(self, pairs: dict[int, int]) -> None:
        """Copy whole pages: {to: from}. All are read before any is written."""
        if pairs:
            new = list(pairs)
            old = list(pairs.values())
            self.k[:, new], self.v[:, new] = self.k[:, old], self.v[:, old]

    def read(self, table: list[int]) -> tuple[torch.Tensor, torch.Tensor]:  # 2×(L, pages, S, G, D)
        """A copy of a sequence's pages, in its order."""
        return self.k[:, table], self.v[:, table]

    def write(self, table: list[int], k: torch.Tensor, v: torch.Tensor) -> None:
        """Put such a copy into the first pages of a table."""
        table = table[:k.shape[1]]
        self.k[:, table], self.v[:, table] = k.to(self.k), v.to(self.v)


class PooledCache(Pages):
    """A cache like g01's, for sequences that come, grow, branch and leave. Each has a name."""

    def __init__(self, config, pool):
        super().__init__(config, pool.P, pool.S)
        self.pool = pool
        self.tables = {}
        self.lens = {}

    def reserve(self, name, n):
        """Pages of its own for the next n tokens of a sequence. False if there are too few."""
        table = self.tables.setdefault(name, [])
        N = self.lens.setdefault(name, 0)
        place = N // self.pool.S            # of the first page that will be written into
        if place < len(table):
            if self.pool.refs[table[place]] > 1 and not self.pool.free:
                return False
            moved = self.pool.copy_on_write(table, place)
            if moved:
                self.copy({moved[1]: moved[0]})
        return self.pool.grow(table, N + n)

    def step(self, new):
        """The Batch that appends new[name], [token], to that sequence. Reserve first."""
        starts = [self.lens[name] for name in new]
        self.lens |= {name: self.lens[name] + len(tokens) for name, tokens in new.items()}
        lens = [self.lens[name] for name in new]
        tables = [self.tables[name] for name in new]
        slots = [slot for table, n, N in zip(tables, starts, lens, strict=True)
                 for slot in slots_of(table, n, N, self.pool.S)]
        positions = [i for n, N in zip(starts, lens, strict=True) for i in range(n, N)]
        width = max(map(len, tables))
        padded = [table + [0] * (width - len(table)) for table in tables]
        cu_q = [0, *accumulate(map(len, new.values()))]
        tokens = [token for some in new.values() for token in some]
        return Batch(*map(torch.tensor, (tokens, positions, slots)), *(
            torch.tensor(a, dtype=torch.int32) for a in (padded, cu_q, lens)))

    def branch(self, name, other):
        """Start the sequence `other` with all that `name` has so far, on the same pages."""
        self.pool.share(self.tables[name])
        self.tables[other], self.lens[other] = list(self.tables[name]), self.lens[name]

    def leave(self, name):
        self.pool.release(self.tables.pop(name))
        del self.lens[name]


def table_map(S, moments):
    """Block tables: a row a sequence, a numbered box a page, filled as far as it has tokens.

    moments: {title: ({sequence: [page]}, {sequence: tokens})}, one below the other
    """
    import matplotlib.pyplot as plt

    colours = {"in several tables": plots.RED, "in one table": plots.BLUE, "empty slots": "#d0d7de"}
    shared, own, empty = colours.values()
    height = 0.4 + sum(0.7 + 0.36 * len(tables) for tables, _ in moments.values())
    figure, every = plt.subplots(len(moments), 1, squeeze=False, sharex=True, layout="constrained",
                                 figsize=(7.5, height))
    for axes, (title, (tables, lens)) in zip(every[:, 0], moments.items(), strict=True):
        holders = Counter(page for table in tables.values() for page in table)
        boxes = [(y, i, page, min(lens[name] / S - i, 1)) for y, (name, table) in
                 enumerate(tables.items()) for i, page in enumerate(table)]
        for y, i, page, full in boxes:
            axes.barh(y, 0.96, left=i, color=empty, height=0.8)
            colour = shared if holders[page] > 1 else own
            axes.barh(y, 0.96 * full, left=i, color=colour, height=0.8)
            axes.annotate(page, (i + 0.48, y), ha="center", va="center",
                          bbox={"fc": "white", "ec": "none", "pad": 1.5})
        axes.set_yticks(range(len(tables)), tables)
        axes.set(title=f"{title}: {len(holders)} pages", ylim=(len(tables) - 0.5, -0.5), xticks=[])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    figure.legend([plt.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()],
                  colours, loc="outside lower center", ncols=3, frameon=False, handlelength=1)
    plt.close(figure)           # a notebook shows what is returned, and again what is open
    return figure
