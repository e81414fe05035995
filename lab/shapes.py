"""Run code and hold it to its shape comments:  y = f(x)  # (B, T, C)

A claim is the comment behind an assignment: sizes in brackets, `(C,)` for one size, `()` for none,
`...` for any number of them. A second comment may follow. A size is a whole number, a name, or an
expression of these with + - * //. In one call of a function a name stands for the size that it met
first. An assignment to several targets takes one claim for all that have a shape, or one for each:
`q, k = split(x)  # (T, H, D), (T, G, D)`. Any other comment is no claim, nor is one behind
`out[i] = y`, which makes no array.
"""

import ast
import io
import opcode
import operator
import sys
import tokenize
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
             ast.FloorDiv: operator.floordiv}
# Instructions as Python 3.11 to 3.13 report them. At these a generator yields, and will go on:
YIELDS = {"YIELD_VALUE", "RESUME"}
# and at these what is iterated over or awaited runs out, in the midst of a statement.
RUNS_OUT = {"FOR_ITER", "END_FOR", "SEND", "END_SEND", "END_ASYNC_FOR"}
NOTHING = object()


class ShapeError(AssertionError):
    """An array has another shape than the comment behind its assignment says."""


@dataclass(frozen=True)
class Claim:
    where: str              # file:line
    first: int              # the statement's lines
    last: int
    inline: bool            # it stands behind other code, `if x: y = 1`, and may not be reached
    targets: tuple          # ("self", "w") for self.w
    shapes: tuple           # ("B", "2 * F"): one for each target, or one for all


@contextmanager
def checked(*paths):
    """While this is active, every claim in the files at `paths` is an assertion.

    It covers functions called in this thread. ShapeError names the line, the variable, its shape
    and the claim; it is raised at the end of the block if the code under test swallowed it.
    """
    checker = _Checker({str(Path(path).resolve()): claims(path) for path in paths})
    before = sys.gettrace()
    sys.settrace(checker.call)
    try:
        yield
    finally:
        sys.settrace(before)
        if checker.failed:
            raise checker.failed


def claims(path):
    """The claims of a file: {(function or class, its first line): {line: Claim}}; (None, 0) is
    the module itself.

    ShapeError: a comment has another number of shapes than its statement has targets.
    """
    with tokenize.open(path) as file:
        text = file.read()
    comments = {token.start[0]: token.string[1:]
                for token in tokenize.generate_tokens(io.StringIO(text).readline)
                if token.type == tokenize.COMMENT}
    rows, found = text.split("\n"), {}

    def walk(node, scope):
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                inner = (child.name, first)
            elif isinstance(child, ast.Assign | ast.AugAssign | ast.AnnAssign):
                comment = comments.get(child.end_lineno, "")
                behind = rows[child.end_lineno - 1].encode()[child.end_col_offset:].decode()
                alone = behind.strip() == f"#{comment}".strip()     # no other statement between
                if alone and (claim := _claim(child, comment, path, rows)):
                    found.setdefault(scope, {})[child.lineno] = claim
            walk(child, inner)

    walk(ast.parse(text, str(path)), (None, 0))
    return found


def _claim(node, comment, path, rows):
    shapes = _shapes(comment.partition("#")[0])
    targets = [n for t in (node.targets if isinstance(node, ast.Assign) else [node.target])
               for n in _flat(t)]
    paths = tuple(each for each in map(_path, targets) if each)
    if shapes is None or not paths or (isinstance(node, ast.AnnAssign) and node.value is None):
        return None
    where = f"{Path(path).name}:{node.end_lineno}"
    if len(shapes) > 1 and not len(shapes) == len(paths) == len(targets):
        raise ShapeError(f"{where}: {len(shapes)} shapes in the comment, {len(targets)} targets")
    inline = bool(rows[node.lineno - 1].encode()[:node.col_offset].strip())
    return Claim(where, node.lineno, node.end_lineno, inline, paths, shapes)


def _flat(target):
    if isinstance(target, ast.Tuple | ast.List):
        return [n for each in target.elts for n in _flat(each)]
    return [target]


def _path(target):
    """("self", "w") for self.w; None for what is no name and no attribute of one."""
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, ast.Attribute) and (owner := _path(target.value)):
        return (*owner, target.attr)
    return None


def _shapes(comment):
    """The shapes in a comment, as tuples of expressions; None if it holds anything else."""
    try:
        tree = ast.parse(comment.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(tree, ast.Tuple) or not comment.strip().endswith(")"):
        return None
    several = bool(tree.elts) and all(isinstance(each, ast.Tuple) for each in tree.elts)
    groups = [each.elts for each in (tree.elts if several else [tree])]
    shapes = tuple(tuple(ast.unparse(dim) for dim in group) for group in groups)
    sizes = [dim for group in groups for dim in group if ast.unparse(dim) != "..."]
    return shapes if all(map(_is_size, sizes)) and all(s.count("...") < 2 for s in shapes) else None


def _is_size(node):
    if isinstance(node, ast.BinOp):
        return type(node.op) in OPERATORS and _is_size(node.left) and _is_size(node.right)
    return isinstance(node, ast.Name) or type(getattr(node, "value", None)) is int


@cache
def _tree(size):
    return ast.parse(size, mode="eval").body


def _value(node, sizes):
    """A size as a number; None while a name in it has met none, or where it divides by zero."""
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, sizes), _value(node.right, sizes)
        if left is None or right is None or (isinstance(node.op, ast.FloorDiv) and not right):
            return None
        return OPERATORS[type(node.op)](left, right)
    return node.value if isinstance(node, ast.Constant) else sizes.get(node.id)


class _Checker:
    """The trace function, and the first thing that it found wrong."""

    def __init__(self, table):
        self.table, self.seen, self.failed = table, {}, None

    def call(self, frame, event, arg):
        """A function begins, or a generator goes on."""
        code = frame.f_code
        if code.co_filename not in self.seen:
            self.seen[code.co_filename] = self.table.get(str(Path(code.co_filename).resolve()), {})
        scope = (None, 0) if code.co_name == "<module>" else (code.co_name, code.co_firstlineno)
        found = self.seen[code.co_filename].get(scope)
        if not found:
            return None
        watch = getattr(frame.f_trace, "__self__", None)
        if not isinstance(watch, _Call) or watch.checker is not self:
            watch = _Call(self, found)
        return watch.event


class _Call:
    """One call of a function: the sizes it met, and the claim that is due when its line is done."""

    def __init__(self, checker, found):
        self.checker, self.found = checker, found
        self.sizes = {}             # name -> size
        self.open = {}              # expression -> (size, message): a name in it met no size yet
        self.due, self.start, self.before = None, 0, ()

    def event(self, frame, event, arg):
        claim = self.due
        if event == "exception":
            ended = issubclass(arg[0], StopIteration | StopAsyncIteration)
            if not (ended and _instruction(frame) in RUNS_OUT):
                self.due = None     # the assignment was not reached
        elif claim and (event == "line" or _instruction(frame) not in YIELDS):
            again = frame.f_lasti <= self.start
            left = event == "return" or not claim.first <= frame.f_lineno <= claim.last
            if left or again or claim.inline:
                self.settle(frame, claim)
            if left or again:
                self.due = None
        if event == "line" and self.due is None and frame.f_lineno in self.found:
            self.due, self.start = self.found[frame.f_lineno], frame.f_lasti
            self.before = [_look_up(frame, path) for path in self.due.targets]
        return self.event

    def settle(self, frame, claim):
        values = [_look_up(frame, path) for path in claim.targets]
        shapes = claim.shapes * (1 if len(claim.shapes) > 1 else len(values))
        shaped = [hasattr(value, "shape") for value in values]
        for path, value, old, shape in zip(claim.targets, values, self.before, shapes, strict=True):
            if claim.inline and value is old:
                continue            # its branch was not taken
            some = len(claim.shapes) == 1 and any(shaped)
            if hasattr(value, "shape"):
                self.compare(claim, path, tuple(value.shape), shape)
            elif not some:
                self.fail(f"{_said(claim, path, shape)}, but it has no shape: it is a "
                          f"{type(value).__name__}")
        self.before = values

    def compare(self, claim, path, actual, shape):
        said = f"{_said(claim, path, shape)}, but its shape is {_written(actual)}"
        if "..." in shape and len(actual) >= len(shape) - 1:
            dots = shape.index("...")
            actual = actual[:dots] + actual[len(actual) - (len(shape) - dots - 1):]
            shape = shape[:dots] + shape[dots + 1:]
        if len(actual) != len(shape):
            self.fail(said)
        for dim, size in zip(shape, actual, strict=True):
            if dim.isidentifier():
                self.sizes.setdefault(dim, size)
            if self.open.setdefault(dim, (size, said))[0] != size:
                self.fail(f"{said}, and {dim} was {self.open[dim][0]} before")
        for dim, (size, message) in list(self.open.items()):
            value = _value(_tree(dim), self.sizes)
            if value is not None:
                del self.open[dim]
            if value not in (None, size):
                names = dict.fromkeys(n.id for n in ast.walk(_tree(dim)) if isinstance(n, ast.Name))
                self.fail(message + "".join(f", and {n} is {self.sizes[n]} here" for n in names))

    def fail(self, message):
        error = ShapeError(message)
        self.checker.failed = self.checker.failed or error
        raise error


def _instruction(frame):
    return opcode.opname[frame.f_code.co_code[frame.f_lasti]]


def _look_up(frame, path):
    """The value of a target, or NOTHING."""
    places = (frame.f_locals, frame.f_globals)
    value = next((place[path[0]] for place in places if path[0] in place), NOTHING)
    for name in path[1:]:
        value = getattr(value, name, NOTHING)
    return value


def _written(shape):
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


def _said(claim, path, shape):
    return f"{claim.where}: {'.'.join(path)} is {_written(shape)} by its comment"
