"""One mistake in a text costs the definition it is in, not the lesson."""

import time

import pytest

from lab import stub
from lab.grading import broken_text, extract, worker
from lab.grading.submission_parts import Part
from lab.judge import check
from lab.judge.verdict import Verdict
from tests.lab.grading.test_extract import (
    FUSED,
    K07,
    MERGE,
    ONLINE,
    PY,
    RATIO,
    S02,
    code,
    got,
    noted,
    of,
    sent,
)

COLON = MERGE.replace("):", ")", 1)
GROW = stub.extract(S02.sources["python"], "BlockPool.grow", "python")
RELEASE = stub.extract(S02.sources["python"], "BlockPool.release", "python")


def graded(made, *names, lesson=K07):
    return {v.name: v for v in check.grade(lesson, made, names)}


@pytest.mark.parametrize("wrong, line, what", [
    (COLON, 1, "expected ':'"), (MERGE + "\n    return = 3\n", 14, "invalid syntax"),
    (MERGE.replace("(a, b)", "(a, b", 1), 1, "was never closed"),
    (MERGE + "\n  return 3\n", 14, "unindent"), ("@cache\n" + COLON, 2, "expected ':'")])
def test_a_function_with_a_mistake_is_told_and_the_others_are_graded(wrong, line, what):
    above = "import math\n\n\n"
    for text in (above + wrong + "\n\n" + RATIO, above + RATIO + "\n\n" + wrong):
        made, notes = of((PY, text))
        assert list(made.broken) == ["merge"] and notes == []
        first = text[:text.index(wrong)].count("\n")
        place = made.broken["merge"].split(": ")[0]
        assert place.startswith(f"{PY}, line ") and what in made.broken["merge"]
        if what == "expected ':'":
            assert place == f"{PY}, line {first + line}"
            assert "\n    def merge(a, b)" in made.broken["merge"]
        found = graded(made, "merge", "predict_bytes_ratio")
        assert (found["merge"].verdict, found["merge"].points) == ("fail", 0)
        assert found["merge"].message == made.broken["merge"]
        assert found["predict_bytes_ratio"].verdict == "pass"


def test_answers_that_cannot_be_read_are_not_the_same():
    """One broken header and two bodies: what stands in their place is the same."""
    texts = []
    for body in ("    return a\n", "    return max(a, b), 'another'\n"):
        made, _ = of((PY, "def merge(a, b)\n" + body + "\n\n" + RATIO))
        texts.append([worker.own_text(K07, made, Verdict(name, "fail", 0, 1))
                      for name in ("merge", "predict_bytes_ratio")])
    assert texts == [["", code(RATIO, "predict_bytes_ratio")]] * 2


def test_lines_below_a_mistake_are_the_students():
    text = COLON + "\n\n" + RATIO.replace("    return ", "    return None and ")
    made, _ = of((PY, text))
    said = graded(made, "predict_bytes_ratio")["predict_bytes_ratio"].message
    line = text[:text.index("def predict_bytes_ratio")].count("\n") + 1
    assert f"{PY}, line {line}: def predict_bytes_ratio" in said


def test_a_helper_with_a_mistake_fails_those_that_use_it():
    helper = "def larger(a, b)\n    return max(a, b)\n"
    uses = "def merge(a, b):\n    return larger(a, b)\n"
    made, notes = of((PY, helper + "\n\n" + uses + "\n\n" + RATIO))
    assert made.broken == {}
    noted(notes, f"{PY}, line 1", "cannot be read: expected ':'")
    found = graded(made, "merge", "predict_bytes_ratio")
    assert found["merge"].verdict == "fail"
    assert f"{PY}, line 1: expected ':' def larger(a, b)" in found["merge"].message
    assert found["predict_bytes_ratio"].verdict == "pass"


def test_a_method_with_a_mistake_leaves_its_class():
    header, grow = GROW.split("\n", 1)
    release = RELEASE.split("\n", 1)[1]
    wrong = grow.replace("):", ")", 1)
    made, _ = extract.candidate(S02, sent_s02(f"{header}\n{wrong}\n\n{release}\n"))
    [(name, said)] = made.broken.items()
    assert name == "BlockPool.grow" and "expected ':'" in said
    assert got(made, "BlockPool.release", S02) == stub.normalised(RELEASE, "BlockPool.release",
                                                                  "python")


def test_a_class_whose_header_is_wrong_fails_all_its_methods():
    text = GROW.replace("class BlockPool:", "class BlockPool(:") + "\n"
    made, _ = extract.candidate(S02, sent_s02(text))
    assert {"BlockPool.grow", "BlockPool.release"} <= set(made.broken)


def sent_s02(text):
    return sent(("layer3_system/s02_block_pool.py", text))


def test_a_cell_with_a_mistake_gives_its_other_functions():
    made, _ = of(("hw.ipynb", [COLON + "\n\n" + RATIO]))
    assert list(made.broken) == ["merge"]
    assert made.broken["merge"].startswith("hw.ipynb, code cell 1, line 1: expected ':'")
    assert got(made, "predict_bytes_ratio") == code(RATIO, "predict_bytes_ratio")


def test_a_helper_with_a_mistake_in_another_cell_fails_those_that_use_it():
    uses = "def merge(a, b):\n    return larger(a, b)\n"
    made, notes = of(("hw.ipynb", ["x = 1\ndef larger(a, b)\n    return b\n", uses, RATIO]))
    found = graded(made, "merge", "predict_bytes_ratio")
    assert "hw.ipynb, code cell 1, line 2: expected ':'" in found["merge"].message
    assert found["predict_bytes_ratio"].verdict == "pass"


def test_an_answer_elsewhere_counts_where_one_cannot_be_read():
    made, notes = of((PY, COLON + "\n\n" + RATIO), ("hw.ipynb", [MERGE]))
    assert made.broken == {} and got(made, "merge") == code(MERGE, "merge")
    noted(notes, f"{PY}, line 1", "left out because it cannot be read")


def test_a_kernel_without_its_last_brace_leaves_the_others():
    text = FUSED.rstrip().removesuffix("}") + "\n\n" + ONLINE + "\n"
    made, _ = of(("k07_softmax.cu", text))
    assert list(made.broken) == ["softmax_fused_cuda"]
    assert "k07_softmax.cu, line" in made.broken["softmax_fused_cuda"]
    assert got(made, "softmax_online_cuda") == code(ONLINE, "softmax_online_cuda", "cuda")
    assert graded(made, "softmax_online_cuda")["softmax_online_cuda"].verdict == "pass"


@pytest.mark.parametrize("whole", [
    'TEXT = """\nimport nothing\ndef f(:\n"""\n', "TABLE = [\none,\ntwo,\n]\n",
    "if True:\n    x = 1\nelse:\n    x = 2\n", "f(\n)\n"])
def test_what_is_whole_stays_whole(whole):
    part, broken = broken_text.mended(Part("x.py", None, "python", whole + "def g(:\n    pass\n"))
    assert part.text.startswith(whole) and [one.name for one in broken] == ["g"]
    assert part.error() is None


@pytest.mark.parametrize("text", ["x = (\n" * 30_000, "def f(:\n" * 20_000, "@a\n" * 60_000,
                                  'x = """\n' * 20_001, "class A:\n  def f(:\n" * 900])
def test_a_text_made_to_cost_minutes_is_read_at_once(text):
    began = time.process_time()
    broken_text.mended(Part("x.py", None, "python", text))
    broken_text.mended(Part("x.cu", None, "cuda", text.replace("def", "float f() {")))
    assert time.process_time() - began < 20
