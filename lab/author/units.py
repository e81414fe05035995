"""What a proof consists of: units, each a command of its own with the files that decide it."""

import hashlib
import importlib.metadata
import json
import platform
import random
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path

from lab import course
from lab.author import proven
from lab.course import ROOT
from lab.judge import forked

GROUP = 120             # seconds of tests that one process runs, and at most loses
QUICK = 3               # seconds: files of tests up to here are in every landing proof
NEW_FILE = 5            # seconds of a file of tests, or 30 of a notebook, that was never timed
NEW_NOTEBOOK = 30
LESSONS = 180           # seconds that whole lessons may take in a landing proof
MUTANTS = 1             # of each exercise, of a lesson that is only drawn

FULL = "not alone and not soak"
LANDING = f"{FULL} and not slow"

PYTHON = sys.executable
LAB = (PYTHON, "-m", "lab.cli")
# With the plugins that are needed: to import nbval's alone takes a second.
PYTEST = (PYTHON, "-m", "pytest", "-q", "--tb=short", "--disable-plugin-autoload",
          "-p", "pytest_timeout", "-p", "no:cacheprovider")
NBVAL = (*PYTEST, "-p", "nbval.plugin", "--nbval-lax", "--nbval-current-env",
         "--nbval-cell-timeout=600")
# Tests that hold the house itself.
HOUSE = ("tests/lab/test_house.py", "tests/lab/test_types.py", "tests/lab/test_course.py",
         "tests/lab/grading/test_every_lesson.py")
# From the desk to a verdict, and from the server to OpenAI's client.
MAIN_PATH = ("tests/lab/desk/test_learner.py::test_the_path_of_a_learner[cuda]",
             "tests/layer3_system/server/test_server.py::test_the_shipped_model")
# Its last cells write ten tokens with the learner's own kernel.
FIRST_KERNEL = "k01_vector_add"


@dataclass(frozen=True)
class Unit:
    """One process of a proof.

    inputs: the files and folders that decide how it ends, relative to the course
    seconds: what it is expected to take on one core
    alone: whether it must have the machine for itself
    drawn: whether a proof that is short of time may leave it out
    """

    name: str
    command: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    seconds: float = NEW_FILE
    alone: bool = False
    drawn: bool = False

    @property
    def reports(self):
        """How it tells what it did: "junit", a file that pytest writes; "rows", what `lab verify`
        prints; "" by its exit code."""
        if "pytest" in self.command:
            return "junit"
        return "rows" if "verify" in self.command else ""


# ---- the units there are


def house(marks):
    """Style, what is generated, and the tests of the house. marks: pytest's -m"""
    ruff = Path(PYTHON).with_name("ruff")
    everything = (".",)
    return [Unit("ruff", (str(ruff), "check", "--no-cache", "."), everything, 2),
            Unit("lab build --check", (*LAB, "build", "--check"), everything, 10),
            Unit("the house's tests", (*PYTEST, "-m", marks, *HOUSE), everything, 40)]


def test_files():
    """The files of tests, but for those of the house; without what grades exercises in them."""
    files = (str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py")))
    return [file for file in files if file not in HOUSE]


def marked(mark):
    """The files in which a test carries this mark."""
    return [file for file in test_files() if f"mark.{mark}" in (ROOT / file).read_text("utf-8")]


def tests(files, marks, name="", **more):
    """Units that run files of tests, packed by what they take. marks: pytest's -m"""
    groups = packed(files)
    return [Unit(f"{name or room(group[0])} {number}/{len(groups)}",
                 (*PYTEST, "--no-graders", "--timeout=600", "-m", marks, *group),
                 inputs_of_tests(group), sum(map(seconds_of, group)), **more)
            for number, group in enumerate(groups, 1)]


def packed(files, limit=GROUP):
    """Files of one room in groups of at most `limit` seconds, in their order."""
    groups = []
    for file in files:
        fits = groups and sum(map(seconds_of, groups[-1])) + seconds_of(file) <= limit
        if fits:
            groups[-1].append(file)
        else:
            groups.append([file])
    return groups


def room(file):
    """The folder that a file of tests is in."""
    return file.rpartition("/")[0]


def rooms():
    """{folder: its files of tests}."""
    files = {}
    for file in test_files():
        files.setdefault(room(file), []).append(file)
    return files


@cache
def timed():
    return proven.durations()


def seconds_of(name):
    """What a file of tests or a notebook took in the last full proof."""
    return timed().get(name, NEW_NOTEBOOK if name.endswith(".ipynb") else NEW_FILE)


def inputs_of_tests(files):
    """The floor that tests are of and all below it, with their tests, which may import each other,
    and the records that they read; everything for the machinery's own tests."""
    floors = [floor.name for floor in course.floors()]
    own = {Path(file).parts[1] for file in files}
    if own - {*floors}:
        return (".",)
    below = floors[:max(map(floors.index, own), default=-1) + 1]
    return ("lab", *below, *(f"tests/{name}" for name in below), "tests/conftest.py",
            "benchmarks", "pyproject.toml")


def verify(lesson, mutants=None, **more):
    """The proof of a lesson's graders. mutants: the most of each exercise"""
    most = () if mutants is None else ("--mutants", str(mutants))
    seconds = proven.seconds(lesson)
    own = tuple(str(path.relative_to(ROOT)) for path in proven.files(lesson))
    return Unit(f"verify {lesson.id}",
                (*LAB, "verify", "--json", "--jobs", "1", "--no-record", *most, lesson.id),
                (*inputs_of_tests([f"tests/{lesson.floor}/x"]), *own),
                seconds if mutants is None else seconds / 3, **more)


def notebook(lesson, **more):
    """A lesson's solution, run as a test."""
    name = str(lesson.solution.relative_to(ROOT))
    return Unit(name, (*NBVAL, name),
                (*inputs_of_tests([f"tests/{lesson.floor}/x"]), name),
                seconds_of(name), **more)


# ---- the proofs


def landing():
    """(units, the number of lessons that are proven whole).
    CourseError: there are too many."""
    if course.edition():
        return edition(), 0
    dice = random.Random(commit())
    fresh = [lesson for lesson in course.lessons() if not proven.proven(lesson)]
    refuse_too_many(fresh)
    quick = [file for file in test_files() if seconds_of(file) <= QUICK]
    units = [*house(LANDING), *tests(quick, LANDING, "quick tests"),
             Unit("the main path", (*PYTEST, *MAIN_PATH), (".",), 30),
             notebook(course.find(FIRST_KERNEL))]
    for lesson in fresh:
        units += [verify(lesson), *(notebook(lesson) for _ in [1] if lesson.id != FIRST_KERNEL)]
    return [*longest_first(units), *sample(fresh, quick, dice)], len(fresh)


def longest_first(units):
    """So that no core idles at the end."""
    return sorted(units, key=lambda unit: -unit.seconds)


def sample(fresh, quick, dice):
    """What a landing proof draws, in the order of drawing: a lesson of each floor first."""
    known = [lesson for lesson in course.lessons() if lesson not in fresh]
    dice.shuffle(known)
    first = {lesson.floor: lesson for lesson in reversed(known)}.values()
    rest = [file for file in test_files() if file not in quick]
    dice.shuffle(rest)
    files = [unit for file in rest for unit in tests([file], LANDING, file, drawn=True)]
    notebooks = [notebook(lesson, drawn=True) for lesson in known if lesson.id != FIRST_KERNEL]
    turns = chain.from_iterable(zip_longest(files, notebooks))
    return [*(verify(lesson, MUTANTS, drawn=True) for lesson in first), *filter(None, turns)]


def refuse_too_many(fresh):
    """CourseError where the lessons without a row take longer than a landing proof may."""
    from lab import device

    seconds = sum(map(proven.seconds, fresh)) / device.workers()
    if seconds > LESSONS:
        names = " ".join(lesson.id for lesson in fresh)
        raise course.CourseError(
            f"{len(fresh)} lessons have no proof on record as they are now, and would take "
            f"{seconds:.0f} s here; a landing proof takes {LESSONS} s of them. Prove them and "
            f"commit proofs/: lab verify {names}")


def edition():
    """A student edition: one mutant of each exercise that is answered, and the solutions."""
    units = [Unit("lab build --check", (*LAB, "build", "--check"), (".",), 10)]
    units += [verify(lesson, MUTANTS) for lesson in course.lessons()]
    units += [notebook(lesson) for lesson in course.lessons() if lesson.answered]
    return longest_first(units)


def full():
    """Everything that can be proven here but the soaks.
    Lessons that the same warm processes grade
    follow each other: such a process takes ten seconds to start."""
    units = house(FULL)
    for files in rooms().values():
        units += tests(files, FULL)
    units = longest_first(units)
    units += map(verify, sorted(course.lessons(), key=forked.modules))
    units += longest_first(map(notebook, course.lessons()))
    for file in marked("alone"):
        units += tests([file], "alone and not soak", f"alone {file}", alone=True)
    return units


def soak():
    """What takes hours: thousands of steps and requests, seeds by the hundred."""
    return [unit for file in marked("soak")
            for unit in tests([file], "soak", f"soak {file}", alone=True)]


@cache
def commit():
    """The commit that is checked out, "" where there is none."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


# ---- what a unit's row in the journal holds for


def key(unit):
    """A digest of a unit's command, its inputs and what is installed."""
    whole = hashlib.sha256(json.dumps([unit.command[1:], environment()]).encode())
    for name in unit.inputs:
        whole.update(digest(name).encode())
    return whole.hexdigest()


@cache
def environment():
    packages = sorted(f"{d.name} {d.version}" for d in importlib.metadata.distributions())
    return [platform.python_version(), platform.machine(), *packages]


@cache
def digest(name):
    """Of a file, or of all files that git knows below a folder."""
    whole = hashlib.sha256(name.encode())
    for path in tracked(name):
        if (ROOT / path).is_file():
            whole.update(f"{path}\0".encode() + (ROOT / path).read_bytes())
    return whole.hexdigest()


def tracked(name):
    """The files below a name that git knows or does not ignore."""
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z", "--", name],
                          cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise course.CourseError(f"git cannot list the files of {ROOT}: {done.stderr.strip()}")
    return sorted(filter(None, done.stdout.split("\0")))
