"""Given code round s32's split placement: what its ranks are asked to run."""

import torch
import torch.distributed as dist
from torch import Tensor

from layer3_system.rl.layout import matrices, part, serving_layout, window
from layer3_system.rl.loop import Options, Parts, UpdateRecord
from layer3_system.rl.split import deliver, half, run
from layer3_system.testing.reshard_ranks import SHAPE
from layer3_system.training.llama import new_weights


def learn(updates: int) -> list[tuple[list[float], float, float]]:
    """(rewards, gap, loss) of each update, on the rank that learns."""
    torch.set_num_threads(1)
    rows: list[UpdateRecord] = []
    learner = run(Options(G=4, roles=("painter", "farmer")), Parts(), updates, rows.append)
    assert (learner is None) == (not rows)
    return [(row.rewards, row.gap, row.loss) for row in rows]


def delivered() -> list[Tensor]:
    """How many numbers of each of a writer's parts are not those of the new weights; nothing of a
    learner, whose parts have no numbers."""
    rank = dist.get_rank()
    n = half(dist.get_world_size())
    new = new_weights(SHAPE, 1)
    old = {name: torch.zeros_like(w) for name, w in new.items()}
    parts = deliver(SHAPE, old if rank < n else new)
    if rank >= n:
        return [row for row in parts.values() if row.numel()]
    differences = []
    for name, shape in matrices(SHAPE).items():
        place = part(serving_layout(name), shape, rank, n)
        right = window(new[name].view(shape), ((0, shape[0]), (0, shape[1])), place)
        differences.append((parts[name].view(right.shape) != right).sum())
    return differences
