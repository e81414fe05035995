"""Attention of new tokens to pages on a CPU: one by NumPy, several by PyTorch's fused kernel

T: new tokens   B: sequences   N: a context   H G D: query heads, key heads, head width
P S: pages, slots of a page
Sequences that decode have one new token each. A loop over them costs as many calls as there are, so
those of similar length share one: their pages are gathered, and padded to the longest of them.
"""

from itertools import pairwise

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from layer1_kernels import kernels

TORCH = kernels("torch")
GATHERED = 1 << 20      # bytes of keys in one call: with the values they stay in a core's cache


def plain(*arrays):
    for a in arrays:
        if a.dtype is not torch.float32 or not a.is_cpu or a.requires_grad:
            return False
    return True


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


def attend_each(q, k_pages, v_pages, batch, scale):
    """What the one new token of each sequence sees: q (B, H, D), 2 × (P, S, G, D) -> (B, H, D).

    batch: B of what `sequences` lists, the longest last
    """
    (B, H, D), G, longest = q.shape, k_pages.shape[2], len(batch[-1][0])
    tables = [table + table[:1] * (longest - len(table)) for table, *_ in batch]
    lens = np.array([N for _, N, *_ in batch])                                  # (B,)
    keys, values = (x.take(tables, 0).reshape(B, -1, G, D) for x in (k_pages, v_pages))
    seen = np.arange(keys.shape[1]) < lens[:, None]                             # (B, N)
    keys[~seen] = values[~seen] = 0                 # what was never written may be NaN
    k, v = (torch.from_numpy(x).transpose(1, 2) for x in (keys, values))        # (B, G, N, D)
    mixed = scaled_dot_product_attention(torch.from_numpy(q).view(B, G, H // G, D), k, v,
                                         torch.from_numpy(seen)[:, None, None], scale=scale)
    return mixed.reshape(B, H, D).numpy()


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


def batches(found, page):
    """[[sequence]] whose keys are gathered in one call each, the longest last.

    found: of what `sequences` lists those with one new token    page: bytes of keys in a page
    """
    batch = []
    for sequence in sorted(found, key=lambda sequence: len(sequence[0])):
        if batch and (len(batch) + 1) * len(sequence[0]) * page > GATHERED:
            yield batch
            batch = []
        batch.append(sequence)
    if batch:
        yield batch


def paged_attention_host(q, k_pages, v_pages, block_tables, cu_q, lens, scale):
    """As paged_attention; those with several new tokens each for themselves."""
    arrays = q, k_pages, v_pages, block_tables, cu_q, lens
    if not plain(q, k_pages, v_pages) or not scale > 0 or (found := sequences(*arrays)) is None:
        return TORCH.paged_attention(*arrays, scale)        # or its word on what is wrong
    q, k_pages, v_pages = q.numpy(), k_pages.numpy(), v_pages.numpy()
    out = np.zeros_like(q)                                                      # (T, H, D)
    one = [sequence for sequence in found if sequence[3] - sequence[2] == 1]
    for table, N, begin, end in found:
        if end - begin > 1:
            new = q[begin:end], context(k_pages, table, N), context(v_pages, table, N)
            out[begin:end] = attend_more(*map(torch.from_numpy, new), scale)
    for batch in batches(one, k_pages.nbytes // len(k_pages)):
        rows = [begin for _, _, begin, _ in batch]
        if len(batch) > 1:
            out[rows] = attend_each(q[rows], k_pages, v_pages, batch, scale)
        else:
            ((table, N, begin, _),) = batch
            seen = context(k_pages, table, N), context(v_pages, table, N)
            out[begin] = attend_one(q[begin], *seen, scale)
    return torch.from_numpy(out)
