"""Three hints an exercise, then the reference.
The same in the terminal and in a notebook."""

from lab import stub
from lab.course import CourseError

TIERS = ("nudge", "idea", "nearly the line")


def next_hint(exercise, desk=None):
    """The next tier, remembered on the desk; after the third, the third again."""
    if not exercise.hints:
        raise CourseError(f"{exercise.name} has no hints")
    if desk is None:
        return "\n".join(numbered(exercise, i) for i in range(len(exercise.hints)))
    with desk.changing() as state:
        tier = min(state["hints"].get(exercise.id, 0), len(exercise.hints) - 1)
        state["hints"][exercise.id] = tier + 1
    return numbered(exercise, tier)


def numbered(exercise, i):
    return f"{i + 1} of {len(exercise.hints)}, {TIERS[i]}: {exercise.hints[i]}"


def show(exercise, desk=None, now=False):
    """The reference's text; CourseError before a pass or the third hint, unless `now`."""
    if desk is not None and not now and not desk.passed(exercise):
        left = len(exercise.hints) - desk.state()["hints"].get(exercise.id, 0)
        if left > 0:
            raise CourseError(f"{exercise.name} has not passed yet and {left} hint(s) are left: "
                              f"`lab hint {exercise.name}`, or `lab show {exercise.name} --now`")
    if not exercise.lesson.answered:
        raise CourseError(f"{exercise.name}: the answers of {exercise.lesson.id} are not in this "
                          f"edition of the course")
    language = exercise.language
    return stub.extract(exercise.lesson.sources[language], exercise.name, language)
