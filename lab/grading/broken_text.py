"""A text that cannot be read, piece by piece: a mistake costs the definition it is in.

A piece starts on a line that starts with a name or a decorator, and ends where the next starts.
One that cannot be read becomes empty lines, so that the others keep their line numbers; in place of
an unreadable function, one of the same name raises the error when it is called.
"""

import re
from dataclasses import dataclass, replace

from lab import stub

WHOLE_TEXT_ERRORS = ("nested too deeply",)  # errors of a text as a whole
MAX_PIECES = 2000       # of a text that is taken apart
MAX_JOINED = 20         # pieces joined into one: a name can start a line of a string or a table
OPEN = re.compile(r"never closed|unterminated|unexpected EOF|expected an indented block")
DEFINED = re.compile(r"\s*(?:async\s+)?(?:def|class)\s+(\w+)")
INNER = ("else", "elif", "except", "finally")


@dataclass(frozen=True)
class Broken:
    """A piece that cannot be read."""

    name: str           # of the function, Class.method or class; empty where it is something else
    text: str           # the part that may name an exercise
    said: str           # where and why

    def holds(self, exercise):
        """Whether it is this exercise, its class, or a definition that names it."""
        return exercise == self.name or bool(self.name) and exercise.startswith(f"{self.name}.") \
            or re.search(rf"\b{re.escape(exercise)}\s*\(", self.text) is not None


def mended(part):
    """(the part without the pieces that cannot be read, [Broken]).
    The part as it is, and [], where it can be read, or where that does not help."""
    if (error := part.error()) is None or error[1] in WHOLE_TEXT_ERRORS:
        return part, []
    rows = part.text.split("\n")
    language = PYTHON if part.language == "python" else CUDA
    bounds = language.bounds(rows, 0, len(rows), "")
    if len(bounds) > MAX_PIECES:
        return part, []
    fresh = list(rows)
    broken = []
    for start, end, error in survey(rows, bounds, "", language):
        if error is not None:
            broken += language.replaced(part, rows, fresh, start, end, error)
    result = replace(part, text="\n".join(fresh))
    return (part, []) if result.error() else (result, broken)


def survey(rows, bounds, pad, language):
    """(start, end, None or (line, what is wrong)) of each piece, joined where bounds were wrong."""
    k = 0
    while k < len(bounds) - 1:
        start = bounds[k]
        last = k + 1
        error = language.error(rows[start:bounds[last]], pad)
        wrong = error
        joined = last
        while wrong and OPEN.search(wrong[1]) and joined < min(k + MAX_JOINED, len(bounds) - 1):
            joined += 1
            wrong = language.error(rows[start:bounds[joined]], pad)
        if wrong is None:
            last = joined
            error = None
        yield start, bounds[last], error and (start + error[0], error[1])
        k = last


def said(part, rows, line, what):
    text = rows[line - 1].strip()[:200] if 0 < line <= len(rows) else ""
    return f"{part.label}, line {line}: {what}\n    {text}"


class PYTHON:
    @staticmethod
    def bounds(rows, first, end, pad):
        """The rows on which a statement begins, and the end."""
        begins = []
        decorated = False
        for k in range(first, end):
            row = rows[k].removeprefix(pad)
            name = re.match(r"[^\W\d]\w*|@", row)
            if not rows[k].startswith(pad) or not name or name[0] in INNER:
                continue
            begins += [] if decorated else [k]
            decorated = name[0] == "@"
        return [first, *begins[begins[:1] == [first]:], end]

    @staticmethod
    def error(rows, pad):
        try:
            stub.read(("if 1:\n" if pad else "") + "\n".join(rows), "python")
        except SyntaxError as error:
            line = (error.lineno or 1) - (1 if pad else 0)      # without the line put above it
            return max(line, 1), error.msg
        except ValueError as error:
            return 1, str(error)
        return None

    @classmethod
    def replaced(cls, part, rows, fresh, start, end, error, owner=""):
        """[Broken] of a piece; its replacement goes into `fresh`."""
        home = next((k for k in range(start, end) if DEFINED.match(rows[k])), None)
        name = DEFINED.match(rows[home])[1] if home is not None else ""
        in_class = home is not None and rows[home].startswith("class")
        if in_class and (broken := cls.members(part, rows, fresh, home, end, name)):
            return broken
        words = said(part, rows, *error)
        fresh[start:end] = [""] * (end - start)
        if name:
            pad = rows[home][:len(rows[home]) - len(rows[home].lstrip())]
            one_line = " ".join(words.split())
            fresh[home] = (f"{pad}def {name}(*arguments, **named): "
                           f"raise SyntaxError({one_line!r})")
        return [Broken(f"{owner}{name}", "", words)]

    @classmethod
    def members(cls, part, rows, fresh, home, end, name):
        """[Broken] of a class whose methods cannot be read; [] where the class cannot be."""
        first = next((k for k in range(home + 1, end) if rows[k].strip()), end)
        pad = rows[first][:len(rows[first]) - len(rows[first].lstrip())] if first < end else ""
        if not pad or not rows[home].rstrip().endswith(":"):
            return []
        before = fresh[home:end]
        broken = []
        for a, b, error in survey(rows, cls.bounds(rows, first, end, pad), pad, cls):
            if error is not None:
                broken += cls.replaced(part, rows, fresh, a, b, error, f"{name}.")
        if cls.error(fresh[home:end], "") is not None:
            fresh[home:end] = before
            return []
        return broken


class CUDA:
    @staticmethod
    def bounds(rows, first, end, pad):
        """The rows on which a declaration begins, and the end."""
        begins = [k for k in range(first, end) if re.match(r"[^\W\d]|#", rows[k]) and (
            k == first or not rows[k - 1].strip() or rows[k - 1].startswith(("//", "#"))
            or rows[k - 1].rstrip().endswith((";", "}")))]
        return [first, *begins[begins[:1] == [first]:], end]

    @staticmethod
    def error(rows, pad):
        try:
            stub.read("\n".join(rows), "cuda")
        except ValueError as error:
            line = re.match(r"line (\d+): ", str(error))
            return (int(line[1]), str(error)[line.end():]) if line else (1, str(error))
        return None

    @staticmethod
    def replaced(part, rows, fresh, start, end, error):
        fresh[start:end] = [""] * (end - start)
        head = "\n".join(rows[start:end]).partition("{")[0]
        return [Broken("", head, said(part, rows, *error))]
