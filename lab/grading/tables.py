"""The tables: grades.csv, verdicts.csv, and canvas.csv for a gradebook that Canvas exported."""

import csv
import io
import re
from fractions import Fraction

from lab.course import SPEED, CourseError
from lab.grading.points import number, shown
from lab.grading.rosters import IDENTIFYING
from lab.grading.sanitize import cell, one_line, utc


def text(rows):
    """Rows as CSV; no cell is a formula."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([cell(value) for value in row] for row in rows)
    return out.getvalue()


def grades(students, worths, missing=()):
    """A row for each student; those on the roster who sent nothing have empty cells."""
    header = ["student", "submission", "when", "sandbox", "total", "out_of",
              *(f"{lesson}/{name}" for lesson, name in worths)]
    rows = [[entry.label, *[""] * (len(header) - 1)] for entry in missing]
    for student in students:
        one = student.counted
        points = {row.key: row.points for row in one.rows}
        rows.append([student.name, one.graded.path, utc(one.graded.when), one.graded.sandbox,
                     shown(one.total), shown(one.out_of),
                     *(shown(points.get(key)) for key in worths)])
    return text([header, *sorted(rows, key=lambda row: row[0])])


def verdicts(students):
    """A row for each exercise of each student, and why: for the instructor."""
    rows = [["student", "lesson", "exercise", "verdict", "points", "max_points", "message",
             "regraded"]]
    for student in students:
        rows += [[student.name, *row.key, row.result.verdict, shown(row.points), shown(row.worth),
                  one_line(row.result.message), row.regrade.reason if row.regrade else ""]
                 for row in student.counted.rows]
    return text(rows)


def canvas(roster, matched, students, worths):
    """The gradebook to import: its identifying columns, and one column per lesson.

    A column of Canvas's own that begins with a lesson's id is filled; if none does, one is added.
    """
    places = [i for i, name in enumerate(roster.header) if name in IDENTIFYING]
    lessons = list(dict.fromkeys(lesson for lesson, _ in worths))
    by_name = {student.name: student for student in students}
    rows = [[*(roster.header[i] for i in places), *(title(roster, i) for i in lessons)]]
    for above in roster.above:
        worth = [shown(possible(worths, i)) if "Points Possible" in above[0] else ""
                 for i in lessons]
        rows.append([*(above[i] for i in places), *worth])
    for entry in roster.entries:
        student = by_name.get(matched.by_label.get(entry.label))
        totals = {i: shown(part.total) for i, part in student.counted.lessons} if student else {}
        rows.append([*(entry.row[i] for i in places), *(totals.get(i, "") for i in lessons)])
    return text(rows)


def possible(worths, lesson):
    """What a lesson is worth; its speed comes on top."""
    return sum((worth for (own, name), worth in worths.items()
                if own == lesson and not name.endswith(SPEED)), Fraction())


def title(roster, lesson):
    """The header of a lesson's column.
    CourseError: the gradebook has several."""
    own = [name for name in roster.header if begins_with(name, lesson)]
    if len(own) > 1:
        raise CourseError(f"{roster.path}, line 1: expected one column for {lesson}, found "
                          f"{' and '.join(own)}")
    return own[0] if own else lesson


def begins_with(name, lesson):
    return re.match(rf"{re.escape(lesson)}(?!\w)", name, re.IGNORECASE) is not None


def other_maxima(roster, worths):
    """One line for each lesson whose points in Canvas differ from those graded here."""
    differing = []
    for above in roster.above if "Student" in roster.header else ():
        for lesson in dict.fromkeys(lesson for lesson, _ in worths):
            for name, maximum in zip(roster.header, above, strict=True):
                most = possible(worths, lesson)
                if begins_with(name, lesson) and number(maximum) not in (None, most):
                    differing.append(f"{name} is out of {maximum.strip()} in Canvas, of "
                                     f"{shown(most)} here: set grading.toml, or Canvas")
    return differing
