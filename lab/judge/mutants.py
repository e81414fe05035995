"""Answers that prove the graders: wrong ones on purpose, which also name a learner's likely
mistake, and twins, which are right in another style."""

import tomllib
from dataclasses import replace

from lab import stub
from lab.course import CourseError
from lab.judge.adversarial import INPUTS, MISTAKES
from lab.judge.candidate import reference


def mutants(lesson):
    """[{exercise, find, replace or text, says, when?, kind?}] of a lesson."""
    rows = read(lesson.mutants).get("mutant", [])
    for row in rows:
        if row.get("kind", "work") not in INPUTS | MISTAKES:
            raise CourseError(f"{lesson.mutants.name}: kind {row['kind']!r}, expected one of "
                              f"{', '.join(INPUTS | MISTAKES)}")
    return rows


def twins(lesson):
    """[{exercise, style, find and replace, or text}] of a lesson."""
    return read(lesson.twins).get("twin", [])


def read(path):
    return tomllib.loads(path.read_text("utf-8")) if path.exists() else {}


def mutate(lesson, mutant):
    """The reference with an exercise written differently: `text` is the whole of it, with helpers
    before it, or `find` and `replace` say what changes."""
    exercise = lesson.exercise(mutant["exercise"])
    text = lesson.sources[exercise.language]
    other = mutant.get("text") or replaced(
        stub.extract(text, exercise.name, exercise.language), mutant, exercise)
    spliced = stub.splice(text, other, exercise.language)
    return replace(reference(lesson), shapes=False,
                   sources=lesson.sources | {exercise.language: spliced.text})


def replaced(whole, mutant, exercise):
    if whole.count(mutant["find"]) != 1:
        raise CourseError(f"{mutant['find']!r} occurs {whole.count(mutant['find'])} times in "
                          f"{exercise.name}, expected 1")
    return whole.replace(mutant["find"], mutant["replace"])


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
