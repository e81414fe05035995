"""A training step of one Llama by plans of s26, on each rank, by the code of s21, s22, s23 and s25.

W: ranks   T: tokens of a sequence   C, H, G, F, V, L: r03's letters
A plan has one kind of parallelism: the lessons' code talks to all ranks, not to groups of them.
Weights, gradients and what is sent have 4 bytes a number.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from day01_roofline import LlamaShape
from layer3_system.context import Attend, zigzag
from layer3_system.pipeline import Stage, run_schedule, split_layers
from layer3_system.planner import TrainingPlan
from layer3_system.s21_data_parallel import Adam, adam_, flatten, unflatten_into
from layer3_system.s22_tensor_parallel import GatherTokens, vocabulary_loss
from layer3_system.s23_pipeline_parallel import (
    backward_step,
    forward_step,
    one_forward_one_backward,
)
from layer3_system.s25_context_parallel import Ring
from layer3_system.testing.pipeline_llama import Head
from layer3_system.testing.tensor_driver import ScatterTokens
from layer3_system.testing.training_models import TrainLayer, TrainLlama, direct
from layer3_system.testing.training_stages import LIMIT, LR, STAGES

SEED = 0
CAPACITY = 600_000      # numbers in a bucket of gradients
Step = Callable[[], float]                      # a step of training on this rank: the loss


def draw_batch(m: LlamaShape, batch: int, T: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets, 2 × (batch, T), the same on every rank."""
    lines = torch.randint(m.V, (batch, T + 1), generator=torch.Generator().manual_seed(SEED))
    return lines[:, :-1], lines[:, 1:]


class RingLayer(TrainLayer):
    """Attention of all ranks' tokens, which lie in zigzag."""

    def fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:     # (B, H, n, D) -> the same
        B = len(q)
        rows = [x.permute(2, 0, 1, 3).flatten(1, 2) for x in (q, k, v)]     # (n, B · H or G, D)
        out = Ring.apply(*rows, Attend(self.m.D ** -0.5))
        return out.unflatten(1, (B, -1)).permute(1, 2, 0, 3)


class PlanLlama(TrainLlama):
    """With a head of its own, so that it can be cut in stages.
    The same weights on every rank."""

    def __init__(self, m: LlamaShape, kind: type[TrainLayer] = TrainLayer) -> None:
        torch.manual_seed(SEED)
        super().__init__(m)
        for i, layer in enumerate(self.layers):
            own = kind(m)
            own.load_state_dict(layer.state_dict())
            self.layers[i] = own

    def forward(self, batch: tuple, run: Callable = direct) -> Tensor:
        tokens, targets = batch                             # (B, T), (B, T)
        x = self.embedding(tokens)                          # (B, T, C)
        for layer in self.layers:
            x = run(layer, x)
        logits = self.head(self.norm(x, {}))                # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def update(parameters: list[Tensor], state: Adam, copies: list[int]) -> None:
    """A step of Adam on this rank's parameters. copies: on how many ranks each of them is"""
    squares = torch.stack([p.grad.square().sum() / n
                           for p, n in zip(parameters, copies, strict=True)]).sum()
    dist.all_reduce(squares)
    flat = flatten([p.detach() for p in parameters], 1)
    gradient = flatten([p.grad for p in parameters], 1)
    adam_(flat, gradient * min(1, LIMIT / (squares.sqrt().item() + 1e-8)), state, LR)
    with torch.no_grad():
        unflatten_into(flat, parameters)


# ---- DP with a stage of ZeRO, and CP


def by_data(m: LlamaShape, plan: TrainingPlan, tokens: Tensor, targets: Tensor) -> Step:
    """s21: each rank has sequences of its own; or, with cp, s25's part of each."""
    r = dist.get_rank()
    if plan.cp > 1:
        own = zigzag(tokens.shape[1], plan.cp)[r]
        batch = tokens[:, own], targets[:, own]
    else:
        batch = tokens[r::plan.dp], targets[r::plan.dp]
    model = PlanLlama(m, RingLayer if plan.cp > 1 else TrainLayer)
    stage = STAGES[plan.zero](model, CAPACITY)
    return lambda: stage.step(batch)[0]


# ---- TP


class TensorLayer(TrainLayer):
    """This rank's heads, and its part of the MLP.
    Between matrices it has some of the tokens."""

    def forward(self, x: Tensor) -> Tensor:                 # (T / n, B, C) -> (T / n, B, C)
        x = x + self.band(self.norm, self.attention, x)
        x = x + self.band(self.norm2, self.mlp, x)
        self.arrays = {}
        return x

    def band(self, norm: nn.Module, block: Callable, x: Tensor) -> Tensor:
        y = GatherTokens.apply(norm(x, {}))                 # (T, B, C)
        return ScatterTokens.apply(block(y.transpose(0, 1)).transpose(0, 1).contiguous())


def band_shape(m: LlamaShape, n: int) -> LlamaShape:
    """What one of n ranks has of a Llama: heads, width of the MLP, vocabulary."""
    return replace(m, H=m.H // n, G=m.G // n, F=m.F // n, V=m.V // n)


class TensorLlama(TrainLlama):
    """This rank's bands of a PlanLlama."""

    def __init__(self, m: LlamaShape) -> None:
        super().__init__(band_shape(m, dist.get_world_size()))
        self.layers = nn.ModuleList(TensorLayer(layer.m) for layer in self.layers)
        self.load_state_dict({name: band(name, w) for name, w in
                              PlanLlama(m).state_dict().items()})

    def backward(self, tokens: Tensor, targets: Tensor, count: int) -> float:   # 2 × (B, T)
        """Gradients of a micro-batch, added, and its loss. count: tokens of the step"""
        rows = len(self.embedding.weight)
        first = dist.get_rank() * rows
        local = tokens.T - first                                                # (T, B)
        strange = (local < 0) | (local >= rows)
        x = self.embedding(local.masked_fill(strange, 0)) * ~strange[..., None]
        x = ScatterTokens.apply(x)                                              # (T / n, B, C)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(GatherTokens.apply(self.norm(x, {}))).flatten(0, 1)  # (T · B, V / n)
        losses, gradient = vocabulary_loss(logits.detach(), targets.T.flatten(), first)
        logits.backward(gradient / count)
        return losses.sum().item() / count


def band(name: str, weight: Tensor) -> Tensor:
    """This rank's part of a weight: rows, columns of those that add up, a norm whole."""
    if "norm" in name:
        return weight
    dim = 1 if name.endswith(("o.weight", "down.weight")) else 0
    return weight.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def by_tensors(m: LlamaShape, plan: TrainingPlan, tokens: Tensor, targets: Tensor) -> Step:
    """s22: bands of every matrix, with sequence parallelism."""
    model = TensorLlama(m)
    parameters: list[Tensor] = list(model.parameters())
    norms = [p for p in parameters if p.ndim == 1]          # whole on every rank
    state = Adam(flatten(parameters, 1))

    def step() -> float:
        model.zero_grad()
        loss = sum(model.backward(*rows, tokens.numel()) for rows in
                   zip(tokens.split(plan.B), targets.split(plan.B), strict=True))
        total = flatten([p.grad for p in norms], 1)
        dist.all_reduce(total)                              # each rank saw some of the tokens
        unflatten_into(total, [p.grad for p in norms])
        update(parameters, state, [plan.tp if p.ndim == 1 else 1 for p in parameters])
        return loss

    return step


# ---- PP


class Part(nn.Module):
    """A stage of a PlanLlama, for sequences of T tokens one after the other."""

    def __init__(self, units: list[nn.Module], T: int) -> None:
        super().__init__()
        self.units = nn.Sequential(*units)
        self.T = T

    def forward(self, x: Tensor) -> Tensor:                 # (B · T,) or (B · T, C) -> (B · T, …)
        return self.units(x.unflatten(0, (-1, self.T))).flatten(0, 1)


cross_entropies = partial(F.cross_entropy, reduction="sum")     # (T_j, V), (T_j,) -> ()


def by_stages(m: LlamaShape, plan: TrainingPlan, tokens: Tensor, targets: Tensor) -> Step:
    """s23: layers in stages, and micro-batches by 1F1B."""
    r = dist.get_rank()
    batch, T = tokens.shape
    model = PlanLlama(m)
    units = [model.embedding, *model.layers, Head(model)]
    costs = [0, *(sum(w.numel() for w in unit.parameters()) for unit in units[1:])]
    part = Part([units[u] for u in split_layers(costs, plan.pp)[r]], T)
    parameters: list[Tensor] = list(part.parameters())
    state = Adam(flatten(parameters, 1))
    M = plan.micro_batches(batch)

    def step() -> float:
        part.zero_grad()
        stage = Stage(r, plan.pp, part, [plan.B * T] * M, m.C, tokens.flatten(), targets.flatten(),
                      errors=cross_entropies)
        run_schedule(stage, one_forward_one_backward(r, plan.pp, M),
                     {"F": forward_step, "B": backward_step})
        update(parameters, state, [1] * len(parameters))
        loss = torch.tensor(stage.total)
        dist.all_reduce(loss)
        return loss.item()

    return step


def make_step(m: LlamaShape, plan: TrainingPlan, batch: int, T: int) -> Step:
    """The step of a plan on this rank, one of all.
    ValueError for a plan of two kinds."""
    kinds = [size for size in (plan.dp, plan.tp, plan.pp, plan.cp) if size > 1]
    if kinds != [dist.get_world_size()]:
        raise ValueError(f"make_step: expected one kind of parallelism on all "
                         f"{dist.get_world_size()} ranks, found {plan}")
    way = by_tensors if plan.tp > 1 else by_stages if plan.pp > 1 else by_data
    return way(m, plan, *draw_batch(m, batch, T))


def losses(m: tuple, plan: tuple, batch: int, T: int, count: int) -> list[float]:
    """Of some steps. m, plan: the fields of a Llama and of a TrainingPlan, in order"""
    step = make_step(LlamaShape(*m), TrainingPlan(*plan), batch, T)
    return [step() for _ in range(count)]
