"""The candidate made of the stubs and a file that the user named: `lab check --file`."""

import re

from lab import stub
from lab.course import SUFFIX, CourseError
from lab.desk import ipynb, texts
from lab.judge.alone import lines_of
from lab.judge.candidate import Candidate


def candidate(lesson, file, earlier):
    """earlier: as a Candidate has it"""
    sources = dict(lesson.stubs)
    labels = dict.fromkeys(lesson.stubs, str(file))
    origins = {}
    broken = {}
    for language, part, cell in parts_of(lesson, file):
        before = sources[language]
        if cell is not None and not defines_any(lesson, part, language):
            continue
        try:
            sources[language], origin = stub.splice(before, part, language)
        except (SyntaxError, ValueError) as error:
            if cell is None:            # kept as it is: the verdict names the line
                sources[language] = part
            else:                       # the other cells count all the same
                broken |= {e.name: unreadable(file, cell, part, error) for e in lesson.exercises
                           if stub.seems_to_define(part, e.name, language)}
            continue
        origins[language] = origin if cell is None else in_cells(
            sources[language], origin, cell, before, origins.get(language))
    return Candidate(sources, labels, origins, broken=broken, earlier=earlier)


def parts_of(lesson, file):
    """[(language, text, number of the code cell or None)].
    CourseError where the file cannot be read, or holds a language that the lesson has not."""
    if file.suffix not in (".py", ".cu", ".ipynb"):
        raise CourseError(f"{file}: expected a .py, .cu or .ipynb file")
    text = texts.read_given(file)
    parts = (ipynb.code(text, str(file)) if file.suffix == ".ipynb" else
             [(lesson.language(file), text, None)])
    for language, _, _ in parts:
        if language not in lesson.stubs:
            raise CourseError(f"{lesson.id} has no {SUFFIX[language]} exercises, but {file} holds "
                              "some")
    return parts


def in_cells(text, origin, cell, before, places):
    """For each line of `text` its place in the notebook, None where it is the course's.

    origin: the line of cell number `cell`, None where it is of the text `before`
    places: the same for `before`, None where all of it is the course's
    """
    rest = [row for row, line in zip(text.split("\n"), origin, strict=False) if line is None]
    places = places or [None] * (before.count("\n") + 1)
    others = iter(lines_of("\n".join(rest), before, places))
    return [next(others) if line is None else f"code cell {cell}, line {line}" for line in origin]


def unreadable(file, cell, text, error):
    """Why a code cell of a notebook, its text, cannot be read. cell: its number"""
    reason = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
    place = re.match(r"line (\d+)", reason)
    rows = stub.one_newline(text).split("\n")[int(place[1]) - 1:] if place else []
    return f"{file}, code cell {cell}, {reason}\n    {''.join(rows[:1]).strip()}".rstrip()


def defines_any(lesson, text, language):
    try:
        names = set(stub.definitions(text, language))
    except (SyntaxError, ValueError):
        return any(stub.seems_to_define(text, e.name, language) for e in lesson.exercises
                   if e.language == language)
    return any(e.name in names or e.name.split(".")[0] in names for e in lesson.exercises)
