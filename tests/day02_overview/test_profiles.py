"""The profiles of o03: the recorded ones hold together, and their counts are those of formulas."""

import json
import random
from itertools import pairwise

import pytest

from day02_overview import CAUSES, Profile, load_profiles, model
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
