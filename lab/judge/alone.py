"""An exercise that failed beside others is judged by itself: with the course's own in their place.

A test of one exercise may run others: the step of an engine calls four, and one syntax error stops
a whole file of CUDA C. So what failed is graded again with the course's answers to those that it
and its tests use.
Only its verdict may then change where answers are held back: a message could tell them.
"""

import ast
import difflib
import re
from dataclasses import replace
from functools import lru_cache

from lab import stub

NOT_COMPILED = "error"          # in the verdict of a CUDA text that does not compile


def again(lesson, candidate, exercise, verdict, passed, run, shows_answers):
    """The verdicts that change, by name: those of one exercise and its speed, or none.

    verdict: the exercise's as it stands    passed: names of exercises that need no help
    run(candidate, exercise): its verdicts
    shows_answers: whether the author of the candidate may see the course's answers
    """
    if verdict.verdict != "fail" or not lesson.answered or candidate.sources == lesson.sources:
        return {}
    others = [e for e in needed(lesson, exercise, verdict.message) if e.name not in passed]
    helped, names = with_own(lesson, candidate, exercise, others)
    if not names:
        return {}
    rows = run(helped, exercise)
    own = rows[exercise.name]
    if own.verdict != "pass" and (not shows_answers or own.message == verdict.message):
        return {}
    note = f"Judged with the course's own {', '.join(names)}."
    own.message = f"{own.message}\n{note}".lstrip()
    return rows


def needed(lesson, exercise, message=""):
    """The exercises that may be at fault for another's failure: those that its reference uses, by
    name or as a method, or code that its tests ask for; the other methods of its class; all in a
    CUDA file that does not compile.
    """
    language = exercise.language
    text = lesson.sources[language]
    others = [e for e in lesson.exercises if e.language == language and e != exercise]
    if language == "cuda" and f": {NOT_COMPILED}:" in message:
        return others
    owners = {e.name.rpartition(".")[0] for e in lesson.exercises}
    known = [name for name in stub.definitions(text, language) if name not in owners]
    entries = asked_by_tests(lesson, exercise)
    reached = [exercise.name, *(d for d in known if d.partition(".")[0] in entries)]
    for name in reached:
        words = used(stub.normalised(text, name, language), language)
        reached += [d for d in known if d not in reached and d.rpartition(".")[2] in words]
    owner = exercise.name.rpartition(".")[0]
    return [e for e in others if e.name in reached or owner and e.name.startswith(f"{owner}.")]


def asked_by_tests(lesson, exercise):
    """The names that the tests of an exercise ask `subject` for, themselves or in what they use of
    the lesson's graders."""
    known = {}
    for path in lesson.graders:
        known |= parts(path.read_text("utf-8"))
    reached = [d for d in known if d == exercise.test or d.startswith(f"{exercise.test}__")]
    for name in reached:
        words = {getattr(node, "id", None) for node in known[name]}
        reached += [d for d in known if d not in reached and d in words]
    return {node.attr for name in reached for node in known[name]
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "subject"}


@lru_cache(8)           # the graders of a lesson or two: each wrong answer asks
def parts(text):
    """{name: all nodes} of the functions and classes of a module's text."""
    return {node.name: list(ast.walk(node)) for node in ast.parse(text).body
            if hasattr(node, "name")}


def used(text, language):
    """The words of a definition; of Python only names and attributes, without those of types."""
    if language == "cuda":
        return set(re.findall(r"\w+", text))
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for types in ("annotation", "returns"):
            if hasattr(node, types):
                setattr(node, types, None)
    return {getattr(node, "id", None) or getattr(node, "attr", None) for node in ast.walk(tree)}


def with_own(lesson, candidate, exercise, others):
    """(the candidate with the course's answers to `others`, the names of those that differed); no
    names where it cannot be read."""
    language = exercise.language
    text = candidate.sources[language]
    reference = lesson.sources[language]
    names = []
    try:
        for name in (e.name for e in others):
            if stub.normalised(text, name, language) != stub.normalised(reference, name, language):
                text = stub.splice(text, stub.extract(reference, name, language), language).text
                names.append(name)
    except (SyntaxError, ValueError):
        return candidate, []
    origin = lines_of(text, candidate.sources[language], candidate.origins.get(language))
    return replace(candidate, sources=candidate.sources | {language: text},
                   origins=candidate.origins | {language: origin}), names


def lines_of(text, before, origin):
    """For each line of `text` its number as the author knows it, None where it is the course's.
    origin: the same for `before`, None where the author knows its lines by their numbers."""
    old, rows = (one.removesuffix("\n").split("\n") for one in (before, text))
    numbers = [None] * len(rows)
    matches = difflib.SequenceMatcher(None, old, rows, autojunk=False)
    for i, j, length in matches.get_matching_blocks():
        for k in range(length):
            numbers[j + k] = origin[i + k] if origin else i + k + 1
    return numbers
