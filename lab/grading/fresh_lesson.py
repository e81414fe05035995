"""The pieces of a part that go into a pristine lesson: its exercises and new names, never a name
that the lesson gives."""

import ast
import textwrap
from dataclasses import dataclass, field
from functools import cached_property

from lab import stub

BINDS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass)
TARGETS = (ast.Name, ast.Tuple, ast.List, ast.Starred, ast.expr_context)    # not `module.name =`
IMPORTS = (ast.Import, ast.ImportFrom)


class Given:
    """What a lesson's stub defines in one language."""

    def __init__(self, lesson, language):
        self.language = language
        self.units = stub.read(lesson.stubs[language], language)
        self.exercises = {e.name for e in lesson.exercises if e.language == language}
        self.names = set(stub.named(self.units)) - self.exercises
        self.texts = {unit.text for unit in self.units}

    @cached_property
    def normals(self):
        units = [*self.units, *(m for unit in self.units for m in unit.members)]
        return {unit.normal for unit in units} | {
            one for unit in units for one in imports(unit).values()}


@dataclass
class Kept:
    """A part's text, with empty lines in place of what does not count, and a record of that."""

    text: str
    changed: list = field(default_factory=list)     # names that the lesson gives, changed here
    stray: list = field(default_factory=list)       # (line, text) of statements that define nothing


def keep(part, stub_units, wanted, new=None):
    """The Kept of a part: the exercises `wanted`, and units under new names.

    new: the places of the units under new names to keep; None keeps all.
    """
    result = Kept(part.text)
    edits = []
    for unit in part.units():
        edits += edited(unit, "", stub_units, wanted, new, result)
    for start, end, text in sorted(edits, reverse=True):
        blank = "\n" * part.text.count("\n", start, end)
        result.text = result.text[:start] + text + blank[text.count("\n"):] + result.text[end:]
    return result


def edited(unit, prefix, stub_units, wanted, new, result):
    """The edits that a unit needs: (start, end, replacement)."""
    names = {prefix + name for name in unit.names}
    inner = {name for name in wanted if name.rpartition(".")[0] in names}
    if inner and unit.members:
        return amended(unit, stub_units, wanted, new, result)
    if names & wanted and names <= wanted:
        return []
    out = [(unit.lead, unit.end, "")]
    if unit.text in stub_units.texts or names & stub_units.exercises:
        return out
    if names & stub_units.names:
        return given_again(unit, names, stub_units, result, out, new)
    if not unit.names and stub_units.language == "cuda":     # an #include, a using, a declaration
        return out if unit.normal in stub_units.normals else []
    if not plain(unit, stub_units.language):
        result.stray.append((unit.line, unit.text.strip().split("\n")[0][:60]))
        return out
    return [] if new is None or unit.start in new or prefix else out


def amended(unit, stub_units, wanted, new, result):
    """A class with exercises: it gets the lesson's own header, and only new methods beside them."""
    name = unit.names[0]
    begin = unit.text.index(unit.header)
    start = unit.start + begin
    edits = [(unit.lead, start, ""), (start, start + len(unit.header), f"class {name}:")]
    theirs = next((u for u in stub_units.units if name in u.names), None)
    if theirs is not None and unit.head not in (((), ()), theirs.head):
        result.changed.append(f"the header of {name}")
    for member in unit.members:
        edits += edited(member, f"{name}.", stub_units, wanted, new, result)
    return edits


def given_again(unit, names, stub_units, result, out, new):
    """A name that the lesson gives stays the lesson's; new names in the same import come along."""
    ones = imports(unit)
    if ones:
        result.changed += [n for n, one in ones.items()
                         if n in stub_units.names and one not in stub_units.normals]
        added = [one for n, one in ones.items() if n not in stub_units.names]
        fresh = "; ".join(added) if new is None or unit.start in new else ""
        return [(unit.lead, unit.end, fresh)]
    if "__doc__" not in {name.rpartition(".")[2] for name in names} \
            and unit.normal not in stub_units.normals:
        result.changed += sorted(names & stub_units.names)
    return out


def imports(unit):
    """{name: an import of it alone} of a unit that imports and does nothing else."""
    if not unit.names or unit.defines or "import" not in unit.text:
        return {}
    nodes = parsed(unit)
    if not nodes or not all(isinstance(node, IMPORTS) for node in nodes):
        return {}
    lines = {}
    for node in nodes:
        for alias in node.names:
            one = (ast.Import([alias]) if isinstance(node, ast.Import) else
                   ast.ImportFrom(node.module, [alias], node.level))
            star = f"{node.module}.*" if alias.name == "*" else None
            lines[star or alias.asname or alias.name] = ast.unparse(one)
    return lines


def plain(unit, language):
    """True where a unit defines, imports or assigns, and does nothing else."""
    if language == "cuda":
        return True
    nodes = parsed(unit)
    return bool(nodes and unit.names) and all(map(binds, nodes))


def binds(node):
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        inner = (each for target in targets for each in ast.walk(target))
        return all(isinstance(each, TARGETS) for each in inner)
    if isinstance(node, ast.If):                        # `if has_cuda:` around an import
        return all(map(binds, [*node.body, *node.orelse]))
    if isinstance(node, ast.Try):
        return all(map(binds, [*node.body, *node.orelse, *node.finalbody,
                               *(n for h in node.handlers for n in h.body)]))
    return isinstance(node, BINDS)


def parsed(unit):
    """The statements of a Python unit; empty where they cannot stand alone."""
    try:
        return ast.parse(textwrap.dedent(unit.text)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
