"""Graders of s03. Counts are compared with every slot-step written down, or every draw tried."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest

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
    draw_places,
    equal_trace,
    idle_slot_steps,
    mixed_trace,
    serve_jobs,
    static_steps,
    useful_share,
)
from layer3_system.engine.drafts import Drafter
from layer3_system.s03_static_batching import lanes

# ---- predict_useful_share


def test_predict_useful_share(subject):
    lens, B = range(1, 201), 8
    mean = sum(lens) / len(lens)
    longest = sum(1 - ((k - 1) / len(lens)) ** B for k in lens)     # chance of k or more
    want, got = mean / longest, subject.predict_useful_share()
    assert isinstance(got, (int, float)), f"a prediction is a number, got {got!r}"
    near = ("in percent. A share is from 0 to 1" if 1 < got <= 100 else
            "no share: it is from 0 to 1" if not 0 <= got <= 1 else
            "the share that is idle" if abs(got - (1 - want)) < 0.03 else
            f"what there is if the longest always has {max(lens)} tokens. Of {B} it has fewer"
            if abs(got - mean / max(lens)) < 0.02 else
            f"one place of {B}: as if only the longest worked" if abs(got - 1 / B) < 0.02 else
            "too low" if got < want else "too high")
    assert abs(got - want) < 0.03, f"predict_useful_share: {got:g} is {near}"


# ---- padded_tokens


# On the first three hardly two mistakes give the same number: full batches, then a last small one.
TRACES = [([13, 4, 14, 6, 10, 5, 11, 4, 11], 3), ([6, 9, 5, 10, 1, 16, 4, 21, 4], 6),
          ([9, 6, 7, 2, 20, 8, 23, 6, 24], 6), ([3, 5, 4, 9], 2),
          ([3, 5, 2, 7, 1], 2), ([4], 3), ([6, 6, 6], 3), ([1, 9, 9, 2, 2, 2, 30], 3),
          ([8, 3, 5], 1), ([2, 11], 8)]


def split(lens, B, last=True):
    return [lens[i:i + B] for i in range(0, len(lens), B) if last or i + B <= len(lens)]


def misread(lens, B, whose):
    """{how the batches are made instead: [batch]}"""
    batches = -(-len(lens) // B)
    each = range(0, len(lens), B)
    return {
        f"{whose} are sorted first, the shortest in front": split(sorted(lens), B),
        f"{whose} are sorted first, the longest in front": split(sorted(lens, reverse=True), B),
        f"batches of {whose} are made equally large: each but the last has B":
            split(lens, -(-len(lens) // batches)),
        "every k-th shares a batch, not B that follow each other":
            [lens[i::batches] for i in range(batches)],
        "a batch begins at each place, not at every B-th":
            [lens[i:i + B] for i in range(len(lens))],
        "a batch takes one more than B": [lens[i:i + B + 1] for i in each],
        "a batch takes one less than B": [lens[i:i + B - 1] for i in each if lens[i:i + B - 1]],
        "B is ignored: all are one batch": [lens],
    }


def told_apart(mistakes):
    """Two mistakes that give the same number here are both named."""
    names = {}
    for name, value in mistakes.items():
        names.setdefault(round(float(value), 9), []).append(name)
    return {", or when ".join(some): value for value, some in names.items()}


@pytest.mark.parametrize("prompts, B", TRACES)
def test_padded_tokens(subject, agree, prompts, B):
    batches = split(prompts, B)
    rows = [["token"] * n + ["padding"] * (max(batch) - n) for batch in batches for n in batch]
    want = sum(row.count("padding") for row in rows)
    others = {how: sum(len(b) * max(b) for b in some) - sum(prompts)
              for how, some in misread(prompts, B, "prompts").items()}
    agree(subject.padded_tokens(list(prompts), B), want, "exact",
          f"padded_tokens of prompts {prompts}, B = {B}", at=lambda i: "the count",
          mistakes=told_apart({
              "every prompt is as wide as the longest of the trace, not of its batch":
                  sum(max(prompts) - n for n in prompts),
              "all that is computed is counted, the prompts' own tokens too": sum(map(len, rows)),
              "places of the last batch without a prompt are padded, too":
                  sum(B * max(batch) - sum(batch) for batch in batches),
              "the last batch is left out, and its prompts are taken off all the same":
                  sum(len(b) * max(b) for b in batches[:-1]) - sum(prompts),
              "prompts after the last full batch are not padded":
                  sum(len(b) * max(b) - sum(b) for b in split(prompts, B, last=False)),
              "prompts that are padded are counted, not the tokens of their padding":
                  sum(n < max(b) for b in batches for n in b),
              "only the shortest of each batch is padded": sum(max(b) - min(b) for b in batches),
              "a batch is as wide as its shortest prompt":
                  sum(len(b) * min(b) for b in batches) - sum(prompts),
              "the tokens computed are taken off those asked for, not the other way round": -want,
              "it is the mean of the batches, not their sum": want / len(batches),
              "it is a share of the tokens computed, not their number": want / sum(map(len, rows)),
          } | others))


def drawn(rng, unseen, name):
    """Small lists, many with ties, ones and full last batches; then lengths past 31 bits, where no
    right answer counts step by step."""
    for _ in range(80):
        count, most, B = rng.integers((1, 2, 1), (10, 7, 6)).tolist()
        unseen(name, rng.integers(1, most, count).tolist(), B)
    long = [([2**31, 1, 2**31 + 5], 2), ([2**33] * 3, 2)] if name != "static_steps" else []
    for lens, B in [*long, ([40_000] * 9, 4), ([1], 2**31)]:
        unseen(name, lens, B)


def test_padded_tokens__drawn(unseen, rng):
    drawn(rng, unseen, "padded_tokens")


def test_padded_tokens__unseen(unseen, rng):
    for B in rng.integers(1, 12, 3).tolist():
        unseen("padded_tokens", rng.integers(1, 500, int(rng.integers(1, 60))).tolist(), B)


# ---- static_steps


@pytest.mark.parametrize("outputs, B", TRACES)
def test_static_steps(subject, agree, outputs, B):
    want = 0
    for batch in split(outputs, B):
        left = list(batch)
        while any(n > 0 for n in left):         # a step, one token for each place that is not done
            left, want = [n - 1 for n in left], want + 1
    batches = split(outputs, B)
    others = {how: sum(map(max, some)) for how, some in misread(outputs, B, "answers").items()}
    last = {"the last batch is forgotten, though it is full": sum(map(max, batches[:-1]))} \
        if len(batches[-1]) == B else {}
    agree(subject.static_steps(list(outputs), B), want, "exact",
          f"static_steps of answers {outputs}, B = {B}", at=lambda i: "the count",
          mistakes=told_apart({
              "a batch ends with its shortest answer": sum(map(min, batches)),
              "the step of the prompts is counted beside the answers': it gives a token already":
                  want + len(batches),
              "the step of the prompts is not counted, though it gives the first token":
                  want - len(batches),
              "the longest of the trace is counted for all batches": max(outputs),
              "each batch lasts as long as the longest answer of the trace":
                  max(outputs) * len(batches),
              "answers follow each other instead of sharing steps": sum(outputs),
              "a place that becomes free gets the next answer: a batch waits until all are done":
                  refilled(outputs, B),
              "no place is ever idle: the tokens are divided by B": -(-sum(outputs) // B),
              "slot-steps are counted, B of them a step": B * want,
              "answers after the last full batch take no steps":
                  sum(map(max, split(outputs, B, last=False))),
          } | last | others))


def refilled(lens, B):
    """Steps where each place takes the next answer as soon as it is free."""
    ends = [0] * B
    for n in lens:
        ends[ends.index(min(ends))] += n
    return max(ends)


def test_static_steps__drawn(unseen, rng):
    drawn(rng, unseen, "static_steps")


def test_static_steps__unseen(unseen, rng):
    for B in rng.integers(1, 12, 3).tolist():
        unseen("static_steps", rng.integers(1, 500, int(rng.integers(1, 60))).tolist(), B)


# ---- expected_longest


# The first tells most mistakes apart: lengths in no order, two of them equal, and three draws.
@pytest.mark.parametrize("lens, B", [
    ([20, 4, 7, 12, 20], 3), ([4, 1, 9], 2), ([7, 2, 2, 30], 3), ([5], 4), ([3, 8, 1, 1, 6], 1),
    ([12, 12, 1], 5)])
def test_expected_longest(subject, agree, lens, B):
    n, ordered = len(lens), sorted(lens)
    chance = [(i / n) ** B for i in range(n + 1)]
    draws = list(product(lens, repeat=B))
    want = np.mean([max(some) for some in draws])
    mistakes = {
        "one length is drawn, not B": np.mean(lens),
        "B - 1 lengths are drawn": np.mean([max(some, default=0)
                                            for some in product(lens, repeat=B - 1)]),
        "the longest of all is taken, which B draws may miss": max(lens),
        "i / n is rounded down, with //": max(lens),
        "the lengths are not in order": sum(
            x * (chance[i + 1] - chance[i]) for i, x in enumerate(lens)),
        "the lengths, or the chances, are in descending order: it is the shortest of the draws":
            np.mean([min(some) for some in draws]),
        "the chance of i or fewer is taken for the chance of i": sum(
            x * chance[i + 1] for i, x in enumerate(ordered)),
        "a chance belongs to the next longer length": sum(
            x * (chance[i] - chance[max(i - 1, 0)]) for i, x in enumerate(ordered)),
        "i counts the lengths from 0: the shortest has i = 1": sum(
            x * ((i / n) ** B - ((i - 1) / n) ** B) for i, x in enumerate(ordered)),
        "equal lengths are counted once": np.mean(
            [max(some) for some in product(set(lens), repeat=B)]),
        "chances are multiplied by B, not raised to the power B": B * np.mean(lens),
        "1 / n is raised to the power B: the two chances are subtracted after the power":
            sum(lens) / n ** B,
        "the longest length is left out": sum(
            x * (chance[i + 1] - chance[i]) for i, x in enumerate(ordered[:-1])),
        "the lengths lie evenly between 0 and the longest": max(lens) * B / (B + 1),
        "it is rounded to a whole number": round(want),
        "it is rounded down to a whole number": int(want),
    }
    if n > 1:
        mistakes["n is one too small"] = sum(
            x * ((i / (n - 1)) ** B - ((i - 1) / (n - 1)) ** B) for i, x in enumerate(ordered, 1))
    if n >= B:
        mistakes["no length is drawn twice"] = np.mean([max(c) for c in combinations(lens, B)])
    agree(subject.expected_longest(list(lens), B), want, "float64",
          f"expected_longest of {B} draws from {lens}", at=lambda i: "the expected length",
          mistakes=told_apart(mistakes))


def test_expected_longest__drawn(unseen, rng):
    drawn(rng, unseen, "expected_longest")


def test_expected_longest__unseen(unseen, rng):
    for B in rng.integers(1, 12, 3).tolist():
        unseen("expected_longest", rng.integers(1, 500, int(rng.integers(1, 60))).tolist(), B)


def test_expected_longest__many(subject, agree):
    """Too many draws to try them all."""
    lens, B = list(range(1, 201)), 64
    want = sum(1 - ((k - 1) / 200) ** B for k in lens)
    agree(subject.expected_longest(lens[::-1], B), want, "float64",
          "expected_longest of 64 draws from 200, …, 1", at=lambda i: "the expected length")


# ---- best_batches


def fewest(lens, B):
    """Steps of the best batches, all of them tried: the longest, and any B - 1 beside it."""
    if not lens:
        return 0
    longest, *others = sorted(lens, reverse=True)
    return longest + min(
        fewest([n for i, n in enumerate(others) if i not in beside], B)
        for size in range(min(B - 1, len(others)) + 1)
        for beside in combinations(range(len(others)), size))


@pytest.mark.parametrize("lens, B", [
    ([50, 20, 40, 30, 90], 2), ([31, 70, 32, 71, 33, 72, 80], 3), ([44], 3), ([25, 25, 25], 2),
    ([9, 80, 81, 10], 4), ([60, 12, 30], 1)])
def test_best_batches(subject, lens, B):
    got = subject.best_batches(list(lens), B)
    what = f"best_batches of answers {lens}, B = {B}"
    assert isinstance(got, (list, tuple)) and all(isinstance(b, (list, tuple)) for b in got), \
        f"{what}: got {got!r}, expected a list of batches, each a list of places"
    places = [i for batch in got for i in batch]
    for i in places:
        assert i in range(len(lens)), (
            f"{what}: {i} is no place in the list of {len(lens)}"
            f"{'. Is it a length?' if i in lens else ''}"
            f"{'. Is a length beside the place?' if isinstance(i, tuple) else ''}"
            f"{'. Places count from 0' if i == len(lens) and 0 not in places else ''}")
    for batch in got:
        assert len(batch) <= B, \
            f"{what}: the batch {list(batch)} has {len(batch)} requests for {B} places"
    for i in places:
        equal = " It has the length of another: is its place looked up by its length?" \
            if lens.count(lens[i]) > 1 else ""
        assert places.count(i) == 1, f"{what}: the request at place {i} is in two batches.{equal}"
    absent = [lens[i] for i in range(len(lens)) if i not in places]
    last = " It has the shortest answer: is the last batch left out where it is not full?" \
        if absent == sorted(lens)[:1] else ""
    for i in range(len(lens)):
        assert i in places, \
            f"{what}: the request at place {i}, with {lens[i]} tokens, is in none.{last}"
    steps, best = sum(max(lens[i] for i in batch) for batch in got if batch), fewest(lens, B)
    short = sorted(lens)
    batches = sorted(([lens[i] for i in batch] for batch in got if batch), key=max, reverse=True)
    ranks = np.argsort(np.argsort([-n for n in lens])).tolist()
    together = all(min(a) >= max(b) for a, b in pairwise(batches))
    why = ("They are as they came." if [sorted(b) for b in got] == split(list(range(len(lens))), B)
           else "These are ranks in the order of lengths. The places of the requests are asked for."
           if places in (ranks, [len(lens) - 1 - rank for rank in ranks])
           else "The small batch has the longest answer: it could take others along."
           if steps == sum(map(max, split(short, B)))
           else "A batch has a free place, and a shorter answer is in a batch after it." if together
           else "Long ones are beside short ones, not beside each other.")
    assert steps == best, f"{what}: {steps} steps, and {best} are enough. {why}"


def test_best_batches__unseen(subject, rng):
    """Small lists, many with ties and ones; some larger; then lengths past 31 bits."""
    sizes = [*rng.integers((1, 2, 1), (10, 5, 6), (60, 3)).tolist(),
             *rng.integers((5, 99, 2), (60, 500, 12), (3, 3)).tolist()]
    traces = [(rng.integers(1, most, count).tolist(), B) for count, most, B in sizes]
    for lens, B in [*traces, ([2**31, 1, 2**31 + 5, 40_000], 2), ([7, 7], 2**31)]:
        got = subject.best_batches(list(lens), B)
        assert sorted(i for batch in got for i in batch) == list(range(len(lens))), \
            f"best_batches of {lens}, B = {B}: not each request once: {got}"
        assert max(map(len, got)) <= B, f"best_batches of {lens}: a batch has more than {B}: {got}"
        steps = sum(max(lens[i] for i in batch) for batch in got)
        best = sum(sorted(lens, reverse=True)[::B])     # the longest together, the last batch small
        assert steps == best, f"best_batches of {lens}, B = {B}: {steps} steps, {best} are enough"


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
    assert idle_slot_steps(lens[:-1], 4) == 7               # the last batch has one place empty


# ---- the scheduler, in the engine


def engine(kind=StaticScheduler, places=3, P=64, S=4, pool=BlockPool, room=64, **parts):
    pool = pool(P, S)
    return Engine(MockLlama(room=room), ByteTokenizer(), pool, kind(pool, places), **parts)


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
    requests = [own.submit(prompt, params) for prompt, params in asked]
    drain(own)
    return [[r.output for r in some] for some in requests]


def echo():
    """Guesses that the newest token comes again, twice."""
    return Drafter(lambda tokens: tokens[-1:] * 2)


@pytest.mark.parametrize("parts", [{}, {"overlap": True}, {"drafter": echo()}],
                         ids=["plain", "overlap", "drafter"])
@pytest.mark.parametrize("pool", [BlockPool, PrefixPool])
@pytest.mark.parametrize("places", [1, 3, 8])
def test_its_tokens_are_those_of_the_other_scheduler(rng, places, pool, parts):
    """Cases 23, 24, 26 and 30: same tokens in any batch, seeded ones, with guesses, overlapped."""
    asked = [(prompt, SamplingParams(max_tokens=int(n), seed=i, temperature=i % 2,
                                     ignore_eos=i % 3 == 0))
             for i, (prompt, n) in enumerate(zip(prompts(rng, 17), rng.integers(1, 20, 17),
                                                 strict=True))]
    want = answers(engine(Scheduler, 8), asked)
    assert answers(engine(places=places, pool=pool, **parts), asked) == want


@pytest.mark.parametrize("B", [1, 3, 8])
def test_the_engine_takes_the_steps_that_are_counted(B):
    jobs = mixed_trace(21, np.random.default_rng(2), prompt=(8, 30), output=(8, 30))
    seen, lens = serve_jobs(engine(places=B, P=200), jobs), [job.output for job in jobs]
    assert len(seen) == static_steps(lens, B)
    assert B * len(seen) - sum(map(len, seen)) == idle_slot_steps(lens, B)
    assert sum(map(len, seen)) / (B * len(seen)) == useful_share(lens, B)
    for batch in split(list(range(21)), B):                 # first come, first served
        assert [step for step in seen if step[0] in batch][0] == batch


def test_nobody_is_admitted_while_somebody_runs():
    own, params = engine(), SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)
    short = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
    (long,), (done,) = own.submit([1, 2], params), own.submit([3], short)
    own.step(), own.step()
    (late,) = own.submit([4], short)
    assert done.status == "finished"
    for _ in range(7):
        assert (long.status, late.status) == ("running", "waiting")
        own.step()
        check_engine(own)
    assert long.status == "finished"
    own.step()
    assert late.status == "running"


def test_whoever_runs_gets_a_token_a_step():
    """Case 17, for running requests. Waiting ones wait for a whole batch."""
    own, params = engine(places=4), SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    requests = [own.submit([i] * 5, params)[0] for i in range(1, 5)]
    for step in range(1, 7):
        own.submit([9], params)             # they go on coming
        own.step()
        assert [len(r.output) for r in requests] == [step] * 4


@pytest.mark.parametrize("prompt", [7, 8, 9])
def test_a_request_has_its_pages_from_the_start(prompt):
    """Cases 1 and 6: at kB - 1, kB and kB + 1 no page is taken later: no preemption."""
    own = engine(P=8)
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    requests = [own.submit([i] * prompt, params)[0] for i in range(3)]
    own.step()
    held = -(-(prompt + 8) // 4)
    running = [r for r in requests if r.status == "running"]
    assert len(running) == 8 // held and own.pool.used == len(running) * held
    tables = [list(r.table) for r in running]
    for _ in range(6):
        own.step()
        assert [r.table for r in running] == tables
    drain(own)
    assert [r.preemptions for r in requests] == [0, 0, 0]


def test_whoever_names_no_length_holds_the_whole_room():
    """Case 4: alone it runs to the end of the pool, and ends there."""
    own = engine(P=6, S=4)
    params = SamplingParams(max_tokens=None, temperature=0, ignore_eos=True)
    (first,), (second,) = own.submit([1, 2, 3], params), own.submit([4], params)
    own.step()
    assert (own.pool.used, second.status) == (6, "waiting")
    drain(own)
    assert [(r.num_tokens, r.reason) for r in (first, second)] == [(24, "length")] * 2


def test_one_token_is_one_step():
    """Case 22: done after the prompt's step."""
    own = engine()
    (request,) = own.submit([1, 2, 3], SamplingParams(max_tokens=1))
    own.step()
    check_engine(own)
    assert request.status == "finished" and len(request.output) == 1 and not own.busy


@pytest.mark.parametrize("P", [64, 9, 5])
@pytest.mark.parametrize("pool", [BlockPool, PrefixPool])
@pytest.mark.parametrize("overlap", [False, True])
def test_answers_to_one_prompt(rng, P, pool, overlap):
    """Case 15, and with few pages, where some of the answers wait for the next batch."""
    asked = [(prompt, SamplingParams(max_tokens=6, seed=i, n=1 + i % 3))
             for i, prompt in enumerate(prompts(rng, 9))]
    want = answers(engine(Scheduler, 8), asked)
    own = engine(P=P, pool=pool, overlap=overlap)
    assert answers(own, asked) == want
    assert any(one[0] != other[0] for one, other, *_ in want[1::3])     # from the first token on


def test_a_prompt_of_three_answers_is_computed_once():
    """Case 15: full pages are shared, the last is copied."""
    own = engine()
    own.submit([5] * 10, SamplingParams(max_tokens=4, n=3, seed=1, ignore_eos=True))
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
    """Case 19: waiting, running, finished, twice; the place stays idle."""
    own, params = engine(), SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    requests = [own.submit([i], params)[0] for i in range(5)]
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


def test_whoever_is_preempted_comes_first_in_the_next_batch():
    """Cases 1 and 18: the same tokens, and no place in this batch any more."""
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    asked = [([i, i], params) for i in range(1, 5)]
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
    """Case 19 and the invariants, after each of 1,500 random steps."""
    rng = np.random.default_rng(4)
    own, alive = engine(P=24, pool=pool, overlap=pool is PrefixPool), []
    for _ in range(1500):
        if rng.random() < 0.5:
            params = SamplingParams(max_tokens=int(rng.integers(1, 12)), n=int(rng.integers(1, 4)))
            alive += own.submit(prompts(rng, 1)[0], params)
        if rng.random() < 0.1 and alive:
            own.abort([alive[i] for i in rng.integers(0, len(alive), 2)])
        if rng.random() < 0.05 and own.scheduler.running and not own.overlap:
            own.scheduler.preempt(own.scheduler.running[-1])
        own.step()
        check_engine(own)
    drain(own)
    assert own.finished == len(alive) > 500


def test_a_batch_has_a_place():
    with pytest.raises(ValueError, match="expected 1 place or more, found 0"):
        StaticScheduler(BlockPool(4), 0)


# ---- drawn


def test_lanes_of_who_took_part():
    seen = [["a", "b"], ["a"], ["a"], ["c", "d"], ["d"]]
    assert lanes(seen) == {"a": (0, 0, 3), "b": (1, 0, 1), "c": (0, 3, 1), "d": (1, 3, 2)}
    assert lanes([["a", "b"], ["b", "c"]]) == {"a": (0, 0, 1), "b": (1, 0, 2), "c": (0, 1, 1)}


def test_a_bar_a_request():
    seen = serve_jobs(engine(places=2, P=40), mixed_trace(5, np.random.default_rng(5), None, (4, 9),
                                                     (4, 9)))
    figure = draw_places("a title", 2, {"one": seen, "two": seen[:1]})
    first, second = figure.axes
    assert len(first.patches) == 2 + 5 and len(second.patches) == 2 + 2
    share = sum(map(len, seen)) / (2 * len(seen))
    assert first.get_title(loc="left") == f"one: {len(seen)} steps, {share:.0%} of slot-steps " \
                                          f"give a token"
