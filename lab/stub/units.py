"""What both languages share: a text is a list of units, one for each thing at its top level."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from lab.words import plural

MARK = re.compile(r"\s*(?:#|//)\s*exercise:")


@dataclass(eq=False)
class Unit:
    """A definition, an import, a constant or a stray statement; whole lines unless others share
    them."""

    start: int                  # the offset of its text
    line: int                   # the number of the line on which that begins, from 1
    above: str                  # the comment directly above it, whole lines
    text: str
    names: tuple                # what it binds, sorted; nothing for a stray statement
    defines: bool               # a function, class, struct or macro
    spell: Callable             # () -> its code, see `normal`
    span: tuple                 # the offsets at which others may be put above it and below it
    # CUDA
    role: str = ""              # tells definitions of one name apart
    scope: tuple = ()           # the Blocks that it stands in, outermost first
    # Python
    head: tuple = ()            # a class's decorators and bases
    header: str = ""            # its `class` line
    members: list = field(default_factory=list)     # its own units
    owner: "Unit" = None        # the class it is a member of
    strings: set = frozenset()  # numbers of the lines that begin within a string

    @cached_property
    def normal(self):
        """Equal for equal code, whatever its comments, docstrings and layout."""
        return self.spell()

    @property
    def end(self):
        return self.start + len(self.text)

    @property
    def lead(self):
        return self.start - len(self.above)


def one_newline(text):
    """One kind of newline, also at the end, and no byte order mark."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return text if not text or text.endswith("\n") else text + "\n"


def named(units, prefix=""):
    """name -> the units that bind it: several for overloads, or for a property and its setter."""
    names = {}
    for unit in units:
        for name in unit.names:
            names.setdefault(prefix + name, []).append(unit)
            names |= named(unit.members, f"{prefix}{name}.")
    return names


def about(count, name, line):
    """The note in a stub."""
    if not count:
        raise ValueError(f"line {line}: nothing of {name} is left to write below")
    return f"{name}: about {plural(count, 'line')}"
