"""Plans of s26 by their predicted seconds, beside measured ones, into s26_planner.json.

    torchrun --nproc-per-node 4 -m layer3_system.bench.s26_planner

The planner's constants are fitted on something else: rounds and bytes on s20's messages, the rate
of arithmetic on one layer that all ranks run at once. A rank has one thread, and sleeps REST times
as long as it computes, in the fits as well: so each has a slow processor of its own, where four
share two cores. Plans take turns in shuffled rounds; a step is over when the last rank is done.
"""

import contextlib
import json
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from day01_roofline import Llama
from lab.device import cpu_model
from lab.remote.agreement import meet
from layer3_system.bench.s20_collectives import SIZES, fit, sweep
from layer3_system.plan_costs import share_seconds, step_flops, total_seconds
from layer3_system.planner import Architecture, Cluster, TrainingPlan
from layer3_system.s26_planner import plan_seconds
from layer3_system.testing.plan_ranks import make_step
from layer3_system.testing.training_models import TrainLayer

RECORD = Path(__file__).with_suffix(".json")
OUTSIDE = RECORD.with_name("aiconfigurator.json")       # what another planner says of serving
SHAPE = Llama("measured", L=8, C=128, H=4, G=4, D=32, F=384, V=512, tied=False)
BATCH = 8
T = 64
W = 4
ROUNDS = 5
REST = 3                # seconds of sleep for each second of a processor's time
TICK = 0.002            # of a processor's time, after which a rank sleeps
# name: plan. s21's stage 3 recomputes its layers
PLANS = {
    **{f"dp 4, zero {zero}": TrainingPlan(4, zero=zero, B=2) for zero in range(3)},
    "dp 4, zero 3, recompute": TrainingPlan(4, zero=3, B=2, recompute=True),
    **{f"tp 4, M = {BATCH // B}": TrainingPlan(1, tp=4, B=B, zero=0) for B in (8, 2)},
    **{f"pp 4, M = {BATCH // B}": TrainingPlan(1, pp=4, B=B, zero=0)
       for B in (8, 4, 2, 1)},
    "cp 4, zero 0": TrainingPlan(1, cp=4, B=8, zero=0),
    "cp 4, zero 3, recompute": TrainingPlan(1, cp=4, B=8, zero=3, recompute=True)}


@contextlib.contextmanager
def slowed(rest: float) -> Iterator[None]:
    """This process sleeps `rest` times as long as it computes, on average over a few ticks, or over
    one call that Python cannot interrupt."""
    last = time.process_time()

    def sleep(*_: object) -> None:
        nonlocal last
        now = time.process_time()
        spent = now - last
        last = now                      # before the sleep, in which a signal may come
        time.sleep(rest * spent)

    signal.signal(signal.SIGPROF, sleep)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, TICK, TICK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


# ---- predicted


def seconds_of(call: Callable[[], object]) -> float:
    """Of a call on all ranks, until the last is done."""
    dist.barrier()
    begin = time.perf_counter()
    call()
    seconds = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


def layer_rate(turns: int = ROUNDS) -> float:
    """FLOP/s of a rank where all ranks run forward and backward of a layer: the median."""
    layer = TrainLayer(SHAPE)
    x = torch.randn(BATCH // W, T, SHAPE.C, requires_grad=True)
    flops = step_flops(Architecture(replace(SHAPE, L=1, V=0)), BATCH // W, T)

    def run() -> None:
        layer(x).sum().backward()

    run()
    return flops / statistics.median(seconds_of(run) for _ in range(turns))


def fitted(turns: int = ROUNDS) -> Cluster:
    """This machine as the planner sees it."""
    times = torch.tensor(sweep(turns=turns)["message"], dtype=torch.float64)
    rate = torch.tensor(layer_rate(turns), dtype=torch.float64)
    for own in (times, rate):               # a rank's own are a little different
        dist.broadcast(own, 0)
    alpha, beta = fit(SIZES, times.tolist())
    return Cluster(W, peak=rate.item(), efficiency=1.0, node=W, inside=1 / beta, across=1 / beta,
                   alpha=alpha, shard=1)


def predicted(cluster: Cluster, plan: TrainingPlan) -> dict[str, float]:
    """plan_seconds where every number that is sent has 4 bytes. The planner has 2 for all but
    gradients: at half the rate they take what 4 take, and gradients are put right."""
    model = Architecture(SHAPE)
    half = replace(cluster, inside=cluster.inside / 2, across=cluster.across / 2)
    seconds = plan_seconds(model, half, plan, T, BATCH)
    twice, once = (share_seconds(model, own, plan, "reduce_scatter", 4) for own in (half, cluster))
    M = plan.micro_batches(BATCH)
    seconds["dp"] -= (twice - once) * (2, 1, M, M)[plan.zero]
    return seconds


# ---- measured


def measured(rounds: int) -> dict[str, list[float]]:
    """{plan: seconds of a step in each round}; a step before that is not counted."""
    draw = random.Random(0)                 # the same order on every rank
    seconds: dict[str, list[float]] = {name: [] for name in PLANS}
    for _ in range(rounds):
        for name in draw.sample(list(PLANS), len(PLANS)):
            step = make_step(SHAPE, PLANS[name], BATCH, T)
            step()
            seconds[name].append(seconds_of(step))
    return seconds


def spearman(a: list[float], b: list[float]) -> float:
    """The correlation of the places in two rows; equal values share theirs."""
    places = [(x[:, None] > x).sum(1) + (x[:, None] == x).sum(1) / 2
              for x in (np.array(a), np.array(b))]
    return float(np.corrcoef(*places)[0, 1])


def summary(cluster: Cluster, seconds: dict[str, list[float]]) -> dict:
    """The record of a run."""
    rows: list[dict[str, Any]] = []
    for name, own in seconds.items():
        parts = predicted(cluster, PLANS[name])
        rows.append({"plan": name, "predicted": total_seconds(parts),
                     "nothing hidden": sum(parts.values()), "median": statistics.median(own),
                     "fastest": min(own), "parts": parts})
    column = {key: [row[key] for row in rows]
              for key in ("predicted", "nothing hidden", "median", "fastest")}
    return {
        "torch": torch.__version__, "cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)),
        "ranks": W, "shape": astuple(SHAPE), "batch": BATCH, "T": T,
        "rest": REST, "rounds": len(seconds[rows[0]["plan"]]),
        "alpha": cluster.alpha, "bytes a second": cluster.inside, "FLOP/s of a rank": cluster.peak,
        "spearman": {f"{one}, {other}": round(spearman(column[one], column[other]), 3)
                     for one in ("predicted", "nothing hidden") for other in ("median", "fastest")},
        "rows": sorted(rows, key=lambda row: row["predicted"])}


def main() -> None:
    meet("s26_planner")
    load = os.getloadavg()[0]
    with slowed(REST):
        cluster = fitted()
        seconds = measured(ROUNDS)
    record = {"load before": round(load, 1)} | summary(cluster, seconds)
    if dist.get_rank() == 0:
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        for row in record["rows"]:
            print(f"{row['plan']:26} predicted {1e3 * row['predicted']:7.1f} ms, nothing hidden "
                  f"{1e3 * row['nothing hidden']:7.1f}, median {1e3 * row['median']:7.1f}, fastest "
                  f"{1e3 * row['fastest']:7.1f}")
        print(record["spearman"], record["alpha"], record["bytes a second"],
              record["FLOP/s of a rank"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
