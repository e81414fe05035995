"""One long sequence on several ranks: what the ring and Ulysses take, and one rank alone.

    torchrun --nproc-per-node 4 -m layer3_system.bench.context_parallel
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from lab.remote.agreement import meet
from layer1_kernels import kernels
from layer3_system.bench.timing import timed
from layer3_system.context import Attend, zigzag
from layer3_system.s25_context_parallel import ring_attention, ulysses

TOKENS = {"cpu": 1024, "cuda": 32_768}       # of the sequence
H, G, D = 8, 4, 64


def sequence(device: str) -> tuple[Tensor, Tensor, Tensor]:
    """q (N, H, D), k and v (N, G, D), the same on every rank."""
    torch.manual_seed(0)
    q, k, v = [torch.randn(TOKENS[device], heads, D).to(device) for heads in (H, G, G)]
    return q, k, v


def main() -> None:
    device = meet("s25_context_parallel")
    r = dist.get_rank()
    W = dist.get_world_size()
    attend = Attend(D**-0.5, kernels("triton" if device == "cuda" else "torch"))
    N = TOKENS[device]
    q, k, v = sequence(device)
    want, _ = attend(q, k, v, True)
    cuts = {"ring": zigzag(N, W)[r], "Ulysses": torch.arange(N).view(W, -1)[r]}
    ways = {"ring": lambda q, k, v: ring_attention(q, k, v, attend)[0],
            "Ulysses": lambda q, k, v: ulysses(q, k, v, attend)}
    alone = timed(lambda: attend(q, k, v, True), device)
    if r == 0:
        print(f"{W} ranks, {dist.get_backend()}, {N} tokens: alone {1e3 * alone:.1f} ms")
    for name, way in ways.items():
        if name == "Ulysses" and G % W:
            if r == 0:
                print(f"{name:8} left out: {W} ranks cannot share {G} kv heads")
            continue
        shard = [x[cuts[name].to(device)] for x in (q, k, v)]
        apart = (way(*shard) - want[cuts[name].to(device)]).abs().max().item()
        seconds = timed(partial(way, *shard), device)
        if r == 0:
            print(f"{name:8} {1e3 * seconds:9.1f} ms, {apart:.0e} from one rank")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
