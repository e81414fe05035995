"""s09 · The trade-off curve: how long clients wait and how much the server writes, as load grows

rate: arrivals a second   n: requests of a test   q: a share, 0 to 1
TTFT: seconds from a request's arrival to its first token   TPOT: seconds a token after the first
E2E: seconds to its last token
The load is an open loop: requests arrive at their own times, however slow the answers are.
Times count from when a request was due, so a client that sends late hides nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Objective", "Sample", "Summary", "goodput", "percentile", "poisson_arrivals",
           "saturation", "summarise", "tpot"]


class Sample(NamedTuple):
    """One request as its client saw it.
    Times in seconds since the test began."""

    arrival: float          # when the request was due
    first: float | None     # when its first token came; None if none did
    last: float | None      # when its last token came
    tokens: int             # number of tokens in the answer
    error: str | None = None


class Objective(NamedTuple):
    """A service-level objective: the longest TTFT and TPOT allowed, in seconds."""

    ttft: float
    tpot: float


def predict_running() -> float:
    """The average number of requests in the system.

    12 requests arrive a second; each takes 0.8 s from its arrival to its last token.
    """
    # exercise: within 5 % counts as right; how many arrive during one stay?
    return 12 * 0.8                     # Little's law: rate × time in the system


def poisson_arrivals(rate: float, n: int, rng: np.random.Generator) -> np.ndarray:  # (n,) seconds
    """Arrival times of n requests of a Poisson process with `rate` arrivals a second.

    rng: draw all randomness from it.
    The first request arrives after a gap as well, not at 0.
    """
    # exercise: draw exponential gaps with mean 1 / rate, then add them up
    return np.cumsum(rng.exponential(1 / rate, n))


def tpot(sample: Sample) -> float | None:
    """Average seconds between the tokens after the first; None for one token, which has no gap."""
    if sample.tokens < 2:
        return None
    return (sample.last - sample.first) / (sample.tokens - 1)


def percentile(values: Sequence[float], q: float) -> float | None:
    """The smallest of the values with at least a share q of all values at or below it.

    So it is always one of the values, and for q = 1 the largest.
    None for an empty list.
    """
    # exercise: sort the values; how many of them must be at or below the result?
    if not values:
        return None
    return sorted(values)[max(int(np.ceil(q * len(values))) - 1, 0)]


def goodput(samples: Sequence[Sample], objective: Objective, seconds: float) -> float:
    """Requests a second that finished within the objective.

    An answer of one token has no TPOT, so only its TTFT counts.
    A failed request never counts.
    """
    # exercise: count the requests that meet both limits: failed? TTFT? one token? TPOT?
    good = [s for s in samples if s.error is None
            and s.first - s.arrival <= objective.ttft
            and (tpot(s) is None or tpot(s) <= objective.tpot)]
    return len(good) / seconds


class Summary(NamedTuple):
    """A load test in numbers.
    Percentiles are {0.5: …, 0.9: …, 0.99: …}, seconds, or None."""

    requests: int
    failed: int
    seconds: float          # from the start to the last answer
    offered: float | None   # tokens a second asked for while requests arrived; None: all at once
    throughput: float       # tokens of answers a second
    goodput: float          # requests a second within the objective
    ttft: dict[float, float | None]
    tpot: dict[float, float | None]
    e2e: dict[float, float | None]


QS = (0.5, 0.9, 0.99)


def summarise(samples: Sequence[Sample], objective: Objective,
              offered: float | None = None) -> Summary:
    """Summarise the samples of one test. offered: as in Summary"""
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
    """The first load of which the server delivers less than `share`; None if it keeps up with all.

    offered: tokens a second asked for, ascending    throughputs: tokens a second delivered
    A test ends with its last answer, which comes after the last arrival.
    So a little less is always delivered than was offered.
    """
    # exercise: compare each throughput with its share of the load
    return next((rate for rate, came in zip(offered, throughputs, strict=True)
                 if came < share * rate), None)
