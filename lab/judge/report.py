"""What `lab check` says at its end: JSON, and the exit code."""

import json

from lab import course
from lab.judge.isolate import preload

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


def exit_code(verdicts):
    """0 all passed; 1 a fail or an error of the course; 3 none failed, yet not all passed. A right
    answer may be slow, and few machines can measure it: speed decides about points alone."""
    kinds = {v.verdict for v in verdicts if not v.name.endswith(course.SPEED)}
    return 1 if kinds & {"fail", "error"} else 0 if kinds <= {"pass"} else 3


def dumps(data):
    return json.dumps(data, indent=2, ensure_ascii=False)
