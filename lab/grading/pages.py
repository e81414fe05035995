"""The HTML pages: whatever was submitted is cleaned and escaped where it enters a template."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lab.course import SPEED
from lab.grading import feedback
from lab.grading.sanitize import clean, utc
from lab.judge.check import VERDICTS
from lab.words import plural

MARKS = {"pass": ("✓", "passed"), "fail": ("✗", "failed"),
         "not_attempted": ("·", "not attempted"), "not_proven_here": ("?", "not decided here"),
         "error": ("!", "the course failed")}
MAX_MISTAKES = 12       # kinds per lesson; the others are in summary.json


@cache
def environment():
    jinja = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        finalize=lambda value: clean(value) if type(value) is str else value)
    jinja.filters["utc"] = lambda when: utc(when).replace("T", " ").replace("Z", " UTC")
    jinja.filters |= {"plural": plural, "clean": clean}  # `join` escapes, and bypasses finalize
    jinja.globals |= {"marks": MARKS, "verdicts": VERDICTS}
    return jinja


def of_student(student, titles):
    return environment().get_template("feedback.html").render(feedback.page(student, titles))


def of_class(facts, lessons):
    """facts: from `summary.summary`"""
    parts = [{"id": lesson.id, "title": lesson.title, "mistakes": facts["mistakes"][lesson.id],
              "rows": [{"name": shown_name(name), "segments": segments(counts)}
                       for name, counts in facts["exercises"].items()
                       if name.startswith(f"{lesson.id}/")]} for lesson in lessons]
    return environment().get_template("summary.html").render(said=facts, lessons=parts,
                                                             most=MAX_MISTAKES)


def shown_name(name):
    exercise = name.partition("/")[2]
    return f"{exercise.removesuffix(SPEED)} · speed" if exercise.endswith(SPEED) else exercise


def segments(counts):
    """The parts of a stacked bar: [{verdict, count, start, share}], in shares of the class."""
    parts = []
    start = 0
    whole = sum(counts.values())
    for verdict, count in counts.items():
        parts.append({"verdict": verdict, "count": count, "start": start / whole,
                      "share": count / whole})
        start += count
    return parts
