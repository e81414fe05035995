"""`lab watch`: check the first exercise that has not passed, again at every save."""

from lab import check


def watch(desk, lessons, console, show):
    """Until everything passed or Ctrl-C. `show(lesson, candidate, verdicts)` prints."""
    from watchfiles import watch as saves

    folders = {desk.path(lesson, ".py").parent for lesson in lessons}
    if step(desk, lessons, console, show):
        return
    for _ in saves(*folders, raise_interrupt=False):
        if step(desk, lessons, console, show):
            return


def step(desk, lessons, console, show):
    """Check from the first open exercise on; True when none is left."""
    for lesson in lessons:
        for exercise in lesson.exercises:
            if desk.passed(exercise):
                continue
            candidate = desk.candidate(lesson)
            verdicts = check.with_likely_causes(
                lesson, check.grade_warm(lesson, candidate, [exercise.name])
            )
            desk.record(lesson, candidate, verdicts)
            show(lesson, candidate, verdicts)
            if verdicts[0].verdict not in ("pass", "not_proven_here"):
                console.print(f"waiting for a save of {candidate.labels[exercise.language]} …")
                return False
    console.print("everything here has passed")
    return True
