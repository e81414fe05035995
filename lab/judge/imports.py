"""What imports what of the course, read from the texts; and floors whose modules are imported when
they are asked for."""

import ast
import functools
import importlib.util
import re
import sys

from lab import course
from lab.course import ROOT


def imports(node, floor):
    """The full names of what a statement imports. floor: of the file"""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        package = ".".join(filter(None, (floor if node.level else "", node.module)))
        return [f"{package}.{alias.name}" for alias in node.names]
    return []


FROM = re.compile(r"^[ \t]*from ([\w.]+) import (\([^)]*\)|.*)", re.M)
IMPORT = re.compile(r"^[ \t]*import (.*)", re.M)
NAMED = re.compile(r"""["']([A-Za-z_]\w*\.[\w.]*\w)(?::[\w.]*)?["']""")     # a module, in a text
COMMENT = re.compile(r"#.*")


def imported_names(text):
    """[(module, name)] of what the course's own text imports with `from`, wherever it does.
    Read
    by patterns: a syntax tree of all that a lesson imports takes a third of a second."""
    return [(module, part.split()[0]) for module, names in FROM.findall(text)
            for part in COMMENT.sub("", names).strip("()\n ").split(",") if part.strip()]


def homes(contents):
    """{name: the module that has it} of a floor's table of contents."""
    return {name: module for module, name in imported_names(contents)}


@functools.cache
def homes_by_floor():
    """{full name: module} of what the floors' tables of contents have."""
    contents = [(floor.name, homes((ROOT / floor.name / "__init__.py").read_text("utf-8")))
                for floor in course.floors() if (ROOT / floor.name).is_dir()]
    return {f"{floor}.{name}": module for floor, names in contents
            for name, module in names.items()}


# ---- what a lesson needs


def needed_floors(lesson):
    """The names of the floors of which a lesson's module or its graders import something, its own
    among them."""
    known = set()
    waiting = [lesson.path(".py"), lesson.test]
    while waiting:
        path = waiting.pop()
        if path not in known:
            known.add(path)
            waiting += imported(path.read_text("utf-8"))
    folders = {folder for path in known for folder in path.parents}
    return {floor.name for floor in course.floors() if ROOT / floor.name in folders}


@functools.cache
def imported(text):
    """The files of floors and tests that a text imports, or that it names in a text of its own, as
    tests name what they have called ("floor.module", "floor.module:name").
    The floors' tables of contents are not among them."""
    names = {f"{module}.{name}" for module, name in imported_names(text)}
    names |= {part.split()[0] for row in IMPORT.findall(text)
              for part in COMMENT.sub("", row).split(",") if part.strip()}
    return tuple(filter(None, map(file_of, sorted(names.union(NAMED.findall(text))))))


def file_of(name):
    """The file that has a full name, if it is below a floor or tests; else None."""
    parts = homes_by_floor().get(name, name).split(".")
    if parts[0] != "tests" and parts[0] not in {floor.name for floor in course.floors()}:
        return None
    files = (ROOT.joinpath(*parts[:n]) for n in range(len(parts), 1, -1))
    return next((file for module in files
                 for file in (module.with_suffix(".py"), module / "__init__.py") if file.exists()),
                None)


# ---- on demand


@functools.cache
def on_demand(contents):
    """A floor's table of contents that imports a module when a name of it is first asked for: a
    child needs few of them, and all take a tenth of a second."""
    return ("from importlib import import_module\n\n"
            f"HOME = {homes(contents)!r}\n__all__ = list(HOME)\n\n\n"
            "def __getattr__(name):\n"
            "    if name not in HOME:\n"
            "        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')\n"
            "    module = import_module(HOME[name])\n"
            "    # all of its names: one may be the module's own, which the import has just bound\n"
            "    globals().update((n, getattr(module, n)) for n in HOME if HOME[n] == HOME[name])\n"
            "    return globals()[name]\n")


def import_on_demand():
    """Floors that this process has not imported import their modules on demand from here on."""
    for floor in course.floors():
        folder = ROOT / floor.name
        if floor.name in sys.modules or not folder.is_dir():
            continue
        contents = folder / "__init__.py"
        spec = importlib.util.spec_from_file_location(floor.name, contents,
                                                      submodule_search_locations=[str(folder)])
        module = importlib.util.module_from_spec(spec)      # `inspect` asks for its file
        exec(on_demand(contents.read_text("utf-8")), module.__dict__)
        sys.modules[floor.name] = module
