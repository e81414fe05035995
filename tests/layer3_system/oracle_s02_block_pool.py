"""A pool by the book, and one under test beside it."""

from types import SimpleNamespace

from lab.judge.mistakes import mistake
from layer3_system import BlockPool, check_pool


def counted(n, prompt, answer, S):
    """Pages that n answers hold where they share, token by token in a real pool."""
    pool, first = BlockPool(n * (prompt + answer), S), []
    pool.grow(first, prompt)
    tables = [first, *(list(first) for _ in range(n - 1))]
    for table in tables[1:]:
        pool.share(table)
    for N in range(prompt, prompt + answer):
        for table in tables:
            pool.grow(table, N + 1)
            pool.copy_on_write(table, N // S)
    check_pool(pool, tables)
    return pool.used


class Book:
    """What a pool must do, in plain lists."""

    def __init__(self, P, S):
        self.P, self.S, self.refs, self.free = P, S, [0] * P, list(range(P))

    @property
    def used(self):
        return self.P - len(self.free)

    def take(self):
        if not self.free:
            return None
        page = self.free.pop(0)
        self.refs[page] = 1
        return page

    def share(self, pages):
        for page in pages:
            self.refs[page] += 1

    def release(self, table):
        while table:
            page = table.pop()
            self.refs[page] -= 1
            self.free += [page] * (self.refs[page] == 0)

    def grow(self, table, N):
        missing = max(-(-N // self.S) - len(table), 0)
        fits = missing <= len(self.free)
        table += [self.take() for _ in range(missing * fits)]
        return fits

    def copy_on_write(self, table, place):
        old = table[place]
        if self.refs[old] == 1:
            return None
        table[place] = self.take()
        self.refs[old] -= 1
        return old, table[place]


class Beside:
    """The pool under test and one by the book.
    Pages 0, 1, 2, … are dealt out into these tables."""

    def __init__(self, subject, P, S, tables=()):
        self.subject = subject
        self.pool, self.book = subject.BlockPool(P, S), Book(P, S)
        self.mine, self.right = [], []          # tables: handles, lists
        held = set()
        for _ in set().union(*tables):
            self.pool.take(), self.book.take()
        for table in tables:
            again = [page for page in table if page in held]
            self.pool.share(again), self.book.share(again)
            held |= set(table)
            self.add(table)

    def add(self, pages):
        self.mine.append(self.subject.make("collections:UserList", list(pages)))
        self.right.append(list(pages))

    @property
    def tables(self):
        return [table.data for table in self.mine]

    @property
    def free(self):
        return self.subject.make("builtins:list", self.pool.free)

    def call(self, method, t, *args):
        """(what the method answers for table t, what it should)."""
        want = getattr(self.book, method)(self.right[t], *args)
        return getattr(self.pool, method)(self.mine[t], *args), want

    def compare(self, what, tables=(), order=(), only=None):
        """Tables, or `only` one of them, counts and the free list, in this order.

        tables, order: {wrong one: (id of its mistake, words)}
        """
        for t in range(len(self.mine)) if only is None else [only]:
            mine, right = self.mine[t].data, self.right[t]
            name, words = dict(tables).get(tuple(mine), ("", ""))
            assert mine == right, mistake(
                name, f"{what}: table {t} is {mine}, expected {right}.\n{words}", words)
        refs, free = self.pool.refs, self.free
        for page, (mine, right) in enumerate(zip(refs, self.book.refs, strict=True)):
            assert mine == right, other_count(f"{what}: the count of page {page}", mine, right)
        name, words = dict(order).get(tuple(free), ("", ""))
        assert free == self.book.free, mistake(
            name, f"{what}: the free pages are {free}, expected {self.book.free}.\n{words}", words)
        used = self.pool.used
        assert used + len(free) == self.book.P, \
            f"{what}: {used} pages used and {len(free)} free of {self.book.P}"
        check_pool(SimpleNamespace(P=self.book.P, refs=refs, free=free), self.right)


def watch_evict(subject, pool):
    """Its evict does nothing from now on.
    A function: the pages that it was called for so far."""
    evict = subject.make("lab.judge.mocks:Watched", None, None)
    subject.make("builtins:setattr", pool, "evict", evict)
    return lambda: [page for (page,) in evict.calls]


def other_count(of, mine, right):
    """The message of a wrong count."""
    naming = {0: "no table names it", 1: "1 table names it"}.get(right, f"{right} tables name it")
    name, words = ("count_stays", "Subtract 1 for each table that gives it back.") \
        if mine > right else ("table_not_counted", "A table that still names it was not counted.")
    return mistake(name, f"{of} is {mine}, expected {right}: {naming}. {words}", words)


def soak(subject, rng, methods, steps, P=24, S=4):
    """Random operations; after each, both pools are the same and every invariant holds.

    Where nothing gives pages back, a full pool is thrown away.
    """
    beside, done = Beside(subject, P, S), dict.fromkeys(methods, 0)
    for step in range(steps):
        if not beside.mine or (len(beside.mine) > 9 and "release" not in methods):
            beside = Beside(subject, P, S)
            beside.add([])
        t = int(rng.integers(len(beside.mine)))
        right = beside.right[t]
        what = str(rng.choice([*methods, "take", "branch"]))
        at = f"random operation {step}: {what} of table {t}, {right}"
        if what == "take":
            page = beside.pool.take()
            assert page == beside.book.take(), f"{at}: got page {page}"
            if page is not None:
                beside.mine[t].append(page), right.append(page)
        elif what == "branch" and len(beside.mine) < 12:
            begin = right[:int(rng.integers(len(right) + 1))]
            beside.pool.share(begin), beside.book.share(begin)
            beside.add(begin)
        elif what == "grow":
            got, want = beside.call("grow", t, int(rng.integers(0, 2 + S * (len(right) + 4))))
            assert got == want, f"{at}: got {got}, expected {want}"
        elif what == "release":
            beside.call("release", t)
            beside.compare(at, only=t)
            del beside.mine[t], beside.right[t]
        elif what == "copy_on_write" and right and (
                beside.book.free or beside.book.refs[right[-1]] == 1):
            place = len(right) - 1 if not beside.book.free else int(rng.integers(len(right)))
            got, want = beside.call("copy_on_write", t, place)
            assert got == want, f"{at}: got {got}, expected {want}"
        else:
            continue
        done[what] = done.get(what, 0) + 1
        beside.compare(at, only=None if what == "release" or step % 50 == 0 else t)
    return done
