"""What each exercise is worth: the course's points, or the instructor's own.

Worths are fractions, so that sums are exact and two runs write the same digits; they are rounded
to hundredths when they are written.
"""

import tomllib
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path

from lab import course
from lab.course import CourseError


def worths(lessons, path=None):
    """{(lesson id, row): Fraction}, a row for each exercise and each speed, in the course's order.

    path: a TOML file whose table `points` gives a lesson's worth ("k07_softmax" = 10) or an
    exercise's ("k07_softmax/merge" = 1.5).
    A lesson's worth is shared among its exercises as the course shares its points, after those with
    a worth of their own.
    The points for speed, which few machines can measure, come on top: by default they scale with
    their exercise's.
    """
    own = own_points(Path(path), lessons) if path is not None else {}
    worth_of = {}
    for lesson in lessons:
        shared = share(lesson, own, path)
        for exercise in lesson.exercises:
            worth = shared[exercise.name]
            worth_of[lesson.id, exercise.name] = worth
            if exercise.speed_points:
                usual = worth * exercise.speed_points / exercise.points
                speed = f"{lesson.id}/{exercise.speed}"
                worth_of[lesson.id, exercise.speed] = own.get(speed, usual)
    return worth_of


def share(lesson, own_points, path):
    """{exercise: worth} of a lesson."""
    own = {e.name: own_points[e.id] for e in lesson.exercises if e.id in own_points}
    usual = {e.name: Fraction(e.points) for e in lesson.exercises if e.name not in own}
    if lesson.id in own_points:
        left = own_points[lesson.id] - sum(own.values())
        if left < 0 or (left and not usual):
            whole = shown(own_points[lesson.id])
            raise CourseError(f"{path}: [points] {lesson.id!r} is {whole}, but its exercises "
                              f"alone have {shown(sum(own.values()))}; expected "
                              f"{'at least as much' if usual else 'the same'}")
        whole = sum(usual.values())
        usual = {name: left * points / whole for name, points in usual.items()}
    return own | usual


def own_points(path, lessons):
    """{lesson id or lesson/exercise: Fraction} from the instructor's file."""
    try:
        table = tomllib.loads(path.read_text("utf-8"), parse_float=Decimal)
    except (OSError, ValueError) as error:
        raise CourseError(f"{path}: expected a TOML file with a table [points], found: "
                          f"{error}") from None
    for key, value in table.items():
        if key != "points" or not isinstance(value, dict):
            raise CourseError(f"{path}: expected the table [points] alone, found {key!r}")
    known = {lesson.id: lesson for lesson in (*course.lessons(), *lessons)}
    return {key: worth(path, key, value, known) for key, value in table.get("points", {}).items()}


def worth(path, key, value, known):
    """The Fraction in `key = value`.
    CourseError: no such lesson or exercise, or not a number."""
    lesson, slash, name = key.partition("/")
    if lesson not in known:
        raise CourseError(f"{path}: [points] {key!r}: expected LESSON or LESSON/EXERCISE, found no "
                          f"lesson {lesson!r} in the course")
    rows = [e.name for e in known[lesson].exercises]
    rows += [e.speed for e in known[lesson].exercises if e.speed_points]
    if slash and name not in rows:
        raise CourseError(f"{path}: [points] {key!r}: expected one of {', '.join(rows)}, found "
                          f"{name!r}")
    number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    if not number or not Decimal(value).is_finite() or value < 0:
        raise CourseError(f"{path}: [points] {key!r}: expected a number from 0 up, found {value!r}")
    return Fraction(value)


def number(text):
    """The Fraction in a cell of a table; None unless it is a number from 0 up."""
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        return None
    return Fraction(value) if value.is_finite() and value >= 0 else None


def shown(points):
    """A Fraction as text: rounded to hundredths, no trailing zeros; "" for None."""
    if points is None:
        return ""
    exact = Decimal(points.numerator) / Decimal(points.denominator)
    rounded = exact.quantize(Decimal("0.01"), ROUND_HALF_UP)
    return f"{rounded:f}".rstrip("0").rstrip(".")
