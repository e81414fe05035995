"""Which floors a lesson needs, and floors that import on demand."""

import ast
import functools
import subprocess
import sys

import pytest

from lab import course
from lab.course import ROOT
from lab.judge import imports


@pytest.mark.parametrize("lesson, floors", [
    ("r01", {"day01_roofline"}),                        # nothing else
    ("s20", {"layer3_system"}),                         # torch alone
    ("s21", {"day01_roofline", "day02_overview", "layer3_system"}),     # day 2 imports day 1
    ("s22", {"layer1_kernels", "layer2_graph", "layer3_system"})])
def test_a_lesson_needs_the_floors_that_it_and_its_graders_reach(lesson, floors):
    assert imports.needed_floors(course.find(lesson)) == floors


@pytest.mark.parametrize("text, file", [
    ("from layer2_graph import Llama", "layer2_graph/g01_llama.py"),    # by the table of contents
    ("import layer2_graph.g01_llama", "layer2_graph/g01_llama.py"),
    ("from layer3_system.engine import drafts", "layer3_system/engine/drafts.py"),
    ("from layer3_system.engine.drafts import Drafter", "layer3_system/engine/drafts.py"),
    ("def test():\n    from tests.layer3_system import repeats", "tests/layer3_system/repeats.py"),
    ("DRIVER = 'layer3_system.testing.step_driver'", "layer3_system/testing/step_driver.py"),
    ("make('layer3_system.pipeline:Stage')", "layer3_system/pipeline.py"),
    ("from layer2_graph.g01_llama import (  # read by patterns\n    Llama as L,\n)",
     "layer2_graph/g01_llama.py"),
    ("import json, layer2_graph.config as config  # both", "layer2_graph/config.py"),
    ("import torch.nn\nfrom lab import course", None), ("'layer3_system.no_such'", None),
    ("def broken(:", None)])
def test_what_a_text_imports_or_names(text, file):
    assert imports.imported(text) == (() if file is None else (ROOT / file,))


def by_syntax(text):
    """What `imported` gives, from the syntax tree."""
    nodes = [*ast.walk(ast.parse(text))]
    names = {name for node in nodes for name in imports.imports(node, "")}
    names |= {node.value.partition(":")[0] for node in nodes
              if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    whole = {name for name in names if "." in name.rstrip(".")}      # no floor alone
    return tuple(filter(None, map(imports.file_of, sorted(whole))))


def test_patterns_and_syntax_trees_agree_on_all_lessons(monkeypatch):
    floors = {lesson: imports.needed_floors(lesson) for lesson in course.lessons()}
    monkeypatch.setattr(imports, "imported", functools.cache(by_syntax))
    assert floors == {lesson: imports.needed_floors(lesson) for lesson in floors}


ON_DEMAND = """
import sys
from lab.judge.imports import import_on_demand
import day01_roofline
import_on_demand()
import layer3_system.s20_collectives
assert "layer3_system.s07_engine" not in sys.modules and "triton" not in sys.modules
from layer3_system import BlockPool
assert BlockPool.__module__ == "layer3_system.s02_block_pool"
assert "layer3_system.s07_engine" not in sys.modules
assert day01_roofline.__file__.endswith("__init__.py")
"""


def test_floors_on_demand_import_what_is_asked_for():
    done = subprocess.run([sys.executable, "-P", "-c", ON_DEMAND], cwd=ROOT, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
