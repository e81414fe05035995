"""How long ranks take together."""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

TURNS = 5


def timed(call: Callable[[], object], device: str) -> float:
    """Seconds of the slowest rank, the median of TURNS calls."""
    seconds = []
    for _ in range(TURNS + 1):                  # the first one connects and compiles
        dist.barrier()
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    longest = torch.tensor(seconds[1:], device=device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return statistics.median(longest.tolist())
