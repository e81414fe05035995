"""What a student gets: a page and Gradescope's results.json, with feedback and never messages."""

from fractions import Fraction

from lab.course import SPEED
from lab.grading.points import shown
from lab.grading.sanitize import clean

UNDECIDED = "Not decided on this machine: it counts neither for nor against you."
ERROR = ("The course failed here, not you: it counts neither for nor against you, and your "
         "instructor is told.")


def note(row):
    """Why the points are not those of the verdict, in one line; "" where they are."""
    if row.regrade:
        return f"Regraded by your instructor: {row.regrade.reason}"
    if row.points is None:
        return ERROR if row.result.verdict == "error" else UNDECIDED
    return ""


def gradescope(student):
    """Gradescope's results.json as data.
    A test without a score is one that was not decided."""
    counted = student.counted
    return {"score": hundredths(counted.total), "output_format": "text",
            "output": "\n".join([f"{shown(counted.total)} of {shown(counted.out_of)} points",
                                 *map(clean, counted.graded.problems)]),
            "visibility": "visible", "tests": [test(row) for row in counted.rows]}


def test(row):
    output = "\n".join(filter(None, [note(row), row.result.feedback.strip("\n")]))
    row_of = {"name": row.name, "output": clean(output), "output_format": "text",
            "visibility": "visible"}
    if row.points is not None:
        row_of |= {"score": hundredths(row.points), "max_score": hundredths(row.worth),
                 "status": "passed" if passed(row) else "failed"}
    return row_of


def passed(row):
    return row.points >= row.worth if row.regrade else row.result.verdict == "pass"


def hundredths(points):
    """A Fraction as a JSON number, as `shown` writes it."""
    return float(shown(points))


def page(student, titles):
    """What a student's page shows. titles: {lesson id: title}"""
    counted = student.counted
    return {"student": student, "total": shown(counted.total), "out_of": shown(counted.out_of),
            "lessons": [part(lesson, one, titles) for lesson, one in counted.lessons],
            "others": [{"path": one.graded.path, "when": one.graded.when,
                        "total": shown(one.total), "out_of": shown(one.out_of)}
                       for one in student.others]}


def part(lesson, one, titles):
    return {"id": lesson, "title": titles.get(lesson, ""), "total": shown(one.total),
            "out_of": shown(one.out_of), "share": float(one.total / (one.out_of or Fraction(1))),
            "rows": [{"name": row.result.exercise.removesuffix(SPEED),
                      "speed": row.result.exercise.endswith(SPEED), "verdict": row.result.verdict,
                      "points": shown(row.points), "worth": shown(row.worth), "note": note(row),
                      "feedback": row.result.feedback.strip("\n")} for row in one.rows]}
