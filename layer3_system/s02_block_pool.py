"""s02 · Pages: an allocator for the memory of keys and values

P: pages of the pool   S: slots of a page, one token each   N: tokens of a sequence   B: sequences
A sequence holds ceil(N / S) pages, in any order and any place. At most S - 1 of its slots are
empty, whatever the longest sequence allowed. A page that two sequences begin with is held once,
with a count; who writes into it first copies it.
Costs O(1) a page taken or given back, on the host.
"""

from collections import Counter, OrderedDict
from itertools import accumulate

import torch

from lab import plots
from layer2_graph import PagedCache, Step

__all__ = ["BlockPool", "Broken", "Pages", "check_pool", "slots_of"]


class Broken(AssertionError):
    """A pool that contradicts itself or the tables made from it."""


def predict_pages(n, prompt, answer, S):
    """Pages that n answers to one prompt hold: (where they share, where each has all of its own).

    prompt, answer: tokens of the prompt and of each answer, 1 or more   S: slots of a page
    A page is held once for all n as long as the same tokens are in it.
    """
    # exercise: how many pages has one answer, and how many of them have nothing but prompt in them?
    full, each = prompt // S, -(-(prompt + answer) // S)
    return full + n * (each - full), n * each


def pages_for(N, S):
    """How many pages hold N tokens."""
    return -(-N // S)


def slots_of(table, begin, end, S):
    """Slots of the tokens begin to end - 1 of a sequence: [page · S + place].

    table: [page], its block table
    """
    # exercise: token i lies in the page i // S of the sequence. Which page of the pool is that?
    return [table[i // S] * S + i % S for i in range(begin, end)]


class BlockPool:
    """Who holds which page. It knows numbers alone; the keys and values are in `Pages`.

    A table is the list of a sequence's pages, in order. It is the sequence's own; the pool changes
    it where it is asked to.
    """

    def __init__(self, P, S=16):
        self.P, self.S = P, S
        self.refs = [0] * P                         # tables that hold each page
        # Its first is taken next. A dict would look for it behind all that were taken before.
        self.free = OrderedDict.fromkeys(range(P))

    @property
    def used(self):
        """Pages that somebody holds."""
        return self.P - len(self.free)

    def take(self):
        """A page for one holder; None where all are held."""
        if not self.free:
            return None
        page, _ = self.free.popitem(last=False)
        self.refs[page] = 1
        self.evict(page)
        return page

    def share(self, pages):
        """One more table holds these pages; free ones among them leave the free list."""
        for page in pages:
            self.free.pop(page, None)
            self.refs[page] += 1

    def release(self, table):
        """A table gives its pages back, and is empty then.

        The last page becomes free first, so it is taken first: the begin of a text is what others
        may want again. A page that others hold stays theirs.
        """
        # exercise: from the last to the first; free only where nobody is left
        for page in reversed(table):
            self.refs[page] -= 1
            if self.refs[page] == 0:
                self.free[page] = None
        table.clear()

    def grow(self, table, N):
        """Make room for N tokens. False, and nothing changed, where there are too few pages."""
        # exercise: how many are missing, are there so many, take them
        missing = pages_for(N, self.S) - len(table)
        if missing > len(self.free):
            return False
        table += [self.take() for _ in range(missing)]
        return True

    def copy_on_write(self, table, place):
        """Before a write into the page table[place]: see that nobody else holds it.

        (old page, new page) where its contents must be copied, None where it was its own already.
        Expects a free page; RuntimeError, and nothing changed, where there is none.
        """
        # exercise: shared? then another page, and one holder less of the old one
        old = table[place]
        if self.refs[old] == 1:
            return None
        new = self.take()
        if new is None:
            raise RuntimeError("BlockPool.copy_on_write: no free page to copy to")
        table[place] = new
        self.refs[old] -= 1
        return old, new

    # s06 remembers what is in a page. Here nothing is known.

    def match_prefix(self, request):
        """Pages that hold the begin of a request's tokens already: none."""
        return []

    def cache_pages(self, request):
        """Note what is in the pages of a request that are full."""

    def evict(self, page):
        """A page is about to hold something else."""

    def is_cached(self, page):
        """Whether somebody may find what is in a page: no."""
        return False


def check_pool(pool, tables):
    """Broken where the pool and the tables made from it do not fit together."""
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

    def __init__(self, config, P, S=16, dtype=torch.float32, device="cpu"):
        shape = (config.L, P, S, config.G, config.D)
        self.k = torch.zeros(shape, dtype=dtype, device=device)     # (L, P, S, G, D)
        self.v = torch.zeros(shape, dtype=dtype, device=device)     # (L, P, S, G, D)

    attend = PagedCache.attend

    def copy(self, pairs):
        """Copy whole pages: {to: from}. All are read before one is written."""
        if pairs:
            new, old = list(pairs), list(pairs.values())
            self.k[:, new], self.v[:, new] = self.k[:, old], self.v[:, old]

    def read(self, table):                              # -> 2 × (L, pages, S, G, D)
        """A copy of a sequence's pages, in its order."""
        return self.k[:, table], self.v[:, table]

    def write(self, table, k, v):
        """Put such a copy into the first pages of a table."""
        table = table[:k.shape[1]]
        self.k[:, table], self.v[:, table] = k.to(self.k), v.to(self.v)


class PooledCache(Pages):
    """A cache as g01's, for sequences that come, grow, branch and leave. Each has a name."""

    def __init__(self, config, pool):
        super().__init__(config, pool.P, pool.S)
        self.pool, self.tables, self.lens = pool, {}, {}

    def reserve(self, name, n):
        """Pages of its own for the next n tokens of a sequence. False where they lack."""
        table, N = self.tables.setdefault(name, []), self.lens.setdefault(name, 0)
        place = N // self.pool.S            # of the first page that will be written into
        if place < len(table):
            if self.pool.refs[table[place]] > 1 and not self.pool.free:
                return False
            moved = self.pool.copy_on_write(table, place)
            if moved:
                self.copy({moved[1]: moved[0]})
        return self.pool.grow(table, N + n)

    def step(self, new):
        """The Step that puts new[name], [token], behind what that sequence has. Reserve first."""
        starts = [self.lens[name] for name in new]
        self.lens |= {name: self.lens[name] + len(tokens) for name, tokens in new.items()}
        lens, tables = [self.lens[name] for name in new], [self.tables[name] for name in new]
        slots = [slot for table, n, N in zip(tables, starts, lens, strict=True)
                 for slot in slots_of(table, n, N, self.pool.S)]
        positions = [i for n, N in zip(starts, lens, strict=True) for i in range(n, N)]
        width = max(map(len, tables))
        padded = [table + [0] * (width - len(table)) for table in tables]
        cu_q = [0, *accumulate(map(len, new.values()))]
        tokens = [token for some in new.values() for token in some]
        return Step(*map(torch.tensor, (tokens, positions, slots)), *(
            torch.tensor(a, dtype=torch.int32) for a in (padded, cu_q, lens)))

    def branch(self, name, other):
        """A sequence that begins as another one has been so far, on the same pages."""
        self.pool.share(self.tables[name])
        self.tables[other], self.lens[other] = list(self.tables[name]), self.lens[name]

    def leave(self, name):
        self.pool.release(self.tables.pop(name))
        del self.lens[name]


def table_map(S, moments):
    """Block tables, a row a sequence, a box a page with its number, filled as far as its tokens.

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
    plt.close(figure)           # a notebook shows what is returned, and open figures once more
    return figure
