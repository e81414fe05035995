"""A step that is being computed: what computes it, which tokens it samples, and how

B: requests of a step   V: vocabulary
A step that was launched is a Flight. Its results are read when it is committed: at once or, if
steps overlap, after the next one was launched.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import torch

from layer1_kernels import Sampling
from layer2_graph import Config, Step
from layer3_system.s01_request import Request, uniform
from layer3_system.s02_block_pool import Pages


class Model(Protocol):
    """What an engine needs of a model. g01's Llama is one."""

    config: Config
    embedding: torch.Tensor

    def forward(self, step: Step, cache: Pages,
                every: bool = False) -> torch.Tensor: ...   # (B, V), or (T, V) for every token


class Runner(Protocol):
    """What computes steps that need one row of scores a request: a Model, or g06's GraphRunner."""

    def forward(self, step: Step, cache: Pages) -> torch.Tensor: ...    # (B, V)


class Draw(NamedTuple):
    """One token to sample: its request, the row of the scores, and how many guesses precede it."""

    request: Request
    row: int
    place: int


class Flight(NamedTuple):
    """A step that was launched. The results need not be there yet."""

    counts: dict[Request, int]  # {request: tokens that it computes}
    step: Step
    draws: list[Draw]
    logits: torch.Tensor        # (rows, V)
    tokens: torch.Tensor        # (draws,)


def draws_of(pairs: Iterable[tuple[Request, int]]) -> list[Draw]:
    """[Draw] of (request, row): one from each earlier row, which judges a guess, and one from this
    row, which follows the last guess."""
    return [Draw(request, row - len(request.draft) + i, i)
            for request, row in pairs for i in range(len(request.draft) + 1)]


def sampling(draws: list[Draw], device: torch.device) -> Sampling:     # of (draws,)
    """How each token is sampled."""
    params = [draw.request.params for draw in draws]
    numbers = [uniform(r.seed, r.index, len(r.output) + r.pending + place)
               if r.params.temperature else 0.0 for r, _, place in draws]     # greedy: unused
    return Sampling(
        torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device),
        torch.tensor([max(p.top_k, 0) for p in params], dtype=torch.int32, device=device),
        torch.tensor([p.top_p for p in params], dtype=torch.float32, device=device),
        torch.tensor(numbers, dtype=torch.float32, device=device))


def tokens_in_flight(flights: Iterable[Flight]) -> dict[Request, torch.Tensor]:
    """{request: its token that is still being computed}."""
    return {draw.request: flight.tokens[i] for flight in flights
            for i, draw in enumerate(flight.draws)}


def carry_over(step: Step, counts: dict[Request, int], newest: dict[Request, torch.Tensor]) -> None:
    """Put tokens that are still being computed into a step that builds on them.

    newest: {request: its token that is still being computed}
    """
    for request, end in zip(counts, step.cu_q[1:].tolist(), strict=True):
        if newest and request.num_computed > request.num_tokens + len(request.draft):
            step.tokens[end - 1] = newest[request]
