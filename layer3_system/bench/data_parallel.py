"""Data parallel on several ranks: each stage of ZeRO, PyTorch's FSDP, and fewer bits on the wire.

    torchrun --nproc-per-node 4 -m layer3_system.bench.data_parallel
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor

from lab.remote.agreement import meet
from lab.remote.recorder import mark
from layer3_system.testing.training_driver import own_batches, train_llama
from layer3_system.testing.training_models import IGNORED, TrainLlama
from layer3_system.testing.training_stages import LIMIT, LR, STAGES

LENS = [5, 9, 2, 7, 3, 6]       # tokens of each sequence
WEIGHTS = 40
ROWS = 64                       # of data, on each rank
STEPS = 120
RATE = 0.05


def fsdp2(lens: list[int], steps: int = 3) -> list[float]:
    """Losses of a TrainLlama under `fully_shard`, on the same sequences as `train_llama`'s.

    It averages gradients over ranks, so a rank's loss counts n times.
    """
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = TrainLlama()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimiser = torch.optim.Adam(model.parameters(), LR, betas=(0.9, 0.999))
    losses = []
    for batch in own_batches(lens, steps):
        mark("tokens")
        tokens = (batch[1] != IGNORED).sum()
        dist.all_reduce(tokens)
        mark("step")
        loss = model(batch) / tokens
        (loss * dist.get_world_size()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        optimiser.step()
        optimiser.zero_grad()
        mark("loss")
        total = loss.detach()
        dist.all_reduce(total)
        losses.append(total.item())
    return losses


def rounded(x: Tensor, levels: int) -> Tensor:
    """x, rounded to 2 · levels + 1 equally spaced values from -max |x| to max |x|."""
    scale = x.abs().max().clamp(min=1e-30) / levels
    return (x / scale).round() * scale


def few_bits() -> dict[str, float]:
    """{what is sent: loss at the end} of linear regression on all ranks' data.
    Rounded gradients are summed as fp32 numbers: their values are those of few bits, the wire is
    not."""
    kinds = {"fp32": (None, False), "int8": (127, False), "int8, error feedback": (127, True),
             "three values": (1, False), "three values, error feedback": (1, True)}
    return {name: regression(*kind) for name, kind in kinds.items()}


def regression(levels: int | None, feedback: bool) -> float:
    n = dist.get_world_size()
    own = torch.Generator().manual_seed(1 + dist.get_rank())
    truth = torch.randn(WEIGHTS, generator=torch.Generator().manual_seed(0))
    x = torch.randn(ROWS, WEIGHTS, generator=own)
    y = x @ truth + 0.2 * torch.randn(ROWS, generator=own)                  # (ROWS,)
    w = torch.zeros(WEIGHTS)
    error = torch.zeros(WEIGHTS)                # what was rounded away so far
    for _ in range(STEPS):
        gradient = x.T @ (x @ w - y) / (n * ROWS) + error
        sent = gradient if levels is None else rounded(gradient, levels)
        error = gradient - sent if feedback else error
        total = sent.clone()
        dist.all_reduce(total)
        w -= RATE * total
    loss = (x @ w - y).square().mean() / n
    dist.all_reduce(loss)
    return loss.item()


def main() -> None:
    meet("s21_data_parallel", only_cpu=True)
    for stage in (*STAGES, None):
        name = "fully_shard" if stage is None else f"stage {stage}"
        began = time.perf_counter()
        losses = fsdp2(LENS) if stage is None else train_llama(stage, LENS)["losses"]
        if dist.get_rank() == 0:
            print(f"{name:12} {time.perf_counter() - began:6.2f} s  losses "
                  + "  ".join(f"{loss:.6f}" for loss in losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
