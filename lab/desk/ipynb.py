"""Notebook files as data: whose cells are whose, and how a learner's survive a new version."""

import json

from lab.course import CourseError


def load(text, label):
    """The notebook in `text`; CourseError where it is not one."""
    try:
        notebook = json.loads(text)
        cells = notebook["cells"]
        for cell in cells:
            cell["cell_type"], cell["metadata"], source(cell)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CourseError(
            f"{label} is not a notebook that can be read: it is damaged, or another kind of file"
        ) from None
    return notebook


def source(cell):
    """The text of a cell; the format allows a list of lines."""
    return "".join(cell["source"])


def dump(notebook):
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def exercise_of(cell):
    """The exercise that a cell was made for, or None."""
    return (cell["metadata"].get("lab") or {}).get("exercise")


def code(text, label):
    """(language, text) of every code cell, in order; cells of other magics are left out."""
    cells = []
    for cell in load(text, label)["cells"]:
        if cell["cell_type"] != "code":
            continue
        body = source(cell)
        if body.lstrip().startswith("%%cuda"):
            cells.append(("cuda", body.lstrip().split("\n", 1)[1] if "\n" in body.lstrip() else ""))
        elif not body.lstrip().startswith("%%"):
            cells.append(("python", body))
    return cells


def same_cells(text, other):
    """True where two notebooks hold the same cells; outputs and counts do not matter."""
    try:
        a = json.loads(text)["cells"]
        b = json.loads(other)["cells"]
        return [(c["cell_type"], source(c)) for c in a] == [(c["cell_type"], source(c)) for c in b]
    except (ValueError, KeyError, TypeError):
        return False


def carry_over(text, base, fresh, label):
    """`fresh` with the learner's cells: changed exercise cells in their places, added cells after
    the cell that they followed. `text` was made from `base`."""
    mine = load(text, label)
    new = load(fresh, "the course's notebook")
    handed = {c.get("id"): source(c) for c in load(base, "the notebook as handed out")["cells"]}
    by_exercise = {exercise_of(c): c for c in new["cells"] if exercise_of(c)}
    ids = [c.get("id") for c in new["cells"]]
    after = None                            # the id of the last cell that the new notebook has too
    for cell in mine["cells"]:
        known = cell.get("id") in handed
        if known and handed[cell["id"]] == source(cell):
            pass                            # the course's own text: the new one stands
        elif exercise_of(cell) in by_exercise:
            by_exercise[exercise_of(cell)]["source"] = cell["source"]
        else:  # the learner's own cell, or an edited text of the course
            added = {**cell, "metadata": {}, "id": f"mine-{cell.get('id', len(ids))}"[:64]}
            place = ids.index(after) + 1 if after in ids else 0
            if added["id"] not in ids:
                new["cells"].insert(place, added)
                ids.insert(place, added["id"])
            after = added["id"]
            continue
        if cell.get("id") in ids:
            after = cell["id"]
    return dump(new)


def put_back(text, stub_text, exercise):
    """`text` with the exercise's cell as it was handed out."""
    notebook = load(text, f"{exercise.lesson.id}.ipynb")
    for handed in load(stub_text, "the course's notebook")["cells"]:
        for cell in notebook["cells"]:
            if exercise_of(handed) == exercise.name == exercise_of(cell):
                cell["source"], cell["outputs"], cell["execution_count"] = (
                    handed["source"],
                    [],
                    None,
                )
    return dump(notebook)
