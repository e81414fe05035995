"""s05 · Long prompts without stalls: a prompt in chunks, beside requests that decode

N: tokens of a prompt, or of a context   T: new tokens of a sequence in a step   B: sequences
c: tokens of a chunk   k = ceil(N / c): chunks of a prompt
A decoding request gets one token a step, so its gap is the time of the step.
A whole prompt makes one step of N tokens; in chunks it makes k short steps.
That costs almost no FLOPs: each token meets each weight once and attends to the same keys.
It costs bytes: the weights are read k times, and each chunk reads the keys and values of all
earlier ones again.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from day01_roofline import (
    LlamaShape,
    Machine,
    count_bytes,
    count_flops,
    decode_costs,
    layer_matrices,
    ridge,
)
from layer2_graph import Batch
from layer3_system.model import Model
from layer3_system.s02_block_pool import Pages

__all__ = ["StepLog", "SweepPoint", "choose_chunk", "chunks_of", "largest_budget", "on_paper",
           "step_seconds", "token_flops", "tokens_reread"]


# ---- what is to be predicted and decided


def predict_longest_gap() -> float:
    """The shortest possible gap, in ms, of a decoding request when a whole prompt is computed in
    the same step.

    Llama-3.1-8B, 16-bit weights. 16 sequences decode, each with a context of 2048 tokens.
    The prompt has 8192 tokens. 989 TFLOP/s, 3.35 TB/s.
    """
    # exercise: within 15 % counts as right; is this step limited by memory or by arithmetic?
    return 2 * 8e9 * 8192 / 989e12 * 1e3        # 2 FLOPs a weight and token of the prompt


def chunks_of(N: int, decodes: int, budget: int, chunk: int | None = None) -> list[int]:
    """[tokens of the prompt in each step]: how s04's Scheduler splits a prompt of N tokens.

    decodes: requests that decode in every one of these steps, fewer than budget
    budget: most tokens in a step
    chunk: most tokens of one request in a step; None: no limit but the budget
    """
    # exercise: how many tokens does a step leave for the prompt? The last chunk may be smaller
    most = min(budget - decodes, chunk or budget)
    return [min(most, N - begin) for begin in range(0, N, most)]


def tokens_reread(N: int, chunk: int) -> int:
    """How many tokens' keys and values are read again because a prompt of N tokens is split.

    Each step reads the whole context of its chunk once.
    In one step the prompt would read N tokens; return how many more the chunks read.
    """
    # exercise: how many tokens come before each chunk?
    return sum(range(0, N, chunk))


def largest_budget(m: LlamaShape, machine: Machine, decodes: int, N: int,
                   itemsize: float) -> int | None:
    """The most tokens a step can have before its arithmetic takes longer than its memory traffic;
    None if the decoding sequences alone are past that point.

    decodes: sequences that compute one token each, with contexts of N
    itemsize: bytes of a number
    All other tokens belong to a prompt: each adds token_flops(m) FLOPs and no bytes.
    """
    # exercise: how many FLOPs fit into the time of the bytes? What do the decodes leave of them?
    flops, weights, each = decode_costs(m, N, itemsize)
    spare = (weights + decodes * each) * ridge(machine) - decodes * flops
    return decodes + int(spare // token_flops(m)) if spare >= 0 else None


def choose_chunk(sweep: dict[int, tuple[float, Sequence[float]]], limit: float) -> int | None:
    """The chunk size with the highest throughput among those whose p95 gap is at most `limit`
    seconds; None if there is none.

    sweep: {chunk: (tokens a second, [gaps in seconds])}    p95: np.quantile(gaps, 0.95)
    """
    # exercise: which chunk sizes stay within the limit, and which of them is fastest?
    within = {chunk: rate for chunk, (rate, gaps) in sweep.items()
              if np.quantile(gaps, 0.95) <= limit}
    return max(within, key=within.get, default=None)


# ---- on paper


def token_flops(m: LlamaShape) -> int:
    """FLOPs of one prompt token in the layers' matrices, 2 a weight."""
    return 2 * m.L * sum(n * k for n, k in layer_matrices(m).values())


def step_seconds(m: LlamaShape, machine: Machine, parts: Sequence[tuple[int, int, int]],
                 itemsize: float = 2) -> float:
    """The shortest possible seconds of a step, by the roofline: those of its arithmetic or of its
    bytes, whichever are more.

    parts: [(B, T, N)], B sequences with T new tokens each and contexts of N. All parts share the
    weights; each operation moves what it needs once.
    """
    flops = sum(sum(count_flops(m, *part).values()) for part in parts)
    moved = [count_bytes(m, *part, itemsize).values() for part in parts]
    weights = sum(once for once, _, _ in moved[0])
    own = sum(new + cache for operations in moved for _, new, cache in operations)
    return max(flops / machine.peak, (weights + own) / machine.bandwidth)


def on_paper(m: LlamaShape, machine: Machine, counts: Sequence[int], decodes: int,
             context: int) -> list[float]:
    """[shortest possible seconds] of each step that computes a prompt in chunks of `counts`, while
    `decodes` sequences decode, each with this context."""
    beside = [(decodes, 1, context)] if decodes else []
    return [step_seconds(m, machine, [*beside, (1, T, end)])
            for T, end in zip(counts, accumulate(counts), strict=True)]


# ---- counted


class StepRecord(NamedTuple):
    """What one step computed, sequence by sequence."""

    new: list[int]      # tokens computed
    contexts: list[int] # tokens whose keys and values are read, the new ones included


class StepLog:
    """Wraps a model and records each step."""

    def __init__(self, model: Model):
        self.model = model
        self.config = model.config
        self.embedding = model.embedding
        self.steps: list[StepRecord] = []

    def forward(self, batch: Batch, cache: Pages,
                every: bool = False) -> torch.Tensor:   # (B, V), or (T, V) for every token
        self.steps.append(StepRecord(batch.cu_q.diff().tolist(), batch.lens.tolist()))
        return self.model.forward(batch, cache, every)


# ---- a chunk size, summed up


class SweepPoint(NamedTuple):
    """Throughput and gaps of one chunk size."""

    rate: float         # tokens a second
    p95: float          # 95th percentile of the gaps, seconds
    longest: float      # gap, seconds

    @classmethod
    def of(cls, rate: float, gaps: Sequence[float]) -> "SweepPoint":
        return cls(rate, float(np.quantile(gaps, 0.95)), max(gaps))
