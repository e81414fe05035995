"""What an exercise needs stands in the notebook before it: names, and how they are called."""

import ast
import builtins
import json
import re
import textwrap
from collections import Counter, OrderedDict, deque

import numpy as np
import pytest
import torch

from lab import course, stub
from lab.author import interface
from lab.author.gaps import GUESSES
from lab.course import CourseError

# Python's, NumPy's and PyTorch's own: a learner looks them up there.
KNOWN = {name for kind in (list, dict, str, bytes, set, tuple, int, float, deque, Counter,
                           OrderedDict, np.ndarray, np.random.Generator, torch.Tensor)
         for name in dir(kind)} | {"set", "wait"}           # asyncio.Event's
LIBRARIES = {"np", "torch", "math", "tl", "triton", "heapq", "bisect", "json", "time", "asyncio"}
ELSEWHERE = {"digest"}          # of the standard library's hashes


def exercises():
    for lesson in course.lessons():
        for exercise in lesson.exercises:
            if exercise.language == "python" and not exercise.name.startswith(GUESSES):
                yield pytest.param(lesson, exercise.name, id=f"{lesson.id}/{exercise.name}")


def attributes(text):
    """(names after a dot in an answer, those of them that are called), the libraries' left out."""
    names, calls = set(), set()
    for node in ast.walk(ast.parse(textwrap.dedent(text))):
        called = isinstance(node, ast.Call)
        each = node.func if called else node
        if not isinstance(each, ast.Attribute) or each.attr in KNOWN | ELSEWHERE:
            continue
        root = each
        while isinstance(root, ast.Attribute):
            root = root.value
        if getattr(root, "id", None) not in LIBRARIES:
            (calls if called else names).add(each.attr)
    return names, calls


def plain_names(text):
    """Names that an answer reads and does not make: those of its own file or of another of the
    course.
    The libraries' usual names are left out."""
    made = set(dir(builtins))
    read = set()
    for node in ast.walk(ast.parse(textwrap.dedent(text))):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            made |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            made.add(node.name)
    return read - made - LIBRARIES


def shown(lesson, name):
    """The notebook's text up to the cell of an exercise."""
    parts = []
    for cell in json.loads(lesson.notebook.read_text("utf-8"))["cells"]:
        parts.append("".join(cell["source"]))
        if (cell["metadata"].get("lab") or {}).get("exercise") == name:
            return "\n".join(parts)
    raise AssertionError(f"{lesson.id} has no cell for {name}")


@pytest.mark.parametrize("lesson, name", list(exercises()))
def test_what_an_answer_needs_is_in_the_notebook_before_it(lesson, name):
    text = shown(lesson, name)
    answer = stub.extract(lesson.sources["python"], name, "python")
    names, calls = attributes(answer)
    words = set(re.findall(r"\w+", text))
    assert names <= words, f"not shown: {names - words}"
    unnamed = plain_names(answer) - words
    assert not unnamed, f"neither defined in the answer nor shown: {unnamed}"
    # with its arguments, or as a field that holds a function
    unseen = {call for call in calls if not re.search(rf"\b{call}(\(|: )", text)}
    assert not unseen, f"their arguments are not shown: {unseen}"


def test_a_module_may_stand_in_a_room():
    assert "class Output:" in interface.text("layer3_system.engine.outputs.Output")
    assert interface.text("layer3_system.engine.outputs.Outputs.take as take").startswith(
        "```python\ntake(request, drawn, logits)")


def test_an_interface_is_written_from_the_code():
    text = interface.text("layer2_graph.g02_kv_cache.SequenceRun, "
                          "layer2_graph.config.Config[D eps], "
                          "layer2_graph.config.Config.scale as m.scale, "
                          "layer1_kernels.k09_rope.rope as ops.rope")
    assert text.splitlines() == [
        "```python",
        "class SequenceRun:",
        "    # Neighbouring sequences of a batch with the same T and N: first to end - 1.",
        "    first: int",
        "    end: int",
        "    T: int          # new tokens of each",
        "    N: int          # context of each, new tokens included",
        "",
        "class Config:",
        "    # A decoder: L layers of RMSNorm, attention, RMSNorm and gated MLP, each with its "
        "residual.",
        "    D: int                          # head width",
        "    eps: float                      # of the norms",
        "",
        "m.scale",
        "    # The factor of attention's scores.",
        "",
        "ops.rope(q, k, cos, sin, positions)    # (T, H, D), (T, G, D), 2 × (room, D/2), (T,)",
        "    # Rotate the heads of q and k in place by the angles of their tokens' positions; "
        "returns None.",
        "```"]


def test_any_number_of_arguments_is_a_star():
    call = interface.text("layer3_system.context.pass_on").splitlines()[1]
    assert call == "pass_on(*arrays, step=1)"


@pytest.mark.parametrize("name, problem", [
    ("layer2_graph.g99.Run", "there is no layer2_graph/g99.py"),
    ("layer2_graph.config.Nothing", "does not define Nothing"),
    ("layer3_system.engine.g99.Run", "there is no layer3_system/engine/g99.py"),
    ("layer3_system.engine.outputs", "layer3_system/engine/outputs.py does not define"),
    ("layer2_graph.config.Config[D Q]", "Config has no field Q")])
def test_a_name_that_is_not_there_is_said(name, problem):
    with pytest.raises(CourseError, match=re.escape(problem)):
        interface.text(name)
