"""What a grader's tests are given: subject, reference, rng. tests/conftest.py passes them on."""

import contextlib
import functools

import pytest

from lab import course
from lab import pace as pacing
from lab.candidate import reference
from lab.check import CANDIDATE, EXERCISE, RATIO, SEED
from lab.isolate import Place


def under_test(request):
    """(lesson, candidate, place): what a plain pytest run grades is the reference."""
    found = request.config.stash.get(CANDIDATE, None)
    if found is not None:
        return found
    lesson = course.find(request.path.stem.removeprefix("test_"))
    return lesson, reference(lesson), Place()


@pytest.fixture
def subject(request):
    """The code under test: a proxy to its own process. See lab/subject.py."""
    lesson, candidate, place = under_test(request)
    exercise = request.node.stash.get(EXERCISE, None)
    with contextlib.ExitStack() as stack:
        @functools.cache
        def own():                  # started only when it is asked
            return stack.enter_context(place.reference(lesson))

        yield stack.enter_context(place.subject(lesson, candidate, exercise, own))


@pytest.fixture(name="reference")
def reference_fixture(request):
    """The course's own solution behind the same proxy, for counts to compare with."""
    lesson, _, place = under_test(request)
    with place.reference(lesson) as proxy:
        yield proxy


@pytest.fixture
def pace(request):
    """pace(name, *arguments): the lesson's public function on the device, beside the course's own
    in the same run. See lab/pace.py."""
    lesson, candidate, place = under_test(request)
    with place.on_device(lesson, candidate.sources) as mine, \
            place.on_device(lesson, lesson.sources) as own:
        def compare(name, *arguments):
            request.node.stash[RATIO] = pacing.compare(mine, own, name, arguments)

        yield compare


@pytest.fixture
def rng(request):
    """Random inputs. The seed is fixed for learners; whoever grades submissions gives another."""
    import numpy as np

    return np.random.default_rng(request.config.stash.get(SEED, 0))
