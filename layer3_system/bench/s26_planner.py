"""Plans of s26 by their predicted seconds, beside measured ones, into s26_planner.json.

    torchrun --nproc-per-node 4 -m layer3_system.bench.s26_planner

The planner's constants are fitted on something else: rounds and bytes on collectives of
torch.distributed, the rate of arithmetic on one layer that all ranks run at once, its messages
answered at once: a whole layer, a band of tp's, one of cp's ring, which computes more slowly.
A rank has one thread, and what it computes takes SLOWER times as long as on a core of its own, in
the fits as well: so four ranks on two cores do not take each other's time.
Plans take turns in shuffled rounds; a step is over when the last rank is done.
"""

import json
import math
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from day01_roofline import LlamaShape
from lab.device import cpu_model
from lab.remote.agreement import meet
from layer3_system.bench.s20_collectives import SIZES, fit, timed
from layer3_system.plan_costs import share_seconds, step_flops, total_seconds
from layer3_system.planner import Architecture, Cluster, TrainingPlan
from layer3_system.s26_planner import plan_seconds
from layer3_system.testing.plan_ranks import (
    CAPACITY,
    PlanLlama,
    RingLayer,
    TensorLayer,
    band_shape,
    make_step,
)
from layer3_system.testing.training_models import TrainLayer

RECORD = Path(__file__).with_suffix(".json")
OUTSIDE = RECORD.with_name("aiconfigurator.json")       # what another planner says of serving
MEGATRON = RECORD.with_name("megatron.json")            # plans that ran on up to 3,072 GPUs
SHAPE = LlamaShape("measured", L=8, C=128, H=4, G=4, D=32, F=384, V=512, tied=False)
BATCH = 8
T = 512
W = 4
ROUNDS = 3
SLOWER = 2.5
# name: plan. s21's stage 3 recomputes its layers
PLANS = {
    **{f"dp 4, zero {zero}": TrainingPlan(4, zero=zero, B=2) for zero in range(3)},
    "dp 4, zero 3, recompute": TrainingPlan(4, zero=3, B=2, recompute=True),
    **{f"tp 4, M = {BATCH // B}": TrainingPlan(1, tp=4, B=B, zero=0) for B in (8, 2)},
    **{f"pp 4, M = {BATCH // B}": TrainingPlan(1, pp=4, B=B, zero=0)
       for B in (8, 4, 2, 1)},
    "cp 4, zero 0": TrainingPlan(1, cp=4, B=8, zero=0),
    "cp 4, zero 3, recompute": TrainingPlan(1, cp=4, B=8, zero=3, recompute=True)}


class Slowed(TorchDispatchMode):
    """This process computes SLOWER times as long as it needs: before it talks to others, before it
    waits for them, and in `settle`, it sleeps for what is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.wait = dist.Work.wait
        self.begin()

    def begin(self) -> None:
        """Compute from now on."""
        self.clock = time.perf_counter()
        self.spent = time.thread_time()

    def settle(self) -> None:
        """Sleep until what was computed since `begin` has taken as long as it should."""
        missing = SLOWER * (time.thread_time() - self.spent) - (time.perf_counter() - self.clock)
        time.sleep(max(0, missing))
        self.begin()

    def talk(self, call: Callable, *args: Any, **kwargs: Any) -> Any:
        """What others take part in, in its own time."""
        self.settle()
        answer = call(*args, **kwargs)
        self.begin()
        return answer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            return self.talk(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> "Slowed":
        dist.Work.wait = lambda work, *args: self.talk(     # type: ignore[method-assign]
            self.wait, work, *args)
        self.begin()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        dist.Work.wait = self.wait                         # type: ignore[method-assign]
        super().__exit__(*error)


# ---- predicted


def seconds_of(call: Callable[[], object], slow: Slowed) -> float:
    """Of a call on all ranks, until the last is done."""
    dist.barrier()
    begin = time.perf_counter()
    call()
    slow.settle()
    seconds = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


def kind_of(plan: TrainingPlan) -> str:
    """What a rank of a plan computes."""
    return "tp" if plan.tp > 1 else "cp" if plan.cp > 1 else "whole"


def layer_inputs() -> dict[str, tuple[TrainLayer, tuple[int, ...]]]:
    """{kind: (a layer, the shape of its input)} of a rank that has its share of a batch."""
    m = SHAPE
    return {"whole": (TrainLayer(m), (BATCH // W, T, m.C)),
            "tp": (TensorLayer(band_shape(m, W)), (T // W, BATCH, m.C)),
            "cp": (RingLayer(m), (BATCH, T // W, m.C))}


def layer_rates(turns: int = ROUNDS) -> dict[str, float]:
    """{kind: FLOP/s of a rank} of forward and backward of a layer: the median.
    Messages are not sent; what was in memory answers at once: this is arithmetic alone."""
    flops = step_flops(Architecture(replace(SHAPE, L=1, V=0)), BATCH, T) / W
    seconds = {}
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=W)
    with Slowed() as slow:
        for kind, (layer, shape) in layer_inputs().items():
            x = torch.zeros(shape, requires_grad=True)

            def run(layer: TrainLayer = layer, x: torch.Tensor = x) -> None:
                layer(x).sum().backward()

            run()
            seconds[kind] = statistics.median(seconds_of(run, slow) for _ in range(turns))
    dist.destroy_process_group()
    return {kind: flops / own for kind, own in seconds.items()}


def collective_seconds(turns: int) -> tuple[list[float], list[float]]:
    """(bytes of a rank's piece, seconds of a round) of all_gathers and reduce_scatters."""
    ways = {"gather": lambda x: dist.all_gather_into_tensor(x, x.chunk(W)[0].clone()),
            "scatter": lambda x: dist.reduce_scatter_tensor(x.chunk(W)[0].clone(), x)}
    rows = [(S / W, statistics.median(timed(call, torch.ones(S // 4), turns)) / (W - 1))
            for call in ways.values() for S in SIZES]
    sizes, seconds = zip(*rows, strict=True)
    return list(sizes), list(seconds)


def fitted(rates: dict[str, float], turns: int = ROUNDS) -> tuple[Cluster, dict[str, float]]:
    """This machine as the planner sees it, and the efficiency of each kind of layer: its share of
    the whole layer's rate."""
    sizes, rounds = collective_seconds(turns)
    times = torch.tensor(rounds, dtype=torch.float64)
    own = torch.tensor(list(rates.values()), dtype=torch.float64)
    for row in (times, own):                # a rank's own are a little different
        dist.broadcast(row, 0)
    alpha, beta = fit(sizes, times.tolist())
    peak, *_ = own.tolist()
    efficiency = {kind: rate / peak for kind, rate in zip(rates, own.tolist(), strict=True)}
    return Cluster(W, peak=peak, efficiency=1.0, node=W, inside=1 / beta, across=1 / beta,
                   alpha=alpha, shard=1), efficiency


def more_messages(plan: TrainingPlan) -> int:
    """How many collectives of s21's stages come on top of the planner's, which sends all gradients
    or weights in one: a bucket, a parameter or a layer goes by itself."""
    parameters = list(PlanLlama(SHAPE).parameters())
    buckets = math.ceil(sum(p.numel() for p in parameters) / CAPACITY)
    alone = len(parameters) - 1
    return (2 * (buckets - 1), 0, 2 * alone, 3 * SHAPE.L)[plan.zero]


def predicted(cluster: Cluster, plan: TrainingPlan) -> dict[str, float]:
    """plan_seconds where every number that is sent has 4 bytes, and s21's stages their own number
    of messages.
    The planner has 2 bytes for all but gradients: at half the rate they take what 4 take, and
    gradients are put right."""
    model = Architecture(SHAPE)
    half = replace(cluster, inside=cluster.inside / 2, across=cluster.across / 2)
    seconds = plan_seconds(model, half, plan, T, BATCH)
    twice, once = (share_seconds(model, own, plan, "reduce_scatter", 4) for own in (half, cluster))
    M = plan.micro_batches(BATCH)
    seconds["dp"] -= (twice - once) * (2, 1, M, M)[plan.zero]
    n = plan.dp * plan.cp
    seconds["dp"] += more_messages(plan) * (n - 1) * cluster.alpha
    return seconds


# ---- measured


def measured(slow: Slowed, rounds: int) -> dict[str, list[float]]:
    """{plan: seconds of a step in each round}; a step before that is not counted."""
    draw = random.Random(0)                 # the same order on every rank
    seconds: dict[str, list[float]] = {name: [] for name in PLANS}
    for _ in range(rounds):
        for name in draw.sample(list(PLANS), len(PLANS)):
            step = make_step(SHAPE, PLANS[name], BATCH, T)
            step()
            seconds[name].append(seconds_of(step, slow))
    return seconds


def spearman(a: list[float], b: list[float]) -> float:
    """The correlation of the places in two rows; equal values share theirs."""
    places = [(x[:, None] > x).sum(1) + (x[:, None] == x).sum(1) / 2
              for x in (np.array(a), np.array(b))]
    return float(np.corrcoef(*places)[0, 1])


WAYS = ("predicted", "as it ran", "nothing hidden")     # to predict the seconds of a plan


def in_every_way(parts: dict[str, float], zero: int) -> dict[str, float]:
    """The parts of a step together: by the planner, by what the code hides that is measured, which
    sends beside backward at stage 0 alone, and with nothing hidden."""
    hidden = total_seconds(parts)
    shown = sum(parts.values())
    return dict(zip(WAYS, (hidden, shown if zero else hidden, shown), strict=True))


def summary(cluster: Cluster, efficiency: dict[str, float],
            seconds: dict[str, list[float]]) -> dict:
    """The record of a run."""
    rows: list[dict[str, Any]] = []
    for name, own in seconds.items():
        plan = PLANS[name]
        parts = predicted(replace(cluster, efficiency=efficiency[kind_of(plan)]), plan)
        rows.append({"plan": name, **in_every_way(parts, PLANS[name].zero),
                     "median": statistics.median(own), "fastest": min(own), "parts": parts})
    column = {key: [row[key] for row in rows] for key in (*WAYS, "median", "fastest")}
    return {
        "torch": torch.__version__, "cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)),
        "ranks": W, "shape": astuple(SHAPE), "batch": BATCH, "T": T,
        "slower": SLOWER, "rounds": len(seconds[rows[0]["plan"]]),
        "alpha": cluster.alpha, "bytes a second": cluster.inside, "FLOP/s of a rank": cluster.peak,
        "efficiency": efficiency,
        "spearman": {f"{one}, {other}": round(spearman(column[one], column[other]), 3)
                     for one in WAYS for other in ("median", "fastest")},
        "rows": sorted(rows, key=lambda row: row["predicted"])}


def main() -> None:
    rates = layer_rates()
    meet("s26_planner")
    load = os.getloadavg()[0]
    with Slowed() as slow:
        cluster, efficiency = fitted(rates)
        seconds = measured(slow, ROUNDS)
    record = {"load before": round(load, 1)} | summary(cluster, efficiency, seconds)
    if dist.get_rank() == 0:
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        for row in record["rows"]:
            print(f"{row['plan']:26} predicted {1e3 * row['predicted']:7.1f} ms, nothing hidden "
                  f"{1e3 * row['nothing hidden']:7.1f}, median {1e3 * row['median']:7.1f}, fastest "
                  f"{1e3 * row['fastest']:7.1f}")
        print(record["spearman"], record["alpha"], record["bytes a second"],
              record["FLOP/s of a rank"], record["efficiency"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
