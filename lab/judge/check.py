"""Grade a text against a lesson: pytest in this process, the text behind `subject` in another."""

from lab.judge import alone
from lab.judge.attempt import untouched
from lab.judge.isolate import Place
from lab.judge.mutants import with_likely_causes
from lab.judge.plugin import GradedRun
from lab.judge.verdict import Verdict

VERDICTS = ("pass", "fail", "not_attempted", "not_proven_here", "error")


def grade(lesson, candidate, names=None, place=None, seed=0, observed=None):
    """Verdicts for the exercises in `names` (all when None), in the lesson's order.

    place: where the code under test runs; None: beside this process.
    seed: of the random inputs; an instructor's is secret.
    observed: filled with {exercise: the Observer of what its tests handed over}
    """
    return list(verdicts(lesson, candidate, names, place, seed, observed))


def verdicts(lesson, candidate, names=None, place=None, seed=0, observed=None, passed=()):
    """What `grade` returns, one verdict after the other as they are known. passed: names of
    exercises that have passed already."""
    place = place or Place()
    passed = set(passed)

    def run(text, exercise, observed=None):
        return GradedRun(lesson, text, {exercise.name: exercise}, place.of(text), seed,
                          observed).verdicts()

    for exercise in lesson.exercises:
        if names is not None and exercise.name not in names:
            continue
        rows = {exercise.name: untouched(lesson, candidate, exercise)}
        if rows[exercise.name] is None:
            rows = run(candidate, exercise, observed)
            rows |= alone.again(lesson, candidate, exercise, rows[exercise.name], passed, run,
                                place.shows_answers)
        if rows[exercise.name].verdict == "pass":
            passed.add(exercise.name)
        both = rows[exercise.name], rows.get(exercise.speed) or unmeasured(exercise)
        yield from with_likely_causes(lesson, [row for row in both if row is not None])


def unmeasured(exercise):
    """The verdict on the speed of what was not run; None where there are no points for it."""
    if not exercise.speed_points:
        return None
    return Verdict(exercise.speed, "not_attempted", 0, exercise.speed_points,
                   f"measured when {exercise.name} passes")
