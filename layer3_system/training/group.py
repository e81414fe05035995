"""The ranks of a training, as a checkpoint sees them."""

from typing import Any, Protocol

import torch.distributed as dist


class Group(Protocol):
    """rank: this one, from 0.  size: how many there are"""

    rank: int
    size: int

    def gather(self, value: Any) -> list:
        """Every rank's value, in the order of ranks, on every rank.
        It waits until all have called it."""


class GlooGroup:
    """A group of its own, so that a save on another thread does not mix with training's sums."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.own = dist.new_group(backend="gloo")

    def gather(self, value: Any) -> list:
        values: list = [None] * self.size
        dist.all_gather_object(values, value, group=self.own)
        return values
