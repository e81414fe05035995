"""Points for speed: what is measured, what it earns, and what a machine without a GPU says."""

import importlib.util
import itertools
import random

import numpy as np
import pytest
import torch

from lab import course, device
from lab.grading.sandbox import is_kernel
from lab.judge import check, isolate, pace
from lab.judge.candidate import Candidate, reference
from lab.judge.isolate import running
from lab.judge.report import exit_code
from lab.judge.verdict import Verdict
from lab.remote.pace_calls import Calls

TIMED = [(lesson, exercise) for lesson in course.lessons() for exercise in lesson.exercises
         if exercise.speed_points]


class Machine:
    """A clock that only calls and asking for a run move on, and calls on the CPU that take as long
    as they are said to.
    The memory copies a gigabyte a second."""

    MEMORY = 1e9            # bytes a second, read and written

    def __init__(self):
        self.now = 0.0

    def calls(self, function, seconds, kind=Calls):
        """seconds: of a call, or a function that gives them after each."""
        machine = self

        def took(*arguments):
            result = function(*arguments)
            machine.now += seconds() if callable(seconds) else seconds
            return result

        class Known(kind):
            def run(self, count):
                machine.now += 0.004
                super().run(count)

            def room(self):
                return 40 * self.bytes()

        return Known(took, ONE, "cpu")

    def ratio(self, mine, seconds=1e-3, own=1e-3, kind=Calls, right=None):
        """What `measure` says of a function against the right one."""
        right = right or double
        copied = 2 * 4 * SIZE / self.MEMORY
        return pace.measure("double", self.calls(mine, seconds, kind), self.calls(right, own),
                            self.calls(torch.clone, copied), random.Random(7),
                            clock=lambda: self.now)


SIZE = 2000
ONE = [pace.numbers("float32", SIZE)]
REPLAYED = "the result of call .* of .* is not the one for that call's inputs"


def double(x):
    return 2 * x


@pytest.mark.parametrize("own, mine", [(1e-4, 1e-4), (1e-4, 4e-4), (3e-3, 1e-3), (0.2, 0.25)])
def test_the_ratio_is_that_of_the_calls_alone(own, mine):
    assert np.isclose(Machine().ratio(double, mine, own), own / mine)


def test_a_nearly_equal_result_is_as_good():
    assert np.isclose(Machine().ratio(lambda x: (2.002 * x.half()).float()), 1)


class Refilled(Calls):
    """New numbers in the tensors of before: what a cache by address hopes for."""

    def prepare(self, seed, order):
        before = self.sets
        super().prepare(seed, order)
        for old, new in zip(before, self.sets, strict=False):
            old[0][...] = new[0]
            new[0] = old[0]


def by_address():
    known = {}
    return lambda x: known.setdefault(x.data_ptr(), double(x))


def by_shape():
    known = {}
    return lambda x: known.setdefault(x.shape, double(x))


def last_call():
    last = []

    def replay(x):
        last.append(double(x))
        return last[-2:][0]

    return replay


def in_one_place():
    """An output that an earlier call has returned, too: only the last is right at the end."""
    out = torch.empty(SIZE)
    return lambda x: torch.mul(x, 2, out=out)


def drifting():
    calls = itertools.count()
    return lambda x: double(x) if next(calls) < 10 else 1.9 * x


def every_other():
    calls = itertools.count()
    return lambda x: double(x) if next(calls) % 2 else torch.zeros(SIZE)


def few_wrong(x):
    """The last tile is left out: one number of twenty."""
    return torch.where(torch.arange(SIZE) < SIZE * 19 // 20, 2 * x, 0)


@pytest.mark.parametrize("cheat, kind", [
    (by_address(), Refilled), (by_shape(), Calls), (last_call(), Calls), (in_one_place(), Calls),
    (drifting(), Calls), (every_other(), Calls), (few_wrong, Calls), (torch.empty_like, Calls),
    (torch.clone, Calls), (lambda x: torch.full_like(x, torch.nan), Calls),
], ids=["by address", "by shape", "last call", "in one place", "drifting", "every other",
        "few wrong", "nothing", "the input", "NaN"])
def test_what_another_call_gave_is_not_taken(cheat, kind):
    with pytest.raises(AssertionError, match=REPLAYED):
        Machine().ratio(cheat, 1e-4, kind=kind)


def test_the_replays_are_right_where_nothing_is_compared(monkeypatch):
    """So what refuses them above is the comparison of every call and nothing else."""
    monkeypatch.setattr(pace, "same", lambda *found: None)
    monkeypatch.setattr(pace, "same_in_full", lambda *found: None)
    assert np.isclose(Machine().ratio(by_shape(), 1e-4), 10)


def test_a_sum_over_many_numbers_is_told_from_that_of_others():
    """Sums of many such numbers are nearly equal: the sets are of different scales."""
    known = []

    def total(x):
        return x.abs().sum()

    def replayed(x):
        known.append(total(x))
        return known[0]

    assert np.isclose(Machine().ratio(total, right=total), 1)
    with pytest.raises(AssertionError, match=REPLAYED):
        Machine().ratio(replayed, 1e-4, right=total)


def test_one_wrong_number_is_found_in_the_call_that_is_compared_in_full(monkeypatch):
    """Of millions of numbers one moves no projection."""
    monkeypatch.setattr(pace, "same", lambda *found: None)
    with pytest.raises(AssertionError, match="is wrong, unlike at the simulator's sizes: .* 2 off"):
        Machine().ratio(lambda x: double(x).index_add(0, torch.tensor([7]), torch.tensor([2.0])))


def test_another_shape_is_told():
    with pytest.raises(AssertionError, match=r"has the shape \(1999,\), expected \(2000,\)"):
        Machine().ratio(lambda x: double(x)[1:])


@pytest.mark.parametrize("seconds", [0, 1e-6, 1e-5])
def test_no_call_is_faster_than_memory(seconds):
    """Read 8 kB and write 8 kB: 16 µs, of which a cache may save a third."""
    with pytest.raises(AssertionError, match=r"µs, faster than memory allows: .* takes 10\.7 µs"):
        Machine().ratio(double, seconds)


def test_what_a_cache_may_save_is_allowed():
    assert np.isclose(Machine().ratio(double, 11e-6, 16e-6), 16 / 11)


@pytest.mark.parametrize("slow", [range(400), range(3, 400, 7), range(30, 400, 40)])
def test_who_answers_late_gains_nothing(slow):
    """Waiting lowers no answer's time: it makes the call's own side slower or changes nothing."""
    calls = itertools.count()
    assert Machine().ratio(double, lambda: 2e-3 if next(calls) in slow else 1e-3) < 1 + 1e-9


def test_a_slow_start_changes_neither_the_count_nor_the_ratio(monkeypatch):
    """A side that is slow at first is not asked for fewer calls later."""
    asked = []
    turn = pace.Race.turn
    monkeypatch.setattr(pace.Race, "turn",
                        lambda self, **how: (asked.append(self.count), turn(self, **how))[1])
    quick, calls = Machine().ratio(double), itertools.count()
    counts, asked[:] = list(asked), []
    slow = Machine().ratio(double, lambda: 5.0 if next(calls) < 20 else 1e-3)
    assert asked == counts and len(set(counts)) == 1
    assert np.isclose(slow, quick)


def test_every_timed_call_has_inputs_of_its_own_and_memory_is_bounded():
    seen, sets = [], []

    class Watched(Calls):
        def prepare(self, seed, order):
            super().prepare(seed, order)
            sets.append(len(self.sets))
            seen.extend(x.numpy().tobytes() for x, in self.sets)

    Machine().ratio(double, kind=Watched)
    assert len(seen) == len(set(seen)) > 100
    assert max(sets) <= 40


def test_a_result_left_in_its_arguments_is_compared():
    def in_place(x):
        x.mul_(2)

    def too_much(x):
        x.mul_(3)

    assert np.isclose(Machine().ratio(in_place, right=in_place), 1)
    with pytest.raises(AssertionError, match=REPLAYED):
        Machine().ratio(too_much, right=in_place)


@pytest.mark.parametrize("ratio, earned", [(1.3, 2), (0.9, 2), (0.89, 1), (0.6, 1), (0.59, 0)])
def test_points_come_in_bands(ratio, earned):
    assert pace.points(ratio, 2) == earned


SMALL = (pace.numbers("float32", 3, 100),)


def measured_as(ratio):
    """A stand-in for `measure` without a clock: one call on each side, which is compared."""
    def measure(name, mine, own, copying, draw):
        for side in (mine, own):
            side.prepare(1, [0])
            side.run(1)
        pace.same(name, mine.prints(2), own.prints(2))
        pace.same_in_full(name, mine.result(0), own.result(0))
        assert own.bytes() > 0
        return ratio

    return measure


def test_the_copy_that_shows_what_memory_can_do():
    copying = Calls(None, ONE, "cpu")
    copying.prepare(3, [0])
    copying.run(1)
    (was,), (now,) = copying.sets[0], copying.result(0)
    assert torch.equal(was, now) and was.data_ptr() != now.data_ptr()
    assert copying.bytes() == 2 * 4 * SIZE


def softmax_with(find, replace):
    lesson = course.find("k07_softmax")
    text = lesson.sources["python"]
    assert text.count(find) == 1
    return lesson, lesson.sources | {"python": text.replace(find, replace)}


def test_another_result_earns_nothing(monkeypatch):
    """In the simulator here, on the device where there is one: the same calls."""
    lesson, wrong = softmax_with("e / tl.sum(e), c < C", "e, c < C")
    monkeypatch.setattr(pace, "measure", measured_as(1.0))
    with running(lesson, wrong) as mine, running(lesson, lesson.sources) as own:
        assert pace.compare(own, own, "softmax", SMALL, "cpu") == 1.0
        with pytest.raises(AssertionError, match=REPLAYED):
            pace.compare(mine, own, "softmax", SMALL, "cpu")


def test_too_slow_is_said_with_its_ratio(monkeypatch):
    lesson = course.find("k07_softmax")
    monkeypatch.setattr(pace, "measure", measured_as(0.31))
    with running(lesson, lesson.sources) as own, \
            pytest.raises(AssertionError, match=r"0\.31 × the speed .* 0\.6 × earns the first"):
        pace.compare(own, own, "softmax", SMALL, "cpu")


# ---- the row


def graded(sources, name="softmax_online_triton"):
    lesson = course.find("k07_softmax")
    return check.grade(lesson, Candidate(sources, dict.fromkeys(sources, "mine")), [name])


def test_without_a_gpu_the_speed_of_a_pass_is_not_proven(monkeypatch):
    monkeypatch.setattr(device, "gpu", lambda: None)
    lesson = course.find("k07_softmax")
    own, speed = check.grade(lesson, reference(lesson), ["softmax_online_triton"])
    assert own.verdict == "pass" and own.points == own.max_points
    assert speed == Verdict("softmax_online_triton.speed", "not_proven_here", None, 2,
                            "needs an NVIDIA GPU")
    assert exit_code([own, speed]) == 0       # all that was asked has passed


def test_what_does_not_pass_is_not_measured():
    own, speed = graded(course.find("k07_softmax").stubs)
    assert (own.verdict, speed.verdict, speed.points) == ("not_attempted", "not_attempted", 0)
    assert speed.message == "measured when softmax_online_triton passes"


@pytest.mark.parametrize("ratio, verdict, points, says", [
    (0.95, "pass", 2, "0.95 × the speed of the course's own"),
    (0.7, "pass", 1, "0.70 × the speed of the course's own"),
    (0.2, "fail", 0, "0.20 × the speed of the course's own"),
])
def test_with_a_gpu_the_ratio_decides_about_points_alone(monkeypatch, ratio, verdict, points, says):
    """The device and the clock are stand-ins; the way from a test to its row is the real one."""
    compare = pace.compare
    monkeypatch.setattr(device, "gpu", lambda: device.Gpu("a stand-in", (9, 0), 1))
    monkeypatch.setattr(isolate, "running", lambda *given, on_device=False, **named:
                        running(*given, **named))
    monkeypatch.setattr(pace, "measure", measured_as(ratio))
    monkeypatch.setattr(pace, "compare", lambda mine, own, name, arguments, seed:
                        compare(mine, own, name, SMALL, "cpu", seed))
    lesson = course.find("k07_softmax")
    own, speed = check.grade(lesson, reference(lesson), ["softmax_online_triton"])
    assert own.verdict == "pass", own.message
    assert (speed.verdict, speed.points, speed.max_points) == (verdict, points, 2)
    assert says in speed.message
    assert exit_code([own, speed]) == 0


# ---- the lessons


def declared(lesson, exercise):
    """What a lesson's test gives to `pace`."""
    spec = importlib.util.spec_from_file_location(f"paced_{lesson.id}", lesson.test)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    said = []
    test = getattr(module, exercise.test + "_speed")
    assert [mark.name for mark in test.pytestmark] == ["gpu"]
    test(lambda *call: said.append(call))
    (name, *arguments), = said
    return name, arguments


def smaller(given):
    """An argument with its sizes cut to a 64th, 2048 at most, and on the CPU."""
    if isinstance(given, dict) and "maker" in given:
        return given | {"arguments": [smaller(each) for each in given["arguments"]]}
    if isinstance(given, dict):
        return given | {"shape": [smaller(n) for n in given["shape"]],
                        "below": given["below"] and smaller(given["below"])}
    if given == "cuda":
        return "cpu"
    return min(given // 64, 2048) if type(given) is int and given > 256 else given


@pytest.mark.parametrize("lesson, exercise", TIMED, ids=lambda i: getattr(i, "name", i.id))
def test_what_is_measured_runs(monkeypatch, lesson, exercise):
    """At sizes that the simulator can take: names, arguments and results fit together."""
    name, arguments = declared(lesson, exercise)
    assert is_kernel(exercise), "its Python would not be measured where an instructor grades"
    assert exercise in lesson.reached(name), f"{name} does not run {exercise.name}"
    monkeypatch.setattr(pace, "measure", measured_as(1.0))
    with running(lesson, lesson.sources) as own:
        assert pace.compare(own, own, name, [smaller(a) for a in arguments], "cpu") == 1.0
