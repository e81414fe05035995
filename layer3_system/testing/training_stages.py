"""A step of training at each stage of ZeRO, on each rank.

0 keeps all on every rank, 1 shards the optimiser's part, 2 the gradients, too, 3 the weights, too.
batch: a rank's share of the sequences of a step, as its model takes it
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef

from lab.remote.recorder import mark
from layer3_system.s21_data_parallel import (
    Adam,
    Buckets,
    GatherWeight,
    adam_,
    flatten,
    unflatten_into,
    zero_step,
)
from layer3_system.testing.training_models import Net, TrainLlama

LR = 0.01
LIMIT = 0.5             # for the norm of the gradient


class Stage:
    """Data parallel, all on every rank: stage 0, and what the others change of it."""

    def __init__(self, model: Net | TrainLlama, capacity: int) -> None:
        self.model = model
        self.n = dist.get_world_size()
        self.r = dist.get_rank()
        self.gathered: list[tuple[StorageWeakRef, int]] = []     # whole weights, and their bytes
        self.parts: dict[str, int] = {}         # bytes kept of each part, when gradients are there
        self.peak = 0                           # bytes of whole weights that were there for a layer
        self.parameters: list[Tensor] = list(model.parameters())
        self.prepare(capacity)

    def prepare(self, capacity: int) -> None:
        self.buckets = Buckets(self.parameters, capacity)
        for i, p in enumerate(self.parameters):
            p.register_post_accumulate_grad_hook(lambda p, i=i: self.complete(i))
        self.states = [Adam(flatten(self.parameters, 1))]

    def complete(self, i: int) -> None:
        self.buckets.ready(i)

    def step(self, batch: tuple) -> tuple[float, float]:
        """(loss, norm of the gradient) over all tokens of all ranks."""
        mark("tokens")
        tokens = torch.tensor([float(self.model.count(batch))])
        dist.all_reduce(tokens)
        if not tokens:
            raise ValueError(f"no tokens in this step on any of {self.n} ranks")
        mark("step")
        loss = self.loss(batch) / tokens
        self.backward(loss)
        self.parts = {part: held(rows) for part, rows in self.tensors().items()}
        with torch.no_grad():
            norm = self.update()
        mark("loss")
        total = loss.detach()
        dist.all_reduce(total)
        return total.item(), norm

    def loss(self, batch: tuple) -> Tensor:
        return self.model(batch)

    def backward(self, loss: Tensor) -> None:
        for p in self.parameters:
            p.grad = None
        loss.backward()
        self.buckets.finish()

    def tensors(self) -> dict[str, list[Tensor]]:
        return {"weights": self.parameters, "gradients": [p.grad for p in self.parameters],
                "optimiser": [t for s in self.states for t in (s.master, s.mean, s.variance)]}

    def update(self) -> float:
        flat = flatten(self.parameters, 1)                                  # (P,)
        gradient = flatten([p.grad for p in self.parameters], 1)
        norm = gradient.float().norm().item()
        adam_(flat, gradient * min(1, LIMIT / (norm + 1e-8)), self.states[0], LR)
        unflatten_into(flat, self.parameters)
        return norm

    def weights(self) -> Tensor:                                            # (P,)
        """All weights, as this rank has them."""
        return flatten([p.detach() for p in self.parameters], 1)


class Stage1(Stage):
    """Weights and gradients are views of two rows, and a rank updates its share of the first."""

    def prepare(self, capacity: int) -> None:
        self.flat = flatten([p.detach() for p in self.parameters], self.n)  # (N,)
        self.gradient = torch.zeros_like(self.flat)
        for p, w, g in zip(self.parameters, self.views(self.flat), self.views(self.gradient),
                           strict=True):
            p.data = w
            p.grad = g
        self.states = [Adam(self.flat.view(self.n, -1)[self.r])]

    def views(self, flat: Tensor) -> list[Tensor]:
        sizes = [p.numel() for p in self.parameters]
        return [part.view_as(p) for part, p in zip(flat[:sum(sizes)].split(sizes),
                                                   self.parameters, strict=True)]

    def backward(self, loss: Tensor) -> None:
        self.gradient.zero_()
        loss.backward()

    def tensors(self) -> dict[str, list[Tensor]]:
        return super().tensors() | {"weights": [self.flat], "gradients": [self.gradient]}

    def update(self) -> float:
        return zero_step(self.flat, self.gradient, self.states[0], LR, LIMIT)


class Stage2(Stage):
    """A gradient goes away as soon as it is complete: a rank keeps its shard of the sum."""

    def prepare(self, capacity: int) -> None:
        self.flats = [flatten([p.detach()], self.n) for p in self.parameters]       # (N,) each
        for i, (p, flat) in enumerate(zip(self.parameters, self.flats, strict=True)):
            p.data = flat[:p.numel()].view_as(p)
            p.register_post_accumulate_grad_hook(lambda p, i=i: self.complete(i))
        self.shards = [flat.view(self.n, -1)[self.r] for flat in self.flats]        # (k,) each
        self.pieces = [torch.zeros_like(shard) for shard in self.shards]
        self.states = [Adam(shard) for shard in self.shards]

    def complete(self, i: int) -> None:
        dist.reduce_scatter_tensor(self.pieces[i], flatten([self.parameters[i].grad], self.n))
        self.parameters[i].grad = None

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def tensors(self) -> dict[str, list[Tensor]]:
        return super().tensors() | {"weights": self.flats, "gradients": self.pieces}

    def update(self) -> float:
        squares = torch.stack([piece.float().square().sum() for piece in self.pieces]).sum(0, True)
        dist.all_reduce(squares)
        norm = squares.sqrt().item()
        for shard, piece, state in zip(self.shards, self.pieces, self.states, strict=True):
            adam_(shard, piece * min(1, LIMIT / (norm + 1e-8)), state, LR)
        self.share()
        return norm

    def share(self) -> None:
        for flat, shard in zip(self.flats, self.shards, strict=True):
            dist.all_gather_into_tensor(flat, shard.clone())


class RunAgain(torch.autograd.Function):
    """run(x, shard), whose activations backward computes again: nothing holds them until then.
    torch.utils.checkpoint does the same, but imports torch._dynamo: a second in each rank."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor, Tensor], Tensor], x: Tensor,
                shard: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x, shard)
        return run(x, shard)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, Tensor, Tensor]:
        x, shard = (one.detach().requires_grad_() for one in ctx.saved_tensors)
        with torch.enable_grad():
            sums = (ctx.run(x, shard) * upstream).sum()
        of_x, of_shard = torch.autograd.grad(sums, (x, shard))
        return None, of_x, of_shard


class Stage3(Stage2):
    """A unit, a layer or what stands around the layers, is whole while it runs.
    A layer runs again in backward, so that nothing holds its weights until then."""

    def prepare(self, capacity: int) -> None:
        outer = {name: p for name, p in self.model.named_parameters()
                 if not name.startswith("layers.")}
        self.units: dict[nn.Module, dict[str, nn.Parameter]] = {
            layer: dict(layer.named_parameters()) for layer in self.model.layers}
        if outer:
            self.units[self.model] = outer
        self.shapes = {unit: {name: p.shape for name, p in named.items()}
                       for unit, named in self.units.items()}
        self.of = {}
        for unit, named in self.units.items():
            flat = flatten([p.detach() for p in named.values()], self.n)    # (N,)
            self.of[unit] = flat.view(self.n, -1)[self.r].clone().requires_grad_()
            for p in named.values():
                p.data = torch.empty(0, dtype=p.dtype)      # the whole weight is nowhere
        self.flats = self.shards = list(self.of.values())
        self.states = [Adam(shard) for shard in self.shards]

    def whole(self, unit: nn.Module, shard: Tensor) -> dict[str, Tensor]:
        """The unit's weights by name, gathered from the ranks' shards."""
        shapes = self.shapes[unit]
        sizes = [math.prod(shape) for shape in shapes.values()]
        flat = GatherWeight.apply(shard, (sum(sizes),))             # (P,) of the unit
        self.gathered = [one for one in self.gathered if not one[0].expired()]
        self.gathered.append((StorageWeakRef(flat.untyped_storage()),
                              flat.untyped_storage().nbytes()))
        self.peak = max(self.peak, sum(size for _, size in self.gathered))
        return {name: part.view(shape) for (name, shape), part in
                zip(shapes.items(), flat.split(sizes), strict=True)}

    def run(self, layer: nn.Module, x: Tensor) -> Tensor:
        return RunAgain.apply(
            lambda x, shard: functional_call(layer, self.whole(layer, shard), (x,)), x,
            self.of[layer])

    def loss(self, batch: tuple) -> Tensor:
        outer = self.whole(self.model, self.of[self.model]) if self.model in self.units else {}
        return functional_call(self.model, outer, (batch, self.run))

    def backward(self, loss: Tensor) -> None:
        for shard in self.shards:
            shard.grad = None
        loss.backward()
        self.pieces = [shard.grad for shard in self.shards]

    def share(self) -> None:
        pass                                    # a layer gathers its weights when it runs

    def weights(self) -> Tensor:                                            # (P,)
        with torch.no_grad():
            whole = {unit: self.whole(unit, shard) for unit, shard in self.of.items()}
        ordered = {f"{prefix}{name}": weight for unit, named in whole.items()
                   for prefix in [self.prefix(unit)] for name, weight in named.items()}
        return flatten([ordered[name] for name, _ in self.model.named_parameters()], 1)

    def prefix(self, unit: nn.Module) -> str:
        return "" if unit is self.model else f"layers.{list(self.model.layers).index(unit)}."


STAGES = {0: Stage, 1: Stage1, 2: Stage2, 3: Stage3}


def held(tensors: list[Tensor]) -> int:
    """Bytes of tensors; those that share a storage count once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
