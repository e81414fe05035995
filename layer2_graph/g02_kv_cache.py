"""g02 · The KV cache: the keys and values of earlier tokens are kept, not computed again

B: sequences   T: new tokens   N: tokens of a context, new ones included   room: slots a sequence
L: layers   H: query heads   G: key and value heads   D: head width
A slot holds one token's keys and values of a layer: 2·G·D numbers.
A cache has L·B·room slots.
Without it a step computes all N tokens again: N times the FLOPs of each layer's matrices.
With it a step computes one token of a sequence; it reads the weights, and N slots a layer and
sequence.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from day01_roofline import attended, decode_costs, kv_bytes_per_token
from layer1_kernels import Kernels
from layer2_graph.config import Config
from layer2_graph.g01_llama import Batch, Llama, PagedCache

__all__ = ["ContiguousCache", "SequenceRun", "Work", "generate_anew", "generate_on"]


# ---- predictions and counts


def predict_gain():
    """The time of a step without a cache over that of a step with one, both by the roofline.

    Llama-3.1-8B, one sequence, its 2048th token, 16-bit numbers; 989 TFLOP/s, 3.35 TB/s.
    """
    # exercise: within 15 % is right; which roof limits each step?
    return 2048 / (989 / 3.35)      # 2 FLOPs a weight and token, against 2 bytes a weight


def cache_outweighs(m, N, itemsize):
    """The smallest batch whose decode step reads at least as many bytes of cache as of weights.

    m: a model's shape, one of LLAMAS   N: context of each sequence   itemsize: bytes of a number
    """
    # exercise: kv_bytes_per_token(m, itemsize) and decode_costs(m, N, itemsize) give what is read
    _, weights, _ = decode_costs(m, N, itemsize)
    return -(-weights // (N * kv_bytes_per_token(m, itemsize)))


def wasted_share(lens, size):
    """The share of the reserved slots that have no token, from 0 to 1.

    lens: [tokens of each sequence], each at least 1    size: slots of a piece
    A sequence holds as few whole pieces as it needs.
    A contiguous cache gives each sequence one large piece, a paged one several small ones.
    """
    # exercise: how many pieces does a sequence hold?
    slots = sum(-(-n // size) * size for n in lens)
    return 1 - sum(lens) / slots


# ---- the cache


class SequenceRun(NamedTuple):
    """Neighbouring sequences of a batch with the same T and N: first to end - 1."""

    first: int
    end: int
    T: int          # new tokens of each
    N: int          # context of each, new tokens included


def runs(counts, lens):
    """[SequenceRun] of a batch.

    counts: [new tokens of each sequence]   lens: [its context with them]
    """
    result = []
    first = 0
    for (T, N), alike in groupby(zip(counts, lens, strict=True)):
        end = first + len(list(alike))
        result.append(SequenceRun(first, end, T, N))
        first = end
    return result


def places(starts, counts, room):                   # 2 × (B,) -> 2 × (T,)
    """(positions, slots) of the new tokens, int64, one sequence after another.

    starts: tokens that each sequence already has   counts: new tokens of each; both int64
    A position counts within a sequence, from 0. Sequence b has the slots from b · room on, in the
    order of its tokens.
    """
    # exercise: for each new token, which sequence, and which of that sequence's new tokens?
    owner = torch.repeat_interleave(torch.arange(len(counts)), counts)      # (T,)
    before = (counts.cumsum(0) - counts)[owner]                             # (T,)
    positions = starts[owner] + torch.arange(len(owner)) - before           # (T,)
    return positions, owner * room + positions


def attend_contiguous(q, keys, values, batch, ops, scale):
    """Causal attention over a contiguous cache: (T, H, D), 2 × (B, room, G, D) -> (T, H, D).

    q: queries of the new tokens, one sequence after another
    batch: the [SequenceRun] of all sequences, in order
    ops.flash_attention(q, k, v, causal, scale) -> (out, lse) takes sequences of equal length, so
    one call takes a whole run: q (B, T, H, D), k and v (B, N, G, D).
    With T = 0 it gives no rows.
    """
    # exercise: for each run, its rows of q, and the filled slots of its sequences
    mixed = []
    row = 0
    for first, end, T, N in batch:
        B = end - first
        queries = q[row:row + B * T].unflatten(0, (B, T))
        out, _ = ops.flash_attention(queries, keys[first:end, :N], values[first:end, :N], True,
                                     scale)
        mixed.append(out.flatten(0, 1))
        row += B * T
    return torch.cat(mixed)


class ContiguousCache:
    """The keys and values of each sequence in one piece of `room` slots.

    Its memory is that of a PagedCache with one page of `room` slots for each sequence, so a kernel
    that writes into pages can write into it.
    It is read without block tables.
    """

    def __init__(self, config: Config, sequences: int, room: int,
                 dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"):
        """room: the longest context of each sequence.
        ModelError if the model's is shorter."""
        config.check_room(room)
        self.room = room
        shape = (config.L, sequences, room, config.G, config.D)
        self.k = torch.zeros(shape, dtype=dtype, device=device)     # (L, B, room, G, D)
        self.v = torch.zeros(shape, dtype=dtype, device=device)     # (L, B, room, G, D)
        self.lens = [0] * sequences
        self.batch: list[SequenceRun] = []

    def step(self, new: Sequence[Sequence[int]]) -> Batch:
        """The Batch that appends new[b], a list of tokens, to sequence b."""
        if len(new) != len(self.lens):
            raise ValueError(f"ContiguousCache: new tokens for {len(new)} sequences, expected "
                             f"{len(self.lens)}")
        counts = [len(tokens) for tokens in new]
        lens = [n + more for n, more in zip(self.lens, counts, strict=True)]
        if max(lens) > self.room:
            raise ValueError(f"ContiguousCache: a sequence would reach {max(lens)} tokens; there "
                             f"is room for {self.room}")
        positions, slots = places(torch.tensor(self.lens), torch.tensor(counts), self.room)
        self.lens = lens
        self.batch = runs(counts, lens)
        device = self.k.device
        cu_q = torch.tensor([0, *counts]).cumsum(0)
        return Batch(torch.tensor([t for tokens in new for t in tokens],
                                 dtype=torch.long).to(device),
                    positions.to(device), slots.to(device),
                    torch.arange(len(new), dtype=torch.int32, device=device)[:, None],
                    cu_q.int().to(device), torch.tensor(lens, dtype=torch.int32, device=device))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch, ops: Kernels,
               scale: float) -> Tensor:             # (T, H, D), 2 × (T, G, D) -> (T, H, D)
        """Store the new keys and values of a layer; return the attention of each query.

        batch: the one that self.step() made last
        """
        ops.write_kv(k, v, self.k[layer], self.v[layer], batch.slots)
        return attend_contiguous(q, self.k[layer], self.v[layer], self.batch, ops, scale)


# ---- with and without


def generate_on(cache: PagedCache | ContiguousCache, model: Llama,
                prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Like g01's greedy, on a given cache: one prefill, then a token in each step."""
    new: list[list[int]] = [[] for _ in prompts]
    step = [list(prompt) for prompt in prompts]
    for _ in range(count):
        step = next_tokens(model, cache, step)
        for tokens, token in zip(new, step, strict=True):
            tokens += token
    return new


def generate_anew(model: Llama, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """The same tokens without keeping a cache: each step computes the whole text again."""
    texts = [list(prompt) for prompt in prompts]
    for _ in range(count):
        cache = ContiguousCache(model.config, len(texts), max(map(len, texts)),
                                model.embedding.dtype, model.embedding.device)
        for text, token in zip(texts, next_tokens(model, cache, texts), strict=True):
            text += token
    return [text[len(prompt):] for text, prompt in zip(texts, prompts, strict=True)]


def next_tokens(model, cache, step):
    """[[token]]: the greedy next token of each sequence, after a step with the tokens `step`."""
    logits = model.forward(cache.step(step), cache)                 # (B, V)
    return [[token] for token in logits.argmax(-1).tolist()]


class Work:
    """Counts the work of matmuls and attention: work.counting(ops) is the same table, and counts.

    Counted from the arrays of each call, each array once: 2 FLOPs a weight and row, 4·D a query
    head and pair of tokens; bytes of weights, of activations, of keys and values that attention
    reads. rows: rows multiplied with a matrix, over all matrices.
    Norms, SwiGLU and the rotation are not counted, as in day01_roofline.
    """

    def __init__(self) -> None:
        self.rows = self.flops = self.weights = self.activations = self.cache = 0

    @property
    def intensity(self) -> float:
        """FLOP/byte."""
        return self.flops / (self.weights + self.activations + self.cache)

    def counting(self, ops: Kernels) -> Kernels:
        def matmul(a, w):                               # (M, K), (N, K) -> (M, N)
            out = ops.matmul(a, w)
            self.rows += len(a)
            self.flops += 2 * len(a) * w.numel()
            self.weights += w.nbytes
            self.activations += a.nbytes + out.nbytes
            return out

        def flash_attention(q, k, v, causal, scale):
            out, lse = ops.flash_attention(q, k, v, causal, scale)
            B, T, H, D = q.shape
            pairs = attended(T, k.shape[1]) if causal else T * k.shape[1]
            self.flops += 4 * D * H * B * pairs
            self.activations += q.nbytes + out.nbytes
            self.cache += k.nbytes + v.nbytes
            return out, lse

        return replace(ops, matmul=matmul, flash_attention=flash_attention)
