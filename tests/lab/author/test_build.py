"""What `lab build` need not run: a solution of which only prose changed keeps its outputs."""

import base64
import json
from io import BytesIO

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from lab import course
from lab.author import build
from lab.course import CourseError

ANSWERED = [lesson for lesson in course.lessons() if lesson.solution.exists()]


def test_new_prose_runs_no_code():
    lesson = course.find("r03_transformer_math")
    _, fresh = build.make(lesson)
    words = next(cell for cell in fresh["cells"] if cell["cell_type"] == "markdown")
    words["source"] += "\n\nOne sentence more."
    kept = json.loads(build.with_outputs(lesson, fresh))["cells"]
    stored = json.loads(lesson.solution.read_text("utf-8"))["cells"]
    assert [cell.get("outputs") for cell in kept] == [cell.get("outputs") for cell in stored]
    assert "One sentence more." in "".join(kept[fresh["cells"].index(words)]["source"])


def test_new_code_runs():
    lesson = course.find("r03_transformer_math")
    for change in ("cell", "sources"):
        _, fresh = build.make(lesson)
        if change == "cell":
            fresh["cells"][0]["source"] += "\nprint(1)"
        else:
            fresh["metadata"]["lab"]["hash"] = "0" * 16
        assert build.with_outputs(lesson, fresh) is None


def test_a_picture_is_a_third_as_large_and_looks_the_same():
    figure, axes = plt.subplots(figsize=(7, 4))
    axes.plot(np.random.default_rng(0).random((200, 4)))
    file = BytesIO()
    figure.savefig(file)
    plt.close(figure)
    before = base64.b64encode(file.getvalue()).decode()
    after = build.smaller(before)
    assert len(after) < len(before) / 2
    one, other = (np.asarray(Image.open(BytesIO(base64.b64decode(png))).convert("RGB"), int)
                  for png in (before, after))
    assert one.shape == other.shape and abs(one - other).mean() < 1


def test_redraw_executes_what_has_not_changed(monkeypatch):
    lesson = course.find("r01")
    executed = []

    def execute(notebook, one):
        executed.append(one)
        return one.solution.read_text("utf-8")

    monkeypatch.setattr(build, "execute", execute)
    monkeypatch.setattr(build, "put", lambda path, text: path.read_text("utf-8") != text)
    assert build.build([lesson]) == [] == executed
    assert build.build([lesson], redraw=True) == [] and executed == [lesson]


@pytest.mark.parametrize("lesson", ANSWERED, ids=lambda lesson: lesson.id)
def test_every_check_in_a_solution_has_passed(lesson):
    build.refuse_failed(lesson, json.loads(lesson.solution.read_text("utf-8"))["cells"])


@pytest.mark.parametrize("word", ["not yet", "not attempted", "error of the course"])
def test_a_solution_with_a_failed_check_is_refused(word):
    lesson = course.find("r03_transformer_math")
    cells = json.loads(lesson.solution.read_text("utf-8"))["cells"]
    text = json.dumps(cells)
    assert ">pass</b>" in text
    with pytest.raises(CourseError, match=f"in its own solution .* gets `{word}`"):
        build.refuse_failed(lesson, json.loads(text.replace(">pass</b>", f">{word}</b>", 1)))
