"""Given code round the exercises of s32: what its ranks are asked to run."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lab.remote.recorder import mark
from layer1_kernels import kernels
from layer2_graph import Config, Llama
from layer2_graph.g01_llama import PagedCache
from layer3_system.rl.layout import Piece, Place, matrices, part, serving_layout, window
from layer3_system.s22_tensor_parallel import TensorParallelLlama, local_config
from layer3_system.s32_rl_placement import apply_plan, reshard_plan
from layer3_system.training.llama import new_weights

# Small enough for a test, and two ranks can share it.
SHAPE = Config(L=1, C=24, H=2, G=2, D=12, F=40, V=30, eps=1e-5, theta=1e4, room=16, tied=True)


def apply_cases(cases: list[tuple[list[Piece], Tensor, Place, Place]]) -> list[Tensor]:
    """apply_plan of each case, one after the other."""
    results = []
    for i, (plan, own, here, there) in enumerate(cases):
        mark(f"case {i}")
        results.append(apply_plan(plan, own, here, there))
    return results


def move_weights(m: Config, seed: int) -> dict[str, Tensor]:
    """This rank's weights for serving, from those that it has in training: bands of rows of random
    weights.
    All ranks call it."""
    rank = dist.get_rank()
    W = dist.get_world_size()
    weights = new_weights(m, seed)
    served = {}
    for name, shape in matrices(m).items():
        layout = serving_layout(name)
        here = part("fsdp", shape, rank, W)
        there = part(layout, shape, rank, W)
        own = window(weights[name].view(shape), ((0, shape[0]), (0, shape[1])), here).clone()
        mark(layout)
        row = apply_plan(reshard_plan(shape, "fsdp", layout, W), own, here, there)
        served[name] = row.flatten() if weights[name].ndim == 1 else row
    return served


@torch.inference_mode()
def scores_after_move(tokens: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """Scores of the next token (1, V), by random weights of SHAPE: by ranks whose weights came from
    training's layout, and by one model alone."""
    m = SHAPE
    W = dist.get_world_size()
    served = TensorParallelLlama(local_config(m, W), move_weights(m, seed), kernels("torch"))
    alone = Llama(m, new_weights(m, seed), kernels("torch"))
    mark("scores")
    both = []
    for model in (served, alone):
        cache = PagedCache(model.config, 1, len(tokens))
        both.append(model.forward(cache.step([tokens]), cache))
    return both[0], both[1]


def fsdp_part(N: int, K: int) -> Tensor:                            # -> (rows of this rank, K)
    """This rank's part of a matrix of numbers in order, as PyTorch's FSDP2 cuts it."""
    layer = torch.nn.Linear(K, N, bias=False)
    layer.weight.data = torch.arange(float(N * K)).view(N, K)
    fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    weight: Any = layer.weight          # a DTensor by now
    return weight.to_local().detach()
