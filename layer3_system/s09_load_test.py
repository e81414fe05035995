"""s09 · The trade-off curve: how long clients wait, and how much is written, as the load grows

rate: requests a second that arrive   n: requests of a test   q: a share, 0 to 1
TTFT: seconds from a request's arrival to its first token   TPOT: seconds a token after the first
E2E: seconds to its last token
The load is open: requests arrive however slow the answers are, as people do.
Times count from when a request was to arrive, so a client that sends too late hides nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Objective", "Sample", "Summary", "goodput", "percentile", "poisson_arrivals",
           "saturation", "summarise", "tpot"]


class Sample(NamedTuple):
    """One request as its client saw it. Times in seconds since the test began."""

    arrival: float          # when it was to be sent
    first: float | None     # when its first token came, None if none did
    last: float | None      # its last one
    tokens: int             # of the answer
    error: str | None = None


class Objective(NamedTuple):
    """A service-level objective: the most that a request may take, in seconds."""

    ttft: float
    tpot: float


def predict_running():
    """How many answers are in the making at any time, on average?

    12 requests arrive a second, and each takes 0.8 s from its arrival to its last token.
    """
    # exercise: within 5 % is right; how many arrive while one is there?
    return 12 * 0.8                     # Little's law: rate times stay


def poisson_arrivals(rate: float, n: int, rng: np.random.Generator) -> np.ndarray:  # (n,) seconds
    """Times at which n requests arrive, independently, `rate` of them a second on average.

    The first arrives after a gap, as all others do.
    """
    # exercise: the gaps of such arrivals are exponential, 1 / rate on average
    return np.cumsum(rng.exponential(1 / rate, n))


def tpot(sample: Sample) -> float | None:
    """Seconds a token after the first one; None for an answer of one token, which has no gap."""
    if sample.tokens < 2:
        return None
    return (sample.last - sample.first) / (sample.tokens - 1)


def percentile(values: Sequence[float], q: float) -> float | None:
    """The smallest value that a share q of all values does not exceed; None if there are none.

    So it is one that was measured, and the largest for q = 1.
    """
    # exercise: sort; how many must be at or below it?
    if not values:
        return None
    return sorted(values)[max(int(np.ceil(q * len(values))) - 1, 0)]


def goodput(samples: Sequence[Sample], objective: Objective, seconds: float) -> float:
    """Requests a second that finished within the objective.

    An answer of one token has no TPOT to exceed. One that failed is not good.
    """
    # exercise: count those that keep both limits
    good = [s for s in samples if s.error is None
            and s.first - s.arrival <= objective.ttft
            and (tpot(s) is None or tpot(s) <= objective.tpot)]
    return len(good) / seconds


class Summary(NamedTuple):
    """A load test in numbers. Percentiles are {0.5: …, 0.9: …, 0.99: …}, seconds, or None."""

    requests: int
    failed: int
    seconds: float          # until the last answer
    offered: float | None   # tokens a second that were asked for, while requests arrived
    throughput: float       # tokens of answers a second
    goodput: float          # requests a second within the objective
    ttft: dict[float, float | None]
    tpot: dict[float, float | None]
    e2e: dict[float, float | None]


QS = (0.5, 0.9, 0.99)


def summarise(samples: Sequence[Sample], objective: Objective,
              offered: float | None = None) -> Summary:
    """The Summary of a test's samples. offered: as Summary has it"""
    done = [s for s in samples if s.error is None]
    seconds = max((s.last for s in done), default=0.0) or 1e-9

    def of(values):
        values = [v for v in values if v is not None]
        return {q: percentile(values, q) for q in QS}

    return Summary(len(samples), len(samples) - len(done), seconds, offered,
                   sum(s.tokens for s in done) / seconds, goodput(samples, objective, seconds),
                   of(s.first - s.arrival for s in done), of(map(tpot, done)),
                   of(s.last - s.arrival for s in done))


def saturation(offered: Sequence[float], throughputs: Sequence[float],
               share: float = 0.9) -> float | None:
    """The first load of which the server writes less than this share; None if it keeps up with all.

    offered: tokens a second that were asked for, ascending    throughputs: those that came
    A test ends with its last answer, after the last arrival. So a little less is always written.
    """
    # exercise: compare each throughput with what was asked for
    return next((rate for rate, came in zip(offered, throughputs, strict=True)
                 if came < share * rate), None)
