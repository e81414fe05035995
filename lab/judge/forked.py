"""Grading in a process of its own, forked from a warm one."""

import time
from dataclasses import asdict

from lab import course
from lab.judge import check
from lab.judge.candidate import Candidate
from lab.judge.isolate import Place, preload
from lab.remote import wire
from lab.remote.warm import Child


def grade(lesson, candidate, names=None, modules=("pytest",), observed=None):
    """`check.grade` in a process of its own, forked from the warm one: for notebooks, `lab watch`
    and `lab verify`.

    modules: what the warm process imports besides the lesson's own; `lab.judge.warmup` takes
    seconds, and saves as much after a few gradings
    observed: filled with {exercise: (uses, takes)} of an Observer
    """
    request = {"lesson": lesson.id, "candidate": asdict(candidate), "names": names,
               "observe": observed is not None}
    child = Child(__name__, request, (*modules, *preload(lesson)))
    try:
        message, _ = wire.read_frame(lambda n: child.read(n, time.monotonic() + 600))
    except (EOFError, TimeoutError):
        raise course.CourseError("the grader stopped without an answer: "
                                 f"{child.output()[-500:]}") from None
    finally:
        child.kill()
    if observed is not None:
        observed |= {name: tuple(map(set, kinds)) for name, kinds in message["observed"].items()}
    return [check.Verdict(**v) for v in message["verdicts"]]


def main(connection, request):
    """The grader role of the warm process: grade in a fork, answer with the verdicts as JSON."""
    lesson = course.find(request["lesson"])
    began = time.monotonic()
    observed = {} if request["observe"] else None
    verdicts = check.grade(lesson, Candidate(**request["candidate"]), request["names"],
                           Place(request["warm"]), observed=observed)
    connection.sendall(wire.frame({
        "verdicts": [asdict(v) for v in verdicts], "seconds": time.monotonic() - began,
        "observed": {name: observer.kinds() for name, observer in (observed or {}).items()}}, []))
