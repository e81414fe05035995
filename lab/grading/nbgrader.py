"""A course folder for nbgrader: `lab export --nbgrader DIR [LESSONS…]`.

    source/<lesson>/<lesson>.ipynb      one assignment a lesson: the stub notebook, marked up
    nbgrader_config.py

nbgrader is not needed to make it.
It runs a learner's notebook, and with it the learner's code, in the process that awards the points;
`lab grade` does not.
Schema 3 of nbgrader's metadata of cells:
https://nbgrader.readthedocs.io/en/stable/contributor_guide/metadata.html
"""

from pathlib import Path

from lab import course
from lab.author import build
from lab.course import CourseError
from lab.desk import ipynb

CONFIG = '''"""Made by `lab export --nbgrader`. Install nbgrader where the course is:
.venv/bin/pip install nbgrader
"""

c = get_config()    # noqa: F821  (nbgrader's)
c.CourseDirectory.course_id = "three-floors"
c.ClearSolutions.enabled = False        # the notebooks are stubs already: no answers are in here
c.Execute.timeout = 600                 # seconds per cell: a check may start two simulators
'''
GRADE = '''# Graded by the course. nbgrader runs your notebook in the process that grades it.
result = lesson.check({name!r})
display(result)
assert result.passed, result'''


def export(words, out):
    """Write the folder, which must be empty or new; return the lessons in it."""
    chosen = course.choose(words) if words else course.lessons()
    out = Path(out).resolve()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CourseError(f"{out} exists and is not empty: nothing was written")
    files = {f"source/{lesson.id}/{lesson.id}.ipynb": ipynb.dump(marked(lesson))
            for lesson in chosen}
    try:
        for name, text in {**files, "nbgrader_config.py": CONFIG}.items():
            build.put(out / name, text)
    except OSError as error:
        raise CourseError(f"cannot write {error.filename}: {error.strerror}") from None
    return chosen


def marked(lesson):
    """The stub notebook with nbgrader's metadata: the cells to write, and those that grade."""
    notebook = build.make(lesson)[0]
    cells = []
    for cell in notebook["cells"]:
        cells += [mark(cell, lesson)] if cell["cell_type"] == "code" else [cell]
    ends = {name: number for number, cell in enumerate(cells) for e in lesson.exercises
            if f'lesson.check("{(name := e.name)}")' in ipynb.source(cell)}
    for exercise in sorted(lesson.exercises, key=lambda e: -ends[e.name]):
        at = ends[exercise.name]
        alone = ipynb.source(cells[at]).strip() == f'lesson.check("{exercise.name}")'
        cells[at:at + 1] = [*([] if alone else [cells[at]]), graded(exercise)]
    return notebook | {"cells": cells}


def mark(cell, lesson):
    """A code cell as nbgrader should treat it: for the learner to write, locked, or as it is."""
    name = ipynb.exercise_of(cell)
    if name is not None:
        return with_metadata(cell, f"answer-{name}", solution=True)
    if cell["id"] == "open":
        return with_metadata(cell, "open", locked=True)
    return cell


def graded(exercise):
    """The cell that awards an exercise's points."""
    name = exercise.name
    cell = build.code_cell(f"grade-{identifier(name)}", GRADE.format(name=name))
    return with_metadata(cell, f"grade-{name}", grade=True, locked=True, points=exercise.points)


def with_metadata(cell, name, points=None, grade=False, locked=False, solution=False):
    own = {"schema_version": 3, "grade_id": identifier(name), "grade": grade, "locked": locked,
           "solution": solution, "task": False}
    if grade:
        own["points"] = points
    return cell | {"metadata": cell["metadata"] | {"nbgrader": own}}


def identifier(name):
    """A name with a letter that nbgrader allows for the dot of Class.method."""
    return name.replace(".", "-")
