"""Graders of s03.
Counts are compared with every slot-step written down, or every draw tried.

The traces and the scheduler that s03 gives: test_static_scheduler.py.
"""

from itertools import combinations, pairwise, product

import numpy as np
import pytest

from lab.judge.mistakes import mistake

WHY = {
    # predict_useful_share
    "percent": "a percentage; give a share from 0 to 1",
    "no_share": "not a share from 0 to 1",
    "idle_share": "the share that is idle",
    "always_200": "the share if the longest of eight always had 200 tokens; on average it has "
                  "fewer",
    "one_seat": "1/8, as if only the longest answer gave tokens",
    "": "not right",
    # best_batches
    "lengths": "Did you return lengths?",
    "pairs": "Is a length beside the index?",
    "from_1": "Indices count from 0.",
    "too_large": "A batch has at most B requests.",
    "by_length": "It has the length of another: is its index looked up by its length?",
    "last_dropped": "It has the shortest answer: is the last batch left out if it is not full?",
    "arrival_order": "The requests are still in order of arrival.",
    "ranks": "These are ranks in the order of lengths. Return the indices of the requests.",
    "small_longest": "The incomplete batch holds the longest answer, so its empty seats are wasted "
                     "on the most steps.",
    "free_seat": "A batch has a free seat, and a shorter answer is in a batch after it.",
    "mixed_lengths": "Long answers share batches with short ones instead of with each other.",
}


def first_true(cases):
    """The first name whose condition holds, of {name: condition}; "" if none does."""
    return next((name for name, holds in cases.items() if holds), "")


# ---- predict_useful_share


def test_predict_useful_share(subject):
    mean = sum(range(1, 201)) / 200
    want = mean / sum(1 - ((k - 1) / 200) ** 8 for k in range(1, 201))     # of k tokens or more
    got = subject.predict_useful_share()
    assert isinstance(got, (int, float)), f"predict_useful_share: expected a number, got {got!r}"
    name = first_true({
        "percent": 1 < got <= 100, "no_share": not 0 <= got <= 1,
        "idle_share": abs(got - (1 - want)) < 0.03, "always_200": abs(got - mean / 200) < 0.02,
        "one_seat": abs(got - 1 / 8) < 0.02})
    too = "" if name else ": too low" if got < want else ": too high"
    assert abs(got - want) < 0.03, mistake(
        name, f"predict_useful_share: {got:g} is {WHY[name]}{too}", WHY[name])


# ---- padded_tokens, static_steps


# On the first three hardly two mistakes give the same number: full batches, then a last small one.
TRACES = [([13, 4, 14, 6, 10, 5, 11, 4, 11], 3), ([6, 9, 5, 10, 1, 16, 4, 21, 4], 6),
          ([9, 6, 7, 2, 20, 8, 23, 6, 24], 6), ([3, 5, 4, 9], 2),
          ([3, 5, 2, 7, 1], 2), ([4], 3), ([6, 6, 6], 3), ([1, 9, 9, 2, 2, 2, 30], 3),
          ([8, 3, 5], 1), ([2, 11], 8)]


def split(lens, B, last=True):
    """The batches; without `last`, only the full ones."""
    return [lens[i:i + B] for i in range(0, len(lens), B) if last or i + B <= len(lens)]


def misread(lens, B, of):
    """{id: (sentence, [batch])}: how the batches can be made instead."""
    count = -(-len(lens) // B)
    firsts = range(0, len(lens), B)
    return {
        "shortest_first": (f"{of} are sorted first, the shortest in front", split(sorted(lens), B)),
        "longest_first": (f"{of} are sorted first, the longest in front",
                          split(sorted(lens, reverse=True), B)),
        "even_batches": (f"batches of {of} are made equally large: each but the last has B",
                         split(lens, -(-len(lens) // count))),
        "every_kth": ("every k-th shares a batch, not B that follow each other",
                      [lens[i::count] for i in range(count)]),
        "from_each": ("a batch begins at each index, not at every B-th",
                      [lens[i:i + B] for i in range(len(lens))]),
        "one_more": ("a batch takes one more than B", [lens[i:i + B + 1] for i in firsts]),
        "one_less": ("a batch takes one less than B",
                     [lens[i:i + B - 1] for i in firsts if lens[i:i + B - 1]]),
        "ignores_B": ("B is ignored: all are one batch", [lens])}


def told_apart(mistakes):
    """Mistakes that give the same number here are named together, under the id of the first."""
    rows = {}
    for name, (sentence, value) in mistakes.items():
        rows.setdefault(round(float(value), 9), []).append((name, sentence))
    return {names[0][0]: (", or when ".join(sentence for _, sentence in names), value)
            for value, names in rows.items()}


def padding(batches, width=max):
    return sum(len(batch) * width(batch) - sum(batch) for batch in batches)


@pytest.mark.parametrize("prompts, B", TRACES)
def test_padded_tokens(subject, agree, prompts, B):
    batches = split(prompts, B)
    rows = [["token"] * n + ["padding"] * (max(batch) - n) for batch in batches for n in batch]
    want = sum(row.count("padding") for row in rows)
    computed = sum(map(len, rows))
    mistakes = {
        "of_the_trace": ("every prompt is as wide as the longest of the trace, not of its batch",
                         padding([prompts])),
        "all_computed": ("all computed tokens are counted, not only the padding", computed),
        "empty_seats": ("empty seats of the last batch are padded as well",
                        sum(B * max(batch) - sum(batch) for batch in batches)),
        "last_skipped": ("the last batch is skipped, and its prompts are subtracted all the same",
                         padding(batches[:-1]) - sum(batches[-1])),
        "full_only": ("the prompts after the last full batch are skipped",
                      padding(split(prompts, B, last=False))),
        "counts_prompts": ("prompts that are padded are counted, not the tokens of their padding",
                           sum(n < max(batch) for batch in batches for n in batch)),
        "shortest_only": ("only the shortest of each batch is padded",
                          sum(max(batch) - min(batch) for batch in batches)),
        "shortest_width": ("a batch is as wide as its shortest prompt", padding(batches, min)),
        "negative": ("the computed tokens are subtracted from the prompts, not the other way round",
                     -want),
        "mean": ("it is the mean of the batches, not their sum", want / len(batches)),
        "share": ("it is a share of the tokens computed, not their number", want / computed)}
    others = {name: (sentence, sum(len(batch) * max(batch) for batch in some) - sum(prompts))
              for name, (sentence, some) in misread(prompts, B, "prompts").items()}
    agree(subject.padded_tokens(list(prompts), B), want, "exact",
          f"padded_tokens of prompts {prompts}, B = {B}", at=lambda i: "the count",
          mistakes=told_apart(mistakes | others))


def drawn(rng, unseen, name):
    """Small lists, many with ties, ones and full last batches; longer ones; then lengths past 31
    bits, where no right answer counts step by step."""
    for _ in range(80):
        count, most, B = rng.integers((1, 2, 1), (10, 7, 6)).tolist()
        unseen(name, rng.integers(1, most, count).tolist(), B)
    for B in rng.integers(1, 12, 3).tolist():
        unseen(name, rng.integers(1, 500, int(rng.integers(1, 60))).tolist(), B)
    long = [([2**31, 1, 2**31 + 5], 2), ([2**33] * 3, 2)] if name != "static_steps" else []
    for lens, B in [*long, ([40_000] * 9, 4), ([1], 2**31)]:
        unseen(name, lens, B)


def test_padded_tokens__unseen(unseen, rng):
    drawn(rng, unseen, "padded_tokens")


def refilled(lens, B):
    """Steps if each seat takes the next answer as soon as it is free."""
    ends = [0] * B
    for n in lens:
        ends[ends.index(min(ends))] += n
    return max(ends)


@pytest.mark.parametrize("outputs, B", TRACES)
def test_static_steps(subject, agree, outputs, B):
    batches = split(outputs, B)
    want = 0
    for left in batches:
        while any(n > 0 for n in left):     # a step: one token for each that has not finished
            left = [n - 1 for n in left]
            want += 1
    mistakes = {
        "ends_with_shortest": ("a batch ends with its shortest answer", sum(map(min, batches))),
        "prompt_step": ("an extra step is counted for the prompts, although that step already "
                        "gives the first token", want + len(batches)),
        "no_prompt_step": ("the step of the prompts is not counted, though it gives the first "
                           "token", want - len(batches)),
        "longest_of_all": ("the trace's longest answer is used as the total", max(outputs)),
        "longest_each_time": ("each batch lasts as long as the longest answer of the trace",
                              max(outputs) * len(batches)),
        "one_by_one": ("answers run one after another instead of sharing steps", sum(outputs)),
        "refilled": ("a free seat takes the next answer; in a static batch it stays empty until "
                     "all have finished", refilled(outputs, B)),
        "never_idle": ("no seat is ever idle: the tokens are divided by B", -(-sum(outputs) // B)),
        "slot_steps": ("slot-steps are counted, B of them a step", B * want),
        "full_only": ("the answers after the last full batch are skipped",
                      sum(map(max, split(outputs, B, last=False))))}
    if len(batches[-1]) == B:
        mistakes["last_skipped"] = ("the last batch is skipped, although it is full",
                                    sum(map(max, batches[:-1])))
    others = {name: (sentence, sum(map(max, some)))
              for name, (sentence, some) in misread(outputs, B, "answers").items()}
    agree(subject.static_steps(list(outputs), B), want, "exact",
          f"static_steps of answers {outputs}, B = {B}", at=lambda i: "the count",
          mistakes=told_apart(mistakes | others))


def test_static_steps__unseen(unseen, rng):
    drawn(rng, unseen, "static_steps")


# ---- expected_longest


# The first tells most mistakes apart: lengths in no order, two of them equal, and three draws.
@pytest.mark.parametrize("lens, B", [
    ([20, 4, 7, 12, 20], 3), ([4, 1, 9], 2), ([7, 2, 2, 30], 3), ([5], 4), ([3, 8, 1, 1, 6], 1),
    ([12, 12, 1], 5)])
def test_expected_longest(subject, agree, lens, B):
    n = len(lens)
    ordered = sorted(lens)

    def mean(longest, some=lens, count=B):
        return np.mean([longest(draw) for draw in product(some, repeat=count)])

    def total(probability, some=ordered):
        return sum(x * probability(i) for i, x in enumerate(some, 1))

    def exactly(i, n=n):
        return (i / n) ** B - ((i - 1) / n) ** B

    want = mean(max)
    mistakes = {
        "one_draw": ("one length is drawn, not B", np.mean(lens)),
        "one_draw_less": ("B - 1 lengths are drawn", mean(max, count=B - 1) if B > 1 else 0),
        "longest_of_all": ("the longest of all lengths is returned, although B draws may miss it",
                           max(lens)),
        "floor": ("i / n is rounded down, with //", max(lens)),
        "unsorted": ("the lengths are not in order", total(exactly, lens)),
        "descending": ("the lengths, or the probabilities, are in descending order: it is the "
                       "shortest of the draws", mean(min)),
        "or_shorter": ("the probability of “i-th or shorter” is used for “exactly the i-th”",
                       total(lambda i: (i / n) ** B)),
        "next_longer": ("each probability is paired with the next longer length",
                        total(lambda i: exactly(i - 1) if i > 1 else 0)),
        "from_0": ("i counts the lengths from 0: the shortest has i = 1",
                   total(lambda i: ((i - 1) / n) ** B - ((i - 2) / n) ** B)),
        "equals_once": ("equal lengths are counted once", mean(max, set(lens))),
        "times_B": ("probabilities are multiplied by B, not raised to the power B",
                    B * np.mean(lens)),
        "power_of_difference": ("i / n - (i - 1) / n is raised to the power B: raise both first",
                                sum(lens) / n ** B),
        "longest_left_out": ("the longest length is left out", total(exactly, ordered[:-1])),
        "uniform": ("the lengths lie evenly between 0 and the longest", max(lens) * B / (B + 1)),
        "rounded": ("it is rounded to a whole number", round(want)),
        "rounded_down": ("it is rounded down to a whole number", int(want))}
    if n > 1:
        mistakes["n_less_1"] = ("n is one too small", total(lambda i: exactly(i, n - 1)))
    if n >= B:
        mistakes["no_replacement"] = ("lengths are drawn without replacement",
                                      np.mean([max(draw) for draw in combinations(lens, B)]))
    agree(subject.expected_longest(list(lens), B), want, "float64",
          f"expected_longest of {B} draws from {lens}", at=lambda i: "the expected length",
          mistakes=told_apart(mistakes))


def test_expected_longest__unseen(unseen, rng):
    drawn(rng, unseen, "expected_longest")


def test_expected_longest__many(subject, agree):
    """Too many draws to try them all."""
    want = sum(1 - ((k - 1) / 200) ** 64 for k in range(1, 201))
    agree(subject.expected_longest(list(range(200, 0, -1)), 64), want, "float64",
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


def tell(name, seen):
    """The message of a mistake, or of "", which names none: what was seen, and why it is wrong."""
    why = WHY[name] if name else ""
    return mistake(name, f"{seen}. {why}".rstrip(), why)


def each_once(got, lens, B, what):
    """An AssertionError unless these are batches of at most B with every index once."""
    assert isinstance(got, (list, tuple)) and all(isinstance(b, (list, tuple)) for b in got), \
        f"{what}: got {got!r}, expected a list of batches, each a list of indices"
    n = len(lens)
    indices = [i for batch in got for i in batch]
    for i in indices:
        assert i in range(n), tell(
            first_true({"lengths": i in lens, "pairs": isinstance(i, tuple),
                        "from_1": i == n and 0 not in indices}),
            f"{what}: {i} is not an index into the list of {n}")
    for batch in got:
        assert len(batch) <= B, tell("too_large", f"{what}: the batch {list(batch)} has "
                                     f"{len(batch)} requests, but there are only {B} seats")
    for i in indices:
        assert indices.count(i) == 1, tell("by_length" if lens.count(lens[i]) > 1 else "",
                                           f"{what}: request {i} is in two batches")
    absent = [i for i in range(n) if i not in indices]
    shortest = [lens[i] for i in absent] == sorted(lens)[:1]
    assert not absent, tell("last_dropped" if shortest else "", f"{what}: request {absent[0]}, "
                            f"with {lens[absent[0]]} tokens, is in no batch")


@pytest.mark.parametrize("lens, B", [
    ([50, 20, 40, 30, 90], 2), ([31, 70, 32, 71, 33, 72, 80], 3), ([44], 3), ([25, 25, 25], 2),
    ([9, 80, 81, 10], 4), ([60, 12, 30], 1)])
def test_best_batches(subject, lens, B):
    got = subject.best_batches(list(lens), B)
    what = f"best_batches of answers {lens}, B = {B}"
    each_once(got, lens, B, what)
    n = len(lens)
    indices = [i for batch in got for i in batch]
    batches = sorted(([lens[i] for i in batch] for batch in got if batch), key=max, reverse=True)
    ranks = np.argsort(np.argsort([-n for n in lens])).tolist()
    steps = sum(map(max, batches))
    best = fewest(lens, B)
    assert steps == best, tell(first_true({
        "arrival_order": [sorted(batch) for batch in got] == split(list(range(n)), B),
        "ranks": indices in (ranks, [n - 1 - rank for rank in ranks]),
        "small_longest": steps == sum(map(max, split(sorted(lens), B))),
        "free_seat": all(min(a) >= max(b) for a, b in pairwise(batches)),
        "mixed_lengths": True}), f"{what}: {steps} steps, but {best} are possible")


def test_best_batches__unseen(subject, rng):
    """Small lists, many with ties and ones; some larger; then lengths past 31 bits."""
    sizes = [*rng.integers((1, 2, 1), (10, 5, 6), (60, 3)).tolist(),
             *rng.integers((5, 99, 2), (60, 500, 12), (3, 3)).tolist()]
    traces = [(rng.integers(1, most, count).tolist(), B) for count, most, B in sizes]
    for lens, B in [*traces, ([2**31, 1, 2**31 + 5, 40_000], 2), ([7, 7], 2**31)]:
        what = f"best_batches of {lens}, B = {B}"
        got = subject.best_batches(list(lens), B)
        each_once(got, lens, B, what)
        steps = sum(max(lens[i] for i in batch) for batch in got if batch)
        best = sum(sorted(lens, reverse=True)[::B])     # the longest together, the last batch small
        assert steps == best, f"{what}: {steps} steps, but {best} are possible"
