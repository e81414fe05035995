"""`lab watch`: check the first exercise that has not passed, again at every save."""

from lab.course import CourseError
from lab.judge import forked


def watch(desk, lessons, console, show):
    """Run until everything has passed, or Ctrl-C. `show(lesson, candidate, verdicts)` prints them
    as they come, and gives them as a list."""
    from watchfiles import watch as saves

    folders = {desk.path(lesson, ".py").parent for lesson in lessons}
    checked = texts(desk, lessons)
    if step(desk, lessons, console, show):
        return
    # Once a second at the latest: a save between two looks raises no event.
    for _ in saves(*folders, rust_timeout=1000, yield_on_timeout=True, raise_interrupt=False):
        if (now := texts(desk, lessons)) not in (checked, None):
            checked = now
            if step(desk, lessons, console, show):
                return


def texts(desk, lessons):
    """All that can be graded here; None while an editor has a file moved aside to save it."""
    try:
        return [desk.candidate(lesson).sources for lesson in lessons]
    except CourseError:
        return None


def step(desk, lessons, console, show):
    """Check from the first open exercise on; True when none is left."""
    for lesson in lessons:
        for exercise in lesson.exercises:
            if desk.passed(exercise):
                continue
            candidate = desk.candidate(lesson)
            verdicts = show(lesson, candidate,
                            forked.verdicts(lesson, candidate, [exercise.name]))
            desk.record(lesson, candidate, verdicts)
            if verdicts[0].verdict not in ("pass", "not_proven_here"):
                console.print(f"waiting for a save of {candidate.labels[exercise.language]} …")
                return False
    console.print("everything here has passed")
    return True
