"""Learning from own answers, recorded: three seeds, arms whose answers are old, a slow reward, and
three seeds of the small model.

python -m layer3_system.bench.rl      writes rl.json; 228 updates of the draft model, 210 of the
                                      small one
"""

import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layer2_graph.models import SMALL
from layer3_system.rl.loop import Learning, LearningError, Options, Parts, UpdateRecord
from layer3_system.rl.roles import contains_role

RECORD = Path(__file__).with_suffix(".json")
UPDATES = 36            # of each seed
FEWER = 20              # of each arm
LONGER = 110            # of each seed of the small model
SMALL_OPTIONS = Options(lr=7.5e-4, roles=("badger", "teacher", "dancer", "hedgehog"))
OTHERS = "teacher", "hedgehog", "sailor", "baker", "rabbit", "fox"      # never asked about
EACH = 0.05             # seconds that a slow reward waits
ANSWERS = 64


def no_ratio(new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor,
             clip: float = 0.2) -> Tensor:
    """The objective as if the answers were the actor's own."""
    return Parts().policy_loss(new, new.detach(), advantages, mask, clip)


ARMS = {
    "1 update old": (Options(age=1), Parts()),
    "4 updates old": (Options(age=4), Parts()),
    "4 updates old, ratio taken as 1": (Options(age=4), Parts(policy_loss=no_ratio)),
    "engine never gets weights": (Options(every=0), Parts()),
    "1 update old, a quarter of the rate": (Options(age=1, lr=7.5e-4), Parts()),
    "same weights, a quarter of the rate": (Options(lr=7.5e-4), Parts()),
}


def grid(learning: Learning, roles: tuple[str, ...], seed: int) -> list[list[float]]:
    """The reward of 16 answers to the question for each role."""
    answers = learning.rollout.write(list(roles), 16, seed)
    return [[contains_role(a) for a in answers if a.role == role] for role in roles]


def arm(learning: Learning, updates: int) -> dict[str, Any]:
    """"reward", "roles", "gap" by update, "seconds" of writing and of learning, and "stopped": why
    it ended early, or None."""
    rows: list[UpdateRecord] = []
    stopped = None
    try:
        while len(rows) < updates:
            rows.append(learning.step())
    except LearningError as error:
        stopped = str(error)
    return {"reward": [round(row.reward, 4) for row in rows],
            "roles": [[round(r, 4) for r in row.rewards] for row in rows],
            "gap": [float(f"{row.gap:.2e}") for row in rows], "stopped": stopped,
            "seconds": [round(sum(row.seconds[i] for row in rows), 2) for i in range(2)]}


def seed_run(seed: int) -> dict[str, Any]:
    """An arm's entries, and "grids" and "others" before and after."""
    torch.set_num_threads(1)
    learning = Learning(Options(seed=seed))
    roles = learning.options.roles
    grids = {"before": grid(learning, roles, 0)}
    others = {"before": mean(grid(learning, OTHERS, 0))}
    run = arm(learning, UPDATES)
    grids["after"] = grid(learning, roles, 0)
    others["after"] = mean(grid(learning, OTHERS, 0))
    return run | {"grids": grids, "others": others}


def small_run(seed: int) -> dict[str, Any]:
    """An arm's entries, and "cpu": seconds of this process."""
    torch.set_num_threads(1)
    began = time.process_time()
    run = arm(Learning(replace(SMALL_OPTIONS, seed=seed), folder=SMALL), LONGER)
    return run | {"cpu": round(time.process_time() - began, 1)}


def mean(rows: list[list[float]]) -> float:
    return round(sum(map(sum, rows)) / sum(map(len, rows)), 3)


def arm_run(name: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    return arm(Learning(*ARMS[name]), FEWER)


def slow_reward(number: int) -> float:
    time.sleep(EACH)
    return float(number % 2)


def pool_seconds() -> dict[str, Any]:
    """How long the rewards of a step take, by the number of processes."""
    seconds = {}
    for workers in (1, 4, 8):
        with ProcessPoolExecutor(workers) as pool:
            list(pool.map(slow_reward, range(workers)))             # they have started
            began = time.perf_counter()
            list(pool.map(slow_reward, range(ANSWERS)))
            seconds[workers] = round(time.perf_counter() - began, 2)
    return {"each": EACH, "answers": ANSWERS, "seconds": seconds}


def record() -> dict[str, Any]:
    with ProcessPoolExecutor(3, multiprocessing.get_context("spawn")) as pool:
        runs = pool.map(seed_run, range(3))
        arms = pool.map(arm_run, ARMS)
        small = pool.map(small_run, range(3))
        seeds = dict(enumerate(runs))
        others = dict(zip(ARMS, arms, strict=True))
        small_seeds = dict(enumerate(small))
    first = seeds[0]
    same = first | {part: first[part][:FEWER] for part in ("reward", "roles", "gap")}
    del same["grids"], same["others"]
    share = first["seconds"][0] / sum(first["seconds"])
    return {"what": f"the draft model, 4 questions, 16 answers each; 3 seeds of {UPDATES} updates, "
                    f"arms of {FEWER} with seed 0; of seed 0's time {share:.0%} is rollout",
            "roles": list(Options().roles), "seeds": seeds,
            "arms": {"same weights": same} | others, "pool": pool_seconds(),
            "small": {"roles": list(SMALL_OPTIONS.roles), "seeds": small_seeds}}


def main() -> None:
    RECORD.write_text(json.dumps(record()) + "\n", "utf-8")


if __name__ == "__main__":
    main()
