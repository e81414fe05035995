"""Grading in a process of its own, forked from a warm one."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from queue import SimpleQueue

from lab import course, device
from lab.judge.attempt import untouched
from lab.judge.candidate import Candidate
from lab.judge.imports import import_on_demand
from lab.judge.preloading import CUDA, floors_below, preload
from lab.judge.verdict import Verdict
from lab.remote import servers
from lab.remote.frames import frame, read_frame
from lab.remote.warm import Child

PATIENCE = 600          # seconds for a grading
SIDE_BY_SIDE = 4        # exercises of a lesson that are graded at a time, at the most
QUICK_IMPORTS = ("lab.judge.warm_pytest",)  # what a process imports besides, for a few gradings
ALL_IMPORTS = ("lab.judge.warmup",)     # for many: takes seconds, saves as much after a few


def grade(lesson, candidate, names=None):
    """What `verdicts` gives, as a list."""
    return list(verdicts(lesson, candidate, names))


def verdicts(lesson, candidate, names=None):
    """What check.verdicts gives, one after the other as they are known, from the processes that a
    user's commands and notebooks share."""
    exercises = [e for e in lesson.exercises if names is None or e.name in names]
    attempts = [e.name for e in exercises if untouched(lesson, candidate, e) is None]
    if not attempts:                    # nothing is going to run
        from lab.judge import check  # here: it imports pytest

        yield from check.verdicts(lesson, candidate, names)
        return
    place = servers.shared()
    graders = [Grader(lesson, QUICK_IMPORTS, candidate.earlier, attempts, place)
               for _ in range(jobs(attempts))]
    yield from side_by_side(graders, candidate, [e.name for e in exercises])


def jobs(attempts):
    """How many exercises are graded at a time.
    On a GPU one: their speed is measured."""
    return 1 if device.maybe_driver() else min(SIDE_BY_SIDE, len(attempts), device.workers())


def side_by_side(graders, candidate, names):
    """The verdicts that one grader would give for all the exercises, in their order; then the
    graders are closed.
    What fails may be judged by itself, beside those before it that have passed (alone.py): it is
    graded again where it did not know them yet."""
    free = SimpleQueue()
    passed = set()
    for grader in graders:
        free.put(grader)

    def run(name):
        grader = free.get()
        known = set(passed)
        try:
            return known, grader.grade(candidate, [name], passed=known)
        finally:
            free.put(grader)

    with ThreadPoolExecutor(len(graders)) as pool:
        waiting = [pool.submit(run, name) for name in names]
        try:
            for name, future in zip(names, waiting, strict=True):
                known, rows = future.result()
                if rows[0].verdict == "fail" and known != passed:
                    _, rows = run(name)
                if rows[0].verdict == "pass":
                    passed.add(name)
                yield from rows
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for grader in graders:
                grader.close()          # ends what is being graded, if this is not the end


def modules(lesson, earlier=(), names=None):
    """What a server has imported that forks graders of these exercises, without
    QUICK_IMPORTS or ALL_IMPORTS."""
    exercises = lesson.exercises if names is None else [lesson.exercise(name) for name in names]
    if all(exercise.language == "cuda" for exercise in exercises):
        return CUDA
    return (*preload(lesson), *floors_below(lesson, earlier))


def warm(lesson):
    """Have the processes ready that `verdicts` asks, without waiting for them."""
    place = servers.shared()
    for names in {e.language: [e.name] for e in lesson.exercises}.values():
        place.start((*QUICK_IMPORTS, *modules(lesson, (), names)))


class Grader:
    """A process that grades one text of a lesson after another.
    The texts themselves run in processes of their own, a fresh one for each test; the course's
    graders share this one."""

    def __init__(self, lesson, more=QUICK_IMPORTS, earlier=(), names=None, place=None):
        """earlier: as all candidates have it    names: of the exercises, all if None
        place: the Servers that fork it, None for servers.common()"""
        device.cache_folder()                   # its CourseError comes here, not as a verdict
        request = {"lesson": lesson.id, "fingerprint": lesson.fingerprint}
        try:
            self.child = Child(__name__, request, (*more, *modules(lesson, earlier, names)), place)
        except RuntimeError as error:           # such as a package that is damaged
            raise course.CourseError(str(error)) from None

    def grade(self, candidate, names=None, passed=()):
        """Verdicts, as check.grade has them.
        CourseError where the process has ended.

        passed: as for check.verdicts
        """
        request = {"candidate": asdict(candidate), "names": names, "passed": list(passed)}
        deadline = time.monotonic() + PATIENCE
        try:
            self.child.connection.settimeout(PATIENCE)
            self.child.connection.sendall(frame(request, []))
            answer, _ = read_frame(lambda n: self.child.read(n, deadline))
        except (EOFError, OSError):             # a TimeoutError, too, is an OSError
            raise course.CourseError("the grader stopped without an answer: "
                                     f"{self.child.output()[-500:]}") from None
        if "refused" in answer:
            raise course.CourseError(answer["refused"])
        return [Verdict(**v) for v in answer["verdicts"]]

    def close(self):
        self.child.kill()


def main(connection, request):
    """The grader role of the warm process: answers each request until the other side hangs up."""
    import_on_demand()
    from lab.judge import check
    from lab.judge.isolate import Place

    def answer(**data):
        connection.sendall(frame(data, []))

    lesson = course.find(request["lesson"])
    place = Place(request["warm"])
    while (question := next_request(connection)) is not None:
        if lesson.fingerprint != request["fingerprint"]:
            answer(refused=f"{lesson.id} has changed since this program read it: start it again")
            continue
        candidate = Candidate(**question["candidate"])
        verdicts = check.verdicts(lesson, candidate, question["names"], place,
                                  passed=question["passed"])
        answer(verdicts=[asdict(v) for v in verdicts])


def next_request(connection):
    """What is asked next; None where the other side has hung up."""
    try:
        return read_frame(lambda n: exactly(connection, n))[0]
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
