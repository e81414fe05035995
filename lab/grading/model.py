"""The data of the instructor's side: who sent what, and what came of it."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property


@dataclass(frozen=True)
class Sent:
    """One file of a submission."""

    name: str                   # its path inside the submission
    kind: str                   # python | cuda | notebook
    text: str


@dataclass(frozen=True)
class Submission:
    """What one student sent at one time."""

    student: str
    path: str                   # of the archive, file or folder, below the folder of submissions
    when: float | None          # seconds since the epoch; None where unknown
    files: tuple[Sent, ...]
    problems: tuple[str, ...] = ()      # what could not be read and why, one line each
    version: str | None = None          # the course's, where the archive states it

    @cached_property
    def digest(self):
        """Changes with anything that is graded; 16 hex digits."""
        text = json.dumps([asdict(file) for file in self.files])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Result:
    """One exercise of one submission, or its speed."""

    lesson: str
    exercise: str               # softmax_online_cuda, or softmax_online_cuda.speed
    verdict: str                # lab.judge.check.VERDICTS
    points: int | None          # None where nothing was decided: not_proven_here, error
    max_points: int
    message: str = ""           # for the instructor; it may reveal hidden inputs
    feedback: str = ""          # for the student
    text: str = ""              # of the exercise, normalised; empty where it was not attempted
    mistake: str = ""           # its id and its sentence, where the grader knows it
    sentence: str = ""


@dataclass(frozen=True)
class Graded:
    """One submission with all its results, in the course's order."""

    student: str
    path: str
    when: float | None
    digest: str
    sandbox: str                # the level it was graded at: bubblewrap | namespaces | limits
    problems: tuple[str, ...]
    results: tuple[Result, ...]
