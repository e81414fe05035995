"""How long a save stops training: until it is written, or until its state is copied.

    python -m layer3_system.bench.stall         writes stall.json
"""

import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch

from layer3_system.checkpoint import Folder, pack
from layer3_system.s31_fault_tolerance import Saver, commit

RECORD = Path(__file__).with_suffix(".json")
NUMBERS = 4 * 10 ** 6   # parameters; a state has 12 bytes of each
ROUNDS = 9


class Alone:
    """A group of one rank."""

    rank = 0
    size = 1

    def gather(self, value: Any) -> list:
        return [value]


def stalls(folder: Path, numbers: int = NUMBERS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Seconds that a save takes from the thread that trains, both ways."""
    state = {part: {"row": torch.randn(numbers)} for part in ("weights", "m", "v")}
    files = Folder(folder)

    def snapshot() -> dict[str, Any]:
        return {part: {"row": own["row"].clone()} for part, own in state.items()} | {
            "generator": torch.zeros(8, dtype=torch.uint8), "step": 0}

    saver = Saver(snapshot, lambda step, copy: commit(files, Alone(), step, pack(copy)),
                  ThreadPoolExecutor(1))
    seconds: dict[str, list[float]] = {"until it is written": [], "until it is copied": []}
    for step in range(rounds):
        begin = time.perf_counter()
        saver.save(step)
        copied = time.perf_counter() - begin
        saver.wait()                                    # so that the next begins with a free disk
        written = time.perf_counter() - begin
        seconds["until it is copied"].append(copied)
        seconds["until it is written"].append(written)
    return {"bytes": 12 * numbers, "rounds": rounds,
            "machine": f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
            "torch": torch.__version__,
            "seconds": {name: round(median(own), 4) for name, own in seconds.items()}}


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        record = stalls(Path(folder))
    RECORD.write_text(json.dumps(record) + "\n", "utf-8")


if __name__ == "__main__":
    main()
