"""The profiles of o03: the recorded ones hold together, and their counts are those of formulas."""

import json
import random
from itertools import pairwise

import pytest

from day02_overview import (
    BUSY,
    CAUSES,
    FAR,
    Profile,
    least_seconds,
    load_profiles,
    model,
    where_time_goes,
)
from day02_overview import record_profiles as rec
from day02_overview.o04_training_math import sent_by


@pytest.mark.parametrize("p", [*load_profiles().values(), *(model(c, random.Random(7))
                                                            for c in CAUSES)],
                         ids=lambda p: f"{p.made}, {p.name}")
def test_a_profile_holds_together(p):
    for rank in range(p.ranks):
        for kind in ("kernel", "input", "collective", "host"):
            mine = sorted((s for s in p.spans if (s.rank, s.kind) == (rank, kind)),
                          key=lambda s: s.start)
            assert all(a.end <= b.start for a, b in pairwise(mine))
    for s in p.spans:
        assert s.weights + s.between <= s.moved
        if s.kind == "kernel":
            large = s.moved > 30e6 or p.made == "by a model"        # no cache holds its arrays
            least = max(s.flops / p.peak, large * s.moved / p.bandwidth)
            assert least < 1.05 * (s.end - s.start), f"{s} is above its roof"


def test_six_are_measured():
    profiles = load_profiles()
    assert list(profiles) == ["starved", "launch-bound", "unfused", "unbatched", "imbalanced",
                           "communication-bound"]
    assert all(p.made == "measured" and "shared CPU cores" in p.how for p in profiles.values())
    assert rec.RECORD.stat().st_size < 100_000
    assert json.loads(rec.RECORD.read_text("utf-8"))["command"].endswith(rec.__name__)


def test_the_counts_are_those_of_the_formulas():
    profiles = load_profiles()

    def work(cause, kind="kernel"):
        return [(s.flops, s.moved, s.weights, s.between) for s in profiles[cause].spans
                if s.kind == kind]

    row, array, few = 4 * rec.C, 4 * rec.N, 4 * rec.NUMBERS
    matrix = row * rec.C
    assert work("unbatched") == [
        (2 * rec.C**2, matrix + 2 * row, matrix, n * row) for n in (1, *[2] * (rec.LAYERS - 2), 1)]
    assert work("unfused") == [
        (rec.N, n * array, 0, k * array)
        for n, k in zip((2, 2, 3, 2, 3, 2), (1, 2, 2, 2, 2, 1), strict=True)]
    assert work("launch-bound") == [(rec.NUMBERS, 2 * few, 0, 0)] * rec.LAUNCHES
    assert len(work("launch-bound", "host")) == rec.LAUNCHES
    n = rec.SIDE
    for cause, count in (("imbalanced", 2 * sum(rec.UNEVEN)), ("communication-bound", 4)):
        assert work(cause) == [(2 * n**3, 12 * n**2, 0, 0)] * count
    for cause, numbers in (("imbalanced", rec.SMALL), ("communication-bound", rec.MESSAGE)):
        assert work(cause, "collective") == [(0, sent_by("all_reduce", 4 * numbers, 2), 0, 0)] * 4
    x, w, y = 4 * rec.B * rec.WIDE, 4 * rec.WIDE * rec.OUT, 4 * rec.B * rec.OUT
    product = 2 * rec.B * rec.WIDE * rec.OUT
    assert work("starved") == 3 * [
        (product, x + w + y, w, 0), (rec.B * rec.OUT, 3 * y, 0, 0), (product, x + y + w, 0, 0),
        (2 * rec.WIDE * rec.OUT, 3 * w, 2 * w, 0)]


def test_the_launch_bound_device_waits_for_its_host():
    """It is idle because the next launch has not come, not because it is behind."""
    spans = load_profiles()["launch-bound"].spans
    launches, ran = ([s for s in spans if s.kind == kind] for kind in ("host", "kernel"))
    kept_up = 0
    for i, (launch, kernel) in enumerate(zip(launches, ran, strict=True)):
        assert launch.start < kernel.start
        kept_up += i + 2 >= len(launches) or kernel.end < launches[i + 2].end
    assert kept_up > 0.9 * len(launches)
    assert sum(s.end - s.start for s in launches) > 0.8 * load_profiles()["launch-bound"].wall


def test_a_span_outside_its_profile_is_an_error():
    for span in ((1, "kernel", "k", 0, 1), (0, "kernels", "k", 0, 1), (0, "kernel", "k", 2, 1),
                 (0, "kernel", "k", 0, 11)):
        with pytest.raises(ValueError, match="is not a span of a profile of 1 ranks and 10 s"):
            Profile("by hand", "by a model", "written by hand", 1, 10, 100, 10, [span])


def test_two_collectives_of_one_rank_at_once_are_an_error():
    spans = [(0, "collective", "a", 0, 10), (1, "collective", "a", 8, 10),
             (0, "collective", "b", 10, 11), (1, "collective", "b", 10, 11)]
    assert len(Profile("x", "measured", "", 2, 11, 1, 1, spans).spans) == 4
    spans[2] = (0, "collective", "b", 2, 4)
    with pytest.raises(ValueError, match="rank 0 is in a and in b at once, expected one"):
        Profile("x", "measured", "", 2, 11, 1, 1, spans)



def test_a_span_can_be_recorded():
    """The recorder's tape and its choice, without the minutes of a whole recording."""
    tape = rec.LaunchTape(3)
    with tape.span("kernel", "k", 5):
        pass
    (rank, kind, name, start, end, flops), = tape.spans
    assert (rank, kind, name, flops) == (3, "kernel", "k", 5) and start <= end
    spans, wall = rec.shortest([[[0, "host", "h", 5.0, 9.0]], [[0, "host", "h", 7.0, 8.5]]])
    assert spans == [[0, "host", "h", 0.0, 1.5]] and wall == 1.5


# ---- what o03 says of the six


def length(spans, kind=None, rank=0):
    """The ms of each span of a rank, or of those of one kind."""
    return [1e3 * (s.end - s.start) for s in spans if s.rank == rank and kind in (None, s.kind)]


def test_the_sizes_that_the_text_names():
    assert (len(CAUSES), rec.TRIES) == (8, 60)
    assert (rec.LAUNCHES, rec.NUMBERS, rec.N, rec.LAYERS, rec.C) == (60, 256, 4_000_000, 4, 3072)
    assert (rec.UNEVEN, 4 * rec.SMALL, 4 * rec.MESSAGE) == ((1, 24), 4000, 16_000_000)
    assert (round(1 / BUSY, 6), round(1 / FAR, 6)) == (1.5, 3)


def test_starved_waits_3_ms_and_computes_for_1_three_times():
    spans = load_profiles()["starved"].spans
    waits, kernels = length(spans, "input"), length(spans, "kernel")
    assert [round(ms) for ms in waits] == [3, 3, 3] and round(sum(kernels) / 3) == 1


def test_a_launch_takes_11_microseconds_and_its_kernel_less_than_1():
    spans = load_profiles()["launch-bound"].spans
    launch, kernel = (1e3 * sum(length(spans, kind)) / rec.LAUNCHES for kind in ("host", "kernel"))
    assert (round(launch), round(kernel, 1)) == (11, 0.7)


def test_the_first_kernel_of_unbatched_reaches_two_thirds_of_its_roof():
    p = load_profiles()["unbatched"]
    s = next(s for s in p.spans if s.kind == "kernel")
    assert (round(p.peak / 1e9), round(p.bandwidth / 1e9, 1)) == (105, 24.9)
    assert (round(s.flops / 1e6, 1), round(s.moved / 1e6, 1)) == (18.9, 37.8)
    assert (round(1e3 * s.flops / p.peak, 2), round(1e3 * s.moved / p.bandwidth, 2)) == (0.18, 1.52)
    took = s.end - s.start
    assert round(1e3 * took, 2) == 2.24
    assert round(least_seconds(s, p.peak, p.bandwidth) / took, 2) == 0.68


def test_three_of_four_ranks_spend_most_of_their_time_in_all_reduce():
    """Rank 0 of imbalanced, and both of communication-bound.
    The other lane tells them apart."""
    profiles = load_profiles()
    shares = [sum(length(profiles[name].spans, "collective", rank)) / (1e3 * profiles[name].wall)
              for name in ("imbalanced", "communication-bound") for rank in (0, 1)]
    assert min(shares[0], *shares[2:]) > 0.8 and shares[1] < 0.1


def test_the_host_takes_almost_nothing_but_of_launch_bound():
    for name, p in load_profiles().items():
        share = where_time_goes(p)["host"] / (p.ranks * p.wall)
        assert share > 0.9 if name == "launch-bound" else share < 0.015, name


@pytest.mark.parametrize("cause", CAUSES)
def test_the_model_assumes_what_it_says(cause):
    """The cause costs 2 to 6 times the kernels' time, any other reason 4 % of it at most."""
    reason = {"starved": "input", "launch-bound": "host", "communication-bound": "wire"}
    for seed in range(20):
        p = model(cause, random.Random(seed))
        seconds, busy = where_time_goes(p), 1e-3 * 3 * p.ranks
        work = [sum(length(p.spans, "kernel", rank)) / 3 for rank in range(p.ranks)]
        assert p.ranks == (4 if cause in ("imbalanced", "communication-bound") else 1)
        assert work[:-1] == pytest.approx([1] * (p.ranks - 1))
        assert 4 <= work[-1] <= 8 if cause == "imbalanced" else work[-1] == pytest.approx(1)
        for what in ("input", "host", "wire"):
            share = seconds[what] / busy
            assert 2 <= share <= 6 if reason.get(cause) == what else share <= 0.04 * 1.001
        roofs = sum(least_seconds(s, p.peak, p.bandwidth) for s in p.spans if s.kind == "kernel")
        low, high = (0.05, 0.15) if cause == "far from its roof" else (0.5, 0.9)
        assert low * 0.999 < roofs / seconds["busy"] < high * 1.001
