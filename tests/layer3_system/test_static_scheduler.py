"""What s03 gives beside its exercises: traces, counts, and a scheduler that waits for its longest.

"case N" counts the cases that any engine must handle.
"""

import numpy as np
import pytest

from day01_roofline import ACCELERATORS
from layer3_system import (
    BlockPool,
    ByteTokenizer,
    Engine,
    MockLlama,
    PrefixPool,
    SamplingParams,
    Scheduler,
    StaticScheduler,
    check_engine,
    equal_trace,
    expected_longest,
    idle_slot_steps,
    mixed_trace,
    serve_jobs,
    static_steps,
    useful_share,
)
from layer3_system.engine.drafts import Drafter

# ---- traces and what follows from the counts


def test_a_mixed_trace_has_the_lengths_asked_for(rng):
    jobs = mixed_trace(4000, rng, prompt=(30, 200), output=(60, 90))
    for lens, median, most in (([j.prompt for j in jobs], 30, 200),
                               ([j.output for j in jobs], 60, 90)):
        assert min(lens) >= 1 and max(lens) == most
        assert abs(np.median(lens) - median) < 3
        assert all(type(n) is int for n in lens)
    assert all(job.arrival == 0 for job in jobs)


def test_a_rate_changes_the_arrivals_alone():
    still, moving = (mixed_trace(4000, np.random.default_rng(3), rate) for rate in (None, 5))
    assert [job[1:] for job in still] == [job[1:] for job in moving]
    arrivals = [job.arrival for job in moving]
    assert arrivals == sorted(arrivals) and arrivals[0] > 0
    assert abs(arrivals[-1] / 4000 - 1 / 5) < 0.02
    gaps = np.diff(arrivals)
    assert abs(gaps.std() / gaps.mean() - 1) < 0.1          # as Poisson has it


def test_equal_lengths_waste_nothing():
    lens = [job.output for job in equal_trace(12, 5, 7)]
    assert static_steps(lens, 4) == 21
    assert idle_slot_steps(lens, 4) == 0 and useful_share(lens, 4) == 1
    assert idle_slot_steps(lens[:-1], 4) == 7               # the last batch has one seat empty


# ---- the scheduler, in the engine


def engine(kind=StaticScheduler, seats=3, P=64, S=4, pool=BlockPool, room=64, **parts):
    pool = pool(P, S)
    return Engine(MockLlama(room=room), ByteTokenizer(), pool, kind(pool, seats), **parts)


def params(max_tokens, **others):
    return SamplingParams(max_tokens=max_tokens,
                          **({"temperature": 0, "ignore_eos": True} | others))


def prompts(rng, count, most=14):
    """Some of them begin alike."""
    return [[7, 7, 7, 7, 7][:n % 6] + rng.integers(0, 200, n).tolist()
            for n in rng.integers(1, most, count)]


def drain(own):
    steps = 0
    while own.busy:
        own.step()
        check_engine(own)
        steps += 1
        assert steps < 5000, "it does not end"
    assert own.pool.used == 0 and own.submitted == own.finished


def answers(own, asked):
    """The tokens of each request, in the order asked for."""
    requests = [own.submit(*each) for each in asked]
    drain(own)
    return [[r.output for r in some] for some in requests]


def echo():
    """Guesses that the newest token comes again, twice."""
    return Drafter(lambda tokens: tokens[-1:] * 2)


@pytest.mark.parametrize("parts", [{}, {"overlap": True}, {"drafter": echo()}],
                         ids=["plain", "overlap", "drafter"])
@pytest.mark.parametrize("pool", [BlockPool, PrefixPool])
@pytest.mark.parametrize("seats", [1, 3, 8])
def test_its_tokens_are_those_of_the_other_scheduler(rng, seats, pool, parts):
    """case 23, 24, 26, 30: same tokens in any batch, seeded ones, with guesses, overlapped."""
    lens = rng.integers(1, 20, 17).tolist()
    asked = [(prompt, params(n, seed=i, temperature=i % 2, ignore_eos=i % 3 == 0))
             for i, (prompt, n) in enumerate(zip(prompts(rng, 17), lens, strict=True))]
    want = answers(engine(Scheduler, 8), asked)
    assert answers(engine(seats=seats, pool=pool, **parts), asked) == want


@pytest.mark.parametrize("B", [1, 3, 8])
def test_the_engine_takes_the_steps_that_are_counted(B):
    jobs = mixed_trace(21, np.random.default_rng(2), prompt=(8, 30), output=(8, 30))
    lens = [job.output for job in jobs]
    steps = serve_jobs(engine(seats=B, P=200), jobs)
    tokens = sum(map(len, steps))
    assert len(steps) == static_steps(lens, B)
    assert B * len(steps) - tokens == idle_slot_steps(lens, B)
    assert tokens / (B * len(steps)) == useful_share(lens, B)
    for first in range(0, 21, B):                           # first come, first served
        batch = list(range(first, min(first + B, 21)))
        assert next(step for step in steps if step[0] in batch) == batch


def test_no_request_is_admitted_while_another_runs():
    own = engine()
    (long,) = own.submit([1, 2], params(9))
    (short,) = own.submit([3], params(2))
    own.step()
    own.step()
    (late,) = own.submit([4], params(2))
    assert short.status == "finished"
    for _ in range(7):
        assert (long.status, late.status) == ("running", "waiting")
        own.step()
        check_engine(own)
    assert long.status == "finished"
    own.step()
    assert late.status == "running"


def test_a_running_request_gets_a_token_in_every_step():
    """case 17, for running requests.
    Waiting ones wait for a whole batch."""
    own = engine(seats=4)
    requests = [own.submit([i] * 5, params(6))[0] for i in range(1, 5)]
    for step in range(1, 7):
        own.submit([9], params(6))          # they go on coming
        own.step()
        assert [len(r.output) for r in requests] == [step] * 4


@pytest.mark.parametrize("prompt", [7, 8, 9])
def test_a_request_has_its_pages_from_the_start(prompt):
    """case 1, 6: at kB - 1, kB and kB + 1 no page is taken later: no preemption."""
    own = engine(P=8)
    requests = [own.submit([i] * prompt, params(8))[0] for i in range(3)]
    own.step()
    each = -(-(prompt + 8) // 4)
    running = [r for r in requests if r.status == "running"]
    assert len(running) == 8 // each and own.pool.used == len(running) * each
    tables = [list(r.table) for r in running]
    for _ in range(6):
        own.step()
        assert [r.table for r in running] == tables
    drain(own)
    assert [r.preemptions for r in requests] == [0, 0, 0]


def test_a_request_without_a_limit_holds_the_whole_room():
    """case 4: alone it runs to the end of the pool, and ends there."""
    own = engine(P=6, S=4)
    (first,), (second,) = (own.submit(prompt, params(None)) for prompt in ([1, 2, 3], [4]))
    own.step()
    assert (own.pool.used, second.status) == (6, "waiting")
    drain(own)
    assert [(r.num_tokens, r.reason) for r in (first, second)] == [(24, "length")] * 2


def test_one_token_is_one_step():
    """case 22: finished after the prompt's step."""
    own = engine()
    (request,) = own.submit([1, 2, 3], SamplingParams(max_tokens=1))
    own.step()
    check_engine(own)
    assert request.status == "finished" and len(request.output) == 1 and not own.busy


@pytest.mark.parametrize("P", [64, 9, 5])
@pytest.mark.parametrize("pool", [BlockPool, PrefixPool])
@pytest.mark.parametrize("overlap", [False, True])
def test_answers_to_one_prompt(rng, P, pool, overlap):
    """case 15, and with few pages, where some of the answers wait for the next batch."""
    asked = [(prompt, SamplingParams(max_tokens=6, seed=i, n=1 + i % 3))
             for i, prompt in enumerate(prompts(rng, 9))]
    want = answers(engine(Scheduler, 8), asked)
    own = engine(P=P, pool=pool, overlap=overlap)
    assert answers(own, asked) == want
    assert any(one[0] != other[0] for one, other, *_ in want[1::3])     # from the first token on


def test_a_prompt_of_three_answers_is_computed_once():
    """case 15: full pages are shared, the last is copied."""
    own = engine()
    own.submit([5] * 10, params(4, temperature=1, n=3, seed=1))
    own.step()
    assert sum(own.counts.values()) == 10
    tables = [r.table for r in own.scheduler.running]
    assert len(tables) == 3 and len({tuple(t[:2]) for t in tables}) == 1
    assert len({t[2] for t in tables}) == 3
    own.step()
    assert list(own.counts.values()) == [1, 1, 1]
    assert own.scheduler.copies == {t[2]: tables[0][2] for t in tables[1:]}
    drain(own)


def test_abort_in_every_state():
    """case 19: waiting, running, finished, twice; the seat stays idle."""
    own = engine()
    requests = [own.submit([i], params(8))[0] for i in range(5)]
    own.step()
    for gone in (requests[1], requests[4], requests[1]):
        own.abort([gone])
        check_engine(own)
        assert (gone.status, gone.reason) == ("finished", "abort")
    own.scheduler.finish(requests[1], "again")
    assert requests[1].reason == "abort"
    own.step()
    assert own.scheduler.running == [requests[0], requests[2]]
    drain(own)
    assert [len(r.output) for r in requests] == [8, 1, 8, 8, 0]


def test_a_preempted_request_comes_first_in_the_next_batch():
    """case 1, 18: the same tokens, and no seat in this batch any more."""
    asked = [([i, i], params(8)) for i in range(1, 5)]
    want = answers(engine(Scheduler), asked)
    own = engine(pool=PrefixPool)
    requests = [own.submit(*each)[0] for each in asked]
    for _ in range(5):
        own.step()
    own.scheduler.preempt(requests[0])
    check_engine(own)
    own.step()
    assert requests[0] not in own.counts and own.scheduler.waiting[0] is requests[0]
    drain(own)
    assert [[r.output] for r in requests] == want and requests[0].preemptions == 1


@pytest.mark.parametrize("pool", [BlockPool, PrefixPool])
def test_a_soak(pool):
    """case 19 and the invariants, after each of 1,500 random steps."""
    rng = np.random.default_rng(4)
    own = engine(P=24, pool=pool, overlap=pool is PrefixPool)
    alive = []
    for _ in range(1500):
        if rng.random() < 0.5:
            drawn = SamplingParams(max_tokens=int(rng.integers(1, 12)), n=int(rng.integers(1, 4)))
            alive += own.submit(prompts(rng, 1)[0], drawn)
        if rng.random() < 0.1 and alive:
            own.abort([alive[i] for i in rng.integers(0, len(alive), 2)])
        if rng.random() < 0.05 and own.scheduler.running and not own.overlap:
            own.scheduler.preempt(own.scheduler.running[-1])
        own.step()
        check_engine(own)
    drain(own)
    assert own.finished == len(alive) > 500


def test_a_batch_has_a_seat():
    with pytest.raises(ValueError, match="expected 1 seat or more, found 0"):
        StaticScheduler(BlockPool(4), 0)


# ---- what s03 says of its traces


def test_the_share_from_the_lengths_is_that_of_the_batches_within_1_2_points():
    outputs = [job.output for job in mixed_trace(256, np.random.default_rng(0))]
    for B in (2, 4, 8, 16, 64):
        before = np.mean(outputs) / expected_longest(outputs, B)
        assert abs(before - useful_share(outputs, B)) < 0.012


def test_one_of_the_24_answers_of_96_tokens_keeps_seven_others_waiting():
    few = mixed_trace(24, np.random.default_rng(1), prompt=(24, 96), output=(24, 96))
    first = [job.output for job in few[:8]]
    assert max(first) == 96 and sum(n < 96 for n in first) == 7


def test_an_h100_waits_for_the_weights_up_to_295_sequences():
    """A weight in 16 bits costs two bytes a step and two FLOPs a sequence."""
    h100 = next(machine for machine in ACCELERATORS if machine.name == "NVIDIA H100 SXM")
    assert round(2 / h100.bandwidth / (2 / h100.peak)) == 295
