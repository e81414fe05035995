"""s21 · Data parallel: n ranks train one model, each on its own sequences

n: ranks   r: this rank   P: parameters of the model   N: P, padded to a multiple of n
k: numbers of a shard, N / n
Each step sends 2 (n - 1) / n · P numbers from each rank; stage 3 of ZeRO sends half as many again.
Training in bf16 with Adam keeps 16 bytes a parameter (o04); ZeRO divides more and more of it by n.
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Adam", "Buckets", "GatherWeight", "Reduction", "adam_", "fill_buckets", "flatten",
           "unflatten_into", "zero_step"]

DECAYS = 0.9, 0.999     # of Adam's mean and variance: Kingma and Ba 2015, algorithm 1
EPS = 1e-8


def predict_stage_bytes() -> dict:
    """{stage of ZeRO: bytes that each of 8 ranks keeps for a parameter of the model}."""
    # exercise: 2 of weights, 2 of gradients, 12 of the optimiser; which are in shards?
    return {1: 2 + 2 + 12 / 8, 2: 2 + (2 + 12) / 8, 3: (2 + 2 + 12) / 8}


def predict_dearer_stage() -> str:
    """The first stage of ZeRO that sends more than plain data parallel: "1", "2", "3" or "none"."""
    # exercise: a reduce-scatter and an all-gather are the two halves of an all-reduce
    return "3"


def flatten(tensors: list[Tensor], n: int) -> Tensor:               # [any shapes] -> (N,)
    """The numbers of all tensors in a row, with zeros up to a multiple of n."""
    flat = torch.cat([t.reshape(-1) for t in tensors])              # (P,)
    return torch.cat([flat, flat.new_zeros(-len(flat) % n)])


def unflatten_into(flat: Tensor, tensors: list[Tensor]) -> None:    # (N,), [any shapes]
    """Write the numbers of a row back into tensors; what is left of the row was padding."""
    sizes = [t.numel() for t in tensors]
    for t, part in zip(tensors, flat[:sum(sizes)].split(sizes), strict=True):
        t.copy_(part.view_as(t))


# ---- buckets


def fill_buckets(sizes: list[int], capacity: int) -> list[list[int]]:
    """Buckets of parameters, by their numbers, from the last parameter to the first.

    sizes: of the parameters, in the order of forward.  capacity: of a bucket.
    A bucket ends where the next parameter would exceed the capacity; a parameter above the capacity
    is alone.
    """
    if capacity < 1:
        raise ValueError(f"fill_buckets: expected a capacity of at least 1, found {capacity}")
    # exercise: go backwards, and open a bucket where the parameter does not fit
    buckets: list[list[int]] = []
    room = 0
    for i in reversed(range(len(sizes))):
        if not buckets or sizes[i] > room:
            buckets.append([])
            room = capacity
        buckets[-1].append(i)
        room -= sizes[i]
    return buckets


class Reduction:
    """A sum over all ranks that has begun.
    Until `wait` returns it, nothing may touch `flat`."""

    def __init__(self, flat: Tensor) -> None:                       # (any,)
        self.flat = flat
        self.waited = False
        self.work = dist.all_reduce(flat, async_op=True)

    def wait(self) -> Tensor:
        self.waited = True
        self.work.wait()
        return self.flat


class Buckets:
    """Gradients in buckets, each summed over all ranks while backward still computes others.

    parameters: in the order of forward.  capacity: numbers in a bucket, at most
    """

    def __init__(self, parameters: list[Tensor], capacity: int) -> None:
        self.parameters = parameters
        self.buckets = fill_buckets([p.numel() for p in parameters], capacity)
        self.home = {i: b for b, own in enumerate(self.buckets) for i in own}
        self.start()

    def start(self) -> None:
        """As before a step: nothing is there, and nothing is launched."""
        self.missing = [len(own) for own in self.buckets]   # gradients that each bucket lacks
        self.next = 0                                       # the bucket to launch next
        self.reductions: dict[int, Reduction] = {}          # of the buckets that were launched

    def gradients(self, b: int) -> list[Tensor]:
        """The gradients of bucket b."""
        for i in self.buckets[b]:
            if self.parameters[i].grad is None:
                raise ValueError(f"bucket {b}: there is no gradient of parameter {i} on this rank")
        return [self.parameters[i].grad for i in self.buckets[b]]

    def launch(self, b: int) -> None:
        """Begin the sum of bucket b, and return at once."""
        self.reductions[b] = Reduction(flatten(self.gradients(b), 1))

    def ready(self, i: int) -> None:
        """Gradient i is complete on this rank.
        All ranks launch bucket 0 first, then 1, and so on.
        """
        # exercise: its bucket lacks one less; launch what is full, as far as it is next in order
        self.missing[self.home[i]] -= 1
        while self.next < len(self.buckets) and self.missing[self.next] == 0:
            self.launch(self.next)
            self.next += 1

    def finish(self) -> None:
        """After backward: every parameter's `grad` is the sum over all ranks, on every rank."""
        # exercise: zeros for gradients that are not there, launch the rest, wait, write back
        for p in self.parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        for b in range(self.next, len(self.buckets)):
            self.launch(b)
        for b, reduction in self.reductions.items():
            unflatten_into(reduction.wait(), self.gradients(b))
        self.start()


# ---- ZeRO


class Adam:
    """What Adam keeps of some weights, in fp32: 12 bytes a parameter."""

    def __init__(self, weights: Tensor) -> None:                    # (k,)
        self.master = weights.detach().to(torch.float32, copy=True)
        self.mean = torch.zeros_like(self.master)
        self.variance = torch.zeros_like(self.master)
        self.steps = 0


def adam_(weights: Tensor, gradient: Tensor, state: Adam, lr: float) -> None:   # (k,), (k,)
    """A step of Adam on `state`, whose weights are then rounded into `weights`."""
    if not len(weights) == len(gradient) == len(state.master):
        raise ValueError(f"adam_: {len(weights)} weights, {len(gradient)} gradients and a state of "
                         f"{len(state.master)}, expected as many of each")
    state.steps += 1
    gradient = gradient.float()
    state.mean.lerp_(gradient, 1 - DECAYS[0])
    state.variance.lerp_(gradient * gradient, 1 - DECAYS[1])
    mean, variance = (one / (1 - decay ** state.steps) for one, decay in
                      zip((state.mean, state.variance), DECAYS, strict=True))
    state.master -= lr * mean / (variance.sqrt() + EPS)
    weights.copy_(state.master)


def zero_step(flat: Tensor, gradient: Tensor, state: Adam, lr: float,      # (N,), (N,)
              limit: float) -> float:
    """This rank's share of a step.
    Returns the norm of the summed gradient, before clipping.

    flat: weights of the whole model, padded; afterwards the new ones, on every rank.
    gradient: of this rank's tokens alone.  state: of this rank's shard.
    limit: a summed gradient whose norm is above it is scaled down to it.
        EPS: added to the norm that divides, so that a norm of 0 does no harm
    """
    r = dist.get_rank()
    n = dist.get_world_size()
    if len(flat) % n:
        raise ValueError(f"zero_step: {n} ranks need a multiple of {n} numbers, found {len(flat)}: "
                         f"pad with flatten(…, n)")
    shard = flat.view(n, -1)[r]                             # (k,), a view of flat
    # exercise: reduce-scatter, the norm over all shards, clip, update the shard, all-gather
    own = torch.empty_like(shard)                           # (k,)
    dist.reduce_scatter_tensor(own, gradient)
    squares = own.float().square().sum().reshape(1)
    dist.all_reduce(squares)
    norm = squares.sqrt().item()
    adam_(shard, own * min(1, limit / (norm + EPS)), state, lr)
    dist.all_gather_into_tensor(flat, shard.clone())
    return norm


class GatherWeight(torch.autograd.Function):
    """A weight of which each rank keeps a shard: whole for a layer that runs, in shards again after
    that, and so is its gradient.
    `GatherWeight.apply(shard, shape)`"""

    @staticmethod
    def forward(ctx: object, shard: Tensor, shape: tuple) -> Tensor:        # (k,) -> shape
        """The whole weight, on every rank."""
        flat = shard.new_empty(dist.get_world_size() * len(shard))          # (N,)
        dist.all_gather_into_tensor(flat, shard)
        return flat[:math.prod(shape)].view(shape)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:     # shape -> (k,), None
        """This rank's shard of the gradient, summed over all ranks; None for the argument `shape`.

        gradient: of the whole weight, by this rank's tokens alone
        """
        n = dist.get_world_size()
        # exercise: the way back of forward: in a row, padded, then a piece of the sum for each rank
        flat = flatten([gradient], n)                                       # (N,)
        own = flat.new_empty(len(flat) // n)                                # (k,)
        dist.reduce_scatter_tensor(own, flat)
        return own, None
