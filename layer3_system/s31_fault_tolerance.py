"""s31 · When ranks die: what a checkpoint holds, when it exists, how often to make one

W: ranks   P: parameters   δ: seconds that a save stops training   τ: seconds between saves
M: mean seconds between two failures of the whole job
A save is of all that the next step needs, and each rank writes 1/W of it.
A share δ/τ + τ/(2·M) of the time is lost.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from layer3_system.checkpoint import (
    Files,
    digest,
    manifest_name,
    read_manifest,
    shard_name,
    step_of,
    write_manifest,
)
from layer3_system.training.group import Group
from layer3_system.training.run import ShardedRun, TrainingRun

__all__ = ["Saver", "capture", "commit", "last_good", "restore"]


def predict_minutes_between_saves() -> float:
    """The best τ, in minutes: 128 machines, each fails once a year, and a save takes a minute."""
    # exercise: how often does one of 128 fail? Then the τ at which δ/τ + τ/(2·M) is least
    M = 365 * 24 * 60 / 128
    return (2 * 1 * M) ** 0.5


def predict_bytes_a_rank() -> int:
    """What each of 64 ranks writes of a model of 8 billion parameters, trained by Adam in fp32."""
    # exercise: what does the next step need of each parameter, and what does it make itself?
    return 12 * 8 * 10 ** 9 // 64


# ---- what there is to lose


def capture(run: TrainingRun | ShardedRun) -> dict[str, Any]:
    """A copy of all that the next step of a run depends on.

    {"weights", "m", "v": {name: Tensor}, "step": int, "place": dict, "generator": Tensor}
    """
    # exercise: copies, which stay as they are when the run goes on
    return {"weights": {name: w.detach().clone() for name, w in run.weights.items()},
            "m": {name: mean.clone() for name, mean in run.m.items()},
            "v": {name: mean.clone() for name, mean in run.v.items()},
            "step": run.step,
            "place": run.data.place(),
            "generator": run.generator.get_state()}


def restore(run: TrainingRun | ShardedRun, state: dict[str, Any]) -> None:
    """Put a state into a run.
    ValueError where an entry or a tensor is not as the run has it"""
    if missing := {"weights", "m", "v", "step", "place", "generator"} - set(state):
        raise ValueError(f"restore: the state has no entry {', '.join(sorted(missing))}")
    for part, own in (("weights", run.weights), ("m", run.m), ("v", run.v)):
        for name, tensor in own.items():
            if name not in state[part] or state[part][name].shape != tensor.shape:
                other = state[part][name].numel() if name in state[part] else "no"
                raise ValueError(f"restore: {part} of {name} has {other} numbers, the run's has "
                                 f"{tensor.numel()}")
            tensor.data.copy_(state[part][name])
    run.step = state["step"]
    run.data.seek(state["place"])
    run.generator.set_state(state["generator"])


# ---- when a checkpoint exists


def commit(files: Files, group: Group, step: int, data: bytes) -> None:
    """Make a checkpoint of a step of all ranks' data; every rank calls it with its own.

    When it returns on any rank, the checkpoint is there whatever happens.
    Whenever it is stopped before that, the manifest's name is not there or the checkpoint is whole.
    `sync` keeps a new file's first name, as on ext4 and XFS.
    POSIX does not promise that: to be portable, sync the folder before the rename as well.
    """
    # exercise: a shard that is on the disk; then one rank makes the manifest; no rank leaves early
    shard = shard_name(step, group.rank)
    files.write(shard, data)
    files.sync(shard)
    digests = group.gather(digest(data))
    if group.rank == 0:
        part = f"{manifest_name(step)}.part"
        files.write(part, write_manifest(step, digests))
        files.sync(part)
        files.rename(part, manifest_name(step))
        files.sync_folder()
    group.gather(None)


def last_good(files: Files) -> int | None:
    """The newest step whose manifest can be read and whose shards are all as it says; None if there
    is none.
    Foreign, cut and missing files are no errors."""
    # exercise: the steps that have a manifest, newest first; a fault in one does not end the search
    steps = {step_of(name) for name in files.names()} - {None}
    for step in sorted(steps, reverse=True):
        try:
            manifest = read_manifest(files.read(manifest_name(step)))
            shards = [digest(files.read(shard_name(step, r))) == own
                      for r, own in enumerate(manifest.digests)]
        except (FileNotFoundError, ValueError):
            continue
        if manifest.step == step and all(shards):
            return step
    return None


# ---- without waiting


class Saver:
    """Saves that are written while training goes on, one at a time.

    snapshot(): a copy of the state.  write(step, state): makes a checkpoint of one; may take long
    pool: of one thread.  pending: the write that was begun last, or None
    """

    def __init__(self, snapshot: Callable[[], Any], write: Callable[[int, Any], None],
                 pool: Executor) -> None:
        self.snapshot = snapshot
        self.write = write
        self.pool = pool
        self.pending: Future | None = None

    def wait(self) -> None:
        """Until what was begun is written; raises its error, once."""
        pending = self.pending
        self.pending = None
        if pending is not None:
            pending.result()

    def save(self, step: int) -> None:
        """Begin to save the state as it is now, and return.
        First it waits for the write before, so that there is one copy at a time.
        If that failed, its error is raised, and nothing begun.
        """
        # exercise: wait, take the state as it is now, and let the pool write it
        self.wait()
        state = self.snapshot()
        self.pending = self.pool.submit(self.write, step, state)
