"""The command `lab`: the learner's commands, and a list of all others.

Each is a few lines over the module that does the work, imported then: `lab --help` is quick.
"""

import ast
import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from lab import course, terminal
from lab.author import commands
from lab.course import CourseError
from lab.grading import commands as grading
from lab.terminal import (
    MARKS,
    Json,
    LessonWord,
    LessonWords,
    OnHost,
    console,
    options,
    own_desk,
    print_verdicts,
)

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None,
                  pretty_exceptions_enable=False,
                  help="Three Floors: lessons, checks, and your desk.")


def main():
    """Entry point of `lab`."""
    terminal.main(app)


@app.callback()
def common(desk: Annotated[Path | None, typer.Option(help="a desk other than work/")] = None):
    options["desk"] = desk


# ---- learners


@app.command("list")
def list_lessons(as_json: Json = False):
    """List all lessons with their path, needs and points.
    Planned ones are marked."""
    if as_json:
        rows = [{"id": i.id, "floor": i.floor, "title": i.title, "path": i.front["path"],
                 "needs": i.needs, "points": sum(e.points for e in i.exercises),
                 "exercises": [e.name for e in i.exercises]} for i in course.lessons()]
        print(json.dumps(rows, indent=2))
        return
    for floor in course.floors():
        console.print(f"[bold]{floor.title}")
        rows = [(i.id, i.core, i.title, f"   needs {', '.join(i.needs)}" if i.needs else "",
                 f"{sum(e.points for e in i.exercises)} points") for i in floor.lessons]
        rows += [(i, path == "core", title, "", "planned") for i, path, title in floor.planned]
        for name, core, title, needs, what in sorted(rows):
            colour = "bright_black" if what == "planned" else "default"
            console.print(f"  {'★' if core else ' '} [{colour}]{name:31} {what:9} {title}{needs}")
    console.print("★ the core path")


@app.command()
def status(as_json: Json = False):
    """Show progress by floor, and the kernels and parts that are yours."""
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
    print_progress(rows)


def print_progress(rows):
    """rows: (floor, lesson, [(exercise, whether it passed, whether it was touched)])"""
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
    from lab.desk.notebook import is_kernel
    yours = [e.name for _, _, marks in rows for e, p, _ in marks if p and is_kernel(e)]
    names = f" ({', '.join(yours)})" if yours else ""
    console.print(f"kernels and parts that are yours: {len(yours)}{names}")


@app.command()
def start(lessons: LessonWords = None):
    """Put lessons on the desk, all of them if no lesson is named.
    Older copies are brought up to date."""
    from lab.desk.desk import Desk

    desk = Desk.find(options["desk"])
    chosen = [course.find(lesson) for lesson in lessons] if lessons else course.lessons()
    desk.prepare()
    for one in chosen:
        for suffix, what in desk.start(one).items():
            if what != "same":
                aside = "; the old file is in .kept/" if what == "rebuilt" else ""
                print(f"{what:9} {desk.label(desk.path(one, suffix))}{aside}")
    print(f"{len(chosen)} lesson(s) on the desk {desk.folder}")


@app.command("open")
def open_desk(lesson: LessonWord = None,
              browser: Annotated[bool, typer.Option(help="open a browser window")] = True):
    """Open a lesson in JupyterLab.
    A server that is already running is used again."""
    from lab.desk import jupyter

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
    problems: Annotated[bool, typer.Option(
        "--problems", help="then each fail in one line, path:line: error: …, for editors")] = False,
    on: OnHost = None,
):
    """Grade the desk.
    Exit 0: all passed; 1: a fail; 2: cannot run; 3: no fail, not all passed.
    With --on, those exercises whose speed counts are graded on the GPU of HOST."""
    from lab.judge import report

    lessons, exercise = chosen(what, file, on)
    reports = []
    codes = []
    unrecorded = []
    for lesson in lessons:
        names = [exercise.name] if exercise else None
        candidate = from_file(lesson, file) if file else own_desk().candidate(lesson)
        if file and exercise is None and file.suffix != ".ipynb":
            language = lesson.language(file)
            names = [e.name for e in lesson.exercises if e.language == language]
        verdicts = graded(lesson, candidate, names, on)
        if file is None:
            verdicts = recorded(own_desk(), lesson, candidate, verdicts, unrecorded)
        verdicts = list(verdicts) if as_json else print_verdicts(lesson, candidate, verdicts)
        if problems and not as_json:
            for line in report.problems(lesson, candidate, verdicts):
                print(line)
        codes.append(report.exit_code(verdicts))
        reports.append(report.report(lesson, candidate, verdicts))
    if as_json:
        print(report.dumps(reports[0] if len(reports) == 1 else reports))
    if unrecorded:
        terminal.refuse(f"the verdicts were not recorded: {unrecorded[0]}", "lab")
    raise typer.Exit(1 if 1 in codes else max(codes))


def recorded(desk, lesson, candidate, verdicts, unrecorded):
    """The verdicts, each remembered on the desk before anybody sees it: a check may be cut short.
    unrecorded: filled with the errors of a desk that cannot be written"""
    for verdict in verdicts:
        try:
            desk.record(lesson, candidate, [verdict])
        except CourseError as error:
            unrecorded.append(error)
        yield verdict


def graded(lesson, candidate, names, on):
    """Verdicts from this machine, or from another one's GPU."""
    from lab import elsewhere
    from lab.judge import forked

    if on is not None:
        return elsewhere.verdicts(on, lesson, candidate, names)
    return forked.verdicts(lesson, candidate, names)


def chosen(what, file, on=None):
    """(lessons, exercise or None) for a command's argument; without one the whole desk, of which
    another machine gets what needs its GPU."""
    from lab import elsewhere

    if what is not None:
        lesson, exercise = course.find_exercise(what)
        return [lesson], exercise
    if file is not None:
        raise CourseError(f"which lesson is {file}? `lab check LESSON --file {file}`")
    there = own_desk().lessons()
    if not there:
        raise CourseError(f"the desk {own_desk().folder} is empty: run `lab start`")
    measured = [lesson for lesson in there if elsewhere.measured(lesson)]
    return (measured if on and measured else there), None


def from_file(lesson, file):
    """The candidate made of the stubs and a file."""
    from lab.desk import answer_file, desk

    return answer_file.candidate(lesson, file, desk.Desk.find(options["desk"]).earlier(lesson))


@app.command()
def watch(lesson: LessonWord = None):
    """Check again at every save, and move on when an exercise passes.
    Ctrl-C ends it."""
    from lab.desk import watch as watching

    desk = own_desk()
    lessons, _ = chosen(lesson, None)
    watching.watch(desk, lessons, console, print_verdicts)


@app.command()
def hint(exercise: Annotated[str, typer.Argument(metavar="EXERCISE")]):
    """Show the next of three hints."""
    from lab.desk import hints

    _, one = course.find_exercise(exercise)
    if one is None:
        raise CourseError(f"{exercise} is a lesson; name an exercise of it")
    print(hints.next_hint(one, own_desk()))


@app.command()
def show(
    exercise: Annotated[str, typer.Argument(metavar="EXERCISE")],
    now: Annotated[bool, typer.Option("--now", help="even before a pass or third hint")] = False,
):
    """Show the course's own solution to an exercise."""
    from lab.desk import hints

    _, one = course.find_exercise(exercise)
    if one is None:
        raise CourseError(f"{exercise} is a lesson; name an exercise of it")
    print(hints.show(one, None if now else own_desk(), now))


@app.command()
def reset(what: Annotated[str, typer.Argument(metavar="LESSON[/EXERCISE]")]):
    """Put the stub back.
    The old text is kept."""
    lesson, exercise = course.find_exercise(what)
    desk = own_desk()
    for path in desk.reset(lesson, exercise):
        print(f"kept {desk.label(path)}")
    print(f"{exercise.id if exercise else lesson.id} is the stub again")


app.command()(grading.submit)       # here, since the help keeps this order


@app.command()
def doctor(as_json: Json = False):
    """Show what this machine can run, and what to do about the rest."""
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


# ---- authors, and instructors, whose commands a student edition lacks


for function in (commands.bench, commands.new, commands.rename, commands.build,
                 commands.verify):
    app.command()(function)
if not course.edition():
    for function in (grading.grade, grading.release, grading.export):
        app.command()(function)


# ---- the floors' own commands, registered by entry point: this file names none of them


def first_line(entry):
    """A command's help: the first paragraph of the docstring of the function with its name, read
    from the file.
    A module outside the course is only named."""
    file = course.ROOT / f"{entry.module.replace('.', '/')}.py"
    for node in ast.parse(file.read_text("utf-8")).body if file.exists() else ():
        if isinstance(node, ast.FunctionDef) and node.name == entry.name:
            return ast.get_docstring(node).partition("\n\n")[0]
    return f"From {entry.module}."


def register(entry):
    """Offer an entry point's typer app as a command.
    It is imported only when called: a floor takes seconds."""
    @app.command(entry.name, help=first_line(entry), add_help_option=False,
                 context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def call(context: typer.Context):
        try:
            command = entry.load()
        except (ImportError, AttributeError) as error:
            raise CourseError(f"the command {entry.name}, registered as {entry.value}, cannot be "
                              f"loaded: {error}") from None
        raise typer.Exit(command(context.args, prog_name=f"lab {entry.name}",
                                 standalone_mode=False))


for command in entry_points(group="lab.commands"):
    register(command)

if __name__ == "__main__":
    main()
