"""Steps of s30's loop beside a plain loop of PyTorch, into training_speed.json:

    python -m layer3_system.bench.training_speed [--compile]

The same shape, weights and batches, fp32, one thread, step by step in turns; seconds are those of
the processor, so that other work on the machine lengthens them less.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

from day01_roofline import take_turns
from day02_overview.nano.train import forward
from layer3_system.train import B, T, make
from layer3_system.training.llama import entries
from layer3_system.training.loop import Training

RECORD = Path(__file__).with_name("training_speed.json")
ROUNDS = 15


def plain(training: Training, compiled: bool) -> Callable[[], float]:
    """A step of a loop of torch.optim and o02's forward, from the same weights: its loss."""
    m = training.model.m
    o = training.options
    shape = entries(m) | {"rms_norm_eps": m.eps, "rope_theta": m.theta}
    w = training.model.weights
    optimiser = torch.optim.AdamW(w.values(), lr=o.peak, betas=o.betas, weight_decay=o.decay)
    scores = torch.compile(forward) if compiled else forward

    def step() -> float:
        batch = training.loader.next()
        logits = scores(shape, w, batch.tokens)                 # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(w.values(), o.limit)
        optimiser.step()
        return loss.item()

    return step


def timer(step: Callable[[], object]) -> Callable[[], float]:
    """Takes a step, and returns its seconds of the processor."""
    def run() -> float:
        begin = time.process_time()
        step()
        return time.process_time() - begin

    return run


def speeds(shape: str, ways: tuple[str, ...], rounds: int) -> dict[str, int]:
    """{way: tokens a second, the median of some steps}"""
    steps: dict[str, Callable[[], object]] = {}
    for way in ways:
        training = make(shape, 1000, "fp32", False)
        steps[way] = training.step if way == "s30" else plain(training, way == "compiled")
    for step in steps.values():
        step()                                                  # the first one compiles
    seconds = take_turns({way: timer(step) for way, step in steps.items()}, rounds)
    return {way: round(B * T / median(seconds[way])) for way in ways}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="a loop with torch.compile too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways = ("s30", "plain", "compiled") if options.compile else ("s30", "plain")
    record = {"machine": f"one thread, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
              "torch": torch.__version__, "shape": "draft", "B": B, "T": T, "rounds": ROUNDS,
              "tokens a second": speeds("draft", ways, ROUNDS)}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
