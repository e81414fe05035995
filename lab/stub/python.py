"""Python by its own parser: the units of a module, a function's stub, the names a cell lacks."""

import ast
import builtins
import dis
import textwrap
from itertools import accumulate

from lab.stub.units import MARK, Unit, about

GAP = "\n\n\n"                              # two empty lines around a definition
STRING = (ast.Constant, ast.JoinedStr)
DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def read(text):
    """The units of a module.
    SyntaxError: it is not one, or nested deeper than can be read."""
    try:
        return _units(text)
    except (RecursionError, MemoryError):       # the parser's own stack, or ours
        raise SyntaxError("nested too deeply") from None


def _units(text):
    tree = ast.parse(text)
    rows = text.split("\n")
    starts = [0, *accumulate(len(row) + 1 for row in rows)]
    nodes = list(ast.walk(tree))
    strings = {n for node in nodes if isinstance(node, STRING)
               for n in range(node.lineno + 1, node.end_lineno + 1)}

    def units(body, owner=None):
        groups = []                         # statements that share a line are one unit
        for node in body:
            if groups and _first(node) <= groups[-1][-1].end_lineno:
                groups[-1].append(node)
            else:
                groups.append([node])
        return [unit(nodes, owner) for nodes in groups]

    def unit(nodes, owner):
        node = nodes[0]
        first = _first(nodes[0])
        last = nodes[-1].end_lineno
        pad = rows[first - 1][:node.col_offset]
        lead = first                        # the comment directly above it
        while rows[lead - 2].startswith(pad + "#") and lead - 1 not in strings:
            lead -= 1
        for n, row in enumerate(rows[last:], last + 1):
            if row.strip() and len(row) - len(row.lstrip()) <= node.col_offset:
                break
            if row.strip():                 # a comment indented like the body belongs to it
                last = n
        start = starts[first - 1]
        end = starts[last] - 1
        result = Unit(start, first, text[starts[lead - 1]:start], text[start:end],
                    tuple(sorted({name for each in nodes for name in _bound(each)})),
                    isinstance(node, DEFINITION) or _is_lambda(node),
                    lambda: _spelt(nodes, text[start:end]),
                    (starts[lead - 1], end), owner=owner, strings=strings)
        if isinstance(node, ast.ClassDef):
            result.head = (tuple(map(ast.unparse, node.decorator_list)), tuple(
                base for base in map(ast.unparse, [*node.bases, *node.keywords])
                if base != node.name))      # `class A(A):` is how notebooks add to a class
            body = node.body[0]
            if not rows[body.lineno - 1][:body.col_offset].strip():     # not `class A: pass`
                result.members = units(node.body, result)
                result.header = text[starts[node.lineno - 1]:result.members[0].lead].rstrip()
        return result

    result = units(tree.body)
    for node in nodes:                      # docstrings are no part of `normal`
        if isinstance(node, DEFINITION) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return result


def _spelt(nodes, text):
    """The code of statements in one layout; as it stands where it is nested too deeply for that."""
    try:
        return "\n".join(map(ast.unparse, nodes))
    except RecursionError:
        return text


def _first(node):
    """The line a statement begins on, its decorators included."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])


def _bound(node):
    """Names that a statement binds; those in its blocks too."""
    if isinstance(node, DEFINITION):
        return [node.name]
    if isinstance(node, ast.Import):
        return [a.asname or a.name for a in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.*" if a.name == "*" else a.asname or a.name for a in node.names]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [n.id for target in targets for n in ast.walk(target)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    if isinstance(node, ast.Expr):
        return ["__doc__"] if _is_docstring(node) else []
    blocks = (ast.stmt, ast.excepthandler, ast.match_case)
    return [name for child in ast.iter_child_nodes(node) if isinstance(child, blocks)
            for name in _bound(child)]


def _is_docstring(node):
    return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_lambda(node):
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)


def stub(unit, name):
    """The text of a function down to its mark, then an exception.
    ValueError: there is no mark."""
    above, below, _ = _parts(unit, name)
    count = sum(bool(row.strip()) and not row.lstrip().startswith("#") for row in below)
    note = about(count, name, unit.line + len(above) - 1)
    return rewritten(unit, name, f'raise NotImplementedError("{note}")')


def rewritten(unit, name, body):
    """The text of a function down to its mark, then `body`.
    ValueError: there is no mark."""
    above, _, pad = _parts(unit, name)
    return "\n".join([*above, textwrap.indent(body, pad)])


def _parts(unit, name):
    """(the lines of a function down to its mark, those below it, what indents them)."""
    rows = unit.text.split("\n")
    mark = next((k for k, row in enumerate(rows)
                 if MARK.match(row) and unit.line + k not in unit.strings), None)
    if mark is None:
        raise ValueError(f"line {unit.line}: {name} has no comment # exercise:")
    return rows[:mark + 1], rows[mark + 1:], rows[mark][:rows[mark].index("#")]


def free_names(cell):
    """Names that a cell uses and neither defines nor imports, builtins aside."""
    used = set()
    bound = set()

    def walk(code, outermost):      # the compiler has resolved every scope: what is left is global
        steps = list(dis.get_instructions(code))
        stored = {s.argval for s in steps if s.opname == "STORE_NAME"}
        loaded = {s.argval for s in steps
                  if s.opname in ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")}
        bound.update(s.argval for s in steps if s.opname == "STORE_GLOBAL")
        bound.update(stored if outermost else ())
        used.update(loaded - stored)
        for inner in code.co_consts:
            if hasattr(inner, "co_code"):
                walk(inner, False)

    walk(compile(cell, "<answer>", "exec", dont_inherit=True), True)
    return used - bound - set(dir(builtins)) - {"__file__", "__annotations__", "__module__"}
