"""Grade one submission in Gradescope's container: `python -m lab.grading.autograder LESSON…`.

/autograder/submission holds what one student sent; /autograder/results/results.json is the answer.
Any failure ends in an exit code other than 0 and no results.json: run_autograder then writes one
without a score.
Only instructors see what is printed.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from lab import course
from lab.course import ROOT, CourseError
from lab.grading import grade as grading
from lab.grading import journal, reports

AUTOGRADER = Path("/autograder")
STUDENT = "submission"


def main(words):
    lessons = [course.find(word) for word in words]
    close(lessons)
    results = AUTOGRADER / "results"
    results.mkdir(exist_ok=True)
    results.chmod(0o755)                # the code under test, another user, cannot write
    with tempfile.TemporaryDirectory() as work:
        sent = Path(work, "sent")
        out = Path(work, "out")
        sent.mkdir()
        subprocess.run(["cp", "-a", AUTOGRADER / "submission", sent / STUDENT], check=True)
        graded(sent, out, lessons)
        outcome = json.loads((out / "results" / f"{STUDENT}.json").read_text("utf-8"))
        outcome["extra_data"] = {"sandbox": sandbox(out)}
        reports.write_file(results / "results.json", reports.dumped(outcome))


def close(lessons):
    """Let root alone read files that reveal answers: where only limits hold, the code under test
    meets them as another user.
    It may need the floors and lessons before the last one."""
    last = course.lessons().index(lessons[-1])
    answers = [lesson.path(suffix) for lesson in course.lessons()[last:]
               for suffix in (".md", *map(course.SUFFIX.get, lesson.sources))]
    for path in (ROOT / "tests", *answers):
        path.chmod(0o700)


def graded(sent, out, lessons):
    """`lab grade` of a class of one."""
    points = ROOT / "grading.toml"
    for line in grading.grade(sent, out, Console(soft_wrap=True), jobs=1,
                              lessons=",".join(lesson.id for lesson in lessons),
                              points=points if points.exists() else None):
        print(line)


def sandbox(out):
    """The sandbox level.
    CourseError where the course could not judge an exercise: Gradescope would count its points
    as lost."""
    units = journal.Journal.resume(out / "journal.jsonl").units.values()
    broken = [f"{r['lesson']}/{r['exercise']}: {r['message']}" for unit in units
              for r in unit["results"] if r["verdict"] == "error"]
    if broken:
        raise CourseError("\n".join(["the course failed, not the student:", *broken]))
    return next(unit["sandbox"] for unit in units)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except CourseError as error:
        sys.exit(str(error))
