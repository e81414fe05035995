"""How many guesses a step is worth, request by request

α: how often a guess of a request holds, if those before it hold   γ: its guesses in a step
B: requests of a step   G: guesses of all of them
The i-th guess of a request adds α^i tokens to a step on average, and one row to its cost.
"""

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from layer3_system.s01_request import Request

HITS = 2.0              # what is assumed of a new request: that these guesses held …
TRIALS = 3.0            # … of these
MEMORY = 0.9            # weight of what was seen before, at each step with guesses
FORGETTING = 0.98       # likewise at each step without, so that guesses are tried again


class StepCost(NamedTuple):
    """Seconds of a step, a straight line in each of its parts."""

    step: float             # once
    request: float          # a request
    guess: float            # a guess
    guessing: float = 0     # once, if there are guesses at all
    draft: float = 0        # a draft model's step
    draft_request: float = 0    # a request in it

    def seconds(self, B: int, G: int, depth: int) -> float:
        """Of a step of B requests with G guesses, at most `depth` of one request."""
        guesses = self.guessing + G * self.guess if G else 0
        drafts = depth * (self.draft + B * self.draft_request)
        return self.step + B * self.request + guesses + drafts


def best_counts(rates: Sequence[float], most: int, cost: StepCost) -> list[int]:
    """γ of each request, from 0 to `most`, with the most tokens a second in a step of all.

    rates: α of each
    The likeliest guesses come first: for each G the best choice is the G greatest α^i.
    """
    candidates = sorted(((alpha**i, -i, b) for b, alpha in enumerate(rates)
                         for i in range(1, most + 1)), reverse=True)
    B = len(rates)
    tokens = float(B)
    depth = 0
    best = (tokens / cost.seconds(B, 0, 0), 0) if B else (0.0, 0)
    for G, (gain, minus_i, _) in enumerate(candidates, 1):
        tokens += gain
        depth = max(depth, -minus_i)
        best = max(best, (tokens / cost.seconds(B, G, depth), G), key=lambda pair: pair[0])
    counts = [0] * B
    for _, _, b in candidates[:best[1]]:
        counts[b] += 1
    return counts


class Lengths:
    """γ by request, from its own past and the cost of a step."""

    def __init__(self, most: int, cost: StepCost):
        """most: guesses of a request in a step"""
        self.most = most
        self.cost = cost
        self.past: WeakKeyDictionary[Request, tuple[float, float]] = WeakKeyDictionary()

    def rate(self, request: Request) -> float:
        """α of a request, as far as it is known."""
        hits, trials = self.past.get(request, (0.0, 0.0))
        return (hits + HITS) / (trials + TRIALS)

    def choose(self, requests: Sequence[Request]) -> list[int]:
        """γ of each request in the next step."""
        counts = best_counts([self.rate(request) for request in requests], self.most, self.cost)
        for request, count in zip(requests, counts, strict=True):
            if not count and request in self.past:
                hits, trials = self.past[request]
                self.past[request] = hits * FORGETTING, trials * FORGETTING
        return counts

    def note(self, request: Request, hits: int) -> None:
        """The first `hits` of a request's guesses held.
        Those after a refusal say nothing."""
        trials = min(hits + 1, len(request.draft))
        before = self.past.get(request, (0.0, 0.0))
        self.past[request] = before[0] * MEMORY + hits, before[1] * MEMORY + trials
