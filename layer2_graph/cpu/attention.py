"""Attention of new tokens to pages on a CPU: by NumPy, or by PyTorch's fused kernel

T: new tokens   B: sequences   N: a context   H G D: query heads, key heads, head width
P S: pages, slots of a page
Sequences that decode have one new token each. A loop over them costs as many calls as there are, so
those of similar length share one: their pages are gathered, and padded to the longest of them. Up
to SHORT slots that is NumPy's, beyond it and for several new tokens of a sequence PyTorch's.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from layer1_kernels import kernels

TORCH = kernels("torch")
GATHERED = 1 << 20      # bytes of keys in one call: with the values they stay in a core's cache
SHORT = 256             # slots of a sequence up to which NumPy's calls cost less than PyTorch's one


def plain(*arrays):
    for a in arrays:
        if a.dtype is not torch.float32 or not a.is_cpu or a.requires_grad:
            return False
    return True


def mixed(scores, values):                          # (…, H/G, N), (…, N, D) -> (…, H/G, D)
    """Softmax of scores, and the values in these shares."""
    weights = np.exp(scores - np.maximum.reduce(scores, -1, keepdims=True))
    return weights @ values / np.add.reduce(weights, -1, keepdims=True)


def attend_one(q, keys, values, scale):             # (H, D), 2 × (N, G, D) -> (H, D)
    """What one token sees: all of its context."""
    scores = (q * scale).reshape(keys.shape[1], -1, q.shape[1]) @ keys.transpose(1, 2, 0)
    return mixed(scores, values.transpose(1, 0, 2)).reshape(q.shape)            # (G, H/G, N)


def attend_more(q, keys, values, scale):            # (T, H, D), 2 × (N, G, D) -> (T, H, D)
    """What the last T tokens of a context see, by PyTorch's fused kernel."""
    T, N = len(q), len(keys)
    q, keys, values = (x.transpose(0, 1)[None] for x in (q, keys, values))      # (1, H, T, D), …
    mask = None if T == N else torch.ones(T, N, dtype=torch.bool).tril(N - T)   # (T, N)
    out = scaled_dot_product_attention(q, keys, values, mask, is_causal=T == N, scale=scale,
                                       enable_gqa=True)
    return out[0].transpose(0, 1)               # as it lies in memory: PyTorch has it so, too


def gathered(pages, at):                            # (P, S, G, D) -> (slots, G, D)
    """Keys or values of some pages, one slot after the other."""
    rows = pages[at] if isinstance(at, slice) else pages.take(at, 0)   # twice as fast as [at]
    return rows.reshape(-1, *pages.shape[2:])


def places(table):
    """Where a sequence's pages are: those that follow each other need not be copied."""
    first, end = table[0], table[0] + len(table)
    return slice(first, end) if table == list(range(first, end)) else table


class Group(NamedTuple):
    """Sequences with one new token each, whose keys are gathered in one call."""

    rows: list                  # of q
    at: np.ndarray | slice      # pages of each; the shorter ones end with their first page again
    N: int                      # the longest context
    empty: np.ndarray = None    # numbers of gathered slots without a token; they may hold NaN
    mask: np.ndarray = None     # (B, 1, 1, slots): 0 where there is a token, -inf where not

    @classmethod
    def of(cls, batch, S):
        """batch: of what `sequences` lists    S: slots of a page"""
        tables, lens, rows, _ = map(list, zip(*batch, strict=True))
        if len(batch) == 1:
            return cls(rows, places(tables[0]), lens[0])
        longest = max(map(len, tables))
        at = np.array([table + table[:1] * (longest - len(table)) for table in tables])
        empty = np.arange(longest * S) >= np.array(lens)[:, None]               # (B, slots)
        mask = np.zeros(empty.shape, np.float32)
        mask[empty] = -np.inf
        return cls(rows, at, max(lens), empty.ravel().nonzero()[0], mask[:, None, None])


def attend_group(q, k_pages, v_pages, group, scale):
    """What the one new token of each sequence sees: q (B, H, D), 2 × (P, S, G, D) -> (B, H, D)."""
    (B, H, D), G = q.shape, k_pages.shape[2]
    keys, values = gathered(k_pages, group.at), gathered(v_pages, group.at)
    if B == 1:
        return attend_one(q[0], keys[:group.N], values[:group.N], scale)[None]
    keys[group.empty] = values[group.empty] = 0
    keys, values = (x.reshape(B, -1, G, D).transpose(0, 2, 1, 3) for x in (keys, values))
    q = q.reshape(B, G, H // G, D)
    if group.N <= SHORT:
        scores = (q * scale) @ keys.transpose(0, 1, 3, 2) + group.mask          # (B, G, H/G, slots)
        return mixed(scores, values).reshape(B, H, D)
    output = scaled_dot_product_attention(*map(torch.from_numpy, (q, keys, values, group.mask)),
                                         scale=scale)                           # (B, G, H/G, D)
    return output.reshape(B, H, D).numpy()


def sequences(shape, k_pages, v_pages, block_tables, cu_q, lens):
    """[(pages, tokens, first row of q, the row behind its last)] of the sequences with new tokens;
    None where something does not fit together. shape: of q, (T, H, D)"""
    (P, S, G, D), (T, H, width), result = k_pages.shape, shape, []
    tables, ends, lens = block_tables.tolist(), cu_q.tolist(), lens.tolist()
    if v_pages.shape != k_pages.shape or width != D or H % G:
        return None
    if ends[0] != 0 or ends[-1] > T or not len(ends) - 1 == len(lens) == len(tables):
        return None
    for table, N, (begin, end) in zip(tables, lens, pairwise(ends), strict=True):
        used = table[:-(-N // S)]                           # the last may be part empty
        if not 0 <= end - begin <= N <= S * len(used):
            return None
        if begin < end:
            if min(used) < 0 or max(used) >= P:
                return None
            result.append((used, N, begin, end))
    return result


def groups(batch_of, k_pages):
    """[Group] of sequences with one new token each: similar lengths, at most GATHERED bytes.

    batch_of: of what `sequences` lists    k_pages: (P, S, G, D)
    """
    page, S, batches = k_pages[0].nbytes, k_pages.shape[1], []
    longest = max((len(table) for table, *_ in batch_of), default=0)
    if batch_of and len(batch_of) * longest * page <= GATHERED:
        return [Group.of(batch_of, S)]
    for sequence in sorted(batch_of, key=lambda sequence: len(sequence[0])):
        if not batches or (len(batches[-1]) + 1) * len(sequence[0]) * page > GATHERED:
            batches.append([])
        batches[-1].append(sequence)
    return [Group.of(batch, S) for batch in batches]


def paged_attention_cpu(q, k_pages, v_pages, block_tables, cu_q, lens, scale):
    """As paged_attention; those with several new tokens each for themselves."""
    others = k_pages, v_pages, block_tables, cu_q, lens
    if (not plain(q, k_pages, v_pages) or not scale > 0
            or (batch := sequences(q.shape, *others)) is None):
        return TORCH.paged_attention(q, *others, scale)     # or its word on what is wrong
    q, k_pages, v_pages = q.numpy(), k_pages.numpy(), v_pages.numpy()
    out, one = np.zeros_like(q), []                                             # (T, H, D)
    for sequence in batch:
        table, N, begin, end = sequence
        if end - begin == 1:
            one.append(sequence)
        else:
            new = [q[begin:end], *(gathered(x, places(table))[:N] for x in (k_pages, v_pages))]
            out[begin:end] = attend_more(*map(torch.from_numpy, new), scale)
    for group in groups(one, k_pages):
        out[group.rows] = attend_group(q[group.rows], k_pages, v_pages, group, scale)
    return torch.from_numpy(out)
