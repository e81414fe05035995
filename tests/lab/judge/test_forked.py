"""Grading in forked processes: one or several, the verdicts are those of one grader."""

import itertools
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from lab import course, device
from lab.course import CourseError
from lab.judge import check, forked
from lab.judge.candidate import Candidate, reference
from lab.judge.verdict import Verdict
from lab.remote import servers
from lab.remote.warm import Child


@pytest.fixture(autouse=True)
def four_at_a_time(monkeypatch):
    monkeypatch.setattr(device, "workers", lambda: 4)


def told(verdicts):
    return [(v.name, v.verdict, v.points, v.message, v.value) for v in verdicts]


def test_side_by_side_verdicts_are_those_of_one_grader(monkeypatch):
    """One exercise is wrong, and others lean on it."""
    lesson = course.find("s06_prefix_cache")
    text = lesson.sources["python"].replace("np.array(tokens, np.int64)",
                                            "np.array(tokens[1:], np.int64)")
    candidate = Candidate({"python": text}, {"python": "mine"})
    several = forked.grade(lesson, candidate)
    monkeypatch.setattr(forked, "SIDE_BY_SIDE", 1)
    assert told(several) == told(forked.grade(lesson, candidate))
    assert {"pass", "fail"} <= {v.verdict for v in several}


class Known:
    """A grader that is told what has passed.
    The first exercise ends after the second."""

    second = threading.Event()

    def __init__(self, asked):
        self.asked = asked
        self.closed = False

    def grade(self, candidate, names, passed=()):
        [name] = names
        self.asked.append((name, set(passed)))
        if name == "first":
            assert self.second.wait(60)
        if name == "second":
            self.second.set()
        right = name == "first" or "first" in passed
        return [Verdict(name, "pass" if right else "fail", 1, 1)]

    def close(self):
        self.closed = True


def test_what_fails_is_graded_again_with_what_has_passed_before_it():
    asked = []
    graders = [Known(asked), Known(asked)]
    verdicts = list(forked.side_by_side(graders, None, ["first", "second"]))
    assert [v.name for v in verdicts] == ["first", "second"]
    assert [v.verdict for v in verdicts] == ["pass", "pass"]
    assert sorted(asked, key=repr) == [("first", set()), ("second", set()), ("second", {"first"})]
    assert all(grader.closed for grader in graders)


def test_who_stops_asking_ends_the_graders(monkeypatch):
    lesson = course.find("r01_roofline")
    endless = lesson.sources["python"].replace("def count_matmul", "def old_count_matmul") + (
        "\n\ndef count_matmul(*sizes):\n    while True:\n        pass\n")
    children = []
    monkeypatch.setattr(forked, "Child", lambda *words: children.append(Child(*words)) or
                        children[-1])
    verdicts = forked.verdicts(lesson, Candidate({"python": endless}, {"python": "mine"}))
    assert next(verdicts).name == "count_add"
    verdicts.close()
    deadline = time.monotonic() + 60
    assert len(children) == 4
    for child in children:
        with pytest.raises((EOFError, OSError)):
            child.read(1, deadline)


def test_nothing_is_started_for_what_was_not_attempted(monkeypatch):
    lesson = course.find("k07_softmax")
    monkeypatch.setattr(servers, "shared", lambda: pytest.fail("a server was asked for"))
    verdicts = forked.grade(lesson, Candidate(lesson.stubs, dict.fromkeys(lesson.stubs, "stub")))
    assert {v.verdict for v in verdicts} == {"not_attempted"}


def test_a_lesson_that_has_changed_since_is_refused(monkeypatch):
    lesson = course.find("r01_roofline")
    old = replace(lesson)
    old.__dict__["fingerprint"] = "of another text"
    with pytest.raises(CourseError, match="r01_roofline has changed since this program read it"):
        forked.grade(old, reference(lesson), ["count_add"])


def test_a_package_that_cannot_be_imported_is_one_line_and_no_verdict():
    lesson = course.find("r01_roofline")
    with pytest.raises(CourseError, match="No module named 'no_such_module'"):
        forked.Grader(lesson, ("no_such_module",))


def test_a_gpu_measures_one_at_a_time(monkeypatch):
    assert forked.jobs(["a", "b"]) == 2 and forked.jobs(list("abcdef")) == 4
    monkeypatch.setattr(device, "maybe_driver", lambda: True)
    assert forked.jobs(["a", "b"]) == 1


@pytest.mark.parametrize("name, torch", [("add_cuda", False), ("add_triton", True)])
def test_cuda_waits_for_neither_torch_nor_triton(name, torch):
    lesson = course.find("k01_vector_add")
    modules = (*forked.QUICK_IMPORTS, *forked.modules(lesson, names=[name]))
    child = Child("tests.lab.remote.echo", {"lines": [
        "said = [name in sys.modules for name in ('torch', 'triton')]"]}, modules,
        servers.shared())
    text = b"".join(itertools.takewhile(lambda byte: byte != b"\n", (
        child.read(1, time.monotonic() + 300) for _ in itertools.count())))
    child.kill()
    assert text.decode().endswith(str([torch, torch]))


def test_cuda_is_graded_without_the_lessons_python():
    """A mistake there is no business of a kernel's; where a test asks for Python, it is loaded."""
    lesson = course.find("k01_vector_add")
    broken = lesson.sources | {"python": lesson.sources["python"] + "\nraise ValueError('here')\n"}
    rows = {v.name: v for v in check.grade(
        lesson, Candidate(broken, dict.fromkeys(broken, "mine")),
        ["add_cuda", "predict_sectors_per_request"])}
    assert rows["add_cuda"].verdict == "pass"
    assert rows["predict_sectors_per_request"].verdict == "fail"
    assert "ValueError: here" in rows["predict_sectors_per_request"].message


def test_asking_for_a_process_needs_neither_numpy_nor_pytest():
    """They would be imported before that process starts, not beside it."""
    code = "import sys, lab.judge.forked; print({'numpy', 'pytest', 'torch'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True,
                          cwd=course.ROOT)
    assert told.stdout == "set()\n", told.stderr
