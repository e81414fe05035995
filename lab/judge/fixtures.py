"""What a grader's tests are given: subject, reference, truth, pace, rng. tests/conftest.py passes
them on."""

import base64
import contextlib
import functools

import pytest

from lab import course
from lab.judge import pace as pacing
from lab.judge.candidate import reference
from lab.judge.isolate import Place, cuda_kernels
from lab.judge.observer import Observer
from lab.judge.plugin import CANDIDATE, EXERCISE, OBSERVED, RATIO, SEED, NotProvenHere
from lab.judge.subject import Subject
from lab.judge.tape import Recorded, ReplayChild, read, value


def under_test(request):
    """(lesson, candidate, place): what a plain pytest run grades is the reference."""
    stash = request.config.stash.get(CANDIDATE, None)
    if stash is not None:
        return stash
    lesson = course.find(request.path.stem.removeprefix("test_"))
    return lesson, reference(lesson), Place()


@pytest.fixture
def subject(request):
    """The code under test: a proxy to its own process.
    See lab/judge/subject.py."""
    lesson, candidate, place = under_test(request)
    with contextlib.ExitStack() as stack:
        @functools.cache
        def the_reference():        # started only when asked
            if not lesson.answered:
                return Recorded(lesson)
            return stack.enter_context(place.reference_for_limits(lesson, request.node))

        proxy = stack.enter_context(place.subject(lesson, candidate, request.node,
                                                  the_reference))
        proxy.calls.clear()         # of an earlier test: in a sandbox several share a process
        observed = request.config.stash.get(OBSERVED, None)
        if observed is not None:
            proxy.observer = observed.setdefault(request.node.stash[EXERCISE].name, Observer())
        yield proxy


@pytest.fixture(name="reference")
def reference_fixture(request):
    """The course's own solution behind the same proxy, for counts to compare with; where an
    edition lacks it, what it answered when the edition was made."""
    lesson, _, place = under_test(request)
    if not lesson.answered:
        @functools.cache            # one for both kinds of process: the answers lie in one order
        def recorded():
            return ReplayChild(read(lesson)["answers"].get(request.node.name, ()))

        yield Subject(recorded, cuda=(cuda_kernels(lesson.sources.get("cuda", "")), recorded))
        return
    with place.reference(lesson, request.node) as proxy:
        yield proxy


@pytest.fixture
def truth(request):
    """truth(function): data that a test makes in this process with the lesson's own answers, such
    as launches counted in the course's model.
    Where an edition lacks those, the data from when it was made: a test asks for the same data
    in the same order, be the answer right or wrong."""
    lesson, _, place = under_test(request)
    if lesson.answered:
        return lambda function: place.truth(request.node, function())
    truths = iter(read(lesson)["truths"].get(request.node.name, ()))
    return lambda function: value(base64.b64decode(next(truths)))


@pytest.fixture
def pace(request):
    """pace(name, *arguments): the lesson's public function on the device, beside the course's own
    in the same run.
    See lab/judge/pace.py."""
    lesson, candidate, place = under_test(request)
    if not lesson.answered:
        raise NotProvenHere("speed is compared with the course's own kernel, which this edition "
                            "does not have")
    with place.pace(lesson, candidate) as sides:
        def compare(name, *arguments):
            seed = request.config.stash.get(SEED, 0)
            request.node.stash[RATIO] = pacing.compare(*sides, name, arguments, seed=seed)

        yield compare


@pytest.fixture
def rng(request):
    """Random inputs.
    The seed is fixed for learners; an instructor sets another."""
    import numpy as np

    return np.random.default_rng(request.config.stash.get(SEED, 0))
