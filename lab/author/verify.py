"""Prove the graders: the reference and its twins pass, the stub is not attempted, mutants fail as
they say."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

from lab import course
from lab.course import CourseError
from lab.judge import check, gaps, mutants
from lab.judge.candidate import Candidate, reference
from lab.judge.gaps import GUESSES

FEWEST = 3              # mutants of an exercise


def verify(lessons, jobs=1, console=None, most=None):
    """A row for each proof: {"lesson", "exercise", "proof", "ok", "message"}; ok is None where this
    machine cannot decide. most: mutants of an exercise that are tried, all if None."""
    rows = []
    for lesson in lessons:
        began = time.monotonic()
        own = prove(lesson, jobs, most)
        rows += own
        if console:
            tell(lesson, own, time.monotonic() - began, console)
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


def prove(lesson, jobs, most=None):
    def row(exercise, proof, ok, message=""):
        return {"lesson": lesson.id, "exercise": exercise, "proof": proof, "ok": ok,
                "message": message}

    rows = []
    if lesson.answered:
        observed = {}
        rows += [row(v.name, "the reference passes", v.verdict == "pass" or (
                     None if v.verdict == "not_proven_here" else False),
                     f"{v.verdict}: {v.message}")
                 for v in check.grade(lesson, reference(lesson), observed=observed)]
        rows += [row(gap["exercise"], "no kind of hard input or mistake is left open",
                     not gap["open"] and not gap["stale"], "; ".join(gaps.text([gap])[1:]))
                 for gap in gaps.examine(lesson, observed)]
    untouched = check.grade(lesson, Candidate(lesson.stubs, dict.fromkeys(lesson.stubs, "stub")))
    rows += [row(v.name, "the stub is not attempted", v.verdict == "not_attempted",
                 f"{v.verdict}: {v.message}") for v in untouched]
    if "cuda" in lesson.stubs:
        problem = does_not_compile(lesson.stubs["cuda"])
        rows.append(row("", "the CUDA stub compiles", not problem, problem))
    if not course.edition():        # it may come without hints
        rows += [row(e.name, "three hints", len(e.hints) == 3, f"{len(e.hints)} hints")
                 for e in lesson.exercises]
    if not lesson.answered:         # mutants are made of the reference
        return rows

    try:
        wrong = [(m, mutants.mutate(lesson, m)) for m in mutants.mutants(lesson)]
        right = [(t, mutants.mutate(lesson, t)) for t in mutants.twins(lesson)]
    except (CourseError, KeyError, ValueError, SyntaxError) as error:
        return [*rows, row("", "the mutants and twins can be made", False, str(error))]
    rows += [row(e.name, f"at least {FEWEST} mutants", n >= FEWEST, f"{n} mutants")
             for e in lesson.exercises
             for n in [sum(m["exercise"] == e.name for m, _ in wrong)]]
    rows += [row(e.name, f"at least {least} twins", n >= least, f"{n} twins")
             for e in lesson.exercises if (least := fewest_twins(e))
             for n in [sum(t["exercise"] == e.name for t, _ in right)]]

    if most is not None:
        wrong, right = ([pair for e in lesson.exercises for pair in
                         [(m, c) for m, c in pairs if m["exercise"] == e.name][:most]]
                        for pairs in (wrong, right))
    with ThreadPoolExecutor(max(1, min(jobs, os.cpu_count() or 1))) as pool:
        verdicts = list(pool.map(
            lambda pair: check.grade_warm(lesson, pair[1], [pair[0]["exercise"]])[0],
            [*wrong, *right]))
    rows += [row(twin["exercise"], f"twin: {twin['style']}", v.verdict == "pass",
                 f"{v.verdict}, expected pass: {v.message}")
             for (twin, _), v in zip(right, verdicts[len(wrong):], strict=True)]
    verdicts = verdicts[:len(wrong)]
    for number, ((mutant, _), verdict) in enumerate(zip(wrong, verdicts, strict=True)):
        says = mutant["says"]
        others = [v.message for i, v in enumerate(verdicts) if i != number]
        if len(says.split()) < 3:
            problem = f"says {says!r}: three words or more"
        elif verdict.verdict != "fail":
            problem = f"{verdict.verdict}, expected fail: {verdict.message}"
        elif says not in verdict.message:
            problem = f"the message does not say {says!r}: {verdict.message}"
        elif any(says in message for message in others):
            problem = f"{says!r} is in another mutant's message too"
        else:
            problem = ""
        change = (f"{mutant['find']!r} -> {mutant['replace']!r}" if "find" in mutant else
                  f"with the message {says!r}")
        rows.append(row(mutant["exercise"], f"mutant {change}", not problem, problem))
    return rows


def fewest_twins(exercise):
    """Right answers in another style that an exercise has: three where learners' styles differ
    most, in the kernels and engine parts of the core path; none of a guess."""
    if exercise.name.startswith(GUESSES):
        return 0
    lesson = exercise.lesson
    return 3 if lesson.core and lesson.floor in ("layer1_kernels", "layer3_system") else 1


def does_not_compile(text):
    """The compiler's complaint about a CUDA text, "" where it has none."""
    from lab import simulator

    try:
        simulator.RawModule(text, is_text=True).compile()
    except simulator.CompileError as error:
        return str(error)
    return ""
