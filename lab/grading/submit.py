"""Pack a desk to hand in: what the learner wrote, lesson by lesson, in one small zip.

What is packed is what a grader takes from the desk (lab/grading/extract.py), so both see the same.
"""

import io
import json
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from lab import course, stub
from lab.course import SUFFIX, CourseError
from lab.desk import texts
from lab.grading import extract
from lab.grading.archives import MANIFEST
from lab.grading.model import Sent, Submission
from lab.grading.submitted_files import KINDS, code_alone

SCHEMA = 1
EPOCH = (1980, 1, 1, 0, 0, 0)       # the earliest that a zip can state: equal desks, equal bytes


@dataclass(frozen=True)
class SubmissionRow:
    """One exercise of a lesson on the desk."""

    exercise: course.Exercise
    what: str                       # passed | touched | stub


@dataclass(frozen=True)
class Packed:
    rows: tuple[SubmissionRow, ...]
    notes: tuple[str, ...]          # what else the learner should know, one line each
    data: bytes


def pack(own, lessons):
    """What there is to hand in from lessons on a desk.
    CourseError: nothing was attempted."""
    files = {}
    rows = []
    notes = []
    manifest = {}
    for lesson in lessons:
        candidate, notes_of = extract.candidate(lesson, on_desk(own, lesson, notes), mend=False)
        notes += [f"{lesson.id}: {note}" for note in notes_of]
        done = [row(own, candidate, exercise, notes) for exercise in lesson.exercises]
        rows += done
        written = [one.exercise for one in done if one.what != "stub"]
        if written:
            manifest[lesson.id] = [exercise.name for exercise in written]
        for language in {exercise.language for exercise in written}:
            path = f"{lesson.floor}/{lesson.id}{SUFFIX[language]}"
            files[path] = answer(lesson, candidate, language)
    if not files:
        raise CourseError(f"nothing to hand in: no exercise of {len(lessons)} lesson(s) on the "
                          f"desk {own.folder} was attempted")
    files[MANIFEST] = json.dumps({"schema": SCHEMA, "course_version": course.VERSION,
                                  "lessons": manifest}, indent=1) + "\n"
    return Packed(tuple(rows), tuple(dict.fromkeys(notes)), zipped(
        {path: text.encode() for path, text in files.items()}))


def on_desk(own, lesson, notes):
    """A lesson's files on a desk, as a submission."""
    files = []
    for suffix in (*map(SUFFIX.get, lesson.sources), ".ipynb"):
        path = own.path(lesson, suffix)
        if not path.exists():
            continue
        text = texts.read(path, own.label(path))
        try:
            text = code_alone(text) if suffix == ".ipynb" else text
        except ValueError as error:
            notes.append(f"{own.label(path)}: left out: {error}")
            continue
        files.append(Sent(own.label(path), KINDS[suffix], text))
    return Submission("", str(own.folder), None, tuple(files))


def row(own, candidate, exercise, notes):
    """What became of an exercise.
    A text that does not parse is packed whole, with a note."""
    language = exercise.language
    text = candidate.sources[language]
    stub_text = exercise.lesson.stubs[language]
    try:
        mine = stub.normalised(text, exercise.name, language)
    except (SyntaxError, ValueError) as error:
        notes.append(f"{candidate.labels[language]} does not parse; it is packed as it is: {error}")
        return SubmissionRow(exercise, "touched")
    if mine in (None, stub.normalised(stub_text, exercise.name, language)):
        return SubmissionRow(exercise, "stub")
    return SubmissionRow(exercise, "passed" if own.passed(exercise) else "touched")


def answer(lesson, candidate, language):
    """The learner's part of a lesson's text; all of it where it does not parse."""
    text = candidate.sources[language]
    try:
        return stub.changed(text, lesson.stubs[language], language)
    except (SyntaxError, ValueError):
        return text


def zipped(files, executable=()):
    """The bytes of a zip of {path: bytes}; equal for equal files. executable: paths."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files):
            info = zipfile.ZipInfo(path, EPOCH)
            mode = 0o755 if path in executable else 0o644
            info.create_system, info.external_attr = 3, mode << 16      # the same on every system
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[path])
    return buffer.getvalue()


def write(packed, own, out=None):
    """Write the zip and return its path: `out`, or the desk's name and the date, in the current
    folder.
    CourseError: `out` is there already, or it cannot be written."""
    name = f"{own.folder.name or 'desk'}-{time.strftime('%Y-%m-%d')}"
    paths = [Path(out)] if out else [Path(f"{name}{more}.zip") for more in (
        "", *(f"-{number}" for number in range(1, 1000)))]
    for path in paths:
        try:
            with open(path, "xb") as file:
                file.write(packed.data)
        except FileExistsError:
            continue
        except OSError as error:
            raise CourseError(f"cannot write {path}: {error.strerror}") from None
        return path
    raise CourseError(f"{paths[0]} is there already, and nothing is overwritten: name another file "
                      f"with --out")
