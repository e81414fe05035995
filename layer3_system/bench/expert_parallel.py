"""A layer with experts on several ranks: what experts and tensors spread over them take, and one
rank alone.

    torchrun --nproc-per-node 4 -m layer3_system.bench.expert_parallel
"""

import torch
import torch.distributed as dist
from torch import Tensor

from lab.remote.agreement import meet
from layer1_kernels import kernels
from layer2_graph import moe_mlp, route
from layer3_system.bench.timing import timed
from layer3_system.experts import own_experts
from layer3_system.s24_expert_parallel import moe_layer
from layer3_system.testing.expert_ranks import layer_of, tensor_terms

TOKENS = {"cpu": 256, "cuda": 4096}         # of a rank
E, C, F, K = 16, 256, 512, 2


def weights(device: str) -> list[Tensor]:
    """router (E, C), gate_up (E, 2·F, C), down (E, C, F), the same on every rank."""
    torch.manual_seed(0)
    shapes = (E, C), (E, 2 * F, C), (E, C, F)
    return [torch.randn(shape).to(device) * shape[-1]**-0.5 for shape in shapes]


def main() -> None:
    device = meet("s24_expert_parallel")
    r = dist.get_rank()
    W = dist.get_world_size()
    ops = kernels("triton" if device == "cuda" else "torch")
    router, gate_up, down = weights(device)
    x = torch.randn(W, TOKENS[device], C).to(device)[r]
    layer = layer_of(router, own_experts(gate_up, r, W), own_experts(down, r, W))
    ways = {"experts": lambda: moe_layer(x, layer, K, ops),
            "tensors": lambda: tensor_terms(x, router, gate_up, down, K, ops)}
    want = moe_mlp(x, *route(x, router, K, ops), gate_up, down, ops)
    alone = timed(lambda: moe_mlp(x, *route(x, router, K, ops), gate_up, down, ops), device)
    if r == 0:
        print(f"{W} ranks, {dist.get_backend()}, {len(x)} tokens each: all experts on each "
              f"{1e3 * alone:.1f} ms")
    for name, way in ways.items():
        apart = (way() - want).abs().max().item()
        seconds = timed(way, device)
        if r == 0:
            print(f"{name:8} {1e3 * seconds:9.1f} ms, {apart:.0e} from all experts on each")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
