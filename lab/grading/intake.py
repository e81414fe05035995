"""Read a folder of submissions: who sent what, and when.

It may hold archives, loose files, desks, cloned repositories and downloads from Canvas and Moodle,
in any mixture.
Anything hostile or broken is a line in that submission's problems.
"""

import os
import stat
from dataclasses import dataclass, field

from lab.course import CourseError
from lab.grading import archives, folders, names
from lab.grading.model import Submission
from lab.grading.submitted_files import Basket, Full

NOTHING = "nothing to grade in it: no .py, .cu or .ipynb file that can be read"
MAX_NAMED = 5           # of the files that are there instead


@dataclass
class Piece:
    """One entry of the folder."""

    entry: os.DirEntry
    name: names.Name
    basket: Basket = field(default_factory=Basket)
    when: float | None = None
    version: str | None = None
    kind: str = "loose"         # alone: a submission by itself; loose: one together with the
                                # student's other loose entries; other: not code, a problem
                                # listed with whatever else the student sent


def read_all(folder):
    """Every submission in a folder: [Submission], sorted by student, time and path.

    CourseError: there is no such folder, or it cannot be read.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise CourseError(f"cannot read the submissions in {folder}: {error.strerror}") from None
    entries = [e for e in entries if not e.name.startswith(".") and e.name != "__MACOSX"]
    pieces = [piece(entry) for entry in entries]
    everything = [submission for group in groups(pieces) for submission in submissions(*group)]
    return sorted(everything, key=lambda s: (s.student, s.when or 0, s.path))


def piece(entry):
    """One entry of the folder, read."""
    folder = entry.is_dir(follow_symlinks=False)
    result = Piece(entry, names.read(entry.name, folder))
    try:
        if entry.is_symlink():
            result.kind = "other"
            result.basket.problem(entry.name, "not followed: it is a link")
        elif folder:
            result.kind = "alone" if result.name.number is None else "loose"
            result.when, result.version = folders.read(entry.path, result.basket)
        elif entry.name.lower().endswith(names.ARCHIVES):
            result.kind = "alone"
            result.when = folders.take(entry.path, entry.name, result.basket,
                                     lambda file: archive(file, result))
        elif result.basket.kind(entry.name):
            result.when = loose(entry, result.basket)
        else:
            result.kind = "other"
            result.when, what = described(entry)
            result.basket.problem(entry.name, what)
    except Full:                            # the basket has noted it
        result.when = result.when or entry.stat(follow_symlinks=False).st_mtime
    return result


def archive(file, piece_of):
    data = file.read(archives.MAX_ARCHIVE_BYTES + 1)
    piece_of.version = archives.read(data, piece_of.entry.name, piece_of.basket)


def loose(entry, basket):
    if not basket.wants(entry.name):
        return None
    return folders.take(entry.path, entry.name, basket, lambda f: basket.add(entry.name, f.read))


def described(entry):
    """(time, what is wrong) of an entry that is neither folder nor archive nor code."""
    about = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(about.st_mode):
        return about.st_mtime, "not opened: it is not a plain file"
    return about.st_mtime, "not read: expected .py, .cu, .ipynb, .zip, .tar.gz or a folder"


# ---- who is who


def groups(pieces):
    """[(student, pieces)]: one group per student.
    Two of one name are told apart by number."""
    numbers = {}
    there = {p.name.student for p in pieces}
    for p in pieces:
        numbers.setdefault(p.name.student, set()).add(p.name.number)
    by_student = {}
    for p in pieces:
        student, number, _ = p.name
        if len(numbers[student] - {None}) > 1 and number:
            student = f"{student}_{number}"
        again = names.AGAIN.fullmatch(student)
        folder = p.entry.is_dir(follow_symlinks=False)      # it has its student's whole name
        if number is None and again and again["first"] in there and not folder:    # ada-1.zip
            student = again["first"]
        by_student.setdefault(student, []).append(p)
    return by_student.items()


def submissions(student, pieces):
    """The submissions of one student: each archive and folder, and all loose files as one."""
    batches = [[p] for p in pieces if p.kind == "alone"]
    loose = [p for p in pieces if p.kind == "loose"]
    rest = [p for p in pieces if p.kind == "other"]
    if any(p.basket.files for p in loose):
        batches.append(loose)
    else:                               # no code in them: no submission where there is another
        rest += loose
    if not batches:
        return [submission(student, rest, [])]
    stray = [line for p in rest for line in p.basket.problems]
    return [submission(student, batch, stray) for batch in batches]


def submission(student, pieces, stray):
    """One submission, made of its pieces. stray: problems of the student's other files, which are
    not a submission."""
    files = {}
    problems = []
    for p in pieces:
        problems += p.basket.problems
        problems += [f"{name}: there twice; the first one counts"
                     for name in files.keys() & p.basket.files.keys()]
        files = p.basket.files | files
    return Submission(
        names.shown(student), names.shown(pieces[0].entry.name),
        max((p.when for p in pieces if p.when is not None), default=None),
        tuple(files[name] for name in sorted(files)),
        (*problems, *stray) if files else (*problems, *stray, nothing(pieces)),
        next((p.version for p in pieces if p.version), None))


def nothing(pieces):
    """NOTHING, and what is there instead."""
    others = [names.shown(name)[:80] for p in pieces for name in p.basket.others]
    more = f" and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
    return f"{NOTHING}; found {', '.join(others[:MAX_NAMED])}{more}" if others else NOTHING
