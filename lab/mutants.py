"""Wrong answers on purpose: they prove the graders, and name a learner's likely mistake."""

import tomllib
from dataclasses import replace

from lab import stub
from lab.candidate import reference
from lab.course import CourseError


def mutants(lesson):
    """[{exercise, find, replace, says, when?}] of a lesson."""
    if not lesson.mutants.exists():
        return []
    with open(lesson.mutants, "rb") as file:
        return tomllib.load(file).get("mutant", [])


def mutate(lesson, mutant):
    """The reference with one mistake made."""
    exercise = lesson.exercise(mutant["exercise"])
    text = lesson.sources[exercise.language]
    whole = stub.extract(text, exercise.name, exercise.language)
    if whole.count(mutant["find"]) != 1:
        raise CourseError(f"{lesson.mutants.name}: {mutant['find']!r} occurs "
                          f"{whole.count(mutant['find'])} times in {exercise.name}, expected 1")
    wrong = stub.splice(text, whole.replace(mutant["find"], mutant["replace"]), exercise.language)
    return replace(reference(lesson), shapes=False,
                   sources=lesson.sources | {exercise.language: wrong.text})


def with_likely_causes(lesson, verdicts):
    """Add "You can get this when …" where a failure reads like a known mistake."""
    known = mutants(lesson)
    for verdict in verdicts:
        for mutant in known if verdict.verdict == "fail" else ():
            if (mutant["exercise"] == verdict.name and mutant.get("when")
                    and mutant["says"] in verdict.message):
                verdict.message += f"\nYou can get this when {mutant['when']}."
                break
    return verdicts
