"""A lesson's exercises, found by name in whatever was sent and placed in the pristine lesson.

On a desk the .py and .cu files count: a notebook gives only what is still a stub there.
In a notebook the last cell that defines an exercise counts, with what it needs from other cells.
"""

import ast
import re
from dataclasses import dataclass, replace
from functools import lru_cache

from lab import stub
from lab.grading import broken_text, submission_parts
from lab.grading.fresh_lesson import Given, keep, parsed
from lab.judge.candidate import Candidate

NOWHERE = "the submission"          # the label of a language in which nothing was sent
MAX_NAMED = 5                       # names or lines in one note


def candidate(lesson, submission, mend=True, only=None):
    """(Candidate, notes) of one lesson in a submission.
    A note is a line for the instructor about
    anything unusual: left out, defined twice, taken from elsewhere.

    mend: read a text with a mistake piece by piece; else keep it as it is.
    only: an exercise to take alone, with what it needs
    """
    notes = list(submission_parts.unclear(lesson, submission))
    attempts = {}
    broken = []
    for file in submission_parts.files_of(lesson, submission):
        attempts_found, unread = look(lesson, file, notes, mend)
        broken += unread
        merge(attempts, attempts_found, lesson, submission, notes)
    if only is not None:
        attempts = {only: attempts[only]}
    lost = {}                               # of exercises that no other part gives
    for one in broken:
        if fresh := [name for name in one.names if name not in attempts and name not in lost]:
            lost |= dict.fromkeys(fresh, one.said)
        else:
            notes.append(left_out(one.said))
    sources = dict(lesson.stubs)
    labels = dict.fromkeys(lesson.stubs, NOWHERE)
    origins = {}
    for language in lesson.stubs:
        mine = {name: part for name, part in attempts.items() if part.language == language}
        if mine:
            placement = placed(lesson, submission, language, mine, notes, only is not None)
            sources[language], labels[language], origins[language] = placement
        elif whole := next((one.part for one in broken if one.part is not None
                            and one.part.language == language), None):
            sources[language], labels[language] = whole.text, whole.label
        else:
            labels[language] = untouched_label(lesson, submission, language)
    return Candidate(sources, labels, origins, broken=lost), notes


# ---- find

@dataclass(frozen=True)
class Unread:
    """A piece of a part that cannot be read, or the whole part."""

    names: list                 # of the exercises that it may hold
    said: str                   # where and why
    part: submission_parts.Part = None     # where it is the whole part



def look(lesson, file, notes, mend):
    """({exercise: the part of a file that counts}, [Unread])."""
    attempts = {}
    broken = []
    names = [e.name.split(".")[-1] for e in lesson.exercises]
    for part in submission_parts.parts_of(file):
        if part.language not in lesson.stubs or not any(name in part.text for name in names):
            continue
        part, magics = submission_parts.without_magics(part)
        part, lost = readable(lesson, part, mend)
        broken += lost
        gone = {name for one in lost for name in one.names}
        here = [name for name in attempted(lesson, part) if name not in gone]
        if here and magics:
            notes.append(f"{part.label}: left out {some(magics)}")
        for name in here:
            attempts.setdefault(name, []).append(part)
    for name, all_parts in attempts.items():
        if len(all_parts) > 1:
            cells = ", ".join(str(part.cell) for part in all_parts)
            notes.append(f"{name}: defined in code cells {cells} of {file.name}; the last counts")
    return {name: all_parts[-1] for name, all_parts in attempts.items()}, broken[::-1]


def readable(lesson, part, mend):
    """(the part without its unreadable pieces, [Unread])."""
    error = part.error()
    if error is None:
        return part, []
    fresh, broken = broken_text.mended(part) if mend else (part, [])
    if not broken:
        line, what = error
        names = submission_parts.mentions(part.text, part.language, lesson)
        text = part.text.split("\n")[line - 1].strip()[:200] if line else ""
        problem = f"{part.label}{f', line {line}' if line else ''}: {what}\n    {text}".rstrip()
        return replace(part, text=""), [Unread(names, problem, part)] if names else []
    exercises = [e.name for e in lesson.exercises if e.language == part.language]
    return fresh, [Unread([name for name in exercises if piece.holds(name)], piece.said)
                   for piece in broken]


def attempted(lesson, part):
    """The exercises in a part that differ from the stub."""
    language = part.language
    if part.text == lesson.stubs[language]:
        return []
    definitions = stub.named(part.units())
    handed = handed_out(lesson, language)
    return [e.name for e in lesson.exercises if e.language == language and e.name in definitions
            and not all(wraps(unit) for unit in definitions[e.name])
            and "\n".join(unit.normal for unit in definitions[e.name]) != handed[e.name]]


def wraps(unit):
    """Whether a unit only wraps what a name holds already, as a notebook that counts calls does:
    `f = Watched(f)`.
    It is no answer: the function that it wraps is defined elsewhere."""
    nodes = parsed(unit)
    inner = [one for node in nodes for one in ast.walk(node)]
    return bool(nodes) and all(isinstance(node, ast.Assign) for node in nodes) and not any(
        isinstance(one, ast.Lambda) for one in inner) and any(
        isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and one.id in unit.names
        for one in inner)


@lru_cache(maxsize=256)
def handed_out(lesson, language):
    """{exercise: its stub, normalised}."""
    text = lesson.stubs[language]
    return {e.name: stub.normalised(text, e.name, language)
            for e in lesson.exercises if e.language == language}


@lru_cache(maxsize=256)
def given(lesson, language):
    return Given(lesson, language)


def merge(attempts, more, lesson, submission, notes):
    """Add what a file gives to what earlier files gave."""
    for name, part in more.items():
        first = attempts.setdefault(name, part)
        if first is not part:
            same = stub.normalised(first.text, name, first.language) == stub.normalised(
                part.text, name, part.language)
            if not same:
                notes.append(f"{name}: {part.label} has another version; {first.label} counts")
        elif part.cell is not None:
            file = untouched_label(lesson, submission, part.language)
            if file != NOWHERE:
                notes.append(f"{name}: from {part.label}; {file} does not have it")


def untouched_label(lesson, submission, language):
    """The name of the lesson's own file in a language; NOWHERE if it was not sent."""
    return next((file.name for file in submission.files if file.kind == language
                 and submission_parts.lesson_stem(file.name)[0] == lesson.id), NOWHERE)


# ---- place


def placed(lesson, submission, language, attempts, notes, alone):
    """(text, label, origin of each line) of the pristine lesson with the exercises in it."""
    gifts = given(lesson, language)
    used = []
    texts = []
    for part, new in chosen(submission, attempts, gifts, alone):
        wanted = {name for name, home in attempts.items() if home == part}
        own = keep(part, gifts, wanted, new)
        used.append((part, bool(wanted)))
        texts.append(stub.one_newline(own.text))
        if wanted:
            notes += notes_on(part, own)
    spliced = stub.splice(lesson.stubs[language], "".join(texts), language)
    files = list(dict.fromkeys(part.file for part, has in used if has))
    label = used[0][0].label if len(used) == 1 else ", ".join(files)
    places = [place(part, line, len(used) > 1, len(files) > 1)
              for (part, _), text in zip(used, texts, strict=True)
              for line in range(1, text.count("\n") + 1)]
    return spliced.text, label, [line and places[line - 1] for line in spliced.origin]


def place(part, line, parts, files):
    """A line of a part as its author finds it. parts, files: whether there are several, so that the
    label does not say which it is"""
    of = f" of {part.file}" if files else ""
    if parts and part.cell is not None:
        return f"code cell {part.cell}{of}, line {line}"
    return f"line {line}{of}" if files else line


def chosen(submission, attempts, gifts, alone):
    """[(part, places of the new units it gives; None for all)], files first, cells in order.

    alone: a file gives only what is needed, as a notebook does
    """
    units = []
    for file in dict.fromkeys(part.file for part in attempts.values()):
        homes = {name: part for name, part in attempts.items() if part.file == file}
        first = next(iter(homes.values()))
        if first.cell is None and not alone:
            units.append((first, None))
            continue
        sent = next(f for f in submission.files if f.name == file)
        units += with_needed(sent, homes, gifts)
    return units


def with_needed(file, homes, gifts):
    """[(cell, places of its new units)] that the exercises of a notebook, or of a file, need: found
    by the names they use."""
    language = gifts.language
    pool = Pool([part for part in submission_parts.parts_of(file) if part.language == language])
    needed = {part.cell: set() for part in homes.values()}
    known = gifts.names | gifts.exercises
    missing = False
    waiting = [name for exercise, part in homes.items()
               for name in uses(stub.extract(part.text, exercise, language), language)]
    while waiting:
        name = waiting.pop()
        cell, units = (None, ()) if name in known else pool.home(name)
        missing |= name not in known and cell is None
        known.add(name)
        if cell is not None:
            needed.setdefault(cell, set()).update(unit.start for unit in units)
            waiting += [n for unit in units for n in uses(unit.text, language)]
    for cell, units in pool.stars() if missing else ():
        needed.setdefault(cell, set()).update(unit.start for unit in units)
    return [(pool.part(cell), needed[cell]) for cell in sorted(needed)]


class Pool:
    """The cells of a notebook in one language, read one by one as names are looked up."""

    def __init__(self, cells):
        self.raw = {part.cell: part for part in cells}
        self.read = {}                          # number -> (part without magics, {name: units})
        self.words = {}                         # word -> numbers of the cells that have it
        for part in cells:
            for word in set(re.findall(r"\w+", part.text)):
                self.words.setdefault(word, []).append(part.cell)

    def cell(self, number):
        if number not in self.read:
            part, _ = broken_text.mended(submission_parts.without_magics(self.raw[number])[0])
            bound = {}
            for unit in part.units():
                for name in unit.names:
                    first = "*" if name.endswith(".*") else name.split(".")[0]
                    bound.setdefault(first, []).append(unit)
            self.read[number] = part, bound
        return self.read[number]

    def part(self, number):
        return self.cell(number)[0]

    def home(self, name):
        """(number, units) of the last cell that binds a name; (None, ()) where none does."""
        for number in reversed(self.words.get(name, ())):
            if units := self.cell(number)[1].get(name):
                return number, units
        return None, ()

    def stars(self):
        """(number, units) of cells with `from module import *`, where a missing name may be."""
        return [(number, self.cell(number)[1].get("*", ())) for number, part in self.raw.items()
                if "import *" in part.text]


def uses(text, language):
    """Names that a text uses.
    In CUDA all its words: the compiler needs no others."""
    if language == "cuda":
        return set(re.findall(r"[A-Za-z_]\w*", text))
    try:
        return stub.free_names(text, language)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()


# ---- notes


def notes_on(part, own):
    if own.changed:
        yield f"{part.label}: the course's own version counts for {some(own.changed)}"
    if own.stray and part.cell is None:
        lines = some([f"line {line}: {text}" for line, text in own.stray])
        yield f"{part.label}: left out statements that define nothing ({lines})"


def left_out(names):
    where, _, what = names.partition("\n")[0].rpartition(": ")
    return f"{where}: left out because it cannot be read: {what}"


def some(words):
    more = len(words) - MAX_NAMED
    return ", ".join(words[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
