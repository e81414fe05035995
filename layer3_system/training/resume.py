"""What a training goes on from: a state in pieces, for any number of ranks, and faults in words."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from layer3_system.checkpoint import (
    PARTS,
    Files,
    Manifest,
    digest,
    manifest_name,
    read_manifest,
    shard_name,
    step_of,
    unpack,
)


def manifest_of(files: Files, step: int) -> Manifest | str:
    """The manifest of a step, or what is wrong with it."""
    try:
        manifest = read_manifest(files.read(manifest_name(step)))
    except (FileNotFoundError, ValueError) as error:
        return f"step {step}: {error}"
    if manifest.step != step:
        return f"step {step}: its manifest is that of step {manifest.step}"
    return manifest


def fault(files: Files, step: int) -> str | None:
    """What is wrong with the checkpoint of a step, in words; None if it is whole."""
    manifest = manifest_of(files, step)
    if isinstance(manifest, str):
        return manifest
    for r, expected in enumerate(manifest.digests):
        words = f"step {step}: shard {r} of {len(manifest.digests)}"
        try:
            data = files.read(shard_name(step, r))
        except FileNotFoundError:
            return f"{words} is not there"
        size = int(expected.partition(":")[0])
        if digest(data) != expected:
            if source := owner(files, digest(data)):
                return f"{words} is that of step {source}"
            if len(data) != size:
                return f"{words} has {len(data):,} bytes, its manifest says {size:,}"
            return f"{words} has other bytes than its manifest says"
    return None


def owner(files: Files, own: str) -> int | None:
    """The step whose manifest has this digest; None if there is none."""
    for step in steps(files):
        manifest = manifest_of(files, step)
        if isinstance(manifest, Manifest) and own in manifest.digests:
            return step
    return None


def steps(files: Files) -> list[int]:
    """All that have a manifest, the newest first."""
    return sorted((step for name in files.names() if (step := step_of(name)) is not None),
                  reverse=True)


def choose(files: Files, last_good: Callable[[Files], int | None],
           report: Callable[[str], None]) -> int | None:
    """The step to go on from, None in a folder without checkpoints; faults of newer ones are
    reported.
    ValueError where there are files of checkpoints, and none is whole"""
    step = last_good(files)
    every = steps(files)
    faults = [words for each in every if step is None or each > step
              if (words := fault(files, each))]
    if step is None and every:
        raise ValueError(f"{len(every)} checkpoints, none whole: {'; '.join(faults)}; another "
                         f"folder begins at step 0")
    others = sorted(set(files.names()))
    if step is None and others and not any(name.startswith("step") for name in others):
        raise ValueError(f"no manifest of this course, found {', '.join(others[:3])}; another "
                         f"folder begins at step 0")
    for words in faults:
        report(f"{words}; going on from step {step}")
    return step


def pieces(shards: Callable[[int], Tensor], k: int, begin: int, end: int) -> Tensor:
    """Numbers begin to end - 1 of a row that lies in shards of k numbers each.
    Only shards that overlap are read."""
    first = begin // k
    last = -(-end // k)
    row = torch.cat([torch.zeros(0), *(shards(r) for r in range(first, last))])
    return row[begin - first * k:end - first * k]


def read_state(files: Files, step: int, rank: int, size: int, count: int) -> dict[str, Any]:
    """A rank's state from the checkpoint of a step, whatever number of ranks wrote it.

    count: numbers of the whole model.
    ValueError where the checkpoint is of another model.
    Each number is the one that was saved.
    A rank that has no shard of its own takes the generator of another: with dropout, such a
    training is another from there on.
    """
    W = len(read_manifest(files.read(manifest_name(step))).digests)
    read: dict[int, dict[str, Any]] = {}

    def shard(r: int) -> dict[str, Any]:
        if r not in read:
            read[r] = unpack(files.read(shard_name(step, r)))
        return read[r]

    def own_row(part: str, r: int) -> Tensor:
        return shard(r)[part]["row"]

    state = dict(shard(rank % W))
    if state["count"] != count:
        raise ValueError(f"step {step}: the model that was saved has {state['count']:,} numbers, "
                         f"this one {count:,}")
    if size == W:
        return state
    length = -(-count // size)                              # of a part, padding included
    begin = min(rank * length, count)
    end = min(begin + length, count)
    for part in PARTS:
        k = len(shard(0)[part]["row"])
        row = pieces(partial(own_row, part), k, begin, end)
        state[part] = {"row": torch.cat([row, row.new_zeros(length - len(row))])}
    return state
