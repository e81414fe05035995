"""The parts of a submission that may belong to a lesson: whole files, and cells.

A part keeps its line numbers: whatever is left out becomes empty lines, so that a message names the
line that the student has.
"""

import json
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from lab import course, stub
from lab.desk import ipynb
from lab.grading.names import lesson_stem

MAX_NAMED = 5               # files in one note


@dataclass(frozen=True)
class Part:
    """A text in one language, and where it is from."""

    file: str                   # its path inside the submission
    cell: int | None            # which code cell, from 1; None for a whole file
    language: str
    text: str

    @property
    def label(self):
        return self.file if self.cell is None else f"{self.file}, code cell {self.cell}"

    def error(self):
        """(line, what is wrong) of a text that cannot be read, else None."""
        try:
            stub.read(self.text, self.language)
        except SyntaxError as error:
            return error.lineno, error.msg
        except ValueError as error:
            return None, str(error)
        return None

    def units(self):
        """The units at its top level; empty where it cannot be read."""
        return () if self.error() else stub.read(self.text, self.language)


def files_of(lesson, submission):
    """The files that may hold a lesson's exercises, the one that counts first.

    .py and .cu come before notebooks, files named as the lesson before others, a file sent again
    before the one it replaces.
    A file named as another lesson belongs to that one.
    """
    ranked = []
    for file in submission.files:
        whose = is_named(lesson, file)
        if whose is not False and holds_any(lesson, file.text, whose):
            again = lesson_stem(file.name)[1]
            ranked.append(((file.kind == "notebook", not whose, -again, file.name), file))
    return [file for _, file in sorted(ranked, key=lambda pair: pair[0])]


def is_named(lesson, file):
    """True where a file's name or its `open_lesson` names the lesson, False where its name is
    that of another lesson, None otherwise."""
    stem, _ = lesson_stem(file.name)
    if stem == lesson.id or f'open_lesson(\\"{lesson.id}\\")' in file.text:
        return True
    return False if stem in {other.id for other in course.lessons()} else None


def holds_any(lesson, text, named):
    """True where a text has the name of an exercise.
    A name that several lessons have counts only where `named` says that the file is this
    lesson's."""
    owners = shared()
    return any(e.name.split(".")[-1] in text for e in lesson.exercises
               if named or owners[e.name] == 1)


def unclear(lesson, submission):
    """A note on each file that has only such shared names: its lesson cannot be known."""
    for file in submission.files:
        names = [e.name for e in lesson.exercises if f"def {e.name}(" in file.text]
        if names and is_named(lesson, file) is None and not holds_any(lesson, file.text, False):
            yield (f"{file.name}: left out {', '.join(names)}, which several lessons have: a name "
                   f"such as {lesson.id}.py would say which is meant")


def foreign(submission):
    """[a note on the files of a submission] where no lesson has anything to grade in them."""
    if any(files_of(lesson, submission) for lesson in course.lessons()):
        return []
    names = [file.name for file in submission.files]
    more = f" and {len(names) - MAX_NAMED} more files" if len(names) > MAX_NAMED else ""
    return [f"{', '.join(names[:MAX_NAMED])}{more}: no exercise of this course is in it"] \
        if names else []


@cache
def shared():
    """How many lessons have an exercise of each name."""
    return Counter(e.name for lesson in course.lessons() for e in lesson.exercises)


def parts_of(file):
    """The parts of one file: itself, or the code cells of a notebook from top to bottom."""
    if file.kind != "notebook":
        return [Part(file.name, None, file.kind, stub.one_newline(file.text))]
    return list(cells(file.name, file.text))


@lru_cache(maxsize=4)           # every lesson of the course may ask for the same notebook
def cells(name, text):
    parts = []
    for number, source in enumerate(sources(text), 1):
        part = cell(name, number, source)
        if part is not None:
            parts.append(part)
    return tuple(parts)


def sources(text):
    """The texts of a notebook's code cells; empty where it is not one, which intake has noted."""
    try:
        cells = json.loads(text)["cells"]
        return [ipynb.source(c) for c in cells if c["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def cell(name, number, source):
    """One code cell as a Part, its lines counted from the cell's top; None for other magics."""
    head = source.lstrip().split("\n", 1)[0]
    above = source[:len(source) - len(source.lstrip())].count("\n")
    if head.startswith("%%cuda"):
        body = source.lstrip().partition("\n")[2]
        return Part(name, number, "cuda", stub.one_newline("\n" * (above + 1) + body))
    if head.startswith("%%") and head.split()[0] not in ipynb.RUNS_HERE:
        return None
    return Part(name, number, "python", stub.one_newline(source))


def without_magics(part):
    """(a cell of Python without IPython's own lines, those lines)"""
    if part.language != "python" or part.cell is None or part.error() is None:
        return part, []
    text, gone = ipynb.without_magics(part.text)
    return replace(part, text=text), gone


def mentions(text, language, lesson):
    """The exercises of a lesson that a text seems to define, readable or not."""
    return [e.name for e in lesson.exercises
            if e.language == language and stub.seems_to_define(text, e.name, language)]
