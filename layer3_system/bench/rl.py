"""Learning from own answers, recorded: three seeds, arms whose answers are old, and a slow reward.

python -m layer3_system.bench.rl      writes rl.json; 264 updates of the draft model
"""

import json
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layer3_system.rl.loop import Learning, Options, Parts
from layer3_system.rl.roles import contains_role

RECORD = Path(__file__).with_suffix(".json")
UPDATES = 40            # of each seed
FEWER = 24              # of each arm
OTHERS = "teacher", "hedgehog", "sailor", "baker", "rabbit", "fox"      # nobody asks about them
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


def arm(learning: Learning, updates: int) -> dict[str, list]:
    rows = [learning.step() for _ in range(updates)]
    return {"reward": [round(row.reward, 4) for row in rows],
            "roles": [[round(r, 4) for r in row.rewards] for row in rows],
            "gap": [float(f"{row.gap:.2e}") for row in rows],
            "seconds": [round(sum(row.seconds[i] for row in rows), 2) for i in range(2)]}


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
    seeds = {}
    for seed in range(3):
        learning = Learning(Options(seed=seed))
        before = grid(learning, learning.options.roles, 0), grid(learning, OTHERS, 0)
        seeds[seed] = arm(learning, UPDATES)
        print("seed", seed, seeds[seed]["reward"][::8], flush=True)
        if seed == 0:
            after = grid(learning, learning.options.roles, 0), grid(learning, OTHERS, 0)
            pairs = before, after
    arms = {"same weights": seeds[0] | {part: seeds[0][part][:FEWER]
                                        for part in ("reward", "roles", "gap")}}
    for name, (options, parts) in ARMS.items():
        arms[name] = arm(Learning(options, parts), FEWER)
        print(name, arms[name]["reward"][::5], arms[name]["gap"][::8], flush=True)
    others = [round(sum(map(sum, grids[1])) / (16 * len(OTHERS)), 3) for grids in pairs]
    share = seeds[0]["seconds"][0] / sum(seeds[0]["seconds"])
    return {"what": f"the draft model, 4 questions, 16 answers each; 3 seeds of {UPDATES} updates, "
                    f"{len(ARMS)} arms of {FEWER} with seed 0; of seed 0's time {share:.0%} is "
                    f"rollout",
            "roles": list(Options().roles), "seeds": seeds, "arms": arms,
            "grids": {"before": pairs[0][0], "after": pairs[1][0]},
            "others": {"before": others[0], "after": others[1]}, "pool": pool_seconds()}


def main() -> None:
    torch.set_num_threads(1)
    RECORD.write_text(json.dumps(record()) + "\n", "utf-8")


if __name__ == "__main__":
    main()
