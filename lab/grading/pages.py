"""The HTML pages: whatever was submitted is cleaned and escaped where it enters a template."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lab.check import VERDICTS
from lab.course import SPEED
from lab.grading import feedback
from lab.grading.plain import clean, of, utc

MARKS = {"pass": ("✓", "passed"), "fail": ("✗", "failed"),
         "not_attempted": ("·", "not attempted"), "not_proven_here": ("?", "not decided here"),
         "error": ("!", "the course failed")}
MOST_MISTAKES = 12      # kinds a lesson; the others are in summary.json


@cache
def environment():
    made = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        finalize=lambda value: clean(value) if type(value) is str else value)
    made.filters["utc"] = lambda when: utc(when).replace("T", " ").replace("Z", " UTC")
    made.filters |= {"of": of, "clean": clean}      # `join` escapes, and passes finalize by
    made.globals |= {"marks": MARKS, "verdicts": VERDICTS}
    return made


def of_student(student, titles):
    return environment().get_template("feedback.html").render(feedback.page(student, titles))


def of_class(said, lessons):
    """said: of `summary.summary`"""
    parts = [{"id": lesson.id, "title": lesson.title, "mistakes": said["mistakes"][lesson.id],
              "rows": [{"name": shown_name(name), "segments": segments(counts)}
                       for name, counts in said["exercises"].items()
                       if name.startswith(f"{lesson.id}/")]} for lesson in lessons]
    return environment().get_template("summary.html").render(said=said, lessons=parts,
                                                             most=MOST_MISTAKES)


def shown_name(name):
    exercise = name.partition("/")[2]
    return exercise.removesuffix(SPEED) + " · speed" * exercise.endswith(SPEED)


def segments(counts):
    """The parts of a stacked bar: [{verdict, count, start, share}], in shares of the class."""
    found, start, whole = [], 0, sum(counts.values())
    for verdict, count in counts.items():
        found.append({"verdict": verdict, "count": count, "start": start / whole,
                      "share": count / whole})
        start += count
    return found
