"""A wrong prediction is not answered with the right one, which the learner is to find."""

import ast

import pytest

from lab.course import lessons
from lab.judge import mutants

RIGHT = {"want", "right", "expected"}       # names of the right answer in graders
RISKY = '''def test_predict_x(subject, agree):
    want = 3
    {}'''


def names(node):
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def printed(text, exercise):
    """{name} of the right answer that the test of an exercise, or a function it calls, prints."""
    functions = {part.name: part for part in ast.parse(text).body
                 if isinstance(part, ast.FunctionDef)}
    if f"test_{exercise}" not in functions:
        return set()
    own = functions[f"test_{exercise}"]
    read = [own, *(functions[name] for name in names(own) & functions.keys())]
    values = [part.value for one in read for part in ast.walk(one)
              if isinstance(part, ast.FormattedValue)]
    told = set().union(*map(names, values)) & RIGHT
    return told | ({"agree"} & names(own))      # its message has the expected value


@pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.id)
def test_no_message_of_a_guess_prints_the_right_value(lesson):
    exercises = [row["exercise"] for row in mutants.read(lesson.mutants).get("guesses", [])]
    told = {exercise: printed(path.read_text("utf-8"), exercise)
            for exercise in exercises for path in lesson.graders}
    assert not any(told.values()), told


@pytest.mark.parametrize("line, told", [
    ("assert subject.predict_x() == want, 'it is another number'", set()),
    ("assert subject.predict_x() == want, f'not {want}'", {"want"}),
    ("agree(subject.predict_x(), want)", {"agree"})])
def test_what_prints_the_right_value(line, told):
    assert printed(RISKY.format(line), "predict_x") == told
