"""The table of kernels for decoding on a CPU: lean calls for few tokens, and matrices for each case

T: new tokens   N: a context   M N K: matmul sizes   C F: widths of model and mlp
H G D: query heads, key heads, head width   P S: pages, slots of a page
With one token a matrix is read once and each weight multiplied once: that should take as long as
reading does.
PyTorch's library takes twice as long.
A kernel that works on several rows of the weights at once, which is best for several tokens, reads
short, scattered pieces.
One dot product after the other reads the weights in the order in which they lie, and memory can run
ahead.

Several tokens want their weights in tiles; if these lie in rows, PACKED_TOKENS tokens gain by
oneDNN.
For few tokens NumPy does the work between two matrices in leaner calls. kernels("torch") does the
rest, and all that is not float32 on a CPU.
Results differ from its results by rounding alone.
"""

import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.backends import mkldnn
from torch.nn.functional import linear, silu
from torch.utils._pytree import tree_leaves, tree_map

from layer1_kernels import Kernels
from layer2_graph.cpu.attention import TORCH, is_cpu_fp32, paged_attention_cpu
from layer2_graph.g01_llama import Llama

__all__ = ["cpu_kernels", "one_block"]

CACHED = 1 << 20        # bytes of a matrix that may lie in a core's cache
SHARE = 2 << 20         # bytes of a matrix that gains by a second thread
ONE_THREAD_RATE = 25e9  # bytes/s
WAIT_SECONDS = 2e-3     # beyond what one thread takes to read: then it waited
RESTING = 1000          # products: five steps of 135M, ten times as long as a wait
LEAN_TOKENS = 64        # tokens: with more, PyTorch's threads gain more than lean calls do
PACKED_TOKENS = 16      # tokens that earn back what it costs to hand a matrix to oneDNN

Model = TypeVar("Model", bound=Llama)


def cpu_kernels() -> Kernels:
    """The table: kernels("torch"), but NumPy computes few tokens of float32 on a CPU."""
    return replace(TORCH, matmul=matmul_cpu, matmul_swiglu=matmul_swiglu_cpu,
                   rmsnorm=rmsnorm_cpu, add_rmsnorm=add_rmsnorm_cpu, rope=rope_cpu,
                   rope_and_cache=rope_and_cache_cpu, write_kv=write_kv_cpu,
                   paged_attention=paged_attention_cpu, swiglu=swiglu_cpu)


def one_block(model: Model) -> Model:
    """Move the weights of a model on a CPU into one piece of memory, and return the model.

    NumPy asks Linux for large pages, 2 MB instead of 4 KB, for a piece as large as this; PyTorch
    does not.
    While all weights are read, the address of each page must be looked up, and large pages are
    fewer.
    Weights that shared memory before share it after.
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


def few(*arrays: Tensor) -> bool:
    """Whether the first has few rows, and NumPy may have all."""
    return arrays[0].shape[0] <= LEAN_TOKENS and is_cpu_fp32(*arrays)  # len() takes 3 times as long


# ---- matrices


class Shared:
    """w · x on several cores, by NumPy's library, as long as no other program wants them.

    Its threads wait for each other, and if one of them is not running, all wait for the scheduler:
    a product then takes forty times as long.
    After a product that waited, one thread makes the next RESTING.
    """

    def __init__(self) -> None:
        self.resting = 0

    def product(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:      # (N, K), (K,) -> (N,)
        if w.nbytes < CACHED:                       # one thread, of NumPy's library too
            return w @ x
        if w.nbytes < SHARE or torch.get_num_threads() < 2:
            return np.vecdot(w, x)
        if self.resting:
            self.resting -= 1
            return np.vecdot(w, x)
        began = time.perf_counter()
        out = w @ x
        if time.perf_counter() - began > w.nbytes / ONE_THREAD_RATE + WAIT_SECONDS:
            self.resting = RESTING
        return out


SHARED = Shared()


def matmul_cpu(a: Tensor, w: Tensor) -> Tensor:     # (M, K), (N, K) -> (M, N)
    """As matmul; w may be tiled.
    PyTorch hands float32 to MKL, which on some CPUs leaves half of their width idle; oneDNN,
    also part of PyTorch, takes arrays in its own format."""
    if w.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(a, w, None, "none", [], "")
    tokens = a.shape[0]
    if tokens == 1 and is_cpu_fp32(a, w) and w.stride(-1) == 1:
        return torch.from_numpy(SHARED.product(w.numpy(), a.numpy()[0])[None])
    fit = a.shape[1] == w.shape[1] and w.numel()
    if tokens >= PACKED_TOKENS and fit and is_cpu_fp32(a, w) and mkldnn.is_available():
        return linear(a.to_mkldnn(), w).to_dense()
    return TORCH.matmul(a, w)


def matmul_swiglu_cpu(x: Tensor, w_gate_up: Tensor) -> Tensor:      # (T, C), (2F, C) -> (T, F)
    """As matmul_swiglu; w_gate_up may be tiled."""
    if not w_gate_up.is_mkldnn and not is_cpu_fp32(x, w_gate_up):
        return TORCH.matmul_swiglu(x, w_gate_up)
    return swiglu_cpu(*matmul_cpu(x, w_gate_up).chunk(2, dim=-1))


# ---- number by number


def swiglu_cpu(gate: Tensor, up: Tensor) -> Tensor:     # 2 × (T, F) -> (T, F)
    """As swiglu, for any number of tokens: PyTorch's two calls, and one array less."""
    if not is_cpu_fp32(gate, up):
        return TORCH.swiglu(gate, up)
    return silu(gate).mul_(up)


def rmsnorm_np(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:     # -> (T, C)
    scale = (np.vecdot(x, x) / x.shape[1] + eps) ** -0.5                # (T,)
    return x * scale[:, None] * w


def rmsnorm_cpu(x: Tensor, w: Tensor, eps: float) -> Tensor:    # (T, C), (C,) -> (T, C)
    """As rmsnorm."""
    if not few(x, w):
        return TORCH.rmsnorm(x, w, eps)
    return torch.from_numpy(rmsnorm_np(x.numpy(), w.numpy(), eps))


def add_rmsnorm_cpu(x: Tensor, residual: Tensor, w: Tensor,
                    eps: float) -> tuple[Tensor, Tensor]:   # 2 × (T, C), (C,) -> 2 × (T, C)
    """As add_rmsnorm."""
    if not few(x, residual, w):
        return TORCH.add_rmsnorm(x, residual, w, eps)
    residual = x + residual                         # (T, C)
    return rmsnorm_cpu(residual, w, eps), residual


def rotate(heads: np.ndarray, c: np.ndarray,
           s: np.ndarray) -> np.ndarray:            # (T, H, D), 2 × (T, 1, D) -> (T, H, D)
    """The heads, turned as rope does it. c, s: from `rotation`"""
    half = heads.shape[2] // 2
    other = np.concatenate((heads[..., half:], heads[..., :half]), axis=2)
    other *= s
    out = heads * c
    out += other
    return out


def rotation(cos: Tensor, sin: Tensor,
             positions: Tensor) -> Iterable[np.ndarray]:    # 2 × (N, D/2), (T,) -> 2 × (T, 1, D)
    """The factor of each number, and that of the number it turns with."""
    c, s = (table.numpy().take(positions.numpy(), 0) for table in (cos, sin))   # (T, D/2)
    return (np.concatenate(pair, axis=1)[:, None] for pair in ((c, c), (-s, s)))


def rope_cpu(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
    """As rope."""
    if not few(q, k, cos, sin) or len(positions) != len(q):
        return TORCH.rope(q, k, cos, sin, positions)
    c, s = rotation(cos, sin, positions)
    for heads in (q.numpy(), k.numpy()):
        heads[:] = rotate(heads, c, s)


def numpy_slots(slots: Tensor, T: int, room: int) -> np.ndarray | None:
    """T slots as a NumPy array, (T,); None if one is not in 0 to room - 1, or there are not T."""
    numbers = slots.tolist()
    fits = len(numbers) == T and (not T or 0 <= min(numbers) <= max(numbers) < room)
    return slots.numpy() if fits else None


def writable_pages(slots: Tensor, T: int, k_pages: Tensor,
                   v_pages: Tensor) -> tuple | None:    # (T,), 2 × (P, S, G, D)
    """(slots, keys, values) for NumPy to write to, 2 × (P * S, G, D); None if it cannot."""
    P, S, *each = k_pages.shape
    if k_pages.shape != v_pages.shape or not k_pages.is_contiguous() & v_pages.is_contiguous():
        return None
    if (rows := numpy_slots(slots, T, P * S)) is None:
        return None
    return rows, *(pages.numpy().reshape(P * S, *each) for pages in (k_pages, v_pages))


def write_kv_cpu(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> None:
    """As write_kv."""
    if (not few(k, v, k_pages, v_pages)
            or (into := writable_pages(slots, k.shape[0], k_pages, v_pages)) is None):
        return TORCH.write_kv(k, v, k_pages, v_pages, slots)
    slots, keys, values = into
    keys[slots], values[slots] = k.numpy(), v.numpy()


def rope_and_cache_cpu(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor,
                       positions: Tensor, k_pages: Tensor, v_pages: Tensor,
                       slots: Tensor) -> None:
    """As rope_and_cache."""
    T, H = q.shape[:2]
    if (not few(q, k, v, cos, sin, k_pages, v_pages) or positions.shape[0] != T
            or (into := writable_pages(slots, T, k_pages, v_pages)) is None):
        return TORCH.rope_and_cache(q, k, v, cos, sin, positions, k_pages, v_pages, slots)
    slots, keys, values = into
    c, s = rotation(cos, sin, positions)
    both = rotate(np.concatenate((q.numpy(), k.numpy()), axis=1), c, s)
    q.numpy()[:], keys[slots], values[slots] = both[:, :H], both[:, H:], v.numpy()
