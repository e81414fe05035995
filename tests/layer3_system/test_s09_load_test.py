"""Graders of s09.
Counts are compared with a simulation, or with every value looked at."""

from bisect import bisect_right

import numpy as np
import pytest

from lab.judge.mistakes import mistake
from layer3_system import Objective, Sample

LESSON = "layer3_system.s09_load_test:"


def arrivals(subject, rate, n, seed):
    times = subject.poisson_arrivals(rate, n, subject.make("numpy.random:default_rng", seed))
    assert isinstance(times, np.ndarray) and times.shape == (n,), (
        f"poisson_arrivals: expected an array of {n} times, got {times!r:.60}")
    return times


def objective(subject, *limits):
    return subject.make(LESSON + "Objective", *limits)


# ---- predict_running


def test_predict_running(subject):
    """Little's law, seen in a simulation: arrivals at random, each there for 0.8 s."""
    begins = np.cumsum(np.random.default_rng(0).exponential(1 / 12, 60_000))
    looks = np.linspace(10, begins[-1] - 10, 20_000)
    want = (np.searchsorted(begins, looks) - np.searchsorted(begins + 0.8, looks)).mean()
    got = subject.predict_running()
    assert isinstance(got, (int, float)), f"predict_running: expected a number, got {got!r}"
    name, why = next((row for value, *row in (
        (12, "one_second", "the arrivals of one second, but a request stays 0.8 s"),
        (12 / 0.8, "over_stay", "the rate divided by the stay. A longer stay means more requests"),
        (1, "one_client", "what a closed loop with one client would give"))
        if abs(got - value) < 0.3), ("", "too low" if got < want else "too high"))
    assert abs(got - want) <= 0.05 * want, mistake(
        name, f"predict_running: {got:g} is {why}. A simulation of 60,000 requests disagrees", why)


# ---- poisson_arrivals


@pytest.mark.parametrize("rate, n", [(4, 20_000), (0.5, 20_000), (50.0, 20_000)])
def test_poisson_arrivals(subject, rate, n):
    times = arrivals(subject, rate, n, 3)
    assert times.dtype == np.float64, mistake(
        "float32", f"poisson_arrivals: the times are {times.dtype}, expected float64: after a day "
                   f"float32 resolves time only to 8 ms")
    gaps = np.diff(times, prepend=0.0)
    assert gaps.min() >= 0, mistake("gaps_returned", "poisson_arrivals: arrival times must not "
                                    "decrease. Did you return the gaps instead of their sums?")
    mean = gaps.mean()
    name, why = ("rate_as_mean", ". That is the rate, not its inverse") \
        if abs(mean - rate) < 0.1 * rate else ("", "")
    assert abs(mean * rate - 1) < 0.05, mistake(
        name, f"poisson_arrivals: {rate} a second: the gaps are {mean:.3g} s on average, expected "
              f"{1 / rate:.3g}{why}", why)
    spread = gaps.std() / mean
    assert spread > 0.05, mistake("clock", "poisson_arrivals: all gaps are equal, as of a clock. "
                                  "Independent arrivals have exponential gaps")
    assert abs(spread - 1) < 0.05, mistake(
        "uniform_gaps", f"poisson_arrivals: the standard deviation of the gaps is {spread:.2f} "
                        f"times their mean. For exponential gaps it is 1, for uniform gaps 0.58")


def test_poisson_arrivals__the_first(subject):
    """The first arrives after a gap, too."""
    firsts = [float(arrivals(subject, 2.0, 3, seed)[0]) for seed in range(40)]
    assert min(firsts) > 0 and 0.25 < np.mean(firsts) < 0.8, mistake(
        "starts_at_0", f"poisson_arrivals: the first request arrives at {np.mean(firsts):.2f} s on "
                       f"average, expected 0.5: the first gap counts as well")
    none = len(arrivals(subject, 2.0, 0, 0))
    assert none == 0, f"poisson_arrivals of 0 requests: {none} arrivals"


def test_poisson_arrivals__unseen(subject, rng):
    """All gaps against the exponential distribution; and they come from the rng that was given."""
    rate = float(rng.uniform(0.1, 100))
    n = 40_000
    seeds = rng.integers(2**31, size=2).tolist()
    one, again, other = (arrivals(subject, rate, n, seeds[i]) for i in (0, 0, 1))
    what = f"poisson_arrivals({rate:.3g}, {n}, rng)"
    shares = 1 - np.exp(-rate * np.sort(np.diff(one, prepend=0.0)))
    off = np.abs(shares - (np.arange(n) + 0.5) / n).max()
    assert off < 0.02, (            # by chance once in four million draws
        f"{what}: the gaps do not follow the exponential distribution with mean {1 / rate:.3g}: "
        f"their cumulative share is off by up to {off:.3f}, allowed 0.02")
    assert np.array_equal(one, again), mistake(
        "another_rng", f"{what}: other times from an rng of the same seed, {seeds[0]}: draw from "
                       f"rng alone")
    assert not np.array_equal(one, other), mistake(
        "ignores_rng", f"{what}: the same times whatever rng is: its draws are not used")


def test_poisson_arrivals__alone(subject):
    alone = np.sort([float(arrivals(subject, 2.0, 1, seed)[0]) for seed in range(300)])
    assert alone.max() > 0.5, mistake(
        "spread_evenly", "poisson_arrivals: one request alone, 2 a second: in 300 runs it never "
        "comes after 0.5 s, n / rate. Are n times spread over n / rate seconds? That many come in "
        "this time on average")
    off = np.abs(1 - np.exp(-2 * alone) - (np.arange(300) + 0.5) / 300).max()
    assert off < 0.1, (
        f"poisson_arrivals: in 300 runs with a single request, its arrival times do not follow the "
        f"exponential distribution (they are off by up to {off:.2f}). The first gap counts as well")


# ---- percentile


def wrong_place(values, q, got):
    """(id, sentence): which wrong place has this value; each "" if there is none."""
    n = len(values)
    ordered = sorted(values)
    kinds = sorted(set(values))
    up = max(int(np.ceil(q * n)) - 1, 0)
    places = {
        "equals_once": ("equal values are counted once",
                        kinds[max(int(np.ceil(q * len(kinds))) - 1, 0)]),
        "from_0": ("q · n is rounded up, and places count from 0",
                   ordered[min(int(np.ceil(q * n)), n - 1)]),
        "down": ("q · n is rounded down, not up", ordered[max(int(q * n) - 1, 0)]),
        "wraps": ("for q = 0 the place is -1, the last", ordered[int(np.ceil(q * n)) - 1]),
        "unsorted": ("the values are not sorted", values[up]),
        "descending": ("they are sorted from the largest down", ordered[::-1][up]),
        "rounded": ("the place is q · (n - 1), rounded", ordered[round(q * (n - 1))]),
        "of_n_less_1": ("the place is q · (n - 1), rounded down", ordered[int(q * (n - 1))]),
        "down_from_0": ("q · n is rounded down, and places count from 0",
                        ordered[min(int(q * n), n - 1)])}
    names = [name for name, (_, value) in places.items() if value == got]
    how = ", or when ".join(places[name][0] for name in names)
    return (names[0], f". This is what comes out when {how}") if names else ("", "")


@pytest.mark.parametrize("values", [[7.0, 9.0, 5.0, 6.0, 9.0, 3.0, 8.0, 2.0, 4.0, 7.0, 6.0, 2.0],
                                    [5.0], [3.0, 1.0], [4.0, 2.0, 9.0, 7.0], [2.0] * 5,
                                    [float(x) for x in np.random.default_rng(1).permutation(97)]])
def test_percentile(subject, values):
    """At least the share q is at or below it, and less than that below any smaller one."""
    for q in (0.0, 0.25, 0.5, 0.9, 0.99, 1.0):
        got = subject.percentile(values, q)
        ordered = sorted(values)
        what = f"percentile of {len(values)} values, q = {q}: {got}"
        assert got in values, mistake("between", f"{what} is not one of the values",
                                      "is not one of the values")
        name, why = wrong_place(values, q, got)
        share = bisect_right(ordered, got) / len(values)
        assert share >= q, mistake(
            name, f"{what}: only {share:.0%} of the values are at or below it{why}", why)
        smaller = [v for v in ordered if v < got]
        below = bisect_right(ordered, smaller[-1]) / len(values) if smaller else 0
        assert not smaller or below < q, mistake(
            name, f"{what}: {smaller[-1]} already has {below:.0%} of the values at or below it, "
                  f"and it is smaller{why}", why)


def test_percentile__unseen(unseen, rng):
    for q in (0.5, 0.9, float(rng.uniform(0.01, 1))):
        unseen("percentile", rng.standard_normal(int(rng.integers(1, 200))).tolist(), q,
               precision="exact")
    for _ in range(200):                                # few numbers, many of them equal
        n = int(rng.integers(1, 9))
        parts = int(rng.choice([1, 2, 4, 8]))
        unseen("percentile", (rng.integers(-2, 3, n) / 2).tolist(),
               float(rng.integers(0, parts + 1)) / parts, precision="exact")
    unseen("percentile", rng.integers(0, 50, 33_000).tolist(), 0.99, precision="exact",
           shown="33,000 values, 0.99")


def test_percentile__of_nothing(subject):
    assert subject.percentile([], 0.5) is None, mistake(
        "empty", "the percentile of an empty list is None")


# ---- goodput


LIMITS = Objective(0.5, 0.125)
# (sample, does it count?, what it shows, the mistake of a wrong answer)
SAMPLES = [
    (Sample(10.0, 10.25, 10.75, 9), True, "a TTFT of 0.25 s, then 0.0625 s each", "absolute"),
    (Sample(10.0, 10.5, 11.0, 9), True, "a TTFT of 0.5 s, the limit itself", "ttft_below"),
    (Sample(10.0, 10.5, 10.5, 1), True, "one token, in time: it has no TPOT", "one_token"),
    (Sample(0.0, 0.75, 1.0, 5), False, "a TTFT of 0.75 s, with a TPOT that is fine", "no_ttft"),
    (Sample(3.0, 3.25, 4.75, 11), False, "a TPOT of 0.15 s, with a first token in time", "no_tpot"),
    (Sample(20.0, 20.25, 20.5, 4, "the wire broke"), False, "an answer that failed", "failures"),
    (Sample(20.0, None, None, 0, "429"), False, "a request that was refused", "failures"),
    (Sample(5.0, 5.25, 6.25, 9), True, "eight gaps of 0.125 s, the limit itself", "tpot_below"),
    (Sample(5.0, 5.25, 5.875, 5), False, "five tokens, four gaps of 0.156 s", "gaps_as_tokens"),
    (Sample(5.0, 5.0, 5.0, 7), True, "seven tokens that arrived in one instant", ""),
    (Sample(0.25, 0.5, 1.0, 9), True, "a first token at 0.5 s, a TTFT of 0.25 s", "absolute"),
]


def remote(subject, sample):
    return subject.make(LESSON + "Sample", *sample)


@pytest.mark.parametrize("sample, good, what, name", SAMPLES, ids=range(len(SAMPLES)))
def test_goodput(subject, sample, good, what, name):
    got = subject.goodput([remote(subject, sample)], objective(subject, *LIMITS), 2.0)
    assert got in (0, 0.5), mistake(
        "of_requests", f"one request in 2 s gives a goodput of 0 or 0.5 a second, got {got}. Did "
                       f"you divide by seconds?")
    assert (got > 0) == good, mistake(
        name, f"{what}: should {'' if good else 'not '}count, with limits TTFT {LIMITS.ttft} s and "
              f"TPOT {LIMITS.tpot} s", what)


def test_goodput__another_objective(subject):
    sample = remote(subject, Sample(0.0, 0.5, 1.5, 11))         # TPOT 0.1 s
    for limits, want in (((0.25, 1.0), 0), ((1.0, 0.0625), 0), ((0.75, 0.25), 1)):
        got = subject.goodput([sample], objective(subject, *limits), 1.0)
        assert got == want, mistake(
            "fixed_limits", f"a TTFT of 0.5 s and a TPOT of 0.1 s, limits {limits} s: expected "
                            f"{want} a second, got {got}: use the limits of `objective`")


def test_goodput__unseen(unseen, rng):
    """Times in sixteenths of a second, so that many are a limit itself."""
    for draw in range(60):
        n = draw // 6
        limits = (rng.integers(0, 9, 2) / 16).tolist()
        rows = []
        for arrival, wait, each, tokens, error in zip(
                *(rng.integers(0, high, n).tolist() for high in (99, 12, 12, 6, 5)), strict=True):
            first = arrival / 16 + wait / 16
            last = first + (tokens or 1) * each / 16
            rows.append((arrival / 16, first, last, tokens + 1, None if error else "429"))
        if draw % 10 == 0:
            rows.append((0.0, None, None, 0, "the wire broke"))
        unseen("goodput", lambda side, rows=rows: [side.make(LESSON + "Sample", *row)
                                                   for row in rows],
               lambda side, limits=limits: objective(side, *limits),
               float(rng.integers(1, 9)),
               shown=f"samples {rows}, Objective(ttft={limits[0]}, tpot={limits[1]}), seconds")


def test_goodput__of_a_test(subject):
    limits = objective(subject, *LIMITS)
    got = subject.goodput([remote(subject, s) for s, *_ in SAMPLES], limits, 4.0)
    assert got == 1.5, f"6 good requests in 4 s are 1.5 a second, got {got}"
    assert subject.goodput([], limits, 4.0) == 0, "without requests goodput is 0"


# ---- saturation


@pytest.mark.parametrize("asked, came, want", [
    ([100, 200, 400, 800, 1600], [99, 197, 390, 700, 720], 800),
    ([100, 200, 400], [99, 197, 380], None),
    ([100, 200, 400], [97, 170, 380], 200),
    ([100, 200], [80, 160], 100),
    ([300], [299], None), ([100, 200], [90, 180], None), ([0, 10], [0, 2], 10), ([], [], None),
    ([2**40, 2**41], [2**40, 2**40], 2**41), ([40_000], [40_001], None)])
def test_saturation(subject, asked, came, want):
    got = subject.saturation(asked, [float(x) for x in came])
    pairs = list(zip(asked, came, strict=True))
    below = [a for a, c in pairs if c < 0.9 * a]
    kept = [a for a in asked if a not in below]
    place = asked.index(want) if want in asked else None
    before = [a for a in kept if want is None or a < want]
    after = [a for a in below if a > max(kept, default=-1)]
    mistakes = {
        "at_share": ([a for a, c in pairs if c <= 0.9 * a], "exactly 90 % still counts"),
        "all_of_it": ([a for a, c in pairs if c < a], "a little less is always delivered"),
        "after_the_last": (after, "only loads after the last that is kept up with are looked at, "
                                  "and one came before"),
        "largest": (below[::-1], "that is the largest of them, not the first"),
        "last_kept": (before[::-1], "that is the last load that is kept up with"),
        "place": ([place], "that is a place, not a load"),
        "delivered": (came[place:] if want else [], "that is what was delivered, not the load")}
    name, why = next(((id, f": {why}") for id, (wrong, why) in mistakes.items()
                      if got == next(iter(wrong), None)), ("", ""))
    shown = ", ".join(f"{c / a:.0%}" if a else "no load" for a, c in pairs)
    assert got == want, mistake(
        name, f"offered {asked}, delivered {came}: {shown}. Return the first load with less than "
              f"90 %, not {'no load' if got is None and why else got}{why}", why)


def test_saturation__another_share(subject):
    assert subject.saturation([10.0, 20.0, 40.0], [10.0, 17.0, 30.0], 0.8) == 40.0, mistake(
        "fixed_share", "with a share of 0.8: 85 % is enough, 75 % is not")


def test_saturation__unseen(unseen, rng):
    asked = np.cumsum(rng.uniform(1, 50, 17))
    for share in (0.9, 0.7):
        unseen("saturation", asked.tolist(), (asked * rng.uniform(0.6, 1.1, 17)).tolist(), share,
               precision="exact")
    for _ in range(100):                # whole numbers, so that many are the share itself
        asked = np.cumsum(4 * rng.integers(1, 4, int(rng.integers(0, 7))))
        share = float(rng.choice([0.25, 0.5, 0.75, 1]))
        unseen("saturation", asked.tolist(), (share * asked + rng.choice([-1, 0, 0, 1], len(asked))
                                              ).tolist(), share, precision="exact")
