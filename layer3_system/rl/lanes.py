"""Two placements of writing and training on ranks, in numbers alone, as in a perfect world: twice
the ranks, half the time; moving weights takes none.
"""

from typing import NamedTuple


class Work(NamedTuple):
    """kind: "rollout" or "training".  begin, end: seconds.  step: whose answers"""

    rank: int
    kind: str
    begin: float
    end: float
    step: int


def by_turns(rollout: float, training: float, W: int, steps: int) -> list[Work]:
    """All ranks write, then all train. rollout, training: seconds of a step on all W ranks"""
    works = []
    for step in range(steps):
        begin = step * (rollout + training)
        middle = begin + rollout
        for rank in range(W):
            works += [Work(rank, "rollout", begin, middle, step),
                      Work(rank, "training", middle, middle + training, step)]
    return works


def split(rollout: float, training: float, W: int, writers: int, steps: int) -> list[Work]:
    """The first `writers` ranks write the answers of a step while the others train on those of the
    step before: one step of staleness.
    ValueError unless each group has a rank."""
    if not 1 <= writers < W:
        raise ValueError(f"placement split: expected from 1 to {W - 1} of {W} ranks to write, "
                         f"found {writers}")
    long = rollout * W / writers
    short = training * W / (W - writers)
    length = max(long, short)
    works = []
    for step in range(steps):
        begin = step * length
        works += [Work(rank, "rollout", begin, begin + long, step) for rank in range(writers)]
        works += [Work(rank, "training", begin, begin + short, step - 1)
                  for rank in range(writers, W)]
    return works


def idle_share(works: list[Work], W: int, length: float | None = None) -> float:
    """Of all rank-seconds, those without work. length: of the whole, else up to the last end"""
    length = length or max(work.end for work in works)
    return 1 - sum(work.end - work.begin for work in works) / (W * length)
