"""`pytest -m gpu` launches every kernel that a lesson of this floor has one write: read from the
graders, so that it is known without a GPU."""

import ast
import importlib
import inspect

import pytest

from lab import course

MARK = "pytest.mark." + "gpu"           # in one word, this file would count as a GPU test
LESSONS = [lesson for lesson in course.lessons() if lesson.floor == "layer1_kernels" and any(
    exercise.name.endswith(("_cuda", "_triton")) for exercise in lesson.exercises)]


def words(node):
    """The names, and the strings, in a piece of Python."""
    found = {getattr(part, "id", getattr(part, "value", None)) for part in ast.walk(node)}
    return {word for word in found if isinstance(word, str)}


def used_on_the_device(text):
    """The words of the tests marked gpu, and of the code at the top of the file that they use."""
    named, more = {}, []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            named[node.name] = words(node)
            if any(ast.unparse(mark) == MARK for mark in node.decorator_list):
                more.append(node.name)
        elif isinstance(node, ast.Assign):
            named |= {target.id: words(node.value) for target in node.targets
                      if isinstance(target, ast.Name)}
    used = set()
    while more:
        new = named.get(more.pop(), set()) - used
        used |= new
        more += new
    return used


def launched(lesson, used):
    """What these words launch: themselves, and the exercises that functions and kernels of these
    names reach.
    A launcher with an argument `kernel` by itself launches only its default."""
    module = importlib.import_module(f"{lesson.floor}.{lesson.id}")
    found = set(used)
    for word in used:
        function = getattr(module, word, None)
        choice = (inspect.signature(function).parameters.get("kernel")
                  if inspect.isfunction(function) else None)
        start = choice.default if choice else word
        if start:                       # without a default, what is launched depends on the size
            found |= {start} | {exercise.name for exercise in lesson.reached(start)}
    return found


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.id)
def test_every_kernel_to_write_is_launched_on_the_device(lesson):
    wanted = {exercise.name for exercise in lesson.exercises
              if exercise.name.endswith(("_cuda", "_triton"))}
    left = wanted - launched(lesson, used_on_the_device(lesson.test.read_text("utf-8")))
    assert not left, f"no test marked gpu launches {', '.join(sorted(left))}"


def test_what_only_other_tests_launch_is_found():
    text = f"""
CUDA = ("add_cuda", "add_vector_cuda")

@{MARK}
def test_some():
    vector_add_cuda(x, y, CUDA[0])

def test_others():
    vector_add_cuda(x, y, "add_grid_stride_cuda")
    vector_add(x, y)
"""
    lesson = course.find("k01_vector_add")
    found = launched(lesson, used_on_the_device(text))
    assert {"add_cuda", "add_vector_cuda"} <= found
    assert not {"add_grid_stride_cuda", "add_triton"} & found
