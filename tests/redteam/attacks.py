"""The attacks: tables beside this file, one for each class, and how they become submissions.

    numbers    of the catalogue in README.md
    name       what the attacker does
    exercise   lesson/exercise whose points it wants; r01's `attainable` if left out
    works      the body of a function that is true where the attack worked: only then is the answer
               right.
               Or:
    source     the text sent, whose answer is wrong or empty
    verdict    what it must get; "fail" if left out. "fail or error": which one depends on
               timing, and neither earns a point

CANARY in a text becomes the path of a file outside every box, PORT the number of a socket there.
"""

import csv
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

from lab import course
from lab.course import ROOT

FOLDER = Path(__file__).parent
CONTROLS = FOLDER / "controls.toml"     # sent along with each table
TABLES = sorted(set(FOLDER.glob("*.toml")) - {CONTROLS})
USUAL = "r01_roofline/attainable"
ONLY_IF_IT_WORKS = """\
def works():
{}


def attainable(intensity, peak, bandwidth):
    return min(peak, intensity * bandwidth) if works() else None
"""


@dataclass(frozen=True)
class Attack:
    numbers: tuple
    name: str
    exercise: str
    source: str
    verdict: str

    @property
    def student(self):
        """The name of its folder among the submissions."""
        return "".join(c if c.isalnum() else "-" for c in self.name)

    @property
    def file(self):
        lesson, _, name = self.exercise.partition("/")
        return lesson + course.SUFFIX[course.find(lesson).exercise(name).language]


def read(table):
    with open(table, "rb") as stream:
        return [attack(**row) for row in tomllib.load(stream)["attack"]]


def attack(numbers, name, exercise=USUAL, works=None, source=None, verdict="fail"):
    if source is None:
        source = ONLY_IF_IT_WORKS.format(textwrap.indent(works, "    ").rstrip())
    return Attack(tuple(numbers), name, exercise, source, verdict)


def send(attacks, folder, canary, port):
    """Write each attack as a student's submission."""
    for one in attacks:
        own = folder / one.student
        own.mkdir(parents=True)
        text = one.source.replace('"CANARY', f'"{canary}').replace("PORT", str(port))
        (own / one.file).write_text(text.replace("'CANARY", f"'{canary}"), "utf-8")


def grade(submissions, out, environment, jobs=2, options=(), before=()):
    """`lab grade` in a process of its own: ({(student, lesson/exercise): its row}, what it
    printed). before: the words of a program that starts it"""
    lessons = {path.stem for path in submissions.glob("*/*.*")}
    done = subprocess.run(
        [*before, sys.executable, "-P", "-m", "lab.cli", "grade", str(submissions),
         "--out", str(out), "--lessons", ",".join(sorted(lessons)), "--jobs", str(jobs), *options],
        env=environment | {"PYTHONPATH": str(ROOT), "LAB_SEED": "1"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with open(out / "verdicts.csv", newline="", encoding="utf-8") as stream:
        rows = {(row["student"], f"{row['lesson']}/{row['exercise']}"): row
                for row in csv.DictReader(stream)}
    return rows, done.stdout + done.stderr
