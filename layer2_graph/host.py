"""The table of kernels for decoding on a CPU: what one new token needs, by NumPy

T: new tokens   N: a context   M N K: matmul sizes   C F: widths of model and mlp
H G D: query heads, key heads, head width   P S: pages, slots of a page
With one token a matrix is read once and each weight multiplied once: it should take as long as
reading does. PyTorch's library takes twice that. A kernel that works on several rows of the weights
at once, which is best for several tokens, asks memory for short pieces here and there. One dot
product after the other asks for the weights as they lie there, and memory can run ahead.

Several tokens are left to kernels("torch"), but for attention, SwiGLU and the matrices of MANY;
so is what is no float32 on a CPU. Results differ from its by rounding alone.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise
from math import sqrt

import numpy as np
import torch
from torch.backends import mkldnn
from torch.nn.functional import linear, scaled_dot_product_attention, silu
from torch.utils._pytree import tree_leaves, tree_map

from layer1_kernels import kernels
from layer2_graph.g01_llama import last_rows
from layer2_graph.g05_fused_llama import FusedLlama, fused_block, last_scores

__all__ = ["HostLlama", "host_kernels", "settle"]

TORCH = kernels("torch")
SHARE = 8 << 20         # bytes of weights for a thread: to wake one takes as long as to read 2 MB
MANY = 16               # tokens that earn back what it costs to hand a matrix to oneDNN


def host_kernels():
    """The table: kernels("torch"), but one token of float32 on a CPU is NumPy's."""
    return replace(TORCH, matmul=matmul_host, matmul_swiglu=matmul_swiglu_host,
                   rmsnorm=rmsnorm_host, add_rmsnorm=add_rmsnorm_host, rope=rope_host,
                   rope_and_cache=rope_and_cache_host, write_kv=write_kv_host,
                   paged_attention=paged_attention_host, swiglu=swiglu_host)


class HostLlama(FusedLlama):
    """g05's Llama, which leaves out what nobody reads: of the last layer only its keys and values,
    and the rows that scores are asked of. Of a prompt it saves most of a layer.
    """

    def forward(self, step, cache, every=False):        # -> (B, V), or (T, V) for every token
        """Scores of the next token after the last new token of each sequence."""
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


def settle(model):
    """Move the weights of a model on a CPU into one piece of memory; the same model again.

    NumPy asks Linux for large pages, 2 MB instead of 4 KB, for what is as large as this; PyTorch
    does not. Where a page lies must be looked up again and again while all weights are read, and
    large pages are fewer. What shared memory before shares it after.
    """
    held = model.weights, model.embedding, model.norm, model.head, model.layers
    weights = [a for a in tree_leaves(held) if a is not None]       # a bias may be None
    old = {s.data_ptr(): s for s in map(torch.Tensor.untyped_storage, weights)}
    ends = list(accumulate(-(-len(s) // 16) * 16 for s in old.values()))    # for any dtype
    starts = dict(zip(old, [0, *ends], strict=False))
    block = torch.from_numpy(np.empty(ends[-1], np.uint8))
    for key, storage in old.items():
        block[starts[key]:starts[key] + len(storage)] = block.new_empty(0).set_(storage)

    def moved(a):
        if a is None:
            return None
        piece = block[starts[a.untyped_storage().data_ptr()]:].view(a.dtype)
        return piece.as_strided(a.shape, a.stride(), piece.storage_offset() + a.storage_offset())

    model.weights, model.embedding, model.norm, model.head, model.layers = tree_map(moved, held)
    return model


def lone(*arrays):
    """Whether the first has one row, and NumPy may have all: float32 on a CPU, no gradients."""
    return arrays[0].shape[0] == 1 and plain(*arrays)       # len() of a tensor takes longer


def plain(*arrays):
    for a in arrays:
        if a.dtype is not torch.float32 or not a.is_cpu or a.requires_grad:
            return False
    return True


# ---- matrices


@cache
def threads(process):
    """The helpers of this process; a fork has none of its parent's."""
    return ThreadPoolExecutor()


def product(w, x):                                  # (N, K), (K,) -> (N,)
    """w · x, row by row. As many threads as PyTorch would take have a share of the rows each, but
    none a share smaller than SHARE."""
    N, parts = len(w), min(torch.get_num_threads(), w.nbytes // SHARE)
    if parts < 2:
        return np.vecdot(w, x)
    out = np.empty(N, w.dtype)                      # (N,)

    def share(part):
        rows = slice(N * part // parts, N * (part + 1) // parts)
        np.vecdot(w[rows], x, out=out[rows])

    others = [threads(os.getpid()).submit(share, part) for part in range(1, parts)]
    share(0)
    for other in others:
        other.result()
    return out


def matmul_host(a, w):                              # (M, K), (N, K) -> (M, N)
    """As matmul. PyTorch hands float32 to MKL, which on some CPUs leaves half of their width idle;
    oneDNN, which is in PyTorch too, takes what is in its own format."""
    if lone(a, w) and w.stride(-1) == 1:
        return torch.from_numpy(product(w.numpy(), a.numpy()[0])[None])
    fit = a.shape[1] == w.shape[1] and w.numel()
    if len(a) >= MANY and fit and plain(a, w) and mkldnn.is_available():
        return linear(a.to_mkldnn(), w).to_dense()
    return TORCH.matmul(a, w)


def matmul_swiglu_host(x, w_gate_up):               # (T, C), (2F, C) -> (T, F)
    """As matmul_swiglu."""
    if not plain(x, w_gate_up):
        return TORCH.matmul_swiglu(x, w_gate_up)
    return swiglu_host(*matmul_host(x, w_gate_up).chunk(2, dim=-1))


# ---- number by number


def swiglu_host(gate, up):                          # 2 × (T, F) -> (T, F)
    """As swiglu, for any number of tokens: PyTorch's two calls, and one array less."""
    if not plain(gate, up):
        return TORCH.swiglu(gate, up)
    return silu(gate).mul_(up)


def normed(x, w, eps):                              # (1, C), (C,) -> (1, C)
    return torch.from_numpy(x * np.float32(1 / sqrt(np.vdot(x, x) / x.size + eps)) * w)


def rmsnorm_host(x, w, eps):                        # (T, C), (C,) -> (T, C)
    """As rmsnorm."""
    if not lone(x, w):
        return TORCH.rmsnorm(x, w, eps)
    return normed(x.numpy(), w.numpy(), eps)


def add_rmsnorm_host(x, residual, w, eps):          # 2 × (T, C), (C,) -> 2 × (T, C)
    """As add_rmsnorm."""
    if not lone(x, residual, w):
        return TORCH.add_rmsnorm(x, residual, w, eps)
    residual = x + residual                         # (1, C)
    return normed(residual.numpy(), w.numpy(), eps), residual


def turned(q, k, cos, sin, position):               # (1, H, D), (1, G, D) -> (H + G, D)
    """The heads of q and k as rope turns them."""
    c, s, half = cos[position], sin[position], cos.shape[1]             # (D/2,)
    heads = np.concatenate((q[0], k[0]))                                # (H + G, D)
    a, b = heads[:, :half], heads[:, half:]                             # (H + G, D/2)
    return np.concatenate((a * c - b * s, b * c + a * s), axis=1)


def rope_host(q, k, cos, sin, positions):
    """As rope."""
    if not lone(q, k, cos, sin):
        return TORCH.rope(q, k, cos, sin, positions)
    q, k = q.numpy(), k.numpy()
    both, H = turned(q, k, cos.numpy(), sin.numpy(), positions.item()), q.shape[1]
    q[0], k[0] = both[:H], both[H:]


def write_kv_host(k, v, k_pages, v_pages, slots):
    """As write_kv."""
    page, place = divmod(slots.item(), k_pages.shape[1]) if slots.numel() == 1 else (-1, 0)
    if not lone(k, v, k_pages, v_pages) or not 0 <= page < k_pages.shape[0]:
        return TORCH.write_kv(k, v, k_pages, v_pages, slots)            # slot -1 too: it is nowhere
    k_pages.numpy()[page, place], v_pages.numpy()[page, place] = k.numpy()[0], v.numpy()[0]


def rope_and_cache_host(q, k, v, cos, sin, positions, k_pages, v_pages, slots):
    """As rope_and_cache."""
    page, place = divmod(slots.item(), k_pages.shape[1]) if slots.numel() == 1 else (-1, 0)
    if not lone(q, k, v, cos, sin, k_pages, v_pages) or not 0 <= page < k_pages.shape[0]:
        return TORCH.rope_and_cache(q, k, v, cos, sin, positions, k_pages, v_pages, slots)
    q = q.numpy()
    both = turned(q, k.numpy(), cos.numpy(), sin.numpy(), positions.item())     # (H + G, D)
    q[0], k_pages.numpy()[page, place] = both[:q.shape[1]], both[q.shape[1]:]
    v_pages.numpy()[page, place] = v.numpy()[0]


# ---- attention


def attend_one(q, keys, values, scale):             # (H, D), 2 × (N, G, D) -> (H, D)
    """What one token sees: all of its context."""
    scores = (q * scale).reshape(keys.shape[1], -1, q.shape[1]) @ keys.transpose(1, 2, 0)
    weights = np.exp(scores - np.maximum.reduce(scores, -1, keepdims=True))     # (G, H/G, N)
    mixed = weights @ values.transpose(1, 0, 2)                                 # (G, H/G, D)
    return (mixed / np.add.reduce(weights, -1, keepdims=True)).reshape(q.shape)


def attend_more(q, keys, values, scale):            # (T, H, D), 2 × (N, G, D) -> (T, H, D)
    """What the last T tokens of a context see, by PyTorch's fused kernel."""
    T, N = len(q), len(keys)
    q, keys, values = (x.transpose(0, 1)[None] for x in (q, keys, values))      # (1, H, T, D), …
    seen = None if T == N else torch.ones(T, N, dtype=torch.bool).tril(N - T)   # (T, N)
    mixed = scaled_dot_product_attention(q, keys, values, seen, is_causal=T == N, scale=scale,
                                         enable_gqa=True)
    return mixed[0].transpose(0, 1)                 # as it lies in memory: PyTorch has it so, too


def context(pages, table, N):                       # (P, S, G, D), [page] -> (N, G, D)
    """Keys or values of a sequence; those of pages that follow each other are not copied."""
    first, end = table[0], table[0] + len(table)
    pages = pages[first:end] if table == list(range(first, end)) else pages[table]
    return pages.reshape(-1, *pages.shape[2:])[:N]


def sequences(q, k_pages, v_pages, block_tables, cu_q, lens):
    """[(pages, tokens, first row of q, the row behind its last)] of the sequences with new tokens;
    None where something does not fit together."""
    (P, S, G, D), ends, found = k_pages.shape, cu_q.tolist(), []
    if v_pages.shape != k_pages.shape or q.shape[2:] != (D,) or q.shape[1] % G:
        return None
    if ends[0] != 0 or ends[-1] > len(q) or not len(ends) - 1 == len(lens) == len(block_tables):
        return None
    for table, N, (begin, end) in zip(block_tables.tolist(), lens.tolist(), pairwise(ends),
                                      strict=True):
        used = table[:-(-N // S)]                           # the last may be part empty
        if not 0 <= end - begin <= N <= S * len(used):
            return None
        if begin < end:
            if min(used) < 0 or max(used) >= P:
                return None
            found.append((used, N, begin, end))
    return found


def paged_attention_host(q, k_pages, v_pages, block_tables, cu_q, lens, scale):
    """As paged_attention; each sequence for itself, and those of one new token by NumPy."""
    arrays = q, k_pages, v_pages, block_tables, cu_q, lens
    if not plain(q, k_pages, v_pages) or not scale > 0 or (found := sequences(*arrays)) is None:
        return TORCH.paged_attention(*arrays, scale)        # or its word on what is wrong
    q, k_pages, v_pages = q.numpy(), k_pages.numpy(), v_pages.numpy()
    out = np.zeros_like(q)                                                      # (T, H, D)
    for table, N, begin, end in found:
        keys, values = context(k_pages, table, N), context(v_pages, table, N)
        if end - begin == 1:
            out[begin] = attend_one(q[begin], keys, values, scale)
        else:
            new = map(torch.from_numpy, (q[begin:end], keys, values))
            out[begin:end] = attend_more(*new, scale)
    return torch.from_numpy(out)
