"""A month of a job whose machines fail, in numbers alone.

δ: seconds that a save stops training   τ: seconds of training between saves
M: mean seconds between failures        R: seconds to start again
"""

import random
from typing import NamedTuple

HOUR = 3600.0
MONTH = 30 * 24 * HOUR


class Span(NamedTuple):
    """kind: "useful", "lost", "saving" or "starting".  begin, end: seconds of the month"""

    kind: str
    begin: float
    end: float


def month(tau: float, delta: float, mtbf: float, restart: float, seed: int,
          length: float = MONTH) -> list[Span]:
    """What a job does in a month, without gaps.
    Failures come at random, `mtbf` seconds apart on average; what was trained or half saved since
    the last save is then lost.
    A failure may come at any time, also while the job starts."""
    order = random.Random(seed)
    failure = order.expovariate(1 / mtbf)
    spans: list[Span] = []
    now = 0.0
    while now < length:
        saved = now + tau + delta
        if failure < saved:
            spans.append(Span("lost", now, min(failure, length)))
            now = failure + restart
            failure += order.expovariate(1 / mtbf)
            while failure < now:                    # again, before it has started
                now = failure + restart
                failure += order.expovariate(1 / mtbf)
            spans.append(Span("starting", spans[-1].end, now))
        else:
            spans.append(Span("useful", now, now + tau))
            spans.append(Span("saving", now + tau, saved))
            now = saved
    return [Span(kind, begin, min(end, length)) for kind, begin, end in spans if begin < length]


def share(spans: list[Span], kind: str) -> float:
    """Of all seconds, those of one kind."""
    return sum(s.end - s.begin for s in spans if s.kind == kind) / spans[-1].end


def expected_loss(tau: float, delta: float, mtbf: float) -> float:
    """The share that saves and lost work take, to first order: Young 1974."""
    return delta / tau + tau / (2 * mtbf)
