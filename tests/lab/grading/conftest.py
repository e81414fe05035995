"""A small made-up class, and the reports on it."""

import itertools

import pytest

from lab import course
from lab.grading import reports
from lab.grading.model import Graded, Result

LESSONS = [course.find("k01_vector_add"), course.find("k02_transpose")]
NOON = 1_767_268_800.0                      # 2026-01-01T12:00:00Z
FATES = {"p": "pass", "f": "fail", "n": "not_attempted", "?": "not_proven_here", "!": "error"}


@pytest.fixture
def graded():
    """Makes a submission. fates: a letter per exercise of the two lessons, in order, then n for
    the rest; speed is not measured. details: {row: {field of its Result: value}}."""
    def make(student, fates="", path=None, when=NOON, sandbox="bubblewrap", problems=(), **details):
        letters = itertools.chain(fates, itertools.repeat("n"))
        results = []
        for lesson in LESSONS:
            for e in lesson.exercises:
                kind = FATES[next(letters)]
                results.append(result(lesson, e.name, e.points, kind, details.get(e.name, {})))
                if e.speed_points:
                    kind = "not_proven_here" if kind == "pass" else "not_attempted"
                    results.append(result(lesson, e.speed, e.speed_points, kind,
                                          details.get(e.speed, {})))
        return Graded(student, path or f"{student}.zip", when, "0" * 16, sandbox, tuple(problems),
                      tuple(results))
    return make


def result(lesson, name, most, kind, details):
    points = {"pass": most, "fail": 0, "not_attempted": 0}.get(kind)
    return Result(**{"lesson": lesson.id, "exercise": name, "verdict": kind, "points": points,
                     "max_points": most} | details)


@pytest.fixture
def write(tmp_path):
    """Writes the reports: (lines to print, {file: text})."""
    def call(*sent, best=False, **files):
        out = tmp_path / "out"
        rules = reports.read(LESSONS, {one.student for one in sent}, **files)
        lines = reports.write(out, list(sent), rules, lessons=LESSONS, best=best)
        return lines, {file.relative_to(out).as_posix(): file.read_text("utf-8")
                       for file in sorted(out.rglob("*")) if file.is_file()}
    return call


@pytest.fixture
def text_file(tmp_path):
    def make(name, text):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return path
    return make
