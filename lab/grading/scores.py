"""From verdicts to points: what each row of a submission earns, and which submission counts."""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import groupby

from lab.course import SPEED
from lab.grading import names
from lab.grading.model import Graded, Result
from lab.grading.regrades import Regrade


@dataclass(frozen=True)
class ScoreRow:
    """One exercise of a submission, or its speed, in the instructor's points."""

    result: Result
    points: Fraction | None     # None: nothing was decided, and it is outside the maximum
    worth: Fraction
    regrade: Regrade | None = None

    @property
    def key(self):
        return self.result.lesson, self.result.exercise

    @property
    def name(self):
        return "/".join(self.key)


@dataclass(frozen=True)
class Scored:
    """One submission in the instructor's points."""

    graded: Graded
    rows: tuple[ScoreRow, ...]

    @cached_property
    def total(self):
        return sum((row.points for row in self.rows if row.points is not None), Fraction())

    @cached_property
    def out_of(self):
        """The most that could be earned on the machine that graded it."""
        return sum((row.worth for row in self.rows if row.points is not None), Fraction())

    @cached_property
    def lessons(self):
        """[(lesson id, Scored of its rows alone)]"""
        return [(lesson, Scored(self.graded, tuple(rows)))
                for lesson, rows in groupby(self.rows, lambda row: row.result.lesson)]


@dataclass(frozen=True)
class Student:
    name: str
    counted: Scored
    others: tuple[Scored, ...]          # the latest first


def students(graded, worths, regrades, best=False):
    """A Student for each name in what was graded, sorted by name.

    best: the submission with the highest total counts, else the latest; regrades apply
    to that one.
    """
    paced = any(r.exercise.endswith(SPEED) and r.verdict in ("pass", "fail")
                for one in graded for r in one.results)
    totals = []
    ordered = sorted(graded, key=lambda one: one.student)
    for name, own in groupby(ordered, lambda one: one.student):
        sent = sorted((scored(one, worths, paced) for one in own), key=lateness, reverse=True)
        counted = max(sent, key=lambda one: one.total) if best else sent[0]
        others = tuple(one for one in sent if one is not counted)
        totals.append(Student(name, regraded(counted, regrades), others))
    return totals


def scored(graded, worths, paced):
    """A submission's reported rows, in points.

    paced: whether this machine measures speed.
    If not, no row for speed is in a maximum.
    """
    def points(result):
        undecided = result.points is None or (result.exercise.endswith(SPEED) and not paced)
        return None if undecided else Fraction(result.points, result.max_points) * worth(result)

    def worth(result):
        return worths[result.lesson, result.exercise]

    return Scored(graded, tuple(ScoreRow(r, points(r), worth(r)) for r in graded.results
                                if (r.lesson, r.exercise) in worths))


def regraded(one, regrades):
    def row(old):
        regrade = regrades.get((one.graded.student, *old.key))
        return replace(old, points=regrade.points, regrade=regrade) if regrade else old

    return Scored(one.graded, tuple(map(row, one.rows)))


def lateness(one):
    """A key that sorts submissions by time, those without one first.
    Of one time, that which was sent again comes after the first, by its number; then paths break
    ties."""
    when = one.graded.when
    return when is not None, when or 0.0, names.sent_again(one.graded.path), one.graded.path
