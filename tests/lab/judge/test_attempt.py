"""An answer that imports given code, or what graders compare with, is refused."""

import os
import shutil
import subprocess
import sys

import pytest

from lab import course, device, stub
from lab.judge import attempt, check, plugin
from lab.judge.candidate import Candidate, reference

S13 = course.find("s13")
# `pack_mask` without a thought: the stand-in for a matcher packs its masks.
BORROWED = '''def pack_mask(mask):
    from types import SimpleNamespace
    from layer3_system.testing.grammar_driver import TextMatcher
    return TextMatcher.mask(SimpleNamespace(ended=False, vocabulary=mask,
                                            allowed=lambda v: bool(mask[v])))
'''
COMPARED = '''def split_matmul(x, w, columns, levels):
    from tests.layer2_graph.oracle_g08_activation_kv_quantization import split_product
    return torch.from_numpy(split_product(x.numpy(), w.numpy(), columns.numpy(), levels))
'''


def verdict(lesson, name, text):
    sources = lesson.sources | {"python": stub.splice(lesson.sources["python"], text,
                                                      "python").text}
    [row] = check.grade(lesson, Candidate(sources, {"python": "mine.py"}), [name])
    return row


@pytest.mark.parametrize("line", [
    "import layer2_graph.testing.graphs as graphs",
    "from layer3_system import TextMatcher",            # by the floor's table of contents
    "from layer3_system import testing",
    "from layer3_system.testing.grammar_driver import TextMatcher",
    "from . import testing", "from .testing.grammar_driver import TextMatcher"])
def test_an_import_of_given_code(line):
    assert attempt.driver(f"import torch\ndef f():\n    {line}\n", S13)[0] == 3


@pytest.mark.parametrize("line", [
    "import numpy.testing", "from torch.testing import assert_close", "from . import automaton",
    "from layer3_system import pack_mask"])
def test_any_other_import(line):
    assert attempt.driver(line, S13) is None


def test_an_answer_that_imports_given_code_fails():
    row = verdict(S13, "pack_mask", BORROWED)
    assert row.verdict == "fail" and row.points == 0
    assert "may not import layer3_system.testing.grammar_driver.TextMatcher" in row.message


def test_an_answer_cannot_import_what_it_is_compared_with():
    row = verdict(course.find("g08"), "split_matmul", COMPARED)
    assert row.verdict == "fail" and "No module named 'tests'" in row.message


@pytest.fixture
def own_tests():
    """The modules of this folder's tests afterwards, whatever was imported under their names."""
    def there():
        return {name: sys.modules[name] for name in [*sys.modules] if name.startswith("tests")}

    before = there()
    yield
    for name in there():
        del sys.modules[name]
    sys.modules.update(before)


@pytest.mark.usefixtures("own_tests")
def test_a_folder_may_have_brackets_in_its_name(tmp_path, monkeypatch):
    """Which pytest takes for the arguments of a test."""
    lesson = course.find("r01_roofline")
    root = tmp_path / "s[old]"
    copy = root / "tests" / lesson.floor / lesson.test.name
    copy.parent.mkdir(parents=True)
    shutil.copy(lesson.test, copy)
    shutil.copy(course.ROOT / "tests" / "conftest.py", root / "tests")
    monkeypatch.setattr(plugin, "ROOT", root)
    monkeypatch.setattr(course.Lesson, "test", property(lambda _: copy))
    [row] = check.grade(lesson, reference(lesson), ["count_add"])
    assert row.verdict == "pass", row.message


@pytest.mark.slow
def test_a_process_that_grades_many_texts_forgets_it_again():
    """Answers run in forks of it."""
    code = ("import sys, lab.judge.warmup as w; print(len(w.READ), [name for name in sys.modules "
            "if name.startswith(('tests', 'layer', 'day'))])")
    output = subprocess.run([sys.executable, "-P", "-c", code], env=device.child_environment(),
                            cwd=os.sep, capture_output=True, text=True, check=True).stdout
    assert output == f"{len(course.lessons())} []\n"
