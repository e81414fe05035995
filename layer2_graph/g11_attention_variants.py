"""g11 · Attention variants: how few numbers of a token a cache can keep

T: new tokens   N: a context, new tokens included   C: model width   L: layers
H: query heads   G: key and value heads   D: head width   P: pages   S: slots of a page
R: width of a latent   E: width of a key's rotated part   W: window   A: sinks, the first tokens
A token and layer keep 2·H·D numbers (MHA), 2·G·D (GQA), 2·D (MQA) or R + E (MLA).
A window keeps those of W + A tokens, however long the context.
A decode step reads what is kept, once.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from layer1_kernels import Kernels, kernels
from layer2_graph.checkpoint import read_weights
from layer2_graph.config import Config, ModelError, read_config
from layer2_graph.g01_llama import Batch, Llama, PagedCache, rope_tables

__all__ = ["LatentCache", "LatentLayer", "LatentLlama", "LatentPages", "WindowCache",
           "cache_numbers", "decode_latent", "latent_parts", "load_latent", "pool_heads",
           "window_mask"]


# ---- what a context costs


def predict_equal_heads():
    """How many heads, each with a key and a value of width 16, a token and layer could keep in the
    numbers of a latent of 32 and a rotated part of 16.
    It need not be a whole number."""
    # exercise: what does a head keep of a token, and what does a latent?
    return (32 + 16) / (2 * 16)


def predict_speedup_of_gqa():
    """How many times as fast decode attention is with 2 key and value heads as with 6, if reading
    the cache is all that counts. 6 query heads each, same contexts."""
    # exercise: how many bytes does each read?
    return 6 / 2


def cache_numbers(kind: str, H: int, G: int, D: int, R: int, E: int, N: int, W: int,
                  A: int) -> int:
    """Numbers that one layer keeps of one context of N tokens.

    kind: "mha", "mqa", "gqa", "mla" or "window", which keeps the keys and values of G heads.
    A kind takes the letters it needs.
    """
    # exercise: of how many tokens, and how many numbers of each?
    tokens = min(N, W + A) if kind == "window" else N
    each = {"mha": 2 * H * D, "mqa": 2 * D, "gqa": 2 * G * D, "mla": R + E, "window": 2 * G * D}
    return tokens * each[kind]


# ---- heads that share


def pool_heads(weight: Tensor, H: int, G: int) -> Tensor:           # (H·D, C) -> (G·D, C)
    """The matrix of G key (or value) heads that are the means of groups of neighbours among H.

    Query head h looks at key head h // (H // G).
    Source: "GQA", Ainslie and others, 2023.
    ValueError unless H is a multiple of G, and the rows one of H.
    """
    if not 0 < G <= H or H % G or len(weight) % H:
        raise ValueError(f"pool_heads: {len(weight)} rows of {H} heads into {G} groups; expected "
                         f"heads to be a multiple of groups, and rows a multiple of heads")
    # exercise: name the groups, the heads in them and the rows of a head; mean over one of these
    groups = weight.unflatten(0, (G, H // G, -1))                   # (G, H/G, D, C)
    return groups.mean(1).flatten(0, 1)


# ---- a latent


class LatentLayer(NamedTuple):
    """A layer's weights.
    Matrices have no biases."""

    attention_norm: Tensor      # (C,)
    q: Tensor                   # (H·(D + E), C): each head's D rows, then its E rows to be rotated
    kv: Tensor                  # (R + E, C): the latent's rows, then those of the rotated part
    kv_norm: Tensor             # (R,)
    w_k: Tensor                 # (H, D, R): each head's keys from the latent
    w_v: Tensor                 # (H, D, R)
    o: Tensor                   # (C, H·D)
    mlp_norm: Tensor            # (C,)
    gate: Tensor                # (F, C)
    up: Tensor                  # (F, C)
    down: Tensor                # (C, F)


def latent_parts(layer: LatentLayer, y: Tensor, m: Config,
                 ops: Kernels) -> tuple[Tensor, Tensor, Tensor, Tensor]:    # y: (T, C)
    """(q (T, H, D), turned (T, H, E), c (T, R), k_turned (T, E)), nothing rotated yet.

    m.latent is R, m.rotated E. The latent is normalised, the rotated part of the key is not.
    Source: "DeepSeek-V2", DeepSeek-AI, 2024, section 2.1, without compressed queries.
    """
    # exercise: two products, a split of each, a norm
    q = ops.matmul(y, layer.q).unflatten(-1, (m.H, -1))             # (T, H, D + E)
    q, turned = q.split((m.D, m.rotated), -1)                       # (T, H, D), (T, H, E)
    c, k_turned = ops.matmul(y, layer.kv).split((m.latent, m.rotated), -1)  # (T, R), (T, E)
    return q, turned, ops.rmsnorm(c, layer.kv_norm, m.eps), k_turned


def decode_latent(q: Tensor, turned: Tensor, pages: Tensor, block_tables: Tensor, cu_q: Tensor,
                  lens: Tensor, w_k: Tensor, w_v: Tensor, ops: Kernels) -> Tensor:  # (T, H, D)
    """Attention of new tokens to latents that lie in pages; no key and no value is ever made.

    q: (T, H, D)    turned: (T, H, E), rotated    pages: (P, S, 1, R + E): a token's latent, then
    the rotated part of its key; the new tokens' own are there    w_k, w_v: (H, D, R)
    block_tables, cu_q, lens: as paged_attention takes them
    """
    check_latent(q, turned, pages, w_k, w_v)
    _, D, R = w_k.shape
    # exercise: queries of width R + E, one attention, which part of its result, and w_v
    latent = (q.transpose(0, 1) @ w_k).transpose(0, 1)              # (T, H, R)
    queries = torch.cat((latent, turned), -1)                       # (T, H, R + E)
    scale = (D + turned.shape[-1]) ** -0.5
    mixed = ops.paged_attention(queries, pages, pages, block_tables, cu_q, lens, scale)
    return (mixed[..., :R].transpose(0, 1) @ w_v.mT).transpose(0, 1)


def check_latent(q, turned, pages, w_k, w_v):
    """ValueError that names the array whose shape does not fit the others."""
    _, H, D = q.shape
    R, E = w_k.shape[-1], turned.shape[-1]
    for name, w in (("w_k", w_k), ("w_v", w_v)):
        if w.shape != (H, D, R):
            raise ValueError(f"decode_latent: {name} has shape {tuple(w.shape)}, expected "
                             f"(H, D, R) = {(H, D, R)}")
    if pages.shape[2:] != (1, R + E):
        raise ValueError(f"decode_latent: pages hold {tuple(pages.shape[2:])} numbers a slot, "
                         f"expected (1, R + E) = {(1, R + E)}")


def store_latents(pages: Tensor, c: Tensor, k_turned: Tensor, slots: Tensor,
                  ops: Kernels) -> None:                    # (P, S, 1, R + E), (T, R), (T, E), (T,)
    """Write the new tokens' rows of a layer: the latent, then the rotated part of the key."""
    rows = torch.cat((c, k_turned), -1)[:, None]                    # (T, 1, R + E)
    ops.write_kv(rows, rows, pages, pages, slots)                   # twice the same


class LatentPages:
    """The latents of every layer in P pages of S slots: what an engine's pool deals out."""

    def __init__(self, m: Config, P: int, S: int, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu"):
        width = m.latent + m.rotated
        self.k = torch.zeros((m.L, P, S, 1, width), dtype=dtype, device=device)
        self.v = self.k[..., :0]            # empty: values are the first R numbers of k

    def copy(self, pairs: dict[int, int]) -> None:
        """Copy whole pages: {to: from}. All are read before any is written."""
        if pairs:
            self.k[:, list(pairs)] = self.k[:, list(pairs.values())]

    def read(self, table: list[int]) -> tuple[Tensor, Tensor]:      # (L, pages, S, 1, R + E), empty
        """A copy of a sequence's pages, in its order."""
        return self.k[:, table], self.v[:, table]

    def write(self, table: list[int], k: Tensor, v: Tensor) -> None:
        """Put such a copy into the first pages of a table."""
        self.k[:, table[:k.shape[1]]] = k.to(self.k)


class LatentCache(PagedCache):
    """Latents in pages that each sequence owns from the start, as g01's PagedCache has keys."""

    def __init__(self, config: Config, sequences: int, room: int,
                 dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"):
        """room: tokens that each sequence may reach.
        ModelError if the model cannot."""
        width = config.latent + config.rotated
        super().__init__(replace(config, G=1, D=width), sequences, room, dtype, device)
        self.v = self.k[..., :0]


class LatentLlama(Llama):
    """A Llama with multi-head latent attention, absorbed for prompts as for single tokens."""

    def __init__(self, config: Config, weights: dict[str, Tensor], ops: Kernels):
        super().__init__(config, weights, ops)
        self.cos, self.sin = rope_tables(replace(config, D=config.rotated), config.room,
                                         self.embedding.device)

    def pick(self, weights: dict[str, Tensor], prefix: str) -> LatentLayer:     # type: ignore[override]
        def matrix(name):
            return weights[f"{prefix}{name}.weight"]

        m = self.config
        both = matrix("self_attn.kv_b_proj").unflatten(0, (m.H, 2, m.D))    # (H, 2, D, R)
        return LatentLayer(
            matrix("input_layernorm"), matrix("self_attn.q_proj"),
            matrix("self_attn.kv_a_proj_with_mqa"), matrix("self_attn.kv_a_layernorm"),
            both[:, 0], both[:, 1], matrix("self_attn.o_proj"),
            matrix("post_attention_layernorm"),
            *(matrix(f"mlp.{name}_proj") for name in ("gate", "up", "down")))

    def block(self, i: int, x: Tensor, batch: Batch,                # type: ignore[override]
              cache: LatentCache | LatentPages) -> Tensor:          # type: ignore[override]
        layer, m, ops = self.layers[i], self.config, self.ops
        y = ops.rmsnorm(x, layer.attention_norm, m.eps)             # (T, C)
        q, turned, c, k_turned = latent_parts(layer, y, m, ops)
        ops.rope(turned, k_turned[:, None], self.cos, self.sin, batch.positions)
        store_latents(cache.k[i], c, k_turned, batch.slots, ops)
        mixed = decode_latent(q, turned, cache.k[i], batch.block_tables, batch.cu_q, batch.lens,
                              layer.w_k, layer.w_v, ops)            # (T, H, D)
        x = x + ops.matmul(mixed.flatten(1), layer.o)               # (T, C)
        y = ops.rmsnorm(x, layer.mlp_norm, m.eps)                   # (T, C)
        hidden = ops.swiglu(ops.matmul(y, layer.gate), ops.matmul(y, layer.up))     # (T, F)
        return x + ops.matmul(hidden, layer.down)

    def make_cache(self, P: int, S: int, dtype: torch.dtype,
                   device: torch.device | str) -> LatentPages:
        """An engine's cache."""
        return LatentPages(self.config, P, S, dtype, device)


def load_latent(folder: Path | str, ops: Kernels | None = None, dtype: torch.dtype | None = None,
                device: torch.device | str = "cpu") -> LatentLlama:
    """The LatentLlama in a folder.
    ModelError says what is wrong with the folder."""
    config = read_config(folder)
    if not config.latent:
        raise ModelError(f"{folder}: a model with keys and values, expected one with latents")
    return LatentLlama(config, read_weights(folder, config, dtype, device),
                       ops or kernels("torch"))


# ---- a window


def window_mask(T: int, N: int, W: int, A: int) -> Tensor:          # -> (T, N) bool
    """True where a query sees a key: itself, the W - 1 before it, and those of the first A
    tokens that are not later.

    The T queries are the last of N tokens.
    ValueError unless W ≥ 1, A ≥ 0 and T ≤ N.
    """
    if W < 1 or A < 0 or T > N:
        raise ValueError(f"window_mask: T {T}, N {N}, W {W}, A {A}; expected W of 1 or more, A of "
                         f"0 or more, T at most N")
    # exercise: how far back is each key from each query?
    n = torch.arange(N)
    back = n[N - T:, None] - n                                      # (T, N)
    return (back >= 0) & ((back < W) | (n < A))


class WindowCache:
    """Keys and values of one sequence in a ring: token n < A has slot n, the others A + (n - A) mod
    W. A prompt comes first, whole; then one token at a time.
    """

    def __init__(self, config: Config, W: int, A: int, dtype: torch.dtype = torch.float32):
        self.config = config
        self.W = W
        self.A = A
        self.N = 0
        self.k = torch.zeros((config.L, W + A, config.G, config.D), dtype=dtype)
        self.v = torch.zeros_like(self.k)                           # (L, W + A, G, D)

    def step(self, new: Sequence[Sequence[int]]) -> Batch:
        """The Batch that appends tokens to the sequence.
        ModelError beyond the model's longest: the ring has room, and the model no such position."""
        tokens, = new
        if self.N and len(tokens) > 1:
            raise ValueError(f"WindowCache: {len(tokens)} new tokens after {self.N}, expected 1")
        self.config.check_room(self.N + len(tokens))
        n = torch.arange(self.N, self.N + len(tokens))
        self.N += len(tokens)
        slots = torch.where(n < self.A, n, self.A + (n - self.A) % self.W)
        return Batch(torch.tensor(tokens), n, slots, torch.zeros((1, 1), dtype=torch.int32),
                     torch.tensor([0, len(tokens)], dtype=torch.int32),
                     torch.tensor([self.N], dtype=torch.int32))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch, ops: Kernels,
               scale: float) -> Tensor:             # (T, H, D), 2 × (T, G, D) -> (T, H, D)
        last = slice(max(self.A, len(k) - self.W), None)            # an older token of a slot first
        for rows in (slice(self.A), last):
            self.k[layer, batch.slots[rows]] = k[rows]
            self.v[layer, batch.slots[rows]] = v[rows]
        if len(k) == 1:                             # all that is left is visible, in any order
            k, v = (x[layer, :self.N] for x in (self.k, self.v))    # (N or W + A, G, D)
            visible = torch.ones(1, len(k), dtype=torch.bool)
        else:
            visible = window_mask(len(k), len(k), self.W, self.A)
        share = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(share, 1).transpose(0, 1) for x in (k, v))      # (H, N, D)
        scores = (q.transpose(0, 1) @ k.mT * scale).masked_fill(~visible, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(0, 1)
