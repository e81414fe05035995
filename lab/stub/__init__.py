"""Cut a reference into stubs, take definitions out of a text, put a learner's answer into one.

A text, Python or CUDA C, is read as a list of units: one for each definition, import, constant or
stray statement at its top level.
Everything here works on whole units and keeps the rest as it is.

units     a text as a list of units, one for each thing at its top level
python    the units of a Python module, and a function's stub
cuda      the units of a CUDA C file
splicing  an answer's units put into a module's
"""

import re
import textwrap
from functools import lru_cache

from lab.stub import cuda, python, splicing
from lab.stub.splicing import Spliced
from lab.stub.units import MARK, named, one_newline

__all__ = ["Spliced", "changed", "cut", "definitions", "extract", "find_line", "free_names",
           "holds", "marked", "named", "normalised", "one_newline", "read", "rewritten",
           "seems_to_define", "splice"]
LANGUAGES = {"python": python, "cuda": cuda}
PYTHONS_OWN = re.compile(r"\s*(async def|def|class)\b")     # what a decorator stands above


def cut(source, names, language):
    """The stub of every exercise in `names`: kept down to its `exercise:` comment.

    KeyError: a name is not defined.
    ValueError: it has no such comment, or cannot be cut there.
    """
    text = one_newline(source)
    cuts = []
    for name in names:
        unit, *others = _find(text, name, language)
        if others:
            raise ValueError(f"line {others[0].line}: {name} is defined here too")
        cuts.append((unit, name, LANGUAGES[language].stub(unit, name)))
    result = _with_stubs(text, cuts)
    if _unreadable(result, language) is not None:
        for some in [*([one] for one in cuts), cuts]:       # the one to blame is unreadable alone
            if (error := _unreadable(_with_stubs(text, some), language)) is not None:
                unit, name, _ = some[-1]
                raise ValueError(f"line {unit.line}: {name} cannot be cut at its mark, what is "
                                 f"left is not code ({error})") from error
    return result


def _with_stubs(text, cuts):
    """The text with stubs in place of units. cuts: [(unit, its name, its stub)]"""
    for unit, _, stub in sorted(cuts, key=lambda one: -one[0].start):
        text = text[:unit.start] + stub + text[unit.end:]
    return text


def _unreadable(text, language):
    """Why a text is no code, None where it is."""
    try:
        read(text, language)
    except (SyntaxError, ValueError) as error:
        return error
    return None


def definitions(source, language):
    """Names of functions and classes, methods as "Class.method"; CUDA: structs and macros too."""
    by_name = named(read(source, language))
    return [name for name, units in by_name.items() if any(unit.defines for unit in units)]


def seems_to_define(text, name, language):
    """Whether a text that cannot be read has what a definition of a name begins with."""
    last = re.escape(name.rpartition(".")[2])
    begins = rf"\b(def|class)\s+{last}\b" if language == "python" else rf"\b{last}\s*\("
    return re.search(begins, text) is not None


def marked(source, language):
    """Names of the definitions that hold an `exercise:` comment, a method and not its class."""
    return [name for name, units in named(read(source, language)).items()
            if any(unit.defines and not unit.members and MARK.search(unit.text) for unit in units)]


def extract(source, name, language):
    """The whole text of a definition, as `splice` takes it back.

    Decorators, `template` and `extern "C"` come along, the comment above does not; a method comes
    under the header of its class.
    KeyError: it is not there.
    """
    units = _find(source, name, language)
    return _under_headers([unit.text for unit in units], units[0])


def rewritten(source, name, body, language):
    """The whole text of a definition, as `extract` gives it, with `body` in place of all after its
    `exercise:` comment.
    KeyError: it is not there.
    ValueError: it has no such comment."""
    unit = _find(source, name, language)[0]
    body = textwrap.dedent(one_newline(body)).strip("\n")
    return _under_headers([LANGUAGES[language].rewritten(unit, name, body)], unit)


def find_line(source, name, language):
    """The line on which a definition begins, below its decorators; that of the last, which Python
    runs, where there are several.
    KeyError: it is not there."""
    unit, *others = _find(source, name, language)
    for other in others if language == "python" else ():
        setter = other.text.lstrip().startswith(f"@{name.rpartition('.')[2]}.")
        if other.defines and not setter:
            unit = other
    rows = unit.text.split("\n") if unit.text.lstrip().startswith("@") else []
    return unit.line + next((i for i, row in enumerate(rows) if PYTHONS_OWN.match(row)), 0)


def holds(source, name, language, line):
    """Whether a line is one of a definition's. KeyError: the definition is not there."""
    units = _find(source, name, language)
    return any(unit.line <= line <= unit.line + unit.text.count("\n") for unit in units)


def normalised(source, name, language):
    """A text that is equal for equal code, whatever its comments, docstrings and layout.

    None where the name is not defined.
    """
    units = named(read(source, language)).get(name, ())
    return "\n".join(unit.normal for unit in units) or None


def changed(text, base, language):
    """What `text` changes in `base` or adds to it: an answer for `splice`."""
    parts = splicing.changed(read(text, language), read(base, language))
    return "".join(part + "\n\n" for part in parts)


def splice(source, answer, language):
    """Put an answer, a notebook's cell or a file, into a module.

    What `source` defines too is replaced in place.
    All else goes above the next definition of the answer that is replaced, or below them all if
    none follows: the answer keeps its order where the source has the same.
    If it replaces nothing it goes to the end; if it has all names of `source` it is the whole
    module and taken as it is.
    A class under the same header, or without bases and decorators, replaces only the methods that
    it has.
    Splicing twice changes nothing.
    SyntaxError, or ValueError in CUDA: the answer cannot be read.
    """
    source = one_newline(source)
    answer = one_newline(answer)
    return splicing.merged(source, read(source, language), answer, read(answer, language),
                           LANGUAGES[language].GAP)


def free_names(cell, language):
    """Names that a Python cell uses and neither defines nor imports, builtins aside.

    SyntaxError: it cannot be read.
    ValueError: another language, whose compiler names them itself.
    """
    if language != "python":
        raise ValueError(f"the free names of {language} are left to its compiler")
    return python.free_names(one_newline(cell))


@lru_cache(maxsize=64)          # a check reads the same few texts again and again
def read(text, language):
    """The units of a text, in order, with offsets into it as `one_newline` leaves it.
    SyntaxError, or ValueError in CUDA: it cannot be read."""
    return LANGUAGES[language].read(one_newline(text))


def _under_headers(texts, unit):
    """Texts below the headers of the classes that own a unit."""
    owner = unit.owner
    while owner:
        texts = [owner.header, *texts]
        owner = owner.owner
    return "\n".join(texts)


def _find(text, name, language):
    by_name = named(read(text, language))
    if name not in by_name:
        there = [other for other, units in by_name.items() if units[0].defines]
        raise KeyError(f"no {name} here, only {', '.join(there) or 'text without definitions'}")
    return by_name[name]
