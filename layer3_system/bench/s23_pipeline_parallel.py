"""Schedules on ranks that sleep where a machine would compute, into pipeline_bubbles.json.

    python -m layer3_system.bench.s23_pipeline_parallel         four ranks of the judge's
    torchrun --nproc-per-node 4 -m layer3_system.bench.s23_pipeline_parallel    ranks of its own
"""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean

import torch.distributed as dist

from lab import course
from lab.judge.isolate import running
from layer3_system.pipeline import Schedule, Times, bubble, interleaved, zero_bubble
from layer3_system.s23_pipeline_parallel import gpipe, one_forward_one_backward
from layer3_system.testing.pipeline_ranks import sleep

RECORD = Path(__file__).with_name("pipeline_bubbles.json")
P = 4
M = 8
TICKS = (0.1, 0.03)     # seconds of a forward; a backward takes two, or one and one for the weights
Way = tuple[Callable[..., Schedule], dict[str, int], int]
# {name: (schedule of a stage, ticks of each kind, chunks)}
WAYS: dict[str, Way] = {
    "GPipe": (gpipe, {"F": 1, "B": 2}, 1),
    "1F1B": (one_forward_one_backward, {"F": 1, "B": 2}, 1),
    "interleaved, v = 2": (partial(interleaved, v=2), {"F": 1, "B": 2}, 2),
    "ZB-H1": (zero_bubble, {"F": 1, "B": 1, "W": 1}, 1)}


def arguments(way: Way, tick: float) -> list[tuple]:
    """Of `sleep`, for each rank. tick: seconds"""
    schedule, ticks, chunks = way
    seconds = {kind: tick * count for kind, count in ticks.items()}
    return [(schedule(i, P, M), seconds, chunks) for i in range(P)]


def handover(times: Times, p: int) -> float:
    """Mean seconds from the end of an action until a rank that waits for its message begins."""
    ends: dict[int, float] = {}             # of the last action of each rank so far
    delays = []
    for (kind, stage, j), (begin, end) in sorted(times.items(), key=lambda row: row[1]):
        source = {"F": stage - 1, "B": stage + 1, "W": stage}[kind]
        sent = times.get((kind, source, j), (0.0, 0.0))[1]
        if source % p != stage % p and sent > ends.get(stage % p, 0.0):
            delays.append(begin - sent)
        ends[stage % p] = end
    return mean(delays)


def measured(tick: float) -> dict[str, dict[str, float]]:
    """{name: idle share of four ranks, and how long a message takes} of each of WAYS."""
    lesson = course.find("s23_pipeline_parallel")
    rows = {}
    with running(lesson, lesson.sources) as subject:
        for name, way in WAYS.items():
            run = subject.ranks("layer3_system.testing.pipeline_ranks:sleep",
                                arguments(way, tick))
            times: Times = dict(row for result in run.results for row in result)
            rows[name] = {"idle": round(bubble(times, P), 3),
                          "message_s": round(handover(times, P), 4)}
    return rows


def on_own_ranks() -> None:
    """The same where torchrun has started this program on each rank; rank 0 prints."""
    dist.init_process_group("gloo")
    for tick in TICKS:
        for name, way in WAYS.items():
            own = sleep(*arguments(way, tick)[dist.get_rank()])
            every: list = [None] * P
            dist.all_gather_object(every, own)
            if dist.get_rank() == 0:
                times = dict(row for rows in every for row in rows)
                print(f"{name}, forward {tick} s: {bubble(times, P):.3f} idle, a message takes "
                      f"{1e3 * handover(times, P):.1f} ms")
    dist.destroy_process_group()


def main() -> None:
    if dist.is_torchelastic_launched():
        on_own_ranks()
        return
    rows = [{"forward_s": tick, "schedules": measured(tick)} for tick in TICKS]
    record = {"stages": P, "micro_batches": M, "cores": os.cpu_count(), "rows": rows}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
