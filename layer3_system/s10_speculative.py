"""s10 · Draft and verify: guesses at the next tokens, all checked in one step

V: vocabulary   N: tokens of a text   S: slots of a page
γ: guesses in a step   p_i, q_i: shares of the i-th new token, the model's and the draft's
A step reads all weights, whether it computes one token or γ + 1. So γ guesses go along with the
newest token, as if they were a prompt.
Of them a step keeps those that hold, and adds one token of its own: 1 to γ + 1 tokens, and each has
the distribution that it would have without guesses.
Costs γ rows a step, refused or not; `accept` reads 2·γ·V numbers on the host.
"""

import numpy as np

from layer3_system.s01_request import Request
from layer3_system.s02_block_pool import BlockPool, pages_for

__all__ = ["accept", "draw_by_noise", "lookup", "noise", "pick", "roll_back"]


def predict_tokens_a_step() -> float:
    """Tokens that a step writes on average with 4 guesses, each of which holds with 0.8 if those
    before it hold.
    Within 0.01 is right."""
    # exercise: how often are there at least 1, 2, 3, 4 and 5 tokens?
    return 1 + 0.8 + 0.8**2 + 0.8**3 + 0.8**4


def predict_same_number() -> float:
    """How often two draws that use the same u, each by its own running sum, give the same token.

    One draws with shares 0.5, 0.3 and 0.2 of three tokens, the other with 0.2, 0.3 and 0.5.
    """
    # exercise: which token has each u from 0 to 1, in one sum and in the other?
    return 0.2 + 0.2                # both token 0 up to 0.2, both token 2 from 0.8 on


# ---- guesses from the text


def lookup(tokens: list[int], count: int, longest: int = 4) -> list[int]:
    """Guesses at what follows a text, from the text itself; [] if nothing in it helps.

    Take the longest end of the text, at most `longest` tokens, that also occurs earlier in it.
    Of its earlier occurrences, which may overlap it, take the last.
    Return what followed that one, at most `count` tokens.
    """
    # exercise: ends from the longest to one token; places from the last one to the first
    for n in range(min(longest, len(tokens) - 1), 0, -1):
        end = tokens[-n:]
        for begin in range(len(tokens) - n - 1, -1, -1):
            if tokens[begin:begin + n] == end:
                return tokens[begin + n:begin + n + count]
    return []


# ---- the same randomness on both sides


def noise(seed: int, index: int, position: int, V: int) -> np.ndarray:      # (V,) float64
    """A random number in (0, 1) for each token of the vocabulary, at one place of an answer.

    seed, index, position: as `uniform` has them, with the same generator
    """
    generator = np.random.Philox(key=seed, counter=[0, 0, index, position])
    return np.maximum(np.random.Generator(generator).random(V), 2.0**-53)


def draw_by_noise(shares: np.ndarray, noise: np.ndarray) -> int:    # (V,), (V,) -> int
    """A token, by a race: token v needs the time E_v / share_v with E_v = -log(noise_v), and the
    least time wins.
    So v wins with the probability share_v.

    shares: 0 or more, at least one of them not 0    noise: numbers in (0, 1)
    """
    # exercise: the least time; a share of 0 never wins
    return int(np.argmax(shares / -np.log(noise)))


# ---- a draft's guesses


def pick(weights: np.ndarray, u: float) -> int:                     # (V,) -> int
    """The token at which the running sum of the weights passes u of their total.
    They need not add
    up to 1; ValueError if all of them are 0.    u: a number in [0, 1)"""
    sums = np.cumsum(weights)
    if not sums[-1] > 0:
        raise ValueError(f"pick: expected a weight above 0, found a total of {sums[-1]}")
    token = int(sums.searchsorted(u * sums[-1], side="right"))
    return token if token < len(sums) else int(np.flatnonzero(weights)[-1])     # u · total rounds


def accept(p: np.ndarray, q: np.ndarray, guesses: list[int], u_accept: np.ndarray,
           u_draw: np.ndarray) -> list[int]:
    """The tokens of a step: the guesses that hold, then one that is drawn.
    They are distributed as without guesses (Leviathan, Kalman and Matias, 2023).

    p: (γ + 1, V), the model's shares for each guess, and for the token after the last one
    q: (γ, V), the draft's; guess i was drawn with the shares q[i]
    u_accept: (γ,), numbers in [0, 1) that decide on the guesses
    u_draw: (γ + 1,), numbers in [0, 1) for `pick`
    Guess x holds with the probability min(1, p(x) / q(x)).
    The first that does not is replaced by a token drawn with the residual, max(p - q, 0); where
    rounding leaves nothing of it, with p.
    If all hold, the last row of p gives one more.
    Place i is drawn with u_draw[i].
    """
    # exercise: go along the guesses; after a refusal, a token of the residual is the last one
    for i, x in enumerate(guesses):
        if u_accept[i] * q[i, x] >= p[i, x]:            # refused; a quotient would divide by 0
            left = np.maximum(p[i] - q[i], 0)
            return [*guesses[:i], pick(left if left.any() else p[i], u_draw[i])]
    return [*guesses, pick(p[-1], u_draw[-1])]


def tally(p, q, count, seed):                       # (γ + 1, V), (γ, V) -> (γ + 1, V) int
    """How often each token came at each place in `count` steps: guesses are drawn with q, and
    `accept` decides.
    A place after the last token of a step counts nothing."""
    chance = np.random.default_rng(seed)
    guesses = np.stack([chance.choice(len(row), count, p=row) for row in q], 1)
    u_accept = chance.random((count, len(q)))
    u_draw = chance.random((count, len(p)))
    counts = np.zeros(p.shape, dtype=np.int64)
    for row in zip(guesses.tolist(), u_accept, u_draw, strict=True):
        tokens = accept(p, q, *row)
        counts[range(len(tokens)), tokens] += 1
    return counts


def tally_noise(shares, count, seed):               # (V,) -> (V,) int
    """How often each token wins in `count` races."""
    chance = np.random.default_rng(seed)
    rows = np.maximum(chance.random((count, len(shares))), 2.0**-53)
    winners = [draw_by_noise(shares, row) for row in rows]
    return np.bincount(winners, minlength=len(shares))


# ---- after a step


def roll_back(request: Request, pool: BlockPool) -> None:
    """After a step with guesses: keep what the tokens of the answer need, and nothing of the rest.

    request.output has the tokens of the step already, from 1 to γ + 1. request.draft has its
    guesses, of which num_computed counts all.
    Afterwards the newest token alone lacks keys and values; there are no guesses; the table has no
    page more than num_tokens tokens need, the pool got the others back; and it remembers the full
    pages (cache_pages).
    """
    # exercise: the count first, since cache_pages believes it; then guesses, pages, cache_pages
    request.num_computed = request.num_tokens - 1
    request.draft = []
    need = pages_for(request.num_tokens, pool.S)
    pool.release(request.table[need:])
    del request.table[need:]
    pool.cache_pages(request)
