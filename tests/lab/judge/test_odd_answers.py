"""Odd answers to every exercise: a fail that says what was expected and what came, never an error.

All exercises of a lesson are replaced at once: a function returns an odd value whatever it is
given, a class makes objects whose methods do, a kernel has an odd body.
"""

import re

import pytest

from lab import course, stub
from lab.course import SPEED, SUFFIX
from lab.grading.sandbox import is_kernel
from lab.judge import check
from lab.judge.candidate import Candidate

VALUES = {
    "None": "None", "True": "True", "401 digits": "10**400", "5,001 digits": "10**5000",
    "NaN": "float('nan')", "a text": "'text\\ud800'", "a dict": "{'a': None}",
    "a tuple": "(1, 'two', None)", "ragged": "[[1.0], [2.0, 3.0]]",
    "an array": "__import__('numpy').zeros(3, 'float32')",
    "a fraction": "__import__('fractions').Fraction(1, 3)", "an object": "object()",
}
CUDA = ("return;", "__trap();", "while (true);", 'asm volatile("brkpt;");')
TRITON = ("return", "return 1", "raise ValueError", "tl.static_assert(False)")
# Where an odd value is right: 1.0 == True.
RIGHT = {("r01_roofline", "predict_gain_of_doubled_peak", "True"),
         ("r03_transformer_math", "predict_decode_intensity", "True"),
         ("k19_fp8_matmul", "predict_outlier_loss", "True"),
         ("s30_training", "predict_bf16_weight", "True")}
# What Python says of its own objects, and what only the course can understand.
INTERNALS = re.compile(
    r"the course failed|Traceback|\btest_\w+\.py|\bRemote\b|Exceeds the limit|cannot unpack|"
    r"' object (is not|has no|does not|cannot be)|object of type '|not supported between|"
    r"int too large|"
    r"unsupported operand|setting an array element|could not be broadcast|truth value|"
    r"argument must be|invalid literal")
UNUSABLE = "with the course's own answer this test passes"     # an error deep in the course's code
OWN_LINE = re.compile(r"\n {4}\w+\.(py|cu), line \d+: ")


def odd(lesson, value):
    """The Candidate with `value` for every answer."""
    number, sources = list(VALUES).index(value), dict(lesson.sources)
    for exercise in lesson.exercises:
        text = odd_text(exercise, number, VALUES[value])
        sources[exercise.language] = stub.splice(sources[exercise.language], text,
                                                 exercise.language).text
    return Candidate(sources, {language: lesson.id + SUFFIX[language] for language in sources})


def odd_text(exercise, number, value):
    language, name = exercise.language, exercise.name.split(".")[-1]
    lines = stub.extract(exercise.lesson.stubs[language], exercise.name, language).split("\n")
    if language == "cuda":
        mark = next(k for k, line in enumerate(lines) if "exercise:" in line)
        return "\n".join([*lines[:mark + 1], CUDA[number % len(CUDA)], *lines[mark + 1:]])
    if is_kernel(exercise):
        return "\n".join([*lines[:-1], indentation(lines[-1]) + TRITON[number % len(TRITON)]])
    if lines[0].startswith("class") and "." not in exercise.name:
        return (f"class {name}:\n    def __init__(self, *a, **k):\n        pass\n\n"
                f"    def __getattr__(self, name):\n        return lambda *a, **k: {value}\n")
    head = next(k for k, line in enumerate(lines) if re.match(rf"\s*(async )?def {name}\b", line))
    words = lines[head][:lines[head].index("def")]
    return "\n".join([*lines[:head], f"{words}def {name}(*a, **k):",
                      f"{indentation(words)}    return {value}"])


def indentation(text):
    return text[:len(text) - len(text.lstrip())]


def exercises(lesson, value):
    """Those that the value makes a new case for: kernels have odd bodies, as many as CUDA has."""
    number = list(VALUES).index(value)
    return [e for e in lesson.exercises if number < len(CUDA) or not is_kernel(e)]


def cases():
    """Every lesson with every value; all but one value of each lesson are left to `make soak`."""
    for number, lesson in enumerate(course.lessons()):
        values = [value for value in VALUES if exercises(lesson, value)]
        for value in values:
            marks = () if value == values[number % len(values)] else pytest.mark.soak
            yield pytest.param(lesson.id, value, id=f"{lesson.id}-{value}", marks=marks)


@pytest.mark.parametrize("lesson, value", list(cases()))
def test_an_odd_answer_fails_and_is_told_so(lesson, value):
    lesson = course.find(lesson)
    names = [e.name for e in exercises(lesson, value)]
    rows = check.grade(lesson, odd(lesson, value), names)
    verdicts = [v for v in rows if not v.name.endswith(SPEED)]
    assert [v.name for v in verdicts] == names
    for verdict in verdicts:
        right = (lesson.id, verdict.name, value) in RIGHT
        assert verdict.verdict == ("pass" if right else "fail"), verdict
        raw = INTERNALS.search(verdict.message)
        own = OWN_LINE.search(verdict.message) and "expected" not in verdict.message
        assert not raw or own or UNUSABLE in verdict.message, verdict
