"""Given code round the exercises of s25, run on each rank."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from lab.remote.recorder import mark
from layer1_kernels import flash_attention_torch, kernels
from layer1_kernels.gradients import differentiable
from layer2_graph import Batch, Llama, load
from layer2_graph.models import SMALL
from layer3_system.context import Attend, pass_on, zigzag
from layer3_system.s25_context_parallel import (
    Ring,
    RingCache,
    attend_spread,
    gather_heads,
    gather_tokens,
    merge_parts,
    ring_attention,
    ulysses,
    visible,
)

Shard = tuple[Tensor, Tensor, Tensor]       # q (n, H, D), k and v (n, G, D) of a rank


def case(i: int) -> str:
    """The label of case i in a RankRun."""
    return f"case {i}"


def ring_cases(shards: list[Shard], scale: float) -> list[dict]:
    """ring_attention of each: out, lse, and the pairs that the rank computed in each call."""
    rows = []
    for i, (q, k, v) in enumerate(shards):
        mark(case(i))
        attend = Attend(scale)
        out, lse = ring_attention(q, k, v, attend)
        rows.append({"out": out, "lse": lse, "pairs": attend.pairs})
    return rows


def gather_cases(arrays: list[Tensor], tokens: bool) -> list[Tensor]:
    """gather_tokens of each, or gather_heads."""
    rows = []
    for i, x in enumerate(arrays):
        mark(case(i))
        rows.append(gather_tokens(x) if tokens else gather_heads(x))
    return rows


def ulysses_cases(shards: list[Shard], scale: float) -> list[dict]:
    """ulysses of each: out, and the pairs that the rank computed in each call."""
    rows = []
    for i, shard in enumerate(shards):
        mark(case(i))
        attend = Attend(scale)
        rows.append({"out": ulysses(*shard, attend), "pairs": attend.pairs})
    return rows


# ---- gradients, and what is kept for them


def chained_ring(q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
    """ring_attention as autograd would have it: all out of place, and each pass an operation whose
    gradient goes the other way."""
    r = dist.get_rank()
    W = dist.get_world_size()
    out = torch.zeros_like(q)
    lse = q.new_full(q.shape[:2], -torch.inf)
    for s in range(W):
        first, end, causal = visible(r, (r - s) % W, len(q))
        part = attend(q[first:], k[:end], v[:end], causal)
        rows = merge_parts(out[first:], lse[first:], *part)
        out = torch.cat([out[:first], rows[0]])
        lse = torch.cat([lse[:first], rows[1]])
        if s < W - 1:
            k, v = PassOn.apply(k, v)
    return out


class PassOn(torch.autograd.Function):
    """pass_on for autograd: a gradient goes to the rank from which the array came."""

    @staticmethod
    def forward(ctx: object, *arrays: Tensor) -> tuple[Tensor, ...]:
        return tuple(pass_on(*arrays))

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(pass_on(*gradients, step=-1))


def ring_grads(q: Tensor, k: Tensor, v: Tensor, upstream: Tensor, scale: float,
               chained: bool = False) -> dict:
    """Gradients of a shard, by Ring or by chained_ring, and the numbers that autograd keeps.

    The kernel keeps its arguments alone, and computes the scores again in backward, as on a GPU.
    """
    flash = differentiable(flash_attention_torch, flash_attention_torch)
    ops = replace(kernels("torch"), flash_attention=flash)
    shard = [x.clone().requires_grad_() for x in (q, k, v)]
    attend = Attend(scale, ops)
    sizes: dict[int, int] = {}          # {address of a storage: its numbers}
    alive = []                          # else an address could be used again

    def keep(x: Tensor) -> Tensor:
        sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        alive.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = (chained_ring if chained else Ring.apply)(shard[0], shard[1], shard[2], attend)
    mark("backward")
    (out * upstream).sum().backward()
    return {"gradients": [x.grad for x in shard], "kept": sum(sizes.values())}


def ulysses_grads(q: Tensor, k: Tensor, v: Tensor, upstream: Tensor, scale: float) -> dict:
    """Gradients of a shard by ulysses, with the exchanges of `Swap`."""
    shard = [x.clone().requires_grad_() for x in (q, k, v)]
    q, k, v = map(Swap.apply, shard)
    heads, _ = Attend(scale)(q, k, v, True)
    out = SwapBack.apply(heads)
    mark("backward")
    (out * upstream).sum().backward()
    return {"gradients": [x.grad for x in shard]}


class Swap(torch.autograd.Function):
    """gather_tokens for autograd.
    Each number goes to one place, so gradients take the way back."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return gather_tokens(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gather_heads(gradient)


class SwapBack(torch.autograd.Function):
    """gather_heads for autograd."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return gather_heads(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gather_tokens(gradient)


# ---- a model


WATCHED = ("model.embed_tokens.weight", "model.layers.0.self_attn.k_proj.weight")


def train_llama(text: Tensor, local: bool = False) -> dict:
    """A forward and a backward of the small Llama on one text (N + 1,), in zigzag: scores of this
    rank's tokens, the loss of all tokens, gradients of the weights in WATCHED.

    local: rope takes places within the shard for positions, which is a mistake
    """
    tokens = text[:-1]
    targets = text[1:]                  # before the cut: after it a piece lacks its next token
    N = len(tokens)
    positions = zigzag(N, dist.get_world_size())[dist.get_rank()]
    shipped = load(SMALL, dtype=torch.float32)
    weights = {name: w.clone().requires_grad_() for name, w in shipped.weights.items()}
    model = Llama(shipped.config, weights, kernels("torch"))
    empty = torch.empty(0, dtype=torch.int32)               # what pages would need
    places = torch.arange(len(positions)) if local else positions
    batch = Batch(tokens[positions], places, empty, empty, empty, empty)
    mark("forward")
    cache: Any = RingCache()            # it keeps no k and v
    logits = model.forward(batch, cache, every=True)        # (n, V)
    loss = F.cross_entropy(logits, targets[positions], reduction="sum") / N
    mark("backward")
    loss.backward()
    mark("sums")
    gradients = [weights[name].grad for name in WATCHED]
    total = loss.detach()
    for x in (*gradients, total):
        dist.all_reduce(x)
    return {"logits": logits.detach(), "loss": total.item(), "gradients": gradients}


def decode(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """attend_spread of a query (1, H, D) that all ranks have, to keys of which each has a shard."""
    return attend_spread(q, k, v, Attend(scale))
