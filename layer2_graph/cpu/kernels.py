"""The table of kernels for decoding on a CPU: lean calls for few tokens, and matrices for each case

T: new tokens   N: a context   M N K: matmul sizes   C F: widths of model and mlp
H G D: query heads, key heads, head width   P S: pages, slots of a page
With one token a matrix is read once and each weight multiplied once: it should take as long as
reading does. PyTorch's library takes twice that. A kernel that works on several rows of the weights
at once, which is best for several tokens, asks memory for short pieces here and there. One dot
product after the other asks for the weights as they lie there, and memory can run ahead.

Several tokens want their weights in tiles; where these lie in rows, MANY tokens gain by oneDNN.
What is between two matrices NumPy does in leaner calls, while the tokens are few. All else is left
to kernels("torch"), and what is no float32 on a CPU. Results differ from its by rounding alone.
"""

import time
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
from torch.backends import mkldnn
from torch.nn.functional import linear, silu
from torch.utils._pytree import tree_leaves, tree_map

from layer2_graph.cpu.attention import TORCH, paged_attention_cpu, plain

__all__ = ["cpu_kernels", "settle"]

CACHED = 1 << 20        # bytes of a matrix that may lie in a core's cache
SHARE = 2 << 20         # bytes of a matrix that gains by a second thread
ALONE, WAITED = 25e9, 2e-3      # bytes/s that one thread reads; seconds beyond that are a wait
RESTING = 1000          # products: five steps of 135M, ten times as long as a wait
FEW = 64                # tokens: with more, PyTorch's threads gain more than lean calls do
MANY = 16               # tokens that earn back what it costs to hand a matrix to oneDNN


def cpu_kernels():
    """The table: kernels("torch"), but few tokens of float32 on a CPU are NumPy's."""
    return replace(TORCH, matmul=matmul_cpu, matmul_swiglu=matmul_swiglu_cpu,
                   rmsnorm=rmsnorm_cpu, add_rmsnorm=add_rmsnorm_cpu, rope=rope_cpu,
                   rope_and_cache=rope_and_cache_cpu, write_kv=write_kv_cpu,
                   paged_attention=paged_attention_cpu, swiglu=swiglu_cpu)


def settle(model):
    """Move the weights of a model on a CPU into one piece of memory; the same model again.

    NumPy asks Linux for large pages, 2 MB instead of 4 KB, for what is as large as this; PyTorch
    does not. Where a page lies must be looked up again and again while all weights are read, and
    large pages are fewer. What shared memory before shares it after.
    """
    parts = model.weights, model.embedding, model.norm, model.head, model.layers
    weights = [a for a in tree_leaves(parts) if a is not None]       # a bias may be None
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

    model.weights, model.embedding, model.norm, model.head, model.layers = tree_map(moved, parts)
    return model


def few(*arrays):
    """Whether the first has few rows, and NumPy may have all: float32 on a CPU, no gradients."""
    return arrays[0].shape[0] <= FEW and plain(*arrays)     # len() takes three times as long


# ---- matrices


class Shared:
    """w · x on several cores, by NumPy's library, as long as nobody else wants them.

    Its threads wait for each other, and where one of them is not running, all wait for the
    scheduler: a product takes forty times as long then. After one that waited, the next RESTING
    are made by one thread.
    """

    def __init__(self):
        self.resting = 0

    def product(self, w, x):                        # (N, K), (K,) -> (N,)
        if w.nbytes < CACHED:                       # one thread, of NumPy's library too
            return w @ x
        if w.nbytes < SHARE or torch.get_num_threads() < 2:
            return np.vecdot(w, x)
        if self.resting:
            self.resting -= 1
            return np.vecdot(w, x)
        began = time.perf_counter()
        out = w @ x
        if time.perf_counter() - began > w.nbytes / ALONE + WAITED:
            self.resting = RESTING
        return out


SHARED = Shared()


def matmul_cpu(a, w):                              # (M, K), (N, K) -> (M, N)
    """As matmul; w may be tiled. PyTorch hands float32 to MKL, which on some CPUs leaves half of
    their width idle; oneDNN, which is in PyTorch too, takes what is in its own format."""
    if w.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(a, w, None, "none", [], "")
    tokens = a.shape[0]
    if tokens == 1 and plain(a, w) and w.stride(-1) == 1:
        return torch.from_numpy(SHARED.product(w.numpy(), a.numpy()[0])[None])
    fit = a.shape[1] == w.shape[1] and w.numel()
    if tokens >= MANY and fit and plain(a, w) and mkldnn.is_available():
        return linear(a.to_mkldnn(), w).to_dense()
    return TORCH.matmul(a, w)


def matmul_swiglu_cpu(x, w_gate_up):               # (T, C), (2F, C) -> (T, F)
    """As matmul_swiglu; w_gate_up may be tiled."""
    if not w_gate_up.is_mkldnn and not plain(x, w_gate_up):
        return TORCH.matmul_swiglu(x, w_gate_up)
    return swiglu_cpu(*matmul_cpu(x, w_gate_up).chunk(2, dim=-1))


# ---- number by number


def swiglu_cpu(gate, up):                          # 2 × (T, F) -> (T, F)
    """As swiglu, for any number of tokens: PyTorch's two calls, and one array less."""
    if not plain(gate, up):
        return TORCH.swiglu(gate, up)
    return silu(gate).mul_(up)


def normed(x, w, eps):                              # (T, C), (C,) -> (T, C), NumPy's
    scale = (np.vecdot(x, x) / x.shape[1] + eps) ** -0.5                # (T,)
    return x * scale[:, None] * w


def rmsnorm_cpu(x, w, eps):                        # (T, C), (C,) -> (T, C)
    """As rmsnorm."""
    if not few(x, w):
        return TORCH.rmsnorm(x, w, eps)
    return torch.from_numpy(normed(x.numpy(), w.numpy(), eps))


def add_rmsnorm_cpu(x, residual, w, eps):          # 2 × (T, C), (C,) -> 2 × (T, C)
    """As add_rmsnorm."""
    if not few(x, residual, w):
        return TORCH.add_rmsnorm(x, residual, w, eps)
    residual = x + residual                         # (T, C)
    return rmsnorm_cpu(residual, w, eps), residual


def turned(heads, c, s):                            # (T, H, D), 2 × (T, 1, D) -> (T, H, D)
    """Heads as rope turns them. c, s: of `turns`"""
    half = heads.shape[2] // 2
    other = np.concatenate((heads[..., half:], heads[..., :half]), axis=2)
    other *= s
    out = heads * c
    out += other
    return out


def turns(cos, sin, positions):                     # 2 × (N, D/2), (T,) -> 2 × (T, 1, D)
    """The factor of each number, and that of the number it turns with."""
    c, s = (table.numpy().take(positions.numpy(), 0) for table in (cos, sin))   # (T, D/2)
    return (np.concatenate(pair, axis=1)[:, None] for pair in ((c, c), (-s, s)))


def rope_cpu(q, k, cos, sin, positions):
    """As rope."""
    if not few(q, k, cos, sin) or len(positions) != len(q):
        return TORCH.rope(q, k, cos, sin, positions)
    c, s = turns(cos, sin, positions)
    for heads in (q.numpy(), k.numpy()):
        heads[:] = turned(heads, c, s)


def known(slots, T, room):
    """T slots as NumPy has them, (T,); None where one is nowhere: -1, or room and beyond."""
    numbers = slots.tolist()
    fits = len(numbers) == T and (not T or 0 <= min(numbers) <= max(numbers) < room)
    return slots.numpy() if fits else None


def opened(slots, T, k_pages, v_pages):             # (T,), 2 × (P, S, G, D)
    """(slots, keys, values) for NumPy to write to, 2 × (P * S, G, D); None where it cannot."""
    P, S, *each = k_pages.shape
    if k_pages.shape != v_pages.shape or not k_pages.is_contiguous() & v_pages.is_contiguous():
        return None
    if (slots := known(slots, T, P * S)) is None:
        return None
    return slots, *(pages.numpy().reshape(P * S, *each) for pages in (k_pages, v_pages))


def write_kv_cpu(k, v, k_pages, v_pages, slots):
    """As write_kv."""
    if (not few(k, v, k_pages, v_pages)
            or (into := opened(slots, k.shape[0], k_pages, v_pages)) is None):
        return TORCH.write_kv(k, v, k_pages, v_pages, slots)
    slots, keys, values = into
    keys[slots], values[slots] = k.numpy(), v.numpy()


def rope_and_cache_cpu(q, k, v, cos, sin, positions, k_pages, v_pages, slots):
    """As rope_and_cache."""
    T, H = q.shape[:2]
    if (not few(q, k, v, cos, sin, k_pages, v_pages) or positions.shape[0] != T
            or (into := opened(slots, T, k_pages, v_pages)) is None):
        return TORCH.rope_and_cache(q, k, v, cos, sin, positions, k_pages, v_pages, slots)
    slots, keys, values = into
    c, s = turns(cos, sin, positions)
    both = turned(np.concatenate((q.numpy(), k.numpy()), axis=1), c, s)
    q.numpy()[:], keys[slots], values[slots] = both[:, :H], both[:, H:], v.numpy()
