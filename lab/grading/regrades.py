"""overrides.csv: where the instructor overrules the tests."""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from lab.course import CourseError
from lab.grading.points import number, shown
from lab.grading.rosters import rows

COLUMNS = ["student", "lesson", "exercise", "points", "reason"]


@dataclass(frozen=True)
class Regrade:
    """The points that count for one exercise of one student, and why."""

    points: Fraction
    reason: str
    line: int


def read(path, students, worths):
    """{(student, lesson id, exercise): Regrade}. Empty where path is None."""
    if path is None:
        return {}
    header, body = rows(Path(path), "a CSV file with the columns " + ",".join(COLUMNS))
    if header != COLUMNS:
        raise CourseError(f"{path}, line 1: expected the columns {','.join(COLUMNS)}, found "
                          f"{','.join(header)}")
    overrides = {}
    for line, row in body:
        key, regrade = judged(f"{path}, line {line}", line, row, students, worths)
        if key in overrides:
            raise CourseError(f"{path}, line {line}: {' '.join(key)} is in line "
                              f"{overrides[key].line} already; expected one line each")
        overrides[key] = regrade
    return overrides


def judged(where, line, row, students, worths):
    student, lesson, exercise, points, reason = (cell.strip() for cell in row)
    if student not in students:
        raise CourseError(f"{where}: expected a student with a submission, found {student!r}")
    if lesson not in {known for known, _ in worths}:
        raise CourseError(f"{where}: expected a lesson that is graded here, found {lesson!r}")
    if (lesson, exercise) not in worths:
        names = ", ".join(name for known, name in worths if known == lesson)
        raise CourseError(f"{where}: expected an exercise of {lesson} ({names}), found "
                          f"{exercise!r}")
    most = worths[lesson, exercise]
    value = number(points)
    if value is None or value > most:
        raise CourseError(f"{where}: expected points from 0 to {shown(most)}, found {points!r}")
    if not reason:
        raise CourseError(f"{where}: expected a reason, found an empty cell")
    return (student, lesson, exercise), Regrade(value, reason, line)
