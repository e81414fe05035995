"""Grading in a process of its own, forked from a warm one."""

import time
from dataclasses import asdict

from lab import course
from lab.judge import check
from lab.judge.candidate import Candidate
from lab.judge.isolate import Place, floors_below, preload
from lab.remote import wire
from lab.remote.warm import Child

PATIENCE = 600          # seconds for a grading


def grade(lesson, candidate, names=None, modules=("pytest",)):
    """`check.grade` in a process of its own: for notebooks and `lab watch`.

    modules: what the warm process imports besides the lesson's own
    """
    grader = Grader(lesson, modules, candidate.earlier)
    try:
        return grader.grade(candidate, names)
    finally:
        grader.close()


class Grader:
    """A process that grades one text of a lesson after another. The texts themselves run in
    processes of their own, a fresh one for each test; the course's graders share this one.

    modules: what the warm process imports besides the lesson's own; `lab.judge.warmup` takes
    seconds, and saves as much after a few gradings
    """

    def __init__(self, lesson, modules=("pytest",), earlier=()):
        """earlier: as all candidates have it."""
        self.child = Child(__name__, {"lesson": lesson.id}, (
            *modules, *preload(lesson), *floors_below(lesson, earlier)))

    def grade(self, candidate, names=None, observed=None):
        """Verdicts, as check.grade has them. CourseError where the process has ended.

        observed: filled with {exercise: (uses, takes)} of an Observer
        """
        request = {"candidate": asdict(candidate), "names": names,
                   "observe": observed is not None}
        try:
            self.child.connection.settimeout(PATIENCE)
            self.child.connection.sendall(wire.frame(request, []))
            deadline = time.monotonic() + PATIENCE
            answer, _ = wire.read_frame(lambda n: self.child.read(n, deadline))
        except (EOFError, OSError):             # a TimeoutError, too, is an OSError
            raise course.CourseError("the grader stopped without an answer: "
                                     f"{self.child.output()[-500:]}") from None
        if observed is not None:
            observed |= {name: tuple(map(set, kinds))
                         for name, kinds in answer["observed"].items()}
        return [check.Verdict(**v) for v in answer["verdicts"]]

    def close(self):
        self.child.kill()


def main(connection, request):
    """The grader role of the warm process: answers each request until the other side hangs up."""
    lesson = course.find(request["lesson"])
    place = Place(request["warm"])
    while (question := next_request(connection)) is not None:
        observed = {} if question["observe"] else None
        verdicts = check.grade(lesson, Candidate(**question["candidate"]), question["names"], place,
                               observed=observed)
        kinds = {name: observer.kinds() for name, observer in (observed or {}).items()}
        connection.sendall(wire.frame(
            {"verdicts": [asdict(v) for v in verdicts], "observed": kinds}, []))


def next_request(connection):
    """The next question; None where the other side has hung up."""
    try:
        return wire.read_frame(lambda n: exactly(connection, n))[0]
    except EOFError:
        return None


def exactly(connection, n):
    data = bytearray()
    while len(data) < n:
        part = connection.recv(min(n - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
