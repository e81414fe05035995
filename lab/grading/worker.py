"""One unit of grading, a submission's text of one lesson, in a process of its own.

It is forked from a warm process, so that the memory it takes is freed with it.
That process has read the lessons, answers and all, so a learner's code runs in forks of another.
"""

from dataclasses import asdict, replace

from lab import course, stub
from lab.course import SPEED
from lab.grading import extract, submission_parts
from lab.grading.model import Result, Sent, Submission
from lab.grading.sandbox import Sandbox, place
from lab.judge import blame, check, mutants
from lab.remote.frames import frame
from lab.remote.servers import Servers

OTHER_INPUTS = ("It is right on the inputs of `lab check` and wrong on others: what does it take "
                "for granted?")
COURSE_FAILED = "The course could not decide this; your instructor sees why."
BY_THEMSELVES = (blame.UNCOMPILED, blame.UNLOADED)


def main(connection, request):
    """The role of the warm process: answer with the results and notes as JSON."""
    lesson = course.find(request["lesson"])
    sent = request["submission"]
    files = tuple(Sent(**file) for file in sent.pop("files"))
    submission = Submission(**sent, files=files)
    candidate, notes = extract.candidate(lesson, submission)
    held_back = [course.find(name) for name in request["held"]]
    earlier = own(held_back, submission)

    def alone(name):
        one, *_ = extract.candidate(lesson, submission, only=name)
        return replace(one, earlier=earlier)

    results = grade(lesson, replace(candidate, earlier=earlier), request["level"],
                    request["folder"], request["seed"], Servers(**request["subjects"]),
                    request["user"], held_back, alone, notes)
    connection.sendall(frame({"results": [asdict(result) for result in results],
                                   "notes": notes}, []))


def own(held_back, submission):
    """{"floor/name": text} of what the student wrote for lessons whose answers were held back."""
    return {place(lesson, language): text for lesson in held_back
            if submission_parts.files_of(lesson, submission)
            for language, text in extract.candidate(lesson, submission)[0].sources.items()}


def grade(lesson, candidate, level, folder, seed, warm=None, user=None, held_back=(), alone=None,
          notes=()):
    """Results for every exercise of a lesson, in its order.

    held_back: as for a Sandbox. alone(name): the Candidate with one exercise and what it needs,
    where the whole file does not compile, or raises when it is imported: the mistake may be in
    lines that this exercise does not need. notes: a list, which gets a line about such a file
    """
    where = level, folder, seed, warm, user, held_back
    rows = judged(lesson, candidate, None, *where)
    apart = []
    for name, (row, cause) in list(rows.items()) if alone else ():
        if cause in BY_THEMSELVES and (single := alone(name)).sources != candidate.sources:
            rows |= judged(lesson, single, [name], *where)
            apart += [row.message] if cause == blame.UNLOADED else []
    if apart:
        reason = " ".join(apart[0].partition(": ")[2].split())
        notes.append(f"{lesson.id}: its file raises when it is imported, so each exercise was "
                     f"graded with what it needs alone: {reason[:200]}")
    return [row for row, _ in rows.values()]


def judged(lesson, candidate, names, level, folder, seed, warm, user, held_back):
    """{name: (Result, cause)} of the exercises in `names`, all when None, and of their speed."""
    sandbox = Sandbox(level, lesson, candidate, folder, warm, user, held_back)
    try:
        verdicts = check.grade(lesson, candidate, names, sandbox, seed)
        # What ran may have put the hidden inputs into any message, and into files of its box.
        telling = {v.name for v in verdicts if v.verdict == "fail" and v.cause}
        sandbox.forget()
        again = check.grade(lesson, candidate, telling, sandbox) if telling else []
    finally:
        sandbox.close()
    public = {v.name: v for v in again}
    return {v.name: (result(lesson, candidate, v, public.get(v.name)), v.cause) for v in verdicts}


def result(lesson, candidate, verdict, public):
    """public: the verdict on the inputs that learners have; None where it was not needed."""
    return Result(lesson.id, verdict.name, verdict.verdict, verdict.points, verdict.max_points,
                  verdict.message, feedback(verdict, public, lesson),
                  own_text(lesson, candidate, verdict), verdict.mistake, verdict.sentence)


def feedback(verdict, public, lesson):
    """What the student is told: never what only the hidden inputs show."""
    if verdict.verdict == "error":
        return COURSE_FAILED
    if public is None:
        return verdict.message
    if public.verdict == "fail":
        return public.message
    causes = [line for line in mutants.causes(lesson) if line in verdict.message.splitlines()]
    return "\n".join([OTHER_INPUTS, *causes])


def own_text(lesson, candidate, verdict):
    """The exercise's code, without comments and layout; empty where there is none, or none that
    can be read: what stands in its place is the same for different texts."""
    if verdict.name.endswith(SPEED) or verdict.verdict == "not_attempted" \
            or verdict.name in candidate.broken:
        return ""
    language = lesson.exercise(verdict.name).language
    try:
        return stub.normalised(candidate.sources[language], verdict.name, language) or ""
    except (SyntaxError, ValueError):
        return ""
