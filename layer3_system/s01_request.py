"""s01 · A request and its sampler: from scores to a token, from tokens to the text of an answer

B: sequences of a step   V: vocabulary
A token rests on the logits of its own sequence, on its seed and on its position, and on nothing
else: not on who shares the step. So an answer can be computed again, alone or in any batch.
Sampling reads V numbers a token; a model reads all of its weights.
"""

import secrets
import time
from dataclasses import dataclass, field

import numpy as np
import torch

from lab.plots import BLUE, INK, RED
from layer3_system.sampling_params import RequestError, SamplingParams

__all__ = ["Detokenizer", "Request", "RequestError", "SamplingParams", "StopStrings",
           "finish_reason", "logprobs_of", "sample_rows", "uniform"]

WHOLE = 4               # bytes of the longest character in UTF-8: so many tokens at most
BEFORE = 6              # tokens of the prompt that tell how the first word is written
BROKEN = "\N{REPLACEMENT CHARACTER}"


# ---- a request


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
    num_cached_pages: int = 0           # of its pages, how many the pool knows the contents of
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
    hold: bool = False                              # keep its pages at its end
    received: tuple | None = None                   # keys and values that were computed elsewhere
    leader: object = None                           # whose prompt this one waits for
    writer: object = None                           # of its text

    def __post_init__(self):
        if self.seed is None:
            seed = self.params.seed
            self.seed = secrets.randbits(64) if seed is None else seed % 2**64

    @property
    def tokens(self):
        return self.prompt + self.output

    @property
    def num_tokens(self):
        return len(self.prompt) + len(self.output)

    def uniform(self):
        """The random number of its next token."""
        return uniform(self.seed, self.index, len(self.output))


# ---- a random number


def predict_changed():
    """Of the random numbers of 40 tokens, how many change when the request has company?

    One generator serves the engine: in each step it deals one number to each row, from row 0 on.
    The request is row 0. The first time it is alone. The second time the generator begins anew, and
    from the 11th token on somebody else is row 1.
    """
    # exercise: write down which of the dealt numbers row 0 gets, 0, 1, 2, … in either run
    return 40 - 11                  # its 11th number is dealt before the first of row 1


def uniform(seed, index, position):
    """The random number in [0, 1) of one token: the same wherever and whenever it is asked for.

    seed: of the request, below 2⁶⁴    index: which of its n answers    position: which token of it
    By the counter-based generator Philox: Salmon, Moraes, Dror and Shaw, 2011. The seed is the key;
    there is no state that the order of requests could change.
    """
    generator = np.random.Philox(key=seed, counter=[0, 0, index, position])
    return np.random.Generator(generator).random(dtype=np.float32)


# ---- one token


def keep_top_k(z, k):                               # (V,) -> (V,)
    """Logits with -inf for all but the k largest; equals of the k-th stay. 0: all stay."""
    if not 0 < k < len(z):
        return z
    least = np.partition(z, -k)[-k]
    return np.where(z < least, -np.inf, z)


def keep_top_p(z, p):                               # (V,) -> (V,)
    """Logits with -inf for all but the fewest that hold the share p; equals of the last stay.

    A logit's share is exp(logit) of the sum over all. The token with which p is reached is kept.
    """
    if p == 1:
        return z
    # exercise: sort, add up from the likeliest, and see how much there was before each token
    weights = np.exp(z.astype(np.float64) - z.max())        # (V,)
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    candidates = order[before < p * weights.sum()]
    return np.where(weights < weights[candidates[-1]], -np.inf, z)


def draw(z, u):                                     # (V,) -> int
    """The token at which the running sum of the shares passes u, a number in [0, 1).

    The sum runs from token 0 to token V - 1, in this order.
    """
    # exercise: weights from logits, their running sum, the first place beyond u of the whole
    sums = np.cumsum(np.exp(z.astype(np.float64) - z.max()))
    return int(np.searchsorted(sums, u * sums[-1], side="right"))


def sample_row(z, temperature, top_k, top_p, u):    # (V,) -> int
    """One token from one sequence's logits; None where they have a NaN or their largest is inf.

    Temperature first, so that top_p sees what is drawn from. 0 is greedy: the first of the largest.
    """
    if not np.isfinite(z.max()):
        return None
    if temperature == 0:
        return int(np.argmax(z))
    z = (z.astype(np.float64) - z.max()) / temperature
    return draw(keep_top_p(keep_top_k(z, top_k), top_p), u)


def sample_rows(logits, params):                    # (B, V), Sampling -> (B,) int64
    """As `sample` of the kernels, row by row: -1 for a row that cannot be sampled."""
    columns = (column.tolist() for column in params)
    tokens = [sample_row(z, *row) for z, *row in zip(logits.float().cpu().numpy(), *columns,
                                                    strict=True)]
    return torch.tensor([-1 if token is None else token for token in tokens])


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
        begin = max(len(prompt) - BEFORE, 0)
        inside = [at for at in range(begin, max(begin - WHOLE, -1), -1)
                  if not decode(prompt[at:]).startswith(BROKEN)]    # begins with a whole character
        self.decode = decode
        self.tokens = list(prompt[inside[0] if inside else begin:])
        self.whole = len(self.tokens)               # tokens shown so far, of those
        self.shown = len(decode(self.tokens))       # characters shown so far

    def rest(self):
        """What is still held back when no token comes any more."""
        return self.decode(self.tokens)[self.shown:]

    def add(self, token):
        """The text to show after one more token; "" while a character is not whole.

        A text that ends in BROKEN may lack a byte, so nothing of it is shown. But where WHOLE
        tokens or more came behind the first `whole`, all but its last character is.
        """
        # exercise: decode, show what is new; once all is whole, forget the tokens shown before
        self.tokens.append(token)
        text = self.decode(self.tokens)
        if text.endswith(BROKEN):
            waits = len(self.tokens) - self.whole < WHOLE
            end = self.shown if waits else len(text) - 1
            piece, self.shown = text[self.shown:end], end
            return piece
        piece = text[self.shown:]
        self.tokens = self.tokens[self.whole:]
        self.whole, self.shown = len(self.tokens), len(self.decode(self.tokens))
        return piece


class StopStrings:
    """Text up to the first of some texts, which may begin in one token and end in another.

    stops: the texts    held: what cannot be shown yet    found: the stop that came, or None
    """

    def __init__(self, stops):
        self.stops, self.held, self.found = tuple(stops), "", None

    def rest(self):
        """What is still held back when no text comes any more."""
        return self.held

    def add(self, text):
        """What can be shown now. What may be the begin of a stop is held back, and no more.

        Where a stop is whole, `found` says which, the earliest in the text; it and all behind it
        are dropped.
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


# ---- the end


def finish_reason(request, ends):
    """Why an answer ends with its newest token: "stop", "length", or None where it goes on.

    ends: tokens with which the model ends a text
    An end or a stop token counts from min_tokens on. At its limit an answer ends in any case.
    """
    params, written = request.params, len(request.output)
    full = written == params.max_tokens or request.num_tokens >= request.limit
    if written < params.min_tokens:
        return "length" if full else None
    last = request.output[-1]
    if last in ends and not params.ignore_eos or last in params.stop_token_ids:
        return "stop"
    return "length" if full else None


# ---- a picture


def draw_kept(title, words, chosen, k):
    """How many tokens are kept after each word, on a log scale, against the k of top-k.

    words: [text]    chosen: [count], one for each word
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    colours = [RED if n > k else BLUE for n in chosen]
    axes.bar(range(len(chosen)), chosen, color=colours, width=0.75)
    axes.axhline(k, color=INK, lw=1, ls="--")
    axes.annotate(f"top-k {k}", (len(chosen) - 0.5, k), xytext=(0, 4), ha="right",
                  textcoords="offset points", color=INK)
    axes.set(title=title, ylabel="tokens", yscale="log", ylim=(0.8, 2 * max(chosen)),
             xlim=(-0.7, len(chosen) - 0.3))
    axes.set_xticks(range(len(words)), words, rotation=90, fontsize=7)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.tick_params(length=0)
    axes.spines[["top", "right"]].set_visible(False)
    plt.close(figure)           # a notebook shows what is returned, and open figures once more
    return figure
