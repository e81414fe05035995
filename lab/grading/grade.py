"""What `lab grade` does, from the submissions to the reports."""

import contextlib
import os
import secrets
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lab import course, device
from lab.course import CourseError
from lab.grading import channels, intake, reports, run, seccomp
from lab.grading.journal import Journal


def grade(submissions, out, console, *, lessons=None, jobs=1, resume=False, shard=None, merge=False,
          required=False, roster=None, points=None, overrides=None, best=False,
          edition=None):
    """Grade, write every report once all units are done, and return the lines to print at the end.

    The instructor's files are read first: a mistake in one is reported before anything is graded.
    """
    seed = device.grading_seed()
    device.forget_environment()
    sent = intake.read_all(submissions)
    if not sent:
        raise CourseError(f"no submissions in {submissions}: expected archives, notebooks, files "
                          f"or folders, one or more per student")
    part = run.shard_of(shard) if shard else (1, 1)
    file = out / ("journal.jsonl" if shard is None else f"journal-{part[0]}-of-{part[1]}.jsonl")
    journal = merged(out) if merge else resumed(file, lessons) if resume else None
    lessons_asked = run.chosen(lessons) if journal is None else [
        lesson for lesson in course.lessons() if lesson.id in journal.header["lessons"]]
    beside = Path(submissions).resolve().parent / "grading.toml"
    points = points or (beside if beside.exists() else None)
    rules = reports.read(lessons_asked, {one.student for one in sent}, points, roster, overrides)
    level = None if merge else announce_level(required, console)
    held_back = same_edition(edition, journal)
    journal = journal or Journal.begin(
        file, lessons_asked, shared_seed(out, seed) if shard else seed, held_back)
    grading = run.Grading(sent, lessons_asked, journal, level, jobs, part, held_back)
    if not merge:
        watched(grading, console)
    if shard:
        return [f"shard {shard}: {len(grading.submissions)} submissions graded; when all shards "
                f"are done, --merge writes the reports"]
    if left := grading.units():
        raise CourseError(f"{len(left)} units are not graded yet, the first is "
                          f"{left[0][0].path}, {left[0][1].id}: run its shard again with --resume")
    return [*reports.write(out, grading.graded(), rules, lessons=lessons_asked, best=best),
            f"written: {out}"]


def announce_level(required, console):
    """Print the sandbox of this run and return its level."""
    level, reasons = run.level(required)
    why = f" ({'; '.join(reasons)})" if reasons else ""
    console.print(f"sandbox: {level}{why}", markup=False)
    for line in channels.said(level, seccomp.problem()):
        console.print(line, markup=False)
    return level


def resumed(file, lessons):
    """The journal of a run that was begun."""
    journal = Journal.resume(file)
    now = {lesson.id: lesson.fingerprint for lesson in course.lessons()}
    if lessons and {i.id for i in run.chosen(lessons)} != set(journal.header["lessons"]):
        raise CourseError(f"{file} was begun with other lessons "
                          f"({', '.join(journal.header['lessons'])}): leave --lessons out")
    for lesson, known in journal.header["lessons"].items():
        if now.get(lesson) != known:
            raise CourseError(f"{lesson} has changed since {file} was begun: grade into another "
                              f"folder")
    return journal


def same_edition(folder, journal):
    """Ids of the lessons whose answers the class does not have.
    CourseError where a run was begun with others. folder: that of --edition, None without it"""
    if folder is None and journal is not None:
        return set(journal.header["held_back"])
    held_back = run.held_back(folder)
    if journal is not None and sorted(held_back) != journal.header["held_back"]:
        raise CourseError(f"{journal.file} was begun with another edition than {folder}: leave "
                          f"--edition out, or grade into another folder")
    return held_back


def merged(out):
    """The shards' journals as one, in memory."""
    journals = [Journal.resume(file) for file in sorted(out.glob("journal*.jsonl"))]
    if not journals:
        raise CourseError(f"nothing to merge: no journal*.jsonl in {out}")
    first = journals[0]
    for other in journals[1:]:
        if other.header != first.header:
            raise CourseError(f"{other.file} and {first.file} are from different runs: their "
                              f"seeds, lessons or editions differ")
        first.units |= other.units
    return first


def shared_seed(out, seed):
    """The seed that all shards share: that of the first one."""
    file = out / "seed"
    own = out / f"seed.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        own.touch(0o600)
        own.write_text(f"{seed}\n")
        with contextlib.suppress(FileExistsError):
            os.link(own, file)          # complete, or already there
        own.unlink()
        return int(file.read_text())
    except OSError as error:
        raise CourseError(f"cannot write to {out}: {error.strerror}") from None


def watched(grading, console):
    """Grade with a progress bar."""
    todo = len(grading.units())
    with Progress(TextColumn("grading"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                  console=console) as bar:
        task = bar.add_task("", total=todo)
        grading.run(lambda: bar.advance(task))
