"""s01 · A request and its sampler: what a client may ask for, and how its answer becomes text

B: sequences of a step   V: vocabulary
A token rests on the logits of its own sequence, on its seed and on its position, and on nothing
else: not on who shares the step. So an answer can be computed again, alone or in any batch.
Sampling reads V numbers a token; a model reads all of its weights.
"""

import secrets
import time
from dataclasses import dataclass, field, fields

import numpy as np
import torch

__all__ = ["Detokenizer", "Request", "RequestError", "SamplingParams", "StopStrings",
           "finish_reason", "logprobs_of", "sample_rows", "uniform"]

WHOLE = 4               # bytes of the longest character in UTF-8: so many tokens at most
BEFORE = 6              # tokens of the prompt that tell how the first word is written
BROKEN = "\N{REPLACEMENT CHARACTER}"


class RequestError(ValueError):
    """A request that cannot be served: the field, what was expected, what was found."""


# ---- what a client may ask for


def whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


def number(value):
    return whole(value) or isinstance(value, float)


# field -> (is it right?, what was expected)
EXPECTED = {
    "max_tokens": (lambda v: v is None or whole(v) and v >= 1, "an integer from 1"),
    "min_tokens": (lambda v: whole(v) and v >= 0, "an integer from 0"),
    "temperature": (lambda v: number(v) and 0 <= v <= 100, "a number from 0 to 100"),
    "top_k": (lambda v: whole(v) and -1 <= v < 2**31, "an integer from 1, or 0 or -1 for all"),
    "top_p": (lambda v: number(v) and 0 < v <= 1, "a number above 0, at most 1"),
    "seed": (lambda v: v is None or whole(v) and -2**63 <= v < 2**63, "an integer of 64 bits"),
    "stop": (lambda v: isinstance(v, tuple) and len(v) <= 16 and all(
        isinstance(s, str) and s for s in v), "at most 16 texts, none of them empty"),
    "stop_token_ids": (lambda v: isinstance(v, tuple) and all(whole(t) and t >= 0 for t in v),
                       "a list of tokens"),
    "ignore_eos": (lambda v: isinstance(v, bool), "true or false"),
    "logprobs": (lambda v: v is None or whole(v) and 0 <= v <= 20, "an integer from 0 to 20"),
    "prompt_logprobs": (lambda v: v is None or whole(v) and 0 <= v <= 20,
                        "an integer from 0 to 20"),
    "n": (lambda v: whole(v) and 1 <= v <= 128, "an integer from 1 to 128"),
}


@dataclass(frozen=True)
class SamplingParams:
    """How an answer is to be sampled, and when it ends. RequestError names a wrong field.

    max_tokens: None takes what the model has room for
    min_tokens: nothing but length ends an answer before it has so many
    temperature: 0 takes the likeliest    top_k: of so many, 0 or -1 all
    top_p: of the fewest that hold this share    seed: None takes one that nobody knows
    stop: texts that end an answer and are not part of it    stop_token_ids: tokens that do
    ignore_eos: go on where the model would end
    logprobs, prompt_logprobs: of so many of the likeliest tokens at each place, None none
    n: answers to one prompt
    """

    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1

    def __post_init__(self):
        for f in fields(self):
            right, expected = EXPECTED[f.name]
            found = getattr(self, f.name)
            if not right(found):
                raise RequestError(f"{f.name}: expected {expected}, found {found!r}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens: expected at most max_tokens, {self.max_tokens}, "
                               f"found {self.min_tokens}")


@dataclass(eq=False)
class Request:
    """One answer in the making. It equals only itself.

    A step computes the next tokens of it: num_computed chases num_tokens, and where it gets there,
    a token is sampled. There is no prefill and no decode beyond that.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    index: int = 0                      # which of the n answers to its prompt
    salt: str = ""                      # requests with other salts share no pages
    arrival: float = field(default_factory=time.monotonic)      # seconds
    seed: int = None
    output: list[int] = field(default_factory=list)
    logprobs: list[dict] = field(default_factory=list)          # of each token of output
    prompt_logprobs: list[dict] = field(default_factory=list)   # of each token but the first
    draft: list[int] = field(default_factory=list)  # guesses at the next tokens, to be verified
    limit: int = 2**31                  # tokens that it may have, those of the prompt included
    pending: int = 0                    # of its next tokens, how many are being computed
    table: list[int] = field(default_factory=list)  # its pages, in order
    hashes: list[bytes] = field(default_factory=list)   # of its full pages that are known
    remembered: int = 0                 # of its pages, how many the pool knows the contents of
    num_computed: int = 0               # tokens whose keys and values are in its pages
    num_cached: int = 0                 # of those, how many it found there when first admitted
    status: str = "waiting"             # running, finished
    reason: str | None = None           # stop, length, abort or error, once finished
    error: str | None = None
    preemptions: int = 0
    scheduled_at: float | None = None   # first time in a step, seconds
    token_times: list[float] = field(default_factory=list)      # of each token of output
    finished_at: float | None = None
    forks: list = field(default_factory=list)       # answers that wait for this one's prompt
    leader: object = None                           # whose prompt this one waits for
    writer: object = None                           # of its text

    def __post_init__(self):
        if self.seed is None:
            given = self.params.seed
            self.seed = secrets.randbits(64) if given is None else given % 2**64

    @property
    def tokens(self):
        return self.prompt + self.output

    @property
    def num_tokens(self):
        return len(self.prompt) + len(self.output)

    def uniform(self):
        """The random number of its next token."""
        return uniform(self.seed, self.index, len(self.output))


# ---- one token


def uniform(seed, index, position):
    """The random number in [0, 1) for one token: the same wherever and whenever it is asked for.

    seed: of the request, below 2⁶⁴    index: which of its n answers    position: which token of it
    By the counter-based generator Philox: Salmon, Moraes, Dror and Shaw, 2011. The seed is the key;
    there is no state that the order of requests could change.
    """
    # exercise: a key of the seed, a counter of the answer and the token, one number in float32
    generator = np.random.Philox(key=seed, counter=[0, 0, index, position])
    return np.random.Generator(generator).random(dtype=np.float32)


def keep_top_k(z, k):                               # (V,) -> (V,)
    """Logits with -inf for all but the k largest; equals of the k-th stay. 0: all stay."""
    # exercise: find the k-th largest, and put -inf where a logit is smaller
    if not 0 < k < len(z):
        return z
    least = np.partition(z, -k)[-k]
    return np.where(z < least, -np.inf, z)


def keep_top_p(z, p):                               # (V,) -> (V,)
    """Logits with -inf for all but the fewest that hold the share p; equals of the last stay.

    The token with which the share is reached is kept.
    """
    # exercise: sort, add up from the likeliest, and see how much there was before each token
    weights = np.exp(z.astype(np.float64) - z.max())        # (V,)
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    kept = order[before < p * weights.sum()]
    return np.where(weights < weights[kept[-1]], -np.inf, z)


def draw(z, u):                                     # (V,) -> int
    """The token at which the running sum of the shares passes u, a number in [0, 1)."""
    # exercise: weights from logits, their running sum, the first place beyond u of the whole
    sums = np.cumsum(np.exp(z.astype(np.float64) - z.max()))
    return int(np.searchsorted(sums, u * sums[-1], side="right"))


def sample_row(z, temperature, top_k, top_p, u):    # (V,) -> int
    """One token from one sequence's logits; None where they have a NaN or their largest is inf.

    Temperature first, so that top_p sees what is drawn from. 0 is greedy: the first of the largest.
    """
    # exercise: greedy or not, then the three above, one after the other
    if not np.isfinite(z.max()):
        return None
    if temperature == 0:
        return int(np.argmax(z))
    z = (z - z.max()) / temperature
    return draw(keep_top_p(keep_top_k(z, top_k), top_p), u)


def sample_rows(logits, params):                    # (B, V), Sampling -> (B,) int64
    """As `sample` of the kernels, row by row: -1 for a row that cannot be sampled."""
    columns = (column.tolist() for column in params)
    found = [sample_row(z, *row) for z, *row in zip(logits.float().cpu().numpy(), *columns,
                                                    strict=True)]
    return torch.tensor([-1 if token is None else token for token in found])


def logprobs_of(z, token, count):                   # (V,) -> {token: logprob}
    """Logarithms of the shares of the `count` likeliest tokens and of `token`, by raw logits.

    Neither temperature nor top_k nor top_p is in them, so they are the model's own.
    """
    shares = torch.log_softmax(z.float(), -1)
    likeliest = shares.topk(min(count, len(z))).indices.tolist() if count else []
    return {t: float(shares[t]) for t in dict.fromkeys([*likeliest, token])}


# ---- text


class Detokenizer:
    """Text of tokens as they come. A character waits until its last byte is there.

    Only the newest tokens are decoded again: those since the last time all was whole, and the ones
    shown then, since how a word is written may rest on what is before it.
    """

    def __init__(self, decode, prompt):
        """decode: [token] -> text    prompt: [token]; a character that it began stays its own."""
        self.decode = decode
        self.tokens = list(prompt[-BEFORE:])
        self.whole = len(self.tokens)               # tokens shown so far, of those
        self.shown = len(decode(self.tokens))       # characters shown so far

    def add(self, token):
        """The text to show after one more token; "" while a character is not whole."""
        # exercise: decode, hold back a character that may become whole, keep what is shown
        self.tokens.append(token)
        text = self.decode(self.tokens)
        if text.endswith(BROKEN):                   # not whole, or never to be
            waits = len(self.tokens) - self.whole < WHOLE
            end = self.shown if waits else len(text) - 1
            piece, self.shown = text[self.shown:end], end
            return piece
        piece = text[self.shown:]
        self.tokens = self.tokens[self.whole:]
        self.whole, self.shown = len(self.tokens), len(self.decode(self.tokens))
        return piece

    def rest(self):
        """What is still held back when no token comes any more."""
        return self.decode(self.tokens)[self.shown:]


class StopStrings:
    """Text up to the first of some texts, which may begin in one token and end in another."""

    def __init__(self, stops):
        self.stops, self.held, self.found = tuple(stops), "", None

    def add(self, text):
        """What can be shown now. What may be the begin of a stop is held back.

        Where a stop is whole, `found` says which; it and all behind it are dropped.
        """
        # exercise: the earliest stop in what is held, else the longest end that may become one
        self.held += text
        places = [(at, stop) for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if places:
            at, self.found = min(places, key=lambda place: place[0])
            piece, self.held = self.held[:at], ""
            return piece
        longest = max((n for stop in self.stops for n in range(1, len(stop))
                       if self.held.endswith(stop[:n])), default=0)
        at = len(self.held) - longest
        piece, self.held = self.held[:at], self.held[at:]
        return piece

    def rest(self):
        """What is still held back when no text comes any more."""
        return self.held


# ---- the end


def finish_reason(request, ends):
    """Why an answer ends with its newest token: "stop", "length", or None where it goes on.

    ends: tokens with which the model ends a text
    An end or a stop token counts from min_tokens on. At its limit an answer ends in any case.
    """
    # exercise: first what stops it, then its length
    params, written = request.params, len(request.output)
    full = written == params.max_tokens or request.num_tokens >= request.limit
    if written < params.min_tokens:
        return "length" if full else None
    last = request.output[-1]
    if last in ends and not params.ignore_eos or last in params.stop_token_ids:
        return "stop"
    return "length" if full else None
