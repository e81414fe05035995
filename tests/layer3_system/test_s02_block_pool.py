"""Graders of s02.
A pool by the book runs beside the one under test, and both must hold the same.

A table is the caller's own list, changed in place: here a UserList that lives beside the pool.
"""

from numbers import Number

import pytest
import torch

from lab.judge.mistakes import mistake, named
from lab.judge.subject import Raised
from layer2_graph.testing.random_llama import random_llama
from layer3_system import BlockPool, Broken, Pages, check_pool
from tests.layer3_system.oracle_s02_block_pool import Beside, counted, soak, watch_evict

# ---- predict_pages

ANSWERS = [(5, 3, 2, 16), (4, 19, 16, 8), (3, 16, 16, 16), (1, 5, 3, 4), (2, 31, 1, 16),
           (2, 32, 1, 16), (2, 33, 40, 16), (128, 100, 30, 16), (3, 7, 2, 1)]


def test_predict_pages(subject, truth):
    shared = truth(lambda: [counted(*sizes) for sizes in ANSWERS])
    for sizes, pages in zip(ANSWERS, shared, strict=True):
        judge_prediction(subject.predict_pages(*sizes), pages, *sizes)


def test_predict_pages__unseen(unseen, rng):
    for n, prompt, answer, S in rng.integers(1, 200, (4, 4)).tolist():
        unseen("predict_pages", n, prompt, answer, S, precision="exact")


def judge_prediction(got, shared, n, prompt, answer, S):
    assert isinstance(got, (tuple, list)) and [isinstance(part, Number) for part in got] == [
        True, True], mistake("no_pair", (
            f"predict_pages: got {got!r}, expected two numbers: with sharing, without"))

    def up(N):
        return -(-N // S)

    full, each = prompt // S, up(prompt + answer)
    apart = n * each
    mistakes = {
        (apart, shared): ("other_order", "The order is (with sharing, without)."),
        (up(prompt) + n * (each - up(prompt)), apart): ("last_page_shared", (
            "The prompt's last page, if it is only partly full, is no longer shared once the "
            "answers write into it.")),
        (full + n * up(answer), apart): ("answer_on_new_page", (
            "An answer does not begin on a new page: its first tokens fill the prompt's last "
            "page.")),
        (full + n * each, apart): (
            "full_again", "The prompt's full pages are counted for each answer; they are shared."),
        (up(prompt) + n * up(answer), n * (up(prompt) + up(answer))): ("rounded_apart", (
            "Prompt and answer form one sequence: add them, then round up once.")),
    }
    wrong = [f"{case} sharing that is too {'many' if pages > right else 'few'}" for case, pages,
             right in zip(("with", "without"), got, (shared, apart), strict=True) if pages != right]
    name, words = mistakes.get(tuple(got), ("", ""))
    assert tuple(got) == (shared, apart), mistake(name, (
        f"predict_pages: {n} answers of {answer} tokens to a prompt of {prompt}, pages of {S}: got "
        f"{tuple(got)}; {', and '.join(wrong)}.\n{words}"), words)


# ---- slots_of


TABLES = [([5, 1, 6], 0, 40, 16), ([5, 1, 6], 36, 40, 16), ([3, 0, 2, 7], 3, 4, 4),
          ([3, 0, 2, 7], 4, 5, 4), ([3, 0, 2, 7], 7, 9, 4), ([9, 4, 2], 0, 3, 1), ([2, 8], 5, 5, 8)]


SLOTS = {               # {id: (what went wrong, the slot of token i that comes of it)}
    "no_table": ("the table is not used: a slot is a place in the pool, not in the sequence",
                 lambda i, table, begin, S: i),
    "page_as_slot": ("a page number is used as a slot: page p begins at slot p · S",
                     lambda i, table, begin, S: table[i // S] + i % S),
    "page_and_place": ("page and place are swapped: i // S is the entry, i % S the place",
                       lambda i, table, begin, S: table[i % S % len(table)] * S + i // S),
    "no_place": ("the place within the page is left out",
                 lambda i, table, begin, S: table[i // S] * S),
    "from_0": ("tokens are counted from 0, not from begin",
               lambda i, table, begin, S: table[(i - begin) // S] * S + (i - begin) % S),
    "place_from_begin": ("the place in the page is counted from begin, not from the first token",
                         lambda i, table, begin, S: table[i // S] * S + (i - begin) % S),
    "entry_from_begin": ("the entry of the table is counted from begin, not from the first token",
                         lambda i, table, begin, S: table[(i - begin) // S] * S + i % S),
    "neighbours": ("slots go on after the first one, as if the table's pages were neighbours",
                   lambda i, table, begin, S: table[begin // S] * S + i - begin // S * S),
    "by_table_length": ("page p is taken to begin at slot p · len(table); it begins at p · S",
                        lambda i, table, begin, S: table[i // S] * len(table) + i % S),
    "sorted": ("the table is sorted; its order is that of the sequence",
               lambda i, table, begin, S: sorted(table)[i // S] * S + i % S)}


def test_slots_of(subject, agree):
    """case 6: the last token of a page, and the first of the next, have slots of their own."""
    for table, begin, end, S in (([7, 2, 9], 4, 9, 4), ([7, 2, 9], 0, 1, 4), ([7, 2], 3, 3, 4)):
        got = len(subject.slots_of(table, begin, end, S))
        assert got == end - begin, mistake("end_included", (
            f"slots_of table {table}, begin {begin}, end {end}, pages of {S}: {got} slots, "
            f"expected {end - begin}: of the tokens begin to end - 1, without end"), "")
    for table, begin, end, S in TABLES:
        agree(subject.slots_of(table, begin, end, S),
              [table[i // S] * S + i % S for i in range(begin, end)], "exact",
              f"slots_of table {table}, tokens {begin} to {end - 1}, pages of {S}",
              at=lambda i, begin=begin, S=S: f"token {begin + i[0]}, entry {(begin + i[0]) // S} "
                                             f"of the table",
              mistakes={name: (words, [slot(i, table, begin, S) for i in range(begin, end)])
                        for name, (words, slot) in SLOTS.items()})


def test_slots_of__hard(subject, unseen, rng):
    """Slots past 31 bits, and small tables by the dozen in one process."""
    for table, S in (([2**28, 5, 2**27 + 1], 16), ([3, 40_000], 2**16), ([2**31], 1)):
        want = [table[i // S] * S + i % S for i in range(S - 1, len(table) * S)][:40]
        begin, got = S - 1, subject.slots_of(table, S - 1, S - 1 + len(want), S)
        assert list(got) == want, mistake("31_bits", (
            f"slots_of table {table}, tokens {begin} to {begin + len(want) - 1}, pages of {S}: got "
            f"{list(got)[:4]} …, expected {want[:4]} …: a slot may be past 31 bits"), "")
    for _ in range(60):
        S, n = rng.integers(1, 5, 2).tolist()
        begin, end = sorted(rng.integers(0, n * S + 1, 2).tolist())
        unseen("slots_of", rng.permutation(9)[:n].tolist(), begin, end, S, precision="exact")


def test_slots_of__unseen(unseen, rng):
    S, table = int(rng.integers(2, 40)), rng.permutation(50)[:9].tolist()
    begin, end = sorted(rng.choice(9 * S, 2, replace=False).tolist())
    unseen("slots_of", table, begin, end, S, precision="exact")


# ---- BlockPool.grow


def test_BlockPool_grow(subject):
    """case 6: lengths of kS - 1, kS and kS + 1 tokens."""
    for S, N in ((4, 7), (4, 8), (4, 9), (16, 47), (16, 48), (16, 49), (1, 3), (5, 1)):
        beside, need = Beside(subject, 12, S), -(-N // S)
        beside.add([])
        got, want = beside.call("grow", 0, N)
        (table,) = beside.tables
        of = f"BlockPool.grow of an empty table to {N} tokens, pages of {S}"
        assert table or not got, mistake("new_list", (
            f"{of}: the table is still empty. `table = …` binds a new list; change the one that "
            f"you were given in place, with `+=`."), "")
        mistakes = {N // S + 1: ("page_too_early", "The last page is exactly full: the next one is "
                                                   "needed only for the next token."),
                    N // S: ("rounded_down", "It was rounded down: the last tokens have no page."),
                    N: ("page_a_token", "A page holds S tokens, not one.")}
        name, words = mistakes.get(len(table), ("", ""))
        assert len(table) == need, mistake(
            name, f"{of}: it has {len(table)} pages, expected {need}. {words}", words)
        assert got is want, f"{of}: got {got!r}, expected {want}"
        beside.compare(of)


def test_BlockPool_grow__takes_its_pages(subject):
    """A pool that caches what is in its pages drops it in `evict`, which `take` calls."""
    pool = subject.BlockPool(6, 4)
    evicted = watch_evict(subject, pool)
    table = subject.make("collections:UserList", [])
    pool.grow(table, 9)
    pages = evicted()
    assert pages == list(table.data), mistake("without_take", (
        f"BlockPool.grow of an empty table to 9 tokens, pages of 4: the pages {list(table.data)} "
        f"are in the table, and `evict` was called for {pages}. Get pages from `take`: it calls "
        f"`evict`, with which s06 forgets their old contents"), "")


def test_BlockPool_grow__token_by_token(subject):
    """case 6: a new page exactly when the last one is full, before the token is written."""
    for S in (1, 3, 16):
        beside = Beside(subject, 9, S)
        beside.add([]), beside.add([])
        for N, t in ((N, t) for N in range(1, 3 * S + 2) for t in (0, 1)):
            before, (got, want) = list(beside.right[t]), beside.call("grow", t, N)
            table, right = beside.tables[t], beside.right[t]
            of = f"BlockPool.grow of table {t}, {before}, to {N} tokens, pages of {S}"
            assert table[:len(before)] == before, mistake(
                "pages_moved", f"{of}: got {table}: pages that were in the table have changed", "")
            name, words = ("own_not_counted", (
                "The pages that the table already has are not counted.")) if len(table) > len(
                right) else refusal(got, -(-N // S), len(before), beside.free)
            assert len(table) == len(right), mistake(name, (
                f"{of}: it has {len(table)} pages now, expected {len(right)}. {words}"), words)
            assert got is want, f"{of}: got {got!r}, expected {want}"
            beside.compare(of)
        slots = [page * S + i for table in beside.tables for page in table for i in range(S)]
        assert len(slots) == len(set(slots)), mistake(
            "slot_twice", "BlockPool.grow: two tokens have one slot")


def refusal(got, need, held, free):
    """(id, words): why a table got no page for a new token."""
    if got is False and need - held <= len(free) < need:
        return "all_must_be_free", (
            f"It is refused: {need} pages are needed in all, and {len(free)} are free; but the "
            f"table has {held} of them already, and only the missing ones must be free.")
    return "no_slot", "There is no slot for the new token."


def test_BlockPool_grow__all_or_nothing(subject):
    """Too few pages: nothing is taken."""
    for N, free in ((17, 2), (9, 0)):
        beside = Beside(subject, 2 + free, 4, [[0, 1]])
        evicted = watch_evict(subject, beside.pool)
        got, _ = beside.call("grow", 0, N)
        of = f"BlockPool.grow of [0, 1] to {N} tokens, pages of 4, {free} free"
        (table,) = beside.tables
        assert None not in table, mistake("none_in_table", (
            f"{of}: the table is {table}: take() returns None if no page is free. Compare with "
            f"len(self.free) first."), "")
        assert table == [0, 1] and got is False, mistake("keeps_some", (
            f"{of}: got {got!r} and the table {table}, expected False and [0, 1]. A sequence that "
            f"cannot go on must not hold pages that others could use: all or nothing."), "")
        beside.compare(of, order={(3, 2): ("order_changed", (
            "Pages were taken, and given back when there were too few: their order has changed, "
            "and `evict` was called for them. Count first, then take."))})
        pages = evicted()
        assert not pages, mistake("evicted", (
            f"{of}: pages {pages} were taken and given back: they are free again, but take() "
            f"evicted them, so their contents are lost. Count before you take any."), "")


def test_BlockPool_grow__enough(subject):
    """As many pages are free as are missing.
    Room that is there already needs none, and a table never gets shorter."""
    none_missing = "nothing_missing", "Nothing is missing, so the answer is True."
    for P, N, (name, words) in (
            (4, 16, ("one_stays_free", "Two pages are missing and two are free: that is enough.")),
            (2, 8, none_missing), (2, 5, none_missing), (2, 1, none_missing)):
        beside = Beside(subject, P, 4, [[0, 1]])
        got, _ = beside.call("grow", 0, N)
        of = f"BlockPool.grow of [0, 1] to {N} tokens, pages of 4, {P - 2} free"
        assert got is True, mistake(name, f"{of}: got {got!r}. {words}", words)
        beside.compare(of, {(0, 1): (name, words)} if P > 2 else ())


def test_BlockPool_grow__hard(subject):
    """No token at all, pages by the thousand, and lengths past 31 bits; one pool after another."""
    for P, S, N in ((2, 4, 0), (0, 4, 0), (0, 4, 1), (1, 1, 2), (1, 1, 1), (1700, 24, 40_000),
                    (9, 2**28, 2**31 + 1), (8, 2**28, 2**31 + 1), (8, 2**28, 2**31)):
        beside = Beside(subject, P, S)
        beside.add([])
        got, want = beside.call("grow", 0, N)
        what = f"BlockPool.grow of an empty table to {N:,} tokens, {P} pages of {S:,}"
        assert got is want, f"{what}: got {got!r}, expected {want}"
        pages = len(beside.tables[0])
        assert pages == len(beside.right[0]), (
            f"{what}: it has {pages} pages now, expected {len(beside.right[0])}")
        beside.compare(what)
    beside = Beside(subject, 6, 4, [[1, 0]])
    beside.call("grow", 0, 14)
    assert beside.tables == [[1, 0, 2, 3]], (
        f"BlockPool.grow of [1, 0] to 14 tokens: the table is {beside.tables[0]}, expected "
        f"[1, 0, 2, 3]: new pages go to the end of the table")


def test_BlockPool_grow__soak(subject, rng):
    soak(subject, rng, ["grow"], 1000)


# ---- BlockPool.release


def test_BlockPool_release(subject):
    """case 12: a table becomes free from its tail, after all that was free before."""
    beside = Beside(subject, 6, 4, [[2, 0, 1]])
    beside.call("release", 0)
    of = "BlockPool.release of [2, 0, 1], and 3, 4, 5 were free"
    beside.compare(of, tables={(2, 0, 1): ("table_not_emptied", (
        "The table still names the pages that it gave back: empty the list itself, with "
        "`table.clear()`."))}, order={
        (3, 4, 5): ("lost", "Pages 0, 1 and 2 are in no table and not in `free`: they are lost for "
                            "good."),
        (3, 4, 5, 2, 0, 1): ("first_is_free_first", (
            "The beginning of the text became free first, so it is overwritten first. It is the "
            "part that others may need again.")),
        **dict.fromkeys([(2, 0, 1, 3, 4, 5), (1, 0, 2, 3, 4, 5)], ("in_front", (
            "They are at the front of `free`, so the newest pages are reused first. Put them at "
            "the end."))),
        (3, 4, 5, 0, 1, 2): ("by_number", (
            "Pages come back in the order of their numbers; it should be that of their places in "
            "the table, the last one first.")),
        (0, 1, 2, 3, 4, 5): ("free_sorted", (
            "Do not sort `free`: its order is the order of giving back."))})


def test_BlockPool_release__case_11(subject):
    """case 11: shared pages, one owner leaves: one count fewer; the other keeps all of its own."""
    beside = Beside(subject, 6, 4, [[0, 1, 2], [0, 1, 3], [0, 4]])
    for t, others in ((0, "two others name 0, one names 1"), (1, "one other names 0"),
                      (2, "which no other shares")):
        table = list(beside.right[t])
        beside.call("release", t)
        free = beside.free
        stolen = [page for page in free if beside.book.refs[page]]
        name, words = (
            ("count_set_to_0", "only one table gave the page back: subtract 1, do not set 0")
            if stolen and beside.pool.refs[stolen[0]] == 0 else
            ("free_at_1", "a count of 1 means that one table still names the page; it is free at 0")
            if stolen == [1] else
            ("always_free", "the next sequence to take it would overwrite that table's tokens"))
        assert not stolen, mistake(name, (
            f"BlockPool.release of {table}, {others}: page {stolen[0]} is free now, and another "
            f"table names it: {words}."), words)
        beside.compare(f"BlockPool.release of {table}, {others}")


def test_BlockPool_release__hard(subject):
    """Nothing to give back, one page, and pages by the thousand."""
    beside = Beside(subject, 3, 4, [[0], []])
    for t, what in ((1, "an empty table"), (0, "a table of one page"), (0, "the same again")):
        words = f"release of {what}: an empty table has nothing to give back; that is no error"
        with named("empty_raises", words, lambda error: isinstance(error, Raised)):
            beside.call("release", t)
        beside.compare(f"BlockPool.release of {what}")
    beside = Beside(subject, 33_000, 1)
    beside.add([])
    beside.call("grow", 0, 32_800)
    beside.call("release", 0)
    free = beside.free
    assert free == beside.book.free, (
        f"BlockPool.release of 32,800 pages: {len(free)} are free then, of 33,000; the first are "
        f"{free[:3]}, expected {beside.book.free[:3]}")


def test_BlockPool_release__one_after_the_other(subject):
    """case 12: of two tables, the older one's pages go first, each from its tail.
    And a table that
    was given back is empty: giving it back again changes nothing."""
    for P, tables, order in ((5, [[0, 1], [2, 3, 4]], (1, 0)), (4, [[0, 1], [0]], (0, 0))):
        beside = Beside(subject, P, 4, tables)
        for t in order:
            beside.call("release", t)
            beside.compare(f"BlockPool.release of {tables}, numbers {order} in this order")
        got, want = ([side.take() for _ in range(P)] for side in (beside.pool, beside.book))
        assert got == want, (f"BlockPool.release of {tables}, numbers {order} in this order: pages "
                             f"are taken in the order {got}, expected {want}: first the table that "
                             f"was given back first, from its last page")


def test_BlockPool_release__contents_stay(subject):
    """A page is evicted when it is taken, not when it becomes free: until then others find it."""
    beside = Beside(subject, 6, 4, [[2, 0, 1]])
    evicted = watch_evict(subject, beside.pool)
    beside.call("release", 0)
    pages = evicted()
    assert not pages, mistake("evicted_at_release", (
        f"BlockPool.release of [2, 0, 1]: `evict` was called for {pages}. A free page keeps its "
        f"contents until it is taken; s06 finds them there"), "")


def test_BlockPool_release__shared_anywhere(subject, rng):
    """After copies on write, the shared page of a table may be its first, its last or between."""
    cases = [[[0, 1], [2, 1]], [[0, 1, 2], [3, 1, 4]]]
    for _ in range(12):
        tables = [rng.permutation(7)[:n].tolist() for n in rng.integers(1, 6, 4)]
        number = {page: i for i, page in enumerate(dict.fromkeys(sum(tables, [])))}
        cases.append([[number[page] for page in table] for table in tables])
    for tables in cases:
        beside = Beside(subject, 9, 4, tables)
        for t in [0, *(rng.permutation(len(tables) - 1) + 1).tolist()]:
            table = list(beside.right[t])
            others = [each for each in beside.right if each and each is not beside.right[t]]
            beside.call("release", t)
            what, free = f"BlockPool.release of {table}, the others are {others}", beside.free
            lost = [page for page in table if not beside.book.refs[page] and page not in free]
            assert not lost, mistake("page_after_shared", (
                f"{what}: no table names page {lost[0]} now, and it is not free. Look at each page "
                f"by itself, whether the ones beside it in the table are shared or not"), "")
            beside.compare(what)


def test_BlockPool_release__soak(subject, rng):
    soak(subject, rng, ["release"], 1500)


# ---- BlockPool.copy_on_write


def test_BlockPool_copy_on_write(subject):
    """Shared: another page instead, one holder fewer for the old one; the others see nothing."""
    for tables, place in (([[0, 1, 2]] * 3, 0), ([[0, 1, 2], [0, 1, 2]], 2),
                          ([[0, 1], [0, 2], [0]], 0), ([[0, 1, 2], [0, 1, 2]], 1),
                          ([[0, 1, 2], [0, 1]], 1)):
        beside = Beside(subject, 6, 4, tables)
        of = f"copy_on_write of page {place} of table 0, tables {tables}"
        got, (old, new) = beside.call("copy_on_write", 0, place)
        name, others = ("shared_by_two", "the only other sequence") if beside.book.refs[
            old] == 1 else ("never_copies", "the other sequences")
        assert got is not None, mistake(name, (
            f"{of}: got None, expected {old, new}. Page {old} is in {beside.book.refs[old] + 1} "
            f"tables: a token written into it would appear in {others}, too."), "")
        assert got != (tables[0][-1], new) or old == tables[0][-1], mistake("last_page", (
            f"{of}: got {got}, expected {old, new}: copy the page at `place`, which need not be "
            f"the last"), "")
        assert got != (new, old), mistake("new_and_old", (
            f"{of}: got {got}, expected {old, new}: return (old, new), in this order"), "")
        assert got == (old, new), f"{of}: got {got!r}, expected {old, new}"
        count, right = beside.pool.refs[old], beside.book.refs[old]
        assert count != 1 or right == 1, mistake("count_set_to_1", (
            f"{of}: the count of page {old} is 1, expected {right}: subtract 1, do not set it to "
            f"1: {right} tables still name the page"), "")
        count = beside.pool.refs[new]
        assert count == 1, mistake("new_counted_twice", (
            f"{of}: the count of the new page {new} is {count}, expected 1: `take` counts its one "
            f"table already"), "")
        beside.compare(of, {tuple(tables[0]): ("table_unchanged", (
            f"The table still names page {old}: put the new page {new} into the table."))})


def test_BlockPool_copy_on_write__alone(subject):
    """Its own already: nothing is copied, and no free page is needed."""
    for P in (5, 2):
        beside = Beside(subject, P, 4, [[0, 1]])
        got, _ = beside.call("copy_on_write", 0, 1)
        assert got is None, mistake("always_copies", (
            f"copy_on_write of page 1 of [0, 1], which no other table names: got {got}, expected "
            f"None. A copy would cost a page and help no one."), "")
        beside.compare("copy_on_write of a page that no other table has")


def test_BlockPool_copy_on_write__page_and_place(subject):
    """Entry `place` of the table names a page of another number, held by more or fewer tables."""
    for tables, place in (([[2, 0, 1], [0], [2]], 1), ([[1, 2], [0], [0], [2]], 0),
                          ([[2, 0, 3], [1], [3]], 2)):
        beside = Beside(subject, 6, 4, tables)
        page, counts = tables[0][place], beside.pool.refs
        got, want = beside.call("copy_on_write", 0, place)
        of = f"copy_on_write of entry {place} of table 0, tables {tables}"
        by_place = (got is None) == (counts[place] == 1) != (want is None)
        assert got == want, mistake("place_as_page" if by_place else "", (
            f"{of}: got {got}, expected {want}. The entry names page {page}, whose count is "
            f"{counts[page]}" + (
                f"; that of page {place} is {counts[place]}: `place` is taken for the number of "
                f"the page" if by_place else "")), "")
        beside.compare(of)


def test_BlockPool_copy_on_write__last_one_keeps_it(subject):
    """Of n that share a page, n - 1 copy it; the last one writes into the old page."""
    beside = Beside(subject, 6, 4, [[0]] * 3)
    got = [beside.call("copy_on_write", t, 0)[0] for t in range(3)]
    assert got == [(0, 1), (0, 2), None], (
        f"copy_on_write by each of three tables [0]: got {got}, expected [(0, 1), (0, 2), None]: "
        f"after two tables have copied it, the third is the only one left")
    beside.compare("copy_on_write by each of three tables [0]")


def test_BlockPool_copy_on_write__page_0_is_free(subject):
    """Page 0 is a page like any other."""
    beside = Beside(subject, 3, 4, [[0], [1, 2], [1, 2]])
    beside.call("release", 0)
    with named("page_0", "page 0 is the free one here: does the code treat it as \"no page\"?",
               lambda error: isinstance(error, Raised)):
        got, want = beside.call("copy_on_write", 1, 1)
    assert got == want, f"copy_on_write where page 0 is the free one: got {got}, expected {want}"
    beside.compare("copy_on_write where page 0 is the free one")


def test_BlockPool_copy_on_write__no_free_page(subject):
    beside = Beside(subject, 1, 4, [[0], [0]])
    try:
        got = beside.pool.copy_on_write(beside.mine[0], 0)
    except Raised as error:
        assert error.type == "RuntimeError", (
            f"copy_on_write without a free page: it raised {error.type}, expected RuntimeError")
    else:
        raise AssertionError(mistake("no_error", (
            f"copy_on_write without a free page: got {got}, expected a RuntimeError: no page is "
            f"free to copy to"), ""))
    assert beside.pool.refs == [2], mistake("changed_before_error", (
        f"copy_on_write without a free page: the count of page 0 is {beside.pool.refs[0]} after "
        f"the error, expected 2: raise before you change anything"), "")
    beside.compare("copy_on_write without a free page")


def test_BlockPool_copy_on_write__evicts_the_new_page(subject):
    """What was in the page that is copied to is gone; the old page keeps its contents."""
    beside = Beside(subject, 6, 4, [[0, 1], [0, 1]])
    evicted = watch_evict(subject, beside.pool)
    beside.call("copy_on_write", 0, 1)
    pages = evicted()
    assert pages == [2], mistake("without_take", (
        f"copy_on_write of page 1 of [0, 1], which another table names: `evict` was called for "
        f"{pages}, expected [2]: the page to copy to comes from `take`, which evicts it, and the "
        f"old page still has the other sequence's tokens"), "")


def test_BlockPool_copy_on_write__far(subject):
    """A page far down a long table, and the last free page."""
    beside = Beside(subject, 33_000, 1)
    beside.add([])
    beside.call("grow", 0, 32_999)
    shared = beside.right[0][:]
    beside.pool.share(shared), beside.book.share(shared)
    beside.add(shared)
    for what, want in (("the last free page", (32_900, 32_999)), ("its own by now", None)):
        got = beside.pool.copy_on_write(beside.mine[0], 32_900)
        assert got == want, (f"copy_on_write of place 32,900 of a table that another shares, "
                             f"{what}: got {got}, expected {want}")
    assert not beside.free, "copy_on_write took the last free page, and it is free all the same"


def test_BlockPool_copy_on_write__soak(subject, rng):
    soak(subject, rng, ["copy_on_write"], 1000)


# ---- all of it together


def test_invariants_hold_after_thousands_of_random_operations(subject, rng):
    """free + used = total, Σ refs = Σ occurrences in tables, no page both free and in a table."""
    done = soak(subject, rng, ["grow", "release", "copy_on_write"], 4000)
    assert min(done.values()) > 200, f"some operations hardly occurred: {done}"


def test_check_pool_sees_each_way_to_be_broken():
    for spoil, others, text in (
            (lambda free: None, [[0]], "page 0 is in 2 tables, and its count is 1"),
            (lambda free: free.update({0: None}), [], "page 0 is in 1 tables and is free"),
            (lambda free: free.pop(2), [], "page 2 is in 0 tables and is not free"),
            (lambda free: free.update({7: None}), [], "2 pages used and 2 free of 3")):
        pool, table = BlockPool(3), []
        assert pool.grow(table, 20)
        check_pool(pool, [table])
        spoil(pool.free)
        with pytest.raises(Broken, match=text):
            check_pool(pool, [table, *others])


def test_copies_are_read_before_one_is_written():
    m = random_llama().config
    pages = Pages(m, 3, 4)
    pages.k.copy_(torch.arange(3.0)[None, :, None, None, None].expand_as(pages.k))
    pages.v.copy_(pages.k + 10)
    pages.copy({0: 1, 1: 0})
    assert pages.k[0, :, 0, 0, 0].tolist() == [1, 0, 2]
    assert pages.v[-1, :, -1, 0, 0].tolist() == [11, 10, 12]
    pages.copy({})
