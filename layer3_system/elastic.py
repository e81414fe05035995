"""A training on several ranks that goes on after any of them was killed:

    torchrun --nproc-per-node 2 --max-restarts 3 -m layer3_system.elastic --save DIR --steps 60

torchrun starts all ranks again when one ends.
They go on from the last good checkpoint in DIR, also where there are more or fewer of them than
wrote it.
Where exercises of s31 have passed on the desk, their functions do it.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

import lab
from lab import device
from lab.remote.agreement import need_torchrun
from layer3_system import s31_fault_tolerance
from layer3_system.checkpoint import Folder, manifest_name, pack, shard_name
from layer3_system.training.group import GlooGroup
from layer3_system.training.loop import TrainingError
from layer3_system.training.resume import choose, read_state, steps
from layer3_system.training.run import ShardedRun

LESSON = "s31_fault_tolerance"
NEWEST = 2              # checkpoints that stay; older ones are deleted


class Parts(NamedTuple):
    """What a training is saved by: the course's, or others of the same signatures."""

    capture: Callable[..., dict[str, Any]] = s31_fault_tolerance.capture
    commit: Callable[..., None] = s31_fault_tolerance.commit
    last_good: Callable[..., int | None] = s31_fault_tolerance.last_good
    Saver: Callable[..., Any] = s31_fault_tolerance.Saver

    @classmethod
    def own(cls) -> "Parts":
        """The learner's where they passed on this version of the course, else the course's."""
        each = {name: lab.candidate_function(LESSON, name) for name in cls._fields}
        return cls(**{name: part for name, part in each.items() if part is not None})


def remove_old(files: Folder, newest: int, saved: int) -> None:
    """Delete all but the newest checkpoints up to the one that was just saved, each manifest before
    its shards.
    Later ones are damaged, or training would go on from there; they stay."""
    for step in [step for step in steps(files) if step <= saved][newest:]:
        files.remove(manifest_name(step))
        for name in files.names():
            if name.startswith(shard_name(step, 0)[:-1]):
                files.remove(name)


class Job:
    """This rank's training and its saves. files: where checkpoints are, of all ranks"""

    def __init__(self, files: Folder, parts: Parts, asynchronous: bool) -> None:
        self.files = files
        self.parts = parts
        self.asynchronous = asynchronous
        self.group = GlooGroup()
        self.run = ShardedRun()
        self.saver = parts.Saver(lambda: parts.capture(self.run), self.write,
                                 ThreadPoolExecutor(1))

    def write(self, step: int, state: dict[str, Any]) -> None:
        """Make a checkpoint, on all ranks together."""
        self.parts.commit(self.files, self.group, step, pack(state | {"count": self.run.count}))
        if self.group.rank == 0:
            remove_old(self.files, NEWEST, step)

    def say(self, words: str) -> None:
        print(f"rank {self.group.rank}: {words}", file=sys.stderr, flush=True)

    def resume(self) -> None:
        """Go on from the last good checkpoint, if there is one.
        All ranks take the same."""
        own = choose(self.files, self.parts.last_good, self.say) if self.group.rank == 0 else None
        step = self.group.gather(own)[0]
        if step is not None:
            state = read_state(self.files, step, self.group.rank, self.group.size, self.run.count)
            s31_fault_tolerance.restore(self.run, state)
            self.run.spread()

    def save(self) -> None:
        """OSError where this save or the one before could not be written."""
        self.saver.save(self.run.step)
        if not self.asynchronous:
            self.saver.wait()

    def train(self, last: int, every: int, losses: Path | None) -> None:
        """Steps until the last; rank 0 writes each loss to a file, with all its bits."""
        while self.run.step < last:
            step = self.run.step
            loss = self.run.train(1)[0]
            if losses is not None and self.group.rank == 0:
                with open(losses, "a") as file:
                    file.write(json.dumps({"step": step, "loss": loss.hex()}) + "\n")
            if self.run.step % every == 0 or self.run.step == last:
                self.save()
        self.saver.wait()


def meet() -> None:
    """Join the other ranks. torchrun keeps one store of addresses over its restarts: under a name
    of this start, none is that of a rank that was killed."""
    need_torchrun(LESSON)
    store, rank, size = next(iter(rendezvous("env://")))
    dist.init_process_group("gloo", store=dist.PrefixStore(f"start {device.restarts()}", store),
                            rank=rank, world_size=size)


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--save", type=Path, required=True, help="a folder for checkpoints")
    parser.add_argument("--steps", type=int, default=60, help="steps of the whole training")
    parser.add_argument("--every", type=int, default=5, help="steps between saves")
    parser.add_argument("--losses", type=Path, help="a file of losses, one a line")
    parser.add_argument("--waiting", action="store_true", help="training waits for each save")
    parser.add_argument("--pause", type=float, default=0.0,
                        help="seconds in the middle of each write: a slow disk, for tests")
    options = parser.parse_args()
    if options.every < 1:
        parser.error(f"--every: expected a number of steps, found {options.every}")
    if options.losses and options.losses.resolve().is_relative_to(options.save.resolve()):
        parser.error(f"--losses: expected a file beside {options.save}, which holds checkpoints "
                     f"alone; found {options.losses}")
    return options


def folder_of(options: argparse.Namespace) -> Folder:
    """The folder for checkpoints.
    SystemExit where there can be none."""
    try:
        return Folder(options.save, options.pause)
    except OSError as error:
        raise SystemExit(f"--save {options.save}: expected a folder, {error.strerror}") from None


def main() -> None:
    options = options_of()
    torch.set_num_threads(1)                # sums in one order
    meet()
    files = folder_of(options)
    job = Job(files, Parts.own(), not options.waiting)
    code = 0
    try:
        lock = files.lock() if job.group.rank == 0 else None
        job.resume()
        job.train(options.steps, options.every, options.losses)
        if lock is not None:
            os.close(lock)
    except TrainingError as error:
        code = 3
        job.say(f"{error}; the last good step is {job.parts.last_good(files)}")
    except OSError as error:
        code = 3
        job.say(f"not saved: {error}; the last good step is {job.parts.last_good(files)}")
    except ValueError as error:
        code = 2
        job.say(f"{options.save}: {error}")
    if code:
        sys.stderr.flush()
        os._exit(code)                      # the others wait for this rank; torchrun ends them
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
