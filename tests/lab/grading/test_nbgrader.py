"""The folder for nbgrader: its format, and, where nbgrader is installed, its own verdicts."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab import course, stub
from lab.cli import app
from lab.course import CourseError
from lab.desk import ipynb
from lab.grading import nbgrader
from lab.judge.plugin import NotProvenHere

FIELDS = {"schema_version": int, "grade": bool, "locked": bool, "solution": bool, "task": bool,
          "grade_id": str}         # of schema 3; `points` where `grade` is true


def marks(lesson):
    """[(nbgrader's metadata, text)] of the cells that have some."""
    return [(cell["metadata"]["nbgrader"], ipynb.source(cell))
            for cell in nbgrader.marked(lesson)["cells"] if "nbgrader" in cell["metadata"]]


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda i: i.id)
def test_the_metadata_is_of_schema_3(lesson):
    own = [mark for mark, _ in marks(lesson)]
    for mark in own:
        expected = FIELDS | ({"points": int} if mark["grade"] else {})
        assert {key: type(value) for key, value in mark.items()} == expected
        assert mark["schema_version"] == 3 and re.fullmatch(r"[\w-]+", mark["grade_id"])
        assert not (mark["grade"] and mark["solution"])     # else nbgrader grades it by hand
        assert mark["locked"] != mark["solution"]
    names = [mark["grade_id"] for mark in own]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda i: i.id)
def test_each_exercise_is_written_in_one_cell_and_graded_in_a_later_one(lesson):
    own = marks(lesson)
    order = [mark["grade_id"] for mark, _ in own]
    for exercise in lesson.exercises:
        name = exercise.name.replace(".", "-")
        assert order.index(f"answer-{name}") < order.index(f"grade-{name}")
        [(mark, text)] = [pair for pair in own if pair[0]["grade_id"] == f"grade-{name}"]
        assert mark["points"] == exercise.points and f"lesson.check({exercise.name!r})" in text
    assert sum(mark.get("points", 0) for mark, _ in own) == sum(e.points for e in lesson.exercises)
    assert sum(mark["solution"] for mark, _ in own) == len(lesson.exercises)


def test_no_answer_is_exported(tmp_path):
    nbgrader.export(["r01", "k01"], tmp_path / "made")
    assert {str(path.relative_to(tmp_path / "made")) for path in tmp_path.rglob("*.*")
            if path.is_file()} == {
        "nbgrader_config.py", "source/r01_roofline/r01_roofline.ipynb",
        "source/k01_vector_add/k01_vector_add.ipynb"}
    made = tmp_path / "made" / "source" / "k01_vector_add" / "k01_vector_add.ipynb"
    notebook = json.loads(made.read_text())
    stubs = json.loads(course.find("k01").notebook.read_text("utf-8"))
    answers = {ipynb.source(c) for c in notebook["cells"] if ipynb.exercise_of(c)}
    assert answers == {ipynb.source(c) for c in stubs["cells"] if ipynb.exercise_of(c)}


def test_a_grading_cell_raises_unless_the_exercise_passed():
    class Lesson:
        def __init__(self, passed):
            self.passed = passed

        def check(self, name):
            assert name == "add_cuda"
            return self

    text = nbgrader.GRADE.format(name="add_cuda")
    exec(text, {"lesson": Lesson(True), "display": lambda result: None})
    with pytest.raises(AssertionError):
        exec(text, {"lesson": Lesson(False), "display": lambda result: None})


def test_mistakes_are_told_in_one_line(tmp_path, command):
    (tmp_path / "mine").write_text("mine")
    code, _, err = command(app, "lab", "export", "--nbgrader", tmp_path)
    assert code == 2 and "is not empty: nothing was written" in err
    code, _, err = command(app, "lab", "export", "r01")
    assert code == 2 and "export to what?" in err
    with pytest.raises(CourseError, match="no lesson 'x'"):
        nbgrader.export(["x"], tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# ---- nbgrader itself


def run(folder, *words):
    """One of nbgrader's commands, its own programs first on the path."""
    program = Path(sys.executable).with_name("nbgrader")
    done = subprocess.run(["env", f"PATH={program.parent}:/usr/bin:/bin", str(program), *words],
                          cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def answers(lesson, change=lambda text: text):
    """exercise -> the text of its cell."""
    return {e.name: change(stub.extract(lesson.sources[e.language], e.name, e.language))
            for e in lesson.exercises}


@pytest.mark.slow
def test_nbgrader_grades_a_right_a_wrong_and_an_untouched_submission(tmp_path):
    if importlib.util.find_spec("nbgrader") is None:
        raise NotProvenHere("nbgrader is not installed beside the course: pip install nbgrader")
    lesson = course.find("r01")
    folder = tmp_path / "made"
    nbgrader.export(["r01"], folder)
    run(folder, "generate_assignment", lesson.id)
    wrong = answers(lesson, lambda text: text.replace("3 * n", "2 * n"))
    for student, cells in (("ada", answers(lesson)), ("ben", wrong), ("cyd", {})):
        notebook = json.loads((folder / "release" / lesson.id / f"{lesson.id}.ipynb").read_text())
        for cell in notebook["cells"]:
            cell["source"] = cells.get(ipynb.exercise_of(cell), cell["source"])
        file = folder / "submitted" / student / lesson.id / f"{lesson.id}.ipynb"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(notebook))
    run(folder, "autograde", lesson.id)
    run(folder, "export")
    rows = (folder / "grades.csv").read_text().splitlines()
    names = rows[0].split(",")
    found = {row["student_id"]: (row["score"], row["max_score"])
             for row in (dict(zip(names, line.split(","), strict=True)) for line in rows[1:])}
    assert found == {"ada": ("7.0", "7.0"), "ben": ("6.0", "7.0"), "cyd": ("0.0", "7.0")}
    said = {student: run(folder, "validate", str(Path("submitted", student, lesson.id,
                                                      f"{lesson.id}.ipynb")))
            for student in found}
    assert "passes all the tests" in said["ada"] and "WARNING | Cell output" not in said["ada"]
    assert "count_add" in said["ben"] and "passes all" not in said["ben"]
    assert "still the stub" in said["cyd"]
