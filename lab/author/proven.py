"""The record of full proofs, proofs/<floor>.json: a row for each lesson that `lab verify` proved.

A row holds for the lesson's own files as they were then.
The machinery's sources are not in its digest: the landing proof's sample and the full proof hold
those.

proofs/seconds.json says how long each file of tests and each notebook took in the last full proof.
"""

import datetime
import hashlib
import json

from lab import course
from lab.course import ROOT
from lab.measure import records

FOLDER = ROOT / "proofs"
NEW_LESSON = 60         # seconds of a lesson that was never proven: the most that one may take


def files(lesson):
    """A lesson's own files: module, kernels, prose, graders, mutants, twins."""
    paths = [lesson.path(suffix) for suffix in (".md", *course.SUFFIX.values())]
    paths += [*lesson.graders, lesson.mutants, lesson.twins]
    return [path for path in paths if path.exists()]


def digest(lesson):
    whole = hashlib.sha256()
    for path in files(lesson):
        whole.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return whole.hexdigest()


def file_of(floor):
    return FOLDER / f"{floor}.json"


def read(path):
    """A record's rows; {} where there is none."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        raise course.CourseError(f"proofs/{path.name} is damaged: expected a JSON object; "
                                 f"take it from git again") from None


def row(lesson):
    """The lesson's last row, {} without one."""
    return read(file_of(lesson.floor)).get(lesson.id, {})


def proven(lesson):
    """Whether a full proof of the lesson as it is now is on record."""
    return row(lesson).get("digest") == digest(lesson)


def seconds(lesson):
    """Seconds that a full proof of a lesson takes on one core."""
    return row(lesson).get("seconds", NEW_LESSON)


def keep(lesson, rows, seconds, of=None):
    """Put the rows of `lab verify` on record, of a lesson proven whole.
    Returns the file.

    of: the digest of the files that were proven; None: as they are now
    """
    path = file_of(lesson.floor)
    kinds = [one["proof"].partition(":")[0].split()[0] for one in rows]
    record = read(path) | {lesson.id: {
        "digest": of or digest(lesson), "proofs": len(rows),
        "mutants": kinds.count("mutant"), "twins": kinds.count("twin"),
        "not_proven_here": sum(one["ok"] is None for one in rows),
        "seconds": round(seconds), "date": datetime.date.today().isoformat()}}
    order = [i.id for i in course.lessons()]
    write(path, {name: record[name] for name in sorted(record.keys() & order, key=order.index)})
    return path


def keep_seconds(durations):
    """Put the seconds of files and notebooks on record, of a full proof that is whole."""
    write(FOLDER / "seconds.json", {name: round(s, 1) for name, s in sorted(durations.items())})


def durations():
    """{file of tests or notebook: seconds} of the last full proof."""
    return read(FOLDER / "seconds.json")


def write(path, record):
    path.parent.mkdir(exist_ok=True)
    records.write(path, record)
