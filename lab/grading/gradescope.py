"""An autograder for Gradescope: `lab export --gradescope FILE.zip [LESSONS…]`.

    setup.sh  run_autograder        what Gradescope runs: once, and for each submission
    lessons.txt  failed.json        which lessons; the answer where the grader itself fails
    README.md                       for the instructor: settings, needs, what confines a submission
    course/                         all that grading needs, and the instructor's grading.toml

The format: https://gradescope-autograders.readthedocs.io/en/latest/specs/
"""

from pathlib import Path

from lab import course
from lab.course import ROOT, SPEED, CourseError
from lab.grading.points import shown, worths
from lab.grading.submit import zipped
from lab.setup import BUILDS
from lab.words import plural

OURS = Path(__file__).with_name("templates") / "gradescope"
POINTS = "grading.toml"
FILES = ("pyproject.toml", "constraints.txt", "Makefile", "README.md", "LICENSE",
         "tests/conftest.py")
# Measured: see the template of README.md.
NEEDS = "1 CPU and 1.5 GB, time limit 40 minutes"


def export(words, out):
    """Write the zip and return the lines to print.
    A file grading.toml beside it goes into it.

    CourseError: the zip is there already or cannot be written, or grading.toml has a mistake."""
    out = Path(out)
    wanted = {course.find(word).id for word in words or ()}
    lessons = [lesson for lesson in course.lessons() if not wanted or lesson.id in wanted]
    own = out.resolve().parent / POINTS
    own = own if own.exists() else None
    most = shown(sum(worth for (_, row), worth in worths(lessons, own).items()
                     if not row.endswith(SPEED)))
    data = zipped(contents(lessons, own, most), executable=("setup.sh", "run_autograder"))
    try:
        with open(out, "xb") as file:
            file.write(data)
    except FileExistsError:
        raise CourseError(f"{out} is there already, and nothing is overwritten: name another "
                          f"file") from None
    except OSError as error:
        raise CourseError(f"cannot write {out}: {error.strerror}") from None
    return [f"{out}   {len(data):,} bytes, {plural(len(lessons), 'lesson')}"
            + (f", points of {own}" if own is not None else ""),
            f"set in Gradescope: {most} points; base image Ubuntu 22.04; {NEEDS}",
            "README.md in it says why, and what confines a submission there"]


def contents(lessons, own, most):
    """{path: bytes} of the zip."""
    ids = [lesson.id for lesson in lessons]
    files = {path.name: path.read_bytes() for path in OURS.iterdir()}
    files["README.md"] = files["README.md"].decode().format(
        points=most, lessons=", ".join(f"`{name}`" for name in ids),
        download=BUILDS["cpu"].download, disk=BUILDS["cpu"].disk).encode()
    files["lessons.txt"] = "".join(f"{name}\n" for name in ids).encode()
    if own is not None:
        files[f"course/{POINTS}"] = own.read_bytes()
    return files | {f"course/{path.relative_to(ROOT)}": path.read_bytes() for path in parts()}


def parts():
    """The course's files that grading needs: no notebooks, solutions or desks."""
    floors = [floor.name for floor in course.floors()]
    for folder in ("lab", "benchmarks", *floors, *(f"tests/{floor}" for floor in floors)):
        for path in (ROOT / folder).rglob("*"):
            names = path.relative_to(ROOT).parts
            if path.is_file() and not any(n == "__pycache__" or n.startswith(".") for n in names):
                yield path
    yield from map(ROOT.joinpath, FILES)
