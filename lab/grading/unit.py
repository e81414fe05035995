"""One unit of grading, a submission's text of one lesson, in a process of its own.

It is forked from a warm process, so that what it takes of memory goes with it. That one has read
the lessons, answers and all: what a learner's code runs in is forked from another.
"""

from dataclasses import asdict, replace

from lab import blame, check, course, stub, wire
from lab.course import SPEED
from lab.grading import extract, parts
from lab.grading.model import Result, Sent, Submission
from lab.grading.sandbox import Sandbox, place

OTHER_INPUTS = ("It is right on the inputs of `lab check` and wrong on others: what does it take "
                "for granted?")
COURSE_FAILED = "The course could not decide this; your instructor sees why."
# What a message tells of hidden inputs comes from a test's words or from an exception's text.
TELLING = ("AssertionError", "Raised", blame.BLAMED)


def main(connection, request):
    """The role of the warm process: answer with the results and notes as JSON."""
    lesson, sent = course.find(request["lesson"]), request["submission"]
    files = tuple(Sent(**file) for file in sent.pop("files"))
    submission = Submission(**sent, files=files)
    candidate, notes = extract.candidate(lesson, submission)
    held = [course.find(name) for name in request["held"]]
    earlier = own(held, submission)
    found = grade(lesson, replace(candidate, earlier=earlier), request["level"],
                  request["folder"], request["seed"], request["subjects"], request["user"], held,
                  lambda name: replace(extract.candidate(lesson, submission, only=name)[0],
                                       earlier=earlier))
    connection.sendall(wire.frame({"results": [asdict(result) for result in found],
                                   "notes": notes}, []))


def own(held, submission):
    """{"floor/name": text} of what the student wrote of lessons whose answers were held back."""
    return {place(lesson, language): text for lesson in held
            if parts.files_of(lesson, submission)
            for language, text in extract.candidate(lesson, submission)[0].sources.items()}


def grade(lesson, candidate, level, folder, seed, warm=None, user=None, held=(), alone=None):
    """Results for every exercise of a lesson, in its order.

    held: as for a Sandbox. alone(name): the Candidate with one exercise only, for a kernel whose
    file does not compile: the mistake may be another's.
    """
    where = level, folder, seed, warm, user, held
    rows = judged(lesson, candidate, None, *where)
    for name, (_, cause) in list(rows.items()) if alone else ():
        if cause == blame.UNCOMPILED and (single := alone(name)).sources != candidate.sources:
            rows |= judged(lesson, single, [name], *where)
    return [row for row, _ in rows.values()]


def judged(lesson, candidate, names, level, folder, seed, warm, user, held):
    """{name: (Result, cause)} of the exercises in `names`, all when None, and of their speed."""
    sandbox = Sandbox(level, lesson, candidate, folder, warm, user, held)
    try:
        verdicts = check.grade(lesson, candidate, names, sandbox, seed)
        told = {v.name for v in verdicts if v.verdict == "fail" and v.cause in TELLING}
        seen = {v.name: v for v in check.grade(lesson, candidate, told, sandbox)} if told else {}
    finally:
        sandbox.close()
    return {v.name: (result(lesson, candidate, v, seen.get(v.name)), v.cause) for v in verdicts}


def result(lesson, candidate, verdict, seen):
    """seen: the verdict on the inputs that learners have, where the message may tell hidden ones.
    """
    return Result(lesson.id, verdict.name, verdict.verdict, verdict.points, verdict.max_points,
                  verdict.message, feedback(verdict, seen), own_text(lesson, candidate, verdict))


def feedback(verdict, seen):
    """What the student is told: never what only the hidden inputs show."""
    if verdict.verdict == "error":
        return COURSE_FAILED
    if seen is None:
        return verdict.message
    if seen.verdict == "fail":
        return seen.message
    causes = [line for line in verdict.message.splitlines() if line.startswith("You can get this")]
    return "\n".join([OTHER_INPUTS, *causes])


def own_text(lesson, candidate, verdict):
    """The exercise's code, without comments and layout; empty where there is none."""
    if verdict.name.endswith(SPEED) or verdict.verdict == "not_attempted":
        return ""
    language = lesson.exercise(verdict.name).language
    try:
        return stub.normalised(candidate.sources[language], verdict.name, language) or ""
    except (SyntaxError, ValueError):
        return ""
