"""Cut a reference into stubs, take definitions out of a text, put a learner's answer into one.

A text, Python or CUDA C, is read as a list of units: one for each definition, import, constant or
stray statement at its top level. Everything here works on whole units and keeps the rest as it is.
"""

import ast
import builtins
import copy
import dis
import io
import re
import tokenize
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple

MARK = re.compile(r"\s*(?:#|//)\s*exercise:")


class Spliced(NamedTuple):
    text: str
    origin: list        # origin[i]: the answer's line that line i + 1 of the text is from, or None


def cut(source, names, language):
    """The stub of every exercise in `names`: kept down to its `exercise:` comment or docstring.

    KeyError: a name is not defined. ValueError: it is no function, or cannot be cut at its mark.
    """
    text = _newlines(source)
    for name in names:
        for k, _ in enumerate(_find(_read(text, language), name)):      # overloads too
            file = _read(text, language)
            start, end, stump = file.hollow(_find(file, name)[k], name)
            text = text[:start] + stump + text[end:]
    return text


def definitions(source, language):
    """Names of functions and classes, methods as "Class.method"; CUDA: structs and macros too."""
    named = _read(source, language).named()
    return [name for name, units in named.items() if any(u.defines for u in units)]


def extract(source, name, language):
    """The whole text of a definition, as `splice` takes it back.

    Decorators, `template` and `extern "C"` come along, the comment above does not; a method comes
    under the header of its class. KeyError: it is not there.
    """
    file = _read(source, language)
    units = _find(file, name)
    return "\n".join(file.headers(units[0]) + [file.text[u.start:u.end] for u in units])


def find_line(source, name, language):
    """The line on which a definition begins, its decorators included. KeyError: it is not there."""
    file = _read(source, language)
    return file.line(_find(file, name)[0].start)


def normalised(source, name, language):
    """A text that is equal where the code is, whatever its comments, docstrings and layout.

    None where the name is not defined.
    """
    file = _read(source, language)
    return "\n".join(file.normal(u) for u in file.named().get(name, ())) or None


def changed(text, base, language):
    """What `text` has otherwise than `base`, or in addition to it: an answer for `splice`."""
    file, old = _read(text, language), _read(base, language)
    return "".join(part + "\n\n" for part in _changed(file, file.units, old, old.units))


def splice(source, answer, language):
    """Put an answer, a notebook's cell or a file, into a module.

    What `source` defines too is replaced in place. All else goes above the definitions so replaced
    that it stood above in the answer, or below them all: the answer keeps its order, where the
    source has the same. If it replaces nothing it goes to the end; if it binds every name that
    `source` binds it is the whole module and taken as it is. A class that lacks some of the methods
    replaces only those that it has. Of two definitions of a name in Python the last counts.
    Splicing twice changes nothing. SyntaxError, or ValueError in CUDA: the answer cannot be read.
    """
    new = _read(answer, language, "<answer>")
    old = _read(source, language, "<source>")
    if _covers(new, new.units, old, old.units):
        return _numbered([(new.text[:-1], 1), ("\n", None)] if new.text else [])
    return _numbered(_merge(old, old.units, (0, len(old.text)), new, new.units, old.gap))


def free_names(cell, language):
    """Names that a cell uses and neither defines nor imports, builtins aside; CUDA: what it calls.

    SyntaxError, or ValueError in CUDA: it cannot be read.
    """
    return (_free_python if language == "python" else _free_cuda)(_newlines(cell))


# ---- units, and what is done with them in both languages


@dataclass(eq=False)
class Unit:
    start: int                      # offsets into the text: whole lines unless others share them
    end: int
    names: tuple = ()               # what it binds; nothing for a stray statement
    defines: bool = False
    role: str = ""                  # tells definitions of one name apart
    members: list = field(default_factory=list)     # Python: a class's own units
    owner: "Unit" = None            # Python: the class it is a member of
    nodes: list = field(default_factory=list)       # Python: its statements
    scope: tuple = ()               # CUDA: the blocks that it stands in, outermost first
    tokens: range = range(0)        # CUDA: its tokens, as indices
    braces: tuple = None            # CUDA: where its parameters begin, its body begins and ends


@dataclass(frozen=True)
class Block:
    """A namespace, `extern "C" {` or `#if` that is entered; two are equal if they read the same."""

    opener: str
    closer: str
    token: "Token" = field(compare=False)


class _File:
    """A text and its lines, numbered from 1. What the languages do not share is in the subclasses.

    comments: the lines that hold nothing else   inner: those of them at the end of a definition
    """

    def __init__(self, text):
        self.text, self.rows = text, text.split("\n")
        self.starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self.comments, self.inner = set(), set()

    def line(self, offset):
        return bisect_right(self.starts, offset)

    def row(self, number):
        return self.rows[number - 1]

    def indent(self, offset):
        """The white space before the line at an offset."""
        return re.match(r"[ \t\f]*", self.row(self.line(offset)))[0]

    def marks(self, first, last):
        return [n for n in range(first, last + 1) if n in self.comments and MARK.match(self.row(n))]

    def with_comment(self, unit):
        """Where the comment directly above a unit begins, or the unit."""
        number = self.line(unit.start)
        if self.starts[number - 1] != unit.start:
            return unit.start
        while number - 1 in self.comments - self.inner:
            number -= 1
        return self.starts[number - 1]

    def moved(self, unit, start, pad):
        """The text of a unit from an offset on, at another indentation."""
        return self.text[start:unit.end]

    def headers(self, unit):
        """Those of the classes that a unit is in, outermost first."""
        return []

    def same_header(self, unit, old_file, old):
        """True where both are classes that can be compared member by member."""
        return False

    def amends(self, new, old):
        """True where a class holds methods for another, and is not the whole of it."""
        return False

    def named(self):
        """name -> its units: several for overloads, or for a property and its setter."""
        found = {}

        def walk(units, prefix):
            for unit in units:
                for name in unit.names:
                    found.setdefault(prefix + name, []).append(unit)
                walk(unit.members, f"{prefix}{''.join(unit.names[:1])}.")
        walk(self.units, "")
        return found


def _newlines(text):
    """One kind of newline, also at the end, and no byte order mark."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return text if not text or text.endswith("\n") else text + "\n"


def _read(text, language, label="<source>"):
    return {"python": _Python, "cuda": _Cuda}[language](_newlines(text), label)


def _find(file, name):
    named = file.named()
    if name not in named:
        there = [other for other, units in named.items() if units[0].defines]
        raise KeyError(f"no {name} here, only {', '.join(there) or 'text without definitions'}")
    return named[name]


def _covers(new_file, new, old_file, old):
    """True where `new` has all that `old` cannot do without."""
    return ({n for u in old for n in u.names or old_file.needed(u)}
            <= {n for u in new for n in u.names or new_file.needed(u)})


def _match(old_file, old, new_file, new):
    """What each of `new` replaces, as an index in `old` or None; and what is obsolete for it."""
    defined = [n for u in old if u.defines for n in u.names]

    def key(file, unit):
        role = unit.role if any(defined.count(n) > 1 for n in unit.names) else ""
        return (*sorted(unit.names), role) if unit.names else (file.normal(unit), *unit.scope)

    slots, taken, homes = {}, {}, []
    for k, unit in enumerate(old):
        slots.setdefault(key(old_file, unit), []).append(k)
    for unit in new:
        this = key(new_file, unit)
        if slots.get(this):
            taken[this] = slots[this].pop(0)
            homes.append(taken[this])
        else:                       # defined twice in the answer: both have one place
            homes.append(taken.get(this) if unit.defines else None)
    return homes, {k for this in taken for k in slots[this] if old[k].names}


def _plan(old_file, old, end, new_file, new):
    """Where everything goes: instead of a unit of `old`, nowhere, or to an (offset, its scope)."""
    homes, dropped = _match(old_file, old, new_file, new)
    anchors = [(k, h) for k, h in enumerate(homes) if h is not None and old[h].defines]
    last = max((k for k, h in enumerate(homes) if new[k].defines and h is None), default=-1)
    instead, added = {}, {}
    for k, (unit, home) in enumerate(zip(new, homes, strict=True)):
        below = max((h + 1 for _, h in anchors), default=len(old))
        spot = min((h for a, h in anchors if a >= k), default=below)
        reach = next((j for j in range(spot, len(old)) if k < last or old[j].defines), len(old))
        if home is not None and (old[home].defines or home < reach):
            instead.setdefault(home, []).append(unit)
            continue
        if home is not None and unit.names:     # it stands too low to be of use here: moved up
            dropped.add(home)
        added.setdefault(new_file.place(unit, old_file, old, spot, end), []).append(unit)
    return instead, added, dropped


def _merge(old_file, old, span, new_file, new, gap):
    """The text of `old_file` in `span` with `new` put in: (text, its first line in the answer)."""
    instead, added, dropped = _plan(old_file, old, span[1], new_file, new)
    pad = old_file.indent(old[0].start) if old else ""
    pieces, cursor = [], span[0]
    for k, unit in enumerate(old):
        for offset, scope in sorted((o for o in added if o[0] <= unit.start), key=lambda o: o[0]):
            units = added.pop((offset, scope))
            pieces.append((old_file.text[cursor:offset], None))
            pieces += _row(new_file, units, scope, gap, pad)
            pieces.append((gap if unit.defines or units[-1].defines else "\n", None))
            cursor = offset
        pieces.append((old_file.text[cursor:unit.start], None))
        cursor = unit.end
        if k in instead:
            pieces += _replaced(old_file, unit, new_file, instead[k], pad)
        elif k in dropped:
            cursor += old_file.text[cursor:cursor + 1] == "\n"
        else:
            pieces.append((old_file.text[unit.start:unit.end], None))
    pieces.append((old_file.text[cursor:span[1]], None))
    for units in added.values():                    # below all else
        ended = old_file.text[:span[1]].endswith("\n")
        pieces.append((gap[ended:] if old else "", None))
        pieces += _row(new_file, units, (), gap, pad)
        pieces.append(("\n" * (ended or not old), None))
    return pieces


def _row(file, units, scope, gap, pad):
    """Units one below another, each with the comment above it and in its own scope."""
    pieces = []
    for before, unit in zip([None, *units], units, strict=False):
        if before:
            pieces.append((gap if before.defines or unit.defines else "\n", None))
        start, inside = file.with_comment(unit), unit.scope[len(scope):]
        pieces += [(block.opener + "\n", None) for block in inside]
        pieces.append((file.moved(unit, start, pad), file.line(start)))
        pieces += [("\n" + block.closer, None) for block in reversed(inside)]
    return pieces


def _replaced(old_file, old, new_file, units, pad):
    """What stands in place of a unit; where it is a class to be amended, all of it."""
    amending = [unit for unit in units if new_file.amends(unit, old)]
    if amending and amending[-1] is units[-1]:
        members = {m.names + (m.role,) if m.names else new_file.normal(m): m
                   for unit in amending for m in unit.members}      # the last of each counts
        return _merge(old_file, old.members, (old.start, old.end), new_file,
                      list(members.values()), "\n\n")
    pieces = []
    for unit in units[-1:] if new_file.redefines else units:
        pieces += [("\n", None)] * bool(pieces)
        pieces.append((new_file.moved(unit, unit.start, pad), new_file.line(unit.start)))
    return pieces


def _changed(file, units, old_file, old):
    for unit, home in zip(units, _match(old_file, old, file, units)[0], strict=True):
        if home is None:
            row = _row(file, [unit], (), "", file.indent(unit.start))
            yield "".join(text for text, _ in row)
        elif file.normal(unit) == old_file.normal(old[home]):
            continue
        elif file.same_header(unit, old_file, old[home]):
            yield "\n".join([file.header(unit), *_changed(file, unit.members, old_file,
                                                          old[home].members)])
        else:
            yield file.text[unit.start:unit.end]


def _numbered(pieces):
    lines, origin = [""], [None]
    for text, first in pieces:
        for k, part in enumerate(text.split("\n")):
            if k:
                lines.append("")
                origin.append(None)
            lines[-1] += part
            if first is not None:
                origin[-1] = first + k
    return Spliced("\n".join(lines), origin[:-1])       # the last line is empty: texts end with one


# ---- Python

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITION = (*FUNCTION, ast.ClassDef)
COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class _Python(_File):
    gap = "\n\n\n"
    redefines = True                        # the last of two definitions counts

    def __init__(self, text, label):
        super().__init__(text)
        self.tree = ast.parse(text, label)
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        self.comments = {t.start[0] for t in tokens if t.type == tokenize.COMMENT
                         and not self.row(t.start[0])[:t.start[1]].strip()}
        self.units = self._units(self.tree.body, None)

    def _units(self, body, owner):
        spans = []                          # [first line, last line, nodes that share them]
        for node in body:
            first = self._first(node)
            if spans and first <= spans[-1][1]:
                spans[-1][1] = node.end_lineno
                spans[-1][2].append(node)
            else:
                spans.append([first, node.end_lineno, [node]])
        return [self._unit(*span, owner) for span in spans]

    def _unit(self, first, last, nodes, owner):
        node = nodes[0]
        for number in range(last + 1, len(self.starts)):
            pad = self.indent(self.starts[number - 1])
            if number in self.comments and len(pad) > node.col_offset:
                self.inner.add(number)      # a comment indented like the body belongs to it
                last = number
            elif self.row(number).strip():
                break
        names = dict.fromkeys(n for each in nodes for n in _bound(each))
        unit = Unit(self.starts[first - 1], self.starts[last] - 1, tuple(names),
                    isinstance(node, DEFINITION) or _is_lambda(node), _role(node), nodes=nodes,
                    owner=owner)
        if isinstance(node, ast.ClassDef) and self._own_line(node.body[0]):
            unit.members = self._units(node.body, unit)
        return unit

    def _first(self, node):
        """The line a statement begins on, its decorators included."""
        lines = [d.lineno for d in getattr(node, "decorator_list", ())]
        first = min([node.lineno, *lines])
        while lines and not self.row(first).lstrip().startswith("@"):
            first -= 1                      # the @ stands above its expression where that is in ( )
        return first

    def _own_line(self, node):
        first = self._first(node)
        return first < node.lineno or not self.row(first).encode()[:node.col_offset].strip()

    def needed(self, unit):
        return ["__doc__"] if _is_docstring(unit.nodes[0]) else []  # `if __name__ …` may go

    def normal(self, unit):
        return "\n".join(ast.unparse(_bare(node)) for node in unit.nodes)

    def header(self, unit):
        node = unit.nodes[0]
        bare = ast.ClassDef(**{name: getattr(node, name) for name in node._fields}
                            | {"body": [ast.Pass()], "decorator_list": []})
        return self.indent(unit.start) + ast.unparse(bare).removesuffix("\n    pass")

    def headers(self, unit):
        return [*self.headers(unit.owner), self.header(unit.owner)] if unit.owner else []

    def same_header(self, unit, old_file, old):
        return bool(unit.members and old.members) and _heads(unit) == _heads(old)

    def amends(self, new, old):
        if not old.members or not any(m.defines for m in new.members):
            return False
        (bases, decorators), (old_bases, old_decorators) = _heads(new), _heads(old)
        same = (bases, decorators) == (old_bases, old_decorators)
        return not (same and _covers(self, new.members, self, old.members)) and (
            bases in ([], list(old.names), old_bases) and decorators in ([], old_decorators))

    def place(self, unit, old_file, old, spot, end):
        """Where a unit goes that should stand above old[spot]; `from __future__` leads all."""
        if any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in unit.nodes):
            spot = int(bool(old) and _is_docstring(old[0].nodes[0]))
        return old_file.with_comment(old[spot]) if spot < len(old) else end, ()

    def moved(self, unit, start, pad):
        own = self.indent(unit.start)
        if own == pad:
            return self.text[start:unit.end]
        inside = {n for node in ast.walk(self.tree)
                  if isinstance(node, ast.JoinedStr | ast.Constant)
                  for n in range(node.lineno + 1, node.end_lineno + 1)}     # strings stay
        rows = enumerate(self.text[start:unit.end].split("\n"), self.line(start))
        return "\n".join(pad + row.removeprefix(own) if row.strip() and row.startswith(own)
                         and number not in inside else row for number, row in rows)

    def hollow(self, unit, name):
        """(start, end, text): what a stub has there instead."""
        node = unit.nodes[0]
        if len(unit.nodes) > 1 or not isinstance(node, FUNCTION):
            raise ValueError(f"line {self.line(unit.start)}: {name} is no function to be cut")
        tail, first = "", node.body[0]
        if marks := self.marks(node.lineno, self.line(unit.end)):
            keep = self.starts[marks[0]] - 1
            pad = self.indent(keep)
            tail = "".join(self._ended(each, marks[0]) for each in sorted(
                (n for n in ast.walk(node) if isinstance(n, ast.Try | ast.TryStar)),
                key=lambda n: -n.col_offset))
        elif not self._own_line(first):                         # def f(x): return x
            keep = self._offset(first.lineno, first.col_offset)
            pad = self.indent(unit.start) + "    "
        else:
            keep = self.starts[self._first(first) - 1]
            pad = self.indent(keep)
            if _is_docstring(first):
                keep = self._offset(first.end_lineno, first.end_col_offset)
            while self.line(keep - 1) in self.comments:         # between signature and body
                keep = self.starts[self.line(keep - 1) - 1]
        keep = len(self.text[:keep].rstrip())
        rows = self.text[keep:unit.end].split("\n")
        if "".join(rows).lstrip().startswith(f'raise NotImplementedError("{name}: about '):
            return unit.end, unit.end, ""                       # a stub already
        row = self.line(keep)
        count = sum(bool(text.strip()) and n not in self.comments
                    for n, text in enumerate(rows, row))
        stump = f'\n{pad}raise NotImplementedError("{name}: {_about(count, name, row)}")' + tail
        try:
            ast.parse(self.text[:keep] + stump + self.text[unit.end:])
        except SyntaxError as error:
            raise ValueError(f"line {row}: {name} cannot be cut here, no statement can follow "
                             f"({error.msg})") from error
        return keep, unit.end, stump

    def _offset(self, number, column):
        """The offset of a line and its column in UTF-8 bytes, as `ast` has it."""
        return self.starts[number - 1] + len(self.row(number).encode()[:column].decode())

    def _ended(self, node, row):
        """What a `try` needs where its handlers come below the row that a stub ends on."""
        pad = self.indent(self.starts[node.lineno - 1])
        cut_off = node.lineno < row <= node.end_lineno and not any(
            re.match(pad + r"(except|finally)\b", self.row(n)) for n in range(node.lineno, row))
        return f"\n{pad}finally:\n{pad}    pass" if cut_off else ""


def _about(count, name, row):
    if not count:
        raise ValueError(f"line {row}: nothing of {name} is left to be written below")
    return f"about {count} line{'s' * (count > 1)}"


def _bound(node):
    """Names that a statement binds; none where it uses them too, as `x = x + 1` does."""
    if isinstance(node, DEFINITION):
        return [node.name]
    if isinstance(node, ast.Import):
        return [a.asname or a.name for a in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.*" if a.name == "*" else a.asname or a.name for a in node.names]
    stored, used = [], set()
    for child in _within(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            stored.append(child.id)
        elif isinstance(child, ast.Name):
            used.add(child.id)
        elif isinstance(child, COMPREHENSION):
            used |= {n.id for n in ast.walk(child) if isinstance(n, ast.Name)}
        elif isinstance(child, (*DEFINITION, ast.Import, ast.ImportFrom)):
            stored += _bound(child)
    return [] if isinstance(node, ast.AugAssign) or used & set(stored) else stored


def _within(node):
    """The nodes of a statement that belong to its own scope."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.Lambda, *COMPREHENSION, *DEFINITION)):
            yield from _within(child)


def _heads(unit):
    """The bases and the decorators of a class."""
    node = unit.nodes[0]
    return ([ast.unparse(each) for each in [*node.bases, *node.keywords]],
            [ast.unparse(each) for each in node.decorator_list])


def _is_docstring(node):
    return (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str))


def _is_lambda(node):
    return (isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)
            and isinstance(node.targets[0], ast.Name))


def _role(node):
    """What "@x.setter" makes of a second x."""
    return " ".join(d.attr for d in getattr(node, "decorator_list", ())
                    if isinstance(d, ast.Attribute) and isinstance(d.value, ast.Name)
                    and d.value.id == node.name)


def _bare(node):
    """A statement without the docstrings in it."""
    node = copy.deepcopy(node)
    for each in ast.walk(node):
        if isinstance(each, DEFINITION) and ast.get_docstring(each, clean=False) is not None:
            each.body = each.body[1:] or [ast.Pass()]
    return node


def _free_python(cell):
    # The compiler has resolved every scope: what is left global is looked up by name.
    used, bound = set(), set()

    def walk(code, outermost):
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


# ---- CUDA C

TOKEN = re.compile(r"""
      (?P<comment> //(?:\\\n|[^\n])* | /\*.*?\*/ )
    | (?P<directive> ^[^\S\n]*\#(?: \\\n | //(?:\\\n|[^\n])* | /\*.*?\*/
                                  | "(?:\\.|[^"\\\n])*" | [^\n] )*)
    | (?P<space> [^\S\n]+ | \n | \\\n )
    | (?P<string> (?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)"
                | (?:u8|[uUL])?"(?:\\.|[^"\\\n])*" | (?:u8|[uUL])?'(?:\\.|[^'\\\n])*' )
    | (?P<word> \.?\d(?:[eEpP][+-]|'?[\w.])* | [^\W\d][\w$]* )
    | (?P<unended> ["'] | /\* )
    | (?P<sign> <<<|>>>|<<=|>>=|->\*|\.\.\.|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||\#\#
              | [-+*/%&|^]= | . )
    """, re.VERBOSE | re.MULTILINE | re.DOTALL)
CLOSER = {"(": ")", "[": "]", "{": "}"}
RECORD = {"struct", "class", "union", "enum"}
ATTRIBUTE = {"__launch_bounds__", "__align__", "__attribute__", "__declspec", "alignas"}
AFTER_PARAMETERS = {"{", "->", ":", "const", "noexcept", "requires", "try", "__attribute__"}
STATEMENT = {"return", "else", "do", "case", "throw", "new", "delete", "goto", "and", "or", "not"}
NO_CALL = STATEMENT | {
    "if", "for", "while", "switch", "catch", "sizeof", "alignof", "decltype", "noexcept",
    "requires", "static_assert", "asm", "volatile", "defined", "operator", "const_cast",
    "static_cast", "reinterpret_cast", "void", "bool", "char", "short", "int", "long", "float",
    "double", "signed", "unsigned", "auto", *ATTRIBUTE}


class Token(NamedTuple):
    kind: str           # comment, directive, string, word or sign
    text: str
    start: int
    end: int


def _tokens(text):
    return [Token(m.lastgroup if m.lastgroup != "fence" else "string", m[0], m.start(), m.end())
            for m in TOKEN.finditer(text) if m.lastgroup != "space"]


def _words(tokens):
    """Token texts without comments, those within preprocessor lines included."""
    for t in tokens:
        if t.kind == "directive":
            yield from ["#", *_words(_tokens(t.text.lstrip()[1:])), "\n"]
        elif t.kind != "comment":
            yield t.text


def _directive(token):
    return re.match(r"\s*#\s*(\w*)", token.text)[1] if token.kind == "directive" else ""


class _Cuda(_File):
    gap = "\n\n"
    redefines = False                           # two are an error, which the compiler shall report

    def __init__(self, text, label):
        super().__init__(text)
        self.tokens = []
        for token in _tokens(text):
            if token.kind == "unended":
                what = {"'": "character", '"': "string"}.get(token.text, "comment")
                self._fail(token, f"this {what} never ends")
            if token.kind != "comment":
                self.tokens.append(token)
                continue
            first, last = self.line(token.start), self.line(token.end)
            if not (self.text[self.starts[first - 1]:token.start] + self._rest(token.end)).strip():
                self.comments.update(range(first, last + 1))
        self.units = self._units()

    def _fail(self, token, what):
        raise ValueError(f"line {self.line(token.start)}: {what}")

    def _rest(self, offset):
        """The rest of the line at an offset."""
        number = self.line(offset)
        return self.row(number)[offset - self.starts[number - 1]:]

    def _units(self):
        """Read the declarations outside of all functions; namespaces and the like are entered."""
        units, blocks, conditions = [], [], []
        head = k = 0                            # a declaration's first token, and the one looked at
        while k < len(self.tokens):
            token, word = self.tokens[k], _directive(self.tokens[k])
            scope = tuple(sorted(conditions + blocks, key=lambda block: block.token.start))
            if k == head and word in ("if", "ifdef", "ifndef"):
                conditions.append(Block(token.text, "#endif", token))
                head = k + 1
            elif k == head and word in ("elif", "else", "elifdef", "elifndef", "endif"):
                if not conditions:
                    self._fail(token, f"this #{word} has no #if")
                block = conditions.pop()
                if word != "endif":
                    conditions.append(replace(block, opener=f"{block.opener}\n{token.text}"))
                head = k + 1
            elif k == head and token.kind == "directive":
                units.append(self._macro(k, word, scope))
                head = k + 1
            elif token.text in ("(", "["):
                k = self._close(k)
            elif token.text == "{" and self._enters(head, k):
                first = self.tokens[head]
                blocks.append(Block(self.text[first.start:token.end], "}", first))
                head = k + 1
            elif token.text == "{":
                opening, k = k, self._close(k)
                if found := self._function(head, opening):
                    units.append(self._unit(head, k, scope, found, True, (opening, k)))
                    head = k + 1
            elif token.text == "}":
                if not blocks:
                    self._fail(token, "this } closes nothing")
                if k > head:
                    units.append(self._unit(head, k - 1, scope))
                blocks.pop()
                head = k + 1
            elif token.text == ";":
                if k > head:
                    units.append(self._declaration(head, k, scope))
                head = k + 1
            k += 1
        for block in blocks + conditions:
            self._fail(block.token, f"this {block.opener.splitlines()[0]} is never closed")
        if head < len(self.tokens):             # no semicolon: for the compiler to complain about
            units.append(self._unit(head, len(self.tokens) - 1, ()))
        return units

    def _close(self, k):
        """The index of the bracket that closes the one at k."""
        opener, depth = self.tokens[k].text, 0
        for j in range(k, len(self.tokens)):
            depth += (self.tokens[j].text == opener) - (self.tokens[j].text == CLOSER[opener])
            if not depth:
                return j
        self._fail(self.tokens[k], f"this {opener} is never closed")

    def _angle(self, k):
        """The index of the > that closes the < at k, or of the last token."""
        depth = 0
        while k < len(self.tokens) - 1:
            text = self.tokens[k].text
            if text == "(":
                k = self._close(k)
            elif text in ("<", ">", ">>", ">>>"):
                depth += 1 if text == "<" else -len(text)
                if depth <= 0:
                    return k
            k += 1
        return k

    def _top(self, head, stop):
        """Indices of a declaration's tokens outside of `template<…>` and brackets."""
        k = head
        while k < stop:
            text = self.tokens[k].text
            if text == "template" and self.tokens[k + 1].text == "<":
                k = self._angle(k + 1)
            else:
                yield k
                if text in CLOSER:
                    k = self._close(k)
            k += 1

    def _enters(self, head, k):
        texts = [t.text for t in self.tokens[head:k]]
        return texts == ["extern", '"C"'] or (
            texts[:1] == ["namespace"] or texts[:2] == ["inline", "namespace"])

    def _function(self, head, opening):
        """(name, index of its parameters' bracket) where a head is a function's."""
        for k in self._top(head, opening):
            if (self.tokens[k].text == "(" and (name := self._name(head, k))
                    and self.tokens[self._close(k) + 1].text in AFTER_PARAMETERS):
                return name, k
        return None

    def _name(self, head, k):
        """The name directly before token k."""
        texts = [t.text for t in self.tokens[head:k]]
        if "operator" in texts:
            return "".join(texts[texts.index("operator"):])
        if texts and texts[-1] in (">", ">>"):              # f<float>
            depth = 0
            while texts:
                text = texts.pop()
                depth += text.count(">") - text.count("<")
                if not depth:
                    break
        word = texts[-1] if texts else ""
        return word if re.match(r"[^\W\d]", word) and word not in ATTRIBUTE else None

    def _declaration(self, head, k, scope):
        """A declaration that ends in a semicolon."""
        top = [j for j in self._top(head, k) if self.tokens[j].kind != "directive"]
        texts = [self.tokens[j].text for j in top]
        brace = texts.index("{") if "{" in texts else None
        if brace is not None and RECORD & set(texts[:brace]) and "=" not in texts[:brace]:
            stop = next(n for n, text in enumerate(texts) if text in ("{", ":"))
            name = None if texts[0] == "typedef" else self._name(head, top[stop])
            name = self._name(head, k) if name in (None, *RECORD) else name
            return self._unit(head, k, scope, (name, None) if name else None, True)
        stop = next((n for n, text in enumerate(texts) if text in ("=", "[", "{") or (
            text == "(" and texts[n - 1] not in ATTRIBUTE)), None)
        stray = (texts[:2] == ["using", "namespace"] or (len(texts) > 1 and texts[-2] in RECORD)
                 or (stop is not None and texts[stop] == "("))
        name = None if stray else self._name(head, k if stop is None else top[stop])
        return self._unit(head, k, scope, (name, None) if name else None)

    def _macro(self, k, word, scope):
        name = re.match(r"\s*#\s*define\s+(\w+)", self.tokens[k].text)
        return self._unit(k, k, scope, (name[1], None) if name else None, bool(name))

    def _unit(self, head, last, scope, named=None, defines=False, braces=None):
        start, end = self.tokens[head].start, self.tokens[last].end
        begin = self.starts[self.line(start) - 1]
        if not self.text[begin:start].strip():
            start = begin
        rest = self._rest(end)
        if re.fullmatch(r"\s*(//.*|/\*((?!\*/).)*\*/)?\s*", rest):
            end += len(rest)                    # a comment behind it belongs to it
        name, parameters = named or (None, None)
        role = [self._types(parameters), *(b.opener for b in scope if b.closer == "#endif")]
        return Unit(start, end, (name,) if name else (), defines, "\n".join(role), scope=scope,
                    tokens=range(head, last + 1), braces=braces and (parameters, *braces))

    def _types(self, opening):
        """The types of parameters, which tell overloads apart."""
        if opening is None:
            return ""
        types = [[]]
        for k in self._top(opening + 1, self._close(opening)):
            text = self.tokens[k].text
            if text == ",":
                types.append([])
            elif "=" not in types[-1]:
                types[-1].append(text)
        for each in types:
            del each[each.index("=") if "=" in each else len(each):]
            if len(each) > 1 and re.match(r"[^\W\d]", each[-1]):
                each.pop()
        return ",".join(" ".join(each) for each in types)

    def needed(self, unit):
        return [self.normal(unit)]              # #include, using namespace, an instantiation

    def normal(self, unit):
        return " ".join(_words(self.tokens[k] for k in unit.tokens))

    def place(self, unit, old_file, old, spot, end):
        """Where a unit goes that should stand above old[spot]: outside of blocks it was not in."""
        if spot == len(old):
            return end, ()
        scope = old[spot].scope
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1],
                                          zip(scope, unit.scope, strict=False)))
        if shared == len(scope):
            return old_file.with_comment(old[spot]), scope
        opener = scope[shared].token.start
        begin = old_file.starts[old_file.line(opener) - 1]
        return begin if not old_file.text[begin:opener].strip() else opener, scope[:shared]

    def hollow(self, unit, name):
        """(start, end, text): what a stub has there instead."""
        if not unit.braces:
            raise ValueError(f"line {self.line(unit.start)}: {name} is no function to be cut")
        parameters, opening, closing = unit.braces
        marks = self.marks(*(self.line(self.tokens[k].start) for k in (opening, closing)))
        keep = self.starts[marks[0]] - 1 if marks else self.tokens[opening].end
        row = self.line(keep)
        if re.match(rf"\s*// {re.escape(name)}: about ", self.text[keep:]):
            return keep, keep, ""                               # a stub already
        kept = [k for k in range(opening, closing) if self.tokens[k].start < keep]
        gone = [k for k in range(opening, closing) if self.tokens[k].start >= keep]
        if sum(_directive(self.tokens[k]).startswith("if") - (_directive(self.tokens[k]) == "endif")
               for k in gone):
            raise ValueError(f"line {row}: {name} cannot be cut here, between #if and #endif")
        blocks, brackets = [], 0                                # open where the stub ends
        for k in kept:
            text = self.tokens[k].text
            if text == "{":
                blocks.append(k)
            elif text == "}":
                blocks.pop()
            brackets += (text in ("(", "[")) - (text in (")", "]"))
        before = next(self.tokens[k] for k in reversed(kept) if self.tokens[k].kind != "directive")
        if brackets or before.text not in (*"{};:)", "else"):
            raise ValueError(f"line {row}: {name} cannot be cut here, in the middle of a statement")
        depth, ends = 0, []
        for k in gone:
            text = self.tokens[k].text
            if text == "}" and not depth:
                ends.append(k)
            else:
                depth += (text == "{") - (text == "}")
        count = len({n for k in gone if k not in ends for n in range(
            self.line(self.tokens[k].start), self.line(self.tokens[k].end) + 1)})
        pad = self.indent(self.starts[row - 1]) if marks else self.indent(unit.start) + "    "
        lines = [f"{pad}// {name}: {_about(count, name, row)}"]
        if not self._void(unit):
            lines.append(f"{pad}return {{}};")
        elif before.text not in ("{", "}", ";") or any(self._endless(k) for k in blocks[1:]):
            lines.append(f"{pad}return;")       # a statement is due, or nothing would end the loop
        for k in reversed(blocks[1:]):
            loop = self.tokens[k - 1].text == "do"
            lines.append(self.indent(self.tokens[k].start) + ("} while (0);" if loop else "}"))
        last = self.tokens[closing]
        return keep, last.start, "\n".join(["", *lines, self.indent(unit.start)])

    def _void(self, unit):
        parameters, opening, _ = unit.braces
        after = [self.tokens[k].text for k in range(self._close(parameters), opening)]
        texts = after if "->" in after else [self.tokens[k].text
                                             for k in self._top(unit.tokens[0], parameters)]
        return "void" in texts and "*" not in texts

    def _endless(self, k):
        """True for the block of a loop that an empty body would never leave."""
        for j in range(k):
            if self.tokens[j].text == "(" and self._close(j) == k - 1:
                word = self.tokens[j - 1].text
                return word == "while" or (word == "for" and self.tokens[k - 2].text == ";")
        return False


def _free_cuda(cell):
    file = _Cuda(cell, "<answer>")
    known, called = set(file.named()), set()
    for unit in file.units:
        words = list(_words(file.tokens[k] for k in unit.tokens))
        for k, (before, word) in enumerate(zip(["", *words], words, strict=False)):
            after = words[k + 1] if k + 1 < len(words) else ""
            if not re.match(r"[^\W\d]", word):
                continue
            declared = re.match(r"[^\W\d]", before) and before not in STATEMENT
            if unit.names and (after == "=" or declared
                               or (before in ("&", "*") and after in (",", ")"))):
                known.add(word)             # a variable, a parameter, a method
            elif not declared and before not in (".", "->", "::") and re.match(
                    r"(< [\w\s,:*]*> )?\(", " ".join(words[k + 1:k + 40])):
                called.add(word)
    return called - known - NO_CALL
