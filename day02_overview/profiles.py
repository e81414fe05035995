"""Profiles: which rank did what, and when.
Six were recorded; a model makes others.

A span is a stretch of time of one rank, of one of four kinds:
  kernel      the device computes
  input       the rank waits for its next batch
  collective  the rank is inside a collective; it may only be waiting for the other ranks there
  host        the host prepares and launches
profiles.json holds six that were measured; `python -m day02_overview.record_profiles` measures
them again.
`model(cause, draw)` makes others.
"""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from day01_roofline import ACCELERATORS

__all__ = ["CAUSES", "KINDS", "Profile", "last_arrivals", "load_profiles", "model",
           "pieces"]

RECORD = Path(__file__).with_suffix(".json")
KINDS = ("kernel", "input", "collective", "host")
CAUSES = {"starved": "system", "communication-bound": "system", "imbalanced": "system",
          "launch-bound": "graph", "unfused": "graph", "unbatched": "system",
          "far from its roof": "kernel", "at its roof": "kernel"}            # cause: its floor


class Span(NamedTuple):
    rank: int
    kind: str               # one of KINDS
    name: str               # a collective's is the same on all ranks, and is used once
    start: float            # seconds
    end: float
    flops: int = 0
    moved: int = 0          # bytes read and written; in a collective, bytes that the rank sends
    weights: int = 0        # of these, bytes of parameters
    between: int = 0        # of these, bytes that one kernel wrote for a later one, both ways


@dataclass(frozen=True)
class Profile:
    """What `ranks` ranks did in `wall` seconds, from 0 on.
    Each is in one collective at a time."""

    name: str
    made: str               # "measured" or "by a model"
    how: str                # by what, or by which model
    ranks: int
    wall: float             # seconds
    peak: float             # FLOP/s of one rank's device
    bandwidth: float        # byte/s of its memory
    spans: list[Span]

    def __post_init__(self):
        object.__setattr__(self, "spans", [Span(*s) for s in self.spans])
        for s in self.spans:
            if s.kind not in KINDS or not 0 <= s.rank < self.ranks or \
                    not 0 <= s.start <= s.end <= self.wall:
                raise ValueError(f"{self.name}: {s} is not a span of a profile of {self.ranks} "
                                 f"ranks and {self.wall} s; kinds are {', '.join(KINDS)}")
        for one, other in pairwise(sorted((s for s in self.spans if s.kind == "collective"),
                                          key=lambda s: (s.rank, s.start))):
            if one.rank == other.rank and other.start < one.end:
                raise ValueError(f"{self.name}: rank {one.rank} is in {one.name} and in "
                                 f"{other.name} at once, expected one collective at a time")


def load_profiles(path=RECORD):
    """{cause: the Profile that was measured}."""
    return {p["name"]: Profile(**p) for p in json.loads(path.read_text("utf-8"))["profiles"]}


def last_arrivals(profile):
    """{name of a collective: when the last rank entered it}."""
    entries = {}
    for s in profile.spans:
        if s.kind == "collective":
            entries[s.name] = max(s.start, entries.get(s.name, 0.0))
    return entries


def pieces(profile, rank):
    """[(start, end, {kind: Span})]: a rank's time, cut wherever something starts or ends.

    The cuts are where one of its spans starts or ends, and where the last rank enters a collective.
    The pieces follow each other from 0 to wall.
    In a piece with {} nothing runs.
    """
    mine = sorted((s for s in profile.spans if s.rank == rank), key=lambda s: s.start)
    edges = sorted({0.0, profile.wall, *(t for s in mine for t in (s.start, s.end)),
                    *last_arrivals(profile).values()})
    cut = []
    running = []
    for start, end in pairwise(edges):
        while mine and mine[0].start <= start:
            running.append(mine.pop(0))
        running = [s for s in running if s.end > start]
        cut.append((start, end, {s.kind: s for s in running}))
    return cut


# ---- the model


def model(cause, draw, steps=3):
    """A made-up Profile with one `cause`. draw: random.Random

    Four H100s (r01's table; one if the cause needs no other rank) do `steps` steps.
    In each, a rank waits for input, launches kernels that take 1 ms together, and enters a
    collective, one after the other.
    The cause costs 2 to 6 times as long as the kernels, every other reason at most 4 %.
    imbalanced: the last rank has 4 to 8 times the work.
    Kernels reach 50 to 90 % of their roof; 5 to 15 % if the cause is that they are far from it.
    """
    ranks = 4 if cause in ("imbalanced", "communication-bound") else 1
    much = draw.uniform(2, 6)
    lost = {part: much if cause == name else draw.uniform(0, 0.04) for part, name in
            (("input", "starved"), ("host", "launch-bound"), ("wire", "communication-bound"))}
    work = [1.0] * ranks
    if cause == "imbalanced":
        work[-1] = draw.uniform(4, 8)
    h100 = next(m for m in ACCELERATORS if m.name == "NVIDIA H100 SXM")
    count = draw.randint(3, 12)
    spans = []
    clock = [0.0] * ranks
    kernel = kernel_of(cause, draw, h100)
    for step in range(steps):
        for r in range(ranks):
            clock[r] = add(spans, r, "input", f"batch {step}", clock[r], 1e-3 * lost["input"])
            for k in range(count):
                clock[r] = add(spans, r, "host", "launch", clock[r], 1e-3 * lost["host"] / count)
                seconds = 1e-3 * work[r] / count
                clock[r] = add(spans, r, "kernel", f"kernel {k}", clock[r], seconds,
                               *(int(rate * seconds) for rate in kernel))
        if ranks > 1:
            meet = max(clock) + 1e-3 * lost["wire"]
            clock = [add(spans, r, "collective", f"sum {step}", clock[r], meet - clock[r],
                         0, int(45e9 * 1e-3 * lost["wire"])) for r in range(ranks)]
    return Profile(cause, "by a model", model.__doc__, ranks, max(clock), h100.peak, h100.bandwidth,
                   spans)


def kernel_of(cause, draw, machine):
    """(FLOPs, bytes, bytes of weights, bytes between kernels) a second of the model's kernels."""
    share = draw.uniform(0.05, 0.15) if cause == "far from its roof" else draw.uniform(0.5, 0.9)
    if cause not in ("unfused", "unbatched") and draw.random() < 0.5:       # arithmetic decides
        flops = share * machine.peak
        moved = share * machine.bandwidth * draw.uniform(0.1, 0.9)
    else:
        moved = share * machine.bandwidth
        flops = moved * draw.uniform(0.2, 20)                           # the ridge is at 295
    most = draw.uniform(0.6, 0.85)
    rest = draw.uniform(0, 0.1)
    weights, between = {"unbatched": (most, rest), "unfused": (rest, most)}.get(cause, (0.4, 0.2))
    if flops / machine.peak > moved / machine.bandwidth:
        weights, between = most, rest   # many rows share them
    return flops, moved, weights * moved, between * moved


def add(spans, rank, kind, name, start, seconds, *work):
    """Append a span, and return its end."""
    spans.append(Span(rank, kind, name, start, start + seconds, *work))
    return start + seconds
