"""Roles on ranks of their own: one half of the ranks writes answers while the other half learns
from those of the step before.

    torchrun --nproc-per-node 2 -m layer3_system.rl --placement split --updates 8

W: all ranks   writers: ranks 0 to W/2 - 1, with an engine   learners: the other ranks
Nothing goes through a file.
Answers travel as JSON.
Weights travel from bands of rows, as learners keep them, to the layout of serving, by the plan of
s32.
The loop is for two ranks: one writes, one learns.
Weights are delivered between larger halves too, of at most one rank for each kv head.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from layer2_graph import Config, Tokenizer, read_config, read_weights
from layer2_graph.models import SMALL
from layer3_system.rl.layout import Piece, Place, matrices, moved, part, serving_layout, window
from layer3_system.rl.loop import Learning, Options, Parts, UpdateRecord
from layer3_system.rl.roles import Answer, Rollout
from layer3_system.s22_tensor_parallel import check_ranks
from layer3_system.s32_rl_placement import apply_plan, reshard_plan

NOTHING: Place = (0, 0), (0, 0)
DRAFT = SMALL.parent / "draft"


def half(W: int) -> int:
    """How many ranks write, and how many learn.
    ValueError where W ranks have no two halves"""
    if W < 2 or W % 2:
        raise ValueError(f"placement split: expected an even number of ranks, 2 or more, found {W}")
    return W // 2


# ---- weights


def delivery(m: Config, W: int) -> dict[str, list[Piece]]:
    """{weight: the plan by which it goes from the learners to the writers}. ValueError where they
    cannot share the model"""
    n = half(W)
    check_ranks(m, n)
    if n > m.G:
        raise ValueError(f"placement split: expected at most {m.G} ranks that write, one for each "
                         f"kv head, found {n}: each head would lie on several")
    return {name: [(n + source, target, place) for source, target, place
                   in reshard_plan(shape, "fsdp", serving_layout(name), n)]
            for name, shape in matrices(m).items()}


def delivered_bytes(m: Config, W: int) -> int:
    """What a delivery sends in fp32: every piece changes its rank."""
    return 4 * sum(moved(plan) for plan in delivery(m, W).values())


def places(layout: str, shape: tuple[int, int], rank: int, W: int) -> tuple[Place, Place]:
    """Where this rank's part lies before a delivery, and after it."""
    n = half(W)
    if rank < n:
        return NOTHING, part(layout, shape, rank, n)
    return part("fsdp", shape, rank - n, n), NOTHING


def deliver(m: Config, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """New weights for the writers.
    All ranks call it.

    weights: a learner's own, of which its bands are sent; a writer's are not read
    Returns a writer's parts in the layout of serving; those of a learner have no numbers.
    """
    rank = dist.get_rank()
    W = dist.get_world_size()
    parts = {}
    for name, plan in delivery(m, W).items():
        shape = matrices(m)[name]
        here, there = places(serving_layout(name), shape, rank, W)
        whole = weights[name].detach().view(shape)
        own = window(whole, ((0, shape[0]), (0, shape[1])), here)
        row = apply_plan(plan, own, here, there)
        parts[name] = row.flatten() if weights[name].ndim == 1 else row
    return parts


# ---- answers


class Sending(NamedTuple):
    """Tensors on their way, which must live until they are there."""

    tensors: list[Tensor]
    calls: list[dist.Work]

    def wait(self) -> None:
        for call in self.calls:
            call.wait()


def send_answers(answers: list[Answer], target: int) -> Sending:
    """Begin to send answers: their length, then JSON, which keeps every bit of a float."""
    data = torch.frombuffer(bytearray(json.dumps(answers).encode()), dtype=torch.uint8)
    tensors = [torch.tensor([len(data)]), data]
    return Sending(tensors, [dist.isend(tensor, target) for tensor in tensors])


def receive_answers(source: int) -> list[Answer]:
    """The next answers from a rank."""
    length = torch.zeros(1, dtype=torch.long)
    dist.recv(length, source)
    data = torch.empty(int(length), dtype=torch.uint8)
    dist.recv(data, source)
    return [Answer(*each) for each in json.loads(bytes(data.tolist()))]


# ---- the loop


class Learner(Learning):
    """The half that learns: answers come from the other rank, and weights go there."""

    def __init__(self, options: Options, parts: Parts, updates: int, folder: Path) -> None:
        super().__init__(options, parts, folder)
        del self.rollout                        # the other rank has it
        self.updates = updates

    def write(self) -> list[Answer]:
        return receive_answers(0)

    def deliver(self) -> None:
        """Weights after update u write the answers of update u + 2: the last two are not sent."""
        if self.actor.version < self.updates - 1:
            deliver(self.actor.model.m, self.actor.weights)


def write_all(options: Options, updates: int, folder: Path) -> None:
    """The half that writes: the answers of each update, with the newest weights that have come."""
    m = read_config(folder)
    rollout = Rollout(m, read_weights(folder, m, torch.float32, "cpu"), Tokenizer(folder, m))
    sending = Sending([], [])
    for step in range(updates):
        if step > 1:
            rollout.load_weights(deliver(m, rollout.weights), step - 1)
        answers = rollout.write(list(options.roles), options.G, 10_000 * options.seed + step)
        sending.wait()
        sending = send_answers(answers, 1)
    sending.wait()


def run(options: Options, parts: Parts, updates: int,
        report: Callable[[UpdateRecord], None], folder: Path = DRAFT) -> Learner | None:
    """Some updates, by two ranks that both call it.
    The rank that learns reports each, and gets its Learner at the end; the other gets None.
    ValueError unless there are two ranks"""
    if dist.get_world_size() != 2:
        raise ValueError(f"placement split: expected 2 ranks, one that writes and one that learns, "
                         f"found {dist.get_world_size()}")
    options = replace(options, age=1)
    if dist.get_rank() == 0:
        write_all(options, updates, folder)
        return None
    learner = Learner(options, parts, updates, folder)
    for _ in range(updates):
        report(learner.step())
    return learner
