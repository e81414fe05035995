"""Notebook files as data: whose cells are whose, and how a learner's survive a new version."""

import ast
import difflib
import json

from lab import stub
from lab.course import CourseError

HANDLE = "lesson"           # what the first cell of a notebook calls it
RUNS_HERE = ("%%time", "%%capture", "%%prun")       # cell magics whose cell still defines its names


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
    """(language, text, number) of every code cell, in order and from 1 on; cells of other magics
    are left out, and IPython's own lines.
    The text's lines are the cell's."""
    bodies = [source(cell) for cell in load(text, label)["cells"] if cell["cell_type"] == "code"]
    cells = []
    for number, body in enumerate(bodies, 1):
        if read := language_and_text(body):
            language, text = read
            above = "\n" * (body.count("\n") - text.count("\n"))        # %%cuda, empty lines
            cells.append((language, above + text, number))
    return cells


def language_and_text(body):
    """(language, text) of a cell, None where another magic has it.
    IPython's own lines and those about the lesson are no part of an answer, and left out."""
    first, _, rest = body.lstrip().partition("\n")
    magic = first.split()[0] if first.startswith("%%") else ""
    if magic == "%%cuda":
        return "cuda", rest
    if magic not in ("", *RUNS_HERE):
        return None
    return "python", without_calls(without_magics(body)[0])


def without_calls(text):
    """A cell without lines such as lesson.check("…")."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return text
    rows = stub.one_newline(text).split("\n")
    for node in tree.body:
        if isinstance(node, ast.Expr) and any(
                isinstance(part, ast.Name) and part.id == HANDLE for part in ast.walk(node)):
            rows[node.lineno - 1:node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(rows)


def without_magics(text):
    """(a Python cell without IPython's own lines, those lines), where it is not Python with them.
    One within a block becomes `pass`: the block may hold nothing else."""
    try:
        ast.parse(text)
        return text, []
    except (SyntaxError, ValueError):
        rows, gone = stub.one_newline(text).split("\n"), []
    for number in own_lines(rows):
        row = rows[number]
        indent = row[:len(row) - len(row.lstrip())]
        gone.append(row.strip())
        rows[number] = f"{indent}pass" if indent else ""
    return "\n".join(rows), gone


def own_lines(rows):
    """The numbers of the lines that IPython would not run as they stand."""
    from IPython.core.inputtransformer2 import TransformerManager

    lines = [f"{row}\n" for row in rows]
    try:
        runs = TransformerManager().do_token_transforms(list(lines))
    except (RuntimeError, SyntaxError):     # more than it would change in a cell; odd indentation
        return []
    changes = difflib.SequenceMatcher(None, lines, runs, autojunk=False).get_opcodes()
    return [number for kind, first, end, *_ in changes if kind != "equal"
            for number in range(first, end)]


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
    the cell that they followed.
    `text` was made from `base`."""
    mine = load(text, label)["cells"]
    new = load(fresh, "the course's notebook")
    handed = {c.get("id"): source(c) for c in load(base, "the notebook as handed out")["cells"]}
    by_exercise = {exercise_of(c): c for c in new["cells"] if exercise_of(c)}
    answers = answers_of(mine, handed)
    ids = [c.get("id") for c in new["cells"]]
    after = None                            # the id of the last cell that the new notebook has too
    for cell in mine:
        name = exercise_of(cell)
        if unchanged(cell, handed):
            pass                            # the course's own text: the new one stands
        elif name in by_exercise and answers[name] is cell:
            by_exercise[name]["source"] = cell["source"]
        else:  # the learner's own cell, or an edited text of the course
            added = {**cell, "metadata": {}, "id": own_id(cell, ids)}
            place = ids.index(after) + 1 if after in ids else 0
            new["cells"].insert(place, added)
            ids.insert(place, added["id"])
            after = added["id"]
            continue
        if cell.get("id") in ids:
            after = cell["id"]
    return dump(new)


def answers_of(cells, handed):
    """{exercise: its cell}. One that was copied or split has its metadata twice: then the one with
    the course's id counts, else the first."""
    answers = {}
    for cell in sorted(cells, key=lambda cell: cell.get("id") not in handed):
        answers.setdefault(exercise_of(cell), cell)
    return answers


def unchanged(cell, handed):
    """Whether a cell is the course's own.
    Older notebooks have no ids. handed: {id: source}"""
    if "id" in cell:
        return handed.get(cell["id"]) == source(cell)
    return source(cell) in handed.values()


def own_id(cell, ids):
    """An id for a learner's cell that no other has."""
    name = cell.get("id", "cell")
    name = name[:50] if name.startswith("mine-") else f"mine-{name}"[:50]
    return next(each for each in (name, *(f"{name}-{n}" for n in range(2, len(ids) + 3)))
                if each not in ids)


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
