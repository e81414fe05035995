"""Guesses at the next tokens, and what becomes of them in the step that verifies them"""

from collections import Counter
from collections.abc import Callable

from torch import Tensor

from layer1_kernels import Sampling
from layer3_system.engine.draws import Draw, sampling
from layer3_system.engine.lengths import Lengths
from layer3_system.s01_request import Request
from layer3_system.s02_block_pool import BlockPool

Sampler = Callable[[Tensor, Sampling], Tensor]          # (B, V) -> (B,)


def drop_guesses(request: Request, pool: BlockPool) -> None:
    """After a step with guesses, whose tokens are in the answer: forget the guesses.
    Those that were refused no longer count as computed."""
    request.num_computed = request.num_tokens - 1
    request.draft = []
    pool.cache_pages(request)


class Drafter:
    """Guesses from each request's own text.
    A guess holds where it is the token that the engine draws there itself, so answers are the
    same as without guesses.

    drafts: how often a request had guesses    guesses: how many in all
    hits: {place in a request's guesses, from 0: how many held there}
    """

    def __init__(self, guess: Callable[[list[int]], list[int]],
                 roll_back: Callable[[Request, BlockPool], None] = drop_guesses,
                 lengths: Lengths | None = None):
        """guess: from the tokens of a text to guesses at the next ones
        roll_back: like drop_guesses, which it is by default
        lengths: chooses how many guesses each request gets; None: all that there are
        """
        self.guess = guess
        self.roll_back = roll_back
        self.lengths = lengths
        self.drafts = 0
        self.guesses = 0
        self.hits: Counter[int] = Counter()

    def propose(self, requests: list[Request]) -> list[list[int]]:
        """Guesses for each of the requests, all of which lack one token."""
        if self.lengths is None:
            return [self.guess(request.tokens) for request in requests]
        return [self.guess(request.tokens)[:most] if most else []
                for request, most in zip(requests, self.lengths.choose(requests), strict=True)]

    def draw(self, draws: list[Draw], scores: Tensor,
             sample: Sampler) -> Tensor:                # (draws, V) -> (draws,)
        """The token of each draw, UNDRAWN where a refused guess leaves nothing to draw."""
        return sample(scores, sampling(draws, scores.device))

    def settle(self, request: Request, hits: int, pool: BlockPool) -> None:
        """After a step that verified a request's guesses, of which the first `hits` are in its
        answer: note that, and roll the request back."""
        self.drafts += 1
        self.guesses += len(request.draft)
        self.hits.update(range(hits))
        if self.lengths:
            self.lengths.note(request, hits)
        self.roll_back(request, pool)
