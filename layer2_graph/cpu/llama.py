"""Llama on a CPU: only the part of a prompt that is read, and decode steps without a table

T: new tokens, one of each sequence   C F: widths of model and mlp   V: vocabulary
H G D: query heads, key heads, head width   L P S: layers, pages, slots of a page
A step of the small model makes 34 calls of the table, 16 µs each, and a quarter of that is not
arithmetic: each call checks its arguments, and hands them from PyTorch to NumPy and back.
Every layer works out which pages each token sees, though that holds for the whole step.
So decoding is written here a second time, as in o02: in NumPy from the embedding to the scores,
with one check.

For up to LEAN tokens a small matrix lies in strips.
NumPy's library has kernels for small products that read a matrix as it lies, on one thread;
oneDNN's call alone takes longer than such a product.
That library must not use more than one thread here: its threads would wait for cores that PyTorch's
threads hold for a while after their work is done.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import silu

from layer2_graph.cpu.attention import Group, attend_group, groups, is_cpu_fp32, sequences
from layer2_graph.cpu.kernels import (
    CACHED,
    LEAN_TOKENS,
    SHARED,
    cpu_kernels,
    matmul_cpu,
    numpy_slots,
    rmsnorm_np,
    rotate,
    rotation,
)
from layer2_graph.g01_llama import Batch, Cache, last_rows
from layer2_graph.g03_merging import MergedLayer
from layer2_graph.g05_fused_llama import FusedLlama, fused_block, last_scores

__all__ = ["CpuLlama", "tile"]

STRIP = 64              # rows of a matrix, beside each other
LEAN = 8                # tokens up to which NumPy's library on one thread gains more than oneDNN
ONE_THREAD = 1 << 18    # products of two numbers up to which NumPy's library uses one thread
ROWS = 32               # tokens that tiles are made for: oneDNN takes a layout that suits 8 to 256
TABLE = cpu_kernels()


class Arrays(NamedTuple):
    """A layer's weights for NumPy; a matrix in tiles stays oneDNN's, a Tensor."""

    attention_norm: np.ndarray
    qkv: np.ndarray | Tensor            # ((H + 2 * G) * D, C)
    o: np.ndarray | Tensor
    mlp_norm: np.ndarray
    gate_up: np.ndarray | Tensor        # (2 * F, C)
    down: np.ndarray | Tensor


def arrays(layer: MergedLayer) -> Arrays | None:
    """Arrays of a layer; None if it has biases or norms of heads, or is not float32 on a CPU."""
    weights = [getattr(layer, name) for name in Arrays._fields]
    if layer.q_norm is not None or any(w[1] is not None for w in weights if type(w) is tuple):
        return None
    weights = [w[0] if type(w) is tuple else w for w in weights]
    if not is_cpu_fp32(*weights):
        return None
    return Arrays(*(w if w.is_mkldnn else w.numpy() for w in weights))


def in_strips(w: np.ndarray | Tensor) -> np.ndarray | None:     # (N, K) -> (N / n, K, n)
    """A small matrix in strips of n rows, which NumPy's library reads one byte after the other. n
    rows and LEAN tokens are so few that it uses one thread.
    None for any other matrix."""
    if not isinstance(w, np.ndarray) or w.ndim < 2 or w.nbytes >= CACHED:
        return None
    n = STRIP
    while n >= 16 and (len(w) % n or n * w.shape[1] * LEAN > ONE_THREAD):
        n //= 2
    if n < 16:
        return None
    return np.ascontiguousarray(w.reshape(-1, n, w.shape[1]).transpose(0, 2, 1))


def strips(rows: list, others: list) -> list:       # 2 × [Arrays], or None for a layer
    """The small matrices of `rows` in strips, and all else as in `others`."""
    def one(w, other):
        return other if (strip := in_strips(w)) is None else strip

    return [a and Arrays(*map(one, a, b)) for a, b in zip(rows, others, strict=True)]


def matmul_np(w: np.ndarray | Tensor, x: np.ndarray) -> np.ndarray:     # (N, K), (T, K) -> (T, N)
    """x wᵀ. w: rows, strips or oneDNN's tiles"""
    if isinstance(w, np.ndarray):
        if w.ndim == 3:
            return (x @ w).transpose(1, 0, 2).reshape(len(x), -1)
        if len(x) == 1:
            return SHARED.product(w, x[0])[None]
        w = torch.from_numpy(w)
    return matmul_cpu(torch.from_numpy(x), w).numpy()


def attend(q: np.ndarray, k_pages: np.ndarray, v_pages: np.ndarray, parts: list[Group],
           scale: float) -> np.ndarray:             # (T, H, D) -> (T, H * D)
    """What all new tokens see. parts: `groups` of the batch"""
    if len(parts) == 1:
        return attend_group(q, k_pages, v_pages, parts[0], scale).reshape(len(q), -1)
    out = np.empty((len(q), q.shape[1] * q.shape[2]), np.float32)
    for group in parts:
        mixed = attend_group(q[group.rows], k_pages, v_pages, group, scale)
        out[group.rows] = mixed.reshape(len(mixed), -1)
    return out


def decode(model: "CpuLlama", batch: Batch, cache: Cache) -> Tensor | None:  # (T, V)
    """Scores of the next token of each sequence, in NumPy.
    None unless each sequence has one new token, all is float32 on a CPU, `arrays` takes the
    model, and the step fits the cache."""
    m, T, (P, S, *each) = model.config, batch.tokens.shape[0], cache.k.shape[1:]
    layers = model.arrays(T)
    if (not 0 < T <= LEAN_TOKENS or batch.lens.shape[0] != T or None in layers
            or not is_cpu_fp32(cache.k, cache.v, model.embedding, model.norm, model.cos, model.sin)
            or not cache.k.is_contiguous() & cache.v.is_contiguous()):
        return None
    contexts = sequences((T, m.H, m.D), cache.k[0], cache.v[0], batch.block_tables, batch.cu_q,
                         batch.lens)
    slots = numpy_slots(batch.slots, T, P * S)
    if slots is None or contexts is None or len(contexts) != T or batch.positions.shape[0] != T:
        return None
    c, s = rotation(model.cos, model.sin, batch.positions)
    k_pages, v_pages = cache.k.numpy(), cache.v.numpy()             # (L, P, S, G, D)
    parts = groups(contexts, k_pages[0])
    x = model.embedding.numpy()[batch.tokens.numpy()]               # (T, C)
    for layer, keys, values in zip(layers, k_pages, v_pages, strict=True):
        y = rmsnorm_np(x, layer.attention_norm, m.eps)                      # (T, C)
        heads = matmul_np(layer.qkv, y).reshape(T, -1, m.D)                 # (T, H + 2 * G, D)
        qk = rotate(heads[:, :-m.G], c, s)                                  # (T, H + G, D)
        keys.reshape(P * S, *each)[slots] = qk[:, m.H:]
        values.reshape(P * S, *each)[slots] = heads[:, -m.G:]
        x = x + matmul_np(layer.o, attend(qk[:, :m.H], keys, values, parts, m.scale))
        y = matmul_np(layer.gate_up, rmsnorm_np(x, layer.mlp_norm, m.eps))  # (T, 2 * F)
        hidden = silu(torch.from_numpy(y[:, :m.F])).numpy()                 # (T, F)
        hidden *= y[:, m.F:]
        x = x + matmul_np(layer.down, hidden)
    y = rmsnorm_np(x, model.norm.numpy(), m.eps)                            # (T, C)
    return matmul_cpu(torch.from_numpy(y), model.head)


class CpuLlama(FusedLlama):
    """g05's Llama without the results that are never read: the last layer computes only its keys
    and values, and the rows that need scores.
    That saves most of a layer of a prompt.
    With cpu_kernels() as the table, steps with one new token for each sequence run in `decode`.
    """

    layouts: tuple | None = None        # (layers, their Arrays for few tokens, those for more)

    def arrays(self, T: int) -> list:
        """Arrays of each layer for T tokens, made again if the layers were replaced.
        For few tokens, small matrices are held a second time, in strips."""
        if self.layouts is None or self.layouts[0] is not self.layers:
            rows = list(map(arrays, self.layers))
            self.layouts = self.layers, strips(rows, rows), rows
        return self.layouts[1 if T <= LEAN else 2]

    def forward(self, batch: Batch, cache: Cache,
                every: bool = False) -> Tensor:         # (B, V), or (T, V) for every token
        """Scores of the next token after the last new token of each sequence."""
        if self.ops == TABLE and (scores := decode(self, batch, cache)) is not None:
            return scores
        if every or len(batch.tokens) == len(batch.lens) == 1:      # all rows need scores
            return super().forward(batch, cache, every=True)
        if len(batch.tokens) == len(batch.lens) or not batch.cu_q.diff().all():  # or some have none
            return super().forward(batch, cache)
        ops, last, rows = self.ops, self.config.L - 1, last_rows(batch.cu_q)    # rows (B,)
        x, residual = self.embedding[batch.tokens], None        # (T, C)
        for i in range(last):
            x, residual = fused_block(self, i, x, residual, batch, cache)
        layer = self.layers[last]
        y, residual = self.add_norm(x, residual, layer.attention_norm)          # (T, C)
        q, k, v = self.heads(layer, y)
        ops.rope_and_cache(q, k, v, self.cos, self.sin, batch.positions, cache.k[last],
                           cache.v[last], batch.slots)
        each = torch.arange(len(rows) + 1, dtype=torch.int32, device=rows.device)   # (B + 1,)
        mixed = ops.paged_attention(q[rows], cache.k[last], cache.v[last], batch.block_tables, each,
                                    batch.lens, self.config.scale)              # (B, H, D)
        x = self.linear(mixed.flatten(1), layer.o)                              # (B, C)
        y, residual = ops.add_rmsnorm(x, residual[rows], layer.mlp_norm, self.config.eps)
        return last_scores(self, self.linear(self.gated(layer, y), layer.down), residual,
                           slice(None))


def tile(model: CpuLlama) -> CpuLlama:
    """Lay out the matrices of a model for several tokens at a time, and return the model.

    A product of the same weights with several tokens wants them in tiles that fit registers, and
    PyTorch makes such tiles in each call. oneDNN keeps them, in opaque arrays that only the table
    of cpu_kernels takes.
    `weights` is then empty, so that nothing is held twice but small matrices, as strips, and an
    embedding that is the head as well.
    A model that is not float32 on a CPU stays as it is; so does every model if PyTorch has no
    oneDNN.
    """
    if not (torch.backends.mkldnn.is_available() and is_cpu_fp32(*model.weights.values())):
        return model

    def tiled(weight):
        return torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)    # what torch.compile calls

    rows = list(map(arrays, model.layers))
    model.layers = [layer._replace(**{
        name: (tiled(weight), bias) for name in ("qkv", "o", "gate_up", "down")
        for weight, bias in [getattr(layer, name)]}) for layer in model.layers]
    model.head = tiled(model.head)
    model.weights = {}
    tiles = list(map(arrays, model.layers))
    model.layouts = model.layers, strips(rows, tiles), tiles
    return model
