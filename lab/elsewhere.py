"""Another machine's GPU, over ssh: `lab check LESSON --on HOST`, `lab bench LESSON --on HOST`.

There, in FOLDER, is a clone of the same version of the course that is set up. ssh starts this
module in it; a request comes on its standard input, the answer goes to its standard output.
"""

import hashlib
import json
import shlex
import subprocess
import sys
from dataclasses import asdict

from lab import course, device
from lab.course import CourseError
from lab.judge.candidate import Candidate
from lab.judge.verdict import Verdict

FOLDER = "three-floors"         # below the user's own folder on HOST
MARK = "three-floors answer: "  # before the answer: a login may print lines of its own
SSH = ("ssh", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "--")
UNREACHED = 255                 # ssh's own exit code


def verdicts(place, lesson, candidate, names=None):
    """What forked.verdicts gives of the exercises whose speed counts, on another machine.

    place: HOST or HOST:FOLDER.
    CourseError where none of the exercises is measured on a GPU, where the machine cannot be
    reached, or has another version of the lesson.
    """
    chosen = [name for name in measured(lesson) if names is None or name in names]
    if not chosen:
        raise CourseError(f"{', '.join(names or [lesson.id])} needs no GPU: check it here, without "
                          "--on")
    rows = ask(place, lesson, candidate=asdict(candidate), names=chosen)
    return [Verdict(**row) for row in rows]


def measured(lesson):
    """Names of the exercises whose speed on a GPU counts."""
    return [exercise.name for exercise in lesson.exercises if exercise.speed_points]


def measure(place, lesson):
    """The rows of a lesson's bench, measured on another machine."""
    return ask(place, lesson, measured=measured_texts(lesson))


def measured_texts(lesson):
    """A digest of what a lesson's bench measures: its own texts, and the bench."""
    bench = lesson.bench.read_text("utf-8") if lesson.bench.exists() else ""
    return hashlib.sha256(repr([sorted(lesson.sources.items()), bench]).encode()).hexdigest()


def ask(place, lesson, **more):
    """The answer of HOST or HOST:FOLDER to a request."""
    host, _, folder = place.partition(":")
    if not host or host.startswith("-"):
        raise CourseError(f"--on {place}: expected HOST or HOST:FOLDER")
    folder = folder.removeprefix("~/") or FOLDER
    request = {"lesson": lesson.id, "fingerprint": lesson.fingerprint, **more}
    command = f"cd {shlex.quote(folder)} && exec .venv/bin/python -P -m {__name__}"
    try:
        done = subprocess.run([*SSH, host, command], input=json.dumps(request), text=True,
                              capture_output=True)
    except FileNotFoundError:
        raise CourseError("--on needs the program ssh, which is not installed here") from None
    return read(host, folder, done)


def read(host, folder, done):
    """The answer in what ssh printed; CourseError where there is none."""
    line = next((line for line in done.stdout.splitlines() if line.startswith(MARK)), None)
    last = "".join(done.stderr.strip().splitlines()[-1:]) or f"exit code {done.returncode}"
    if done.returncode == UNREACHED:
        raise CourseError(f"cannot reach {host}: {last}")
    if line is None:
        raise CourseError(f"no answer from {host}: expected a clone of the course that is set up "
                          f"in {folder}, found: {last}")
    answer = json.loads(line.removeprefix(MARK))
    if "refused" in answer:
        raise CourseError(f"{host}: {answer['refused']}")
    return answer["rows"]


# ---- on the other machine


def answer(request):
    """The rows that a request asks for."""
    from lab.judge import forked
    from lab.measure import bench

    lesson = course.find(request["lesson"])
    theirs = request.get("measured", measured_texts(lesson))
    if (lesson.fingerprint, measured_texts(lesson)) != (request["fingerprint"], theirs):
        raise CourseError(f"its {lesson.id} is not the one that you have: bring both clones of the "
                          "course to one commit")
    if "candidate" not in request:
        if device.gpu() is None:
            raise CourseError("no NVIDIA GPU there; `lab bench` without --on measures a CPU, where "
                              "that says something")
        return bench.measure(lesson)
    graded = forked.verdicts(lesson, Candidate(**request["candidate"]), request["names"])
    return [asdict(verdict) for verdict in graded]


def main():
    try:
        reply = {"rows": answer(json.load(sys.stdin))}
    except CourseError as error:
        reply = {"refused": str(error)}
    print(MARK + json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
