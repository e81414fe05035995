"""What a grader's tests are given: subject, reference, rng. tests/conftest.py passes them on."""

import contextlib
import functools

import pytest

from lab import course
from lab import pace as pacing
from lab.candidate import reference
from lab.check import CANDIDATE, RATIO, SEED, TAPE, NotProvenHere
from lab.isolate import running
from lab.subject import Subject
from lab.tape import Recorded, Replayed, read
from lab.warm import Child


def under_test(config, request):
    """(lesson, candidate, warm): what a plain pytest run grades is the reference."""
    found = config.stash.get(CANDIDATE, None)
    if found is not None:
        return found
    lesson = course.find(request.path.stem.removeprefix("test_"))
    return lesson, reference(lesson), None


def child(request, fixture):
    """What starts the process behind a fixture; with a tape, where one runs along."""
    tape = request.config.stash.get(TAPE, None)
    return Child if tape is None else tape.child(fixture, request.node.name)


@pytest.fixture
def subject(request):
    """The code under test: a proxy to its own process. See lab/subject.py."""
    lesson, candidate, warm = under_test(request.config, request)
    with contextlib.ExitStack() as stack:
        @functools.cache
        def own():                  # started only when a limit is hit
            if not lesson.answered:
                return Recorded(lesson)
            return stack.enter_context(running(lesson, lesson.sources, warm))

        yield stack.enter_context(running(lesson, candidate.sources, warm, own, candidate.shapes,
                                          child=child(request, "subject")))


@pytest.fixture(name="reference")
def reference_fixture(request):
    """The course's own solution behind the same proxy, for counts to compare with; where it is
    not given, what it answered when the edition was made."""
    lesson, _, warm = under_test(request.config, request)
    if not lesson.answered:
        yield Subject(lambda: Replayed(read(lesson)["answers"].get(request.node.name, ())))
        return
    with running(lesson, lesson.sources, warm, child=child(request, "reference")) as proxy:
        yield proxy


@pytest.fixture
def pace(request):
    """pace(name, *arguments): the lesson's public function on the device, beside the course's own
    in the same run. See lab/pace.py."""
    lesson, candidate, _ = under_test(request.config, request)
    if not lesson.answered:
        raise NotProvenHere("speed is compared with the course's own kernel, which this edition "
                            "does not have")
    with running(lesson, candidate.sources, on_device=True) as mine, \
            running(lesson, lesson.sources, on_device=True) as own:
        def compare(name, *arguments):
            request.node.stash[RATIO] = pacing.compare(mine, own, name, arguments)

        yield compare


@pytest.fixture
def rng(request):
    """Random inputs. The seed is fixed for learners; whoever grades submissions gives another."""
    import numpy as np

    return np.random.default_rng(request.config.stash.get(SEED, 0))
