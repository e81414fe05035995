"""Graders of s06.
A prediction is counted in a real pool; pages, tables and counts are compared with what a
dictionary of whole texts would say."""

from bisect import bisect_left
from contextlib import suppress
from itertools import product

import numpy as np

from lab.judge.compare import brief
from lab.judge.mistakes import mistake
from lab.judge.subject import Raised
from layer3_system import (
    ByteTokenizer,
    Engine,
    MockLlama,
    PrefixPool,
    SamplingParams,
)

WHY = {
    # page_hash
    "no_bytes": "A name is bytes.",
    "cut_short": "A shortened name may belong to two texts.",
    "no_parent": "Is the parent's name in the hash?",
    "sorted": "The order of its tokens must change the name.",
    "one_byte": "Is only one byte of a token hashed?",
    "two_bytes": "Are only two bytes of a token hashed?",
    "four_bytes": "Are only four bytes of a token hashed?",
    "seven_bytes": "A token is below 2⁶³: hash all eight of its bytes.",
    "digits_joined": "Their digits are the same in another split. Tokens need a fixed width.",
    "no_chain": "Each page before, and the order of pages, must change the name.",
    "largest_token": "The largest token, 2⁶³ - 1, is a token of its own.",
    "bytes_as_needed": "With as few bytes as each token needs they read alike: hash 8 of each.",
    "padded": "Padding a short hash to 32 bytes does not make it stronger.",
    "repeated": "Repeating a short hash does not make it stronger.",
    "python_hash": "Python's hash() is the same for both, so an attacker can make two texts with "
                   "one name.",
    # longest_hit
    "after_gap": "A page after a gap was taken. Its keys and values depend on the missing page.",
    "names_returned": "These are names; return their pages.",
    "page_0_left_out": "Page 0 is a page, although 0 counts as false.",
    "all_or_nothing": "The pages before the first unknown name are hits; do not drop them.",
    "last_hit_lost": "Stop at the first unknown name, and keep all pages before it.",
    "bisects": "Names after a gap may be known, so halving the range can miss the gap.",
    "stops_early": "The names after these are known as well, without a gap.",
    # note_full_pages
    "part_full": "A page was noted whose last slots are still empty.",
    "not_computed": "Pages were noted whose tokens are not computed yet.",
    "last_one_missed": "A page is full once its last slot is computed.",
    "count_unchanged": "It is the number of the request's pages in the index.",
    "noted_again": "Begin at request.num_cached_pages.",
    "own_slots": "The number of slots is pool.S.",
    "copy_stays": "One copy of a text is enough: the table should name the older pages.",
    "table_unchanged": "Another request will overwrite it.",
    "table_last": "First put the older page into the table, then release the copy.",
    "not_shared": "Was pool.share called?",
    "copy_lost": "The copy is in no table and not free: it is lost to the pool.",
    "still_free": "pool.share takes a page off the free list; a page in a table must not stay "
                  "there.",
    "still_held": "Another answer holds the copy as well, so it is not free yet.",
    # split
    "nothing_returned": "Return the new node.",
    "old_node": "The new node is the one with the pages from `place` on.",
    "page_lost": "Every page stays in one of the two nodes.",
    "by_key": "A key may occur twice in a run: cut at `place`.",
    "other_place": "Cut at `place`.",
    "keys_not_cut": "Cut the keys at the same place as the pages.",
    "no_children": "All children of the old node become children of the new one.",
    "children_stay": "The old node has one child, the new node.",
    "other_key": "A node is stored under its own first key.",
    "parent_changed": "The parent still leads to the old node, which has the first pages.",
    "parent_stays": "The `parent` of each child is the new node now.",
    "below_changed": "Nothing changes below the children.",
}


def tell(name, seen):
    """The message of a mistake, or of "", which names none: what was seen, and why it is wrong."""
    return mistake(name, f"{seen}. {WHY.get(name, '')}".rstrip(), WHY.get(name, ""))


# ---- predict_hit_rate


def counted_hit_rate(users, N, U, S):
    """Tokens of hits, divided by tokens of all prompts, in a pool with room for all."""
    engine = Engine(MockLlama(512), ByteTokenizer(),
                    PrefixPool(-(-users * (N + U + 1) // S) + users, S))
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    hits = 0
    for user in range(users):
        (request,) = engine.submit([9] * N + [20 + user] * U, params)
        while engine.busy:
            engine.step()
        hits += request.num_cached
    return hits / (users * (N + U))


USERS = [(4, 70, 31, 16), (3, 64, 0, 16), (2, 64, 5, 16), (5, 13, 30, 16), (1, 90, 9, 8),
         (3, 50, 0, 16), (6, 33, 1, 4), (2, 1, 0, 4)]


def test_predict_hit_rate(subject, agree, truth):
    rates = truth(lambda: [counted_hit_rate(*case) for case in USERS])
    for case, counted in zip(USERS, rates, strict=True):
        users, N, U, S = case
        agree(subject.predict_hit_rate(*case), counted, "float64",
              f"predict_hit_rate: {users} users, {N} tokens shared, {U} of their own, pages of {S}",
              at=lambda i: "the hit rate", mistakes=wrong_rates(*case))


def wrong_rates(users, N, U, S):
    """{id: (what went wrong, the hit rate that comes of it)}."""
    def rate(hit, hits=users - 1, tokens=users * (N + U)):
        return hits * hit / tokens

    most = min(N, N + U - 1)
    rates = {
        "parts_of_pages": ("partly filled pages are counted as hits", rate(most)),
        "first_user_hits": ("the first user hits something, although no user came before",
                            rate(most // S * S, users)),
        "own_tokens_left_out": ("the users' own tokens are missing from the total",
                                rate(most // S * S, tokens=users * N)),
        "own_tokens_hit": ("the users' own tokens are counted as hits",
                           rate((N + U - 1) // S * S))}
    if U == 0:
        rates["whole_prompt"] = ("a whole prompt is hit, so that no token is left whose scores "
                                 "can be computed", rate(N // S * S))
    if N % S:
        rates["rounded_up"] = "the number of full pages is rounded up", rate(-(-N // S) * S)
    return rates


def test_predict_hit_rate__unseen(unseen, rng):
    for U in (0, *rng.integers(1, 60, 4).tolist()):
        users, N, S = rng.integers(1, (10, 200, 33)).tolist()
        unseen("predict_hit_rate", users, N, U, S)


# ---- page_hash

PARENT, TOKENS = bytes(range(32)), (5, 12, 3, 5)
OTHERS = [("no_parent", PARENT[::-1], TOKENS), ("sorted", PARENT, (12, 5, 3, 5)),
          *((name, PARENT, (5 + more, *TOKENS[1:])) for name, more in (
              ("one_byte", 2**8), ("two_bytes", 2**16), ("four_bytes", 2**32),
              ("seven_bytes", 2**62))),
          ("digits_joined", PARENT, (51, 2, 3, 5))]


def name_of(subject, parent, tokens):
    """What page_hash returns, 32 bytes; else an AssertionError."""
    name = subject.page_hash(parent, tokens)
    what = f"page_hash of {list(tokens)}"
    assert isinstance(name, bytes), tell(
        "no_bytes", f"{what}: got {type(name).__name__}, expected bytes")
    assert len(name) == 32, tell("cut_short", f"{what}: got {len(name)} bytes, expected 32")
    return name


def test_page_hash(subject):
    name = name_of(subject, PARENT, TOKENS)
    assert name_of(subject, PARENT, TOKENS) == name, mistake(
        "unsteady_name", "page_hash: the same page got two names")
    for mistake_name, parent, tokens in OTHERS:
        pages = f"page {list(tokens)} gets one name after two different parents" \
            if tokens == TOKENS else f"pages {list(TOKENS)} and {list(tokens)} get one name"
        assert name_of(subject, parent, tokens) != name, tell(mistake_name, f"page_hash: {pages}")


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
        name, what = name_of(subject, before, tuple(tokens)), f"page {tokens} after {before.hex()}"
        assert name not in seen, f"page_hash: {what} has the same name as {seen[name]}"
        seen[name] = what
    assert subject.page_hash(parent, tuple(page)) in seen, mistake(
        "unsteady_name", "page_hash: the same page got two names")


def test_page_hash__pages_in_turn(subject):
    """All texts of up to three pages out of four: the name tells which page comes when."""
    pages = [(1, 2), (2, 1), (1, 1), (0, 2**63 - 1)]
    begin, texts = bytes(32), {bytes(32): ()}
    for text in (t for n in (1, 2, 3) for t in product(pages, repeat=n)):
        name = begin
        for page in text:
            name = subject.page_hash(name, page)
        other = texts.setdefault(name, text)
        assert other == text, tell("no_chain", (
            f"page_hash: after the pages {text}, in this order, the name is the same as after "
            f"{other or 'no page at all'}"))
    assert subject.page_hash(begin, (7,)) != subject.page_hash(begin, (8,)), mistake(
        "short_pages", "page_hash: pages of one token have one name")
    ends = {subject.page_hash(begin, (token,)) for token in (2**63 - 1, 2**63 - 2, 0)}
    assert len(ends) == 3, tell(
        "largest_token", "page_hash: of the tokens 2⁶³ - 1, 2⁶³ - 2 and 0 two have one name")


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
            assert subject.page_hash(parent, one) != subject.page_hash(parent, other), tell(
                "bytes_as_needed", f"page_hash: pages {one} and {other}, whose digits in base "
                f"{base}{', the last first,' * last_first} are the same, get one name")


def test_page_hash__strong(subject, rng):
    """Every byte of a name carries information, and no byte repeats another."""
    names = [subject.page_hash(rng.bytes(32), tuple(rng.integers(2**62, size=3).tolist()))
             for _ in range(100)]
    columns = list(zip(*names, strict=True))
    for i, column in enumerate(columns):
        values = len(set(column))
        assert values >= 40, tell(
            "padded", f"page_hash: byte {i} takes only {values} values in 100 names")
    assert len(set(columns)) == 32, tell("repeated", "page_hash: two bytes of a name are always "
                                                     "equal")
    parent = rng.bytes(32)
    assert subject.page_hash(parent, (7, 1)) != subject.page_hash(parent, (2**61 + 6, 1)), tell(
        "python_hash", "page_hash: the tokens 7 and 2⁶¹ + 6 have one name")


# ---- longest_hit

KNOWN = {b"The": 3, b" warp": 0, b" waits": 7, b" again": 1}
TEXTS = ["The| warp| waits", "The| waits| has| again", "The| block| waits", "A| warp| waits", "",
         "The| warp| waits| again"]


def test_longest_hit(subject):
    for text in TEXTS:
        names = [part.encode() for part in text.split("|") if part]
        judge_hit(subject, names, KNOWN, f"longest_hit of {names}, pages {KNOWN}")


def test_longest_hit__unseen(subject, rng):
    """Few names, so that gaps are frequent; each text with a table of its own.
    Then a long one."""
    cases = [([b"a", b"b"], {}), ([], {}),
             ([b"a", b"b", b"c"], {b"a": 2**31, b"b": 2**15, b"d": 3})]
    for _ in range(200):
        names = [b"%d" % n for n in rng.permutation(12)[:rng.integers(9)].tolist()]
        known = [name for name in names if rng.random() < 0.8] + [b"another"]
        cases.append((names, dict(zip(known, rng.permutation(len(known)).tolist(), strict=True))))
    for names, page_of in cases:
        judge_hit(subject, names, page_of, f"longest_hit of {names}, pages {page_of}")
    names = [b"%d" % n for n in range(2**15 + 2)]
    page_of = {name: page for page, name in enumerate(names[:-1])}
    judge_hit(subject, names, page_of, "longest_hit of 32,770 names, all known but the last")


def judge_hit(subject, names, page_of, what):
    got = subject.longest_hit(names, page_of)
    assert isinstance(got, (list, tuple)), \
        f"{what}: got {type(got).__name__}, expected a list of pages"
    count = next((i for i, name in enumerate(names) if name not in page_of), len(names))
    want, got = [page_of[name] for name in names[:count]], list(got)
    known = [page_of[name] for name in names if name in page_of]
    halved = bisect_left(names, True, key=lambda name: name not in page_of)
    name = next((name for name, fits in (
        ("after_gap", got == known), ("names_returned", got[:1] == names[:1] != []),
        ("page_0_left_out", 0 in want and got == want[:want.index(0)]),
        ("all_or_nothing", not got), ("last_hit_lost", got == want[:-1]),
        ("bisects", len(got) == halved > count), ("stops_early", got == want[:len(got)]))
        if fits), "")
    assert got == want, tell(name, f"{what}: got {brief(got)}, expected {brief(want)}")


# ---- note_full_pages

S = 4


class Noted:
    """A pool under test whose index keeps the calls of `note`; requests whose pages are filled."""

    def __init__(self, subject, P=12, slots=S):
        self.subject, self.tree, self.slots = subject, subject.RadixTree(), slots
        self.note = subject.make("lab.judge.mocks:Watched", self.tree.note)
        index = subject.make("types:SimpleNamespace", note=self.note, find=self.tree.find,
                             drop=self.tree.drop)
        self.pool = subject.PrefixPool(P, slots, index)
        self.params = subject.make("layer3_system:SamplingParams")

    def request(self, tokens, computed):
        pages = -(-len(tokens) // self.slots)
        return self.on(tokens, [self.pool.take() for _ in range(pages)], computed)

    def on(self, tokens, table, computed):
        """A request on pages that others hold."""
        return self.subject.make("layer3_system:Request", "r", list(tokens), self.params,
                                 table=table, num_computed=computed)

    def compute(self, request, computed):
        """Some more of its tokens are computed; then the exercise."""
        self.subject.make("builtins:setattr", request, "num_computed", computed)
        self.subject.note_full_pages(self.pool, request)


def test_note_full_pages(subject):
    """Cases 8 and 9: a page that is partly full, or not computed yet, is not shared."""
    cases = [(S, 6), (S, 8), (S, 3), (S, 12)]
    for slots in (1, 2, 3, 5, 16, 17):
        cases += [(slots, pages * slots + n) for pages in (1, 2) for n in (-1, 0, 1)]
    for slots, computed in cases:
        noted = Noted(subject, slots=slots)
        tokens = range(20, 20 + 3 * slots + (slots == S) * 2)
        request = noted.request(tokens, computed)
        subject.note_full_pages(noted.pool, request)
        want, got = request.table[:computed // slots], noted.tree.find(request, 3, slots)
        what = (f"note_full_pages: {len(tokens)} tokens, {computed} of them computed, pages of "
                f"{slots}")
        name = ("own_slots" if slots != S else
                "part_full" if len(got) == len(want) + 1 and computed % S else
                "not_computed" if len(got) > len(want) else
                "last_one_missed" if len(got) == len(want) - 1 and computed % S == 0 else "")
        assert got == want, tell(name, f"{what}: pages {got} are in the index, expected {want}")
        count = request.num_cached_pages
        assert count == len(want), tell("count_unchanged", (
            f"{what}: request.num_cached_pages is {count}, expected {len(want)}"))


def test_note_full_pages__goes_on(subject):
    noted = Noted(subject)
    request = noted.request(range(20, 34), 5)
    for computed in (5, 6, 13):
        noted.compute(request, computed)
    pages = [i for _, i, _ in noted.note.calls]
    assert pages == [0, 1, 2], tell("noted_again", (
        f"note_full_pages: after 5, then 6, then 13 computed tokens, index.note was called for the "
        f"pages {pages}; expected each full page once, [0, 1, 2]"))


def test_note_full_pages__copy(subject):
    """Case 14: the table names the other page, and only then the copy becomes free."""
    noted = Noted(subject)
    first = noted.request(range(20, 30), 10)
    second = noted.request([*range(20, 28), 1, 2, 3, 4, 5, 6], 13)
    older, own = first.table, second.table
    subject.note_full_pages(noted.pool, first)
    subject.note_full_pages(noted.pool, second)
    got, want, free = second.table, older[:2] + own[2:], list(noted.pool.free)
    what = (f"note_full_pages: tables {older} and {own}, whose first two pages have the same text. "
            f"The second table is {got} now")
    assert len(got) == len(own), f"{what}: a table keeps its length"
    for page in got:
        assert page not in free, tell("table_unchanged", f"{what}, and its page {page} is free")
    assert got == want, tell("copy_stays", f"{what}, expected {want}")
    refs = noted.pool.refs
    for page in older[:2]:
        assert refs[page] == 2, tell("not_shared", (
            f"{what}: page {page} is in two tables, but refs[{page}] is {refs[page]}"))
    for page in own[:2]:
        assert refs[page] == 0 and page in free, tell(
            "copy_lost", f"{what}: refs[{page}] is {refs[page]}, and free are {free}")
    assert first.table == older, mistake(
        "other_table", "note_full_pages: the other request's table has changed")


def test_note_full_pages__the_table_first(subject):
    """Case 14: when the copy is released, the table names the other page already."""
    noted = Noted(subject)
    first, second = (noted.request(range(20, 30), 10) for _ in range(2))
    want = first.table[0]
    subject.note_full_pages(noted.pool, first)
    fails = subject.make("operator:itemgetter", "one")
    subject.make("builtins:setattr", noted.pool, "release", fails)
    with suppress(Raised):                  # whatever is released, it has no item of that name
        subject.note_full_pages(noted.pool, second)
    got = second.table[0]
    assert got == want, tell("table_last", (
        f"note_full_pages: page {got} is released while the table still names it, expected page "
        f"{want} there by then"))


def test_note_full_pages__a_free_page(subject):
    """Case 10: a page that is free and in the index has a holder again, and is no longer free."""
    noted = Noted(subject)
    first, second = (noted.request(range(20, 30), 10) for _ in range(2))
    pages = first.table[:2]
    subject.note_full_pages(noted.pool, first)
    noted.pool.release(first.table)
    subject.note_full_pages(noted.pool, second)
    got, refs, free = second.table[:2], noted.pool.refs, list(noted.pool.free)
    counts = [refs[page] for page in pages]
    what = f"note_full_pages: pages {pages} are free and hold this request's text"
    assert got == pages, f"{what}: its table begins with {got}, expected {pages}"
    assert counts == [1, 1] and not set(pages) & set(free), tell("still_free", (
        f"{what}: they are in its table now, their counts are {counts}, and free are {free}"))


def test_note_full_pages__drawn(subject, rng):
    """Texts that begin alike, of one answer or two each; some end, and leave pages that are free
    and in the index; every table, count and free page after each call."""
    for slots, most in ((2, 3), (1, 3), (4, 6), (3, 3), (2, 3), (4, 3), (2, 3)):
        Notes(subject, rng, slots, most).run(30)


class Notes:
    """A pool under test, and what its tables, counts and free pages should be."""

    def __init__(self, subject, rng, slots, most):
        """most: pages of a text"""
        self.noted, self.rng, self.slots = Noted(subject, 40, slots), rng, slots
        self.page_of, self.events = {}, []
        self.texts, self.requests, self.tables = [], [], []
        for _ in range(4):
            text = rng.integers(2, size=int(rng.integers(1, most + 1))).tolist()
            request = self.noted.request([kind for kind in text for _ in range(slots)], 0)
            self.add(text, request)
            for _ in range(rng.integers(2)):        # another answer to it, on the same pages
                self.noted.pool.share(request.table)
                self.add(text, self.noted.on(request.prompt, request.table, 0))

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
                self.events.append(f"text {r} ends")
                self.noted.pool.release(request.table)
                table.clear()
                continue
            computed = int(self.rng.integers(request.num_computed, len(text) * self.slots + 1))
            self.events.append(f"text {r} has {computed} tokens computed")
            self.noted.compute(request, computed)
            for i in range(computed // self.slots):
                table[i] = self.page_of.setdefault(tuple(text[:i + 1]), table[i])
            self.hold(request, table, computed // self.slots)

    def hold(self, request, table, full):
        pool, what = self.noted.pool, (
            f"note_full_pages, pages of {self.slots} slots, texts of pages {self.texts}, in turn: "
            f"{', '.join(self.events)}")
        got = request.table, request.num_cached_pages
        assert got == (table, full), \
            f"{what}: its table and num_cached_pages are {got}, expected {(table, full)}"
        pages = [page for one in self.tables for page in one]
        refs, free = list(pool.refs), set(pool.free)
        both = sorted(set(pages) & free)
        name = "still_free" if both and both[0] in table else "still_held"
        assert not both, tell(name, f"{what}: page {both[0]} is in a table and free")
        want = np.bincount(pages, minlength=40).tolist()
        assert refs == want, f"{what}: the counts are {refs}, but by the tables {want}"
        unused = set(range(40)) - set(pages)
        assert free == unused, tell(
            "copy_lost", f"{what}: free are {sorted(free)}, expected {sorted(unused)}")


# ---- split


def test_split(subject):
    keys, pages = [("", 1), (2, 3), (4, 5), (6, 7), (8, 9)], [10, 11, 12, 13, 14]
    for below, place in product(([((0, 0), 3), ((0, 1), 5)], []), (2, 1, 4)):
        Cut(subject, keys, pages, below).judge(place)


class Cut:
    """A node under test between its parent and its children, each of which has a leaf."""

    def __init__(self, subject, keys, pages, below):
        """below: [(key, page)] of the children"""
        self.subject, self.keys, self.pages = subject, keys, pages
        self.parent = subject.Node([], [])
        self.children = {key: subject.Node([key], [page]) for key, page in below}
        self.node = subject.Node(keys, pages, self.parent, self.children)
        self.set(self.parent, "children", {keys[0]: self.node})
        self.leaves = [subject.Node([("", 9)], [99], child) for child in self.children.values()]
        for child, leaf in zip(self.children.values(), self.leaves, strict=True):
            self.set(child, "children", {("", 9): leaf})
            self.set(child, "parent", self.node)

    def set(self, node, name, value):
        self.subject.make("builtins:setattr", node, name, value)

    def same(self, one, other):
        return self.subject.make("operator:is_", one, other)

    def judge(self, place):
        what = f"split of a node with the pages {self.pages} at place {place}"
        rest = self.subject.split(self.node, place)
        assert rest is not None, tell("nothing_returned", f"{what}: got None, expected a node")
        assert not self.same(rest, self.node), tell(
            "old_node", f"{what}: the old node was returned")
        self.judge_contents(rest, place, what)
        self.judge_links(rest, place, what)
        self.judge_family(rest, what)

    def judge_contents(self, rest, place, what):
        keys, pages = self.keys, self.pages
        halves = self.node.pages, rest.pages
        lost = [page for page in pages if page not in halves[0] + halves[1]]
        assert not lost, tell("page_lost", f"{what}: the pages became {halves[0]} and {halves[1]}")
        name = "by_key" if len(halves[0]) == keys.index(keys[place]) else "other_place"
        assert halves == (pages[:place], pages[place:]), tell(
            name, f"{what}: got the pages {halves[0]} and {halves[1]}")
        for each, want in ((self.node, keys[:place]), (rest, keys[place:])):
            assert each.keys == want, tell(
                "keys_not_cut", f"{what}: {len(each.keys)} keys for {len(want)} pages")

    def judge_links(self, rest, place, what):
        assert list(rest.children) == list(self.children), tell("no_children", (
            f"{what}: the new node has {len(rest.children)} children, expected the "
            f"{len(self.children)} that the old node had"))
        children = self.node.children
        assert len(children) == 1, tell(
            "children_stay", f"{what}: the old node has {len(children)} children")
        ((first, child),) = children.items()
        assert first == self.keys[place], tell(
            "other_key", f"{what}: the new node is stored under {first}, expected "
            f"{self.keys[place]}")
        assert self.same(child, rest), f"{what}: the child is not the node that is returned"
        assert self.same(rest.parent, self.node), f"{what}: the new node has another parent"
        assert self.same(self.node.parent, self.parent), \
            f"{what}: the old node has another parent than before"
        ((first, child),) = self.parent.children.items()
        assert first == self.keys[0] and self.same(child, self.node), tell(
            "parent_changed", f"{what}: the parent leads to another node, under {first}")

    def judge_family(self, rest, what):
        for child, leaf in zip(self.children.values(), self.leaves, strict=True):
            ((first, below),) = child.children.items()
            unchanged = first == ("", 9) and self.same(below, leaf)
            assert unchanged and self.same(leaf.parent, child), tell(
                "below_changed", f"{what}: the child with page {child.pages[0]} and its own child "
                f"are linked in another way than before")
        for key, child in self.children.items():
            assert self.same(rest.children[key], child), \
                f"{what}: under the key {key} there is another child than before"
            assert self.same(child.parent, rest), tell("parent_stays", (
                f"{what}: page {child.pages[0]} is in a child of the new node, but its `parent` is "
                f"another node"))


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
        assert got == table, \
            f"split: after three texts in a tree, {text} hits the pages {got}, expected {table}"


def test_split__unseen(subject, rng):
    """Runs of two pages and more, cut at every place; keys that occur several times, in the run and
    in what continues it."""
    for kinds in (99, 99, 2, 3, 1):
        count, children = rng.integers((2, 0), (7, 4)).tolist()
        if kinds == 99:
            tokens = rng.permutation(99)[:2 * (count + children)].reshape(-1, 2).tolist()
        else:
            tokens = [[7, int(n)] for n in rng.integers(kinds, size=count)] + [
                [7, n] for n in range(min(children, kinds))]
        keys, pages = list(map(tuple, tokens)), rng.permutation(40)[:len(tokens)].tolist()
        below = list(zip(keys[count:], pages[count:], strict=True))
        for place in range(1, count):
            Cut(subject, keys[:count], pages[:count], below).judge(place)
