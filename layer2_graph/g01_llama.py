"""g01 · A Llama on the course's kernels: from new tokens and a cache to scores of the next token

B: sequences   T: new tokens of all sequences in this step, one after another   N: a context
L: layers   C: model width   H: query heads   G: key and value heads   D: head width   F: mlp width
V: vocabulary   P: pages of the cache   S: slots of a page, one token each
A step reads all weights once, and the keys and values of every context once.

It is o02's Llama for many sequences at a time.
Its operations come from a table, `Kernels` of layer1_kernels, and its cache consists of pages, so
that sequences can grow independently.
"""

import math
from collections.abc import Collection, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from layer1_kernels import Kernels, kernels
from layer2_graph.checkpoint import read_weights
from layer2_graph.config import Config, ModelError, read_config

__all__ = ["Batch", "Layer", "Llama", "PagedCache", "greedy", "load", "rope_tables"]

SLOTS = 16              # of a page: vLLM's, and the fewest that fill a tile of tensor cores


# ---- the inputs of a step


class Batch(NamedTuple):
    """The new tokens of a step, the last ones of their sequences, and where keys and values go."""

    tokens: Tensor          # (T,) int64
    positions: Tensor       # (T,) int64: of each token in its own sequence, from 0
    slots: Tensor           # (T,) int64: page · S + place, where its key and value go
    block_tables: Tensor    # (B, pages) int32: the pages of each sequence, in order
    cu_q: Tensor            # (B + 1,) int32: sequence b has the rows cu_q[b] to cu_q[b + 1] - 1
    lens: Tensor            # (B,) int32: length of each context, the new tokens included


class Cache(Protocol):
    """What a model needs of a cache.
    PagedCache is one; g02, g08 and s02 have others."""

    k: Tensor
    v: Tensor

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch, ops: Kernels,
               scale: float) -> Tensor: ...


class PagedCache:
    """Keys and values in pages.
    Each sequence has its pages from the start; s02 allocates them."""

    def __init__(self, config: Config, sequences: int, room: int,
                 dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"):
        """room: the longest context of each sequence.
        ModelError if the model's is shorter."""
        config.check_room(room)
        self.room = room
        self.pages = -(-room // SLOTS)                          # the last may be partly empty
        shape = (config.L, sequences * self.pages, SLOTS, config.G, config.D)
        self.k = torch.zeros(shape, dtype=dtype, device=device)     # (L, P, S, G, D)
        self.v = torch.zeros(shape, dtype=dtype, device=device)     # (L, P, S, G, D)
        self.lens = [0] * sequences

    def step(self, new: Sequence[Sequence[int]]) -> Batch:
        """The Batch that appends new[b], a list of tokens, to sequence b."""
        counts = [len(tokens) for tokens in new]
        ends = [n + more for n, more in zip(self.lens, counts, strict=True)]
        if max(ends) > self.room:
            raise ValueError(f"PagedCache: a sequence would reach {max(ends)} tokens; there is "
                             f"room for {self.room}")
        places = [(b, n) for b, end in enumerate(ends) for n in range(self.lens[b], end)]
        self.lens = ends
        array = partial(torch.tensor, device=self.k.device)
        tables = torch.arange(len(new) * self.pages, dtype=torch.int32, device=self.k.device)
        return Batch(array([t for tokens in new for t in tokens], dtype=torch.int64),
                    array([n for _, n in places], dtype=torch.int64),
                    array([b * self.pages * SLOTS + n for b, n in places], dtype=torch.int64),
                    tables.view(len(new), -1), array([0, *accumulate(counts)], dtype=torch.int32),
                    array(ends, dtype=torch.int32))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch, ops: Kernels,
               scale: float) -> Tensor:             # (T, H, D), 2 × (T, G, D) -> (T, H, D)
        """Store the new keys and values of a layer; return the attention of each query."""
        ops.write_kv(k, v, self.k[layer], self.v[layer], batch.slots)
        return ops.paged_attention(q, self.k[layer], self.v[layer], batch.block_tables, batch.cu_q,
                                   batch.lens, scale)


# ---- rotary frequencies


def llama3_frequencies(frequencies, factor, low, high, original):
    """Rotary frequencies for a longer context, as in Llama 3.1: (D/2,) -> (D/2,).

    frequencies: radians a token    original: tokens of the context that was first trained on
    A pair that makes `high` turns or more within it keeps its frequency.
    One that makes `low` turns or fewer has it divided by `factor`.
    In between, the share of the old frequency is linear in the turns: 0 at `low`, 1 at `high`.
    """
    # exercise: turns of each pair in the old context; share of the old frequency, 0 to 1; mix
    turns = original * frequencies / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return share * frequencies + (1 - share) * frequencies / factor


def yarn_frequencies(frequencies, m, factor, original_max_position_embeddings, beta_fast=32,
                     beta_slow=1, truncate=True, **others):
    """(frequencies, factor of cos and sin) by YaRN: Peng, Quesnelle, Fan and Shippole, 2023."""
    def place(turns):               # index of the pair that makes these turns in the old context
        return m.D * math.log(original_max_position_embeddings / (turns * 2 * math.pi)) / (
            2 * math.log(m.theta))

    low = place(beta_fast)
    high = place(beta_slow)
    if truncate:
        low = math.floor(low)
        high = math.ceil(high)
    low = max(low, 0)
    high = min(high, m.D - 1)
    ramp = ((torch.arange(m.D // 2) - low) / (high - low or 0.001)).clamp(0, 1)

    def temperature(scale=1.0):
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    all_dim = others.get("mscale_all_dim")
    own = others.get("mscale")
    amplitude = others.get("attention_factor") or (
        temperature(own) / temperature(all_dim) if own and all_dim else temperature())
    return frequencies * (1 - ramp) + frequencies / factor * ramp, amplitude


def rope_tables(m: Config, room: int,
                device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:   # 2 × (room, D//2)
    """cos and sin of the angle of each pair of a head's numbers at each position, fp32."""
    frequencies = m.theta ** (-torch.arange(0, m.D, 2, dtype=torch.int64).float() / m.D)
    scaling = dict(m.scaling)
    amplitude = 1.0
    kind = scaling.pop("rope_type", "default")
    if kind == "linear":
        frequencies = frequencies / scaling["factor"]
    elif kind == "llama3":
        frequencies = llama3_frequencies(
            frequencies, scaling["factor"], scaling["low_freq_factor"],
            scaling["high_freq_factor"], scaling["original_max_position_embeddings"])
    elif kind == "yarn":
        frequencies, amplitude = yarn_frequencies(frequencies, m, **scaling)
    angles = torch.arange(room)[:, None] * frequencies              # (room, D//2)
    return (angles.cos() * amplitude).to(device), (angles.sin() * amplitude).to(device)


# ---- the model


class Layer(NamedTuple):
    """The weights of a layer.
    A matrix is a pair: its weight, and its bias or None."""

    attention_norm: Tensor      # (C,)
    q: tuple                    # (H·D, C)
    k: tuple                    # (G·D, C)
    v: tuple                    # (G·D, C)
    o: tuple                    # (C, H·D)
    q_norm: Tensor | None       # (D,), in the Qwen 3 family
    k_norm: Tensor | None       # (D,)
    mlp_norm: Tensor            # (C,)
    gate: tuple                 # (F, C)
    up: tuple                   # (F, C)
    down: tuple                 # (C, F)


def last_rows(cu_q):                                # (B + 1,) -> (B,)
    """The row of the last new token of each sequence.
    Only these rows need scores."""
    # exercise: where does the next sequence begin?
    return cu_q[1:].long() - 1


def llama_block(model, i, x, batch, cache):         # (T, C) -> (T, C)
    """Layer number i: attention is added to x, then the MLP. x itself stays unchanged.

    ops.rope takes model.cos, model.sin and batch.positions.
    Scores are multiplied by m.scale.
    cache.attend takes the layer's number and returns (T, H, D); layer.o takes (T, H·D).
    There is no ops.add: write x = x + …. Nothing here needs a copy of x.
    """
    m = model.config
    ops = model.ops
    layer = model.layers[i]
    # exercise: o02's block, with model.heads for q, k, v, and cache.attend for cache and attention
    y = ops.rmsnorm(x, layer.attention_norm, m.eps)                 # (T, C)
    q, k, v = model.heads(layer, y)
    ops.rope(q, k, model.cos, model.sin, batch.positions)
    mixed = cache.attend(i, q, k, v, batch, ops, m.scale)           # (T, H, D)
    x = x + model.linear(mixed.flatten(1), layer.o)                 # (T, C)
    y = ops.rmsnorm(x, layer.mlp_norm, m.eps)                       # (T, C)
    hidden = ops.swiglu(model.linear(y, layer.gate), model.linear(y, layer.up))     # (T, F)
    return x + model.linear(hidden, layer.down)


class Llama:
    """A model: its Config, its weights, and the table of kernels that it computes with."""

    def __init__(self, config: Config, weights: dict[str, Tensor], ops: Kernels):
        """weights: {Hugging Face's name: tensor}, all of one dtype and on one device."""
        self.config = config
        self.weights = weights
        self.ops = ops
        self.embedding = weights["model.embed_tokens.weight"]       # (V, C)
        self.norm = weights["model.norm.weight"]                    # (C,)
        self.head = self.embedding if config.tied else weights["lm_head.weight"]    # (V, C)
        self.cos, self.sin = rope_tables(config, config.room, self.embedding.device)
        self.layers: list = [self.pick(weights, f"model.layers.{i}.") for i in range(config.L)]

    def pick(self, weights: dict[str, Tensor], prefix: str) -> Layer:
        """The weights of one layer."""
        def matrix(name):
            return weights[f"{prefix}{name}.weight"], weights.get(f"{prefix}{name}.bias")

        return Layer(
            weights[prefix + "input_layernorm.weight"], matrix("self_attn.q_proj"),
            matrix("self_attn.k_proj"), matrix("self_attn.v_proj"), matrix("self_attn.o_proj"),
            weights.get(prefix + "self_attn.q_norm.weight"),
            weights.get(prefix + "self_attn.k_norm.weight"),
            weights[prefix + "post_attention_layernorm.weight"], matrix("mlp.gate_proj"),
            matrix("mlp.up_proj"), matrix("mlp.down_proj"))

    def forward(self, batch: Batch, cache: Cache,
                every: bool = False) -> Tensor:         # (B, V), or (T, V) for every token
        """Scores of the token that follows each sequence's last new token."""
        x = self.embedding[batch.tokens]                            # (T, C)
        for i in range(self.config.L):
            x = self.block(i, x, batch, cache)                      # (T, C)
        if not every:
            x = x[last_rows(batch.cu_q)]                            # (B, C)
        x = self.ops.rmsnorm(x, self.norm, self.config.eps)
        return self.ops.matmul(x, self.head)

    def block(self, i: int, x: Tensor, batch: Batch, cache: Cache) -> Tensor:   # -> (T, C)
        """Layer number i. Other ways to compute a layer replace this method."""
        return llama_block(self, i, x, batch, cache)

    def heads(self, layer: Layer, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(T, H, D), 2 × (T, G, D): queries, keys and values.

        The Qwen 3 family normalises the queries and keys of each head.
        """
        q, k, v = (self.linear(y, w).view(len(y), -1, self.config.D)
                   for w in (layer.q, layer.k, layer.v))
        if layer.q_norm is not None:
            q, k = (self.ops.rmsnorm(a.flatten(0, 1), w, self.config.eps).view_as(a)
                    for a, w in ((q, layer.q_norm), (k, layer.k_norm)))
        return q, k, v

    def linear(self, x: Tensor, matrix: tuple) -> Tensor:       # (T, K) -> (T, M)
        weight, bias = matrix
        y = self.ops.matmul(x, weight)                              # (T, M)
        return y if bias is None else y + bias


def predict_launches():
    """The launches of one call of llama_block: calls of kernels, and PyTorch's operations."""
    # exercise: count each kernel call, and each PyTorch operation that makes an array
    return 2 + 7 + 1 + 1 + 1 + 1 + 2


def load(folder: Path | str, ops: Kernels | None = None, dtype: torch.dtype | None = None,
         device: torch.device | str = "cpu", ignore: Collection[str] = ()) -> Llama:
    """The Llama in a Hugging Face folder.
    ModelError if this code cannot run what is in it.

    ignore: entries of config.json to treat as absent
    """
    config = read_config(folder, ignore)
    if config.E:
        raise ModelError(f"{folder}: its layers have experts, expected a dense model; g12's "
                         f"load_moe reads it")
    if config.latent:
        raise ModelError(f"{folder}: its cache holds latents, expected keys and values; g11's "
                         f"load_latent reads it")
    if config.linear:
        raise ModelError(f"{folder}: some of its layers keep a state, expected keys and values in "
                         f"all; load_hybrid, in layer2_graph/hybrid.py, reads it")
    return Llama(config, read_weights(folder, config, dtype, device), ops or kernels("torch"))


def greedy(model: Llama, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """The next `count` tokens after each prompt, greedily: [[int]].
    A prompt is a list of int."""
    longest = max(map(len, prompts)) + count
    cache = PagedCache(model.config, len(prompts), longest, model.embedding.dtype,
                       model.embedding.device)
    new: list[list[int]] = [[] for _ in prompts]
    step = [list(prompt) for prompt in prompts]
    for _ in range(count):
        logits = model.forward(cache.step(step), cache)             # (B, V)
        step = [[token] for token in logits.argmax(-1).tolist()]
        for tokens, token in zip(new, step, strict=True):
            tokens += token
    return new
