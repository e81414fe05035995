"""Whether an exercise was attempted: what can be said of a text before any of it runs."""

import ast

from lab import stub
from lab.course import ROOT
from lab.judge.candidate import told
from lab.judge.imports import homes_by_floor, imports
from lab.judge.verdict import Verdict


def untouched(lesson, candidate, exercise):
    """The verdict of an exercise that needs no test: not attempted, not parsable, or with an import
    that no answer may have."""
    if exercise.name in candidate.broken:
        return Verdict(exercise.name, "fail", 0, exercise.points, candidate.broken[exercise.name])
    text = candidate.sources[exercise.language]
    label = candidate.labels[exercise.language]
    try:
        mine = stub.normalised(text, exercise.name, exercise.language)
    except SyntaxError as error:
        line = told(candidate, exercise.language, error.lineno)
        shown = (error.text or "").strip()
        return Verdict(exercise.name, "fail", 0, exercise.points,
                       f"{label}, {line}: {error.msg}\n    {shown}")
    except ValueError as error:
        return Verdict(exercise.name, "fail", 0, exercise.points, f"{label}: {error}")
    if mine is None:
        return Verdict(exercise.name, "not_attempted", 0, exercise.points,
                       f"{exercise.name} is not defined in {label}")
    if mine == stub.normalised(lesson.stubs[exercise.language], exercise.name, exercise.language):
        return Verdict(exercise.name, "not_attempted", 0, exercise.points,
                       f"still the stub in {label}")
    if exercise.language == "python" and (row := driver(text, lesson)):
        line = told(candidate, exercise.language, row[0])
        return Verdict(exercise.name, "fail", 0, exercise.points,
                       f"{label}, {line}: an answer may not import {row[1]}: that is given "
                       f"code, which calls your answer")
    return None


def driver(text, lesson):
    """(line, name) of an import from a room `testing`, None where a text has none.
    The code there has to run beside an answer, and may do an exercise's work in another way.
    This is a rule and no wall; what graders compare with is in tests/, which no answer can
    import."""
    homes = homes_by_floor()
    for node in ast.walk(ast.parse(stub.one_newline(text))):
        for name in imports(node, lesson.floor):
            floor, *rooms = homes.get(name, name).split(".")
            if rooms[:1] == ["testing"] and (ROOT / floor / "testing").is_dir():
                return node.lineno, name
    return None
