"""What s04 gives beside its exercises: a scheduler that refuses, admits and preempts requests.

Cases carry the numbers of the course's list of what every engine must handle.
"""

import random

import numpy as np
import pytest

from layer3_system import BlockPool, Drive, RequestError, Scheduler
from tests.layer3_system.test_s04_continuous_batching import RUSH, calm, counted, own, situation

# ---- requests that come


def test_a_prompt_that_no_pool_holds_is_refused_and_the_queue_goes_on():
    """Case 2: it is never prefilled.
    Case 3: P · S tokens are too many, one less is served."""
    drive = own(P=3)
    drive.add("a", 4, 3)
    for tokens in (12, 13, 500):
        with pytest.raises(RequestError, match=f"at most 11 tokens.* found {tokens}"):
            drive.add("large", tokens, 1)
    drive.add("edge", 11, 1)
    drive.add("b", 4, 2)
    drive.run(50)
    calm(drive, "after a refusal")
    assert {n: len(r.output) for n, r in drive.requests.items() if n != "large"} == \
        {"a": 3, "edge": 1, "b": 2}


def test_a_lone_request_that_outgrows_the_pool_ends_by_length():
    """Case 4: with the tokens that fit, and no preemption."""
    drive = situation(own(P=3), [], [("a", 5, 100), ("b", 2, 3)])
    assert drive.run(100) < 30
    calm(drive, "a lone request")
    a, b = drive.requests["a"], drive.requests["b"]
    assert (a.reason, len(a.output), a.preemptions) == ("length", 12 - 5, 0)
    assert (b.reason, len(b.output)) == ("length", 3)


def test_sizes_that_cannot_work_are_refused():
    for sizes in ({"max_seqs": 0}, {"max_seqs": 9, "budget": 8}, {"chunk": 0}):
        with pytest.raises(ValueError, match="Scheduler: expected"):
            Scheduler(BlockPool(4), **sizes)


# ---- pages


class Known(BlockPool):
    """A pool that knows the first pages of every request."""

    known = ()

    def match_prefix(self, request):
        return list(self.known)


def test_a_free_page_that_is_found_counts_once():
    """Case 10: it leaves the free list, so it is no longer there for the rest of the prompt."""
    pool = Known(4, 4)
    drive = Drive(Scheduler(pool))
    pool.known = [0, 1]
    exact, more = drive.make("exact", 16, 1), drive.make("more", 17, 1)
    assert not drive.scheduler.admit(more)          # five pages, two found and two free
    assert list(pool.free) == [2, 3, 1, 0] and not more.table and not any(pool.refs)
    assert drive.scheduler.admit(exact)
    assert exact.table[:2] == [0, 1] and len(set(exact.table)) == 4 and not pool.free
    assert (exact.num_computed, exact.num_cached, exact.num_cached_pages) == (8, 8, 2)


def test_a_newcomer_leaves_a_page_for_each_that_runs():
    drive = situation(own(P=6), [("a", 4, 9, 4), ("b", 4, 9, 4)])
    assert not drive.scheduler.admit(drive.make("c", 9, 1))         # three of four free pages
    assert drive.scheduler.admit(drive.make("d", 8, 1))


def test_guesses_are_dropped_before_a_request_is_preempted():
    drive = situation(own(P=3), [("a", 5, 9, 6), ("b", 3, 9, 3)])
    a = drive.requests["a"]
    a.draft = [1, 2, 3]                             # slots for two more, a page for the others
    assert counted(drive.scheduler.schedule_running()) == {"a": 1, "b": 1}
    assert a.draft == [] and drive.waiting == []


def test_answers_to_one_prompt_write_into_pages_of_their_own():
    drive = situation(own(P=40, max_seqs=4, budget=7, chunk=4), [],
                      [("long", 20, 3), ("a", 6, 9, 3)])
    drive.run(100)
    calm(drive, "three answers")
    outputs = [r.output for n, r in drive.requests.items() if n.startswith("a")]
    assert len({tuple(o) for o in outputs}) == 3 and {len(o) for o in outputs} == {9}


# ---- many steps


def test_two_prompts_in_parts_share_a_step():
    """Case 16: the sum stays within the budget, and a part gives no token."""
    drive = situation(own(max_seqs=3, budget=7, chunk=4), [], [("a", 10, 2), ("b", 6, 2)])
    assert [drive.step() for _ in range(4)] == [
        {"a": 4, "b": 3}, {"a": 4, "b": 3}, {"a": 2, "b": 1}, {"a": 1}]
    assert drive.sent == {"a": [3, 4], "b": [2, 3]}
    calm(drive, "two prompts in parts")


def test_a_step_that_preempts_admits_nothing():
    """Case 18: and the preempted request is admitted next."""
    drive, seen = situation(own(P=9, max_seqs=5), [], RUSH), 0
    while drive.scheduler.running or drive.scheduler.waiting:
        running, victims = drive.running, [r for r in drive.requests.values() if r.preemptions]
        before = {r.id: r.preemptions for r in victims}
        drive.step()
        gone = [n for n, r in drive.requests.items() if r.preemptions > before.get(n, 0)]
        if gone:
            seen += 1
            assert set(drive.history[-1]) - set(running) <= set(drive.waiting)
            assert drive.waiting[:len(gone)] == [n for n in running if n in gone]
    assert seen and not drive.faults


def random_trace(seed, count=40):
    rng = random.Random(seed)
    return [(f"r{i}", rng.randint(1, 30), rng.randint(1, 30)) for i in range(count)]


@pytest.mark.parametrize("seed", range(4))
def test_between_two_preemptions_a_request_writes_a_token(seed):
    """Case 18: at least one; and it is preempted seldom."""
    drive = situation(own(P=20, max_seqs=8), [], random_trace(seed))
    written = {}
    while drive.scheduler.running or drive.scheduler.waiting:
        drive.step()
        for name, request in drive.requests.items():
            now = request.preemptions, len(request.output)
            then = written.get(name, (0, 0))
            assert now[0] <= then[0] + 1
            if now[0] > then[0]:
                assert now[1] > then[1], f"{name} is preempted with nothing done since"
                written[name] = now
    calm(drive, "a rush")
    assert written and max(r.preemptions for r in drive.requests.values()) <= 5


@pytest.mark.parametrize("sizes", [
    {"P": 20}, {"P": 16, "chunk": 3}, {"P": 30, "budget": 6, "max_seqs": 6}], ids=str)
def test_random_days(sizes):
    """600 steps with requests that come and go, in any state: what must hold holds after each."""
    rng = random.Random(7)
    drive = own(**{"max_seqs": 6, **sizes})
    number = 0
    for _ in range(600):
        if rng.random() < 0.25:
            answers = rng.choice([1, 1, 1, 3])
            drive.add(f"r{number}", rng.randint(1, 25), rng.randint(1, 20), answers)
            number += 1
        drive.step()
        if drive.requests and rng.random() < 0.1:
            request = rng.choice(list(drive.requests.values()))
            if not request.leader and not request.forks:
                drive.scheduler.finish(request, "abort")
    drive.run(5000)
    calm(drive, "random days")
    assert all(r.status == "finished" for r in drive.requests.values()) and number > 100
    assert drive.pool.used == 0


# ---- what s04 says of its traces


def test_a_seat_is_empty_only_at_the_end():
    """Static batches leave one empty from the third step to the eighth, while four wait."""
    six = [8, 2, 2, 2, 8, 2]
    assert (six[1] + 1, six[0], len(six) - 2) == (3, 8, 4)
    drive = Drive(Scheduler(BlockPool(64), 2, 4096))
    for i, n in enumerate(six):
        drive.add(f"{i}", 3, n)
    drive.run(50)
    both = [sum(step in sent for sent in drive.sent.values()) for step in range(1, 15)]
    assert both == [2] * 10 + [1] * 4


def test_the_longest_of_the_64_requests_has_456_tokens():
    rng = np.random.default_rng(0)
    lens = np.clip(rng.lognormal(np.log(60), 1, 64).astype(int), 1, 400)
    prompts = rng.integers(5, 60, 64)
    assert max(prompts + lens) == 456
    assert (min(prompts), max(prompts), max(lens)) == (5, 59, 400)
