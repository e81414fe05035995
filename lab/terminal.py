"""What all commands share: how they end, the words they take, the learner's desk, the printing."""

import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from lab.course import CourseError

console = Console(highlight=False, soft_wrap=True)
MARKS = {"pass": ("✓", "green"), "fail": ("✗", "red"), "not_attempted": ("·", "bright_black"),
         "not_proven_here": ("?", "yellow"), "error": ("!", "magenta")}

# The base of typer's own complaints: click's in older versions, its copy of click's in newer ones.
Misuse = typer.BadParameter.__mro__[2]
LESSON = typer.Argument(metavar="LESSON", help="an id, or its start: k07")
LessonWord = Annotated[str | None, LESSON]
LessonWords = Annotated[list[str] | None, LESSON]
Json = Annotated[bool, typer.Option("--json", help="machine-readable")]
OnHost = Annotated[str | None, typer.Option("--on", metavar="HOST[:FOLDER]", help=(
    "a machine with a GPU, by ssh; FOLDER holds a clone of the course there"))]
options = {"desk": None}            # of `lab` itself, before the command's name


def main(command, name="lab"):
    """Run a typer app: a user's mistake is one line on stderr and exit code 2."""
    try:
        code = command(prog_name=name, standalone_mode=False)
    except CourseError as error:
        code = refuse(str(error), name)
    except Misuse as error:
        code = refuse(error.format_message(), name)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:             # the reader, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    raise SystemExit(code)


def refuse(text, name):
    print(f"{name}: {' '.join(text.split())}", file=sys.stderr)
    return 2


def own_desk(folder=None):
    """The learner's desk. folder: from a command that has its own --desk."""
    from lab.desk.desk import Desk

    desk = Desk.find(folder or options["desk"])
    if not desk.exists():
        raise CourseError(f"no desk at {desk.folder}: run `lab start`")
    return desk


def print_verdicts(lesson, candidate, verdicts):
    """Print each verdict as it comes; the list of them.
    On a terminal a line says how far it is."""
    console.print(f"[bold]{lesson.id}[/]   {escape(candidate.source())}")
    rows = []
    with console.status("the first exercise is running") as status:
        for v in verdicts:
            rows.append(v)
            mark, colour = MARKS[v.verdict]
            console.print(f"  [{colour}]{mark} {v.verdict.replace('_', ' '):15}[/] {v.name}")
            untouched = v.verdict == "not_attempted" and v.message.startswith("still the stub")
            for line in () if untouched else v.message.splitlines():
                console.print(f"      {line}", markup=False)
            status.update(f"{len(rows)} judged, the next is running")
    counts = {k: sum(v.verdict == k for v in rows) for k in MARKS}
    earned = sum(v.points or 0 for v in rows)
    most = sum(v.max_points for v in rows if v.points is not None)
    console.print("  " + ", ".join(f"{n} {k.replace('_', ' ')}" for k, n in counts.items() if n)
                  + f"   {earned} of {most} points")
    return rows
