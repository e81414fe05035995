"""Pipelines of stages: schedules played in unit times, and run on ranks

p: stages, a rank each   m: micro-batches   T_j: tokens of micro-batch j   C: model width
An action is (kind, j): "F" the forward of micro-batch j, "B" its backward, "W" the part of it that
gives the weights' gradients, where "B" gives only the input's. A rank that has several stages says
which: (kind, j, chunk), and chunk c of rank i is stage i + c · p. A schedule is a rank's actions.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
import torch.distributed as dist

__all__ = ["Deadlock", "Stage", "bubble", "interleaved", "peak_kept", "play", "run_schedule",
           "split_layers", "zero_bubble"]

Schedule = Sequence[tuple]                              # of (kind, j) or (kind, j, chunk)
Times = dict[tuple[str, int, int], tuple[float, float]]     # (kind, stage, j): (start, end)


class Deadlock(RuntimeError):
    """Schedules whose ranks wait for each other."""


def squared_errors(y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """2 × (T_j, C) -> (), a sum."""
    return ((y - targets) ** 2).sum()


@dataclass
class Stage:
    """Stage i of p: consecutive layers of a model, on rank i, and its part of a training step."""

    i: int
    p: int
    layers: Callable[[torch.Tensor], torch.Tensor]      # (T_j, C) -> (T_j, C)
    sizes: list[int]                                    # T_j of each micro-batch
    C: int
    batch: torch.Tensor | None = None       # (T, C), or tokens (T,), all inputs: on the first stage
    targets: torch.Tensor | None = None                 # (T, C), or tokens (T,): on the last stage
    total: float = 0.0                                  # the loss so far, on the last stage
    kept: dict[int, tuple] = field(default_factory=dict)    # {j: (input, output)} from F j to B j
    flights: list[tuple] = field(default_factory=list)      # (tensor, handle) of sends begun
    errors: Callable[..., torch.Tensor] = squared_errors    # of outputs and targets, summed: ()

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"Stage: expected micro-batches of one token or more, found "
                             f"{self.sizes}")

    @property
    def first(self) -> bool:
        return self.i == 0

    @property
    def last(self) -> bool:
        return self.i == self.p - 1

    def input(self, j: int) -> torch.Tensor:
        """The first stage's input of micro-batch j, (T_j, C) or (T_j,)."""
        if self.batch is None:
            raise ValueError(f"stage {self.i} has no batch: its inputs come from stage "
                             f"{self.i - 1}")
        return self.batch.split(self.sizes)[j]

    def empty(self, j: int) -> torch.Tensor:
        """A new tensor (T_j, C) to receive into."""
        return torch.empty(self.sizes[j], self.C)

    def loss(self, y: torch.Tensor, j: int) -> torch.Tensor:
        """Micro-batch j's share of the batch's loss, (); y is the last layer's output, (T_j, C).

        The errors of its tokens, summed, over the number of tokens in the whole batch.
        """
        if self.targets is None:
            raise ValueError(f"stage {self.i} has no targets: only the last stage has them")
        return self.errors(y, self.targets.split(self.sizes)[j]) / sum(self.sizes)


# ---- on ranks


def run_schedule(stage: Stage, schedule: Schedule,
                 steps: dict[str, Callable[..., None]]) -> tuple[int, int]:
    """Do a stage's actions in the order of its schedule, then wait until all sends are over.

    steps: by kind, called with the stage and the rest of the action
    Returns the most micro-batches kept at a time, and the number of handles in stage.flights.
    """
    check(stage.i, schedule)
    peak = 0
    sends = 0
    under_way: list[tuple[torch.Tensor, dist.Work]] = []
    for kind, *which in schedule:
        steps[kind](stage, *which)
        peak = max(peak, len(stage.kept))
        sends += len(stage.flights)
        # a tensor may go as soon as it is sent: else 1F1B would keep as much as GPipe
        under_way = [pair for pair in under_way + stage.flights if not pair[1].is_completed()]
        stage.flights = []
    for _, work in under_way:
        work.wait()
    return peak, sends


def place(i: int, p: int, which: Sequence[int]) -> int:
    """The number of the stage at which an action takes place. which: [j] or [j, chunk]"""
    return i + p * sum(which[1:])


def check(i: int, schedule: Schedule) -> None:
    """ValueError unless each forward has one backward, and no action comes twice."""
    for action, count in Counter(map(tuple, schedule)).items():
        if count > 1:
            raise ValueError(f"stage {i}'s schedule has {action} {count} times, expected once")
        for other in {"F": "B", "B": "F", "W": "B"}[action[0]]:
            if (other, *action[1:]) not in schedule:
                raise ValueError(f"stage {i}'s schedule has {action} and no "
                                 f"{(other, *action[1:])}")


# ---- in unit times


def play(schedules: Sequence[Schedule], needs: Callable[[str, int, int, int], list],
         cost: dict[str, float], message: float = 0.0) -> Times:
    """When each action of a pipeline begins and ends, if each begins as early as it can.

    schedules: one a rank.  needs(kind, stage, j, stages): the actions that must be over
    cost: time that an action of each kind takes on one rank's layers; a chunk takes its share
    message: time until another rank has what was sent to it.
    Deadlock where ranks wait in a circle
    """
    p = len(schedules)
    chunks = 1 + max((sum(which[1:]) for schedule in schedules for _, *which in schedule),
                     default=0)
    lanes = [[(kind, place(i, p, which), which[0]) for kind, *which in schedule]
             for i, schedule in enumerate(schedules)]
    times: Times = {}
    free = [0.0] * p

    def waits(action: tuple[str, int, int]) -> list:
        kind, stage, j = action
        return [("B", stage, j)] if kind == "W" else needs(kind, stage, j, p * chunks)

    while any(lanes):
        ready = [lane[0] for lane in lanes if lane and all(map(times.__contains__, waits(lane[0])))]
        if not ready:
            raise Deadlock("; ".join(words(lane[0], waits(lane[0]), times, lanes)
                                     for lane in lanes if lane))
        for action in ready:
            i = action[1] % p
            start = max([free[i], *(times[need][1] + (message if need[1] % p != i else 0)
                                    for need in waits(action))])
            free[i] = start + cost[action[0]] / chunks
            times[action] = start, free[i]
            lanes[i].pop(0)
    return times


def words(action: tuple, waits: list, times: Times, lanes: list[list]) -> str:
    """What an action that cannot begin waits for."""
    missing = next(need for need in waits if need not in times)
    never = "" if any(missing in lane for lane in lanes) else ", which no schedule has"
    kind, stage, j = action
    return (f"stage {stage} waits with {kind} {j} for {missing[0]} {missing[2]} of stage "
            f"{missing[1]}{never}")


def bubble(times: Times, p: int) -> float:
    """The share of p ranks' time in which they do nothing, from the first start to the last end."""
    length = max(end for _, end in times.values()) - min(start for start, _ in times.values())
    return 1 - sum(end - start for start, end in times.values()) / (p * length)


def peak_kept(schedule: Schedule) -> int:
    """The most micro-batches, of one chunk each, whose activations a rank keeps at a time."""
    release = "W" if any(kind == "W" for kind, *_ in schedule) else "B"
    steps = {"F": 1, release: -1}
    return max(accumulate(steps.get(kind, 0) for kind, *_ in schedule), default=0)


# ---- further schedules


def interleaved(i: int, p: int, m: int, v: int) -> list[tuple[str, int, int]]:
    """1F1B with v chunks of layers on each rank, p micro-batches of a chunk at a time: Narayanan et
    al. 2021, section 2.2. m must be a multiple of p."""
    if m % p:
        raise ValueError(f"interleaved: expected a multiple of {p} micro-batches, found {m}")

    def action(kind: str, k: int) -> tuple[str, int, int]:
        turn, rest = divmod(k, p * v)
        chunk = rest // p
        return kind, turn * p + rest % p, chunk if kind == "F" else v - 1 - chunk

    ahead = min((v - 1) * p + 2 * (p - 1 - i), m * v)
    pairs = [one for k in range(m * v - ahead)
             for one in (action("F", ahead + k), action("B", k))]
    return ([action("F", k) for k in range(ahead)] + pairs
            + [action("B", k) for k in range(m * v - ahead, m * v)])


def zero_bubble(i: int, p: int, m: int) -> list[tuple[str, int]]:
    """ZB-H1 of Qi et al. 2023: 1F1B whose backward is cut in two. "B" gives the input's gradient,
    for which the stage before waits; "W", the weights', comes i micro-batches later and fills what
    would be idle."""
    ahead = min(p - 1 - i, m)
    schedule: list[tuple[str, int]] = [("F", j) for j in range(ahead)]
    for j in range(m):
        schedule += [("F", ahead + j)] if ahead + j < m else []
        schedule += [("B", j)]
        schedule += [("W", j - i)] if j >= i else []
    return schedule + [("W", j) for j in range(max(m - i, 0), m)]


def split_layers(costs: Sequence[float], p: int) -> list[range]:
    """The layers of each of p stages, in order, so that the dearest stage costs least.

    costs: of each layer, in any unit
    """
    n = len(costs)
    if not 0 < p <= n:
        raise ValueError(f"{n} layers cannot be cut into {p} stages")
    before = [0.0, *accumulate(costs)]
    # best[e]: (cost of the dearest stage, ends) of the first e layers, cut into k stages
    best: dict[int, tuple[float, tuple[int, ...]]] = {
        e: (before[e], (e,)) for e in range(1, n + 1)}
    for k in range(2, p + 1):
        best = {e: min((max(best[b][0], before[e] - before[b]), (*best[b][1], e))
                       for b in range(k - 1, e)) for e in range(k, n + 1)}
    ends = best[n][1]
    return [range(b, e) for b, e in zip((0, *ends), ends, strict=False)]
