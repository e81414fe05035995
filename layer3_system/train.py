"""Train a small Llama from nothing on the course's stories:

    python -m layer3_system.train --steps 200 --minutes 3

It stops after some minutes of the processor, keeps its state in .cache, and goes on from there at
the next call: the losses are those of a training that never stopped.
At the last step it writes its record.
With --text it learns the first nine tenths of a file, and the rest is held out.
Nothing ships: the small model's own weights come from layer2_graph/small/train.py.
"""

import argparse
import io
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layer2_graph.config import read_config
from layer3_system.checkpoint import Folder
from layer3_system.s30_training import Recompute
from layer3_system.training.arms import ARMS
from layer3_system.training.data import Batch, Loader, file_tokens, story_tokens
from layer3_system.training.llama import TrainableLlama, new_weights, training_kernels
from layer3_system.training.loop import Options, StepRecord, Training, TrainingError, own_parts

RECORD = Path(__file__).with_name("bench") / "training.json"
STATES = Path(__file__).parents[1] / ".cache" / "train"     # of trainings; git ignores it
MODELS = Path(__file__).parents[1] / "layer2_graph"
PEAK = {"draft": 5e-3, "small": 3e-3}           # the highest rate of each shape
B = 4
T = 128
SEED = 0                # of the first weights, and of the batches
EVERY = 10              # steps from one live line to the next
ROWS = 100              # of the record, about: a longer training has a row for more steps
STORIES = 7000          # to learn from: all that there are
JUDGED = 60             # windows of held-out text, at most
STATE = {"training", "rows", "seconds", "first"}        # what is kept from one call to the next


def texts(path: Path | None) -> tuple[Tensor, Tensor]:
    """(to learn from, held out): tokens of a file, or else of the course's stories."""
    if path is not None:
        return file_tokens(path)
    return story_tokens("train", STORIES), story_tokens("held out", 350)


def make(shape: str, steps: int, arm: str, recompute: bool, text: Tensor) -> Training:
    """A training at its first step. shape: of layer2_graph's model of that name"""
    m = read_config(MODELS / shape)
    model = TrainableLlama(m, new_weights(m, SEED), training_kernels("torch"), ARMS[arm],
                           Recompute if recompute else None)
    options = Options(steps, max(1, steps // 20), PEAK[shape], floor=PEAK[shape] / 10)
    return Training(model, Loader(text, B, T, SEED), options, own_parts())


def perplexity(model: TrainableLlama, text: Tensor) -> float:
    """A token, of held-out text, cut into windows that are read alone.
    ValueError where there is not one window of it."""
    if not (windows := min(JUDGED, len(text) // (T + 1))):
        raise ValueError(f"a held-out text of {len(text)} tokens, expected at least T + 1 = "
                         f"{T + 1}")
    rows = text[:windows * (T + 1)].view(windows, T + 1)
    return math.exp(model.mean_loss([Batch(part[:, :-1], part[:, 1:]) for part in rows.split(B)]))


def roof(side: int = 1024, rounds: int = 7) -> float:
    """FLOP/s of a product of square matrices on this thread: the best of some rounds."""
    a = torch.randn(side, side)
    seconds = []
    for _ in range(rounds):
        begin = time.process_time()
        a @ a
        seconds.append(time.process_time() - begin)
    return 2 * side ** 3 / min(seconds)


def show(row: StepRecord, steps: int, pace: float) -> None:
    """The live line. pace: tokens a second of the processor"""
    print(f"\rstep {row.step + 1:5} of {steps}  loss {row.loss:.3f}  rate {row.rate:.1e}  "
          f"norm {row.norm:5.2f}  {pace:6,.0f} tokens/s", end="", file=sys.stderr, flush=True)


def go_on(training: Training, state: dict[str, Any], minutes: float) -> None:
    """Steps until the last, or until `minutes` of the processor have passed."""
    begin = time.process_time()
    before = state["seconds"]
    steps = training.options.steps
    every = max(EVERY, steps // ROWS)
    while training.done < steps and time.process_time() - begin < 60 * minutes:
        row = training.step()
        state["seconds"] = before + time.process_time() - begin
        last = training.done == steps
        if row.step % every == 0 or last:
            state["rows"].append(row._asdict())
        if row.step % EVERY == 0 or last:
            show(row, steps, training.done * row.tokens / state["seconds"])
    print(file=sys.stderr)


def record(training: Training, state: dict[str, Any], exam: Tensor,
           options: argparse.Namespace) -> dict[str, Any]:
    """What is written of a training that is over."""
    N = sum(w.numel() for w in training.model.weights.values())
    tokens = training.done * B * T
    return {"command": f"python -m layer3_system.train --shape {options.shape} "
                       f"--steps {options.steps} --arm \"{options.arm}\""
                       + (f" --text {options.text}" if options.text else ""),
            "machine": f"one thread, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; "
                       "seconds are the processor's",
            "torch": torch.__version__, "seed": SEED, "steps": training.done,
            "text": len(training.loader.text),
            "parameters": N, "tokens": tokens, "flops": 6 * N * tokens,
            "seconds": round(state["seconds"], 1),
            "tokens a second": round(tokens / state["seconds"]),
            "roof": roof(), "perplexity at first": round(state["first"], 2),
            "perplexity": round(perplexity(training.model, exam), 4), "rows": state["rows"]}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=tuple(PEAK), default="draft")
    parser.add_argument("--steps", type=int, default=400, help="steps of the whole training")
    parser.add_argument("--minutes", type=float, default=10,
                        help="minutes of the processor in this call")
    parser.add_argument("--arm", choices=tuple(ARMS), default="fp32", help="what is rounded")
    parser.add_argument("--recompute", action="store_true", help="layers keep their inputs alone")
    parser.add_argument("--text", type=Path, help="a file in UTF-8, in place of the stories")
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps: expected 1 or more, found {options.steps}")
    return options


def save(files: Folder, name: str, state: dict[str, Any]) -> None:
    """Write a state; the old one is there until the new one is whole and on the disk.
    OSError if it cannot be."""
    data = io.BytesIO()
    torch.save(state, data)
    part = f"{name}.part"
    files.write(part, data.getvalue())
    files.sync(part)
    files.rename(part, name)
    files.sync_folder()


def load(path: Path) -> dict[str, Any]:
    """What `save` wrote.
    ValueError where it is damaged, or something else"""
    try:
        state = torch.load(path)
    except OSError:
        raise
    except Exception as error:              # by what is damaged: PyTorch, zipfile and pickle raise
        raise ValueError(f"{path}: expected the state of a training, found a file that torch.load "
                         f"cannot read ({type(error).__name__}); delete it to restart") from None
    if not isinstance(state, dict) or state.keys() != STATE:
        raise ValueError(f"{path}: expected the state of a training, found something else; "
                         f"delete it to restart")
    return state


def train(options: argparse.Namespace, files: Folder, saved: Path) -> None:
    """One call's share of a training. saved: where its state is, or will be"""
    text, exam = texts(options.text)
    training = make(options.shape, options.steps, options.arm, options.recompute, text)
    print(training.parts.sources(), file=sys.stderr)
    state: dict[str, Any]
    if saved.exists():
        state = load(saved)
        training.restore(state.pop("training"))
    else:
        state = {"rows": [], "seconds": 0.0, "first": perplexity(training.model, exam)}
    go_on(training, state, options.minutes)
    save(files, saved.name, state | {"training": training.state()})
    if training.done == options.steps:
        options.record.write_text(json.dumps(record(training, state, exam, options)).replace(
            '{"step"', '\n{"step"') + "\n", "utf-8")


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)                # sums in one order: a training that goes on is the same
    saved = STATES / f"{options.shape}-{options.steps}-{options.arm.replace(' ', '_')}.pt"
    try:
        files = Folder(STATES)
        with open(files.lock(f"{saved.stem}.lock")):        # until it is closed
            train(options, files, saved)
    except (TrainingError, ValueError, OSError) as error:
        raise SystemExit(f"{error}; kept: {saved if saved.exists() else 'nothing'}") from None


if __name__ == "__main__":
    main()
