"""Given code round the exercises of s24, run on each rank."""

import torch
import torch.distributed as dist
from torch import Tensor

from lab.remote.recorder import mark
from layer1_kernels import Kernels, kernels
from layer2_graph import (
    MoELayer,
    MoELlama,
    PagedCache,
    moe_mlp,
    read_config,
    read_weights,
    route,
)
from layer2_graph.experts import DOWN, GATE_UP
from layer2_graph.models import TWINS
from layer3_system.experts import own_experts
from layer3_system.s24_expert_parallel import (
    ExpertParallelLlama,
    combine,
    dispatch,
    exchange_rows,
    moe_layer,
    pack_rows,
)


def dispatched(x: Tensor, order: Tensor, counts: Tensor, k: int) -> dict:
    """dispatch: its rows, and how many came for whom."""
    rows, received = dispatch(x, order, counts, k)
    return {"rows": rows, "received": received}


def returned(rows: Tensor, send: list[int], receive: list[int], upstream: Tensor) -> dict:
    """exchange_rows, and the gradient of its rows."""
    own = rows.clone().requires_grad_()
    mark("forward")
    into = exchange_rows(own, send, receive)
    mark("backward")
    (gradient,) = torch.autograd.grad((into * upstream).sum(), own)
    return {"rows": into.detach(), "gradient": gradient}


def combined(answers: Tensor, order: Tensor, counts: Tensor, received: Tensor,
             weights: Tensor) -> Tensor:
    """combine."""
    return combine(answers, order, counts, received, weights)


def packed(x: Tensor, experts: Tensor, keep: Tensor, E: int, capacity: int) -> Tensor:
    """pack_rows, and one exchange of messages of equal size: (W · E/W, capacity, C), rank 0's
    first."""
    room = pack_rows(x, experts, keep, E, capacity)
    into = torch.empty_like(room)
    dist.all_to_all_single(into, room)
    return into


# ---- a layer


def layer_of(router: Tensor, gate_up: Tensor, down: Tensor) -> MoELayer:
    """A layer that has experts and nothing else."""
    nothing = torch.empty(0)
    return MoELayer(nothing, (), (), (), (), None, None, nothing, router, gate_up, down)


def by_experts(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, k: int,
               upstream: Tensor | None = None) -> dict:
    """moe_layer of all experts, of which this rank takes its own; with `upstream` the gradients by
    x, router, gate_up and down too, None where this rank has none."""
    r = dist.get_rank()
    W = dist.get_world_size()
    leaves = [one.clone().requires_grad_(upstream is not None) for one in (
        x, router, own_experts(gate_up, r, W), own_experts(down, r, W))]
    mark("forward")
    y = moe_layer(leaves[0], layer_of(*leaves[1:]), k, kernels("torch"))
    if upstream is None:
        return {"y": y}
    mark("backward")
    (y * upstream).sum().backward()
    return {"y": y.detach(), "gradients": [one.grad for one in leaves]}


def tensor_terms(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, k: int,
                 ops: Kernels) -> Tensor:                   # (T, C) -> (T, C)
    """The layer by tensor parallelism: a rank has F / W numbers of every expert.
    All tokens go to all ranks, and each rank's terms are added up where the token is.
    As many tokens on each rank.
    """
    r = dist.get_rank()
    W = dist.get_world_size()
    gate, up = (half.chunk(W, 1)[r] for half in gate_up.chunk(2, 1))
    own = torch.cat([gate, up], 1), down.chunk(W, 2)[r].contiguous()
    parts = [torch.empty_like(x) for _ in range(W)]
    dist.all_gather(parts, x)
    weights, experts = route(torch.cat(parts), router, k, ops)
    terms = moe_mlp(torch.cat(parts), weights, experts, *own, ops)
    y = torch.empty_like(x)
    dist.reduce_scatter(y, list(terms.to(x.dtype).chunk(W)))
    return y


def by_tensors(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, k: int) -> dict:
    """tensor_terms."""
    mark("forward")
    return {"y": tensor_terms(x, router, gate_up, down, k, kernels("torch"))}


# ---- a model


def scores(tokens: list[int], whole: bool = False) -> Tensor:           # (T, V)
    """Scores of a text, by the twin with experts. whole: this rank has all of them, else its own"""
    config = read_config(TWINS / "moe")
    weights = read_weights(TWINS / "moe", config, torch.float32)
    kind = MoELlama if whole else ExpertParallelLlama
    if not whole:
        weights = {name: own_experts(w, dist.get_rank(), dist.get_world_size())
                   if name.endswith((GATE_UP, DOWN)) else w for name, w in weights.items()}
    model = kind(config, weights, kernels("torch"))
    cache = PagedCache(config, 1, len(tokens))
    return model.forward(cache.step([tokens]), cache, every=True)
