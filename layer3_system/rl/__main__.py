"""A small model that learns from its own answers:

    python -m layer3_system.rl --minutes 4 --seed 0 --placement turns|split --save DIR
    torchrun --nproc-per-node 2 -m layer3_system.rl --placement split --updates 20

Where exercises of s32 have passed on the desk, their functions do it.
In one process it stops after some minutes of the processor.
With torchrun one rank writes while the other learns, and it stops after that many updates.
It writes its rows, and with --save the weights, too.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from lab import device
from layer2_graph.models import SMALL
from layer3_system.rl import split
from layer3_system.rl.loop import Learning, LearningError, Options, Parts, UpdateRecord

MODELS = {"draft": SMALL.parent / "draft", "small": SMALL}
AGES = {"turns": 0, "split": 1}         # updates between the weights that write and that learn


def run(learning: Learning, seconds: float, rewards: list[list[float]]) -> None:
    """Steps until this process has worked so long, at least one, and a line for each. rewards: gets
    a row of each step, [reward of each role]"""
    end = time.process_time() + seconds
    while not rewards or time.process_time() < end:
        show(row := learning.step())
        rewards.append(row.rewards)


def run_on_ranks(options: argparse.Namespace) -> None:
    """This rank's side of two that write and learn at the same time."""
    device.on_loopback()
    dist.init_process_group("gloo")
    rewards: list[list[float]] = []

    def report(row: UpdateRecord) -> None:
        show(row)
        rewards.append(row.rewards)

    learner = split.run(Options(seed=options.seed), Parts.own(), options.updates, report,
                        MODELS[options.model])
    if learner is not None:
        print(f"{split.delivered_bytes(learner.actor.model.m, 2):,} bytes of weights each time")
        if options.save:
            save(options.save, learner, rewards)
    dist.destroy_process_group()


def show(row: UpdateRecord) -> None:
    print(f"update {row.step:3}  reward {row.reward:.2f}  gap {row.gap:.1e}  dead {row.dead}",
          flush=True)


def run_alone(options: argparse.Namespace) -> None:
    """Both roles in this process."""
    learning = Learning(Options(seed=options.seed, age=AGES[options.placement]), Parts.own(),
                        MODELS[options.model])
    rewards: list[list[float]] = []
    try:
        run(learning, 60 * options.minutes, rewards)
    finally:                            # what was learnt before an error, or Ctrl-C, is kept
        if options.save and rewards:
            save(options.save, learning, rewards)


def save(folder: Path, learning: Learning, rewards: list[list[float]]) -> None:
    """Weights as Hugging Face has them, and the rewards of each update."""
    weights = {name: w.detach() for name, w in learning.actor.weights.items()}
    save_file(weights, folder / "model.safetensors")
    rows = [[round(r, 3) for r in row] for row in rewards]
    (folder / "rewards.json").write_text(json.dumps(rows) + "\n", "utf-8")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m layer3_system.rl", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4.0, help="minutes of the processor")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", choices=MODELS, default="draft")
    parser.add_argument("--placement", choices=AGES, default="turns",
                        help="split: answers are one update old, as if others had written them")
    parser.add_argument("--updates", type=int, default=20, help="with torchrun")
    parser.add_argument("--save", type=Path, metavar="DIR")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    ranks = device.ranks_here()
    if ranks > 1 and options.placement != "split":
        parser.error(f"{ranks} ranks: expected --placement split, found {options.placement}")
    if options.save:
        try:                            # before it learns for minutes
            options.save.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--save {options.save}: expected a folder, {error.strerror}")
    try:
        run_on_ranks(options) if ranks > 1 else run_alone(options)
    except (LearningError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
