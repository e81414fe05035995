"""s02 · Pages: an allocator for the memory of keys and values

P: pages of the pool   S: slots of a page, one token each   N: tokens of a sequence
A sequence holds ceil(N / S) pages, in any order and any place. At most S - 1 of its slots are
empty, whatever the longest sequence allowed. A page that two sequences begin with is held once,
with a count; who writes into it first copies it.
Costs O(1) a page taken or given back, on the host.
"""

from layer2_graph import PagedCache

import torch

__all__ = ["BlockPool", "Broken", "Pages", "check_pool", "slots_of"]


class Broken(AssertionError):
    """A pool that contradicts itself or the tables made from it."""


def pages_for(N, S):
    """How many pages hold N tokens."""
    # exercise: rounded up
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
        self.free = dict.fromkeys(range(P))         # an ordered set: its first is taken next

    @property
    def used(self):
        """Pages that somebody holds."""
        return self.P - len(self.free)

    def take(self):
        """A page for one holder; None where all are held."""
        # exercise: the first of the free ones, and it has one holder now
        if not self.free:
            return None
        page = next(iter(self.free))
        del self.free[page]
        self.refs[page] = 1
        self.forget(page)
        return page

    def share(self, pages):
        """One more table holds these pages; free ones among them leave the free list."""
        # exercise: count, and a page that nobody held is not free any more
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

    def own(self, table, place):
        """Before a write into the page table[place]: see that nobody else holds it.

        (old page, new page) where its contents must be copied, None where it was its own already.
        Expects a free page; RuntimeError where there is none.
        """
        # exercise: shared? then another page, and one holder less of the old one
        old = table[place]
        if self.refs[old] == 1:
            return None
        new = self.take()
        if new is None:
            raise RuntimeError("BlockPool.own: no free page to copy to")
        table[place] = new
        self.refs[old] -= 1
        return old, new

    # s06 remembers what is in a page. Here nothing is known.

    def find(self, request):
        """Pages that hold the begin of a request's tokens already: none."""
        return []

    def remember(self, request):
        """Note what is in the pages of a request that are full."""

    def forget(self, page):
        """A page is about to hold something else."""


def check_pool(pool, tables):
    """Broken where the pool and the tables made from it do not fit together."""
    holders = [0] * pool.P
    for table in tables:
        for page in table:
            holders[page] += 1
    for page, (held, counted) in enumerate(zip(holders, pool.refs, strict=True)):
        if held != counted:
            raise Broken(f"page {page} is in {held} tables and counts {counted}")
        if (held == 0) != (page in pool.free):
            raise Broken(f"page {page} is in {held} tables and "
                         f"{'is' if page in pool.free else 'is not'} free")
    if pool.used + len(pool.free) != pool.P:
        raise Broken(f"{pool.used} pages used and {len(pool.free)} free of {pool.P}")


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
