"""Given code round the exercises of s22: what its ranks are asked to run."""

from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor

from lab.remote.recorder import mark
from layer1_kernels import kernels
from layer2_graph import (
    Config,
    Llama,
    Tokenizer,
    cpu_kernels,
    greedy,
    read_config,
    read_weights,
)
from layer2_graph.checkpoint import shapes
from layer2_graph.models import SMALL
from layer3_system.parallel.leader import Leader, follow
from layer3_system.s01_request import SamplingParams
from layer3_system.s06_prefix_cache import PrefixPool
from layer3_system.s07_engine import Engine
from layer3_system.s22_tensor_parallel import (
    GatherTokens,
    TensorParallelLlama,
    embed,
    local_config,
    row_linear,
    shard,
    share,
)


def kept_bytes(name: str, weight: Tensor, m: Config, r: int, n: int) -> int:
    """Bytes of memory that a rank's part of a weight keeps alive."""
    return shard(name, weight, m, r, n).untyped_storage().nbytes()


def sum_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """row_linear on this rank's columns of x and weight."""
    model = SimpleNamespace(ops=kernels("torch"))
    model.linear = partial(Llama.linear, model)                                     # type: ignore
    return row_linear(model, x, (weight, bias))                                     # type: ignore


def find_rows(rows: Tensor, tokens: Tensor) -> Tensor:
    """embed, with this rank's rows of the embedding."""
    return embed(SimpleNamespace(embedding=rows), tokens)                           # type: ignore


# ---- sequence parallelism


class ScatterTokens(torch.autograd.Function):
    """From every rank's term for all tokens to the sum for a rank's own: the reverse of
    GatherTokens."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:              # (T, C) -> (T / n, C)
        parts = list(x.chunk(dist.get_world_size()))
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, parts)
        return own

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:      # (T / n, C) -> (T, C)
        parts = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, gradient.contiguous())
        return torch.cat(parts)


def gather_tokens(x: Tensor) -> Tensor:
    """GatherTokens forward."""
    return GatherTokens.apply(x)


def gather_and_return(x: Tensor, upstream: Tensor) -> Tensor:   # (T / n, C), (T, C) -> (T / n, C)
    """The gradient of this rank's tokens, where `upstream` is that of all, by its own bands."""
    own = x.clone().requires_grad_()
    whole = GatherTokens.apply(own)
    mark("backward")
    (gradient,) = torch.autograd.grad((whole * upstream).sum(), own)
    return gradient


def sequence_layer(x: Tensor, w: Tensor, a: Tensor, b: Tensor, upstream: Tensor) -> dict:
    """z = x + tanh(norm(x) · w @ a.T) @ b.T, and the gradients of (z · upstream).sum().

    x, upstream: this rank's tokens (T / n, C).  w: (C,).  a: this rank's rows (F / n, C).
    b: its columns (C, F / n)
    """
    inputs = [one.clone().requires_grad_() for one in (x, w, a, b)]
    x, w, a, b = inputs
    mark("layer")
    y = GatherTokens.apply(x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w)  # (T, C)
    z = x + ScatterTokens.apply(torch.tanh(y @ a.T) @ b.T)                              # (T / n, C)
    gradients = torch.autograd.grad((z * upstream).sum(), inputs)
    mark("norm")
    total = gradients[1].clone()
    dist.all_reduce(total)
    names = "x", "own w", "a", "b"
    return {"z": z.detach(), "w": total} | dict(zip(names, gradients, strict=True))


# ---- a model on all ranks


def model_of_rank(m: Config, weights: dict[str, Tensor], place: str = "cpu") -> TensorParallelLlama:
    """This rank's part of a model. place: a device"""
    r = dist.get_rank()
    n = dist.get_world_size()
    own = {name: w.to(place) for name, w in share(weights, m, r, n, shard).items()}
    ops = cpu_kernels() if place == "cpu" else kernels("torch")
    return TensorParallelLlama(local_config(m, n), own, ops)


def small_model() -> tuple[Config, dict[str, Tensor]]:
    """(Config, weights) of the small model, in fp32."""
    m = read_config(SMALL)
    return m, read_weights(SMALL, m, torch.float32)


def random_model(seed: int = 0) -> tuple[Config, dict[str, Tensor]]:
    """(Config, weights) of a model with 4 query heads on 2 kv heads and biases everywhere."""
    m = Config(L=2, C=64, H=4, G=2, D=16, F=128, V=2048, eps=1e-5, theta=1e4, room=64,
               bias_qkv=True, bias_o=True, bias_mlp=True)
    own = torch.Generator().manual_seed(seed)
    return m, {name: torch.randn(shape, generator=own) * (shape[-1] ** -0.5 if len(shape) > 1 else
                                                          1.0) for name, shape in shapes(m)}


MODELS = {"small": small_model, "random": random_model}


def write_tokens(model: str, prompts: list, count: int, place: str = "cpu") -> list:
    """The next tokens after each prompt, greedily, by a model of MODELS on all ranks."""
    part = model_of_rank(*MODELS[model](), place)
    mark("forward")
    with torch.inference_mode():
        return greedy(part, prompts, count)


# ---- an engine on all ranks


def serve(model: str, jobs: list, P: int = 64) -> dict | None:
    """What an engine on all ranks answers, as rank 0 has it: None on the other ranks.

    jobs: (prompt, answers, tokens of each), all queued at once.
    P: pages of 16 tokens
    """
    m, weights = MODELS[model]()
    part = model_of_rank(m, weights)
    with torch.inference_mode():
        if dist.get_rank():
            follow(part, m.G)
            return None
        leader = Leader(part, m.G)
        engine = Engine(leader, Tokenizer(SMALL, read_config(SMALL)), PrefixPool(P))
        answers = [engine.submit(prompt, SamplingParams(n=n, max_tokens=count, temperature=0.0,
                                                        ignore_eos=True))
                   for prompt, n, count in jobs]
        steps = 0
        while engine.busy:
            mark(f"step {steps}")
            engine.step()
            steps += 1
        mark("end")
        shape = list(engine.pages.k.shape)
        k, v = engine.pages.read([0, 1])
        engine.pages.write([2, 3], k, v)
        same = [torch.equal(one, other) for one, other in
                zip((k, v), engine.pages.read([2, 3]), strict=True)]
        leader.close()
    return {"tokens": [[request.output for request in own] for own in answers], "steps": steps,
            "weights": sum(w.numel() for w in part.weights.values()), "pages": shape,
            "read": list(k.shape), "same": same}
