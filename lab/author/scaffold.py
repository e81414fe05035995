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


def oracle(x):
    """Twice x, by the book."""
    return x + x


@pytest.mark.parametrize("x", [3, -3, 0, 1])
def test_double(subject, agree, x):
    agree(subject.double(x), oracle(x), what=f"double of {{x}}", mistakes={{
        "unchanged": ("x is returned as it came in", x),
        "squared": ("x is squared, not doubled", x * x),
        "no_sign": ("the sign is lost", abs(2 * x))}})


def test_double__unseen(subject, agree, rng):
    for x in rng.integers(2, 10**9, 5).tolist():
        agree(subject.double(x), oracle(x), what=f"double of {{x}}")
'''

MUTANTS = """# Wrong answers that the graders of {short} must refuse, each for its own mistake.

[[mutant]]
exercise = "double"
shows = "unchanged"
body = "return x"
[[mutant]]
exercise = "double"
shows = "squared"
body = "return x * x"
[[mutant]]
exercise = "double"
shows = "no_sign"
body = "return 2 * abs(x)"
"""

TWINS = """# Right answers in another style, which the graders of {short} must let pass.

[[twin]]
exercise = "double"
style = "a sum"
body = "return x + x"
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
             lesson.mutants: MUTANTS, lesson.twins: TWINS}
    there = [str(p.relative_to(ROOT)) for p in files if p.exists()]
    if there:
        raise CourseError(f"{', '.join(there)} already exist; nothing was written")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(id=name, short=name[:3]), "utf-8")
    return list(files)
