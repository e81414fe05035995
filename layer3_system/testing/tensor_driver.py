"""Given code round the exercises of s22: what its ranks are asked to run."""

from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor

from lab.remote.recorder import mark
from layer1_kernels import kernels
from layer2_graph import Config, Llama, cpu_kernels, greedy, read_config, read_weights
from layer2_graph.checkpoint import shapes
from layer2_graph.models import SMALL
from layer3_system.s22_tensor_parallel import (
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


# ---- a model on all ranks


def model_of_rank(m: Config, weights: dict[str, Tensor]) -> TensorParallelLlama:
    """This rank's part of a model."""
    r = dist.get_rank()
    n = dist.get_world_size()
    return TensorParallelLlama(local_config(m, n), share(weights, m, r, n, shard), cpu_kernels())


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


def write_tokens(model: str, prompts: list, count: int) -> list:
    """The next tokens after each prompt, greedily, by a model of MODELS on all ranks."""
    part = model_of_rank(*MODELS[model]())
    mark("forward")
    with torch.inference_mode():
        return greedy(part, prompts, count)
