"""Prove the graders: the reference and its twins pass, the stub is not attempted, mutants fail as
they say."""

import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from lab import course
from lab.author import proven, twins
from lab.author.gaps import GUESSES
from lab.course import CourseError
from lab.judge import forked, mutants
from lab.judge.candidate import Candidate, reference
from lab.judge.verdict import Verdict

FEWEST = 3              # mutants of an exercise


def verify(lessons, jobs=1, console=None, most=None, record=False):
    """A row for each proof: {"lesson", "exercise", "proof", "ok", "message"}; ok is None where this
    machine cannot decide.

    most: mutants of an exercise that are tried, all if None
    record: whether a lesson that is proven whole gets its row in proofs/

    All gradings of all lessons wait in one queue, so that no process idles at a lesson's end.
    """
    rows = []
    with ThreadPoolExecutor(max(1, min(jobs, os.cpu_count() or 1))) as pool:
        try:
            for proof in [Proof(lesson, pool, most) for lesson in lessons]:
                own = proof.rows()
                rows += own
                if console:
                    tell(proof.lesson, own, proof.seconds, console)
                if record and most is None and all(row["ok"] is not False for row in own):
                    proven.keep(proof.lesson, own, proof.seconds, proof.digest)
        except BaseException:           # such as Ctrl-C
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if console:
        kinds = [row["ok"] for row in rows]
        console.print(f"{kinds.count(True)} passed, {kinds.count(False)} failed, "
                      f"{kinds.count(None)} skipped")
    return rows


def tell(lesson, rows, seconds, console):
    for row in rows:
        if row["ok"] is None:
            console.print(f"SKIPPED {lesson.id}/{row['exercise']}: {row['message']}", markup=False)
    for row in rows:
        if row["ok"] is False:
            console.print(f"FAILED {lesson.id}/{row['exercise']}: {row['proof']}: "
                          f"{row['message']}", markup=False)
    proven = sum(row["ok"] is True for row in rows)
    wrong = sum(row["proof"].startswith("mutant") for row in rows)
    console.print(f"{lesson.id}: {proven} of {len(rows)} proofs, {wrong} mutants, "
                  f"{seconds:.0f} s")


class Graders(threading.local):
    """A grader for each thread: of the lesson that it was last asked for."""

    lesson = grader = None

    def of(self, lesson):
        if self.lesson is not lesson:
            self.drop()
            self.grader = forked.Grader(lesson, forked.ALL_IMPORTS)
            self.lesson = lesson
        return self.grader

    def drop(self):
        if self.grader is not None:
            self.grader.close()
        self.lesson = self.grader = None


graders = Graders()


class Proof:
    """A lesson's gradings, queued when it is made, and what they prove. seconds: of them all"""

    def __init__(self, lesson, pool, most=None):
        self.lesson = lesson
        self.digest = proven.digest(lesson)     # of what is proven, should a file change meanwhile
        self.pool = pool
        self.seconds = 0.0
        self.wrong, self.right = [], []         # [(mutant or twin, its candidate)]
        self.broken = ""                        # why they cannot be made
        stubs = Candidate(lesson.stubs, dict.fromkeys(lesson.stubs, "stub"))
        self.untouched = self.grade(stubs)
        self.complaint = pool.submit(
            does_not_compile, lesson.stubs["cuda"]) if "cuda" in lesson.stubs else None
        self.references, self.verdicts = [], []
        if not lesson.answered:                 # mutants are made of the reference
            return
        self.references = [self.grade(reference(lesson), e.name) for e in lesson.exercises]
        self.make_answers(most)
        self.verdicts = [self.grade(candidate, one["exercise"])
                         for one, candidate in [*self.wrong, *self.right]]

    def make_answers(self, most):
        """The mutants and twins; of each exercise `most` at most."""
        lesson = self.lesson
        try:
            self.wrong = [(m, mutants.mutate(lesson, m)) for m in mutants.mutants(lesson)]
            self.right = [(t, mutants.mutate(lesson, t))
                          for t in mutants.twins(lesson) + twins.twins(lesson)]
        except (CourseError, KeyError, ValueError, SyntaxError) as error:
            self.broken = str(error)
        self.counts = Counter(m["exercise"] for m, _ in self.wrong)
        self.twins = Counter(t["exercise"] for t, _ in self.right)
        if most is not None:
            self.wrong, self.right = ([pair for e in lesson.exercises for pair in
                                       [(m, c) for m, c in pairs if m["exercise"] == e.name][:most]]
                                      for pairs in (self.wrong, self.right))

    def grade(self, candidate, name=None):
        """A grading that waits for its turn: its result is [Verdict]."""
        def run():
            began = time.monotonic()
            try:
                return graders.of(self.lesson).grade(candidate, name and [name])
            except CourseError as error:
                graders.drop()          # it has ended; the gradings after this one go on
                return [Verdict(name or self.lesson.id, "error", None, 0, str(error))]
            finally:
                self.seconds += time.monotonic() - began
        return self.pool.submit(run)

    def row(self, exercise, proof, ok, message=""):
        return {"lesson": self.lesson.id, "exercise": exercise, "proof": proof, "ok": ok,
                "message": message}

    def rows(self):
        """All that is proven, when the gradings are done."""
        lesson, row = self.lesson, self.row
        references = [v for future in self.references for v in future.result()]
        rows = [row(v.name, "the reference passes", v.verdict == "pass" or (
                    None if v.verdict == "not_proven_here" else False),
                    f"{v.verdict}: {v.message}") for v in references]
        rows += [row(v.name, "the stub is not attempted", v.verdict == "not_attempted",
                     f"{v.verdict}: {v.message}") for v in self.untouched.result()]
        if self.complaint:
            problem = self.complaint.result()
            rows.append(row("", "the CUDA stub compiles", not problem, problem))
        if not course.edition():        # it may come without hints
            rows += [row(e.name, "three hints", len(e.hints) == 3, f"{len(e.hints)} hints")
                     for e in lesson.exercises]
        if self.broken:
            return [*rows, row("", "the mutants and twins can be made", False, self.broken)]
        if lesson.answered:
            rows += [row(e.name, f"at least {FEWEST} mutants", self.counts[e.name] >= FEWEST,
                         f"{self.counts[e.name]} mutants") for e in lesson.exercises]
            rows += [row(e.name, "at least 1 twin", self.twins[e.name] > 0,
                         f"{self.twins[e.name]} twins")
                     for e in lesson.exercises if not e.name.startswith(GUESSES)]
            rows += self.answers()
        return rows

    def answers(self):
        """A row for each twin and each mutant."""
        verdicts = [verdict for future in self.verdicts for verdict in future.result()[:1]]
        wrong = verdicts[:len(self.wrong)]
        rows = [self.row(twin["exercise"], f"twin: {twin['style']}", v.verdict == "pass",
                         f"{v.verdict}, expected pass: {v.message}")
                for (twin, _), v in zip(self.right, verdicts[len(wrong):], strict=True)]
        for number, ((mutant, _), verdict) in enumerate(zip(self.wrong, wrong, strict=True)):
            others = [v for i, v in enumerate(wrong) if i != number]
            problem = shows_other(mutant["shows"], verdict, others)
            change = (f"{mutant['find']!r} -> {mutant['replace']!r}" if "find" in mutant else
                      mutant["shows"])
            rows.append(self.row(mutant["exercise"], f"mutant {change}", not problem, problem))
        return rows


def shows_other(mistake, verdict, others):
    """How a mutant's verdict does not show its mistake, "" where it does. others: the verdicts on
    the lesson's other mutants."""
    if verdict.verdict != "fail":
        return f"{verdict.verdict}, expected fail: {verdict.message}"
    if verdict.mistake != mistake:
        return (f"it shows {verdict.mistake or 'a mistake without an id'}, expected {mistake}: "
                f"{verdict.message}")
    if same := [v.mistake for v in others if v.sentence == verdict.sentence != ""
                and v.name == verdict.name and v.mistake != mistake]:
        return f"{mistake} and {same[0]} have the same sentence: {verdict.sentence}"
    return ""


def does_not_compile(text):
    """The compiler's complaint about a CUDA text, "" where it has none."""
    from lab import simulator

    try:
        simulator.RawModule(text, is_text=True).compile()
    except simulator.CompileError as error:
        return str(error)
    return ""
