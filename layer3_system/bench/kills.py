"""A training that is killed again and again, beside one that never was, into kills.json.

    python -m layer3_system.bench.kills --kills 30

Each life of the training ends by SIGKILL at a drawn moment: of one rank, of all ranks, or of all
and of torchrun itself.
Every third waits until a shard is half written.
Rank 0 writes each loss with all its bits; every line must be that of the training that was never
killed.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from lab import device
from layer3_system.checkpoint import step_of

RECORD = Path(__file__).with_suffix(".json")
RANKS = 2
EVERY = 4               # steps between saves
PAUSE = 0.03            # seconds in the middle of a write: a disk slow enough to be killed in
AHEAD = 3, 14           # steps that a life makes at least and at most, unless it waits for a write
LOOK = 0.001            # seconds between two looks
MAX_SILENCE_SECONDS = 120  # seconds without a step, or for a life to begin or to end


class Torchrun:
    """Ranks that torchrun starts again. folder: of checkpoints.  losses: the file of rank 0"""

    def __init__(self, folder: Path, losses: Path, steps: int, ranks: int = RANKS,
                 restarts: int = 0, pause: float = PAUSE, more: tuple[str, ...] = ()) -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
                   "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
                   "--max-restarts", str(restarts), "--monitor-interval", "0.05",
                   "-m", "layer3_system.elastic", "--save", str(folder), "--steps", str(steps),
                   "--losses", str(losses), "--every", str(EVERY), "--pause", str(pause), *more]
        device.on_loopback()
        self.errors = tempfile.TemporaryFile("w+")      # noqa: SIM115  (as long as the ranks)
        self.process = subprocess.Popen(command, stderr=self.errors, start_new_session=True,
                                        env=device.child_environment())

    def ranks(self) -> list[int]:
        """The process numbers of the ranks, while they live."""
        own = self.process.pid
        path = Path(f"/proc/{own}/task/{own}/children")
        return [int(word) for word in path.read_text().split()] if path.exists() else []

    def end(self) -> None:
        """Kill torchrun and all ranks, if it still runs."""
        if self.process.poll() is None:
            for number in (self.process.pid, *self.ranks()):
                kill(number)
            self.process.wait()

    def text(self) -> str:
        """What the ranks and torchrun wrote to stderr."""
        self.errors.seek(0)
        return self.errors.read()


def kill(number: int) -> None:
    """SIGKILL, if the process is still there."""
    with contextlib.suppress(ProcessLookupError):       # it may end by itself at this moment
        os.kill(number, signal.SIGKILL)


def rows(losses: Path) -> list[dict[str, Any]]:
    """All whole lines of a file of losses; a killed rank may leave the beginning of one."""
    text = losses.read_text() if losses.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def half_written(folder: Path) -> bool:
    """Whether a step has shards and no manifest."""
    names = [path.name for path in folder.iterdir()]
    committed = {step for name in names if (step := step_of(name)) is not None}
    shards = {int(name[4:name.index(".")]) for name in names if ".shard" in name}
    return bool(shards) and max(shards) > max(committed, default=0)


def waits(ready: Any, process: subprocess.Popen) -> bool:
    """Wait until ready() is so: True; False if the process ends before.
    TimeoutError after long"""
    begin = time.monotonic()
    while not ready():
        if process.poll() is not None:
            return False
        if time.monotonic() - begin > MAX_SILENCE_SECONDS:
            raise TimeoutError(f"the training made no step in {MAX_SILENCE_SECONDS} s")
        time.sleep(LOOK)
    return True


def strike(run: Torchrun, victims: str, order: random.Random) -> None:
    """Kill one rank, all ranks, or all ranks and torchrun."""
    ranks = run.ranks()
    if victims == "all ranks and torchrun":
        run.end()
    else:
        for number in ranks if victims == "all ranks" else [order.choice(ranks)]:
            kill(number)


def lives(folder: Path, losses: Path, steps: int, kills: int,
          order: random.Random) -> Iterator[dict[str, Any]]:
    """A training up to its last step, killed `kills` times; what each kill met, as it happens."""
    run = Torchrun(folder, losses, steps, restarts=kills)
    try:
        for k in range(kills):
            goal = len(rows(losses)) + order.randint(*AHEAD)
            wanted = "a write" if k % 3 == 0 else "a step"
            victims = order.choice(("one rank", "all ranks", "all ranks and torchrun"))
            if not waits(lambda goal=goal: len(rows(losses)) >= goal, run.process):
                raise RuntimeError(f"the training ended before kill {k}: {run.text()[-800:]}")
            if wanted == "a write":
                waits(lambda: half_written(folder), run.process)
            else:
                time.sleep(order.random() * 0.05)
            strike(run, victims, order)
            yield {"kill": victims, "waited for": wanted, "after step": rows(losses)[-1]["step"],
                   "half written": half_written(folder)}
            if victims == "all ranks and torchrun":
                run = Torchrun(folder, losses, steps, restarts=kills)
        if run.process.wait(MAX_SILENCE_SECONDS):
            raise RuntimeError(f"torchrun ended with {run.process.returncode}: {run.text()[-800:]}")
    finally:
        run.end()


def compare(folder: Path, steps: int, kills: int, seed: int) -> dict[str, Any]:
    """The record of a training that is killed and of one that is not. folder: to work in"""
    straight = Torchrun(folder / "straight", folder / "straight.txt", steps, pause=0.0)
    try:
        if straight.process.wait(MAX_SILENCE_SECONDS):
            raise RuntimeError(f"torchrun ended with an error: {straight.text()[-800:]}")
    finally:
        straight.end()
    right = {row["step"]: row["loss"] for row in rows(folder / "straight.txt")}
    own = folder / "killed"
    own.mkdir()
    met = list(lives(own, folder / "killed.txt", steps, kills, random.Random(seed)))
    written = rows(folder / "killed.txt")
    last = [(folder / name / f"step{steps}.manifest").read_bytes()
            for name in ("straight", "killed")]
    return {"ranks": RANKS, "steps": steps, "seed": seed, "torch": torch.__version__,
            "steps made": len(written), "steps made again": len(written) - len(right),
            "losses that differ": sum(row["loss"] != right[row["step"]] for row in written),
            "steps missing": len(set(right) - {row["step"] for row in written}),
            "last checkpoints are equal": last[0] == last[1],
            "digests": json.loads(last[1])["digests"], "kills": met}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--steps", type=int, default=440)
    parser.add_argument("--seed", type=int, default=31)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record = compare(Path(folder), options.steps, options.kills, options.seed)
    RECORD.write_text(json.dumps(record).replace('{"kill"', '\n{"kill"') + "\n", "utf-8")


if __name__ == "__main__":
    main()
