"""Given code round the exercises of s20, run on each rank."""

import time

import torch
import torch.distributed as dist

from layer3_system.s20_collectives import exchange

__all__ = ["late_exchange"]

LATER = 0.1             # seconds that each rank comes after the one before it


def late_exchange(out: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    """What `into` gets where each rank comes later than the one before, and a rank writes over
    `out` as soon as its exchange has returned."""
    time.sleep(LATER * dist.get_rank())
    exchange(out, into)
    out.fill_(-1)
    return into
