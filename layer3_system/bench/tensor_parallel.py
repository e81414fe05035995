"""Tensor parallel on several ranks: a sum that travels while its matrix is computed, and PyTorch's
DTensor on the same MLP.

    torchrun --nproc-per-node 2 -m layer3_system.bench.tensor_parallel
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.remote.agreement import meet
from lab.remote.recorder import mark
from layer3_system.testing.tensor_driver import sum_rows, write_tokens

C, F = 192, 512         # of the small model
PROMPTS = [[5, 7, 300], [9], [1000, 3, 4, 1500, 2, 8], [44, 2047]]


def sum_in_pieces(x: Tensor, w: Tensor, pieces: int) -> Tensor:     # (T, K), (C, K) -> (T, C)
    """row_linear of T tokens in pieces: the sum of one piece travels while the next is computed.

    x, w: this rank's columns
    """
    parts = []
    works = []
    for rows in x.tensor_split(pieces):
        parts.append(rows @ w.T)
        works.append(dist.all_reduce(parts[-1], async_op=True))
    for work in works:
        work.wait()
    return torch.cat(parts)


class Mlp(nn.Module):
    """y = tanh(x @ a.T) @ b.T"""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(C, F, bias=False)
        self.b = nn.Linear(F, C, bias=False)

    def forward(self, x: Tensor) -> Tensor:             # (T, C) -> (T, C)
        return self.b(torch.tanh(self.a(x)))


def own_split(T: int = 5, place: str = "cpu") -> float:
    """The same Mlp with s22's split: the largest difference from one process."""
    torch.manual_seed(0)                            # the same on every rank
    model = Mlp().to(place)
    x = torch.randn(T, C).to(place)
    r, n = dist.get_rank(), dist.get_world_size()
    hidden = torch.tanh(x @ model.a.weight.detach().chunk(n)[r].T)
    y = sum_rows(hidden, model.b.weight.detach().chunk(n, 1)[r], None)
    return (y - model(x).detach()).abs().max().item()


def dtensor(T: int = 5, place: str = "cpu") -> dict:
    """PyTorch's own split of an Mlp: the largest difference from one process, and how many
    collectives forward and backward call, {what: by PyTorch's own count}."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)                            # the same on every rank
    model = Mlp().to(place)
    x = torch.randn(T, C).to(place).requires_grad_()
    want = model(x).detach()
    mesh = init_device_mesh(place, (dist.get_world_size(),))
    parallelize_module(model, mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})
    counts = {}
    mark("forward")
    with CommDebugMode() as calls:
        y = model(x)
    counts["forward"] = calls.get_total_counts()
    mark("backward")
    with CommDebugMode() as calls:
        y.sum().backward()
    counts["backward"] = calls.get_total_counts()
    return {"difference": (y - want).abs().max().item(), "calls": counts}


def main() -> None:
    place = meet("s22_tensor_parallel")
    began = time.perf_counter()
    tokens = write_tokens("small", PROMPTS, 16, place)
    seconds = time.perf_counter() - began
    ours, library = own_split(place=place), dtensor(place=place)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, 16 steps of 4 prompts: {seconds:.2f} s", *tokens,
              sep="\n")
        print(f"an MLP, largest difference from one process: ours {ours:.0e}, DTensor "
              f"{library['difference']:.0e}; DTensor's collectives: {library['calls']}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
