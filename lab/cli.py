"""The command `lab`. Every command is a few lines over the module that does the work."""

import json
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lab import course
from lab.course import SUFFIX, CourseError

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None,
                  pretty_exceptions_enable=False,
                  help="The GPU course: lessons, checks, and your desk.")
console = Console(highlight=False, soft_wrap=True)
MARKS = {"pass": ("✓", "green"), "fail": ("✗", "red"), "not_attempted": ("·", "bright_black"),
         "not_proven_here": ("?", "yellow"), "error": ("!", "magenta")}

# The base of typer's own complaints: click's in older versions, its copy of click's in newer ones.
Misuse = typer.BadParameter.__mro__[2]
LESSON = typer.Argument(metavar="LESSON", help="an id, or its start: k07")
LessonWord = Annotated[str | None, LESSON]
LessonWords = Annotated[list[str] | None, LESSON]
Json = Annotated[bool, typer.Option("--json", help="machine-readable")]
OnlyCheck = Annotated[bool, typer.Option("--check", help="say what is stale; write nothing")]
options = {"desk": None}


def main(command=app, name="lab"):
    """Entry point: a user's mistake is one line on stderr and exit code 2."""
    try:
        code = command(prog_name=name, standalone_mode=False)
    except CourseError as error:
        code = refuse(str(error), name)
    except Misuse as error:
        code = refuse(error.format_message(), name)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:             # the reader, `head` say, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    raise SystemExit(code)


def refuse(text, name):
    print(f"{name}: {' '.join(text.split())}", file=sys.stderr)
    return 2


@app.callback()
def common(desk: Annotated[Path | None, typer.Option(help="another desk than work/")] = None):
    options["desk"] = desk


def own_desk(folder=None):
    """The learner's desk. folder: of a command that has --desk itself."""
    from lab.desk import Desk

    desk = Desk.find(folder or options["desk"])
    if not desk.exists():
        raise CourseError(f"no desk at {desk.folder}: run `lab start`")
    return desk


# ---- learners


@app.command("list")
def list_lessons(as_json: Json = False):
    """The map: every lesson with its path, needs and points; what is planned is marked."""
    if as_json:
        rows = [{"id": i.id, "floor": i.floor, "title": i.title, "path": i.front["path"],
                 "needs": i.needs, "points": sum(e.points for e in i.exercises),
                 "exercises": [e.name for e in i.exercises]} for i in course.lessons()]
        print(json.dumps(rows, indent=2))
        return
    for floor in course.floors():
        console.print(f"[bold]{floor.title}")
        rows = [(i.id, i.core, i.title, f"   needs {', '.join(i.needs)}" * bool(i.needs),
                 f"{sum(e.points for e in i.exercises)} points") for i in floor.lessons]
        rows += [(i, path == "core", title, "", "planned") for i, path, title in floor.planned]
        for name, core, title, needs, what in sorted(rows):
            colour = "bright_black" if what == "planned" else "default"
            console.print(f"  {'★' if core else ' '} [{colour}]{name:31} {what:9} {title}{needs}")
    console.print("★ the core path")


@app.command()
def status(as_json: Json = False):
    """Progress by floor; kernels and parts that are yours."""
    desk = own_desk()
    on = {i.id for i in desk.lessons()}
    rows = [(floor, lesson, [(e, desk.passed(e), desk.touched(e)) for e in lesson.exercises])
            for floor in course.floors() for lesson in floor.lessons if lesson.id in on]
    if as_json:
        lessons = [{"id": lesson.id, "exercises": [{"name": e.name, "passed": p, "touched": t}
                                                   for e, p, t in marks]}
                   for _, lesson, marks in rows]
        print(json.dumps({"desk": str(desk.folder), "lessons": lessons}, indent=2))
        return
    if not rows:
        raise CourseError(f"the desk {desk.folder} is empty: run `lab start`")
    last = None
    for floor, lesson, marks in rows:
        if floor is not last:
            everything = [p for f, _, ms in rows if f is floor for _, p, _ in ms]
            console.print(f"[bold]{floor.title}[/]   {sum(everything)} of {len(everything)} passed")
            last = floor
        console.print(f"  {lesson.id}")
        for e, passed, touched in marks:
            verdict, word = (("pass", "yours") if passed else
                             ("fail", "touched, not passed as it stands") if touched else
                             ("not_attempted", "not attempted"))
            mark, colour = MARKS[verdict]
            console.print(f"    [{colour}]{mark}[/] {e.name:34} {word}")
    from lab.notebook import is_kernel
    yours = [e.name for _, _, marks in rows for e, p, _ in marks if p and is_kernel(e)]
    names = f" ({', '.join(yours)})" if yours else ""
    console.print(f"kernels and parts that are yours: {len(yours)}{names}")


@app.command()
def start(lesson: LessonWord = None):
    """Put lessons on the desk, all of them if none is named; bring older copies up to date."""
    from lab.desk import Desk

    desk = Desk.find(options["desk"])
    chosen = [course.find(lesson)] if lesson is not None else course.lessons()
    desk.prepare()
    for one in chosen:
        for suffix, what in desk.start(one).items():
            if what != "same":
                kept = "; the old file is in .kept/" if what == "rebuilt" else ""
                print(f"{what:9} {desk.label(desk.path(one, suffix))}{kept}")
    print(f"{len(chosen)} lesson(s) on the desk {desk.folder}")


@app.command("open")
def open_desk(lesson: LessonWord = None,
              browser: Annotated[bool, typer.Option(help="open a browser window")] = True):
    """JupyterLab on the desk, at a lesson; a server that runs already is used again."""
    from lab import jupyter

    desk = own_desk()
    there = desk.lessons()
    one = course.find(lesson) if lesson is not None else there[0] if there else None
    if one is None or not desk.has(one):
        raise CourseError(f"{one.id if one else 'no lesson'} is not on the desk: run `lab start`")
    raise typer.Exit(jupyter.serve(desk, desk.path(one, ".ipynb"), browser))


@app.command()
def check(
    what: Annotated[str | None, typer.Argument(metavar="LESSON[/EXERCISE]")] = None,
    file: Annotated[Path | None, typer.Option(help="grade this .py, .cu or .ipynb instead")] = None,
    as_json: Json = False,
):
    """Grade the desk. Exit 0: all passed; 1: a fail; 2: cannot run; 3: no fail, not all passed."""
    from lab import check as checking

    lessons, exercise = chosen(what, file)
    reports, codes = [], []
    for lesson in lessons:
        names = [exercise.name] if exercise else None
        candidate = from_file(lesson, file) if file else own_desk().candidate(lesson)
        if file and exercise is None and file.suffix != ".ipynb":
            language = lesson.language(file)
            names = [e.name for e in lesson.exercises if e.language == language]
        verdicts = checking.grade(lesson, candidate, names)
        if file is None:
            own_desk().record(lesson, candidate, verdicts)
        codes.append(checking.exit_code(verdicts))
        reports.append(checking.report(lesson, candidate, verdicts))
        if not as_json:
            print_verdicts(lesson, candidate, verdicts)
    if as_json:
        print(checking.dumps(reports[0] if len(reports) == 1 else reports))
    raise typer.Exit(1 if 1 in codes else max(codes))


def chosen(what, file):
    """(lessons, exercise or None) that a command's argument means; without one, the whole desk."""
    if what is not None:
        lesson, exercise = course.find_exercise(what)
        return [lesson], exercise
    if file is not None:
        raise CourseError(f"which lesson is {file}? `lab check LESSON --file {file}`")
    there = own_desk().lessons()
    if not there:
        raise CourseError(f"the desk {own_desk().folder} is empty: run `lab start`")
    return there, None


def from_file(lesson, file):
    """The candidate made of the stubs and what a file holds."""
    from lab import desk, notebooks, stub
    from lab.candidate import Candidate

    if file.suffix not in (".py", ".cu", ".ipynb"):
        raise CourseError(f"{file}: expected a .py, .cu or .ipynb file")
    text = desk.read_given(file)
    parts = (notebooks.code(text, str(file)) if file.suffix == ".ipynb" else
             [(lesson.language(file), text)])
    sources, labels, origins = dict(lesson.stubs), {k: str(file) for k in lesson.stubs}, {}
    for language, part in parts:
        if language not in sources:
            raise CourseError(f"{lesson.id} has no {SUFFIX[language]} exercises, {file} holds some")
        if file.suffix == ".ipynb" and not defines_any(lesson, part, language):
            continue
        try:
            spliced = stub.splice(sources[language], part, language)
        except (SyntaxError, ValueError):       # kept as it is: the verdict names the line
            sources[language] = part
            continue
        sources[language] = spliced.text
        if file.suffix != ".ipynb":
            origins[language] = spliced.origin
    return Candidate(sources, labels, origins,
                     earlier=desk.Desk.find(options["desk"]).earlier(lesson))


def defines_any(lesson, text, language):
    from lab import stub

    try:
        names = set(stub.definitions(text, language))
    except (SyntaxError, ValueError):
        return any(e.name in text for e in lesson.exercises)
    return any(e.name in names or e.name.split(".")[0] in names for e in lesson.exercises)


def print_verdicts(lesson, candidate, verdicts):
    console.print(f"[bold]{lesson.id}[/]   {candidate.source()}", markup=True)
    for v in verdicts:
        mark, colour = MARKS[v.verdict]
        console.print(f"  [{colour}]{mark} {v.verdict.replace('_', ' '):15}[/] {v.name}")
        untouched = v.verdict == "not_attempted" and v.message.startswith("still the stub")
        for line in () if untouched else v.message.splitlines():
            console.print(f"      {line}", markup=False)
    counts = {k: sum(v.verdict == k for v in verdicts) for k in MARKS}
    earned = sum(v.points or 0 for v in verdicts)
    most = sum(v.max_points for v in verdicts if v.points is not None)
    console.print("  " + ", ".join(f"{n} {k.replace('_', ' ')}" for k, n in counts.items() if n)
                  + f"   {earned} of {most} points")


@app.command()
def watch(lesson: LessonWord = None):
    """Check again at every save, and move on when an exercise passes. Ctrl-C ends it."""
    from lab import watch as watching

    desk = own_desk()
    lessons, _ = chosen(lesson, None)
    watching.watch(desk, lessons, console, print_verdicts)


@app.command()
def hint(exercise: Annotated[str, typer.Argument(metavar="EXERCISE")]):
    """The next of three hints."""
    from lab import hints

    _, one = course.find_exercise(exercise)
    if one is None:
        raise CourseError(f"{exercise} is a lesson; name an exercise of it")
    print(hints.next_hint(one, own_desk()))


@app.command()
def show(
    exercise: Annotated[str, typer.Argument(metavar="EXERCISE")],
    now: Annotated[bool, typer.Option("--now", help="before a pass or the third hint")] = False,
):
    """The course's own solution of an exercise."""
    from lab import hints

    _, one = course.find_exercise(exercise)
    if one is None:
        raise CourseError(f"{exercise} is a lesson; name an exercise of it")
    print(hints.show(one, None if now else own_desk(), now))


@app.command()
def reset(what: Annotated[str, typer.Argument(metavar="LESSON[/EXERCISE]")]):
    """Back to the stub; the old text is kept."""
    lesson, exercise = course.find_exercise(what)
    desk = own_desk()
    for kept in desk.reset(lesson, exercise):
        print(f"kept {desk.label(kept)}")
    print(f"{exercise.id if exercise else lesson.id} is the stub again")


@app.command()
def submit(lessons: LessonWords = None,
           out: Annotated[Path | None, typer.Option(help="the file to write")] = None):
    """Pack what you wrote into one small zip to hand in; all lessons if none is named."""
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


@app.command()
def doctor(as_json: Json = False):
    """What this machine can run, and what to do about the rest."""
    from lab import doctor as examine

    rows = examine.examine()
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            mark, colour = MARKS["pass" if row["ok"] else "not_proven_here"]
            console.print(f"[{colour}]{mark}[/] {row['name']:14} {row['found']}")
            if row["do"]:
                console.print(f"  {'':14} → {row['do']}", markup=False)
    raise typer.Exit(0 if all(row["ok"] for row in rows if row["needed"]) else 2)


@app.command()
def bench(lesson: LessonWord = None, as_json: Json = False):
    """Measure the lessons' kernels on this machine's GPU, into benchmarks/<device>.json; without
    one, what is for its CPU, and nothing is recorded."""
    from lab import bench as benching
    from lab import device, record

    rows = {}
    for one in [course.find(lesson)] if lesson is not None else benching.units(benching.here()):
        found = benching.unit(one)
        rows[one.id] = found["results"]
        if not as_json:
            print(benching.text(one, rows[one.id]), flush=True)
        if device.gpu():
            file = record.keep(device.gpu(), f"bench {one.id}", found)
    if as_json:
        print(json.dumps(rows, indent=1))
    if device.gpu():
        print(f"written: {file.relative_to(record.ROOT)}; `lab build` makes the tables from it",
              file=sys.stderr)


# ---- authors


@app.command()
def new(name: Annotated[str, typer.Argument(metavar="ID")]):
    """The scaffold of a lesson: reference, Markdown, grader, mutants."""
    from lab import scaffold

    for path in scaffold.write(name):
        print(f"new {path.relative_to(course.ROOT)}")
    print(f'now add "{name}" to lab/course.toml, write, then `lab build {name}` and '
          f"`lab verify {name}`")


@app.command()
def build(lesson: LessonWord = None, only_check: OnlyCheck = False):
    """Generate notebooks, solutions (executed if sources changed), tables of contents and maps."""
    from lab import build as building

    lessons = [course.find(lesson)] if lesson is not None else course.lessons()
    if only_check:
        stale = building.check(lessons)
        for line in stale:
            print(line)
        advice = ": run `lab build`" if stale else ""
        print(f"{len(lessons)} lesson(s) checked, {len(stale)} stale{advice}")
        raise typer.Exit(1 if stale else 0)
    for path in building.build(lessons):
        print(f"made {path.relative_to(course.ROOT)}")


@app.command()
def verify(
    lessons: LessonWords = None,
    as_json: Json = False,
    jobs: Annotated[int, typer.Option(help="lessons' exercises at a time")] = os.cpu_count() or 1,
    mutants: Annotated[int | None, typer.Option(help="of an exercise at most; all if not given")]
        = None,
):
    """Prove the graders: references pass, stubs are not attempted, mutants fail as they say."""
    from lab import verify as verifying

    chosen = [course.find(word) for word in lessons or ()] or course.lessons()
    rows = verifying.verify(chosen, jobs, None if as_json else console, mutants)
    if as_json:
        print(json.dumps(rows, indent=2))
    raise typer.Exit(1 if any(row["ok"] is False for row in rows) else 0)


# ---- instructors; a student edition has none of this


def instructors(command):
    return command if course.edition() else app.command()(command)


@instructors
def grade(
    submissions: Annotated[Path, typer.Argument(metavar="SUBMISSIONS",
                                                help="a folder of what students sent")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="for the journal and the reports")],
    lessons: Annotated[str | None, typer.Option(help="ids, separated by commas; all if not given")]
        = None,
    jobs: Annotated[int, typer.Option(min=1, help="units at a time")] = os.cpu_count() or 1,
    resume: Annotated[bool, typer.Option("--resume", help="go on where a run stopped")] = False,
    shard: Annotated[str | None, typer.Option(metavar="I/N", help="one part of N")] = None,
    merge: Annotated[bool, typer.Option("--merge", help="make the reports of all shards")] = False,
    require_sandbox: Annotated[bool, typer.Option(
        "--require-sandbox", help="refuse to grade where only limits hold")] = False,
    roster: Annotated[Path | None, typer.Option(help="a Canvas gradebook, or a CSV with a column "
                                                     "student")] = None,
    points: Annotated[Path | None, typer.Option(help="instead of grading.toml beside SUBMISSIONS")]
        = None,
    overrides: Annotated[Path | None, typer.Option(help="a CSV of regrades")] = None,
    best: Annotated[bool, typer.Option("--best", help="a student's best submission counts, not "
                                                      "the latest")] = False,
):
    """Grade a folder of submissions that nobody has to trust; tables and pages into --out."""
    from lab.grading import command

    for line in command.grade(submissions, out, console, lessons=lessons, jobs=jobs, resume=resume,
                              shard=shard, merge=merge, required=require_sandbox, roster=roster,
                              points=points, overrides=overrides, best=best):
        console.print(line, markup=False)


@instructors
def release(
    lessons: Annotated[list[str], typer.Argument(
        metavar="LESSONS…", help="ids, their starts, floors, or k01..k08")],
    out: Annotated[Path, typer.Option(help="an empty folder, or none yet")],
    answers_until: Annotated[str | None, typer.Option(
        metavar="LESSON", help="all lessons up to this one come with their answers")] = None,
    hints: Annotated[bool, typer.Option(help="with the hints; the third says much")] = True,
):
    """Make a student edition: a git repository without the answers that are not given."""
    from lab.grading import release as releasing

    plan = releasing.edition(lessons, answers_until, hints)
    for note in releasing.release(plan, out):
        print(f"note: {note}")
    print(f"{len(plan.lessons)} lessons, {len(plan.answered)} with answers, in {out}")


@instructors
def export(
    lessons: LessonWords = None,
    nbgrader: Annotated[Path | None, typer.Option(
        metavar="DIR", help="a course folder for nbgrader, in an empty folder")] = None,
    gradescope: Annotated[Path | None, typer.Option(
        metavar="FILE.zip", help="an autograder for Gradescope")] = None,
):
    """Hand the lessons to another grader, all of them if none is named."""
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
          f"process that decides about points: nothing isolates it, as `lab grade` would")


# ---- the floors' own commands, registered by entry point: this file names none of them


def register(entry):
    """Offer an entry point's typer app as a command. It is imported when it is called: a floor
    takes seconds."""
    @app.command(entry.name, help=f"From {entry.module}; `lab {entry.name} --help` says more.",
                 add_help_option=False,
                 context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def call(context: typer.Context):
        try:
            command = entry.load()
        except (ImportError, AttributeError) as error:
            raise CourseError(f"the command {entry.name}, registered as {entry.value}, cannot be "
                              f"loaded: {error}") from None
        raise typer.Exit(command(context.args, prog_name=f"lab {entry.name}",
                                 standalone_mode=False))


for found in entry_points(group="lab.commands"):
    register(found)

if __name__ == "__main__":
    main()
