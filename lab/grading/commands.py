"""`lab submit` and the instructors' commands.
`lab` imports this to list them: each command imports the code that does its work."""

from pathlib import Path
from typing import Annotated

import typer

from lab import course, device
from lab.course import CourseError
from lab.terminal import MARKS, LessonWords, console, own_desk


def submit(lessons: LessonWords = None,
           out: Annotated[Path | None, typer.Option(help="the file to write")] = None):
    """Pack what you wrote into one small zip to hand in.
    Without a name it packs all lessons."""
    from lab.grading import submit as submitting

    desk = own_desk()
    chosen = [course.find(word) for word in lessons or ()] or desk.lessons()
    if away := [lesson.id for lesson in chosen if not desk.has(lesson)]:
        raise CourseError(f"not on the desk {desk.folder}: {', '.join(away)}")
    packed = submitting.pack(desk, chosen)
    path = submitting.write(packed, desk, out)
    words = {"passed": ("pass", "packed, passed"), "touched": ("fail", "packed, not passed as it "
             "stands"), "stub": ("not_attempted", "left out: still the stub")}
    for row in packed.rows:
        verdict, word = words[row.what]
        mark, colour = MARKS[verdict]
        console.print(f"[{colour}]{mark}[/] {row.exercise.id:50} {word}")
    for note in packed.notes:
        console.print(f"! {note}", markup=False)
    print(f"{path}   {len(packed.data):,} bytes")


def grade(
    submissions: Annotated[Path, typer.Argument(metavar="SUBMISSIONS",
                                                help="a folder of what students sent")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="where the journal and the reports go")],
    lessons: Annotated[str | None, typer.Option(help="ids, separated by commas; all if not given")]
        = None,
    jobs: Annotated[int, typer.Option(min=1, help="units at a time")] = device.workers(),
    resume: Annotated[bool, typer.Option("--resume", help="continue where a run stopped")] = False,
    shard: Annotated[str | None, typer.Option(metavar="I/N", help="one part of N")] = None,
    merge: Annotated[bool, typer.Option("--merge", help="write the reports of all shards")] = False,
    require_sandbox: Annotated[bool, typer.Option(
        "--require-sandbox", help="refuse to grade where only limits hold")] = False,
    roster: Annotated[Path | None, typer.Option(help="a Canvas gradebook, or a CSV with a column "
                                                     "student")] = None,
    points: Annotated[Path | None, typer.Option(
        help="a file to use instead of grading.toml beside SUBMISSIONS")] = None,
    overrides: Annotated[Path | None, typer.Option(help="a CSV of regrades")] = None,
    best: Annotated[bool, typer.Option("--best", help="a student's best submission counts, not "
                                                      "the latest")] = False,
    edition: Annotated[Path | None, typer.Option(help="the students' folder of `lab release`: "
                                                      "code under test does not see the answers "
                                                      "it held back")] = None,
):
    """Grade a folder of untrusted submissions.
    Tables and pages go into --out."""
    from lab.grading import grade as grading

    for line in grading.grade(submissions, out, console, lessons=lessons, jobs=jobs, resume=resume,
                              shard=shard, merge=merge, required=require_sandbox, roster=roster,
                              points=points, overrides=overrides, best=best,
                              edition=edition):
        console.print(line, markup=False)


def release(
    lessons: Annotated[list[str], typer.Argument(
        metavar="LESSONS…", help="ids, starts of ids, floors, or k01..k08")],
    out: Annotated[Path, typer.Option(help="an empty or new folder")],
    answers_until: Annotated[str | None, typer.Option(
        metavar="LESSON", help="all lessons up to this one come with their answers")] = None,
    hints: Annotated[bool, typer.Option(help="with the hints; the third says a lot")] = True,
):
    """Make a student edition, as a git repository.
    It has only the answers that you give."""
    from lab.grading import release as releasing

    plan = releasing.edition(lessons, answers_until, hints)
    for note in releasing.release(plan, out):
        print(f"note: {note}")
    print(f"{len(plan.lessons)} lessons, {len(plan.answered)} with answers, in {out}")


def export(
    lessons: LessonWords = None,
    nbgrader: Annotated[Path | None, typer.Option(
        metavar="DIR", help="a course folder for nbgrader, in an empty folder")] = None,
    gradescope: Annotated[Path | None, typer.Option(
        metavar="FILE.zip", help="an autograder for Gradescope")] = None,
):
    """Export lessons to another grader.
    Without a name it exports all lessons."""
    if (nbgrader is None) == (gradescope is None):
        raise CourseError("export to what? `lab export --nbgrader DIR` or `lab export --gradescope "
                          "FILE.zip`")
    if gradescope is not None:
        from lab.grading import gradescope as autograders

        for line in autograders.export(lessons, gradescope):
            console.print(line, markup=False)
        return
    from lab.grading import nbgrader as nbgraders

    chosen = nbgraders.export(lessons, nbgrader)
    print(f"{len(chosen)} assignment(s) in {nbgrader}. nbgrader runs a learner's code in the "
          f"process that awards the points, without the isolation of `lab grade`")
