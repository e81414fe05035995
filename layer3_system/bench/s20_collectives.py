"""Time against bytes, of a message to the next rank and of two all-reduces:

    torchrun --nproc-per-node 4 -m layer3_system.bench.s20_collectives

NCCL where every rank has a GPU, gloo elsewhere; `--nnodes` makes it several machines.
A time is that of the fastest of several turns, each after a barrier, at the rank that is done last:
other work only ever adds to it.

Ranks of one machine share its cores, and wait for those more than for messages.
So the lesson also measures with a `Wire` for each rank, slow enough that the cores do not matter.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from lab.remote.agreement import meet
from lab.remote.recorder import paused
from layer3_system.s20_collectives import all_reduce, broadcast_tree, exchange, tree_rounds

SIZES = [4**i for i in range(2, 12)]            # bytes: 16 to 4 MB
TURNS = 25


class Wire(TorchDispatchMode):
    """A wire of this rank's own: a message leaves after alpha + bytes · beta seconds."""

    def __init__(self, alpha: float, beta: float) -> None:
        super().__init__()
        self.alpha = alpha
        self.beta = beta

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """True would import torch._dynamo, seconds a rank."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name == "c10d::send":
            time.sleep(self.alpha + self.beta * sum(t.nbytes for t in args[0]))
        return func(*args, **(kwargs or {}))


def reduce_tree(x: torch.Tensor, root: int) -> None:
    """Add every rank's x into the root's, in ceil(log2 n) rounds: broadcast_tree backwards."""
    r = dist.get_rank()
    n = dist.get_world_size()
    place = (r - root) % n
    for turn in reversed(range(tree_rounds(n))):
        reach = 2**turn
        if reach <= place < 2 * reach:
            dist.send(x, (r - reach) % n)
        elif place < reach and place + reach < n:
            coming = torch.empty_like(x)
            dist.recv(coming, (r + reach) % n)
            x += coming


def all_reduce_tree(x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' x, in x."""
    reduce_tree(x, 0)
    broadcast_tree(x, 0)
    return x


def timed(call: Callable[[torch.Tensor], object], x: torch.Tensor, turns: int) -> list[float]:
    """Seconds of each of several calls, at the rank that is done last."""
    seconds = []
    for _ in range(turns + 1):                  # the first one connects, and is not counted
        dist.barrier()
        begin = time.perf_counter()
        call(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    longest = torch.tensor(seconds[1:], device=x.device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return longest.tolist()


def sweep(sizes: list[int] = SIZES, turns: int = TURNS, device: str = "cpu",
          wire: tuple[float, float] | None = None) -> dict[str, list[float]]:
    """{"message", "ring" or "tree": [seconds of each size]}.

    sizes: bytes of fp32 numbers. wire: (alpha, beta) of a Wire for each rank
    """
    ways = {"message": lambda x: exchange(x, torch.empty_like(x)), "ring": all_reduce,
            "tree": all_reduce_tree}
    if dist.get_world_size() < 2:
        raise ValueError("sweep: expected 2 ranks or more, found 1")
    with Wire(*wire) if wire else paused():     # beside a slow wire, writing calls down is nothing
        return {name: [min(timed(call, torch.ones(S // 4, device=device), turns)) for S in sizes]
                for name, call in ways.items()}


def fit(sizes: Sequence[float], seconds: list[float]) -> tuple[float, float]:
    """(alpha, beta) for alpha + S · beta, with the smallest sum of squares of relative errors: a
    small message counts as much as a large one.
    Neither is less than 0."""
    t = np.array(seconds)
    rows = np.stack([np.ones(len(sizes)), np.array(sizes, float)], 1) / t[:, None]      # (sizes, 2)
    alpha, beta = np.linalg.lstsq(rows, np.ones(len(sizes)), rcond=None)[0]
    if alpha < 0 or beta < 0:
        raise ValueError("the times do not grow with the bytes as alpha + S · beta does: measure "
                         "on a quiet machine")
    return float(alpha), float(beta)


def measured_crossing(sizes: list[int], seconds: dict[str, list[float]]) -> float:
    """Bytes from which on the ring was faster than the tree; between two sizes the times are taken
    for straight lines. seconds: as sweep has them"""
    lead = np.subtract(seconds["ring"], seconds["tree"])
    for (S, before), (larger, after) in itertools.pairwise(zip(sizes, lead, strict=True)):
        if before > 0 >= after:
            return float(S + (larger - S) * before / (before - after))
    raise ValueError(f"ring and tree do not cross between {sizes[0]:,} and {sizes[-1]:,} bytes")


def table(sizes: list[int], seconds: dict[str, list[float]]) -> list[str]:
    """The sweep as lines; busbw: bytes that each wire carried a second, as nccl-tests has it."""
    lines = [f"{'bytes':>10}" + "".join(f"{name + ', ms':>14}" for name in seconds)]
    lines += [f"{S:>10,}" + "".join(f"{1e3 * t:>14.3f}" for t in row)
              for S, *row in zip(sizes, *seconds.values(), strict=True)]
    return lines


def main() -> None:
    """One rank of `torchrun`; rank 0 prints."""
    seconds = sweep(device=meet("s20_collectives"))
    if dist.get_rank() == 0:
        n = dist.get_world_size()
        alpha, beta = fit(SIZES, seconds["message"])
        print(f"{n} ranks, {dist.get_backend()}: alpha {1e6 * alpha:.1f} µs, "
              f"1 / beta {1e-9 / beta:.2f} GB/s")
        print("\n".join(table(SIZES, seconds)))
        busbw = 2 * (n - 1) / n * SIZES[-1] / seconds["ring"][-1]
        print(f"ring, {SIZES[-1]:,} bytes: busbw {busbw / 1e9:.2f} GB/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
