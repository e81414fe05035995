"""How fast the code under test is on a GPU, beside the course's own in the same run.

A lesson gives points for it under `speed` in its front matter, and its test file has

    @pytest.mark.gpu
    def test_softmax_online_triton_speed(pace):
        pace("softmax", numbers("bfloat16", 16_384, 8_192))

Each side runs in a process of its own, on the device.
They take turns; the clock is the grader's, from release to receipt.
Nothing can be remembered: every timed call has inputs of its own, made before the clock starts from
a seed that the grader has just drawn, and after it stops every result is compared with the course's
own.
Nor can work be left out: no kernel is faster than memory.

A simulator's time means nothing, so without a GPU the row is not proven here.
"""

import contextlib
import fcntl
import random
import time
from dataclasses import dataclass
from statistics import median

from lab import device

BANDS = ((0.9, 1.0), (0.6, 0.5))        # (ratio to the course's speed, share of the points)
ROUNDS = 7
SHORTEST = 0.05         # seconds of a run: a thousand times what asking the process takes
MAX_CALLS = 1 << 12     # calls in a run
MAX_DIFFERENCE = 0.02   # how far results may differ; whether they are right is graded apart
COPIED = 1 << 26        # float32 of the copy that shows what the memory can do: beyond every cache
FASTEST = 1.5           # × the copy's bytes a second: some inputs are read from a cache


@contextlib.contextmanager
def alone():
    """While this lasts, no other race of this user takes the GPU's time and memory."""
    with open(device.cache_folder() / "race.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def numbers(dtype, *shape):
    """An argument of `pace`: random normal numbers, the same on both sides."""
    return {"dtype": dtype, "shape": shape, "below": None}


def whole(dtype, below, *shape):
    """An argument of `pace`: random whole numbers from 0, less than `below`; see `scaled`."""
    return {"dtype": dtype, "shape": shape, "below": below}


def made_by(name, *arguments):
    """Arguments of `pace`: what a function of the lesson returns; of a tuple, each element."""
    return {"maker": name, "arguments": arguments}


def on_side(side, argument):
    """The same argument with the side's own function as its maker."""
    if not isinstance(argument, dict) or "maker" not in argument:
        return argument
    return {"maker": getattr(side, argument["maker"]),
            "arguments": [on_side(side, each) for each in argument["arguments"]]}


@dataclass
class Race:
    """One or two `Calls`, the number of timed calls, and what the grader alone has."""

    name: str
    sides: tuple            # of Calls; the course's own is the last
    draw: random.Random     # the other processes see its numbers only when they need them
    clock: callable
    count: int = 1

    def turn(self, backwards=False):
        """Seconds of `count` calls of each side, after all results have been compared.

        What asking takes is measured on the course's side alone: the other could answer late.
        """
        seed = self.draw.getrandbits(48)
        check = self.draw.getrandbits(48)
        order = self.draw.sample(range(self.count), self.count)
        took = {}
        prints = {}
        for side in self.sides[::-1] if backwards else self.sides:
            side.prepare(seed, order)
            took[side] = self.seconds(side, self.count)
            prints[side] = side.prints(check)
        pair = [prints[side] for side in self.sides]
        same(self.name, pair[0], pair[-1])
        asking = self.seconds(self.sides[-1], 0)
        return [took[side] - asking for side in self.sides]

    def seconds(self, side, count):
        began = self.clock()
        side.run(count)
        return self.clock() - began

    def warm_up(self):
        """Settle the number of calls by the course's own: a slow start of the other is no gain."""
        reference = self.sides[-1]
        reference.prepare(self.draw.getrandbits(48), [0])
        self.seconds(reference, 1)
        most = min(MAX_CALLS, reference.room() // reference.bytes())
        took = 0
        while took < SHORTEST and 2 * self.count <= most:
            self.count *= 2
            reference.prepare(self.draw.getrandbits(48), list(range(self.count)))
            took = self.seconds(reference, self.count)
        self.turn()

    def medians(self):
        """Seconds of one call of each side."""
        self.warm_up()
        turns = [self.turn(backwards=number % 2) for number in range(ROUNDS)]
        return [median(of_side) / self.count for of_side in zip(*turns, strict=True)]


def measure(name, candidate, reference, copying, draw, clock=time.perf_counter):
    """Seconds of one call of the course's over those of one call of the candidate, from `Calls`.

    copying: Calls of a copy, in a process of the course.
    AssertionError as in `compare`.
    """
    race = Race(name, (candidate, reference), draw, clock)
    candidate_seconds, reference_seconds = race.medians()
    call = draw.randrange(race.count)
    same_in_full(name, candidate.result(call), reference.result(call))
    copied, = Race(name, (copying,), draw, clock).medians()
    least = copied * reference.bytes() / copying.bytes() / FASTEST
    assert candidate_seconds >= least > 0, (
        f"{name} on the device: a call took {candidate_seconds * 1e6:.3g} µs, faster than memory "
        f"allows: reading its inputs and writing its results takes {least * 1e6:.3g} µs at least")
    return reference_seconds / candidate_seconds


def same(name, got, want):
    """Compare the fingerprints of all calls.
    A NaN is near no number."""
    for call, (candidate, reference) in enumerate(zip(got, want, strict=True), 1):
        for (shape, _, *here), (expected, size, *there) in zip(candidate, reference, strict=True):
            assert shape == expected, (
                f"{name} on the device: its result has the shape {tuple(shape)}, expected "
                f"{tuple(expected)}")
            assert all(abs(a - b) <= MAX_DIFFERENCE * size
                       for a, b in zip(here, there, strict=True)), (
                f"{name} on the device: the result of call {call} of {len(want)} is not the one "
                "for that call's inputs")


def same_in_full(name, got, want):
    """Compare every number of one call."""
    for candidate, reference in zip(got, want, strict=True):
        apart = (candidate.double() - reference.double()).abs().max()
        assert apart <= MAX_DIFFERENCE * reference.double().abs().max(), (
            f"{name} on the device: its result is wrong, unlike at the simulator's sizes: a number "
            f"is {apart:.3g} off")


def compare(candidate, reference, name, arguments, device="cuda", seed=0):
    """candidate, reference: Subjects on the device -> the speed of the first over the course's.

    AssertionError where mine computes something else, takes less time than its bytes need, or is
    too slow to earn a point.
    """
    sides = [side.make("lab.remote.pace_calls:Calls", getattr(side, name),
                       [on_side(side, argument) for argument in arguments], device)
             for side in (candidate, reference)]
    copying = reference.make("lab.remote.pace_calls:Calls", None, [numbers("float32", COPIED)],
                             device)
    for side in (*sides, copying):
        side.prepare(0, [0])            # compiles, which may go on beside another race
        side.run(1)
    with alone():
        ratio = measure(name, *sides, copying, random.Random(seed))
    assert ratio >= BANDS[-1][0], (
        f"{ratio:.2f} × the speed of the course's own; {BANDS[-1][0]} × earns the first points")
    return ratio


def points(ratio, most):
    """Of `most` points, what a ratio to the course's speed earns."""
    return next((round(share * most) for least, share in BANDS if ratio >= least), 0)
