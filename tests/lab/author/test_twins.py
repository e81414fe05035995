"""Twins by `ast` do what the reference does, and there are none where that is not sure."""

from collections import Counter

import pytest

from lab import course
from lab.author import twins, verify
from lab.judge import mutants

SUMS = '''
def sums(rows, *more, start=0, **rest):
    """Sums of rows."""
    from math import fsum
    total, lists = start, [list(row) for row in rows]
    for row in [*lists, *more]:
        try:
            total += fsum(row)
        except TypeError as error:
            total = error
    return total, lambda row: row + total, rest, max
'''


def ran(text, *args, **kwargs):
    """What the function in a text gives."""
    module = {}
    exec(text, module)
    total, add, *others = module["sums"](*args, **kwargs)
    return total, add(1), others


@pytest.mark.parametrize("change", twins.STYLES.values(), ids=twins.STYLES)
def test_a_twin_does_the_same(change):
    other = change(SUMS)
    assert other != SUMS
    for args, kwargs in (([[[1, 2], [3]]], {}), ([[[1]], [4, 5]], {"start": 3, "a": 1})):
        assert ran(other, *args, **kwargs) == ran(SUMS, *args, **kwargs)


def test_styles_are_had_at_once():
    styles, other = twins.restyled(SUMS)
    assert styles == "locals renamed, tuples for lists, NumPy's numbers, a helper extracted"
    assert "own_total" in other and "return steps_of_sums(" in other
    assert ran(other, [[1, 2], [3]], a=1) == ran(SUMS, [[1, 2], [3]], a=1)
    assert twins.restyled("@triton.jit\ndef f(x):\n    y = x")[0] == "locals renamed"
    assert twins.restyled("@triton.jit\ndef f(x):\n    return x")[0] == ""


def test_variables_are_renamed_and_nothing_else_is():
    text = twins.renamed(SUMS)
    assert {"own_total", "own_lists"} <= set(text.replace(",", " ").split())
    for name in ("own_row", "own_start", "own_fsum", "own_error", "own_max"):
        assert name not in text         # also an argument, imported, of `except`, of the module


CONVERTED = """
def f(n):
    def inner():
        return [n]
    if n:
        return [n, inner()]
"""


def test_lists_become_tuples():
    module = {}
    exec(twins.STYLES["tuples for lists"](CONVERTED + "    return 'a'"), module)
    assert module["f"](2) == (2, (2,)) and module["f"](0) == "a"


def test_numbers_become_numpys():
    module = {}
    exec(twins.STYLES["NumPy's numbers"](CONVERTED + "    return 0.5, True, None, 2**63"), module)
    assert repr(module["f"](2)) == "[np.int64(2), [np.int64(2)]]"
    assert repr(module["f"](0)) == f"(np.float64(0.5), True, None, {2**63})"


def test_what_returns_nothing_is_not_converted():
    text = "def f(x):\n    def g():\n        return x\n    g()"
    assert twins.STYLES["tuples for lists"](text) is None


def test_a_method_stays_in_its_class():
    text = "class Pool:\n\n    def grow(self, n: int):\n        pages = n + 1\n        return pages"
    assert twins.renamed(text) == text.replace("pages", "own_pages")
    assert twins.extracted(text) == (
        "def steps_of_grow(self, n):\n    pages = n + 1\n    return pages\n\n"
        "class Pool:\n\n    def grow(self, n: int):\n        return steps_of_grow(self, n)")


@pytest.mark.parametrize("body", ["return x", "return [x for x in y]", "y = 1\n    return locals()",
                                  "class A:\n        y = 1\n    return A"])
def test_what_cannot_be_renamed(body):
    assert twins.renamed(f"def f(x):\n    {body}") is None


@pytest.mark.parametrize("text", [
    "@triton.jit\ndef f(x):\n    return x", "def f(x):\n    yield x",
    "async def f(x):\n    return x", "class A:\n    def f(self):\n        return super().f()",
    "class A:\n    def f(self):\n        return self.__x"])
def test_what_cannot_be_extracted(text):
    assert twins.extracted(text) is None


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda lesson: lesson.id)
def test_each_is_an_answer_to_its_exercise(lesson):
    rows = twins.twins(lesson)
    for row in rows:
        assert mutants.mutate(lesson, row).sources != lesson.sources
    assert not any(row["exercise"].startswith(("predict_", "choose_")) for row in rows)


def test_a_lesson_is_verified_with_them():
    """With the free twin of each exercise, beside those that are written by hand."""
    lesson = course.find("r01_roofline")
    written = Counter(row["exercise"] for row in mutants.twins(lesson))
    rows = verify.verify([lesson], most=0)
    counts = {row["exercise"]: row["message"] for row in rows if row["proof"] == "at least 1 twin"}
    names = ("count_add", "count_matmul", "count_softmax", "attainable", "bound")
    assert counts == {name: f"{written[name] + 1} twins" for name in names}
    assert sum(written[name] for name in names) > 0
