"""Public names of the graph and the system carry type hints, and a type checker agrees."""

import importlib
import inspect
import subprocess
import sys

import pytest

from lab.course import ROOT

FLOORS = ["layer2_graph", "layer3_system"]


def functions(floor):
    """(name, function) of a floor's public functions and of its public classes' methods."""
    package = importlib.import_module(floor)
    for name in package.__all__:
        thing = getattr(package, name)
        if inspect.isfunction(thing):
            yield name, thing
        elif inspect.isclass(thing):
            for key, member in vars(thing).items():
                function = getattr(member, "fget", None) or getattr(member, "__func__", member)
                if inspect.isfunction(function) and (key == "__init__" or key[0] != "_") \
                        and function.__code__.co_filename.startswith(str(ROOT)):
                    yield f"{name}.{key}", function


@pytest.mark.parametrize("floor", FLOORS)
def test_public_names_have_type_hints(floor):
    bare = []
    for name, function in functions(floor):
        signature = inspect.signature(function)
        untyped = [p.name for p in signature.parameters.values()
                   if p.annotation is p.empty and p.name not in ("self", "cls")]
        if signature.return_annotation is signature.empty and not name.endswith(".__init__"):
            untyped.append("return")
        if untyped:
            bare.append(f"{name}: {', '.join(untyped)}")
    assert not bare, "\n".join(bare)


@pytest.mark.slow                               # it reads PyTorch's hints, too: a minute
def test_a_type_checker_agrees(tmp_path):
    done = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)],
                          cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
