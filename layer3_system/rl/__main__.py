"""A small model that learns from its own answers:

    python -m layer3_system.rl --minutes 4 --seed 0 --placement turns|split --save DIR

Where exercises of s32 have passed on the desk, their functions do it. It stops after some minutes
of the processor, and writes its rows, and with --save the weights, too.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from layer2_graph.models import SMALL
from layer3_system.rl.loop import Learning, LearningError, Options, Parts

MODELS = {"draft": SMALL.parent / "draft", "small": SMALL}
AGES = {"turns": 0, "split": 1}         # updates between the weights that write and that learn


def run(learning: Learning, seconds: float) -> list[list[float]]:
    """Steps until this process has worked so long, at least one, and a line for each: [[reward of
    each role]]."""
    rewards: list[list[float]] = []
    end = time.process_time() + seconds
    while not rewards or time.process_time() < end:
        row = learning.step()
        rewards.append([round(r, 3) for r in row.rewards])
        print(f"update {row.step:3}  reward {row.reward:.2f}  gap {row.gap:.1e}  dead {row.dead}",
              flush=True)
    return rewards


def save(folder: Path, learning: Learning, rewards: list[list[float]]) -> None:
    """Weights as Hugging Face has them, and the rewards of each update."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: w.detach() for name, w in learning.actor.weights.items()}
    save_file(weights, folder / "model.safetensors")
    (folder / "rewards.json").write_text(json.dumps(rewards) + "\n", "utf-8")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m layer3_system.rl", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4.0, help="of the processor")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", choices=MODELS, default="draft")
    parser.add_argument("--placement", choices=AGES, default="turns",
                        help="split: answers are one update old, as if others had written them")
    parser.add_argument("--save", type=Path, metavar="DIR")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    learning = Learning(Options(seed=options.seed, age=AGES[options.placement]), Parts.own(),
                        MODELS[options.model])
    try:
        rewards = run(learning, 60 * options.minutes)
    except LearningError as error:
        print(error, file=sys.stderr)
        return 1
    if options.save:
        save(options.save, learning, rewards)
    return 0


if __name__ == "__main__":
    sys.exit(main())
