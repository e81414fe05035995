"""All that an instructor gets from a grading: tables, a page for each student, a summary."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from lab.course import CourseError
from lab.grading import feedback, likeness, pages, regrades, rosters, scores, summary, tables
from lab.grading.points import worths as worths_of
from lab.grading.sanitize import file_name


@dataclass(frozen=True)
class Rules:
    """What the instructor gives besides the submissions."""

    worths: dict                    # {(lesson id, row): Fraction}
    regrades: dict                  # {(student, lesson id, exercise): Regrade}
    roster: rosters.Roster | None


def read(lessons, students, points=None, roster=None, overrides=None):
    """The Rules in these files: paths, or None.
    CourseError: a mistake in one.

    lessons: those that are graded, in the course's order  students: names of all who sent something
    """
    worths = worths_of(lessons, points)
    return Rules(worths, regrades.read(overrides, students, worths),
                 rosters.read(Path(roster)) if roster is not None else None)


def write(out, graded, rules, *, lessons, best=False):
    """Write every report of `graded` into the folder `out`; return the lines to print.

    lessons: those that were graded  best: a student's best submission counts, else the latest
    """
    worths = rules.worths
    roster = rules.roster
    students = scores.students(graded, worths, rules.regrades, best)
    matched = rosters.match(roster, [student.name for student in students])
    facts = summary.summary(students, lessons, worths, matched, likeness.pairs(students, lessons),
                           likeness.identical(students, lessons))
    files = {"grades.csv": tables.grades(students, worths, matched.missing),
             "verdicts.csv": tables.verdicts(students),
             "summary.json": dumped(facts), "summary.html": pages.of_class(facts, lessons)}
    lines = summary.lines(facts)
    if roster is not None and roster.canvas:
        files["canvas.csv"] = tables.canvas(roster, matched, students, worths)
        lines += tables.other_maxima(roster, worths)
    for name, text in files.items():
        write_file(Path(out) / name, text)
    write_students(Path(out), students, {lesson.id: lesson.title for lesson in lessons})
    return lines


def write_students(out, students, titles):
    """One student at a time: a page, and results for Gradescope."""
    for student in students:
        name = file_name(student.name)
        write_file(out / "feedback" / f"{name}.html", pages.of_student(student, titles))
        write_file(out / "results" / f"{name}.json", dumped(feedback.gradescope(student)))


def dumped(data):
    return json.dumps(data, indent=1) + "\n"


def write_file(file, text):
    """All of it or nothing: a run may be stopped at any moment."""
    beside = file.with_name(file.name + ".new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, "utf-8", newline="\n")
        os.replace(beside, file)
    except OSError as error:
        raise CourseError(f"cannot write {file}: {error.strerror}. The grades are kept: repeat "
                          f"this with --resume") from None
