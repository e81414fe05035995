"""Each lesson as a page: its notebook with stubs, what the solution printed and drew, hints and
solutions in folds."""

import json
import re

from lab import course, stub
from lab.author import build
from lab.desk import ipynb

PREDICTION = "predict_"             # how the names of predictions begin
SHOWN = ("image/png", "text/plain")     # of an output, what is preferred first
HEADING = re.compile(r"^#{1,2} ", re.M)


def lesson_page(lesson):
    """The notebook of a lesson's page, as data."""
    stubbed, _ = build.make(lesson)
    outputs = printed(lesson)
    cells = [text("about", about(lesson))]
    predicted = False               # whether a prediction was asked for since the last heading
    for cell in stubbed["cells"]:
        source = ipynb.source(cell)
        exercise = cell["metadata"].get("lab", {}).get("exercise")
        if cell["cell_type"] == "markdown":
            predicted = predicted and not HEADING.search(source)
            cells.append(text(cell["id"], source))
        elif exercise:
            predicted = predicted or exercise.startswith(PREDICTION)
            cells += [code(cell["id"], source),
                      text(f"folds-{cell['id']}", folds(lesson.exercise(exercise)))]
        else:
            own = [] if source.startswith("lesson.check") else outputs.get(cell["id"], [])
            cells.append(code(cell["id"], source, own, predicted))
    title = next(i for i, cell in enumerate(cells) if cell["source"].lstrip().startswith("# "))
    cells[0], cells[1:title + 1] = cells[title], [cells[0], *cells[1:title]]
    # IPython's lexer knows magics; conf.py adds %%cuda.
    language = {"name": "python", "pygments_lexer": "ipython3"}
    return {"cells": cells, "metadata": stubbed["metadata"] | {"language_info": language},
            "nbformat": 4, "nbformat_minor": 5}


def text(name, source):
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def code(name, source, outputs=(), folded=False):
    """A cell. folded: its outputs are seen after a click."""
    metadata = {"tags": ["hide-output"]} if folded and outputs else {}
    return {"cell_type": "code", "id": name, "metadata": metadata, "source": source,
            "execution_count": None, "outputs": list(outputs)}


def printed(lesson):
    """{id of a cell: its outputs in the executed solution}, as text and pictures."""
    cells = json.loads(lesson.solution.read_text("utf-8"))["cells"]
    return {cell["id"]: [shown for output in cell.get("outputs", ())
                         if (shown := plain(output)) is not None] for cell in cells}


def plain(output):
    """An output without HTML; None where nothing is left."""
    if output["output_type"] == "stream":
        return output
    data = output.get("data", {})
    kind = next((kind for kind in SHOWN if kind in data), None)
    if kind is None or "text/html" in data and kind == "text/plain":
        return None
    return {"output_type": "display_data", "metadata": {}, "data": {kind: data[kind]}}


def about(lesson):
    """The line below a lesson's title."""
    needs = ", ".join(map(link, map(course.find, lesson.needs))) or "nothing"
    kind = "core path" if lesson.core else "for going deeper"
    exercises = len(lesson.exercises)
    return (f"*{kind} · {exercises} exercises · needs {needs}* · "
            f"on your machine: `lab start {lesson.id[:3]}`")


def link(lesson, up="../"):
    """A link to a lesson's page. up: from the page that has it to the site's source"""
    return f"[{lesson.id[:3]}]({up}{lesson.floor}/{lesson.id}.ipynb)"


def folds(exercise):
    """The hints of an exercise, one fold each, and the course's solution after the last."""
    language = exercise.language
    own = stub.extract(exercise.lesson.sources[language], exercise.name, language).rstrip()
    return "\n\n".join([
        *(fold(f"Hint {number}", hint) for number, hint in enumerate(exercise.hints, 1)),
        fold("The course's solution", f"```{language}\n{own}\n```")])


def fold(summary, inside):
    return f"<details>\n<summary>{summary}</summary>\n\n{inside}\n\n</details>"


def pages():
    """{path below the site's source: text} of all lessons."""
    return {f"{lesson.floor}/{lesson.id}.ipynb": ipynb.dump(lesson_page(lesson))
            for lesson in course.lessons()}
