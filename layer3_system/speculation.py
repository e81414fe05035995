"""A small model that guesses for a whole batch, and how many guesses are worth a step

V: vocabulary   B: requests   γ: guesses of a request   N: tokens of a text   S: slots of a page
The draft model has pages and tables of its own, and follows each request's text.
A request with a seed is drawn by one noise a token on both sides, so that its answer depends on its
seed alone; one without by the draft's shares, which accepts more.
Costs γ steps of the draft model a step, and on the host 2·γ·V numbers a request that samples.
"""

from collections.abc import Callable, Iterator
from itertools import groupby

import numpy as np
import torch

from layer3_system.engine.drafts import Drafter, Sampler
from layer3_system.engine.draws import UNDRAWN, Draw, adjusted_row, sampling
from layer3_system.engine.lengths import Lengths
from layer3_system.model import Model, make_cache
from layer3_system.s01_request import Request, keep_top_k, keep_top_p
from layer3_system.s02_block_pool import BlockPool
from layer3_system.s06_prefix_cache import PrefixPool
from layer3_system.s07_engine import build_step
from layer3_system.s10_speculative import accept, draw_by_noise, noise, pick, roll_back

__all__ = ["ModelDrafter", "shares_of"]

CHUNK = 256             # tokens of a text that the draft model reads before an engine's step
DECIDING = 2**32        # of the numbers of a place: added to its position, for other numbers


def shares_of(z: torch.Tensor, request: Request) -> np.ndarray | None:      # (V,) -> (V,) float64
    """The shares that a request's next token is drawn with, from scores after penalties: after its
    temperature, top_k and top_p.
    None if they are not finite."""
    row = z.double().cpu().numpy()
    if not np.isfinite(row.max()):
        return None
    params = request.params
    row = (row - row.max()) / params.temperature
    weights = np.exp(keep_top_p(keep_top_k(row, params.top_k), params.top_p))
    return weights / weights.sum()


def numbers(request: Request, place: int) -> np.ndarray:        # (3,)
    """A request's own random numbers at the place-th token from here: for the draft's guess, for
    the decision on it, and for the model's own token."""
    position = len(request.output) + place
    return noise(request.seed, request.index, DECIDING + position, 3)


def noise_of(request: Request, place: int, V: int) -> np.ndarray:           # (V,)
    """One number a token, for the place-th token of a request from here.
    With a seed they are the same with or without guesses, in any batch."""
    return noise(request.seed, request.index, len(request.output) + place, V)


class ModelDrafter(Drafter):
    """Guesses of a model with the same vocabulary, for all requests in one step a guess."""

    def __init__(self, model: Model, count: int, P: int, S: int = 16,
                 accept: Callable[..., list[int]] = accept,
                 race: Callable[[np.ndarray, np.ndarray], int] = draw_by_noise,
                 roll_back: Callable[[Request, BlockPool], None] = roll_back,
                 lengths: Lengths | None = None):
        """count: guesses of a request at a time    P, S: pages for its keys and values
        accept, race, roll_back: s10's    lengths: chooses how many guesses, up to count
        """
        super().__init__(lambda tokens: [], roll_back, lengths)
        self.model = model
        self.count = count
        self.accept = accept
        self.race = race
        self.pool = PrefixPool(P, S)
        self.pages = make_cache(model, P, S)
        self.shadows: dict[Request, Request] = {}           # with the draft's table of each text
        self.shares: dict[Request, list[np.ndarray]] = {}   # (V,) that each guess was drawn with

    # ---- guesses

    def propose(self, requests: list[Request]) -> list[list[int]]:
        """Guesses for each of the requests, all of which lack one token."""
        self.forget()
        # Keys of refused guesses can only be at the newest token's place and after it.
        for shadow in self.shadows.values():
            shadow.num_computed = min(shadow.num_computed, shadow.num_tokens - 1)
        self.shares = {request: [] for request in requests}
        most = self.lengths.choose(requests) if self.lengths else [self.count] * len(requests)
        counts = {request: n for request, n in zip(requests, most, strict=True)
                  if n and self.follow(request, n)}
        for place in range(max(counts.values(), default=0)):
            some = [request for request, n in counts.items() if place < n]
            logits = self.compute({shadow: shadow.num_tokens + place - shadow.num_computed
                                   for shadow in map(self.shadows.get, some)})
            for request, z in zip(some, logits, strict=True):
                self.add_guess(request, z, place)
        return [self.shadows[r].draft if r in counts else [] for r in requests]

    def forget(self) -> None:
        """Give back the pages of requests that no longer run."""
        for request in [r for r in self.shadows if r.status != "running"]:
            self.pool.release(self.shadows.pop(request).table)

    def follow(self, request: Request, count: int) -> bool:
        """Whether `count` guesses can be made now: they fit into the draft model's context, there
        are pages, and it lacks few tokens of the text.
        If it lacks many, it computes some."""
        shadow = self.shadows.get(request)
        if shadow is None:
            shadow = Request(request.id, request.prompt, request.params, request.index,
                             request.salt, seed=request.seed, output=request.output)
            shadow.table = self.pool.match_prefix(shadow)
            self.pool.share(shadow.table)
            shadow.num_cached_pages = len(shadow.table)
            # of a text that is known whole, the newest token gives the scores
            shadow.num_computed = min(len(shadow.table) * self.pool.S, shadow.num_tokens - 1)
            self.shadows[request] = shadow
        shadow.draft = []
        self.pool.cache_pages(shadow)
        length = shadow.num_tokens + count
        if length > self.model.config.room or not self.pool.grow(shadow.table, length):
            return False
        if shadow.num_tokens - shadow.num_computed > CHUNK:
            self.compute({shadow: CHUNK})
            return False
        return True

    def compute(self, counts: dict[Request, int]) -> torch.Tensor:      # (B, V)
        """The draft model's step of these texts and numbers of tokens."""
        for shadow, n in counts.items():
            shadow.num_computed += n
        batch = build_step(counts, self.pool.S)
        device = self.model.embedding.device
        return self.model.forward(type(batch)(*(array.to(device) for array in batch)), self.pages)

    def add_guess(self, request: Request, z: torch.Tensor, place: int) -> None:     # (V,)
        """Draw a guess from the draft model's scores, by the rule that the step decides by."""
        shadow = self.shadows[request]
        if request.params.changes_scores or request.guide:      # so that no guess is refused by it
            bits = request.guide.rows(shadow.draft)[-1] if request.guide else None
            z = adjusted_row(z.float(), Draw(shadow, 0, place), None, bits)
        if not request.params.temperature:
            shadow.draft.append(int(z.argmax()))
            return
        shares = shares_of(z, request)
        if shares is None:                  # any draft will do: the step decides
            shares = np.ones(len(z)) / len(z)
        self.shares[request].append(shares)
        shadow.draft.append(self.race(shares, noise_of(request, place, len(shares)))
                            if request.params.seed is not None
                            else pick(shares, numbers(request, place)[0]))

    # ---- their end

    def draw(self, draws: list[Draw], scores: torch.Tensor,
             sample: Sampler) -> torch.Tensor:                  # (draws, V) -> (draws,)
        """The token of each draw, UNDRAWN where a refused guess leaves nothing to draw."""
        tokens = torch.full((len(draws),), UNDRAWN, device=scores.device)
        greedy = [i for i, draw in enumerate(draws) if not draw.request.params.temperature]
        for request, rows in rows_of(draws):
            if request.params.temperature:
                own = self.decide(request, [shares_of(scores[row], request) for row in rows])
                tokens[rows[:len(own)]] = torch.tensor(own, device=scores.device)
        if greedy:
            tokens[greedy] = sample(scores[greedy], sampling([draws[i] for i in greedy],
                                                             scores.device)).to(tokens)
        return tokens

    def decide(self, request: Request, p: list[np.ndarray | None]) -> list[int]:
        """The tokens of a request's step: -1 where the model's shares are None.

        p: the shares of each place, one more than guesses
        """
        if request.params.seed is not None:
            return [-1 if row is None else self.race(row, noise_of(request, place, len(row)))
                    for place, row in enumerate(p)]
        last = next((i for i, row in enumerate(p) if row is None), len(p) - 1)
        rows = [row for row in p[:last + 1] if row is not None]
        u = np.array([numbers(request, place) for place in range(last + 1)])    # (last + 1, 3)
        V = self.model.config.V
        q = np.array(self.shares.get(request, [])[:last]).reshape(last, V)
        if len(rows) == last:
            rows.append(np.ones(V))             # drawn with, and replaced below
        tokens = self.accept(np.array(rows), q, request.draft[:last], u[:last, 1], u[:, 2])
        if len(tokens) > last and p[last] is None:
            tokens[last] = -1
        return tokens


def rows_of(draws: list[Draw]) -> Iterator[tuple[Request, list[int]]]:
    """(request, [its rows]) of draws, which are together for each request."""
    for request, group in groupby(enumerate(draws), key=lambda pair: pair[1].request):
        yield request, [i for i, _ in group]
