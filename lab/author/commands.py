"""The authors' commands.
`lab` imports this to list them: each imports what does the work."""

import json
import sys
from typing import Annotated

import typer

from lab import course, device
from lab.terminal import Json, LessonWord, LessonWords, OnHost, console

OnlyCheck = Annotated[bool, typer.Option("--check", help="say what is stale; write nothing")]


def bench(lesson: LessonWord = None, as_json: Json = False, on: OnHost = None):
    """Measure the lessons' kernels on this machine's GPU.
    The results go into benchmarks/<device>.json.
    Without a GPU, what is meant for a CPU is measured and nothing is recorded.
    With --on, the GPU of HOST is measured, and nothing is recorded here."""
    from lab import device
    from lab.measure import bench as benching
    from lab.measure import records

    if on is not None:
        return bench_elsewhere(on, lesson, as_json)
    rows = {}
    for one in [course.find(lesson)] if lesson is not None else benching.units(benching.here()):
        results = benching.unit(one)
        rows[one.id] = results["results"]
        if not as_json:
            print(benching.text(one, rows[one.id]), flush=True)
        if device.gpu():
            file = records.keep(device.gpu(), f"bench {one.id}", results)
    if as_json:
        print(json.dumps(rows, indent=1))
    if device.gpu():
        print(f"written: {file.relative_to(records.ROOT)}; `lab build` makes the tables from it",
              file=sys.stderr)


def bench_elsewhere(on, lesson, as_json):
    """Print what another machine's GPU reaches."""
    from lab import elsewhere
    from lab.measure import bench as benching

    rows = {}
    for one in [course.find(lesson)] if lesson is not None else benching.units():
        rows[one.id] = elsewhere.measure(on, one)
        if not as_json:
            print(benching.text(one, rows[one.id]), flush=True)
    if as_json:
        print(json.dumps(rows, indent=1))


def new(name: Annotated[str, typer.Argument(metavar="ID")]):
    """Write a new lesson's scaffold: code, Markdown, grader, mutants, twins."""
    from lab.author import scaffold

    for path in scaffold.write(name):
        print(f"new {path.relative_to(course.ROOT)}")
    print(f'now add "{name}" to lab/course.toml, write, then `lab build {name}` and '
          f"`lab verify {name}`")


def rename(exercise: Annotated[str, typer.Argument(metavar="LESSON/OLD")],
           new: Annotated[str, typer.Argument(metavar="NEW")]):
    """Rename an exercise in all files of its lesson."""
    from lab.author import rename as renaming

    lesson, one = course.find_exercise(exercise)
    if one is None:
        raise course.CourseError(f"{exercise!r} names no exercise; expected LESSON/EXERCISE")
    written, others = renaming.rename(lesson, one.name, new)
    print(*(f"written {name}" for name in written), sep="\n")
    if others:
        print(f"{one.name} is a word in these files too; look at them:", *others, sep="\n  ")
    print(f"then `lab build {lesson.id}` and `lab verify {lesson.id}`")


def build(
    lessons: LessonWords = None,
    only_check: OnlyCheck = False,
    redraw: Annotated[bool, typer.Option("--redraw", help="execute the solutions even so: other "
                                         "code that they draw with has changed")] = False,
):
    """Generate notebooks, solutions, tables of contents and maps.
    Solutions are executed if their sources changed."""
    from lab.author import build as building

    chosen = [course.find(word) for word in lessons or ()] or course.lessons()
    if only_check:
        stale = building.check(chosen)
        for line in stale:
            print(line)
        advice = ": run `lab build`" if stale else ""
        print(f"{len(chosen)} lesson(s) checked, {len(stale)} stale{advice}")
        raise typer.Exit(1 if stale else 0)
    for path in building.build(chosen, redraw):
        print(f"made {path.relative_to(course.ROOT)}")


def verify(
    lessons: LessonWords = None,
    as_json: Json = False,
    jobs: Annotated[int, typer.Option(help="exercises at a time")] = device.workers(),
    mutants: Annotated[int | None, typer.Option(help="limit for each exercise; all if not given")]
        = None,
    gaps: Annotated[bool, typer.Option("--gaps", help="which kinds of hard inputs and mistakes "
                                       "each exercise's graders use, and which never")]
        = False,
    no_record: Annotated[bool, typer.Option("--no-record", help="leave proofs/ as it is")] = False,
):
    """Prove the graders on references, stubs, mutants and twins.
    References and twins pass, stubs are not attempted, mutants fail and show their mistakes.
    A lesson proven whole is put on record in proofs/."""
    from lab.author import verify as verifying

    chosen = [course.find(word) for word in lessons or ()] or course.lessons()
    if gaps:
        show_gaps(chosen, as_json)
        return
    rows = verifying.verify(chosen, jobs, None if as_json else console, mutants,
                            record=not no_record)
    if as_json:
        print(json.dumps(rows, indent=2))
    raise typer.Exit(1 if any(row["ok"] is False for row in rows) else 0)


def show_gaps(lessons, as_json):
    """Print what the lessons' graders leave out: a report, which nothing fails by."""
    from lab.author import gaps

    rows = {}
    for lesson in lessons:
        rows[lesson.id] = gaps.examine(lesson)
        if not as_json:
            print(lesson.id, *gaps.text(rows[lesson.id]), sep="\n", flush=True)
    if as_json:
        print(json.dumps(rows, indent=2))
