"""What an exercise may call, written from the code itself: signatures, shapes, a line each.

In a lesson's text a cell with interface="floor.module.NAME, floor.module.CLASS.METHOD as m.METHOD,
floor.module.CLASS[FIELD FIELD]" becomes a block of Python to read, not to run.
`as` gives what a learner writes; the fields are those that count, all if there are no brackets.
A module may stand in a room of its floor: floor.room.module.NAME.
"""

import ast
import re

from lab.course import ROOT, CourseError

DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def text(names):
    """The block for a list of names, separated by commas."""
    parts = []
    for name in re.split(r",\s*", names.strip()):
        path, _, written = name.partition(" as ")
        parts.append(entry(path, written))
    return "```python\n" + "\n\n".join(parts) + "\n```"


def entry(path, written):
    """A definition without its body. path: floor.module.NAME or floor.module.CLASS.NAME"""
    path, _, fields = path.rstrip("]").partition("[")
    floor, *names = path.split(".")
    folder = ROOT / floor
    while names[1:] and (folder / names[0]).is_dir():
        folder /= names.pop(0)
    module, *names = names
    name = ".".join(names)
    file = folder / f"{module}.py"
    if not file.exists():
        raise CourseError(f"interface: {path}: there is no {file.relative_to(ROOT)}")
    source = file.read_text("utf-8")
    node = find(ast.parse(source), names) if names else None
    if node is None:
        raise CourseError(f"interface: {file.relative_to(ROOT)} does not define {name}")
    lines = source.splitlines()
    if isinstance(node, ast.ClassDef):
        return of_class(node, lines, written or name, fields.split())
    return of_function(node, lines, written or name)


def find(tree, names):
    for name in names:
        tree = next((n for n in tree.body if isinstance(n, DEFINITION) and n.name == name), None)
        if tree is None:
            return None
    return tree


def of_class(node, lines, written, fields):
    """What it is, and its fields with their comments."""
    rows = [f"class {written}:", f"    # {first_line(node)}" if first_line(node) else ""]
    known = {each.target.id: lines[each.lineno - 1:each.end_lineno] for each in node.body
             if isinstance(each, ast.AnnAssign)}
    if unknown := [field for field in fields if field not in known]:
        raise CourseError(f"interface: {node.name} has no field {', '.join(unknown)}")
    for field in fields or known:
        rows += known[field]
    return "\n".join(row for row in rows if row)


def of_function(node, lines, written):
    """`written(parameters)`, its shapes, and the first line of its docstring."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    defaults = [ast.unparse(value) for value in node.args.defaults]
    plain = len(names) - len(defaults)
    names = names[:plain] + [f"{name}={value}" for name, value in
                             zip(names[plain:], defaults, strict=True)]
    rest = node.args.vararg
    if rest or node.args.kwonlyargs:
        names.append(f"*{rest.arg}" if rest else "*")
        names += [each.arg if value is None else f"{each.arg}={ast.unparse(value)}" for each, value
                  in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
    if names and names[0] in ("self", "cls"):
        names = names[1:]
    heading = lines[node.lineno - 1:node.body[0].lineno - 1]
    comments = [row.partition("#")[2].strip() for row in heading
                if "#" in row and "# type:" not in row]
    shapes = f"    # {', '.join(comments)}" if comments else ""
    is_property = any(ast.unparse(each) == "property" for each in node.decorator_list)
    call = written if is_property else f"{written}({', '.join(names)})"
    summary = first_line(node)
    return f"{call}{shapes}" + (f"\n    # {summary}" if summary else "")


def first_line(node):
    return (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
