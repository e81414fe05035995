"""Llama on a CPU: of a prompt only what is read, and steps of decoding without a table

T: new tokens, one of each sequence   C F: widths of model and mlp   V: vocabulary
H G D: query heads, key heads, head width   L P S: layers, pages, slots of a page
A step of the small model makes 34 calls of the table, 16 µs each, and a quarter of that is no
arithmetic: each call asks what it was given, and hands it from PyTorch to NumPy and back. Who sees
which pages is asked in every layer, though it holds for the whole step. So decoding is here once
more as in o02, in NumPy from the embedding to the scores, and asks once.
"""

from typing import NamedTuple

import numpy as np
import torch

from layer2_graph.g01_llama import last_rows
from layer2_graph.g05_fused_llama import FusedLlama, fused_block, last_scores
from layer2_graph.host import (
    FEW,
    SHARED,
    host_kernels,
    known,
    matmul_host,
    normed,
    swiglu_host,
    turned,
    turns,
)
from layer2_graph.host_attention import attend_group, groups, plain, sequences

__all__ = ["HostLlama"]

TABLE = host_kernels()


class Arrays(NamedTuple):
    """A layer's weights for NumPy; a matrix in tiles stays oneDNN's."""

    attention_norm: np.ndarray
    qkv: np.ndarray                     # ((H + 2 * G) * D, C)
    o: np.ndarray
    mlp_norm: np.ndarray
    gate_up: np.ndarray                 # (2 * F, C)
    down: np.ndarray


def arrays(layer):
    """Arrays of a MergedLayer; None where it has biases, norms of heads, or no float32 on a CPU."""
    weights = [getattr(layer, name) for name in Arrays._fields]
    if layer.q_norm is not None or any(w[1] is not None for w in weights if type(w) is tuple):
        return None
    weights = [w[0] if type(w) is tuple else w for w in weights]
    if not plain(*weights):
        return None
    return Arrays(*(w if w.is_mkldnn else w.numpy() for w in weights))


def times(w, x):                                    # (N, K), (T, K) -> (T, N)
    if isinstance(w, np.ndarray):
        if len(x) == 1:
            return SHARED.product(w, x[0])[None]
        w = torch.from_numpy(w)
    return matmul_host(torch.from_numpy(x), w).numpy()


def attend(q, k_pages, v_pages, seen, scale):       # (T, H, D) -> (T, H * D)
    """What all new tokens see. seen: `groups` of the step"""
    out = np.empty((len(q), q.shape[1] * q.shape[2]), np.float32)
    for group in seen:
        mixed = attend_group(q[group.rows], k_pages, v_pages, group, scale)
        out[group.rows] = mixed.reshape(len(mixed), -1)
    return out


def decode(model, step, cache):                     # -> (T, V), or None
    """Scores of the next token of each sequence, in NumPy. None where it is not a new token each,
    on a CPU, in float32, of a model as `arrays` wants it; or where the step does not fit."""
    m, T, (P, S, *each) = model.config, step.tokens.shape[0], cache.k.shape[1:]
    layers = model.arrays()
    if (not 0 < T <= FEW or step.lens.shape[0] != T or None in layers
            or not plain(cache.k, cache.v, model.embedding, model.norm, model.cos, model.sin)
            or not cache.k.is_contiguous() & cache.v.is_contiguous()):
        return None
    found = sequences((T, m.H, m.D), cache.k[0], cache.v[0], step.block_tables, step.cu_q,
                      step.lens)
    slots = known(step.slots, T, P * S)
    if slots is None or found is None or len(found) != T or step.positions.shape[0] != T:
        return None
    c, s = turns(model.cos, step.positions), turns(model.sin, step.positions)
    k_pages, v_pages = cache.k.numpy(), cache.v.numpy()             # (L, P, S, G, D)
    seen = groups(found, k_pages[0])
    x = model.embedding.numpy()[step.tokens.numpy()]                # (T, C)
    for layer, keys, values in zip(layers, k_pages, v_pages, strict=True):
        y = normed(x, layer.attention_norm, m.eps)                              # (T, C)
        heads = times(layer.qkv, y).reshape(T, -1, m.D)                         # (T, H + 2 * G, D)
        qk = turned(heads[:, :-m.G], c, s)                                      # (T, H + G, D)
        keys.reshape(P * S, *each)[slots] = qk[:, m.H:]
        values.reshape(P * S, *each)[slots] = heads[:, -m.G:]
        x = x + times(layer.o, attend(qk[:, :m.H], keys, values, seen, m.scale))
        y = times(layer.gate_up, normed(x, layer.mlp_norm, m.eps))              # (T, 2 * F)
        gate, up = torch.from_numpy(y).chunk(2, dim=1)                          # (T, F)
        x = x + times(layer.down, swiglu_host(gate, up).numpy())
    y = normed(x, model.norm.numpy(), m.eps)                                    # (T, C)
    return matmul_host(torch.from_numpy(y), model.head)


class HostLlama(FusedLlama):
    """g05's Llama, which leaves out what nobody reads: of the last layer only its keys and values,
    and the rows that scores are asked of. Of a prompt it saves most of a layer. With host_kernels()
    as the table, steps with one new token each go around it, by `decode`.
    """

    made = None

    def arrays(self):
        """Arrays of each layer, made anew where the layers were replaced, as tile does."""
        if self.made is None or self.made[0] is not self.layers:
            self.made = self.layers, list(map(arrays, self.layers))
        return self.made[1]

    def forward(self, step, cache, every=False):        # -> (B, V), or (T, V) for every token
        """Scores of the next token after the last new token of each sequence."""
        if self.ops == TABLE and (scores := decode(self, step, cache)) is not None:
            return scores
        if every or len(step.tokens) == len(step.lens) == 1:        # all are asked
            return super().forward(step, cache, every=True)
        if len(step.tokens) == len(step.lens) or not step.cu_q.diff().all():    # or not all in it
            return super().forward(step, cache)
        ops, last, rows = self.ops, self.config.L - 1, last_rows(step.cu_q)     # rows (B,)
        x, residual = self.embedding[step.tokens], None         # (T, C)
        for i in range(last):
            x, residual = fused_block(self, i, x, residual, step, cache)
        layer = self.layers[last]
        y, residual = self.add_norm(x, residual, layer.attention_norm)          # (T, C)
        q, k, v = self.heads(layer, y)
        ops.rope_and_cache(q, k, v, self.cos, self.sin, step.positions, cache.k[last],
                           cache.v[last], step.slots)
        each = torch.arange(len(rows) + 1, dtype=torch.int32, device=rows.device)   # (B + 1,)
        mixed = ops.paged_attention(q[rows], cache.k[last], cache.v[last], step.block_tables, each,
                                    step.lens, self.config.scale)               # (B, H, D)
        x = self.linear(mixed.flatten(1), layer.o)                              # (B, C)
        y, residual = ops.add_rmsnorm(x, residual[rows], layer.mlp_norm, self.config.eps)
        return last_scores(self, self.linear(self.gated(layer, y), layer.down), residual,
                           slice(None))
