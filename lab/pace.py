"""How fast the code under test is on a GPU, beside the course's own in the same run.

A lesson gives points for it under `speed` in its front matter, and its test file has

    @pytest.mark.gpu
    def test_softmax_online_triton_speed(pace):
        pace("softmax", numbers("bfloat16", 16_384, 8_192))

Each side runs in a process of its own, on the device. They take turns; the clock is the grader's.
A simulator's time means nothing, so without a GPU the row is not proven here.
"""

import time
from statistics import median

BANDS = ((0.9, 1.0), (0.6, 0.5))        # (ratio to the course's speed, share of the points)
ROUNDS = 7
SHORTEST = 0.05         # seconds of a run: a thousand times what asking the process takes
MOST = 1 << 16          # calls in a run
NEAR = 0.02             # of the largest: how far results may be apart; being right is graded apart


def numbers(dtype, *shape):
    """An argument of `pace`: random normal numbers, the same on both sides."""
    return {"dtype": dtype, "shape": shape, "below": None}


def whole(dtype, below, *shape):
    """An argument of `pace`: random whole numbers from 0, less than `below`."""
    return {"dtype": dtype, "shape": shape, "below": below}


def made_by(name, *arguments):
    """Arguments of `pace`: what a function of the lesson returns; each of a tuple is one."""
    return {"maker": name, "arguments": arguments}


class Calls:
    """A function of the lesson and its arguments, in the process under test. Built by `make`."""

    def __init__(self, function, arguments, device="cuda"):
        import torch

        torch.manual_seed(0)                    # both sides draw the same numbers
        self.function, self.device = function, device
        self.arguments = [made for a in arguments for made in self.argument(a)]

    def argument(self, given):
        """What is meant by one of the functions above, or by a plain value: a sequence."""
        import torch

        if not isinstance(given, dict):
            return (given,)
        if "maker" in given:
            found = given["maker"](*(a for each in given["arguments"] for a in self.argument(each)))
            return found if isinstance(found, tuple) else (found,)
        place = {"dtype": getattr(torch, given["dtype"]), "device": self.device}
        if given["below"] is None:
            return (torch.randn(given["shape"], **place),)
        return (torch.randint(given["below"], given["shape"], **place),)

    def result(self):
        """What one call returns, or leaves in its arguments if it returns nothing: CPU tensors."""
        import torch

        found = self.function(*self.arguments)
        every = self.arguments if found is None else found if isinstance(found, tuple) else (found,)
        return [a.cpu() for a in every if torch.is_tensor(a)]

    def run(self, count):
        """Call it so often, and wait for the device."""
        import torch

        for _ in range(count):
            self.function(*self.arguments)
        if self.device == "cuda":
            torch.cuda.synchronize()


def on_side(side, given):
    """The same argument with the side's own function as its maker."""
    if not isinstance(given, dict) or "maker" not in given:
        return given
    return {"maker": getattr(side, given["maker"]),
            "arguments": [on_side(side, each) for each in given["arguments"]]}


def measure(mine, own, clock=time.perf_counter):
    """Seconds of one call of the course's over those of one call of mine, from `Calls` on both.

    A run of 2 n calls less a run of n is n calls: what asking the process takes drops out.
    """
    def seconds(calls, count):
        began = clock()
        calls.run(count)
        return clock() - began

    count = 1
    while seconds(own, count) < SHORTEST and count < MOST:
        count *= 2
    seconds(mine, count)                        # it is warm now, too
    ratios = []
    for number in range(ROUNDS):
        took = {}
        for side in (mine, own)[::-1 if number % 2 else 1]:
            took[side] = seconds(side, 2 * count) - seconds(side, count)
        ratios.append(took[own] / took[mine] if took[mine] > 0 else float("inf"))
    return median(ratios)


def compare(mine, own, name, arguments, device="cuda"):
    """mine, own: Subjects on the device -> how many times the course's speed mine has.

    AssertionError where mine computes something else, or is too slow to earn a point.
    """
    sides = [side.make("lab.pace:Calls", getattr(side, name),
                       [on_side(side, given) for given in arguments], device)
             for side in (mine, own)]
    for got, want in zip(*(side.result() for side in sides), strict=True):
        assert got.shape == want.shape, (
            f"{name} on the device: its result has the shape {tuple(got.shape)}, expected "
            f"{tuple(want.shape)}")
        apart = (got.double() - want.double()).abs().max() if got.numel() else 0
        assert apart <= NEAR * want.double().abs().max(), (
            f"{name} on the device: its result is not the one of the simulator's sizes: a number "
            f"is {apart:.3g} off")
    ratio = measure(*sides)
    assert ratio >= BANDS[-1][0], (
        f"{ratio:.2f} × the speed of the course's own; {BANDS[-1][0]} × earns the first points")
    return ratio


def points(ratio, most):
    """Of `most` points, what a ratio to the course's speed earns."""
    return next((round(share * most) for least, share in BANDS if ratio >= least), 0)
