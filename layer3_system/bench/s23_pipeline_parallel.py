"""Schedules on ranks that sleep where a machine would compute, into pipeline_bubbles.json.

    python -m layer3_system.bench.s23_pipeline_parallel         four ranks of the judge's
    torchrun --nproc-per-node 4 -m layer3_system.bench.s23_pipeline_parallel [SECONDS …]

The second prints, on ranks of its own, over gloo: first the loss of a training step by both
schedules, by PyTorch's and in one process; then what is idle where a forward takes SECONDS.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean

import torch.distributed as dist

from lab import course
from lab.judge.isolate import running
from lab.remote.agreement import meet
from layer3_system.pipeline import Schedule, Times, bubble, interleaved, zero_bubble
from layer3_system.s23_pipeline_parallel import gpipe, one_forward_one_backward
from layer3_system.testing.pipeline_llama import beside_library, train_alone
from layer3_system.testing.pipeline_ranks import sleep

LESSON = "s23_pipeline_parallel"
RECORD = Path(__file__).with_name("pipeline_bubbles.json")
P = 4
M = 8
TICKS = (0.1, 0.03)     # seconds of a forward; a backward takes two, or one and one for the weights
LENGTH = 5              # tokens of a micro-batch of the training step
Way = tuple[Callable[..., Schedule], dict[str, int], int]
# {name: (schedule of a stage, ticks of each kind, chunks)}
WAYS: dict[str, Way] = {
    "GPipe": (gpipe, {"F": 1, "B": 2}, 1),
    "1F1B": (one_forward_one_backward, {"F": 1, "B": 2}, 1),
    "interleaved, v = 2": (partial(interleaved, v=2), {"F": 1, "B": 2}, 2),
    "ZB-H1": (zero_bubble, {"F": 1, "B": 1, "W": 1}, 1)}


def arguments(way: Way, tick: float, p: int = P) -> list[tuple]:
    """Of `sleep`, for each rank. tick: seconds"""
    schedule, ticks, chunks = way
    seconds = {kind: tick * count for kind, count in ticks.items()}
    return [(schedule(i, p, M), seconds, chunks) for i in range(p)]


def handovers(times: Times, p: int) -> list[float]:
    """Seconds from the end of an action until a rank that waits for its message starts, of each
    message that is waited for."""
    ends: dict[int, float] = {}             # of the last action of each rank so far
    delays = []
    for (kind, stage, j), (start, end) in sorted(times.items(), key=lambda row: row[1]):
        source = {"F": stage - 1, "B": stage + 1, "W": stage}[kind]
        sent = times.get((kind, source, j), (0.0, 0.0))[1]
        if source % p != stage % p and sent > ends.get(stage % p, 0.0):
            delays.append(start - sent)
        ends[stage % p] = end
    return delays


def summary(times: Times, p: int) -> dict[str, float]:
    """The idle share of the ranks, and how long messages take that are waited for."""
    delays = handovers(times, p)
    return {"idle": round(bubble(times, p), 3), "message_s": round(mean(delays), 4),
            "longest_s": round(max(delays), 4)}


def measured(tick: float) -> dict[str, dict[str, float]]:
    """{name: a summary of four ranks, and how many messages they sent} of each of WAYS."""
    lesson = course.find(LESSON)
    rows = {}
    with running(lesson, lesson.sources) as subject:
        for name, way in WAYS.items():
            run = subject.ranks("layer3_system.testing.pipeline_ranks:sleep",
                                arguments(way, tick))
            times: Times = dict(row for result in run.results for row in result)
            rows[name] = summary(times, P) | {"messages": len(run.messages)}
    return rows


def on_own_ranks(ticks: tuple[float, ...]) -> None:
    """On the ranks that torchrun has started; the last stage and rank 0 print."""
    meet(LESSON, only_cpu=True)
    i = dist.get_rank()
    p = dist.get_world_size()
    steps = beside_library({name: WAYS[name][0](i, p, M) for name in ("GPipe", "1F1B")},
                           [LENGTH] * M)
    if i == p - 1:
        print(f"{'one process':20} loss {train_alone([LENGTH] * M)[0]:.6f}")
        for name, step in steps.items():
            print(f"{name:20} loss {step['loss']:.6f}")
    for tick in ticks:
        for name, way in WAYS.items():
            every: list = [None] * p
            dist.all_gather_object(every, sleep(*arguments(way, tick, p)[i]))
            if i == 0:
                row = summary(dict(row for rows in every for row in rows), p)
                print(f"{name}, forward {tick} s: {row['idle']:.3f} idle, a message takes "
                      f"{1e3 * row['message_s']:.1f} ms, at most {1e3 * row['longest_s']:.1f}")
    dist.destroy_process_group()


def main() -> None:
    if dist.is_torchelastic_launched():
        on_own_ranks(tuple(map(float, sys.argv[1:])) or TICKS)
        return
    rows = [{"forward_s": tick, "schedules": measured(tick)} for tick in TICKS]
    record = {"stages": P, "micro_batches": M, "cores": os.cpu_count(), "rows": rows}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
