"""What `lab build` need not run: a solution of which only prose changed keeps its outputs."""

import json

from lab import course
from lab.author import build


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
