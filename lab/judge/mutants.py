"""Answers that prove the graders: wrong ones on purpose, which also name a learner's likely
mistake, and twins, which are right in another style.

A row of <lesson>.mutants.toml or .twins.toml says how an exercise is written differently: `body`
is what stands below its comment `exercise:`, `text` the whole of it, with helpers before it, and
`find` with `replace` a change of the reference.
A mutant `shows` the id of its mistake. [[guesses]] makes a mutant of each wrong answer to a
prediction or a choice, wrong = {"3.0" = "reads_alone"}, and a twin of `right`.
"""

import ast
import tomllib
from dataclasses import replace

from lab import stub
from lab.course import CourseError
from lab.judge.adversarial import INPUTS, MISTAKES
from lab.judge.candidate import reference

CHANGES = ("body", "text", "find")      # of these a row has one


def mutants(lesson):
    """[{exercise, body, text or find and replace, shows, when?, kind?}] of a lesson."""
    file = read(lesson.mutants)
    rows = file.get("mutant", []) + [
        {"exercise": guess["exercise"], "body": returning(answer), "shows": mistake}
        for guess in file.get("guesses", []) for answer, mistake in guess["wrong"].items()]
    for row in rows:
        if row.get("kind", "work") not in INPUTS | MISTAKES:
            raise CourseError(f"{lesson.mutants.name}: kind {row['kind']!r}, expected one of "
                              f"{', '.join(INPUTS | MISTAKES)}")
        one_of(("shows",), row, lesson.mutants)
    return rows


def twins(lesson):
    """[{exercise, style, body, text or find and replace}] of a lesson."""
    return read(lesson.twins).get("twin", []) + [
        {"exercise": guess["exercise"], "style": f"the guess {guess['right']}",
         "body": returning(guess["right"])}
        for guess in read(lesson.mutants).get("guesses", []) if "right" in guess]


def read(path):
    return tomllib.loads(path.read_text("utf-8")) if path.exists() else {}


def returning(answer):
    """The body that returns a guess: what a Python literal says, or the text itself."""
    try:
        return f"return {ast.literal_eval(answer)!r}"
    except (SyntaxError, ValueError):
        return f"return {answer!r}"


def one_of(keys, row, path):
    """CourseError unless a row has one of some keys."""
    there = [key for key in keys if key in row]
    if len(there) != 1:
        raise CourseError(f"{path.name}: a row of {row['exercise']} has "
                          f"{' and '.join(there) or 'nothing'}, expected one of {', '.join(keys)}")


def mutate(lesson, mutant):
    """The reference with an exercise written differently."""
    one_of(CHANGES, mutant, lesson.mutants)
    exercise = lesson.exercise(mutant["exercise"])
    language = exercise.language
    text = lesson.sources[language]
    if "body" in mutant:
        other = stub.rewritten(text, exercise.name, mutant["body"], language)
    else:
        other = mutant.get("text") or replaced(
            stub.extract(text, exercise.name, language), mutant, exercise)
    spliced = stub.splice(text, other, language)
    return replace(reference(lesson), shapes=False,
                   sources=lesson.sources | {language: spliced.text})


def replaced(whole, mutant, exercise):
    if whole.count(mutant["find"]) != 1:
        raise CourseError(f"{mutant['find']!r} occurs {whole.count(mutant['find'])} times in "
                          f"{exercise.name}, expected 1")
    return whole.replace(mutant["find"], mutant["replace"])


def fits(mutant, exercise, failure):
    """Whether a failure of an exercise shows a mutant's mistake. failure: what has .mistake"""
    return (mutant["exercise"], mutant["shows"]) == (exercise, failure.mistake)


def with_likely_causes(lesson, verdicts):
    """Add "You can get this when …" where a failure reads like a known mistake."""
    known = mutants(lesson)
    for verdict in verdicts:
        for mutant in known if verdict.verdict == "fail" else ():
            if mutant.get("when") and fits(mutant, verdict.name, verdict):
                verdict.message += f"\n{likely_cause(mutant)}"
                break
    return verdicts


def causes(lesson):
    """All lines that a failure may get in this way."""
    return list(dict.fromkeys(likely_cause(one) for one in mutants(lesson) if one.get("when")))


def likely_cause(mutant):
    return f"You can get this when {mutant['when']}."
