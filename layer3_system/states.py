"""Requests that leave a state behind, of a fixed size, beside their pages or without any (g13)

R: seats, rows of the array of states   B: requests of a step
A state cannot be found by a page: it holds all tokens so far.
So no part of a text is shared, no guess is taken back, and a request that lost its seat begins
again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from layer2_graph import Batch, Config
from layer2_graph.hybrid import SeatedBatch, StateCache
from layer3_system.s01_request import Request
from layer3_system.s02_block_pool import BlockPool, Pages
from layer3_system.s06_prefix_cache import PrefixPool

__all__ = ["Seats", "StatePages", "check_parts", "unspoiled"]


class StatePages(Pages):
    """Pages of the layers that attend, and the states of the others."""

    def __init__(self, config: Config, P: int, S: int, dtype: torch.dtype,
                 device: torch.device | str, seats: int):
        super().__init__(config.pages(), P, S, dtype, device)
        self.state = StateCache(config, seats, device)


class Seats:
    """Which request has which row of the states.
    A request has one from its first step on, as long as it runs."""

    def __init__(self, R: int):
        self.free = list(range(R))
        self.rows: dict[Request, int] = {}

    def of(self, requests: Sequence[Request],
           running: Sequence[Request]) -> torch.Tensor:             # (B,) int64
        """The rows of the requests of a step.

        running: all that run, R at most.
        Seats of others are given back first: they are finished, or were preempted and begin again.
        """
        for request in self.rows.keys() - set(running):
            self.free.append(self.rows.pop(request))
        for request in requests:
            if request not in self.rows:
                self.rows[request] = self.free.pop()
        return torch.tensor([self.rows[request] for request in requests])


@contextmanager
def unspoiled(pages: Pages, batch: Batch) -> Iterator[None]:
    """For the work of a step: if it raises, the states of its requests are as they were."""
    if isinstance(batch, SeatedBatch) and isinstance(pages, StatePages):
        with pages.state.unless_raised(batch.seats):
            yield
    else:
        yield


def check_parts(pool: BlockPool | None, drafter: object | None) -> None:
    """ValueError if an engine's parts cannot serve a model that keeps a state."""
    if isinstance(pool, PrefixPool):
        raise ValueError("Engine: a prefix cache cannot serve a model with state, expected a "
                         "BlockPool")
    if drafter is not None:
        raise ValueError("Engine: this model keeps a state; guesses cannot be taken back")
