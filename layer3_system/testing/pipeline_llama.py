"""A small Llama cut in stages, for a training step by the exercises of s23.

A micro-batch is one sequence of T_j tokens.
V: vocabulary  C: model width
"""

from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from day02_overview.autograd_memory import TorchLlama
from lab.remote.recorder import mark
from layer3_system.pipeline import Schedule, Stage, run_schedule, split_layers
from layer3_system.s23_pipeline_parallel import backward_step, forward_step
from layer3_system.testing import training_models
from layer3_system.testing.training_models import IGNORED, llama_batch

MODEL = replace(training_models.MODEL, L=4, tied=False)     # one head, on one stage
SEED = 0


class Head(nn.Module):
    """The last norm, and the logits."""

    def __init__(self, model: TorchLlama) -> None:
        super().__init__()
        self.norm = model.norm
        self.head = model.head

    def forward(self, x: Tensor) -> Tensor:                 # (1, T_j, C) -> (1, T_j, V)
        return self.head(self.norm(x, {}))


class Part(nn.Module):
    """Consecutive units of a model: the embedding is one, each layer, and the head."""

    def __init__(self, units: list[nn.Module]) -> None:
        super().__init__()
        self.units = nn.Sequential(*units)

    def forward(self, x: Tensor) -> Tensor:                 # (T_j,) or (T_j, C) -> (T_j, C or V)
        return self.units(x[None])[0]


def whole_model() -> TorchLlama:
    """The same weights on every rank that calls it."""
    torch.manual_seed(SEED)
    return TorchLlama(MODEL)


def part(i: int, p: int) -> Part:
    """Stage i of p; the units are cut by how many weights they multiply with."""
    model = whole_model()
    units = [model.embedding, *model.layers, Head(model)]
    costs = [0, *(sum(w.numel() for w in unit.parameters()) for unit in units[1:])]
    return Part([units[u] for u in split_layers(costs, p)[i]])


def token_rows(sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Tokens and targets of all sequences, one after the other, 2 × (T,)."""
    tokens, targets = llama_batch(sizes, SEED)              # (B, longest), padded
    return tokens[targets != IGNORED], targets[targets != IGNORED]


cross_entropies = partial(F.cross_entropy, reduction="sum")     # (T_j, V), (T_j,) -> ()


def train_llama(schedule: Schedule, sizes: list[int]) -> dict:
    """This rank's part of a training step, without the optimiser, on sequences of these lengths:
    its loss (on the last stage), gradients, and the most micro-batches kept."""
    i = dist.get_rank()
    p = dist.get_world_size()
    tokens, targets = token_rows(sizes)
    layers = part(i, p)
    stage = Stage(i, p, layers, sizes, MODEL.C, tokens, targets, errors=cross_entropies)
    peak, _ = run_schedule(stage, schedule, {"F": forward_step, "B": backward_step})
    return {"loss": stage.total, "gradients": [w.grad for w in layers.parameters()], "peak": peak}


def train_library(name: str, sizes: list[int]) -> dict:
    """As train_llama, by PyTorch's own schedule, "GPipe" or "1F1B", on sequences of one length: it
    cuts a batch into equal parts."""
    from torch.distributed import pipelining  # seconds: it imports a compiler

    i = dist.get_rank()
    p = dist.get_world_size()
    tokens, targets = token_rows(sizes)
    layers = part(i, p)
    stage = pipelining.PipelineStage(layers, i, p, torch.device("cpu"))
    kind = {"GPipe": pipelining.ScheduleGPipe, "1F1B": pipelining.Schedule1F1B}[name]
    schedule = kind(stage, len(sizes), lambda y, t: cross_entropies(y, t) / len(tokens),
                    scale_grads=False)
    losses: list[Tensor] = []
    inputs = [tokens] if i == 0 else []
    schedule.step(*inputs, target=targets if i == p - 1 else None, losses=losses)
    return {"loss": sum(loss.item() for loss in losses),
            "gradients": [w.grad for w in layers.parameters()]}


def beside_library(schedules: dict[str, Schedule], sizes: list[int]) -> dict[str, dict]:
    """{name, and "name of PyTorch": this rank's part of the step}, in one run."""
    steps = {}
    for name, schedule in schedules.items():
        mark(name)
        steps[name] = train_llama(schedule, sizes)
        mark(f"{name} of PyTorch")
        steps[f"{name} of PyTorch"] = train_library(name, sizes)
    return steps


def train_alone(sizes: list[int]) -> tuple[float, list[Tensor]]:
    """Loss and gradients of the same step in one process: one padded batch, in float64."""
    model = whole_model().double()
    loss = model(*llama_batch(sizes, SEED))                 # the mean over all tokens
    loss.backward()
    return loss.item(), [w.grad for w in model.parameters()]
