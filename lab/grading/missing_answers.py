"""Cells of an edition's notebooks that fail although everything the learner writes is right.

They use answers of the course that the edition does not have: its own kernels side by side, say, or
another lesson's function.
They become comments that say so.
They are found by trial: each notebook runs in the edition, with the course's answers in the
learner's cells alone.
"""

import json
import re
import textwrap

from lab import course
from lab.course import ROOT, CourseError
from lab.desk import ipynb

CELL = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)      # a learner's cell has an include
STUB = re.compile(r"([\w.]+): about \d+ line")                 # what a stub says when it is called
CHECKED = "nbval-check-output"
COMMENT = "# These lines are comments since they need"
ROUNDS = 4              # a cell that becomes a comment may have defined what another one uses

RUN = """
import json, sys
import nbclient, nbformat
from lab import course
from lab.author import build
from lab.desk import ipynb
lesson = course.find(sys.argv[1])
notebook = build.make(lesson)[0]
notebook["cells"][1:] = build.body(lesson, json.load(sys.stdin))
live = nbformat.reads(ipynb.dump(notebook), as_version=4)
nbclient.NotebookClient(live, timeout=300, kernel_name="python3", allow_errors=True,
                        extra_arguments=["--IPKernelApp.log_level=ERROR"],
                        resources={"metadata": {"path": str(lesson.notebook.parent)}}).execute()
print(json.dumps(live.cells))
"""


def mend(plan, folder, inside):
    """Turn such cells into comments; yields a sentence for each lesson that has some.

    inside(folder, *words, text) runs Python on the edition.
    """
    for lesson in plan.stubs:
        markdown = folder / lesson.markdown.relative_to(ROOT)
        needs = {}
        sources = {}
        for _ in range(ROUNDS):
            output = inside(folder, "-c", RUN, lesson.id, text=json.dumps(lesson.sources))
            failures = wrong(lesson, json.loads(output.splitlines()[-1]))
            if not failures:
                break
            needs |= dict.fromkeys(STUB.findall(" ".join(failures.values())))
            sources |= failures
            text = as_comments(markdown.read_text("utf-8"), failures, needs)
            markdown.write_text(text, "utf-8")
        else:
            raise CourseError(f"{lesson.id}: cells of its notebook fail after {ROUNDS} rounds")
        if sources:
            inside(folder, "-m", "lab.cli", "build", lesson.id)
            yield (f"{len(sources)} cells of the notebook of {lesson.id} are comments: they need "
                   f"{listed(needs)} that this edition does not have")


def wrong(lesson, cells):
    """{source: error} of the cells that raise, or print something else than the course's do."""
    course_own = ipynb.load(lesson.solution.read_text("utf-8"), str(lesson.solution))["cells"]
    printed = {cell["id"]: text_of(cell) for cell in course_own
               if CHECKED in cell["metadata"].get("tags", ())}
    failures = {cell["source"]: " ".join(output["evalue"] for output in cell["outputs"]
                                         if output["output_type"] == "error")
                for cell in cells if cell["cell_type"] == "code"
                if cell["id"] in printed and printed[cell["id"]] != text_of(cell)
                or any(output["output_type"] == "error" for output in cell["outputs"])}
    return {source: error for source, error in failures.items() if not source.startswith(COMMENT)}


def text_of(cell):
    return "".join("".join(output.get("text", "")) for output in cell["outputs"])


def as_comments(text, failures, needs):
    """A lesson's Markdown, the cells with these sources turned into comments."""
    def write(match):
        rows = match[1].splitlines()
        if rows and rows[0].startswith("# NBVAL"):
            rows = rows[1:]
        if "\n".join(rows).strip() not in {source.strip() for source in failures}:
            return match[0]
        reason = f"{COMMENT} {listed(needs)} that this edition does not have."
        rows = [f"# {row}".rstrip() for row in ["", *rows]]
        rows = [*textwrap.wrap(reason, 98, subsequent_indent="# "), *rows]
        return "\n".join(["```python", *rows, "```"])

    return CELL.sub(write, text)


def listed(needs):
    """Exercises by name as words: "the answers to a and b of one, c of another"."""
    if not needs:
        return "answers"
    homes = {}
    for name in needs:
        home = next((i.id for i in course.lessons() if name in {e.name for e in i.exercises}), None)
        homes.setdefault(home, []).append(name)
    return "the answers to " + ", ".join(" and ".join(names) + (f" of {home}" if home else "")
                                         for home, names in homes.items())
