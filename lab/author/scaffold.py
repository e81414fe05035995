"""`lab new ID`: the files of a lesson, each saying what belongs in it."""

import re

from lab import course
from lab.course import ROOT, CourseError, Lesson

REFERENCE = '''"""{short} · title: the formula

T: tokens
Reads and writes … numbers, … flops each. What decides: memory or arithmetic?
"""

__all__ = ["double"]


def double(x):
    """Twice x; x is a number."""
    # exercise: what the learner is to write, in one line
    return 2 * x
'''

MARKDOWN = '''---
jupyter:
  kernelspec:
    display_name: Python 3
    language: python
    name: python3
lesson:
  title: One line that makes the reader curious
  path: deep
  needs: []
  points:
    double: 1
  hints:
    double:
      - A nudge.
      - The idea.
      - Nearly the line.
---

# {short} · title

The question that this lesson answers.

```python include="{id}.double"
```

```python
lesson.check("double")
```

**One sentence to keep:** …

**Next:** …
'''

GRADER = '''"""Graders of {short}."""

import pytest


@pytest.mark.parametrize("x", [-3, 0, 1, 2**40])
def test_double(subject, agree, x):
    agree(subject.double(x), 2 * x, what=f"double of {{x}}", mistakes={{
        "x is returned as it came in": x,
        "x is squared, not doubled": x * x,
        "a zero is returned": 0,
        "1 is added, not x": x + 1,
        "the sign is lost": abs(2 * x)}})
'''

MUTANTS = """# Wrong answers that the graders of {short} must refuse, each by its own message.

[[mutant]]
exercise = "double"
find = "2 * x"
replace = "x"
says = "as it came in"
[[mutant]]
exercise = "double"
find = "2 * x"
replace = "x * x"
says = "squared, not doubled"
[[mutant]]
exercise = "double"
find = "2 * x"
replace = "0"
says = "a zero is returned"
[[mutant]]
exercise = "double"
find = "2 * x"
replace = "x + 1"
says = "1 is added, not x"
[[mutant]]
exercise = "double"
find = "2 * x"
replace = "2 * abs(x)"
says = "the sign is lost"
"""

GAPS = """# What the graders of {short} leave out of the kinds in lab/judge/adversarial.py, and why.

[[gap]]
exercises = ["double"]
kinds = ["bound"]
why = "one product, in which nothing is compared"
"""

TWINS = """# Right answers in another style, which the graders of {short} must let pass.

[[twin]]
exercise = "double"
style = "a sum"
find = "2 * x"
replace = "x + x"
"""


def write(name):
    """Write the scaffold of lesson `name` and return its paths; nothing is overwritten."""
    floors = {row[0]: floor for floor in course.floors() for row in floor.planned}
    letters = {i.id[0]: floor for floor in course.floors() for i in floor.lessons} | {
        row[0][0]: floor for floor in course.floors() for row in floor.planned}
    if not re.fullmatch(r"[a-z]\d\d_[a-z0-9_]+", name):
        raise CourseError(f"{name!r} is not a lesson id; expected a floor's letter, two digits "
                          f"and a name, such as k02_transpose")
    floor = floors.get(name) or letters.get(name[0])
    if floor is None:
        raise CourseError(f"{name!r}: no floor has the letter {name[0]!r}; "
                          f"there are {', '.join(sorted(letters))}")
    lesson = Lesson(name, floor.name)
    files = {lesson.path(".py"): REFERENCE, lesson.markdown: MARKDOWN, lesson.test: GRADER,
             lesson.mutants: MUTANTS, lesson.twins: TWINS, lesson.gaps: GAPS}
    there = [str(p.relative_to(ROOT)) for p in files if p.exists()]
    if there:
        raise CourseError(f"{', '.join(there)} already exist; nothing was written")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(id=name, short=name[:3]), "utf-8")
    return list(files)
