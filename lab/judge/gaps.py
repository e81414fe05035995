"""Which kinds of hard inputs and of mistakes an exercise's graders use, and why others do not
apply: `lab verify --gaps`.

What a grader hands over is looked at as it crosses to the reference, so the list shows what ran.
tests/<floor>/<lesson>.gaps.toml holds the reasons: [[gap]] exercises, kinds, why.
"""

import tomllib

import numpy as np

from lab.course import CourseError
from lab.judge import check
from lab.judge.adversarial import INPUTS, MISTAKES, Handed
from lab.judge.candidate import reference
from lab.judge.compare import numbers
from lab.judge.mutants import mutants
from lab.remote import wire

GUESSES = ("predict_", "choose_")       # exercises that take nothing


class Observer:
    """Looks at every call of one test. uses: kinds of INPUTS that were seen; takes: what the
    exercise takes, in the words of Kind.needs."""

    def __init__(self):
        self.uses = set()
        self.takes = {"answers"}
        self.sizes = {}

    def kinds(self):
        """What `examine` needs of it, as lists."""
        return sorted(self.uses), sorted(self.takes)

    def __call__(self, name, values, launch=False):
        handed = self.handed(name, values, launch)
        self.uses |= {kind for kind, one in INPUTS.items() if one.seen(handed)}
        self.takes |= {
            word for word, applies in (
                ("floats", any(numbers(a, name).dtype.kind == "f" and numbers(a, name).size > 1
                               for a in wire.arrays(values))),
                ("sizes", any(a.ndim and a.size > 1 for a in handed.arrays)),
                ("numbers", handed.numbers), ("kernels", launch), ("handed", handed.objects),
                ("views", not launch and any(a.ndim > 1 for a in handed.arrays)),
                ("calls", not launch)) if applies}

    def handed(self, name, values, launch):
        arrays = [numbers(a, name) for a in wire.arrays(values)]
        if fractions := list(real(values)):
            arrays.append(np.array(fractions))
        sizes = [a.shape for a in arrays], lengths(values), whole(values), list(real(values))
        again = self.sizes.setdefault(name, sizes) != sizes
        return Handed(arrays, {n for a in arrays for n in a.shape} | whole(values), again, launch,
                      has_objects(values))


def lengths(values):
    return [len(v) for v in values if isinstance(v, (list, tuple, str, dict))]


def whole(value):
    """The whole numbers in a value, lengths of lists and texts included."""
    if isinstance(value, (bool, float)) or value is None:
        return set()
    if isinstance(value, (int, np.integer)):
        return {int(value)}
    if isinstance(value, (str, bytes)):
        return {len(value)}
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return {len(value)}.union(*map(whole, value))
    return set()


def real(value):
    """The floats in a value that are in no array."""
    if isinstance(value, float):
        yield value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from real(item)


def has_objects(value):
    """Whether something other than data is handed over: an object of the code under test."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(has_objects, value))
    return type(value).__name__ == "Remote"


# ---- what is left open


def excuses(lesson):
    """{exercise: {kind: why it does not apply}} from the lesson's file."""
    path = lesson.gaps
    reasons = {e.name: {} for e in lesson.exercises}
    rows = tomllib.loads(path.read_text("utf-8")).get("gap", []) if path.exists() else []
    for row in rows:
        for name in reasons if row["exercises"] == ["*"] else row["exercises"]:
            for kind in row["kinds"]:
                if name not in reasons or kind not in INPUTS | MISTAKES:
                    raise CourseError(f"{path.name}: {name}, {kind}: expected an exercise of "
                                      f"{lesson.id} and a kind of lab/judge/adversarial.py")
                reasons[name][kind] = row["why"]
    return reasons


def examine(lesson, observed=None):
    """observed: {exercise: (uses, takes)} from a run of the reference; None: run it here.

    A row for each exercise: {"exercise", "uses": kinds, "why": {kind: reason}, "open": kinds
    that are neither used nor excused, "stale": kinds that are excused and yet used}."""
    reasons = excuses(lesson)
    rows = []
    if observed is None:
        observers = {}
        check.grade(lesson, reference(lesson), observed=observers)
        observed = {name: tuple(map(set, one.kinds())) for name, one in observers.items()}
    for exercise in lesson.exercises:
        used, takes = observed.get(exercise.name, (set(), {"answers"}))
        why = reasons[exercise.name]
        uses = used | {m["kind"] for m in mutants(lesson)
                           if m["exercise"] == exercise.name and "kind" in m}
        rows.append({"exercise": exercise.name, "uses": sorted(uses), "why": why,
                     "open": [kind for kind in required(exercise, takes)
                              if kind not in uses and kind not in why],
                     "stale": sorted(set(why) & uses)})
    return rows


def required(exercise, takes):
    """The kinds that apply to an exercise, by what it takes."""
    if exercise.name.startswith(GUESSES):
        return []
    if "." in exercise.name or exercise.name[0].isupper():
        takes = takes | {"states"}
    return [kind for kind, one in INPUTS.items() if one.needs in takes] + [
        kind for kind, (needs, _) in MISTAKES.items() if needs in takes]


def text(rows):
    """The report as lines."""
    lines = []
    for row in rows:
        lines.append(f"  {row['exercise']}: {', '.join(row['uses']) or 'takes nothing'}")
        by_reason = {}
        for kind, why in row["why"].items():
            by_reason.setdefault(why, []).append(kind)
        lines += [f"      not {', '.join(kinds)}: {why}" for why, kinds in by_reason.items()]
        lines += [f"      OPEN: {', '.join(row['open'])}"] * bool(row["open"])
        lines += [f"      STALE, used after all: {', '.join(row['stale'])}"] * bool(row["stale"])
    return lines
