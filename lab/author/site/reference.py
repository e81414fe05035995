"""Reference pages: the commands, and public names with signatures and docstrings."""

import importlib
import inspect
import subprocess
import sys

from lab import course
from lab.course import ROOT
from lab.stub import one_newline


def commands():
    """`lab` and its commands, as typer documents them."""
    words = [sys.executable, "-m", "typer", "lab.cli", "utils", "docs", "--name", "lab"]
    text = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return text.replace("# `lab`", "# The command `lab`", 1)


def names_of(module_name, title):
    """A page of a package's public functions and classes, by the module that has them."""
    package = importlib.import_module(module_name)
    homes = {}
    for name in package.__all__:
        value = getattr(package, name)
        if not callable(value):         # a constant: the module says what it is for
            continue
        homes.setdefault(getattr(value, "__module__", module_name), []).append((name, value))
    parts = [f"# {title}"]
    for home, rows in homes.items():
        parts += [f"## {home}", *(entry(name, value) for name, value in rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def entry(name, value):
    """A name: its signature, its docstring, and those of a class's public methods."""
    parts = [f"### {name}", fenced(signature(name, value)), documented(value)]
    if inspect.isclass(value):
        for method, function in vars(value).items():
            if not method.startswith("_") and inspect.isfunction(function):
                parts += [fenced(signature(f"{name}.{method}", function)),
                          documented(function)]
    return "\n\n".join(part for part in parts if part)


def signature(name, value):
    try:
        return f"{name}{inspect.signature(value)}"
    except (TypeError, ValueError):
        return name


def documented(value):
    return fenced(inspect.getdoc(value)) if value.__doc__ else ""


def fenced(text):
    return f"```text\n{one_newline(text)}```" if text else ""


def pages():
    """{path below the site's source: text}"""
    return {"reference/commands.md": commands(),
            **{f"reference/{floor.name}.md": names_of(floor.name, floor.title)
               for floor in course.floors()}}
