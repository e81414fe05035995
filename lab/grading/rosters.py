"""The class list: a gradebook that Canvas exported, or a CSV file with a column `student`."""

import csv
import io
import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

from lab.course import CourseError

IDS = ("SIS Login ID", "SIS User ID", "ID")     # the best name of a student first
IDENTIFYING = ("Student", *IDS, "Integration ID", "Root Account", "Section")
EXPECTED = ("a gradebook exported from Canvas (columns Student, ID, SIS Login ID, Section, …) or a "
            "CSV file with a column student")


@dataclass(frozen=True)
class Entry:
    """One student of the roster."""

    label: str                          # what a table of grades calls them
    row: tuple[str, ...]
    ids: frozenset[str]
    names: frozenset[str]


@dataclass(frozen=True)
class Roster:
    path: Path
    header: tuple[str, ...]
    canvas: bool
    above: tuple[tuple[str, ...], ...]          # Canvas's rows that are not students
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Matched:
    """Who on the roster sent what.
    Where a name fits several students, nothing is guessed."""

    by_label: dict = field(default_factory=dict)        # entry's label -> student
    missing: tuple[Entry, ...] = ()                     # on the roster, without a submission
    strangers: tuple[str, ...] = ()                     # students who are not on the roster
    unclear: tuple[str, ...] = ()                       # one line each


def rows(path, expected):
    """(header, [(line, cells)]) of a CSV file, each as long as the header; empty lines left out."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CourseError(f"{path}: expected {expected}, in UTF-8, found: {error}") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    table = []
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                table.append((reader.line_num, cells))
    except csv.Error as error:
        raise CourseError(f"{path}, line {reader.line_num}: expected {expected}, found: "
                          f"{error}") from None
    if not table:
        raise CourseError(f"{path}, line 1: expected {expected}, found nothing")
    (_, header), *body = table
    for line, cells in body:
        if len(cells) != len(header):
            raise CourseError(f"{path}, line {line}: expected {len(header)} cells as in the first "
                              f"line, found {len(cells)}")
    return [name.strip() for name in header], body


def read(path):
    """The Roster in a file."""
    header, body = rows(path, EXPECTED)
    canvas = "Student" in header and "ID" in header
    column = next((i for i, name in enumerate(header) if name.lower() == "student"), None)
    if column is None:
        raise CourseError(f"{path}, line 1: expected {EXPECTED}, found the columns "
                          f"{', '.join(header)}")
    above = []
    entries = []
    lines = {}
    for line, cells in body:
        ids = [cells[header.index(key)].strip() for key in IDS if key in header] if canvas else []
        if canvas and no_student(cells[column], ids):
            above.append(tuple(cells))
            continue
        entry = entry_of(cells, cells[column].strip(), [i for i in ids if i])
        if not entry.label:
            raise CourseError(f"{path}, line {line}: expected a student, found an empty cell")
        if entry.label in lines:
            raise CourseError(f"{path}, line {line}: expected each student once, found "
                              f"{entry.label!r} in line {lines[entry.label]} already")
        lines[entry.label] = line
        entries.append(entry)
    return Roster(path, tuple(header), canvas, tuple(above), tuple(entries))


def no_student(name, ids):
    """Canvas's second row holds the points possible, another above it how grades are posted."""
    return name.strip() in ("", "Points Possible") and not any(ids)


def entry_of(cells, name, ids):
    last, comma, first = name.partition(",")
    names = {plain(name), plain(first + last)} if comma else {plain(name)}
    ids = ids or [name]
    return Entry(ids[0], tuple(cells), frozenset(i.casefold() for i in ids),
                 frozenset(names - {""}))


def plain(name):
    """A name as downloads spell it: `Doe, Jané` is `doejane`."""
    return re.sub(r"[\W_]+", "", "".join(c for c in unicodedata.normalize("NFKD", name.casefold())
                                         if not unicodedata.combining(c)))


def match(roster, students):
    """The Matched of a roster and the names of those who sent something."""
    if roster is None:
        return Matched()
    matches = {}
    doubted = set()
    strangers = []
    unclear = []
    for student in students:
        fits = [e.label for e in roster.entries if student.strip().casefold() in e.ids] or [
            e.label for e in roster.entries if plain(student) in e.names]
        if len(fits) > 1:
            doubted |= set(fits)
            unclear.append(f"{student} could be {' or '.join(fits)} on the roster")
        elif fits:
            matches.setdefault(fits[0], []).append(student)
        else:
            strangers.append(student)
    unclear += [f"{' and '.join(own)} could each be {label} on the roster"
                for label, own in matches.items() if len(own) > 1]
    missing = tuple(e for e in roster.entries if e.label not in doubted | set(matches))
    return Matched({label: own[0] for label, own in matches.items() if len(own) == 1}, missing,
                   tuple(strangers), tuple(unclear))
