"""The 34 cases that an engine must handle, by number: 1 to 22, memory and the scheduler.

Each runs again with a few places in host memory below the pages (s11), and with guesses that steps
verify (s10). 23 to 34 are in
test_cases_of_tokens.py.
"""

from collections import Counter

import pytest

from layer3_system import BlockPool, ByteTokenizer, MockLlama, RequestError, Scheduler, check_engine
from tests.layer3_system.engine_cases import (  # noqa: F401  (what pytest looks for)
    S,
    connected,
    engine,
    mode_of_engines,
    params,
    prefix_pool,
    pytest_generate_tests,
    run,
    same_as_alone,
)

pytestmark = pytest.mark.usefixtures("mode")


# ---- memory


def test_case_01_no_page_left_in_decode():
    """The newest is preempted, is next again, and writes what it would have written anyway."""
    e = engine(P=10, pool=BlockPool)
    old, new = [e.submit([n] * 9, params(16, ignore_eos=True))[0] for n in (1, 2)]
    run(e)
    assert (old.preemptions, new.preemptions > 0) == (0, True)
    same_as_alone(old, new)


def test_case_02_a_prompt_larger_than_the_pool():
    """It is refused at once, and those after it are served."""
    e = engine(P=4)
    with pytest.raises(RequestError, match="at most 15 tokens.*found 17"):
        e.submit([1] * 17, params(1))
    (behind,) = e.submit([1] * 5, params(4))
    run(e)
    same_as_alone(behind)


def test_case_03_a_prompt_at_the_bound():
    """The bound is the sequence's length: 16 slots hold a prompt of 15 and one token."""
    e = engine(P=4)
    with pytest.raises(RequestError, match="found 16"):
        e.submit([1] * 16, params(1))
    (last,) = e.submit([1] * 15, params(1))
    run(e)
    assert len(last.output) == 1
    same_as_alone(last)


def test_case_04_a_lone_request_outgrows_the_pool():
    """It ends by length with what it has; it does not preempt itself again and again."""
    e = engine(P=4)
    (lone,) = e.submit([1] * 5, params(None, ignore_eos=True))
    run(e, 40)
    assert (lone.reason, len(lone.output), lone.preemptions) == ("length", 11, 0)
    same_as_alone(lone)


def test_case_05_longer_than_the_model():
    e = engine(room=32)
    with pytest.raises(RequestError, match="prompt: expected at most 31 tokens"):
        e.submit([1] * 32, params(1))
    with pytest.raises(RequestError, match="max_tokens: expected at most 12 .* found 13"):
        e.submit([1] * 20, params(13))
    (rest,) = e.submit([1] * 20, params(None, ignore_eos=True))
    run(e)
    assert len(rest.output) == 12


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9])
def test_case_06_around_the_end_of_a_page(mode, length):
    """A page is taken when a token needs it, not before, and before it is written.
    One that refused guesses needed stays for the tokens that come next."""
    e = engine()
    (request,) = e.submit([1] * length, params(6, ignore_eos=True))
    while e.busy:
        e.step()
        if request.status == "running":
            needed = -(-request.num_computed // S)
            assert needed <= len(request.table) <= needed + (mode == "guesses")
    same_as_alone(request)


# ---- shared pages


def test_case_07_the_whole_prompt_is_known():
    """One token at least is computed, or there would be no scores."""
    e = engine()
    prompt = [1, 2, 3, 4] * 3
    (first,) = e.submit(prompt, params())
    run(e)
    (again,) = e.submit(prompt, params())
    outputs = e.step()
    assert again.num_cached == 8 and e.counts == {again: 4} and len(outputs[0].tokens) == 1
    run(e)
    assert again.output == first.output
    same_as_alone(again)


def test_case_08_a_page_that_is_not_full():
    """Its tokens are never found."""
    e = engine()
    (first,) = e.submit([1] * 7, params(1))
    run(e)
    (again,) = e.submit([1] * 12, params(1))
    e.step()
    assert again.num_cached == 4
    run(e)
    same_as_alone(first, again)


def test_case_09_two_identical_prompts_in_one_step():
    """The second does not read what the first has yet to write.
    Afterwards they share."""
    e = engine()
    twins = [e.submit([1, 2, 3, 4] * 3, params())[0] for _ in range(2)]
    e.step()
    assert list(e.counts.values()) == [12, 12]
    check_engine(e)
    assert twins[0].table[:2] == twins[1].table[:2]
    run(e)
    same_as_alone(*twins)


def test_case_10_a_hit_on_a_free_page():
    """It leaves the free list, and is not counted as room for the rest."""
    e = engine(P=4)
    run_one, = e.submit([1] * 9, params(1))
    run(e)
    free = len(e.pool.free)
    (again,) = e.submit([1] * 9 + [2] * 4, params(1))
    e.step()
    assert free == 4 and again.num_cached == 8
    check_engine(e)
    run(e)
    same_as_alone(run_one, again)


def test_case_10_capacity_is_not_counted_twice():
    """Two of four pages are known and free; three more do not fit beside them."""
    pool = prefix_pool(4, S)
    scheduler = Scheduler(pool, 4, 64)
    e = connected(MockLlama(), ByteTokenizer(), pool, scheduler)
    e.submit([1] * 9, params(1))
    run(e)
    (holder,) = e.submit([7] * 3, params(3, ignore_eos=True))
    e.step()
    (again,) = e.submit([1] * 9 + [2] * 6, params(1))       # 4 pages, 2 of them known; 3 are free
    e.step()
    check_engine(e)
    assert again.status == "waiting" and holder.status == "running"
    run(e)
    same_as_alone(holder, again)


@pytest.mark.parametrize("how", ["abort", "finish"])
def test_case_11_one_of_two_owners_goes(how):
    e = engine()
    prompt = [1, 2, 3, 4] * 4
    (first,) = e.submit(prompt, params(2 if how == "finish" else 30, ignore_eos=True))
    e.step()
    (second,) = e.submit(prompt, params(20, ignore_eos=True))
    e.step()
    shared = first.table[:3] if how == "abort" else second.table[:3]
    if how == "abort":
        assert all(e.pool.refs[page] == 2 for page in shared)
        e.abort([first])
    while first.status != "finished":
        e.step()
    assert all(e.pool.refs[page] == 1 for page in shared)
    run(e)
    same_as_alone(second)


def test_case_12_the_oldest_free_page_goes_first(mode):
    """Least recently used first; within one request, its last page first."""
    e = engine(P=8)
    a, b = [e.submit([n] * 13, params(1))[0] for n in (1, 2)]
    run(e)
    e.submit([3] * 6, params(1))                # two pages: the last of the first, named or not
    run(e)
    hits = []
    for n in (2, 1):
        (again,) = e.submit([n] * 13, params(1))
        e.step()
        hits.append(again.num_cached)
        run(e)
        same_as_alone(again)
    lost = 12 if mode == "tiers" else 4         # the second kept all; its fourth page took another
    assert hits == [12, lost]
    same_as_alone(a, b)


def test_case_12_dropping_a_copy_keeps_the_name():
    """Two computed the same page.
    The copy is given back and taken; the other stays known."""
    e = engine(P=8)
    twins = [e.submit([1] * 9, params(1))[0] for _ in range(2)]
    run(e)
    filler, = e.submit([2] * 15, params(1))     # takes what was free before
    run(e)
    (again,) = e.submit([1] * 9, params(1))
    e.step()
    assert again.num_cached == 8
    run(e)
    same_as_alone(*twins, filler, again)


def test_case_13_the_same_page_after_another():
    """A page is known by all that is before it, and within its salt."""
    e = engine()
    e.submit([1] * 4 + [9] * 5, params(1), salt="a")
    run(e)
    found = []
    for prompt, salt in (([2] * 4 + [9] * 5, "a"), ([1] * 4 + [9] * 5, "b"),
                         ([1] * 4 + [9] * 5, "a")):
        (request,) = e.submit(prompt, params(1), salt=salt)
        e.step()
        found.append(request.num_cached)
        run(e)
        same_as_alone(request)
    assert found == [0, 0, 8]


def test_case_14_a_copy_makes_way():
    """The table names the other page before the copy becomes free: never a page both free and in a
    table, which check_engine looks for after each step."""
    e = engine()
    twins = [e.submit([1, 2, 3, 4] * 5, params(12, ignore_eos=True))[0] for _ in range(3)]
    run(e)
    same_as_alone(*twins)
    assert len({tuple(t.output) for t in twins}) == 1


@pytest.mark.parametrize("length", [8, 9, 11])
def test_case_15_n_answers_to_one_prompt(length):
    """One computes the prompt; all share its pages, and copy one when they write into it."""
    e = engine()
    prompt = list(range(1, length + 1))
    answers = e.submit(prompt, params(10, temperature=1, n=4, seed=3))
    e.step()
    assert e.counts == {answers[0]: length} and e.pool.used == -(-length // S)
    assert [len(r.output) for r in answers] == [1, 1, 1, 1]
    check_engine(e)
    run(e)
    same_as_alone(*answers)
    assert len({r.output[0] for r in answers}) > 1, "all begin alike"


# ---- the scheduler


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8, None])
def test_case_16_chunks(chunk):
    """The same tokens for every chunk size; none from a part of a prompt; two parts in one step."""
    e = engine(budget=16, chunk=chunk)
    two = [e.submit([n] * 19, params())[0] for n in (1, 2)]
    together = False
    while e.busy:
        outputs = e.step()
        check_engine(e)
        together |= len(e.counts) == 2 and all(n > 1 for n in e.counts.values())
        for output in outputs:
            assert output.request.num_computed >= len(output.request.prompt)
    assert together or chunk == 1
    same_as_alone(*two)


def test_case_17_steady_arrivals(mode):
    """A request that writes gets a token in every step, however many come."""
    e = engine(P=200, max_seqs=8, budget=16)
    (early,) = e.submit([1] * 5, params(40, ignore_eos=True))
    e.step()
    for i in range(1, 40):
        e.submit([2 + i % 7] * 15, params(2))
        e.step()
        check_engine(e)
        assert len(early.output) == i + 1 or mode == "guesses" and len(early.output) > i + 1
    run(e)
    same_as_alone(early)


def test_case_17_a_long_prompt_before_a_short_answer(mode):
    """Nor does a prompt in parts that came first stop those after it."""
    e = engine(P=200, budget=16, chunk=12)
    e.submit([1] * 150, params(1))
    e.step()
    (late,) = e.submit([2] * 3, params(5, ignore_eos=True))
    for i in range(5):
        e.step()
        assert len(late.output) == i + 1 or mode == "guesses" and len(late.output) > i + 1


def test_case_17_answers_behind_a_long_prompt():
    """One prompt's answers get a token each, while an older prompt could take the whole budget."""
    e = engine(P=200, max_seqs=8, budget=16, chunk=12)
    e.submit([1] * 150, params(1))
    answers = e.submit([2] * 4, params(9, n=7, ignore_eos=True))
    e.step()
    for i in range(1, 6):
        assert [len(r.output) for r in answers] == [i] * 7
        e.step()
        check_engine(e)
    run(e)
    same_as_alone(*answers)


def test_case_18_after_a_preemption(mode):
    """Nothing is admitted in that step; the victim is next; preemptions are few, with guesses
    fewer."""
    e = engine(P=12, pool=BlockPool)
    requests = [e.submit([n] * 9, params(24, ignore_eos=True))[0] for n in range(1, 6)]
    before = 0
    while e.busy:
        waiting = list(e.scheduler.waiting)
        e.step()
        check_engine(e)
        now = sum(r.preemptions for r in requests)
        if now > before:
            assert list(e.scheduler.waiting)[-len(waiting):] == waiting or not waiting
            assert e.scheduler.waiting[0].preemptions > 0
        before = now
    same_as_alone(*requests)
    assert [r.preemptions for r in requests] == [0, 1, 1, 1, mode != "guesses"], (
        "without a page kept free for each that runs, two of them would go twice")


@pytest.mark.parametrize("overlap", [False, True])
def test_case_19_abort_in_every_state(overlap):
    e = engine(max_seqs=4, budget=8, overlap=overlap)
    requests = [e.submit([n] * 12, params(6, ignore_eos=True))[0] for n in range(1, 7)]
    states = Counter()
    for request, steps in zip(requests, (0, 1, 3, 2, 0, 30), strict=True):
        for _ in range(steps):
            e.step()
        state = (request.status, 0 < request.num_computed < 12, bool(request.output))
        states[state] += 1
        e.abort([request])
        check_engine(e)
        e.abort([request, request])             # twice, and what is over stays as it is
        check_engine(e)
        assert request.reason == ("length" if state[0] == "finished" else "abort")
    run(e)
    assert len(states) >= 3 and e.pool.used == 0


def test_case_19_abort_beats_length():
    """Aborted while its last token is being computed: it ends once, as aborted."""
    e = engine(overlap=True)
    (request,) = e.submit([1] * 5, params(1))
    e.step()                                    # in flight
    e.abort([request])
    outputs = run(e)
    assert (request.reason, request.output, outputs) == ("abort", [], [])


def test_case_20_21_an_abort_is_of_a_request_not_of_its_name():
    """Two of one name: a late abort of the first does not touch the second.
    The server's part of 20 is in test_server_clients.py."""
    e = engine()
    (first,) = e.submit([1] * 5, params(1), id="mine")
    run(e)
    (second,) = e.submit([1] * 5, params(4, ignore_eos=True), id="mine")
    e.step()
    e.abort([first])
    run(e)
    assert first.reason == second.reason == "length"
    same_as_alone(second)


def test_case_22_sizes_that_make_no_sense():
    e = engine()
    for wrong, words in ((0, "max_tokens: expected an integer from 1, found 0"), (-1, "found -1")):
        with pytest.raises(RequestError, match=words):
            params(wrong)
    with pytest.raises(RequestError, match="prompt: expected one token or more"):
        e.submit([], params(1))
    (one,) = e.submit([1] * 5, params(1))
    e.step()
    assert not e.busy and e.model.steps == 1 and len(one.output) == 1
