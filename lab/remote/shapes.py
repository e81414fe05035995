"""Hold code to its shape comments:  y = f(x)  # (B, T, C)

A claim is the comment after an assignment: sizes in brackets, `(C,)` for one size, `()` for none,
`...` for any number of them.
A second comment may follow.
A size is a whole number, a name, or an expression of these with + - * //. In one call of a function
a name stands for the size that it met first.
An assignment to several targets takes one claim for all that have a shape, or one for each:
`q, k = split(x)  # (T, H, D), (T, G, D)`.
Any other comment is no claim, nor is one after `out[i] = y`, which makes no array.
"""

import ast
import gc
import io
import operator
import tokenize
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
             ast.FloorDiv: operator.floordiv}


class ShapeError(AssertionError):
    """An array has another shape than the comment after its assignment says."""


class Claim(NamedTuple):
    where: str              # file:line
    targets: tuple          # "x", "self.w"
    shapes: tuple           # ("B", "2 * F"): one for each target, or one for all


@contextmanager
def checked(*paths):
    """While this is active, each claim in a function of the files at `paths` is an assertion.

    The files have been imported before; their functions run code with the assertions added.
    ShapeError names the line, the variable, its shape and the claim; it is raised at the end of the
    block if the code under test swallowed it.
    It is raised at once if a comment has another number of shapes than its statement has targets.
    """
    failures = []
    before = {}
    asserting = {Path(path).resolve(): _asserting(path) for path in paths}
    names = tuple(Path(path).name for path in paths)
    for function in gc.get_objects():       # whatever holds it: a class, a decorator, a closure
        if type(function) is not FunctionType:
            continue
        code = function.__code__
        if code.co_filename.endswith(names) and Path(code.co_filename).resolve() in asserting:
            claims, codes = asserting[Path(code.co_filename).resolve()]
            before[function] = code
            function.__code__ = codes.get(_place(code), code)
            function.__globals__["__sizes_of_a_call__"] = partial(_Call, claims, failures)
    try:
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code
            function.__globals__.pop("__sizes_of_a_call__", None)
        if failures:
            raise failures[0]


def _asserting(path):
    """(claims of a file, {place: code} of its functions with the claims as assertions)."""
    with tokenize.open(path) as file:
        text = file.read()
    assertions = _Assertions(path, text)
    tree = assertions.visit(ast.parse(text))
    codes = [compile(tree, str(path), "exec", dont_inherit=True)]
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return assertions.claims, {_place(code): code for code in codes if code.co_name != "<lambda>"}


def _place(code):
    return code.co_name, code.co_firstlineno


class _Assertions(ast.NodeTransformer):
    """Puts an assertion after each assignment that claims a shape."""

    def __init__(self, path, text):
        self.path, self.rows, self.claims = Path(path), text.split("\n"), []
        self.comments = {token.start[0]: token.string[1:]
                         for token in tokenize.generate_tokens(io.StringIO(text).readline)
                         if token.type == tokenize.COMMENT}

    def visit_FunctionDef(self, node):
        claimed = len(self.claims)
        self.generic_visit(node)
        if len(self.claims) > claimed:
            start = _statement("__sizes__ = __sizes_of_a_call__()", node)
            node.body.insert(ast.get_docstring(node) is not None, start)
        return node

    def visit_Assign(self, node):
        claim = self.claim(node)
        if claim is None:
            return node
        self.claims.append(claim)
        call = f"__sizes__.hold({len(self.claims) - 1}, {', '.join(claim.targets)})"
        return [node, _statement(call, node)]

    visit_AsyncFunctionDef = visit_FunctionDef
    visit_AnnAssign = visit_AugAssign = visit_Assign

    def claim(self, node):
        """What the comment after a statement claims, or None."""
        comment = self.comments.get(node.end_lineno, "")
        rest = self.rows[node.end_lineno - 1].encode()[node.end_col_offset:].decode()
        shapes = _shapes(comment.partition("#")[0])
        if shapes is None or node.value is None or rest.strip() != f"#{comment}".strip():
            return None                     # no shape, no array, or another statement between
        targets = [n for t in (node.targets if isinstance(node, ast.Assign) else [node.target])
                   for n in _flat(t)]
        paths = tuple(ast.unparse(target) for target in targets if _is_path(target))
        where = f"{self.path.name}:{node.end_lineno}"
        if len(shapes) > 1 and not len(shapes) == len(paths) == len(targets):
            raise ShapeError(
                f"{where}: {len(shapes)} shapes in the comment, {len(targets)} targets")
        return Claim(where, paths, shapes) if paths else None


def _statement(text, place):
    """A statement that tracebacks show at the place of another."""
    statement = ast.parse(text).body[0]
    for node in ast.walk(statement):
        ast.copy_location(node, place)
    return statement


def _flat(target):
    if isinstance(target, ast.Tuple | ast.List):
        return [n for each in target.elts for n in _flat(each)]
    return [target]


def _is_path(target):
    """True for a name, and for an attribute of one such as self.w."""
    return isinstance(target, ast.Name) or (
        isinstance(target, ast.Attribute) and _is_path(target.value))


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
    """A size as a number; None while a name in it has met no size, or where it divides by zero."""
    if isinstance(node, ast.BinOp):
        left = _value(node.left, sizes)
        right = _value(node.right, sizes)
        if left is None or right is None or (isinstance(node.op, ast.FloorDiv) and not right):
            return None
        return OPERATORS[type(node.op)](left, right)
    return node.value if isinstance(node, ast.Constant) else sizes.get(node.id)


class _Call:
    """One call of a function: the sizes it met."""

    def __init__(self, claims, failures):
        self.claims = claims
        self.failures = failures
        self.sizes = {}             # name -> size
        self.open = {}              # expression -> (size, message): a name in it met no size yet

    def hold(self, number, *values):
        """Check that the claim with this number holds for the values of its targets."""
        where, targets, shapes = self.claims[number]
        one_will_do = len(shapes) == 1 and any(hasattr(value, "shape") for value in values)
        if len(shapes) == 1:
            shapes *= len(values)
        for target, value, shape in zip(targets, values, shapes, strict=True):
            text = f"{where}: {target} is {_written(shape)} by its comment, but"
            if hasattr(value, "shape"):
                self.compare(tuple(value.shape), shape,
                             f"{text} its shape is {_written(value.shape)}")
            elif not one_will_do:
                self.fail(f"{text} it has no shape: it is a {type(value).__name__}")

    def compare(self, actual, shape, text):
        if "..." in shape and len(actual) >= len(shape) - 1:
            dots = shape.index("...")
            actual = actual[:dots] + actual[len(actual) - (len(shape) - dots - 1):]
            shape = shape[:dots] + shape[dots + 1:]
        if len(actual) != len(shape):
            self.fail(text)
        for dim, size in zip(shape, actual, strict=True):
            if dim.isidentifier():
                self.sizes.setdefault(dim, size)
            if self.open.setdefault(dim, (size, text))[0] != size:
                self.fail(f"{text}, and {dim} was {self.open[dim][0]} before")
        for dim, (size, message) in list(self.open.items()):
            value = _value(_tree(dim), self.sizes)
            if value is not None:
                del self.open[dim]
            if value not in (None, size):
                names = dict.fromkeys(n.id for n in ast.walk(_tree(dim)) if isinstance(n, ast.Name))
                self.fail(message + "".join(f", and {n} is {self.sizes[n]} here" for n in names))

    def fail(self, message):
        self.failures.append(ShapeError(message))
        raise self.failures[-1]


def _written(shape):
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
