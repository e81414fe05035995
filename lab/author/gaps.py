"""Which kinds of hard inputs and of mistakes an exercise's graders use, and why others do not
apply: `lab verify --gaps`, a report for authors.

tests/<floor>/<lesson>.gaps.toml holds the reasons: [[gap]] exercises, kinds, why.
"""

import ast
import re
import tomllib

from lab import stub
from lab.course import CourseError
from lab.judge import check
from lab.judge.adversarial import INPUTS, MISTAKES
from lab.judge.candidate import reference
from lab.judge.mutants import mutants

GUESSES = ("predict_", "choose_")       # exercises that take nothing
FIXED_WIDTH = re.compile(r"\bu?int(8|16|32|64)\b|\b(torch|np)\.(short|int|long)\b")


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
        used, takes = observed.get(exercise.name, (set(), set()))
        why = reasons[exercise.name]
        uses = used | {m["kind"] for m in mutants(lesson)
                           if m["exercise"] == exercise.name and "kind" in m}
        rows.append({"exercise": exercise.name, "uses": sorted(uses), "why": why,
                     "open": [kind for kind in required(exercise, takes)
                              if kind not in uses and kind not in why],
                     "stale": sorted(set(why) & uses)})
    return rows


def required(exercise, takes):
    """The kinds that apply to an exercise, by what it takes and by what its reference does."""
    if exercise.name.startswith(GUESSES):
        return []
    own = stub.normalised(exercise.lesson.sources[exercise.language], exercise.name,
                          exercise.language)
    takes = takes | {word for word, applies in (
        ("states", "." in exercise.name or exercise.name[0].isupper()),
        ("widths", "kernels" in takes or "numbers" in takes and FIXED_WIDTH.search(own)),
        ("order", compares_by_order(own, exercise.language))) if applies}
    return [kind for kind, one in INPUTS.items() if one.needs in takes] + [
        kind for kind, (needs, _) in MISTAKES.items() if needs in takes]


def compares_by_order(text, language):
    """Whether a normalised text holds a <, <=, > or >= of values."""
    if language == "cuda":          # tokens with a space between them
        values = re.sub(r"\w+ < [^<>;()]* >", "", text)         # without templates
        return re.search(r" [<>]=? ", values) is not None
    return any(isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
               for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Compare)
               for operator in node.ops)


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
