"""Which kinds of hard inputs and of mistakes an exercise's graders use, and which that apply they
never do: `lab verify --gaps`, a report for authors."""

import ast
import re

from lab import stub
from lab.judge import check
from lab.judge.adversarial import INPUTS, MISTAKES
from lab.judge.candidate import reference
from lab.judge.mutants import mutants

GUESSES = ("predict_", "choose_")       # exercises that take nothing
FIXED_WIDTH = re.compile(r"\bu?int(8|16|32|64)\b|\b(torch|np)\.(short|int|long)\b")


def examine(lesson):
    """A row for each exercise: {"exercise", "uses": kinds, "open": kinds that apply and are not
    used}, from a run of the reference."""
    observers = {}
    check.grade(lesson, reference(lesson), observed=observers)
    kinds = {name: one.kinds() for name, one in observers.items()}
    rows = []
    for exercise in lesson.exercises:
        inputs, takes = map(set, kinds.get(exercise.name, ((), ())))
        uses = inputs | {m["kind"] for m in mutants(lesson)
                         if m["exercise"] == exercise.name and "kind" in m}
        rows.append({"exercise": exercise.name, "uses": sorted(uses),
                     "open": [kind for kind in required(exercise, takes) if kind not in uses]})
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
        if row["open"]:
            lines.append(f"      OPEN: {', '.join(row['open'])}")
    return lines
