"""What `lab check` says at its end: JSON, a line for each fail, and the exit code."""

import contextlib
import json
import re

from lab import course, stub
from lab.judge.candidate import told
from lab.judge.preloading import preload

SCHEMA = 1
REPORTED = ("name", "verdict", "points", "max_points", "message")


def report(lesson, candidate, verdicts):
    """The schema of `lab check --json`. device: what the verdicts rest on, the same everywhere."""
    return {
        "schema": SCHEMA,
        "course_version": course.VERSION,
        "lesson": lesson.id,
        "device": "simulator" if "lab.remote.warmup" in preload(lesson) else "cpu",
        "source": candidate.source(),
        "exercises": [{k: getattr(verdict, k) for k in REPORTED} for verdict in verdicts],
    }


def problems(lesson, candidate, verdicts):
    """[`path:line: error: exercise: what is wrong`] of what failed, as compilers say it: an editor
    finds the line.
    It is the first that the message names, else that of the definition."""
    exercises = {exercise.name: exercise for exercise in lesson.exercises}
    failed = [verdict for verdict in verdicts if verdict.verdict == "fail"]
    return [problem(candidate, exercises[verdict.name.removesuffix(course.SPEED)], verdict.message)
            for verdict in failed]


def problem(candidate, exercise, message):
    files = "|".join(map(re.escape, candidate.labels.values()))
    line = re.compile(rf"^\s*({files}), (?:code (cell \d+), )?line (\d+)\b", re.M)
    place = line.search(message) or line.match(definition(candidate, exercise))
    sentence = (message.splitlines() or [""])[0].removeprefix(f"{exercise.name}: ")
    return f"{':'.join(filter(None, place.groups()))}: error: {exercise.name}: {sentence}"


def definition(candidate, exercise):
    """Where an exercise is, in words; line 1 of a text that cannot be read, as its message says."""
    language = exercise.language
    words = "line 1"
    with contextlib.suppress(KeyError, SyntaxError, ValueError):
        line = stub.find_line(candidate.sources[language], exercise.name, language)
        words = told(candidate, language, line)
    return f"{candidate.labels[language]}, {words}"


def exit_code(verdicts):
    """0 all passed; 1 a fail or an error of the course; 3 none failed, yet not all passed.
    A right answer may be slow, and few machines can measure it: speed decides about points
    alone."""
    kinds = {v.verdict for v in verdicts if not v.name.endswith(course.SPEED)}
    return 1 if kinds & {"fail", "error"} else 0 if kinds <= {"pass"} else 3


def dumps(data):
    return json.dumps(data, indent=2, ensure_ascii=False)
