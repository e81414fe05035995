"""Points for speed: what is measured, what it earns, and what a machine without a GPU says."""

import importlib.util

import numpy as np
import pytest

from lab import check, course, device, isolate, pace
from lab.candidate import Candidate, reference
from lab.isolate import running

TIMED = [(lesson, exercise) for lesson in course.lessons() for exercise in lesson.exercises
         if exercise.speed_points]


class Machine:
    """Calls of a known length on a clock of its own; asking for a run takes time, too."""

    def __init__(self):
        self.now = 0.0

    def calls(self, seconds):
        machine = self

        class Known:
            def run(self, count):
                machine.now += 0.004 + count * seconds

        return Known()


@pytest.mark.parametrize("own, mine", [(1e-4, 1e-4), (1e-4, 4e-4), (3e-3, 1e-3), (0.2, 0.25)])
def test_the_ratio_is_that_of_the_calls_alone(own, mine):
    machine = Machine()
    ratio = pace.measure(machine.calls(mine), machine.calls(own), clock=lambda: machine.now)
    assert np.isclose(ratio, own / mine)


@pytest.mark.parametrize("ratio, earned", [(1.3, 2), (0.9, 2), (0.89, 1), (0.6, 1), (0.59, 0)])
def test_points_come_in_bands(ratio, earned):
    assert pace.points(ratio, 2) == earned


SMALL = (pace.numbers("float32", 3, 100),)


def softmax_with(find, replace):
    lesson = course.find("k07_softmax")
    text = lesson.sources["python"]
    assert text.count(find) == 1
    return lesson, lesson.sources | {"python": text.replace(find, replace)}


def test_another_result_earns_nothing(monkeypatch):
    """In the simulator here, on the device where there is one: the same calls."""
    lesson, wrong = softmax_with("e / tl.sum(e), c < C", "e, c < C")
    monkeypatch.setattr(pace, "measure", lambda mine, own: 1.0)
    with running(lesson, wrong) as mine, running(lesson, lesson.sources) as own:
        assert pace.compare(own, own, "softmax", SMALL, "cpu") == 1.0
        with pytest.raises(AssertionError, match="its result is not the one"):
            pace.compare(mine, own, "softmax", SMALL, "cpu")


def test_too_slow_is_said_with_its_ratio(monkeypatch):
    lesson = course.find("k07_softmax")
    monkeypatch.setattr(pace, "measure", lambda mine, own: 0.31)
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
    assert speed == check.Verdict("softmax_online_triton.speed", "not_proven_here", None, 2,
                                  "needs an NVIDIA GPU")
    assert check.exit_code([own, speed]) == 0       # all that was asked has passed


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
    monkeypatch.setattr(pace, "measure", lambda mine, own: ratio)
    monkeypatch.setattr(pace, "compare", lambda mine, own, name, arguments:
                        compare(mine, own, name, SMALL, "cpu"))
    lesson = course.find("k07_softmax")
    own, speed = check.grade(lesson, reference(lesson), ["softmax_online_triton"])
    assert own.verdict == "pass", own.message
    assert (speed.verdict, speed.points, speed.max_points) == (verdict, points, 2)
    assert says in speed.message
    assert check.exit_code([own, speed]) == 0


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
    assert exercise in lesson.reached(name), f"{name} does not run {exercise.name}"
    monkeypatch.setattr(pace, "measure", lambda mine, own: 1.0)
    with running(lesson, lesson.sources) as own:
        assert pace.compare(own, own, name, [smaller(a) for a in arguments], "cpu") == 1.0
