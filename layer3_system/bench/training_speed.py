"""Steps of s30's loop beside a plain loop of PyTorch, into training_speed.json:

    python -m layer3_system.bench.training_speed

The plain loop is run twice, as it is and with its forward compiled by torch.compile, which needs a
compiler of C++. The same shape, weights and batches, fp32, one thread, step by step in turns;
seconds are those of the processor, so that other work on the machine lengthens them less.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from day01_roofline import speedup, take_turns
from day02_overview.nano.train import forward
from layer3_system.train import PEAK, STORIES, B, T, make
from layer3_system.training.data import story_tokens
from layer3_system.training.llama import entries
from layer3_system.training.loop import Training

RECORD = Path(__file__).with_name("training_speed.json")
ROUNDS = 63
FIRST = 2               # steps of each way that no clock sees; the first one compiles


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


def turns(shape: str, rounds: int) -> dict[str, Any]:
    """Tokens a second of each way, the median of some steps, and how many times as fast s30's loop
    is as the others: [20th percentile, median, 80th] of the ratios of rounds."""
    text = story_tokens("train", STORIES)
    steps: dict[str, Callable[[], object]] = {}
    for way in ("s30", "plain", "compiled"):
        training = make(shape, 1000, "fp32", False, text)
        steps[way] = training.step if way == "s30" else plain(training, way == "compiled")
    for step in steps.values():
        for _ in range(FIRST):
            step()
    seconds = take_turns({way: timer(step) for way, step in steps.items()}, rounds)
    return {"tokens a second": {way: round(B * T / median(own)) for way, own in seconds.items()},
            "s30 against": {way: [round(float(x), 3) for x in speedup(seconds[way], seconds["s30"])]
                            for way in ("plain", "compiled")}}


def record(rounds: int) -> dict[str, Any]:
    return {"machine": f"one thread, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; "
                       "seconds are the processor's",
            "torch": torch.__version__, "B": B, "T": T, "rounds": rounds,
            "shapes": {shape: turns(shape, rounds) for shape in PEAK}}


def main() -> None:
    torch.set_num_threads(1)
    RECORD.write_text(json.dumps(record(ROUNDS), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
