"""Given code round the exercises of s23, run on each rank.
Layers: tanh(x @ w.T + b)

A stage's arguments are its schedule, sizes (tokens T_j of each micro-batch), its layers [(w, b)],
what its inputs are (T, C), and the targets (T, C) on the last stage, None elsewhere.
"""

import time
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from layer3_system.pipeline import Schedule, Stage, Times, run_schedule
from layer3_system.s23_pipeline_parallel import backward_step, forward_step

Layers = list[tuple[Tensor, Tensor]]        # of one stage: weight (C, C), bias (C,)


def build_stage(sizes: list[int], layers: Layers, batch: Tensor | None,
                targets: Tensor | None) -> Stage:
    """This rank's Stage, with weights of its own."""
    modules: list[nn.Module] = []
    for weight, bias in layers:
        linear = nn.Linear(*weight.T.shape)
        linear.weight = nn.Parameter(weight.clone())
        linear.bias = nn.Parameter(bias.clone())
        modules += [linear, nn.Tanh()]
    return Stage(dist.get_rank(), dist.get_world_size(), nn.Sequential(*modules), sizes,
                 layers[0][0].shape[1], batch, targets)


def gradients(stage: Stage) -> list[Tensor | None]:
    """Of the stage's weights and biases, in order."""
    return [parameter.grad for parameter in stage.layers.parameters()]     # type: ignore


def forward_alone(schedule: Schedule, sizes: list[int], layers: Layers, inputs: Tensor,
                  targets: Tensor | None) -> dict:
    """forward_step in a schedule whose backwards only pass a tensor up, in sends that wait.

    kept: {micro-batch: (input, output, whether each has a gradient to come)} at the end
    """
    stage = build_stage(sizes, layers, inputs if dist.get_rank() == 0 else None, targets)
    _, sends = run_schedule(stage, schedule, {"F": forward_step, "B": pass_up})
    pairs = {j: (x.detach(), y.detach(), x.requires_grad, y.requires_grad)
             for j, (x, y) in stage.kept.items()}
    return {"kept": list(pairs.items()), "total": stage.total, "sends": sends}


def pass_up(stage: Stage, j: int) -> None:
    """Stands for a backward: waits for the next stage, and in its own send to the one before."""
    tensor = torch.zeros(stage.sizes[j], stage.C)
    if not stage.last:
        dist.recv(tensor, stage.i + 1)
    if not stage.first:
        dist.send(tensor, stage.i - 1)


def backward_alone(schedule: Schedule, sizes: list[int], layers: Layers, inputs: Tensor,
                   targets: Tensor | None) -> dict:
    """backward_step in a schedule whose forwards compute from the stage's own inputs, and only
    pass a tensor down, in sends that wait."""
    stage = build_stage(sizes, layers, None, targets)

    def forward(stage: Stage, j: int) -> None:
        tensor = torch.zeros(sizes[j], stage.C)
        if not stage.first:
            dist.recv(tensor, stage.i - 1)
        x = inputs.split(sizes)[j].clone().requires_grad_()
        y = stage.layers(x)
        stage.kept[j] = x, stage.loss(y, j) if stage.last else y
        if not stage.last:
            dist.send(tensor, stage.i + 1)

    peak, sends = run_schedule(stage, schedule, {"F": forward, "B": backward_step})
    return {"gradients": gradients(stage), "peak": peak, "sends": sends, "left": len(stage.kept)}


def sleep(schedule: Schedule, seconds: dict[str, float], chunks: int = 1
          ) -> list[tuple[tuple[str, int, int], tuple[float, float]]]:
    """When this rank did each action, in seconds of the machine's clock, where computing is
    sleeping: few cores then show what many machines do.
    An action waits for its input, sleeps, and sends 16 numbers on.

    seconds: by kind, of a rank's layers; a chunk takes its share
    """
    stage = Stage(dist.get_rank(), dist.get_world_size(), nn.Identity(), [1], 16)
    stages = range(stage.p * chunks)
    times: Times = {}

    def step(kind: str, stage: Stage, j: int, chunk: int = 0) -> None:
        s = stage.i + stage.p * chunk
        way = {"F": 1, "B": -1, "W": 0}[kind]
        tensor = torch.zeros(16)
        if way and s - way in stages:
            dist.recv(tensor, (s - way) % stage.p, tag=tag_of(kind, s, j))
        start = time.monotonic()
        time.sleep(seconds[kind] / chunks)
        times[kind, s, j] = start, time.monotonic()
        if way and s + way in stages:
            work = dist.isend(tensor, (s + way) % stage.p, tag=tag_of(kind, s + way, j))
            stage.flights.append((tensor, work))

    def tag_of(kind: str, s: int, j: int) -> int:
        """Another one for each message: of the action that waits for it."""
        return 2 * (j * len(stages) + s) + (1 if kind == "B" else 0)

    run_schedule(stage, schedule, {kind: partial(step, kind) for kind in seconds})
    return list(times.items())
