"""What was found about one exercise."""

from dataclasses import dataclass


@dataclass
class Verdict:
    name: str
    verdict: str
    points: int | None
    max_points: int
    message: str = ""
    value: object = None            # what a prediction or a choice answered
    seconds: float = 0.0
    cause: str = ""                 # why a test did not pass, see blame.cause
    mistake: str = ""               # its id, see mistakes.py; no learner reads it
    sentence: str = ""              # the part of the message that explains this mistake
