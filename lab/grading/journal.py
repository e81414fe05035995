"""The journal of a grading: a line for each finished unit, so that a killed run continues where it
stopped.
The first line identifies the run: the secret seed and the lessons."""

import fcntl
import json
import os
from pathlib import Path

from lab.course import VERSION, CourseError

SCHEMA = 2


class Journal:
    """Lines of JSON in a file that only grows.
    One process at a time writes to it.

    stopped: units of an earlier run whose processes gave no answer, to be tried again
    length: the file's bytes when it was read
    whole: those of its whole lines; what follows was cut off
    """

    def __init__(self, file, header, length=0, whole=0):
        self.file = Path(file)
        self.header = header
        self.units = {}
        self.stopped = set()
        self.length = length
        self.whole = whole

    @classmethod
    def begin(cls, file, lessons, seed, held_back=()):
        """A new journal.
        CourseError where one exists: its grades are not thrown away.
        held_back: ids of lessons whose answers the class does not have"""
        header = {"schema": SCHEMA, "course_version": VERSION,
                  "lessons": {lesson.id: lesson.fingerprint for lesson in lessons},
                  "seed": seed, "held_back": sorted(held_back)}
        journal = cls(file, header)
        try:
            journal.file.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(journal.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            if journal.file.exists():
                raise CourseError(f"{file} is there already: go on with --resume, or grade into "
                                  f"another folder") from None
            raise CourseError(f"cannot make {file}: {error.strerror}") from None
        journal.append(header)
        return journal

    @classmethod
    def resume(cls, file):
        """A journal that was begun, without a last line that was cut off."""
        try:
            data = Path(file).read_bytes()
        except FileNotFoundError:
            raise CourseError(f"nothing to resume: {file} is not there") from None
        whole = data[:data.rfind(b"\n") + 1]
        try:
            header, *rows = [json.loads(line) for line in whole.splitlines()]
            journal = cls(file, header, len(data), len(whole))
            for row in rows:
                journal.units[tuple(row["unit"])] = row
            journal.stopped = {unit for unit, row in journal.units.items() if row.get("stopped")}
            version, schema = header["course_version"], header["schema"]
        except (ValueError, KeyError, TypeError):
            raise CourseError(f"{file} is damaged: expected a line of JSON for the run and one for "
                              f"each unit") from None
        if (schema, version) != (SCHEMA, VERSION):
            raise CourseError(f"{file} was begun with course {version}, journal {schema}; this is "
                              f"course {VERSION}, journal {SCHEMA}: finish it there, or grade into "
                              f"another folder")
        return journal

    def append(self, row):
        """Write one line.
        It is on the disk when this returns; a CourseError leaves none of it."""
        line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
        try:
            with open(self.file, "r+b", buffering=0) as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                if os.fstat(stream.fileno()).st_size != self.length:
                    raise CourseError(f"another `lab grade` has written to {self.file} since this "
                                      f"one began. Let one of them end, then repeat it with "
                                      f"--resume")
                self.write(stream.fileno(), line)
        except OSError as error:
            raise CourseError(f"cannot write to {self.file}: {error.strerror}. The units in it are "
                              f"whole: mend that, then go on with --resume") from None
        self.whole += len(line)

    def write(self, file, line):
        """All of a line after the whole ones, or nothing."""
        try:
            os.truncate(file, self.whole)
            written = 0
            while written < len(line):
                written += os.pwrite(file, line[written:], self.whole + written)
            os.fsync(file)
        except OSError:
            os.truncate(file, self.whole)
            raise
        finally:
            self.length = os.fstat(file).st_size

    def done(self, unit, sandbox, results, notes, stopped=False):
        """Record a finished unit: (digest of the submission, lesson).
        stopped: its process gave no answer; whoever resumes tries again, and the last row counts"""
        row = {"unit": list(unit), "sandbox": sandbox, "notes": list(notes), "results": results,
               "stopped": stopped}
        self.append(row)
        self.units[unit] = row
        self.stopped.discard(unit)
