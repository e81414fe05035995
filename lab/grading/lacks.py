"""The cells of an edition's notebooks that fail although all that the learner writes is right.

They use answers of the course that the edition does not have: its own kernels side by side, say, or
another lesson's function. They become comments that say so. Which these are is tried, not guessed:
each notebook runs in the edition, with the course's answers in the learner's cells alone.
"""

import json
import re
import textwrap

from lab import course
from lab.course import ROOT, CourseError

CELL = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)      # a learner's cell has an include
STUB = re.compile(r"([\w.]+): about \d+ line")                 # what a stub says when it is called
ROUNDS = 4              # a cell that becomes a comment may have made what another one uses

RUN = """
import json, sys
import nbclient, nbformat
from lab import build, course, notebooks
lesson = course.find(sys.argv[1])
notebook = build.make(lesson)[0]
notebook["cells"][1:] = build.body(lesson, json.load(sys.stdin))
live = nbformat.reads(notebooks.dump(notebook), as_version=4)
nbclient.NotebookClient(live, timeout=300, kernel_name="python3", allow_errors=True,
                        extra_arguments=["--IPKernelApp.log_level=ERROR"],
                        resources={"metadata": {"path": str(lesson.notebook.parent)}}).execute()
print(json.dumps([[cell.source, output.evalue] for cell in live.cells
                  for output in cell.get("outputs", ()) if output.output_type == "error"]))
"""


def mend(plan, folder, inside):
    """Make comments of such cells; yields a sentence for each lesson that has some.

    inside(folder, *words, given) runs Python on the edition. CourseError: a cell fails for another
    reason.
    """
    for lesson in plan.stubs:
        markdown = folder / lesson.markdown.relative_to(ROOT)
        needs = {}
        for _ in range(ROUNDS):
            said = inside(folder, "-c", RUN, lesson.id, given=json.dumps(lesson.sources))
            failures = json.loads(said.splitlines()[-1])
            if not failures:
                break
            needs |= dict.fromkeys(needed(lesson, failures, bool(needs)))
            text = as_comments(markdown.read_text("utf-8"), dict(failures), list(needs))
            markdown.write_text(text, "utf-8")
        else:
            raise CourseError(f"{lesson.id}: cells of its notebook fail after {ROUNDS} rounds")
        if needs:
            inside(folder, "-m", "lab.cli", "build", lesson.id)
            yield (f"cells of the notebook of {lesson.id} are comments: they need {listed(needs)}, "
                   f"whose answers are not in this edition")


def needed(lesson, failures, later):
    """The exercises whose stubs were called. later: cells are comments by now, so others may miss
    what those made."""
    called = [name for _, error in failures for name in STUB.findall(error)]
    if not called and not later:
        source, error = failures[0]
        raise CourseError(f"{lesson.id}: a cell of its notebook fails in this edition: {error}\n"
                          f"{textwrap.indent(source, '    ')}")
    return called


def as_comments(text, failures, needs):
    """A lesson's Markdown in which the cells with these sources are comments."""
    def write(match):
        rows = match[1].splitlines()
        if rows and rows[0].startswith("# NBVAL"):
            rows = rows[1:]
        if "\n".join(rows).strip() not in {source.strip() for source in failures}:
            return match[0]
        reason = (f"These lines are comments since they need {listed(needs)}, whose answers this "
                  f"edition does not have.")
        rows = [f"# {row}".rstrip() for row in [*textwrap.wrap(reason, 96), "", *rows]]
        return "\n".join(["```python", *rows, "```"])

    return CELL.sub(write, text)


def listed(needs):
    """Exercises by name as words: "a and b of one, c of another"."""
    homes = {}
    for name in needs:
        home = next((i.id for i in course.lessons() if name in {e.name for e in i.exercises}), None)
        homes.setdefault(home, []).append(name)
    return ", ".join(" and ".join(names) + (f" of {home}" if home else "")
                     for home, names in homes.items())
