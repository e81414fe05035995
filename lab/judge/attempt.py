"""Whether an exercise was attempted: what can be said of a text before any of it runs."""

from lab import stub
from lab.judge.candidate import told
from lab.judge.verdict import Verdict


def untouched(lesson, candidate, exercise):
    """The verdict of an exercise that needs no test: not attempted, or not parsable."""
    if exercise.name in candidate.broken:
        return Verdict(exercise.name, "fail", 0, exercise.points, candidate.broken[exercise.name])
    text = candidate.sources[exercise.language]
    label = candidate.labels[exercise.language]
    try:
        mine = stub.normalised(text, exercise.name, exercise.language)
    except SyntaxError as error:
        line = told(candidate, exercise.language, error.lineno)
        shown = (error.text or "").strip()
        return Verdict(exercise.name, "fail", 0, exercise.points,
                       f"{label}, line {line}: {error.msg}\n    {shown}")
    except ValueError as error:
        return Verdict(exercise.name, "fail", 0, exercise.points, f"{label}: {error}")
    if mine is None:
        return Verdict(exercise.name, "not_attempted", 0, exercise.points,
                       f"{exercise.name} is not defined in {label}")
    if mine == stub.normalised(lesson.stubs[exercise.language], exercise.name, exercise.language):
        return Verdict(exercise.name, "not_attempted", 0, exercise.points,
                       f"still the stub in {label}")
    return None
