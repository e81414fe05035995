"""Near-identical answers of different students, for a person to look at; never a penalty.

Renaming, comments and layout change nothing: an answer is read as the set of its shingles, each
K consecutive tokens with names numbered in order of use.
Shingles of the course's reference are left out, since every right answer may have them.
Two answers are as alike as the Jaccard index of the rest.
Where the exercise leaves little choice, the whole class is alike: a pair counts only from half-way
between the usual index and 1, and an answer like those of many others does not count.
"""

import keyword
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from lab import stub

K = 8                   # tokens per shingle: a short statement, so moved statements still match
ALIKE = 0.6             # the Jaccard index from which two answers are near-identical: a copy with
#                         all names changed and statements moved has 0.7, honest answers below 0.1
SHORT, LONG = 12, 40    # own shingles: an answer below the first never counts, below the second
TOGETHER = 3            # only if the pair has this many near-identical exercises
COMMON = 0.1            # share of the class that an answer may be like and still be unusual
RING = 3                # answers that it may always be like: a small class, or a small group
MAX_TOKENS = 2000       # of an answer that are read; the longest reference has 400

TOKEN = re.compile(r"""\w+|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[^\s\w]""")
WORDS = frozenset((*keyword.kwlist, "switch", "case", "default", "do", "const", "unsigned", "int",
                   "float", "void", "bool", "auto", "struct", "true", "false"))


@dataclass(frozen=True)
class Pair:
    """Two students, and the exercises in which they are near-identical."""

    students: tuple[str, str]
    alike: tuple[tuple[str, float, int], ...]   # (lesson/exercise, Jaccard index, shingles shared)

    @property
    def shared(self):
        return sum(count for _, _, count in self.alike)


def pairs(students, lessons):
    """The Pairs among [scores.Student], those that share most first."""
    alike = defaultdict(list)
    long = set()
    for lesson in lessons:
        for exercise in lesson.exercises:
            answers = {s.name: text for s in students if (text := answer(s, exercise))}
            for who, index, shared in near(answers, own_answer(exercise)):
                alike[who].append((exercise.id, index, shared))
                if shared >= LONG:
                    long.add(who)
    similar = [Pair(who, tuple(rows)) for who, rows in alike.items()
             if who in long or len(rows) >= TOGETHER]
    return sorted(similar, key=lambda pair: (-pair.shared, pair.students))


@dataclass(frozen=True)
class Same:
    """Students whose answers are the same but for comments and layout, in all they attempted."""

    students: tuple[str, ...]
    exercises: int
    as_reference: bool          # whether that text is the course's own


def identical(students, lessons):
    """The Sames among [scores.Student] whose answers are long enough, or several."""
    exercises = [exercise for lesson in lessons for exercise in lesson.exercises]
    groups = defaultdict(list)
    for student in students:
        groups[tuple(answer(student, each) for each in exercises)].append(student.name)
    alike = []
    for texts, names in groups.items():
        pairs = [(text, each) for text, each in zip(texts, exercises, strict=True) if text]
        long = sum(len(TOKEN.findall(text)) for text, _ in pairs) >= LONG
        if len(names) > 1 and (long or len(pairs) >= TOGETHER):
            own = all(text == own_answer(each) for text, each in pairs)
            alike.append(Same(tuple(sorted(names)), len(pairs), own))
    return sorted(alike, key=lambda same: (same.as_reference, same.students))


def own_answer(exercise):
    """The course's own answer, normalised."""
    text = exercise.lesson.sources[exercise.language]
    return stub.normalised(text, exercise.name, exercise.language)


def answer(student, exercise):
    return next((row.result.text for row in student.counted.rows
                 if row.key == (exercise.lesson.id, exercise.name)), "")


def near(answers, reference):
    """[((student, student), Jaccard index, shared)] of one exercise's answers {student: text}."""
    stub_shingles = shingles(reference)
    own = {name: shingles(text) - stub_shingles for name, text in sorted(answers.items())}
    own = {name: shingle_set for name, shingle_set in own.items() if len(shingle_set) >= SHORT}
    names = list(own)
    shared = overlaps(list(own.values()))
    sizes = np.array([len(shingle_set) for shingle_set in own.values()])
    index = shared / np.maximum(sizes[:, None] + sizes - shared, 1)
    close = index >= max(ALIKE, (1 + usual_index(index)) / 2)
    usual = close.sum(1) - 1 > max(RING, COMMON * len(answers))
    return [((names[i], names[j]), float(index[i, j]), int(shared[i, j]))
            for i, j in combinations(np.flatnonzero(~usual), 2) if close[i, j]]


def usual_index(index):
    """The median over all pairs; 0 where there is only one, or none."""
    every = index[np.triu_indices(len(index), 1)]
    return float(np.median(every)) if len(every) > 1 else 0.0


def overlaps(sets):
    """(n, n): how many elements each two of n sets share."""
    owners = defaultdict(list)
    for i, elements in enumerate(sets):
        for element in elements:
            owners[element].append(i)
    several = [rows for rows in owners.values() if len(rows) > 1]
    table = np.zeros((len(sets), len(several)), np.float32)         # counts below 2²⁴ are exact
    for column, rows in enumerate(several):
        table[rows, column] = 1
    shared = table @ table.T
    np.fill_diagonal(shared, [len(elements) for elements in sets])
    return shared


def shingles(text):
    """The set of all runs of K tokens, the names in each numbered in order of use."""
    tokens = TOKEN.findall(text)[:MAX_TOKENS]
    names = [is_name(token, before) for token, before in zip(tokens, ["", *tokens], strict=False)]
    return {renamed(tokens[i:i + K], names[i:i + K]) for i in range(len(tokens) - K + 1)}


def is_name(token, before):
    """A name of the author's choice: not a number, a keyword or an attribute (`tl.dot`)"""
    return token.isidentifier() and token not in WORDS and before != "."


def renamed(tokens, names):
    numbers = {}
    return tuple(numbers.setdefault(token, len(numbers)) if name else token
                 for token, name in zip(tokens, names, strict=True))
