"""s02 · Pages: an allocator for the memory of keys and values

P: pages of the pool   S: slots of a page, one token each   N: tokens of a sequence   B: sequences
A sequence has ceil(N / S) pages, anywhere in the pool.
At most S - 1 of its slots are empty, however long a sequence may become.
Sequences that begin alike share pages, which are counted; a sequence copies a shared page before it
writes into it.
Cost: O(1) work of the host for a page taken or given back.
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
    """The pages that n answers to one prompt need: (with sharing, without).

    prompt, answer: tokens of the prompt and of each answer, 1 or more   S: slots of a page
    A page that holds the same tokens for all n answers is needed only once.
    """
    # exercise: pages of one sequence; pages that are the same for all n
    full = prompt // S
    each = -(-(prompt + answer) // S)
    return full + n * (each - full), n * each


def pages_for(N, S):
    """How many pages hold N tokens."""
    return -(-N // S)


def slots_of(table: list[int], begin: int, end: int, S: int) -> list[int]:
    """The slots of tokens begin to end - 1 of a sequence: [page · S + place].

    table: [page], its block table
    """
    # exercise: token i is in page i // S of the sequence; which page of the pool is that?
    return [table[i // S] * S + i % S for i in range(begin, end)]


class BlockPool:
    """Which pages are in use, and in how many tables.
    The keys and values are in `Pages`.

    A table is the list of a sequence's page numbers, in order.
    It belongs to the sequence; the pool's methods change that list in place.
    """

    def __init__(self, P: int, S: int = 16):
        self.P = P
        self.S = S
        self.spare = 0                              # pages that a newcomer must leave free
        self.refs = [0] * P                         # number of tables that name each page
        # The first is taken next. A dict would search for it past all that were taken before.
        self.free = OrderedDict.fromkeys(range(P))

    @property
    def used(self) -> int:
        """The number of pages that are in at least one table."""
        return self.P - len(self.free)

    def take(self) -> int | None:
        """A free page, with a count of 1; None if no page is free."""
        if not self.free:
            return None
        page, _ = self.free.popitem(last=False)
        self.refs[page] = 1
        self.evict(page)
        return page

    def share(self, pages: Iterable[int]) -> None:
        """Count one more table for each of these pages; free ones leave the free list."""
        for page in pages:
            self.free.pop(page, None)
            self.refs[page] += 1

    def release(self, table: list[int]) -> None:
        """Give back all pages of a table, and empty it.

        The last page becomes free first, so it is taken first: the beginning of a text is what
        others may need again.
        A page that other tables still name stays in use.
        """
        # exercise: from last to first; a page is free once its count is 0
        for page in reversed(table):
            self.refs[page] -= 1
            if self.refs[page] == 0:
                self.free[page] = None
        table.clear()

    def grow(self, table: list[int], N: int) -> bool:
        """Extend a table, in place, to have room for N tokens.

        False, with nothing changed, if too few pages are free.
        """
        # exercise: how many pages are missing? are that many free? take them
        missing = pages_for(N, self.S) - len(table)
        if missing > len(self.free):
            return False
        table += [self.take() for _ in range(missing)]
        return True

    def copy_on_write(self, table: list[int], place: int) -> tuple[int, int] | None:
        """Call it before a write into page table[place]: then no other table names that page.

        (old page, new page) if the contents must be copied, None if the page is not shared.
        RuntimeError, with nothing changed, if a copy is needed and no page is free.
        """
        # exercise: if it is shared, a new page for the table, and one table fewer for the old page
        old = table[place]
        if self.refs[old] == 1:
            return None
        new = self.take()
        if new is None:
            raise RuntimeError("BlockPool.copy_on_write: no free page to copy to")
        table[place] = new
        self.refs[old] -= 1
        return old, new

    # s06 overrides these four; this pool remembers no contents.

    def match_prefix(self, request: Request) -> list[int]:
        """Always []; s06 overrides it: pages that already hold the beginning of a request."""
        return []

    def cache_pages(self, request: Request) -> None:
        """Remember the contents of a request's full pages: nothing here."""

    def evict(self, page: int) -> None:
        """Forget the contents of a page that is about to hold something else: nothing here."""

    def is_cached(self, page: int) -> bool:
        """Whether the contents of a page are remembered: never here."""
        return False


def check_pool(pool: BlockPool, tables: Iterable[list[int]]) -> None:
    """Broken if the pool's counts and the tables made from it disagree."""
    holders = [0] * pool.P
    for table in tables:
        for page in table:
            holders[page] += 1
    for page, (count, counted) in enumerate(zip(holders, pool.refs, strict=True)):
        if count != counted:
            raise Broken(f"page {page} is in {count} tables, and its count is {counted}")
        if (count == 0) != (page in pool.free):
            raise Broken(f"page {page} is in {count} tables and "
                         f"{'is' if page in pool.free else 'is not'} free")
    used = sum(count > 0 for count in holders)
    if used + len(pool.free) != pool.P:
        raise Broken(f"{used} pages used and {len(pool.free)} free of {pool.P}")


class Pages:
    """The keys and values of every layer, in pages."""

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
            self.k[:, new] = self.k[:, old]
            self.v[:, new] = self.v[:, old]

    def read(self, table: list[int]) -> tuple[torch.Tensor, torch.Tensor]:  # 2×(L, pages, S, G, D)
        """A copy of a sequence's pages, in its order."""
        return self.k[:, table], self.v[:, table]

    def write(self, table: list[int], k: torch.Tensor, v: torch.Tensor) -> None:
        """Put such a copy into the first pages of a table."""
        table = table[:k.shape[1]]
        self.k[:, table] = k.to(self.k)
        self.v[:, table] = v.to(self.v)


class PooledCache(Pages):
    """Like g01's cache, but sequences can arrive, grow, branch and leave.
    Each has a name."""

    def __init__(self, config, pool):
        super().__init__(config, pool.P, pool.S)
        self.pool = pool
        self.tables = {}
        self.lens = {}

    def reserve(self, name, n):
        """Pages for the next n tokens of a sequence, which no other sequence writes into.

        False if there are too few.
        """
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
        """The Batch that appends new[name], [token], to that sequence.
        Call reserve first."""
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
        """Start the sequence `other` with the tokens that `name` has so far, on the same pages."""
        self.pool.share(self.tables[name])
        self.tables[other] = list(self.tables[name])
        self.lens[other] = self.lens[name]

    def leave(self, name):
        self.pool.release(self.tables.pop(name))
        del self.lens[name]


def table_map(S, moments):
    """Block tables: a row for each sequence, a numbered box for each page, filled with its tokens.

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
