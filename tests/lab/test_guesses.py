"""A wrong prediction is answered by its name, and not with the right one, which the learner is to
find."""

import ast

import pytest

from lab.course import lessons
from lab.judge import mutants

RIGHT = {"want", "right", "expected"}       # names of the right answer in graders
RISKY = '''def test_predict_x(subject, agree):
    want = 3
    {}'''


COURSE = "the course's own"                 # a message that begins so is for its authors
HELPED = '''def number(got, what):
    assert isinstance(got, int), {}

def test_predict_x(subject):
    got = number(subject.predict_x(), {})
    head = {}
    assert got == 3, {}'''


def names(node):
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def functions_of(text):
    return {part.name: part for part in ast.parse(text).body if isinstance(part, ast.FunctionDef)}


def guesses(lesson):
    return [row["exercise"] for row in mutants.read(lesson.mutants).get("guesses", [])]


def printed(text, exercise):
    """{name} of the right answer that the test of an exercise, or a function it calls, prints."""
    functions = functions_of(text)
    if f"test_{exercise}" not in functions:
        return set()
    own = functions[f"test_{exercise}"]
    read = [own, *(functions[name] for name in names(own) & functions.keys())]
    values = [part.value for one in read for part in ast.walk(one)
              if isinstance(part, ast.FormattedValue)]
    told = set().union(*map(names, values)) & RIGHT
    return told | ({"agree"} & names(own))      # its message has the expected value


def says(node, exercise, aliases):
    """Whether an expression has the name of an exercise, as text or by a variable that holds it."""
    texts = [part.value for part in ast.walk(node)
             if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return any(exercise in text for text in texts) or bool(names(node) & aliases)


def aliases_in(function, exercise):
    """Variables of a function whose text, not computed by a call, has the name of an exercise."""
    return {name for part in ast.walk(function) if isinstance(part, ast.Assign)
            and not any(isinstance(inner, ast.Call) for inner in ast.walk(part.value))
            and says(part.value, exercise, set()) for target in part.targets
            for name in names(target)}


def nameless(text, exercise):
    """Lines of asserts in the test of an exercise, or in a function it calls, whose message has not
    the exercise's name."""
    functions = functions_of(text)
    if f"test_{exercise}" not in functions:
        return []
    own = functions[f"test_{exercise}"]
    read = [(own, aliases_in(own, exercise))]
    for call in ast.walk(own):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in functions:
            other = functions[call.func.id]
            read.append((other, {parameter.arg for parameter, value
                                 in zip(other.args.args, call.args, strict=False)
                                 if says(value, exercise, read[0][1])}))
    return sorted({part.lineno for function, aliases in read for part in ast.walk(function)
                   if isinstance(part, ast.Assert) and not (part.msg and (
                       says(part.msg, exercise, aliases) or says(part.msg, COURSE, set())))})


@pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.id)
def test_no_message_of_a_guess_prints_the_right_value(lesson):
    told = {exercise: printed(path.read_text("utf-8"), exercise)
            for exercise in guesses(lesson) for path in lesson.graders}
    assert not any(told.values()), told


@pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.id)
def test_each_message_of_a_guess_names_its_exercise(lesson):
    lines = {exercise: nameless(lesson.test.read_text("utf-8"), exercise)
             for exercise in guesses(lesson)}
    assert not any(lines.values()), lines


@pytest.mark.parametrize("line, told", [
    ("assert subject.predict_x() == want, 'it is another number'", set()),
    ("assert subject.predict_x() == want, f'not {want}'", {"want"}),
    ("agree(subject.predict_x(), want)", {"agree"})])
def test_what_prints_the_right_value(line, told):
    assert printed(RISKY.format(line), "predict_x") == told


@pytest.mark.parametrize("parts, lines", [
    (("f'{what}: no number'", "'predict_x'", "''", "f'predict_x: not {got}'"), []),
    (("f'{what}: no number'", "'predict_x'", "'predict_x'", "f'{head}: not {got}'"), []),
    (("f'predict_x: {got}'", "''", "''", "told('predict_x: no')"), []),
    (("f'{what}: no number'", "''", "''", "f'predict_x: not {got}'"), [2]),
    (("f'{got}: no number'", "'predict_x'", "''", "f'{got} is not it'"), [2, 7]),
    (("\"the course's own is wrong\"", "''", "'predict_y'", "head"), [7])])
def test_which_messages_have_no_name(parts, lines):
    assert nameless(HELPED.format(*parts), "predict_x") == lines
