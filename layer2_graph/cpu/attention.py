"""Attention of new tokens to pages on a CPU: by NumPy, or by PyTorch's fused kernel

T: new tokens   B: sequences   N: a context   H G D: query heads, key heads, head width
P S: pages, slots of a page
Sequences that decode have one new token each.
A loop over them costs one call for each, so those of similar length share a call: their pages are
gathered, and padded to the longest of them.
Up to SHORT slots the call is NumPy's; beyond, and for several new tokens of a sequence, it is
PyTorch's.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from layer1_kernels import kernels

TORCH = kernels("torch")
GATHERED = 1 << 20      # bytes of keys in one call: with the values they stay in a core's cache
SHORT = 256             # slots of a sequence up to which NumPy's calls cost less than PyTorch's one


def is_cpu_fp32(*arrays: Tensor) -> bool:
    """Whether NumPy may have all of them: float32 on a CPU, no gradients."""
    for a in arrays:
        if a.dtype is not torch.float32 or not a.is_cpu or a.requires_grad:
            return False
    return True


def mix(scores: np.ndarray,
        values: np.ndarray) -> np.ndarray:          # (…, H/G, N), (…, N, D) -> (…, H/G, D)
    """The values in the shares that the softmax of the scores gives them."""
    weights = np.exp(scores - np.maximum.reduce(scores, -1, keepdims=True))
    return weights @ values / np.add.reduce(weights, -1, keepdims=True)


def attend_one(q: np.ndarray, keys: np.ndarray, values: np.ndarray,
               scale: float) -> np.ndarray:         # (H, D), 2 × (N, G, D) -> (H, D)
    """What one token sees: all of its context."""
    scores = (q * scale).reshape(keys.shape[1], -1, q.shape[1]) @ keys.transpose(1, 2, 0)
    return mix(scores, values.transpose(1, 0, 2)).reshape(q.shape)            # (G, H/G, N)


def attend_more(q: Tensor, keys: Tensor, values: Tensor,
                scale: float) -> Tensor:            # (T, H, D), 2 × (N, G, D) -> (T, H, D)
    """What the last T tokens of a context see, by PyTorch's fused kernel."""
    T = len(q)
    N = len(keys)
    q, keys, values = (x.transpose(0, 1)[None] for x in (q, keys, values))      # (1, H, T, D), …
    mask = None if T == N else torch.ones(T, N, dtype=torch.bool).tril(N - T)   # (T, N)
    out = scaled_dot_product_attention(q, keys, values, mask, is_causal=T == N, scale=scale,
                                       enable_gqa=True)
    return out[0].transpose(0, 1)               # as it lies in memory: PyTorch has this layout too


def gather(pages: np.ndarray,
           at: np.ndarray | slice | list) -> np.ndarray:    # (P, S, G, D) -> (slots, G, D)
    """Keys or values of some pages, one slot after the other."""
    rows = pages[at] if isinstance(at, slice) else pages.take(at, 0)   # twice as fast as [at]
    return rows.reshape(-1, *pages.shape[2:])


def places(table: list[int]) -> slice | list[int]:
    """Where a sequence's pages are: a slice if they follow each other, so that none is copied."""
    first = table[0]
    end = table[0] + len(table)
    return slice(first, end) if table == list(range(first, end)) else table


class Group(NamedTuple):
    """Sequences with one new token each, whose keys are gathered in one call."""

    rows: list[int]                     # of q
    at: np.ndarray | slice | list[int]  # pages of each; the shorter ones repeat their first page
    N: int                              # the longest context
    empty: np.ndarray | None = None     # gathered slots without a token; they may hold NaN
    mask: np.ndarray | None = None      # (B, 1, 1, slots): 0 for a token, -inf for none

    @classmethod
    def of(cls, batch: Sequence[tuple], S: int) -> "Group":
        """batch: entries of the list that `sequences` makes    S: slots of a page"""
        tables, lens, rows, _ = map(list, zip(*batch, strict=True))
        if len(batch) == 1:
            return cls(rows, places(tables[0]), lens[0])
        longest = max(map(len, tables))
        at = np.array([table + table[:1] * (longest - len(table)) for table in tables])
        empty = np.arange(longest * S) >= np.array(lens)[:, None]               # (B, slots)
        mask = np.zeros(empty.shape, np.float32)
        mask[empty] = -np.inf
        return cls(rows, at, max(lens), empty.ravel().nonzero()[0], mask[:, None, None])


def attend_group(q: np.ndarray, k_pages: np.ndarray, v_pages: np.ndarray, group: Group,
                 scale: float) -> np.ndarray:       # (B, H, D), 2 × (P, S, G, D) -> (B, H, D)
    """What the one new token of each sequence sees."""
    (B, H, D), G = q.shape, k_pages.shape[2]
    keys = gather(k_pages, group.at)
    values = gather(v_pages, group.at)
    if B == 1:
        return attend_one(q[0], keys[:group.N], values[:group.N], scale)[None]
    keys[group.empty] = values[group.empty] = 0
    keys, values = (x.reshape(B, -1, G, D).transpose(0, 2, 1, 3) for x in (keys, values))
    q = q.reshape(B, G, H // G, D)
    if group.N <= SHORT:
        scores = (q * scale) @ keys.transpose(0, 1, 3, 2) + group.mask          # (B, G, H/G, slots)
        return mix(scores, values).reshape(B, H, D)
    query, key, value, mask = map(torch.from_numpy, (q, keys, values, group.mask))
    output = scaled_dot_product_attention(query, key, value, mask, scale=scale)  # (B, G, H/G, D)
    return output.reshape(B, H, D).numpy()


def sequences(shape: Sequence[int], k_pages: Tensor, v_pages: Tensor, block_tables: Tensor,
              cu_q: Tensor, lens: Tensor) -> list[tuple] | None:
    """[(pages, tokens, first row of q, the row after its last)] of the sequences with new tokens;
    None if something does not fit together. shape: of q, (T, H, D)"""
    (P, S, G, D), (T, H, width) = k_pages.shape, shape
    result = []
    tables = block_tables.tolist()
    ends = cu_q.tolist()
    contexts = lens.tolist()
    if v_pages.shape != k_pages.shape or width != D or H % G:
        return None
    if ends[0] != 0 or ends[-1] > T or not len(ends) - 1 == len(contexts) == len(tables):
        return None
    for table, N, (begin, end) in zip(tables, contexts, pairwise(ends), strict=True):
        used = table[:-(-N // S)]                           # the last may be part empty
        if not 0 <= end - begin <= N <= S * len(used):
            return None
        if begin < end:
            if min(used) < 0 or max(used) >= P:
                return None
            result.append((used, N, begin, end))
    return result


def groups(batch_of: list[tuple], k_pages: Tensor | np.ndarray) -> list[Group]:
    """[Group] of sequences with one new token each: similar lengths, at most GATHERED bytes.

    batch_of: entries of the list that `sequences` makes    k_pages: (P, S, G, D)
    """
    page = k_pages[0].nbytes
    S = k_pages.shape[1]
    batches: list[list[tuple]] = []
    longest = max((len(table) for table, *_ in batch_of), default=0)
    if batch_of and len(batch_of) * longest * page <= GATHERED:
        return [Group.of(batch_of, S)]
    for sequence in sorted(batch_of, key=lambda sequence: len(sequence[0])):
        if not batches or (len(batches[-1]) + 1) * len(sequence[0]) * page > GATHERED:
            batches.append([])
        batches[-1].append(sequence)
    return [Group.of(batch, S) for batch in batches]


def paged_attention_cpu(q: Tensor, k_pages: Tensor, v_pages: Tensor, block_tables: Tensor,
                        cu_q: Tensor, lens: Tensor, scale: float) -> Tensor:
    """As paged_attention; sequences with several new tokens one by one."""
    others = k_pages, v_pages, block_tables, cu_q, lens
    if (not is_cpu_fp32(q, k_pages, v_pages) or not scale > 0
            or (batch := sequences(q.shape, *others)) is None):
        return TORCH.paged_attention(q, *others, scale)     # or its message on what is wrong
    queries, keys, values = q.numpy(), k_pages.numpy(), v_pages.numpy()
    out = np.zeros_like(queries)                                                # (T, H, D)
    one = []
    for sequence in batch:
        table, N, begin, end = sequence
        if end - begin == 1:
            one.append(sequence)
        else:
            own = (gather(x, places(table))[:N] for x in (keys, values))
            new, k, v = map(torch.from_numpy, (queries[begin:end], *own))
            out[begin:end] = attend_more(new, k, v, scale)
    for group in groups(one, keys):
        out[group.rows] = attend_group(queries[group.rows], keys, values, group, scale)
    return torch.from_numpy(out)
