"""Graders of s09. Counts are compared with a simulation, or with every value looked at."""

from bisect import bisect_right

import numpy as np
import pytest

from layer3_system import Objective, Sample, summarise, tpot

# ---- predict_running


def test_predict_running(subject):
    """Little's law, seen in a simulation: arrivals at random, each there for 0.8 s."""
    arrivals = np.cumsum(np.random.default_rng(0).exponential(1 / 12, 60_000))
    ends = arrivals + 0.8
    looks = np.linspace(10, arrivals[-1] - 10, 20_000)
    there = np.searchsorted(arrivals, looks) - np.searchsorted(ends, looks)
    want, got = there.mean(), subject.predict_running()
    assert isinstance(got, (int, float)), f"a prediction is a number, got {got!r}"
    near = ("how many arrive in a second; they do not stay for one" if abs(got - 12) < 0.3 else
            "the rate over the stay. A longer stay makes it more, not fewer"
            if abs(got - 12 / 0.8) < 0.5 else
            "one at a time: as if the next arrived when the last has left"
            if abs(got - 1) < 0.3 else
            "too low" if got < want else "too high")
    assert abs(got - want) <= 0.05 * want, (
        f"predict_running: {got:g} is {near}. In a simulation of 60,000 requests it was {want:.2f}")


# ---- poisson_arrivals


@pytest.mark.parametrize("rate, n", [(4, 20_000), (0.5, 20_000), (50.0, 20_000)])
def test_poisson_arrivals(subject, rate, n):
    found = subject.poisson_arrivals(rate, n, subject.make("numpy.random:default_rng", 3))
    assert isinstance(found, np.ndarray) and found.shape == (n,), (
        f"poisson_arrivals: expected an array of {n} times, got {found!r:.60}")
    assert found.dtype == np.float64, (
        f"poisson_arrivals: the times are {found.dtype}, expected float64: after a day float32 "
        f"knows a time to 8 ms only")
    gaps = np.diff(found, prepend=0.0)
    assert gaps.min() >= 0, "a request arrives before the one in front of it: these are gaps"
    mean = gaps.mean()
    assert abs(mean * rate - 1) < 0.05, (
        f"{rate} a second: the gaps are {mean:.3g} s on average, expected {1 / rate:.3g}" + (
            ". That is the rate, not its inverse" if abs(mean - rate) < 0.1 * rate else ""))
    spread = gaps.std() / mean
    assert spread > 0.05, "all gaps are alike: that is a clock, not people"
    assert abs(spread - 1) < 0.05, (
        f"the gaps' standard deviation is {spread:.2f} of their mean. Of exponential ones it is 1; "
        f"evenly spread ones have 0.58")


def test_poisson_arrivals__the_first(subject):
    """The first arrives after a gap, too."""
    firsts = [float(subject.poisson_arrivals(2.0, 3, subject.make(
        "numpy.random:default_rng", seed))[0]) for seed in range(40)]
    assert min(firsts) > 0 and 0.25 < np.mean(firsts) < 0.8, (
        f"the first request arrives at {np.mean(firsts):.2f} s on average, expected 0.5: it has a "
        f"gap before it, as all others do")
    assert len(subject.poisson_arrivals(2.0, 0, subject.make("numpy.random:default_rng", 0))) == 0


def test_poisson_arrivals__unseen(subject, rng):
    """All gaps against the exponential distribution; and they come from the rng that was given."""
    rate, n, seeds = float(rng.uniform(0.1, 100)), 40_000, rng.integers(2**31, size=2).tolist()
    one, again, other = (subject.poisson_arrivals(rate, n, subject.make(
        "numpy.random:default_rng", seed)) for seed in (*seeds[:1] * 2, seeds[1]))
    for found in (one, again, other):
        assert isinstance(found, np.ndarray) and found.shape == (n,), (
            f"poisson_arrivals({rate:.3g}, {n}, rng): expected {n} times, got {found!r:.60}")
    shares = 1 - np.exp(-rate * np.sort(np.diff(one, prepend=0.0)))
    off = np.abs(shares - (np.arange(n) + 0.5) / n).max()
    assert off < 0.02, (            # by chance once in four million draws
        f"poisson_arrivals({rate:.3g}, {n}, rng): the share of gaps below some length is up to "
        f"{off:.3f} off; of exponential gaps, {1 / rate:.3g} s on average, expected below 0.02")
    why = ". They come from another generator than rng" if not np.array_equal(one, again) else \
        ". They are the same whatever rng is: its draws are not used"
    assert np.array_equal(one, again) and not np.array_equal(one, other), (
        f"poisson_arrivals({rate:.3g}, {n}, rng): expected the same times from an rng of the same "
        f"seed, {seeds[0]}, and others from one of seed {seeds[1]}{why}")


def test_poisson_arrivals__alone(subject):
    alone = np.sort([float(subject.poisson_arrivals(2.0, 1, subject.make(
        "numpy.random:default_rng", seed))[0]) for seed in range(300)])
    assert alone.max() > 0.5, (
        "one request alone, 2 a second: in 300 tests it never comes after 0.5 s, n / rate. "
        "Are n times spread over n / rate seconds? That many come in this time on average")
    off = np.abs(1 - np.exp(-2 * alone) - (np.arange(300) + 0.5) / 300).max()
    assert off < 0.1, (
        f"300 tests of one request alone: the share of arrivals before some time is up to "
        f"{off:.2f} off that of exponential gaps; it may be late, and no "
        f"later arrival says how late")


# ---- percentile


def place_mistaken(values, q, got):
    """A sentence: which wrong places have this value."""
    ordered, kinds, n = sorted(values), sorted(set(values)), len(values)
    places = {
        "the values are not sorted": values[max(int(np.ceil(q * n)) - 1, 0)],
        "they are sorted from the largest down": ordered[::-1][max(int(np.ceil(q * n)) - 1, 0)],
        "equal values are counted once": kinds[max(int(np.ceil(q * len(kinds))) - 1, 0)],
        "the place is q · (n - 1), rounded": ordered[round(q * (n - 1))],
        "the place is q · (n - 1), rounded down": ordered[int(q * (n - 1))],
        "the place is q · n, rounded up, and places count from 0":
            ordered[min(int(np.ceil(q * n)), n - 1)],
        "the place is q · n, rounded down, and places count from 0":
            ordered[min(int(q * n), n - 1)],
        "q · n is rounded down, not up": ordered[max(int(q * n) - 1, 0)],
        "the place is -1, which is the last": ordered[int(np.ceil(q * n)) - 1],
    }
    found = ", or when ".join(how for how, value in places.items() if value == got)
    return f"\nThis is what comes out when {found}." if found else ""


@pytest.mark.parametrize("values", [[7.0, 9.0, 5.0, 6.0, 9.0, 3.0, 8.0, 2.0, 4.0, 7.0, 6.0, 2.0],
                                    [5.0], [3.0, 1.0], [4.0, 2.0, 9.0, 7.0], [2.0] * 5,
                                    [float(x) for x in np.random.default_rng(1).permutation(97)]])
def test_percentile(subject, values):
    """At least the share q is at or below it, and less than that below any smaller one."""
    for q in (0.0, 0.25, 0.5, 0.9, 0.99, 1.0):
        got, ordered = subject.percentile(values, q), sorted(values)
        where, why = f"percentile of {len(values)} values, q = {q}: {got}", ""
        if got in values:
            why = place_mistaken(values, q, got)
        assert got in values, f"{where} is not one of the values that were measured"
        share = bisect_right(ordered, got) / len(values)
        assert share >= q, f"{where}: only {share:.0%} of the values are at or below it{why}"
        smaller = [v for v in ordered if v < got]
        if smaller:
            below = bisect_right(ordered, smaller[-1]) / len(values)
            assert below < q or q == 0, (
                f"{where}: {smaller[-1]} has a share of {below:.0%} at or below it already, so it "
                f"is the smallest{why}")
        if q == 0:
            assert got == ordered[0], f"{where}, expected the smallest, {ordered[0]}{why}"


def test_percentile__unseen(unseen, rng):
    for q in (0.5, 0.9, float(rng.uniform(0.01, 1))):
        unseen("percentile", rng.standard_normal(int(rng.integers(1, 200))).tolist(), q,
               precision="exact")
    for _ in range(200):                                # few numbers, many of them equal
        n, parts = int(rng.integers(1, 9)), int(rng.choice([1, 2, 4, 8]))
        unseen("percentile", (rng.integers(-2, 3, n) / 2).tolist(),
               float(rng.integers(0, parts + 1)) / parts, precision="exact")
    unseen("percentile", rng.integers(0, 50, 33_000).tolist(), 0.99, precision="exact",
           shown="33,000 values, 0.99")


def test_percentile__of_nothing(subject):
    assert subject.percentile([], 0.5) is None, "without values there is no percentile: None"


# ---- goodput


LIMITS = Objective(0.5, 0.125)
# (sample, is it good?, what it shows)
SAMPLES = [
    (Sample(10.0, 10.25, 10.75, 9), True, "a first token after 0.25 s, then 0.0625 s each"),
    (Sample(10.0, 10.5, 11.0, 9), True, "a first token after 0.5 s, which is the limit itself"),
    (Sample(10.0, 10.5, 10.5, 1), True, "one token, just in time: it has no TPOT to exceed"),
    (Sample(0.0, 0.75, 1.0, 5), False, "a first token after 0.75 s, with a TPOT that is fine"),
    (Sample(3.0, 3.25, 4.75, 11), False, "a TPOT of 0.15 s, with a first token in time"),
    (Sample(20.0, 20.25, 20.5, 4, "the wire broke"), False, "an answer that failed"),
    (Sample(20.0, None, None, 0, "429"), False, "a request that was refused"),
    (Sample(5.0, 5.25, 6.25, 9), True, "nine tokens, eight gaps of 0.125 s"),
    (Sample(5.0, 5.25, 5.875, 5), False, "five tokens, four gaps of 0.156 s"),
    (Sample(5.0, 5.0, 5.0, 7), True, "seven tokens that came at once, at no time"),
    (Sample(0.25, 0.5, 1.0, 9), True, "a first token at 0.5 s, 0.25 s after its arrival"),
]


def remote(subject, sample):
    return subject.make("layer3_system.s09_load_test:Sample", *sample)


@pytest.mark.parametrize("sample, good, what", SAMPLES, ids=range(len(SAMPLES)))
def test_goodput(subject, sample, good, what):
    limits = subject.make("layer3_system.s09_load_test:Objective", *LIMITS)
    got = subject.goodput([remote(subject, sample)], limits, 2.0)
    assert got in (0, 0.5), f"one request in 2 s is 0 or 0.5 a second, got {got}"
    assert (got > 0) == good, (
        f"{what}: expected {'to be good' if good else 'not to be good'}, with TTFT at most "
        f"{LIMITS.ttft} s and TPOT at most {LIMITS.tpot} s")


def test_goodput__another_objective(subject):
    sample = remote(subject, Sample(0.0, 0.5, 1.5, 11))         # TPOT 0.1 s
    for limits, want in (((0.25, 1.0), 0), ((1.0, 0.0625), 0), ((0.75, 0.25), 1)):
        objective = subject.make("layer3_system.s09_load_test:Objective", *limits)
        got = subject.goodput([sample], objective, 1.0)
        assert got == want, (
            f"a TTFT of 0.5 s and a TPOT of 0.1 s, limits {limits} s: expected {want} a second, "
            f"got {got}; the limits are those of the objective that is handed in")


def test_goodput__unseen(unseen, rng):
    """Times in sixteenths of a second, so that many are a limit itself."""
    path = "layer3_system.s09_load_test:"
    for draw in range(60):
        n, limits = draw // 6, (rng.integers(0, 9, 2) / 16).tolist()
        rows = []
        for arrival, wait, each, tokens, error in zip(
                *(rng.integers(0, high, n).tolist() for high in (99, 12, 12, 6, 5)), strict=True):
            first = arrival / 16 + wait / 16
            last = first + (tokens or 1) * each / 16
            rows.append((arrival / 16, first, last, tokens + 1, None if error else "429"))
        if draw % 10 == 0:
            rows.append((0.0, None, None, 0, "the wire broke"))
        unseen("goodput", lambda side, rows=rows: [side.make(path + "Sample", *row)
                                                   for row in rows],
               lambda side, limits=limits: side.make(path + "Objective", *limits),
               float(rng.integers(1, 9)),
               shown=f"samples {rows}, Objective(ttft={limits[0]}, tpot={limits[1]}), seconds")


def test_goodput__of_a_test(subject):
    limits = subject.make("layer3_system.s09_load_test:Objective", *LIMITS)
    got = subject.goodput([remote(subject, s) for s, _, _ in SAMPLES], limits, 4.0)
    assert got == 1.5, f"6 good requests in 4 s are 1.5 a second, got {got}"
    assert subject.goodput([], limits, 4.0) == 0, "without requests none is good"


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
    below = [a for a, c in zip(asked, came, strict=True) if c < 0.9 * a]
    kept = [a for a in asked if a not in below]
    after = [a for a in below if a > max(kept, default=-1)]
    mistakes = {
        "90 % itself is not below": next(
            (a for a, c in zip(asked, came, strict=True) if c <= 0.9 * a), None),
        "Only loads behind the last that is kept up with are looked at, and one came before":
            next(iter(after), None),
        "That is the largest of them, not the first": max(below, default=None),
        "That is the last load that is kept up with": max(
            (a for a in kept if want is None or a < want), default=None),
        "That is a place, not a load": asked.index(want) if want in asked else None,
        "That is what came, not what was asked for":
            came[asked.index(want)] if want in asked else None,
    }
    why = next((f". {why}" for why, wrong in mistakes.items() if got == wrong), "")
    said = "none" if why and got is None else got       # "got None" reads like a missing return
    shown = ", ".join(f"{c / a:.0%}" if a else "none asked for"
                      for a, c in zip(asked, came, strict=True))
    assert got == want, (
        f"asked for {asked}, {came} tokens a second came: {shown}. The first below 90 % is at "
        f"{want}, got {said}{why}")


def test_saturation__another_share(subject):
    assert subject.saturation([10.0, 20.0, 40.0], [10.0, 17.0, 30.0], 0.8) == 40.0, (
        "with a share of 0.8: 85 % is enough, 75 % is not")


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


# ---- what is given


def test_summary():
    """Failures count as requests, and in no time."""
    s = summarise([sample for sample, _, _ in SAMPLES], LIMITS)
    assert (s.requests, s.failed, s.seconds) == (11, 2, 11.0)
    assert s.throughput == pytest.approx((9 + 9 + 1 + 5 + 11 + 9 + 5 + 7 + 9) / 11)
    assert s.goodput == pytest.approx(6 / 11)
    assert (s.ttft[0.5], s.ttft[0.99], s.tpot[0.99], s.e2e[0.99]) == (0.25, 0.75, 0.15625, 1.75)
    none = summarise([SAMPLES[5][0]], LIMITS)
    assert (none.failed, none.throughput, none.ttft[0.5]) == (1, 0, None)


def test_case_33_one_token_has_no_tpot():
    """Case 33: TPOT is (E2E - TTFT) / (n - 1); of one token it is undefined."""
    assert tpot(Sample(0.0, 1.0, 1.0, 1)) is None
    assert tpot(Sample(0.0, 1.0, 3.0, 5)) == 0.5
