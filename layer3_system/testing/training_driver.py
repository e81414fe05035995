"""Given code round the exercises of s21, run on each rank: models, and steps of each stage of ZeRO.

stage: 0 keeps all on every rank, 1 shards the optimiser's part, 2 the gradients, too, 3 the
weights, too. batch: a rank's share of the sequences of a step, as its model takes it
"""

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from day01_roofline import Llama
from day02_overview.autograd_memory import TorchLayer, TorchLlama
from lab.remote.recorder import mark
from lab.remote.spans import spans
from layer3_system.s21_data_parallel import (
    Adam,
    Buckets,
    GatherWeight,
    adam_,
    flatten,
    unflatten_into,
    zero_step,
)

__all__ = ["MODEL", "Net", "STAGES", "TrainLlama", "backward", "compare_stages", "llama_batch",
           "lanes", "sharded_gradient", "train_llama", "train_net", "zero_steps"]

MODEL = Llama("training", L=2, C=64, H=4, G=2, D=16, F=128, V=257, tied=True)
LR = 0.01
LIMIT = 0.5
IGNORED = -100          # the target of padding, which has no loss


# ---- models: `count(batch)` and `forward(batch, run)`, the sum of the losses of all tokens


def direct(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)


class Layer(nn.Module):
    def __init__(self, weight: Tensor) -> None:             # (out, in)
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, x: Tensor) -> Tensor:                 # (T, in) -> (T, out)
        return torch.tanh(x @ self.weight.T)


class Net(nn.Module):
    """Matrices with tanh; a batch is (x, y), the inputs of T tokens and what should come out."""

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(Layer, weights))

    def count(self, batch: tuple) -> int:
        return len(batch[0])

    def forward(self, batch: tuple, run: Callable = direct) -> Tensor:
        x, y = batch                                        # (T, C), (T, K)
        for layer in self.layers:
            x = run(layer, x)
        return (x - y).square().sum()


class TrainLayer(TorchLayer):
    def forward(self, x: Tensor) -> Tensor:                 # (B, T, C) -> (B, T, C)
        try:
            return super().forward(x)
        finally:                                # `checkpoint` leaves by an exception
            self.arrays = {}                    # they would keep gathered weights


class TrainLlama(TorchLlama):
    """A batch is (tokens, targets), padded with IGNORED in the targets."""

    def __init__(self, m: Llama = MODEL) -> None:
        super().__init__(m)
        self.layers = nn.ModuleList(TrainLayer(m) for _ in range(m.L))
        for p in self.parameters():
            if p.ndim == 2:                     # nn.Embedding's N(0, 1), tied, makes a loss of 60
                nn.init.normal_(p, std=0.02)

    def count(self, batch: tuple) -> int:
        return int((batch[1] != IGNORED).sum())

    def forward(self, batch: tuple, run: Callable = direct) -> Tensor:
        tokens, targets = batch                             # (B, T), (B, T)
        x = self.embedding(tokens)                          # (B, T, C)
        for layer in self.layers:
            x = run(layer, x)
        logits = self.norm(x, {}) @ self.embedding.weight.T                 # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(),
                               ignore_index=IGNORED, reduction="sum")


def llama_batch(lens: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """(tokens, targets) of sequences of some lengths, drawn by a seed and the length."""
    T = max(lens, default=1)
    tokens = torch.zeros(len(lens), T, dtype=torch.long)                    # (B, T)
    targets = torch.full((len(lens), T), IGNORED)                           # (B, T)
    for b, length in enumerate(lens):
        drawn = torch.Generator().manual_seed(1000 * seed + length)
        line = torch.randint(MODEL.V, (length + 1,), generator=drawn)
        tokens[b, :length] = line[:-1]
        targets[b, :length] = line[1:]
    return tokens, targets


# ---- steps


class Stage:
    """Data parallel, all on every rank: stage 0, and what the others change of it."""

    def __init__(self, model: nn.Module, capacity: int) -> None:
        self.model = model
        self.n = dist.get_world_size()
        self.r = dist.get_rank()
        self.gathered: list[tuple[StorageWeakRef, int]] = []     # whole weights, and their bytes
        self.parts: dict[str, int] = {}         # bytes kept of each part, when gradients are there
        self.peak = 0                           # bytes of whole weights that were there for a layer
        self.parameters = list(model.parameters())
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
        squares = sum(piece.float().square().sum() for piece in self.pieces).reshape(1)
        dist.all_reduce(squares)
        norm = squares.sqrt().item()
        for shard, piece, state in zip(self.shards, self.pieces, self.states, strict=True):
            adam_(shard, piece * min(1, LIMIT / (norm + 1e-8)), state, LR)
        self.share()
        return norm

    def share(self) -> None:
        for flat, shard in zip(self.flats, self.shards, strict=True):
            dist.all_gather_into_tensor(flat, shard.clone())


class Stage3(Stage2):
    """A unit, a layer or what stands around the layers, is whole while it runs. `checkpoint` lets
    a layer run again in backward, so that nothing holds its weights until then."""

    def prepare(self, capacity: int) -> None:
        inner = {f"layers.{i}.": layer for i, layer in enumerate(self.model.layers)}
        outer = {name: p for name, p in self.model.named_parameters()
                 if not name.startswith("layers.")}
        self.units = {layer: dict(layer.named_parameters()) for layer in inner.values()}
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

    def whole(self, unit: nn.Module) -> dict[str, Tensor]:
        """The unit's weights by name, gathered."""
        shapes = self.shapes[unit]
        sizes = [math.prod(shape) for shape in shapes.values()]
        flat = GatherWeight.apply(self.of[unit], (sum(sizes),))             # (P,) of the unit
        self.gathered = [one for one in self.gathered if not one[0].expired()]
        self.gathered.append((StorageWeakRef(flat.untyped_storage()),
                              flat.untyped_storage().nbytes()))
        self.peak = max(self.peak, sum(size for _, size in self.gathered))
        return {name: part.view(shape) for (name, shape), part in
                zip(shapes.items(), flat.split(sizes), strict=True)}

    def run(self, layer: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(lambda x: functional_call(layer, self.whole(layer), (x,)), x,
                          use_reentrant=False, preserve_rng_state=False)

    def loss(self, batch: tuple) -> Tensor:
        outer = self.whole(self.model) if self.model in self.units else {}
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
            whole = {unit: self.whole(unit) for unit in self.units}
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


# ---- what ranks are asked to run


def backward(gradients: list, orders: list, capacity: int, finish: bool = True) -> list:
    """[{"gradients": afterwards, "waited": whether a sum was waited for during backward}] of steps.

    gradients: this rank's, one a parameter, a list a step.  orders: in which they become complete,
    a list a step.  finish: by the lesson, or by the driver
    """
    parameters = [nn.Parameter(torch.zeros_like(one)) for one in gradients[0]]
    buckets = Buckets(parameters, capacity)
    steps = []
    for s, (own, order) in enumerate(zip(gradients, orders, strict=True)):
        for p in parameters:
            p.grad = None
        for k, i in enumerate(order):
            mark(f"step {s}, gradient {k}")
            parameters[i].grad = own[i].clone()
            buckets.ready(i)
        waited = any(one.waited for one in buckets.reductions.values())
        mark(f"step {s}, finish")
        if finish:
            buckets.finish()
        else:
            settle(buckets)
        steps.append({"gradients": [p.grad for p in parameters], "waited": waited})
    return steps


def settle(buckets: Buckets) -> None:
    """Finish by the driver, whatever was launched."""
    for p in buckets.parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    for b in range(len(buckets.buckets)):
        if b not in buckets.reductions:
            buckets.launch(b)
    for b, reduction in buckets.reductions.items():
        unflatten_into(reduction.wait(), buckets.gradients(b))
    buckets.start()


def zero_steps(weights: Tensor, gradients: list, lr: float, limit: float) -> dict:
    """Steps of `zero_step` from some weights (P,): norms, and the weights after each step."""
    n = dist.get_world_size()
    flat = flatten([weights], n)                                            # (N,)
    state = Adam(flat.view(n, -1)[dist.get_rank()])
    norms = []
    after = []
    for s, gradient in enumerate(gradients):
        mark(f"step {s}")
        norms.append(zero_step(flat, flatten([gradient], n), state, lr, limit))
        after.append(flat.clone())
    return {"norms": norms, "weights": after}


def sharded_gradient(weight: Tensor, upstream: Tensor) -> Tensor:           # shape, shape -> (k,)
    """The gradient of this rank's shard of a weight, where `upstream` is that of the whole."""
    n = dist.get_world_size()
    shard = flatten([weight], n).view(n, -1)[dist.get_rank()].clone().requires_grad_()
    whole = GatherWeight.apply(shard, tuple(weight.shape))
    mark("backward")
    whole.backward(upstream)
    return shard.grad


def train(stage: int, model: nn.Module, batches: list, capacity: int) -> tuple[Stage, list, list]:
    """(the ranks' stage, losses, norms) of a step a batch."""
    training = STAGES[stage](model, capacity)
    losses, norms = zip(*map(training.step, batches), strict=True)
    return training, list(losses), list(norms)


def train_net(stage: int, weights: list, batches: list, capacity: int = 60) -> dict:
    """Steps of a Net: losses, norms, and the weights in a row."""
    training, losses, norms = train(stage, Net(weights), batches, capacity)
    mark("weights")
    return {"losses": losses, "norms": norms, "weights": training.weights()}


def own_batches(lens: list[int], steps: int) -> list:
    """This rank's batches, of every n-th sequence."""
    own = lens[dist.get_rank()::dist.get_world_size()]
    return [llama_batch(own, seed) for seed in range(steps)]


def train_llama(stage: int, lens: list[int], steps: int = 3, dtype: str = "float32",
                capacity: int = 30_000) -> dict:
    """Steps of a TrainLlama on sequences of these lengths, dealt to the ranks in turn."""
    torch.manual_seed(0)
    model = TrainLlama().to(getattr(torch, dtype))
    training, losses, norms = train(stage, model, own_batches(lens, steps), capacity)
    return {"losses": losses, "norms": norms, "parts": training.parts, "peak": training.peak}


def compare_stages(lens: list[int]) -> dict:
    """{stage: what a step in bf16 keeps, and its loss}"""
    return {stage: train_llama(stage, lens, 1, "bfloat16") for stage in STAGES}


def lanes(lens: list[int], capacity: int) -> list:
    """When a rank computed and sent in the backward of the third step, as spans. stage 0"""
    torch.manual_seed(0)
    training = Stage(TrainLlama(), capacity)
    *first, last = own_batches(lens, 3)
    for batch in first:
        training.step(batch)
    loss = training.loss(last)
    with spans(True) as rows:
        training.backward(loss)
    return rows
