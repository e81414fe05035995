"""From scores to tokens: what is drawn after a step, from which scores, with which numbers

B: requests of a step   V: vocabulary
Scores change in vLLM's order: the bias, the repetition penalty, the frequency and presence
penalties, a grammar's mask, min_p; `sample` applies temperature, top_k and top_p after them.
A row depends on its own request alone, so that an answer stays the same in any batch.
Log probabilities are of the scores before all of this.
Costs some passes over the V scores of a request that asks for it.
"""

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from layer1_kernels import Sampling
from layer2_graph import Batch
from layer3_system.engine.guide import masked
from layer3_system.s01_request import Request, uniform

if TYPE_CHECKING:
    from layer3_system.engine.drafts import Drafter

UNDRAWN = -2            # in place of a token: a refused guess precedes it


class Draw(NamedTuple):
    """One token to sample: its request, the row of the scores, and how many guesses precede it."""

    request: Request
    row: int
    place: int


class Flight(NamedTuple):
    """A step that was launched.
    The results need not be there yet."""

    counts: dict[Request, int]  # {request: tokens that it computes}
    batch: Batch
    draws: list[Draw]
    logits: Tensor              # (rows, V)
    tokens: Tensor              # (draws,)

    @property
    def newest(self) -> dict[Request, Tensor]:
        """{request: its newest token, which may still be being computed}"""
        return {draw.request: self.tokens[i] for i, draw in enumerate(self.draws)}


def draw_tokens(logits: Tensor, pairs: Iterable[tuple[Request, int]], newest: dict[Request, Tensor],
                sample: Callable[[Tensor, Sampling], Tensor],
                drafter: "Drafter | None" = None) -> tuple[list[Draw], Tensor]:
    """Sample the tokens of a step: ([Draw], the token of each).    (rows, V) -> (draws,)

    pairs: (request, row of the scores after its last token)
    newest: {request: its token that is still being computed}    sample: like the kernels' `sample`
    drafter: decides on its guesses
    """
    draws = draws_of(pairs)
    rows = torch.tensor([draw.row for draw in draws], dtype=torch.long, device=logits.device)
    if not draws:
        return draws, rows
    scores = adjusted(logits[rows], draws, newest)          # a copy: a sampler may write to it
    if drafter:
        return draws, drafter.draw(draws, scores, sample)
    return draws, sample(scores, sampling(draws, logits.device)).to(logits.device)


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


# ---- penalties


def adjusted(logits: Tensor, draws: list[Draw],
             newest: dict[Request, Tensor]) -> Tensor:      # (draws, V) -> (draws, V)
    """The scores that tokens are drawn from.
    Rows without such parameters stay as they are.

    newest: {request: its token that is still being computed}
    """
    rows = [i for i, draw in enumerate(draws)
            if draw.request.params.changes_scores or draw.request.guide]
    masks = {request: request.guide.rows(request.draft)
             for request in {draw.request for draw in draws} if request.guide}
    if rows:
        logits = logits.float()
        for i in rows:
            request = draws[i].request
            bits = masks[request][draws[i].place] if request.guide else None
            logits[i] = adjusted_row(logits[i], draws[i], newest.get(request), bits)
    return logits


def adjusted_row(z: Tensor, draw: Draw, newest: Tensor | None,
                 bits: Tensor | None) -> Tensor:                    # (V,) -> (V,)
    """Penalties for what the request has written, the guesses before this one included; then -inf
    for what its grammar refuses.    bits: (W,), the tokens that it allows, or None for all"""
    params = draw.request.params
    if params.logit_bias:
        tokens, values = zip(*params.logit_bias, strict=True)
        z = z.index_add(0, torch.tensor(tokens, device=z.device),
                        torch.tensor(values, dtype=z.dtype, device=z.device))
    if params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1:
        z = penalised(z, draw, newest)
    if bits is not None:                            # min_p asks for the likeliest of what is left
        z = masked(z, bits)
    if params.min_p and params.temperature:         # p >= min_p · p of the likeliest, as logits
        z = z.masked_fill(z < z.max() + params.temperature * math.log(params.min_p), -torch.inf)
    return z


def penalised(z: Tensor, draw: Draw, newest: Tensor | None) -> Tensor:      # (V,) -> (V,)
    """Scores after the penalties for tokens that are there already."""
    request = draw.request
    params = request.params
    written = torch.tensor(request.output + request.draft[:draw.place], dtype=torch.long,
                           device=z.device)
    if newest is not None:                          # -1 ends the request before this draw counts
        written = torch.cat((written, newest.clamp(min=0).view(1)))
    counts = torch.zeros_like(z).index_add_(0, written, torch.ones_like(written, dtype=z.dtype))
    if params.repetition_penalty != 1:
        present = counts > 0
        present[torch.tensor(request.prompt, device=z.device)] = True
        penalty = params.repetition_penalty
        z = torch.where(present, torch.where(z > 0, z / penalty, z * penalty), z)
    return z - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
