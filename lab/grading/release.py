"""A student edition of the course: `lab release LESSONS --out DIR [--answers-until LESSON]`.

Released lessons ship as stubs with their graders, answered ones whole.
Of the other lessons on these floors only the modules ship, as stubs, since others import them.
A file that is not named below does not ship.
The edition is a repository of one commit, so that its history reveals nothing either.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lab import course, device
from lab.course import ROOT, SUFFIX, CourseError
from lab.grading import leaked_answers, missing_answers
from lab.judge import tape
from lab.judge.candidate import reference
from lab.judge.plugin import GradedRun

HERE = Path(__file__).parent / "edition"
MADE = {"README.md": "README.md", "check.yml": ".github/workflows/check.yml",
        "gitignore": ".gitignore"}
AS_THEY_ARE = ("LICENSE", "Makefile", "constraints.txt", "tests/conftest.py")
FOR_EDITORS = (".binder", ".devcontainer", ".vscode")
# Machinery that only the instructor or the author of the course needs.
KEPT_BACK = ("lab/grading/README.md", "lab/grading/edition/", "lab/authors.mk",
             "lab/course.toml")
# Grades every reference in the edition, which does not contain it.
GRADE = """
import json, sys
from lab import course
from lab.judge import check
from lab.judge.candidate import Candidate
earlier = {}
for name, sources in json.load(sys.stdin).items():
    lesson, labels = course.find(name), dict.fromkeys(sources, "the reference")
    for v in check.grade(lesson, Candidate(sources, labels, earlier=earlier)):
        print(json.dumps([name, v.name, v.verdict, v.message]))
    earlier |= {f"{lesson.floor}/{name}{course.SUFFIX[k]}": text for k, text in sources.items()}
"""


@dataclass(frozen=True)
class Edition:
    """Which lessons ship, and how."""

    lessons: tuple              # in the course's order
    answered: frozenset         # those of them that come with reference, solution and mutants
    hints: bool = True

    @property
    def stubs(self):
        return [lesson for lesson in self.lessons if lesson not in self.answered]

    @property
    def floors(self):
        """All floors up to the highest that has a lesson: floors import from those below."""
        names = [floor.name for floor in course.floors()]
        return names[:1 + max(names.index(lesson.floor) for lesson in self.lessons)]


def edition(words, answers_until=None, hints=True):
    """The Edition that a command's words ask for."""
    known = course.lessons()
    answered = []
    if answers_until is not None:
        answered = known[:1 + known.index(course.find(answers_until))]
    chosen = {*course.choose(words), *answered}
    if not chosen:
        raise CourseError("no lesson to release: name some, such as k01..k08, or a floor")
    return Edition(tuple(i for i in known if i in chosen), frozenset(answered), hints)


def release(plan, out, say=print):
    """Make the edition in `out`, an empty or new folder; return notes.
    A failure leaves nothing."""
    out = Path(out).resolve()
    if course.edition():
        raise CourseError("this is a student edition: release from the whole course")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CourseError(f"{out} exists and is not empty: nothing was written")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent)
    except OSError as error:
        raise CourseError(f"cannot write beside {out}: {error.strerror}") from None
    with folder as name:
        edition_folder = Path(name) / "edition"
        write(plan, edition_folder, say)
        prove(plan, edition_folder)
        notes = list(missing_answers.mend(plan, edition_folder, inside))
        commit(edition_folder)
        notes = [*leaked_answers.notes(edition_folder, plan), *notes]
        os.replace(edition_folder, out)
    return notes


# ---- what ships


def tracked():
    """Every file of the course, as git has it: an untracked file is private."""
    done = git("ls-files", "-z", folder=ROOT, why="what ships is what git tracks of the course")
    return [Path(name) for name in done.split("\0") if name and (ROOT / name).exists()]


def git(*words, folder, why):
    try:
        return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True,
                              check=True).stdout
    except FileNotFoundError:
        raise CourseError(f"no git here: {why}") from None
    except subprocess.CalledProcessError as error:
        raise CourseError(f"git {words[0]}: {error.stderr.strip()}: {why}") from None


def write(plan, folder, say):
    for path in tracked():
        text = shipped(plan, path)
        if text is not None:
            put(folder / path, text)
    put(folder / "lab" / "course.toml", manifest(plan).encode())
    put(folder / "pyproject.toml", project(plan).encode())
    for name, where in MADE.items():
        put(folder / where, (HERE / name).read_bytes())
    for lesson in plan.stubs:
        say(f"recording {lesson.id}")
        tape.write(folder / tape.file_of(lesson).relative_to(ROOT), recorded(lesson))
    for lesson in plan.lessons:
        if lesson in plan.answered:
            put(folder / lesson.solution.relative_to(ROOT), lesson.solution.read_bytes())
    inside(folder, "-m", "lab.cli", "build")        # notebooks, contents, map


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def shipped(plan, path):
    """The bytes of a file in the edition, None where it does not ship."""
    name = str(path)
    top = path.parts[0]
    machinery = top == "lab" and not name.startswith(KEPT_BACK)
    if name in AS_THEY_ARE or top in FOR_EDITORS or machinery or (
            top == "benchmarks" and path.match("benchmarks/*.json")):
        return (ROOT / path).read_bytes()
    if top == "tests":
        return (ROOT / path).read_bytes() if grader(plan, path) else None
    if top not in plan.floors or path.name == "__init__.py" and len(path.parts) == 2:
        return None
    lesson = next((i for i in course.lessons() if path.parent == Path(i.floor)
                   and path.stem == i.id), None)
    if lesson is None:
        return (ROOT / path).read_bytes()
    if path.suffix in SUFFIX.values():
        return (lesson.sources if lesson in plan.answered else lesson.stubs)[
            lesson.language(path)].encode()
    if lesson not in plan.lessons:
        return None
    return prose(lesson, plan).encode()


def grader(plan, path):
    """True for the graders of a lesson that ships, and for the proofs of an answered one's."""
    return any(ROOT / path in i.graders for i in plan.lessons) or any(
        ROOT / path in (i.mutants, i.twins) for i in plan.answered)


def prose(lesson, plan):
    """The lesson's Markdown, with or without its hints."""
    text = lesson.markdown.read_text("utf-8")
    if plan.hints:
        return text
    start, front, rest = text.split("---\n", 2)
    return "---\n".join([start, re.sub(r"^  hints:\n(?:    .*\n|\n)*", "  hints: {}\n", front,
                                       flags=re.M), rest])


def manifest(plan):
    """course.toml: lessons that do not ship are planned."""
    text = ["# A student edition, made by `lab release`. stubs: lessons without their answers."]
    for floor in course.floors():
        here = [i for i in plan.lessons if i.floor == floor.name]
        rows = [[i.id, i.front["path"], i.title] for i in floor.lessons if i not in here]
        text += ["", f"[{floor.name}]", f"title = {quoted(floor.title)}",
                 f"lessons = {quoted([i.id for i in here])}",
                 f"stubs = {quoted([i.id for i in here if i not in plan.answered])}",
                 "planned = [", *(f"    {quoted(row)}," for row in [*rows, *floor.planned]), "]"]
    return "\n".join(text) + "\n"


def quoted(value):
    """TOML writes these as JSON does."""
    return json.dumps(value, ensure_ascii=False)


def project(plan):
    """pyproject.toml without the packages and commands of floors that do not ship."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    for floor in course.floors():
        if floor.name not in plan.floors:
            text = re.sub(rf',\s*"{floor.name}"', "", text)
            text = re.sub(rf'^\w+ = "{floor.name}\..*\n', "", text, flags=re.M)
    return text


# ---- what stands in for the reference


def recorded(lesson):
    """The ReferenceTape of a lesson in its tests, all of which it passes."""
    recording = tape.ReferenceTape()
    exercises = {e.name: e for e in lesson.exercises}
    run = GradedRun(lesson, reference(lesson), exercises, tape.Taped(recording))
    refuse_unless_right([(lesson.id, v.name, v.verdict, v.message)
                         for v in run.verdicts().values()], "here")
    return recording


def refuse_unless_right(rows, where):
    """CourseError where a row, (lesson, exercise, verdict, message), is of an answer that does not
    pass; it names every lesson with such an answer."""
    wrong = [row for row in rows if row[2] not in ("pass", "not_proven_here")
             and not row[1].endswith(course.SPEED)]
    if wrong:
        lesson, exercise, verdict, message = wrong[0]
        others = ", ".join(dict.fromkeys(row[0] for row in wrong if row[0] != lesson))
        raise CourseError(f"{lesson}/{exercise}: the course's own answer does not pass {where} "
                          f"({verdict}: {message}){others and '. Nor do some of '}{others}")


# ---- in the edition


def inside(folder, *words, text=""):
    """Run Python on the edition, not on this course; return what it printed."""
    done = subprocess.run([sys.executable, "-P", *words], cwd=folder, input=text, text=True,
                          capture_output=True, env=device.child_environment(folder))
    if done.returncode:
        raise CourseError(f"the edition cannot be made: {(done.stderr or done.stdout)[-600:]}")
    return done.stdout


def prove(plan, folder):
    """Refuse unless each right answer passes in the edition, with all it needs of other lessons."""
    output = inside(folder, "-c", GRADE, text=json.dumps({i.id: i.sources for i in plan.stubs}))
    refuse_unless_right(map(json.loads, output.splitlines()),
                        "in this edition. It or its grader needs an answer that is not there: "
                        "--answers-until gives those of earlier lessons")


def commit(folder):
    why = "an edition is a git repository"
    git("init", "-q", "-b", "main", folder=folder, why=why)
    git("add", "-A", folder=folder, why=why)
    git("-c", "user.name=lab release", "-c", "user.email=", "commit", "-q", "-m",
        f"The course, student edition of {course.VERSION}", folder=folder, why=why)
