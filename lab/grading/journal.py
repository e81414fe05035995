"""The journal of a grading: a line for each finished unit, so that a killed run continues where it
stopped. The first line identifies the run: the secret seed and the lessons."""

import json
import os
from pathlib import Path

from lab.course import VERSION, CourseError

SCHEMA = 1


class Journal:
    """Lines of JSON in a file that only grows."""

    def __init__(self, file, header):
        self.file = Path(file)
        self.header = header
        self.units = {}
        self.cut = None         # the offset of a last line that was cut off, or None

    @classmethod
    def begin(cls, file, lessons, seed):
        """A new journal. CourseError where one exists: its grades are not thrown away."""
        header = {"schema": SCHEMA, "course_version": VERSION,
                  "lessons": {lesson.id: lesson.fingerprint for lesson in lessons},
                  "seed": seed}
        journal = cls(file, header)
        journal.file.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(journal.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise CourseError(f"{file} is there already: go on with --resume, or grade into "
                              f"another folder") from None
        os.close(handle)
        journal.append(header)
        return journal

    @classmethod
    def resume(cls, file):
        """A journal that was begun, without a last line that was cut off."""
        try:
            whole, _, cut = Path(file).read_bytes().rpartition(b"\n")
        except FileNotFoundError:
            raise CourseError(f"nothing to resume: {file} is not there") from None
        try:
            header, *rows = [json.loads(line) for line in whole.splitlines()]
            journal = cls(file, header)
            for row in rows:
                journal.units[tuple(row["unit"])] = row
            header["seed"], header["lessons"]
        except (ValueError, KeyError, TypeError):
            raise CourseError(f"{file} is damaged: expected a line of JSON for the run and one for "
                              f"each unit") from None
        if header.get("schema") != SCHEMA or header.get("course_version") != VERSION:
            raise CourseError(f"{file} was begun with course {header.get('course_version')}, this "
                              f"is {VERSION}: finish it there, or grade into another folder")
        journal.cut = len(whole) + 1 if cut else None  # a merge only reads, and changes nothing
        return journal

    def append(self, row):
        """Write one line; it is on the disk when this returns."""
        if self.cut is not None:
            os.truncate(self.file, self.cut)
            self.cut = None
        with open(self.file, "ab") as stream:
            stream.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())

    def done(self, unit, sandbox, results, notes):
        """Record a finished unit: (digest of the submission, lesson)."""
        row = {"unit": list(unit), "sandbox": sandbox, "notes": list(notes), "results": results}
        self.append(row)
        self.units[unit] = row
