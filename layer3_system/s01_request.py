"""s01 · A request and its sampler: from scores to a token, from tokens to the text of an answer

B: sequences of a step   V: vocabulary
A token depends only on its own sequence's logits, its seed and its position, not on the other
requests of the step.
So an answer can be computed again, alone or in any batch.
Sampling reads V numbers a token; a model reads all of its weights.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lab.plots import BLUE, INK, RED
from layer1_kernels import Sampling
from layer3_system.sampling_params import RequestError, SamplingParams

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Detokenizer", "Request", "RequestError", "SamplingParams", "StopStrings",
           "finish_reason", "logprobs_of", "sample_rows", "uniform"]

UTF8_BYTES = 4          # of the longest UTF-8 character, so the most tokens one can take
BEFORE = 6              # last tokens of the prompt: they decide how the first word is written
BROKEN = "\N{REPLACEMENT CHARACTER}"


# ---- a request


@dataclass(eq=False)
class Request:
    """One answer while it is being generated.
    No two requests are equal.

    Each step computes some of its tokens: num_computed chases num_tokens, and when it catches up, a
    token is sampled.
    Prefill and decode are nothing more than that.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    index: int = 0                      # which of the n answers to its prompt
    salt: str = ""                      # requests with different salts share no pages
    arrival: float = field(default_factory=time.monotonic)      # seconds
    seed: int = None  # type: ignore[assignment]    # __post_init__ sets it
    output: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)  # of each token of output
    prompt_logprobs: list[dict[int, float]] = field(default_factory=list)   # from its 2nd token on
    draft: list[int] = field(default_factory=list)  # guesses at the next tokens, to be verified
    limit: int = 2**31                  # the most tokens, those of the prompt included
    pending: int = 0                    # tokens that a step is still computing
    table: list[int] = field(default_factory=list)  # its pages, in order
    hashes: list[bytes] = field(default_factory=list)   # names of its first full pages
    num_cached_pages: int = 0           # of its pages, how many have contents the pool knows
    num_computed: int = 0               # tokens whose keys and values are in its pages
    num_cached: int = 0                 # of those, found in the cache when first admitted
    status: str = "waiting"             # running, finished
    reason: str | None = None           # stop, length, abort or error, once finished
    error: str | None = None
    preemptions: int = 0
    scheduled_at: float | None = None   # first time in a step, seconds
    token_times: list[float] = field(default_factory=list)      # of each token of output
    finished_at: float | None = None
    forks: list["Request"] = field(default_factory=list)    # answers that wait for its prompt
    hold: bool = False                              # keep its pages after its end
    received: tuple[torch.Tensor, torch.Tensor] | None = None   # keys, values computed elsewhere
    leader: "Request | None" = None                 # the request whose prompt this one waits for
    writer: Any = None                              # the Writer of its text
    guide: Any = None                               # the Guide of its grammar, if it has one

    def __post_init__(self) -> None:
        if self.seed is None:
            seed = self.params.seed
            self.seed = secrets.randbits(64) if seed is None else seed % 2**64

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    def uniform(self) -> float:
        """The random number of its next token."""
        return uniform(self.seed, self.index, len(self.output))


# ---- a random number


def predict_changed() -> int:
    """The number of a request's 40 random numbers that change when another request joins.

    One generator serves the engine: in each step it gives one number to each row, from row 0 on.
    The request is row 0.
    The first time it is alone.
    The second time the generator starts again from the same state, and from the 11th token on
    another request is row 1.
    """
    # exercise: number the generator's outputs 0, 1, 2, …; which of them does row 0 get each time?
    return 40 - 11                  # its 11th number comes before the first of row 1


def uniform(seed: int, index: int, position: int) -> float:
    """The random number in [0, 1) for one token, the same whenever it is asked for.

    seed: of the request, below 2⁶⁴    index: which of the n answers    position: in the answer
    By the counter-based generator Philox: Salmon, Moraes, Dror and Shaw, 2011.
    The seed is the key.
    There is no state, so the order of requests cannot matter.
    """
    generator = np.random.Philox(key=seed, counter=[0, 0, index, position])
    return np.random.Generator(generator).random(dtype=np.float32)


# ---- one token


def keep_top_k(z: np.ndarray, k: int) -> np.ndarray:    # (V,) -> (V,)
    """The logits, with -inf for all but the k largest; ties with the k-th stay. 0 keeps all."""
    if not 0 < k < len(z):
        return z
    least = np.partition(z, -k)[-k]
    return np.where(z < least, -np.inf, z)


def keep_top_p(z: np.ndarray, p: float) -> np.ndarray:  # (V,) -> (V,)
    """The logits, with -inf for all but the fewest tokens whose shares add up to p or more.

    The share of a token is exp(logit) divided by the sum of all exp(logit).
    The token that reaches p is kept, and so are ties with it.
    """
    if p == 1:
        return z
    # exercise: sort from the likeliest down; keep a token if the sum before it is still below p
    weights = np.exp(z.astype(np.float64) - z.max())        # (V,)
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    candidates = order[before < p * weights.sum()]
    return np.where(weights < weights[candidates[-1]], -np.inf, z)


def draw(z: np.ndarray, u: float) -> int:               # (V,)
    """The first token at which the running sum of the shares exceeds u, a number in [0, 1).

    The sum runs from token 0 to token V - 1, in this order.
    """
    # exercise: exp of the logits, their running sum, the first place where it exceeds u · total
    sums = np.cumsum(np.exp(z.astype(np.float64) - z.max()))
    return int(np.searchsorted(sums, u * sums[-1], side="right"))


def sample_row(z: np.ndarray, temperature: float, top_k: int, top_p: float,
               u: float) -> int | None:                 # (V,)
    """One token from one sequence's logits; None if they contain a NaN or their largest is inf.

    Temperature comes first, so that top_p sees the shares that are drawn from. 0 is greedy: the
    first of the largest.
    """
    if not np.isfinite(z.max()):
        return None
    if temperature == 0:
        return int(np.argmax(z))
    z = (z.astype(np.float64) - z.max()) / temperature
    return draw(keep_top_p(keep_top_k(z, top_k), top_p), u)


def sample_rows(logits: torch.Tensor, params: Sampling) -> torch.Tensor:    # (B, V) -> (B,) int64
    """Like the kernels' `sample`, row by row: -1 for a row that cannot be sampled."""
    columns = (column.tolist() for column in params)
    tokens = [sample_row(z, *row) for z, *row in zip(logits.float().cpu().numpy(), *columns,
                                                    strict=True)]
    return torch.tensor([-1 if token is None else token for token in tokens])


def logprobs_of(z: torch.Tensor, token: int, count: int) -> dict[int, float]:   # (V,)
    """Log probabilities of the `count` likeliest tokens and of `token`, from the raw logits:
    without temperature, top_k and top_p."""
    shares = torch.log_softmax(z.float(), -1)
    likeliest = shares.topk(min(count, len(z))).indices.tolist() if count else []
    return {t: float(shares[t]) for t in dict.fromkeys([*likeliest, token])}


# ---- text


class Detokenizer:
    """Turns tokens into text as they arrive.
    A character is shown when its last byte has come.

    Each call decodes only the newest tokens: those that came since the text was last complete, and
    the ones before them that completed it, as the spelling of a word may depend on what precedes.
    """

    def __init__(self, decode: Callable[[list[int]], str], prompt: list[int]):
        """decode: [token] -> text    prompt: [token]; a character begun there belongs to it"""
        begin = max(len(prompt) - BEFORE, 0)
        inside = [at for at in range(begin, max(begin - UTF8_BYTES, -1), -1)
                  if not decode(prompt[at:]).startswith(BROKEN)]    # begins with a whole character
        self.decode = decode
        self.tokens = list(prompt[inside[0] if inside else begin:])
        self.whole = len(self.tokens)           # of those, how many made the last complete text
        self.shown = len(decode(self.tokens))   # characters of their text that have been shown

    def rest(self) -> str:
        """The text still held back when the answer ends."""
        return self.decode(self.tokens)[self.shown:]

    def add(self, token: int) -> str:
        """The text to show after one more token; "" while a character is incomplete.

        If the decoded text ends with BROKEN, a byte may be missing: nothing is shown.
        But once UTF8_BYTES or more tokens have come after the first `whole`, all but the last
        character is shown.
        """
        # exercise: decode and return what is new; if the text is complete, drop the older tokens
        self.tokens.append(token)
        text = self.decode(self.tokens)
        if text.endswith(BROKEN):
            end = self.shown if len(self.tokens) - self.whole < UTF8_BYTES else len(text) - 1
            piece = text[self.shown:end]
            self.shown = end
            return piece
        piece = text[self.shown:]
        if not piece and len(self.tokens) == self.whole + 1:
            self.tokens.pop()           # a mark has no text: what follows it begins none either
            return ""
        self.tokens = self.tokens[self.whole:]
        self.whole = len(self.tokens)
        self.shown = len(self.decode(self.tokens))
        return piece


class StopStrings:
    """Passes text through up to the first stop string, which may be spread over several pieces.

    stops: the stop strings    held: text that cannot be shown yet
    found: the stop string that ended the text, or None
    """

    def __init__(self, stops: Iterable[str]):
        self.stops = tuple(stops)
        self.held = ""
        self.found: str | None = None

    def rest(self) -> str:
        """The text still held back after the last piece."""
        return self.held

    def add(self, text: str) -> str:
        """The text that can be shown now.

        An ending that may be the beginning of a stop string is held back, nothing else.
        If a complete stop string is there, `found` is the one that starts earliest; it and
        everything after it are dropped.
        """
        # exercise: cut at the earliest stop string; else hold back an ending that may become one
        self.held += text
        places = [(at, stop) for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if places:
            at, self.found = min(places, key=lambda place: place[0])
            piece = self.held[:at]
            self.held = ""
            return piece
        longest = max((n for stop in self.stops for n in range(1, len(stop))
                       if self.held.endswith(stop[:n])), default=0)
        at = len(self.held) - longest
        piece = self.held[:at]
        self.held = self.held[at:]
        return piece


# ---- the end


def finish_reason(request: Request, ends: Sequence[int]) -> str | None:
    """Why the answer ends with its newest token: "stop", "length", or None if it goes on.

    ends: tokens with which the model ends a text
    End and stop tokens count only from min_tokens on.
    At its limit an answer always ends.
    """
    params = request.params
    written = len(request.output)
    full = written == params.max_tokens or request.num_tokens >= request.limit
    if written < params.min_tokens:
        return "length" if full else None
    last = request.output[-1]
    if last in ends and not params.ignore_eos or last in params.stop_token_ids:
        return "stop"
    return "length" if full else None


# ---- a picture


def draw_kept(title: str, words: list[str], chosen: list[int], k: int) -> "Figure":
    """The number of tokens kept after each word, on a log scale, with top-k's k as a line.

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
    plt.close(figure)           # a notebook shows what is returned, and again what is open
    return figure
