"""Prove the graders: the reference passes, the stub is not attempted, each mutant fails as it says."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

from lab import check
from lab.check import Candidate
from lab.course import CourseError

FEWEST = 3              # mutants of an exercise


def verify(lessons, jobs=1, console=None):
    """A row for each proof: {"lesson", "exercise", "proof", "ok", "message"}; ok is None where this
    machine cannot decide."""
    rows = []
    for lesson in lessons:
        began = time.monotonic()
        own = prove(lesson, jobs)
        rows += own
        if console:
            bad = [row for row in own if row["ok"] is False]
            for row in own:
                if row["ok"] is None:
                    console.print(
                        f"SKIPPED {lesson.id}/{row['exercise']}: {row['message']}", markup=False
                    )
            for row in bad:
                console.print(f"  [red]✗[/] {row['exercise']}: {row['proof']}")
                console.print(f"      {row['message']}", markup=False)
            console.print(
                f"{lesson.id}: {sum(row['ok'] is True for row in own)} of {len(own)} proofs, "
                f"{sum(row['proof'].startswith('mutant') for row in own)} mutants, "
                f"{time.monotonic() - began:.0f} s"
            )
    if console:
        kinds = [row["ok"] for row in rows]
        console.print(
            f"{kinds.count(True)} passed, {kinds.count(False)} failed, {kinds.count(None)} skipped"
        )
    return rows


def prove(lesson, jobs):
    def row(exercise, proof, ok, message=""):
        return {
            "lesson": lesson.id,
            "exercise": exercise,
            "proof": proof,
            "ok": ok,
            "message": message,
        }

    rows = [row(v.name, "the reference passes", v.verdict == "pass" or (
                None if v.verdict == "not_proven_here" else False), f"{v.verdict}: {v.message}")
            for v in check.grade_warm(lesson, check.reference(lesson))]
    untouched = check.grade(lesson, Candidate(lesson.stubs, dict.fromkeys(lesson.stubs, "stub")))
    rows += [row(v.name, "the stub is not attempted", v.verdict == "not_attempted",
                 f"{v.verdict}: {v.message}") for v in untouched]
    rows += [
        row(e.name, "three hints", len(e.hints) == 3, f"{len(e.hints)} hints")
        for e in lesson.exercises
    ]

    try:
        mutants = [(m, check.mutate(lesson, m)) for m in check.mutants(lesson)]
    except (CourseError, KeyError) as error:
        return [*rows, row("", "the mutants can be made", False, str(error))]
    rows += [
        row(e.name, f"at least {FEWEST} mutants", n >= FEWEST, f"{n} mutants")
        for e in lesson.exercises
        for n in [sum(m["exercise"] == e.name for m, _ in mutants)]
    ]

    with ThreadPoolExecutor(max(1, min(jobs, os.cpu_count() or 1))) as pool:
        verdicts = list(pool.map(
            lambda pair: check.grade_warm(lesson, pair[1], [pair[0]["exercise"]])[0], mutants))
    for number, ((mutant, _), verdict) in enumerate(zip(mutants, verdicts)):
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
        rows.append(row(mutant["exercise"], f"mutant {mutant['find']!r} -> {mutant['replace']!r}",
                        not problem, problem))
    return rows
