"""Twins that come for free: the reference of a Python exercise in another style, made by `ast`."""

import ast
import copy
import functools
import symtable

from lab import stub
from lab.author.gaps import GUESSES

DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
INSPECTS = {"locals", "vars", "eval", "exec", "dir"}    # functions that read the names of variables


def twins(lesson):
    """[{exercise, style, text}] of each Python exercise that is no guess: one, in all styles that
    its text allows."""
    rows = []
    for exercise in lesson.exercises:
        if exercise.language == "python" and not exercise.name.startswith(GUESSES):
            text = stub.extract(lesson.sources["python"], exercise.name, "python")
            styles, other = restyled(text)
            if styles:
                rows.append({"exercise": exercise.name, "style": styles, "text": other})
    return rows


def restyled(text):
    """(the styles by name, the text in all of them at once): ("", text) where none can be had."""
    styles = []
    for style, change in STYLES.items():
        if other := change(text):
            styles.append(style)
            text = other
    return ", ".join(styles), text


def renamed(text):
    """A function with other names for its local variables; None where it has none, or where
    something else than a variable may have one of the names."""
    tree, function = parsed(text)
    variables = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    words = {node.id for node in variables}
    names = {node.id for node in variables if isinstance(node.ctx, ast.Store)}
    names -= bound_otherwise(function) | global_names(symtable.symtable(text, "", "exec"))
    inner = any(isinstance(node, ast.ClassDef) for node in ast.walk(function))
    if inner or not names or words & (INSPECTS | {f"own_{name}" for name in names}):
        return None
    for node in variables:
        if node.id in names:
            node.id = f"own_{node.id}"
    return ast.unparse(tree)


def bound_otherwise(function):
    """Names that arguments, exceptions, patterns, imports and inner functions bind."""
    names = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Name | ast.Attribute | ast.keyword | ast.Constant):
            for _, value in ast.iter_fields(node):
                values = value if isinstance(value, list) else [value]
                names |= {part for part in values if isinstance(part, str)}
    return names


def global_names(table):
    """Names that a scope or one within it takes from the module."""
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    return own.union(*map(global_names, table.get_children()))


def extracted(text):
    """A function that returns what a helper returns; None for a kernel, a generator, and where the
    text rests on the class that it is in."""
    tree, function = parsed(text)
    words = {getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(function)}
    tied = any(word in ("super", "__class__") or word.startswith("__") and not word.endswith("__")
               for word in words)
    pauses = any(isinstance(node, ast.Yield | ast.YieldFrom | ast.Await)
                 for node in ast.walk(function))
    if tied or pauses or function.decorator_list or isinstance(function, ast.AsyncFunctionDef):
        return None
    helper = copy.deepcopy(function)
    helper.name = f"steps_of_{function.name}"
    helper.returns = None
    helper.args.defaults = []
    helper.args.kw_defaults = [None] * len(helper.args.kwonlyargs)
    for argument in ast.walk(helper.args):
        argument.annotation = None
    doc = function.body[:1] if ast.get_docstring(function) is not None else []
    function.body = [*doc, ast.Return(call_of(helper))]
    tree.body.insert(0, helper)
    return ast.unparse(ast.fix_missing_locations(tree))


TUPLES = """
def in_tuples(x):
    return tuple(map(in_tuples, x)) if type(x) in (list, tuple) else x
"""
NUMBERS = """
def in_numpy(x):
    import numpy
    if type(x) in (list, tuple):
        return type(x)(map(in_numpy, x))
    if type(x) is int and abs(x) < 2**63:
        return numpy.int64(x)
    return numpy.float64(x) if type(x) is float else x
"""


def converted(text, conversion):
    """A function that returns what `conversion`, a text of a function, makes of what it returned;
    None as with `extracted`, and where it returns nothing."""
    tree, function = parsed(text)
    if extracted(text) is None:
        return None
    convert, = ast.parse(conversion).body
    inner = {id(node) for part in ast.walk(function)
             if part is not function and isinstance(part, (*DEFINITION, ast.Lambda))
             for node in ast.walk(part)}
    answers = [node for node in ast.walk(function) if isinstance(node, ast.Return)
               and node.value is not None and id(node) not in inner]
    for node in answers:
        node.value = ast.Call(ast.Name(convert.name, ast.Load()), [node.value], [])
    tree.body.insert(0, convert)
    return ast.unparse(ast.fix_missing_locations(tree)) if answers else None


def call_of(function):
    """A call of a function with its own arguments."""
    own = function.args
    words = [a.arg for a in (*own.posonlyargs, *own.args)]
    words += [f"*{own.vararg.arg}"] if own.vararg else []
    words += [f"{a.arg}={a.arg}" for a in own.kwonlyargs]
    words += [f"**{own.kwarg.arg}"] if own.kwarg else []
    return ast.parse(f"{function.name}({', '.join(words)})", mode="eval").body


def parsed(text):
    """(the tree of an exercise's text, the function in it)."""
    tree = ast.parse(text)
    function = tree.body[-1]            # above it are the helpers of earlier styles
    while isinstance(function, ast.ClassDef):
        function = next(node for node in function.body if isinstance(node, DEFINITION))
    return tree, function


STYLES = {"locals renamed": renamed,
          "tuples for lists": functools.partial(converted, conversion=TUPLES),
          "NumPy's numbers": functools.partial(converted, conversion=NUMBERS),
          "a helper extracted": extracted}
