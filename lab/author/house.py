"""The house in numbers: `python -m lab.author.house [REVISION …]`, a column for each revision.

It counts the course's own Python files, without tests.
A tuple assignment gives several names their values in one line, `a, b = 1, 2`.
Those in kernels and the simulator's instructions do not count:
there a line is a line of the manual.
"""

import ast
import io
import re
import subprocess
import sys
import tarfile
from graphlib import CycleError, TopologicalSorter

from lab import course
from lab.course import ROOT

PARTICIPLES = {"asked", "found", "given", "held", "kept", "made", "said", "seen"}
INSTRUCTIONS = "lab/simulator/instructions/"
MAX_BODY_LINES = 25             # of a function, without its docstring, blank lines and comments


def files_of(revision):
    """{path: text} of a revision's Python files and its README."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True)
    if archive.returncode:
        sys.exit(f"{revision!r} is not a revision of this repository")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        return {member.name: tar.extractfile(member).read().decode("utf-8") for member in tar
                if member.isfile() and (member.name.endswith(".py") or member.name == "README.md")}


def product(files):
    """{path: text} of the floors' Python files."""
    floors = {"lab", *(floor.name for floor in course.floors())}
    return {path: text for path, text in files.items()
            if path.endswith(".py") and path.partition("/")[0] in floors}


def tuple_assignments(tree):
    """The line of each `a, b = x, y` outside kernels."""
    kernels = {id(node) for function in ast.walk(tree) if isinstance(function, ast.FunctionDef)
               and any("jit" in ast.unparse(d) for d in function.decorator_list)
               for node in ast.walk(function)}
    return [node.lineno for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and id(node) not in kernels
            and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)]


def density(files):
    """Tuple assignments for each 1,000 lines, {floor or room of lab: number}."""
    counts = {}
    for path, text in files.items():
        if path.startswith(INSTRUCTIONS):
            continue
        parts = path.split("/")
        room = "/".join(parts[:2]) if parts[0] == "lab" and len(parts) > 2 else parts[0]
        count, lines = counts.get(room, (0, 0))
        counts[room] = (count + len(tuple_assignments(ast.parse(text))),
                        lines + len(text.splitlines()))
    return {room: 1000 * count / max(lines, 1) for room, (count, lines) in counts.items()}


def long_functions(text):
    """The names of the functions of a file whose bodies have more than MAX_BODY_LINES lines, as
    `Class.method`.
    What is defined within a function is part of its body."""
    rows = text.splitlines()
    names = []

    def look(scope, prefix):
        for node in ast.iter_child_nodes(scope):
            if isinstance(node, ast.ClassDef):
                look(node, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if body_lines(node, rows) > MAX_BODY_LINES:
                    names.append(prefix + node.name)
            else:
                look(node, prefix)

    look(ast.parse(text), "")
    return names


def body_lines(function, rows):
    """The lines of code of a function's body."""
    first = function.body[0]
    begin = first.end_lineno if ast.get_docstring(function) is not None else min(
        [first.lineno, *(d.lineno for d in getattr(first, "decorator_list", ()))]) - 1
    return sum(bool(row.strip()) and not row.lstrip().startswith("#")
               for row in rows[begin:function.end_lineno])


def variables(tree):
    """(line, name) of each variable and argument of a file, without the fields of classes."""
    fields = {id(node) for scope in ast.walk(tree) if isinstance(scope, ast.ClassDef)
              for statement in scope.body if isinstance(statement, ast.Assign | ast.AnnAssign)
              for node in ast.walk(statement)}
    for node in ast.walk(tree):
        stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        if stored and id(node) not in fields:
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def executed(tree):
    """The nodes of a file but for its imports `if TYPE_CHECKING`, which no run executes."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from ast.walk(node)


def in_a_circle(files):
    """The modules of one import cycle; empty if there is none."""
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): text
               for path, text in files.items() if not path.endswith("/__init__.py")}
    graph = {}
    for module, text in modules.items():
        names = set()
        for node in executed(ast.parse(text)):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        graph[module] = names & modules.keys() - {module}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return error.args[1]
    return []


def words(markdown):
    """The number of words on a page, without code, link addresses and the rules of tables."""
    prose = re.sub(r"```.*?```|<[^>]*>|\]\([^)]*\)", " ", markdown, flags=re.S)
    return len(re.findall(r"[^\s|]*\w[^\s|]*", prose))


def numbers(files):
    """{what: number} of a revision."""
    own = product(files)
    trees = {path: ast.parse(text) for path, text in own.items()}
    lengths = {path: len(text.splitlines()) for path, text in own.items()}
    counted = {path: text for path, text in own.items() if not path.startswith(INSTRUCTIONS)}
    pairs = sum(len(tuple_assignments(trees[path])) for path in counted)
    return {
        "files": len(own), "lines": sum(lengths.values()),
        "longest file, lines": max(lengths.values(), default=0),
        "files of more than 400 lines": sum(n > 400 for n in lengths.values()),
        "modules in a circle of imports": len(set(in_a_circle(own))),
        "tuple assignments for each 1,000 lines": round(
            1000 * pairs / max(sum(lengths[path] for path in counted), 1), 1),
        f"functions of more than {MAX_BODY_LINES} lines": sum(
            len(long_functions(text)) for text in own.values()),
        "variables named with a participle": sum(
            name in PARTICIPLES for tree in trees.values() for _, name in variables(tree)),
        "words of README.md": words(files.get("README.md", ""))}


def main(revisions):
    columns = [numbers(files_of(revision)) for revision in revisions]
    print(f"{'':40}" + "".join(f"{revision[:12]:>14}" for revision in revisions))
    for what in columns[0]:
        print(f"{what:40}" + "".join(f"{column[what]:>14,}" for column in columns))


if __name__ == "__main__":
    main(sys.argv[1:] or ["HEAD"])
