"""Graders of s06. A prediction is counted in a real pool; indexes are held to each other, and to
what a dictionary of whole texts would find."""

import random
from contextlib import suppress
from hashlib import sha256
from itertools import product

import numpy as np
import pytest
import torch

from lab.judge.compare import brief
from lab.judge.subject import Raised
from layer3_system import (
    BlockPool,
    ByteTokenizer,
    Engine,
    HashChain,
    MockLlama,
    PrefixPool,
    RadixTree,
    Request,
    SamplingParams,
    Scheduler,
    check_engine,
    check_pool,
)
from layer3_system.engine.drafts import Drafter

INDEXES = [HashChain, RadixTree]
BOTH = pytest.mark.parametrize("index", INDEXES)


# ---- predict_hit_rate


def counted_hit_rate(users, N, U, S):
    """Tokens found, divided by tokens asked for, in a pool with room for all."""
    pool = PrefixPool(-(-users * (N + U + 1) // S) + users, S)
    engine = Engine(MockLlama(512), ByteTokenizer(), pool)
    found = asked = 0
    for user in range(users):
        (request,) = served(engine, [9] * N + [20 + user] * U)
        found, asked = found + request.num_cached, asked + N + U
    return found / asked


USERS = [(4, 70, 31, 16), (3, 64, 0, 16), (2, 64, 5, 16), (5, 13, 30, 16), (1, 90, 9, 8),
         (3, 50, 0, 16), (6, 33, 1, 4), (2, 1, 0, 4)]


def test_predict_hit_rate(subject, agree, truth):
    rates = truth(lambda: [counted_hit_rate(*case) for case in USERS])
    for case, counted in zip(USERS, rates, strict=True):
        hit_rate_is_the_counted(subject, agree, counted, *case)


def hit_rate_is_the_counted(subject, agree, counted, users, N, U, S):
    def rate(found, hits=users - 1, asked=users * (N + U)):
        return hits * found / asked

    found = min(N, N + U - 1) // S * S
    mistakes = {
        "parts of pages are found, too": rate(min(N, N + U - 1)),
        "the first user finds something, with no user before it": rate(found, users),
        "each one's own tokens are not counted among those asked for": rate(found, asked=users * N),
        "a user's own tokens are found, too": rate((N + U - 1) // S * S),
    }
    if U == 0:
        mistakes["a prompt is found whole, and nothing is left to compute its scores from"] = \
            rate(N // S * S)
    if N % S:
        mistakes["a page that is full in part is rounded up"] = rate(-(-N // S) * S)
    agree(subject.predict_hit_rate(users, N, U, S), counted, "float64",
          f"predict_hit_rate: {users} users, {N} tokens shared, {U} of their own, pages of {S}",
          at=lambda i: "the share", mistakes=mistakes)


def test_predict_hit_rate__unseen(unseen, rng):
    for U in (0, *rng.integers(1, 60, 4).tolist()):
        users, N, S = rng.integers(1, (10, 200, 33)).tolist()
        unseen("predict_hit_rate", users, N, U, S)


# ---- page_hash


def test_page_hash(subject):
    parent, tokens = bytes(range(32)), (5, 12, 3, 5)
    name = subject.page_hash(parent, tokens)
    assert isinstance(name, bytes), f"page_hash: got {type(name).__name__}, expected bytes"
    assert len(name) == 32, (
        f"page_hash: got {len(name)} bytes, expected 32. A name that was cut short can be another "
        f"text's, too")
    assert subject.page_hash(parent, tokens) == name, "page_hash: the same page got two names"
    others = [
        (parent[::-1], tokens, "after other text. Is the name of the page before in the hash?"),
        (parent, (12, 5, 3, 5), "with its tokens in another order"),
        (parent, (5 + 256, 12, 3, 5), "whose token is 256 larger. Is a token one byte only?"),
        (parent, (5 + 2**16, 12, 3, 5), "whose token is 65,536 larger. It wants eight bytes"),
        (parent, (5 + 2**32, 12, 3, 5), "whose token is 2³² larger. A token has eight bytes"),
        (parent, (5 + 2**62, 12, 3, 5), "whose token is 2⁶² larger. A token is below 2⁶³"),
        (parent, (51, 2, 3, 5), "whose digits are the same, with the border elsewhere"),
    ]
    for before, other, what in others:
        assert subject.page_hash(before, other) != name, (
            f"page_hash: page {list(tokens)} has the same name as page {list(other)}: one {what}")


def test_page_hash__unseen(subject, rng):
    """Pages that differ from one another in one place."""
    parent, page = rng.bytes(32), rng.integers(2**62, size=4).tolist()
    pages = [(parent, page), (rng.bytes(32), page), (parent, page[::-1]), (parent, page[1:])]
    for i in range(32):                         # a byte of the parent's name
        pages.append((parent[:i] + bytes([parent[i] ^ 1]) + parent[i + 1:], page))
    for i, bit in zip(rng.integers(4, size=62).tolist(), range(62), strict=True):
        pages.append((parent, [*page[:i], page[i] ^ 1 << bit, *page[i + 1:]]))
    seen = {}
    for before, tokens in pages:
        name, what = subject.page_hash(before, tuple(tokens)), f"page {tokens} after {before.hex()}"
        assert isinstance(name, bytes) and len(name) == 32, \
            f"page_hash of {what}: got {name!r}, expected 32 bytes"
        assert name not in seen, f"page_hash: {what} has the same name as {seen[name]}"
        seen[name] = what
    assert subject.page_hash(parent, tuple(page)) in seen, "page_hash: the same page got two names"


def test_page_hash__pages_in_turn(subject):
    """All texts of up to three pages out of four: the name tells which page comes when."""
    pages = [(1, 2), (2, 1), (1, 1), (0, 2**63 - 1)]
    begin, names = bytes(32), {bytes(32): ()}
    for text in (t for n in (1, 2, 3) for t in product(pages, repeat=n)):
        name = begin
        for page in text:
            name = subject.page_hash(name, page)
        other = names.setdefault(name, text)
        turned = sorted(other) == sorted(text)
        assert other == text, (
            f"page_hash: the pages {text}, one after the other, have the name of "
            f"{other or 'no page'}"
            f"{': it does not tell which of them comes first' if turned else ''}")
    name = subject.page_hash(begin, (7,))
    assert name != subject.page_hash(begin, (8,)), "page_hash: pages of one token have one name"
    ends = [subject.page_hash(begin, (2**63 - 1 - n,)) for n in (0, 1)] + [
        subject.page_hash(begin, (0,))]
    assert len(set(ends)) == 3, "page_hash: of the tokens 2⁶³ - 1, 2⁶³ - 2 and 0 two have one " \
        "name: the largest token is one of its own"


def test_page_hash__borders(subject, rng):
    """Two tokens whose digits, one after the other, are those of two other tokens."""
    parent = rng.bytes(32)
    for base, count in product((2, 8, 10, 16, 2**8, 2**16, 2**32), (2, 3, 4, 8, 18, 63)):
        digits = rng.integers(1, max(base // 2, 2), count + 1).tolist()
        for last_first in (False, True):
            def token(*some, base=base, turn=-1 if last_first else 1):
                return sum(digit * base**i for i, digit in enumerate(some[::-turn]))

            one = token(*digits[:1]), token(*digits[1:])
            other = token(*digits[:-1]), token(*digits[-1:])
            if max(*one, *other) >= 2**63:
                continue
            assert subject.page_hash(parent, one) != subject.page_hash(parent, other), (
                f"page_hash: pages {one} and {other} have one name. With as few digits as each "
                f"token needs, in base {base}{', the last first' * last_first}, they read alike. A "
                f"token takes eight bytes, and borders cannot move")


def test_page_hash__strong(subject, rng):
    """Every byte of a name carries information, and no byte repeats another."""
    names = [subject.page_hash(rng.bytes(32), tuple(rng.integers(2**62, size=3).tolist()))
             for _ in range(100)]
    columns = list(zip(*names, strict=True))
    dull = [i for i, column in enumerate(columns) if len(set(column)) < 40]
    assert not dull, (
        f"page_hash: of 100 names, byte {dull[0]} is one of {len(set(columns[dull[0]]))} values: a "
        f"hash that was filled up is no stronger than what it was filled up from")
    assert len(set(columns)) == 32, \
        "page_hash: a byte of each name repeats another one: written twice, a hash is no stronger"
    parent = rng.bytes(32)
    assert subject.page_hash(parent, (7, 1)) != subject.page_hash(parent, (2**61 + 6, 1)), (
        "page_hash: the tokens 7 and 2⁶¹ + 6 have one name. Python's own hash() of both numbers is "
        "the same: anyone can make two texts of one name")


# ---- longest_hit

KNOWN = {b"The": 3, b" warp": 0, b" waits": 7, b" again": 1}


HITS = {"The| warp| waits": [3, 0, 7], "The| waits| has| again": [3, 7], "The| block| waits": [3],
        "A| warp| waits": [], "": [], "The| warp| waits| again": [3, 0, 7, 1]}


def test_longest_hit(subject):
    for text, want in HITS.items():
        longest_hit_is(subject, text, want)


def longest_hit_is(subject, text, want):
    names = [part.encode() for part in text.split("|") if part]
    got = subject.longest_hit(names, KNOWN)
    assert isinstance(got, (list, tuple)), \
        f"longest_hit: got {type(got).__name__}, expected a list of pages"
    got = list(got)
    known = [KNOWN[name] for name in names if name in KNOWN]
    why = ("This is what one gets when a page after a gap is taken, too: its keys and values rest "
           "on all before" if got == known else
           "These are names, where pages are wanted" if got and isinstance(got[0], bytes) else
           "Page 0 is a page, although 0 counts as false" if 0 in want
           and got == want[:want.index(0)] else
           "All or nothing? Those in front of the first unknown one are found" if not got else
           "The first unknown one ends it, and those in front stay" if got == want[:-1] else "")
    assert got == want, f"longest_hit of {text.split('|')}: got {got}, expected {want}. {why}"


def test_longest_hit__unseen(subject, rng):
    """Few names, so that gaps are frequent; each text with a table of its own. Then a long one."""
    for _ in range(200):
        names = [b"%d" % n for n in rng.permutation(12)[:rng.integers(9)].tolist()]
        known = [name for name in names if rng.random() < 0.8] + [b"another"]
        page_of = dict(zip(known, rng.permutation(len(known)).tolist(), strict=True))
        hit_is(subject, names, page_of)
    hit_is(subject, [b"a", b"b"], {})
    hit_is(subject, [], {})
    hit_is(subject, [b"a", b"b", b"c"], {b"a": 2**31, b"b": 2**15, b"d": 3})
    names = [b"%d" % n for n in range(2**15 + 2)]
    page_of = {name: page for page, name in enumerate(names)}
    del page_of[names[-1]]
    hit_is(subject, names, page_of, "a text of 32,770 pages, all known but the last")


def hit_is(subject, names, page_of, what=None):
    got = subject.longest_hit(names, page_of)
    what = f"longest_hit, {what or f'names {names}, pages {page_of}'}"
    assert isinstance(got, (list, tuple)), f"{what}: got {type(got).__name__}, expected pages"
    count = next((i for i, name in enumerate(names) if name not in page_of), len(names))
    want, got = [page_of[name] for name in names[:count]], list(got)
    why = ("It goes on after a gap" if len(got) > count else
           "Pages are known further than that, without a gap" if got == want[:len(got)] else
           "Each name has its page, in the order of the names")
    assert got == want, f"{what}: got {brief(got)}, expected {brief(want)}. {why}"


# ---- note_full_pages

S = 4


class Given:
    """A pool under test whose index tells what it was asked; requests whose pages are filled."""

    def __init__(self, subject, P=12, S=S):
        self.subject, self.tree, self.S = subject, subject.RadixTree(), S
        self.note = subject.make("lab.judge.mocks:Watched", self.tree.note)
        index = subject.make("types:SimpleNamespace", note=self.note, find=self.tree.find,
                             drop=self.tree.drop)
        self.pool = subject.PrefixPool(P, S, index)
        self.params = subject.make("layer3_system:SamplingParams")

    def request(self, tokens, computed):
        return self.of(tokens, [self.pool.take() for _ in range(-(-len(tokens) // self.S))],
                       computed)

    def of(self, tokens, table, computed):
        return self.subject.make("layer3_system:Request", "r", list(tokens), self.params,
                                 table=table, num_computed=computed)

    def known(self, request):
        return self.tree.find(request, 3, S)

    def asked(self):
        return [call[1] for call in self.note.calls]


def test_note_full_pages(subject):
    """Cases 8 and 9: a page that is full in part, or not computed yet, is not shared."""
    for computed in (6, 8, 3, 12):
        full_pages_are_noted(subject, computed)


def full_pages_are_noted(subject, computed):
    given = Given(subject)
    request = given.request(range(20, 34), computed)
    subject.note_full_pages(given.pool, request)
    want, got = request.table[:computed // S], given.known(request)
    what = f"note_full_pages: 14 tokens, {computed} of them computed, pages of {S}"
    why = ("A page is noted whose last slots are still empty" if len(got) == len(want) + 1
           and computed % S else
           "Are there pages of tokens that were not computed yet?" if len(got) > len(want) else "")
    assert got == want, f"{what}: pages {got} are known, expected {want}. {why}"
    assert request.num_cached_pages == len(want), (
        f"{what}: request.num_cached_pages is {request.num_cached_pages}, expected {len(want)}, "
        f"the pages that need not be noted again")


def test_note_full_pages__goes_on(subject):
    given = Given(subject)
    request = given.request(range(20, 34), 5)
    for computed in (5, 6, 13):
        subject.make("builtins:setattr", request, "num_computed", computed)
        subject.note_full_pages(given.pool, request)
    assert given.asked() == [0, 1, 2], (
        f"note_full_pages: with 5, then 6, then 13 tokens computed the index was asked of the "
        f"pages {given.asked()}, expected each new full page once: [0, 1, 2]")


def test_note_full_pages__copy(subject):
    """Case 14: the table names the other page, and only then the copy becomes free."""
    given = Given(subject)
    pool, first = given.pool, given.request(range(20, 30), 10)
    second = given.request([*range(20, 28), 1, 2, 3, 4, 5, 6], 13)
    kept, own = first.table, second.table
    subject.note_full_pages(pool, first)
    subject.note_full_pages(pool, second)
    got, want = second.table, kept[:2] + own[2:]
    refs, free = pool.refs, list(pool.free)
    about = (f"note_full_pages: tables {kept} and {own}, two pages of the same text. The second "
             f"table is {got} now")
    assert len(got) == len(own), f"{about}: pages that are no copies went, too"
    for page in got:
        assert page not in free, f"{about}, and page {page} in it is free: it will be overwritten"
    assert got == want, f"{about}, expected {want}: of a text that is known twice, one is enough"
    for page in kept[:2]:
        assert refs[page] == 2, \
            f"{about}: page {page} is in two tables and counts {refs[page]}. Was it shared?"
    for page in own[:2]:
        assert refs[page] == 0 and page in free, (
            f"{about}: page {page}, the copy, is in no table and not free: nobody gives it back "
            f"any more")
    assert first.table == kept, "note_full_pages: the other request's table has changed"


def test_note_full_pages__unseen(subject, rng):
    """Texts that begin alike, computed little by little: a known text has one page."""
    given, page_of, told = Given(subject, 40), {}, []
    texts = [rng.integers(2, size=int(n)).tolist() for n in rng.integers(2, 7, 5)]
    requests = [given.request([kind for kind in text for _ in range(S)], 0) for text in texts]
    tables = [request.table for request in requests]
    for r in rng.permutation(np.repeat(range(5), 3)).tolist():
        request, done = requests[r], requests[r].num_computed
        done = int(rng.integers(done, len(texts[r]) * S + 1))
        told.append((r, done))
        subject.make("builtins:setattr", request, "num_computed", done)
        subject.note_full_pages(given.pool, request)
        for i in range(done // S):
            tables[r][i] = page_of.setdefault(tuple(texts[r][:i + 1]), tables[r][i])
        refs = np.bincount([page for table in tables for page in table], minlength=40).tolist()
        got = request.table, request.num_cached_pages, list(given.pool.refs)
        assert got == (tables[r], done // S, refs), (
            f"note_full_pages, texts of pages {texts}, told in turn (text, tokens computed) "
            f"{told}: table, num_cached_pages, refs are {got}, "
            f"expected {(tables[r], done // S, refs)}")


def test_note_full_pages__sizes(subject):
    """The slots of a page are the pool's."""
    for slots in (1, 2, 3, 5, 16, 17):
        given = Given(subject, 40, slots)
        for computed in (slots - 1, slots, slots + 1, 2 * slots - 1, 2 * slots, 2 * slots + 1):
            request = given.request(range(computed * 99, computed * 99 + 3 * slots), computed)
            subject.note_full_pages(given.pool, request)
            got = request.num_cached_pages, given.tree.find(request, 3, slots)
            want = computed // slots, request.table[:computed // slots]
            assert got == want, (
                f"note_full_pages: pages of {slots} slots, {computed} tokens computed: "
                f"num_cached_pages and the pages that are known are {got}, expected {want}: are "
                f"the slots pool.S?")
            given.pool.release(request.table)


def test_note_full_pages__the_table_first(subject):
    """Case 14: where the copy is given back, the table names the other page already."""
    given = Given(subject)
    first, second = (given.request(range(20, 30), 10) for _ in range(2))
    want = first.table[:1] + second.table[1:2]
    subject.note_full_pages(given.pool, first)
    fails = subject.make("operator:itemgetter", "one")
    subject.make("builtins:setattr", given.pool, "release", fails)
    with suppress(Raised):                  # whatever is given back, it has no item of that name
        subject.note_full_pages(given.pool, second)
    got = second.table[:1]
    assert got == want[:1], (
        f"note_full_pages: page {second.table[0]} is given back while the table still names it: "
        f"expected {want[0]} there by then")


def test_note_full_pages__a_free_page(subject):
    """Case 10: a page that is free and known has a holder again, and is no longer free."""
    given = Given(subject)
    first, second = (given.request(range(20, 30), 10) for _ in range(2))
    pages = first.table[:2]
    subject.note_full_pages(given.pool, first)
    given.pool.release(first.table)
    subject.note_full_pages(given.pool, second)
    got, refs, free = second.table[:2], list(given.pool.refs), list(given.pool.free)
    about = f"note_full_pages: pages {pages} are free, and known to hold what the next request has"
    assert got == pages, f"{about}: its table begins with {got}, expected {pages}"
    assert [refs[page] for page in pages] == [1, 1] and not set(pages) & set(free), (
        f"{about}: they are in its table now, count {[refs[page] for page in pages]} holders, and "
        f"free are {free}: where a page is shared it leaves the free list")


def test_note_full_pages__drawn(subject, rng):
    """Texts that begin alike, of one to three answers each; some end, and leave pages that are
    free and known; every table, count and free page after each call."""
    for slots in (2, 1, 3, 2, 4, 2):
        Notes(subject, rng, slots).run(30)


class Notes:
    """A pool under test, and what its tables, counts and free pages should be."""

    def __init__(self, subject, rng, slots):
        self.given, self.rng, self.slots = Given(subject, 40, slots), rng, slots
        self.subject, self.page_of, self.told = subject, {}, []
        self.texts, self.requests, self.tables = [], [], []
        for _ in range(4):
            text = rng.integers(2, size=int(rng.integers(1, 4))).tolist()
            request = self.given.request([kind for kind in text for _ in range(slots)], 0)
            self.add(text, request)
            for _ in range(rng.integers(2)):        # another answer to it, on the same pages
                self.given.pool.share(request.table)
                self.add(text, self.given.of(request.prompt, request.table, 0))

    def add(self, text, request):
        self.texts.append(text)
        self.requests.append(request)
        self.tables.append(request.table)

    def run(self, calls):
        for _ in range(calls):
            r = int(self.rng.integers(len(self.texts)))
            request, text, table = self.requests[r], self.texts[r], self.tables[r]
            if not table:
                continue
            if self.rng.random() < 0.25:
                self.told.append(f"text {r} ends")
                self.given.pool.release(request.table)
                table.clear()
                continue
            done = int(self.rng.integers(request.num_computed, len(text) * self.slots + 1))
            self.told.append(f"text {r} has {done} tokens computed")
            self.subject.make("builtins:setattr", request, "num_computed", done)
            self.subject.note_full_pages(self.given.pool, request)
            for i in range(done // self.slots):
                table[i] = self.page_of.setdefault(tuple(text[:i + 1]), table[i])
            self.hold(request, table, done // self.slots)

    def hold(self, request, table, full):
        pool, what = self.given.pool, (
            f"note_full_pages, pages of {self.slots} slots, texts of pages {self.texts}, in turn: "
            f"{', '.join(self.told)}")
        assert request.table == table, f"{what}: its table is {request.table}, expected {table}"
        assert request.num_cached_pages == full, \
            f"{what}: num_cached_pages is {request.num_cached_pages}, expected {full}"
        held = [page for one in self.tables for page in one]
        refs, free = list(pool.refs), set(pool.free)
        both = sorted(set(held) & free)
        why = ("a page that was free and known leaves the free list where it is shared"
               if both and both[0] in table else
               "a copy that another answer holds, too, is not free yet")
        assert not both, f"{what}: page {both[0]} is in a table and among the free ones: {why}"
        want = np.bincount(held, minlength=40).tolist()
        assert refs == want, (
            f"{what}: pages count {refs} holders, in the tables they have {want}")
        assert free == set(range(40)) - set(held), (
            f"{what}: free are {sorted(free)}, expected {sorted(set(range(40)) - set(held))}: who "
            f"is the last to let go of a copy gives it back to the pool")


# ---- split


def is_same(subject, one, other):
    return subject.make("operator:is_", one, other)


def test_split(subject):
    keys, pages = [("", 1), (2, 3), (4, 5), (6, 7), (8, 9)], [10, 11, 12, 13, 14]
    for behind, place in product(([((0, 0), 3), ((0, 1), 5)], []), (2, 1, 4)):
        run_is_cut(subject, keys, pages, behind, place)


def run_is_cut(subject, keys, pages, behind, place):
    """behind: [(key, page)], each a run that goes on from this one."""
    above = subject.Node([], [])
    on = {key: subject.Node([key], [page]) for key, page in behind}
    node = subject.Node(keys, pages, above, on)
    subject.make("builtins:setattr", above, "children", {keys[0]: node})
    further = [subject.Node([("", 9)], [99], child) for child in on.values()]
    for child, leaf in zip(on.values(), further, strict=True):
        subject.make("builtins:setattr", child, "children", {("", 9): leaf})
    for child in on.values():
        subject.make("builtins:setattr", child, "parent", node)
    rest = subject.split(node, place)
    about = f"split of a run of the pages {pages} before place {place}"
    assert rest is not None, f"{about}: got nothing (None), expected the new node"
    assert not is_same(subject, rest, node), f"{about}: the old node was returned, not the new one"
    halves = (node.pages, rest.pages)
    lost = [p for p in pages if p not in halves[0] + halves[1]]
    assert not lost, f"{about}: it became {halves[0]} and {halves[1]}; page {lost[0]} is in neither"
    assert halves == (pages[:place], pages[place:]), \
        f"{about}: got {halves[0]} and {halves[1]}, expected {pages[:place]} and {pages[place:]}"
    for each, want in ((node, keys[:place]), (rest, keys[place:])):
        assert each.keys == want, \
            f"{about}: {len(each.keys)} keys for {len(want)} pages. Keys are cut where pages are"
    assert list(rest.children) == list(on), (
        f"{about}: {len(rest.children)} runs go on from the rest, expected the {len(on)} that went "
        f"on from the whole")
    assert len(node.children) == 1, \
        f"{about}: the node has {len(node.children)} children, expected one, the rest"
    ((first, child),) = node.children.items()
    assert first == keys[place], \
        f"{about}: the rest is found by {first}, which is not what it begins with, {keys[place]}"
    assert is_same(subject, child, rest), f"{about}: the child is not the node that is returned"
    assert is_same(subject, rest.parent, node), f"{about}: the rest's parent is another node"
    assert is_same(subject, node.parent, above), f"{about}: the node's own parent has changed"
    ((first, child),) = above.children.items()
    assert first == keys[0] and is_same(subject, child, node), \
        f"{about}: what is above leads to the node as before, not to {first}"
    for child, leaf in zip(on.values(), further, strict=True):
        assert is_same(subject, leaf.parent, child), \
            f"{about}: the parent of a run further down has changed; it hangs on the same run"
        ((first, same),) = child.children.items()
        assert first == ("", 9) and is_same(subject, same, leaf), \
            f"{about}: what goes on from page {child.pages[0]} has changed"
    for key, child in on.items():
        assert is_same(subject, rest.children[key], child), \
            f"{about}: another run goes on by {key} than before"
    for child in on.values():
        assert is_same(subject, child.parent, rest), (
            f"{about}: page {child.pages[0]} goes on from the rest now, and its parent is still "
            f"the node in front")


def test_split__in_the_tree(subject):
    """Texts that part in a run, and part again before that."""
    tree, params = subject.RadixTree(), subject.make("layer3_system:SamplingParams")
    texts = [[1, 1, 2, 2, 3, 3, 4, 4], [1, 1, 2, 2, 3, 3, 5, 5], [1, 1, 6, 6]]
    tables = [[0, 1, 2, 3], [0, 1, 2, 7], [0, 9]]
    for text, table in zip(texts, tables, strict=True):
        request = subject.make("layer3_system:Request", "r", text, params, table=table)
        for i in range(len(table)):
            tree.note(request, i, 2)
    for text, table in zip(texts, tables, strict=True):
        request = subject.make("layer3_system:Request", "r", text, params)
        got = tree.find(request, len(table), 2)
        assert got == table, f"split: after three texts, {text} is found in {got}, expected {table}"


def test_split__unseen(subject, rng):
    """Runs of two pages and more, cut at every place; keys that occur several times, in the run and
    in what goes on from it."""
    for kinds in (99, 99, 2, 3, 1):
        count, children = rng.integers((2, 0), (7, 4)).tolist()
        if kinds == 99:
            tokens = rng.permutation(99)[:2 * (count + children)].reshape(-1, 2).tolist()
        else:
            tokens = [[7, int(n)] for n in rng.integers(kinds, size=count)] + [
                [7, n] for n in range(min(children, kinds))]
        keys, pages = list(map(tuple, tokens)), rng.permutation(40)[:len(tokens)].tolist()
        behind = list(zip(keys[count:], pages[count:], strict=True))
        for place in range(1, count):
            run_is_cut(subject, keys[:count], pages[:count], behind, place)


# ---- the indexes, by themselves


def noted(index, tokens, table, S=4, salt=""):
    """A request whose pages an index was told of; its table names what the index answered."""
    request = Request("r", list(tokens), SamplingParams(), salt=salt, table=list(table))
    for i in range(len(table)):
        request.table[i] = index.note(request, i, S)
    return request


def found(index, tokens, S=4, salt=""):
    request = Request("r", list(tokens), SamplingParams(), salt=salt)
    return index.find(request, len(tokens) // S, S)


@BOTH
def test_collision(index):
    """Case 13: tokens of one Python hash, tokens that differ in high bits only, are not a hit."""
    known = index()
    noted(known, [0] * 4 + [1] * 4, [5, 6])
    assert hash((0,) * 4) == hash((2**61 - 1,) * 4)
    for wrong in (2**61 - 1, 2**32, 256, 1):
        assert found(known, [wrong] * 4 + [1] * 4) == []
    assert found(known, [0] * 4 + [1] * 4) == [5, 6]


def test_a_name_is_a_strong_hash_of_the_whole_text():
    """Case 13: as written in the docstring, so that other programs can name the same pages."""
    known, tokens = HashChain(), [7, 300, 2**40, 0, 1, 2, 3, 4]
    request = noted(known, tokens, [5, 6], salt="blue")
    name = sha256(b"blue").digest()
    for i in (0, 4):
        name = sha256(name + b"".join(t.to_bytes(8, "little") for t in tokens[i:i + 4])).digest()
        assert request.hashes[i // 4] == name


@BOTH
def test_parent_chain(index):
    """Case 13: the same tokens after other text are another page."""
    known = index()
    noted(known, [1] * 4 + [2] * 4 + [3] * 4, [0, 1, 2])
    assert found(known, [9] * 4 + [2] * 4) == []
    assert found(known, [2] * 4) == []
    assert found(known, [1] * 4 + [3] * 4) == [0]
    assert noted(known, [9] * 4 + [2] * 4, [5, 6]).table == [5, 6]
    assert found(known, [9] * 4 + [2] * 4) == [5, 6]
    assert found(known, [1] * 4 + [2] * 4 + [3] * 4) == [0, 1, 2]


@BOTH
def test_salt(index):
    """Case 13: requests with different salts share nothing."""
    known, text = index(), [1] * 8
    noted(known, text, [0, 1], salt="red")
    assert found(known, text) == found(known, text, salt="blue") == []
    assert noted(known, text, [4, 5], salt="blue").table == [4, 5]
    assert found(known, text, salt="red") == [0, 1] and found(known, text, salt="blue") == [4, 5]
    known.drop(0)
    assert found(known, text, salt="red") == [] and found(known, text, salt="blue") == [4, 5]


@BOTH
def test_a_copy_is_never_named(index):
    """Case 12: evicting a copy keeps the twin's entry."""
    known, text = index(), [1] * 4 + [2] * 4
    noted(known, text, [0, 1])
    assert noted(known, text, [4, 5]).table == [0, 1]
    known.drop(4), known.drop(5)
    assert found(known, text) == [0, 1]


@BOTH
def test_drop(index):
    """Pages after a dropped one are not found; an unknown page may be dropped."""
    known, text = index(), [1] * 4 + [2] * 4 + [3] * 4
    noted(known, text, [0, 1, 2])
    known.drop(1), known.drop(1), known.drop(99)
    assert found(known, text) == [0]
    assert noted(known, text, [0, 5, 6]).table[1] == 5
    assert found(known, text)[:2] == [0, 5]


def test_where_tree_and_chain_differ():
    """A page whose predecessor went and came back: the chain has kept its name."""
    chain, tree, text = HashChain(), RadixTree(), [1] * 4 + [2] * 4
    for known in (chain, tree):
        noted(known, text, [0, 1])
        known.drop(0)
        assert found(known, text) == []
        noted(known, text[:4], [7])
    assert found(chain, text) == [7, 1]
    assert found(tree, text) == [7]


def check_tree(tree):
    """Every page is where place_of says, once, in a run that its parent knows by its first key."""
    seen, nodes = {}, [tree.root]
    assert not tree.root.pages and tree.root.parent is None
    while nodes:
        node = nodes.pop()
        assert len(node.keys) == len(node.pages) and (node.pages or node is tree.root)
        seen |= {page: (node, place) for place, page in enumerate(node.pages)}
        for key, child in node.children.items():
            assert child.parent is node and child.keys[0] == key
            nodes.append(child)
    assert seen == tree.place_of


class WholeTexts:
    """What an index must find, from a dictionary of texts. behind: drop takes later pages, too."""

    def __init__(self, behind):
        self.behind, self.page_of = behind, {}

    def note(self, text, table, i):
        before = text[:i]
        if self.behind and i and self.page_of.get(before) != table[i - 1]:
            return table[i]
        return self.page_of.setdefault(text[:i + 1], table[i])

    def drop(self, text):
        if self.behind:
            self.page_of = {t: p for t, p in self.page_of.items() if t[:len(text)] != text}
        else:
            self.page_of.pop(text, None)

    def find(self, text):
        pages = [self.page_of.get(text[:i + 1]) for i in range(len(text))]
        return pages[:pages.index(None)] if None in pages else pages


@pytest.mark.parametrize("seed", range(20))
def test_random_texts_under_random_drops(seed):
    """Chain and tree find what dictionaries of texts do; the tree, a prefix of the chain's."""
    rnd, fresh = random.Random(seed), iter(range(10**6))
    both = [(HashChain(), WholeTexts(False)), (RadixTree(), WholeTexts(True))]
    live, apart = [], 0
    for _ in range(400):
        if rnd.random() < 0.3 or not live:
            pages = tuple(rnd.randrange(2) for _ in range(rnd.randrange(1, 7)))
            tokens = [t for page in pages for t in (page, 5)]
            live.append((pages, [Request("r", tokens, SamplingParams()) for _ in both]))
        pages, requests = rnd.choice(live)
        i = len(requests[0].table)
        if rnd.random() < 0.3:
            gone = pages[:rnd.randrange(len(pages)) + 1]
            for known, oracle in both:
                if gone in oracle.page_of:
                    known.drop(oracle.page_of[gone])
                    oracle.drop(gone)
        elif i < len(pages):
            for (known, oracle), request in zip(both, requests, strict=True):
                request.table.append(next(fresh))
                want = oracle.note(pages, request.table, i)
                assert known.note(request, i, 2) == want
                request.table[i] = want
        lengths = []
        for (known, oracle), request in zip(both, requests, strict=True):
            assert known.find(request, len(pages), 2) == oracle.find(pages)
            lengths.append(len(oracle.find(pages)))
        check_tree(both[1][0])
        assert lengths[1] <= lengths[0]
        apart += lengths[0] != lengths[1]
    assert apart > 0, "texts and drops never set them apart: the test shows little"


# ---- the pool, in an engine


def engine(index=HashChain, P=64, S=4, model=None, **limits):
    pool = PrefixPool(P, S, index())
    return Engine(model or MockLlama(200), ByteTokenizer(), pool, Scheduler(pool, **limits))


def drain(engine):
    while engine.busy:
        engine.step()
        check_engine(engine)


def served(engine, *prompts, max_tokens=1, **entries):
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, **entries)
    requests = [engine.submit(prompt, params)[0] for prompt in prompts]
    drain(engine)
    return requests


def alone(prompt, max_tokens):
    pool = BlockPool(64, 4)
    (request,) = served(Engine(MockLlama(200), ByteTokenizer(), pool, Scheduler(pool)), prompt,
                        max_tokens=max_tokens)
    return request.output


@BOTH
@pytest.mark.parametrize("n, want", [(11, 8), (12, 8), (13, 12), (4, 0), (5, 4), (1, 0)])
def test_whole_prompt_is_known(index, n, want):
    """Case 7: at least one token is computed, and the scores are those of the whole prompt."""
    served_before, prompt = engine(index), list(range(n))
    served(served_before, prompt, max_tokens=9)
    (again,) = served(served_before, prompt, max_tokens=9)
    assert again.num_cached == want < n
    assert again.output == alone(prompt, 9)


@BOTH
def test_an_answer_is_known_but_its_last_token(index):
    """A turn finds what the turn before computed, which is all but the last token drawn."""
    e, prompt = engine(index), list(range(7))
    (first,) = served(e, prompt, max_tokens=6)
    (second,) = served(e, first.tokens + [3, 3, 3])
    assert first.num_computed == 12 and second.num_cached == 12
    (first,) = served(e, [9, *prompt], max_tokens=5)        # 13 tokens, the last never computed
    (second,) = served(e, first.tokens + [3, 3, 3])
    assert first.num_computed == 12 and second.num_cached == 12


@BOTH
def test_partial_page_is_nobody_elses(index):
    """Case 8: texts that part within a page share only the pages before."""
    e = engine(index)
    served(e, [1, 2, 3, 4, 5, 6])
    (second,) = served(e, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert second.num_cached == 4
    assert second.output == alone(second.prompt, 1)


@BOTH
@pytest.mark.parametrize("chunk", [None, 3])
def test_two_identical_prompts_in_one_step(index, chunk):
    """Case 9: the second does not read what is not written; both compute, then share."""
    e, prompt = engine(index, chunk=chunk), list(range(14))
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    one, other = (e.submit(prompt, params)[0] for _ in range(2))
    computed = 0
    while len(one.output) == 0:
        e.step()
        check_engine(e)
        computed += sum(e.counts.values())
    assert computed == 28 and other.num_cached == 0
    assert one.table[:3] == other.table[:3] and one.table[3] != other.table[3]
    assert e.pool.used == 5
    drain(e)
    assert one.output == other.output == alone(prompt, 6)


@BOTH
def test_hit_on_a_free_page(index):
    """Case 10: a page that is found leaves the free list, and is not counted as free, too."""
    e = engine(index, P=5)
    (first,) = served(e, list(range(12)))
    pages = e.pool.match_prefix(first)
    assert e.pool.used == 0 and len(pages) == 3
    assert all(page in e.pool.free for page in pages)
    (other,) = e.submit([50, 51], SamplingParams(max_tokens=14, ignore_eos=True))
    e.step()                                            # holds one page of five
    before = list(e.pool.refs), set(e.pool.free)
    (second,) = e.submit(list(range(14)), SamplingParams(max_tokens=1, temperature=0))
    e.step()                                            # three found, one more, one kept in reserve
    assert second.status == "waiting" and (list(e.pool.refs), set(e.pool.free)) == before
    e.abort([other])
    e.step()
    assert second.num_cached == 12 and second.output == alone(second.prompt, 1)
    assert not e.pool.used
    drain(e)


@BOTH
def test_eviction_order(index):
    """Case 12: of the pages given back longest ago first, and of a text from its end on."""
    e = engine(index, P=8)
    (old,) = served(e, [1] * 13)                        # four pages, three of them known
    (new,) = served(e, [2] * 13)
    served(e, [3] * 5)                                  # two pages, of the oldest
    assert len(e.pool.match_prefix(old)) == 2 and len(e.pool.match_prefix(new)) == 3
    served(e, [4] * 5)
    assert len(e.pool.match_prefix(old)) == 0 and len(e.pool.match_prefix(new)) == 3
    served(e, [2] * 13, [5] * 9)                        # in use again, so not the oldest any more
    assert len(e.pool.match_prefix(new)) == 3


@BOTH
def test_evicting_a_copy_keeps_the_twin(index):
    """Case 12: two computed the same; the one that made way is taken, the other is still found."""
    e, prompt = engine(index, P=8), [1] * 9
    one, other = served(e, prompt, prompt)
    pages = e.pool.match_prefix(one)
    others = [page for page in e.pool.free if page not in pages]
    assert None not in [e.pool.take() for _ in others]
    assert e.pool.match_prefix(other) == pages and len(pages) == 2


class TableFirst(PrefixPool):
    """A pool that refuses to free a page that a table still names."""

    tables = ()

    def cache_pages(self, request):
        self.tables = [request.table]
        super().cache_pages(request)
        self.tables = ()

    def release(self, table):
        for page in table:
            assert self.refs[page] > 1 or not any(page in t for t in self.tables)
        self.swaps = getattr(self, "swaps", 0) + bool(self.tables)
        super().release(table)


@BOTH
def test_the_table_changes_before_the_copy_is_free(index):
    """Case 14."""
    pool = TableFirst(32, 4, index())
    e = Engine(MockLlama(200), ByteTokenizer(), pool, Scheduler(pool))
    served(e, list(range(14)), list(range(14)), max_tokens=6)
    assert pool.swaps >= 3
    check_pool(pool, [])


@BOTH
def test_scores_of_the_prompt_pass_the_cache_by(index):
    """Case 29: with prompt_logprobs the whole prompt is computed; its pages are shared after."""
    e, prompt = engine(index), list(range(13))
    served(e, prompt)
    known = e.pool.match_prefix(Request("r", prompt, SamplingParams()))
    (asks,) = served(e, prompt, prompt_logprobs=2)
    assert asks.num_cached == 0 and len(asks.prompt_logprobs) == 12
    (fresh,) = served(engine(index), prompt, prompt_logprobs=2)
    assert asks.prompt_logprobs == fresh.prompt_logprobs
    assert e.pool.match_prefix(Request("r", prompt, SamplingParams())) == known
    (after,) = served(e, prompt)
    assert after.num_cached == 12


@BOTH
def test_salts_in_the_engine(index):
    """Case 13: the time of an answer does not tell what another salt has asked."""
    e, prompt = engine(index), list(range(9))
    for salt, want in (("red", 0), ("blue", 0), ("red", 8), ("blue", 8), ("", 0)):
        (request,) = e.submit(prompt, SamplingParams(max_tokens=1), salt=salt)
        drain(e)
        assert request.num_cached == want


# ---- the soak


class EndsFirst(RadixTree):
    """A tree in which a dropped page must be the last of its text."""

    def drop(self, page):
        if page in self.place_of:
            node, place = self.place_of[page]
            assert place == len(node.pages) - 1 and not node.children, \
                f"page {page} is taken before those after it"
        super().drop(page)


def four_letters(context, V):
    g = torch.Generator().manual_seed(hash(tuple(context)) % 2**31)
    scores = torch.full((V,), -20.0)
    scores[:4], scores[256] = torch.rand(4, generator=g) * 3, -2.0
    return scores


class Guesses:
    """A drafter that guesses at random, the same in each run."""

    def __init__(self, seed):
        self.rnd = random.Random(seed)

    def propose(self, tokens):
        return [self.rnd.randrange(4) for _ in range(self.rnd.randrange(4))]


class Soak:
    """One engine under random requests and aborts, all by its seed."""

    def __init__(self, seed, index, mode):
        self.rnd, self.live = random.Random(seed), []
        pool = PrefixPool(24, 4, index)
        limits = self.rnd.choice([6, 9, 32]), self.rnd.choice([None, 3])
        self.engine = Engine(MockLlama(80, scores=four_letters), ByteTokenizer(), pool,
                             Scheduler(pool, 6, *limits), overlap=mode == "overlap",
                             drafter=Drafter(Guesses(seed).propose) if mode == "guesses" else None)

    def step(self):
        rnd, engine = self.rnd, self.engine
        if rnd.random() < 0.3:
            prompt = rnd.choice([[1] * 9, [2, 3] * 8, [0]])
            prompt = prompt + [rnd.randrange(4) for _ in range(rnd.randrange(1, 20))]
            self.live += engine.submit(prompt, SamplingParams(
                max_tokens=rnd.randrange(1, 30), seed=rnd.randrange(9), n=rnd.choice([1, 1, 3]),
                temperature=rnd.choice([0, 1.0])), salt=rnd.choice(["", "", "blue"]))
        if self.live and rnd.random() < 0.04:
            engine.abort([rnd.choice(self.live)])
        engine.step()
        check_engine(engine)
        if isinstance(engine.pool.index, RadixTree):
            check_tree(engine.pool.index)
        return [(r.id, r.index, n, tuple(r.table)) for r, n in engine.counts.items()]

    def end(self):
        drain(self.engine)
        assert not self.engine.pool.used
        assert all(r.reason in ("stop", "length", "abort") for r in self.live)
        return [(r.id, r.index, r.reason, r.output) for r in self.live]


@pytest.mark.parametrize("mode", ["plain", "overlap", "guesses"])
@pytest.mark.parametrize("seed", range(4))
def test_soak(seed, mode):
    """A chain and a tree side by side: the same pages in every step, every invariant after each;
    the pool takes a text's pages from its end on; tokens are those of an engine without either."""
    chain, tree = (Soak(seed, index, mode) for index in (HashChain(), EndsFirst()))
    for _ in range(250):
        assert chain.step() == tree.step()
    assert chain.end() == tree.end()
    assert sum(r.num_cached for r in chain.live) > 100
    assert sum(r.preemptions for r in chain.live) > 0
    assert len(tree.engine.pool.index.place_of) <= 24
    for request in tree.live[::8]:
        if request.reason != "abort" and request.index == 0:
            params = request.params
            e = Engine(MockLlama(80, scores=four_letters), ByteTokenizer(), BlockPool(24, 4))
            (again,) = e.submit(request.prompt, SamplingParams(
                max_tokens=params.max_tokens, seed=params.seed, temperature=params.temperature))
            drain(e)
            assert again.output == request.output
