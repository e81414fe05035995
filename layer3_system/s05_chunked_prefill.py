"""s05 · Long prompts without stalls: a prompt in chunks, beside requests that decode

N: tokens of a prompt, or of a context   T: new tokens of a sequence in a step   B: sequences
c: tokens of a chunk   k = ceil(N / c): chunks of a prompt
A request that decodes gets one token a step, so it waits as long as the step takes. A prompt
computed whole makes one step of N tokens; in chunks it makes k short ones. That costs no FLOPs:
each token meets each weight once, and sees the same keys. It costs bytes: the weights are read k
times, and for each chunk the keys and values of all earlier ones, c·k·(k - 1) / 2 tokens in all.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from day01_roofline import (
    Llama,
    Machine,
    count_bytes,
    count_flops,
    decode_costs,
    layer_matrices,
    ridge,
)
from lab.plots import BLUE, GREY, INK, RED
from layer2_graph import Batch
from layer3_system.model import Model
from layer3_system.s02_block_pool import Pages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["StepLog", "SweepPoint", "choose_chunk", "chunks_of", "largest_budget", "on_paper",
           "step_seconds", "sweep_picture", "token_flops", "tokens_reread"]


# ---- what is to be predicted and decided


def predict_longest_gap():
    """The least milliseconds between two tokens of a request that decodes beside a prompt.

    Llama-3.1-8B, 16-bit; 16 sequences decode, with 2048 tokens each. A prompt of 8192 tokens is
    computed whole, in one step with them. 989 TFLOP/s, 3.35 TB/s.
    """
    # exercise: within 15 % is right; which roof is this step under?
    return 2 * 8e9 * 8192 / 989e12 * 1e3        # 2 FLOPs a weight and token of the prompt


def chunks_of(N: int, decodes: int, budget: int, chunk: int | None = None) -> list[int]:
    """[tokens of the prompt in each step]: how s04's Scheduler computes a prompt of N tokens.

    decodes: sequences that decode beside it all the time, fewer than budget    budget: tokens of a
    step    chunk: tokens of one sequence in a step; None: as many as the budget leaves
    """
    # exercise: how many tokens does a step leave for the prompt? The last chunk may be smaller
    most = min(budget - decodes, chunk or budget)
    return [min(most, N - begin) for begin in range(0, N, most)]


def tokens_reread(N: int, chunk: int) -> int:
    """How many tokens' keys and values are read again because a prompt comes in chunks.

    A step reads those of the chunk's whole context once. A prompt of N tokens in one step would
    read N of them; what the chunks read beyond that is the answer.
    """
    # exercise: how many tokens are before each chunk?
    return sum(range(0, N, chunk))


def largest_budget(m: Llama, machine: Machine, decodes: int, N: int, itemsize: float) -> int | None:
    """Tokens of the largest step whose arithmetic takes no longer than its bytes; None if the
    arithmetic of the decodes alone takes longer.

    m, machine: a Llama and a Machine of day01_roofline    decodes: sequences that get one token,
    with contexts of N; the other tokens belong to a prompt. Each of those costs token_flops(m) and
    no bytes: it meets weights that are read anyway.
    """
    # exercise: FLOPs that fit into the time of the bytes; what the decodes leave; how many tokens?
    flops, weights, each = decode_costs(m, N, itemsize)
    spare = (weights + decodes * each) * ridge(machine) - decodes * flops
    return decodes + int(spare // token_flops(m)) if spare >= 0 else None


def choose_chunk(sweep: dict[int, tuple[float, Sequence[float]]], limit: float) -> int | None:
    """The chunk with the highest throughput among those whose gaps stay within a limit.

    sweep: {chunk: (tokens a second, [gap in seconds])}. Within means that the 95th percentile of
    the gaps, np.quantile's, is at most `limit` seconds. None if no chunk is.
    """
    # exercise: which chunks stay within, and which of those is the fastest?
    within = {chunk: rate for chunk, (rate, gaps) in sweep.items()
              if np.quantile(gaps, 0.95) <= limit}
    return max(within, key=within.get, default=None)


# ---- on paper


def token_flops(m: Llama) -> int:
    """FLOPs of one more token of a prompt, in the layers' matrices: 2 a weight."""
    return 2 * m.L * sum(n * k for n, k in layer_matrices(m).values())


def step_seconds(m: Llama, machine: Machine, parts: Sequence[tuple[int, int, int]],
                 itemsize: float = 2) -> float:
    """The least seconds of a step, by the roofline: the longer of its arithmetic and its bytes.

    parts: [(B, T, N)], B sequences with T new tokens each, in contexts of N. They share the
    weights, and each operation moves what it needs once.
    """
    flops = sum(sum(count_flops(m, *part).values()) for part in parts)
    moved = [count_bytes(m, *part, itemsize).values() for part in parts]
    weights = sum(once for once, _, _ in moved[0])
    own = sum(new + cache for operations in moved for _, new, cache in operations)
    return max(flops / machine.peak, (weights + own) / machine.bandwidth)


def on_paper(m: Llama, machine: Machine, counts: Sequence[int], decodes: int,
             context: int) -> list[float]:
    """[least seconds] of the steps that compute a prompt in chunks of `counts`, beside decodes."""
    beside = [(decodes, 1, context)] if decodes else []
    return [step_seconds(m, machine, [*beside, (1, T, end)])
            for T, end in zip(counts, accumulate(counts), strict=True)]


# ---- counted


class Noted(NamedTuple):
    """What a step computes of each of its sequences."""

    new: list[int]      # tokens computed
    contexts: list[int] # tokens whose keys and values are read, the new ones included


class StepLog:
    """A model that notes every step and passes it on. steps: [Noted]"""

    def __init__(self, model: Model):
        self.model = model
        self.config = model.config
        self.embedding = model.embedding
        self.steps: list[Noted] = []

    def forward(self, batch: Batch, cache: Pages,
                every: bool = False) -> torch.Tensor:   # (B, V), or (T, V) for every token
        self.steps.append(Noted(batch.cu_q.diff().tolist(), batch.lens.tolist()))
        return self.model.forward(batch, cache, every)


# ---- shown


class SweepPoint(NamedTuple):
    """What one chunk size gains and costs."""

    rate: float         # tokens a second
    p95: float          # 95th percentile of the gaps, seconds
    longest: float      # gap, seconds

    @classmethod
    def of(cls, rate: float, gaps: Sequence[float]) -> "SweepPoint":
        return cls(rate, float(np.quantile(gaps, 0.95)), max(gaps))


def sweep_picture(title: str, sweep: dict[int, SweepPoint], free: int | None = None) -> "Figure":
    """What a chunk gains and costs: throughput above, gaps below; the chunk axis is logarithmic.

    sweep: {chunk: SweepPoint}, ascending; the last is the whole prompt
    free: tokens of a prompt that fit into the time of a step's bytes, marked
    """
    import matplotlib.pyplot as plt

    chunks = list(sweep)
    rows = list(sweep.values())
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(7.5, 5), layout="constrained")
    above.plot(chunks, [point.rate for point in rows], "o-", color=BLUE, lw=2, ms=5)
    for name, colour, mark in (("p95", INK, "s-"), ("longest", RED, "o--")):
        gaps = [getattr(point, name) * 1e3 for point in rows]
        below.plot(chunks, gaps, mark, color=colour, lw=1.8, ms=5, label=name)
    for axes in (above, below):
        axes.set_ylim(0)
        axes.grid(color="#eaeef2")
        axes.spines[["top", "right"]].set_visible(False)
    above.set(title=title, ylabel="tokens a second")
    above.yaxis.set_major_formatter("{x:,.0f}")
    if free:
        above.axvline(free, color=GREY, lw=1, ls=":")
        below.axvline(free, color=GREY, lw=1, ls=":")
        above.annotate(f"{free} fit beside the bytes", (free, 0), xytext=(5, 8), color=GREY,
                       textcoords="offset points")
    below.set(ylabel="gap, ms", xlabel="tokens of a chunk")
    below.legend(frameon=False)
    below.set_xscale("log", base=2)
    below.set_xticks(chunks, [*chunks[:-1], f"{chunks[-1]}\nwhole"])
    below.minorticks_off()
    plt.close(figure)           # a notebook shows what is returned, and again what is open
    return figure
