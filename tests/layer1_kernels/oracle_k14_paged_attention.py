"""Batches of sequences whose keys and values lie in pages; what is stored there, and attention, in
float64."""

import numpy as np
import torch

NOWHERE = 2**20         # a page that does not exist: a block table's entries after the last page


def batch(rng, counts, lens, H, G, D, S, dtype="float32", spare=2):
    """Arguments of paged_attention except scale. The pages are dealt out at random; slots that no
    token uses hold NaN.

    counts, lens: new tokens and length of each sequence    spare: entries after the last page
    """
    used = [-(-n // S) for n in lens]
    pages = list(rng.permutation(sum(used) + 3))
    tables = np.full((len(lens), max(used, default=0) + spare), NOWHERE, np.int32)
    k_pages, v_pages = (np.full((len(pages), S, G, D), np.nan, np.float32) for _ in range(2))
    for b, n in enumerate(lens):
        tables[b, :used[b]] = [pages.pop() for _ in range(used[b])]
        for i in range(n):
            for x in (k_pages, v_pages):
                x[tables[b, i // S], i % S] = rng.standard_normal((G, D))
    q = rng.standard_normal((sum(counts), H, D), np.float32)
    numbers = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in (q, k_pages, v_pages))
    cu_q = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
    return *numbers, torch.from_numpy(tables), cu_q, torch.tensor(lens, dtype=torch.int32)


def widened(*arrays, pages=False, first=1):
    """The same numbers in wider arrays, so that no two have strides alike.

    pages: each page has room after its slots, too    first: array i gets 8 · (first + i) columns
    """
    views = []
    for n, x in enumerate(arrays, first):
        shape = [*x.shape[:-1], x.shape[-1] + 8 * n]
        shape[1] += n * pages
        view = torch.full(shape, 77, dtype=x.dtype)[tuple(slice(size) for size in x.shape)]
        view[...] = x
        views.append(view)
    return views


def store_rows(pages, x, slots, strides=None, lanes=None):
    """Pages of sevens after x[t] (G, D) is stored at slots[t], if not -1: float64.

    strides: of page, place and head, those of the pages where they are None
    lanes: that store; those from G · D on hold zeros
    """
    P, S, G, D = pages.shape
    page, place, head = strides or pages.stride()[:3]
    flat = np.full((P + S + 1) * pages.stride(0), 7.0)
    for row, slot in zip(x.double().numpy().reshape(-1, G * D), slots, strict=True):
        for i in range(lanes or G * D) if slot >= 0 else ():
            flat[slot // S * page + slot % S * place + i // D * head + i % D] = \
                row[i] if i < G * D else 0
    return torch.from_numpy(flat).as_strided(pages.shape, pages.stride()).numpy()


def rows_of(pages, table, N):                       # (P, S, G, D) -> (N, G, D)
    """The keys, or values, of a sequence in float64."""
    S = pages.shape[1]
    return np.stack([pages[int(table[n // S]), n % S].double().numpy() for n in range(N)])


def attention(q, k_pages, v_pages, tables, cu_q, lens, scale, times=None, head=None):
    """(T, H, D) float64, token by token.

    times(t, n, count, N): how often new token t takes each key of n (N,); once where it sees it
    head(h): the kv head of query head h
    """
    (T, H, D), G = q.shape, k_pages.shape[2]
    times = times or (lambda t, n, count, N: n <= N - count + t)
    head = head or (lambda h: h // (H // G))
    out = np.empty((T, H, D))
    for b, N in enumerate(lens.tolist()):
        begin, end = cu_q[b:b + 2].tolist()
        if begin == end:
            continue
        keys, values = (rows_of(x, tables[b], N) for x in (k_pages, v_pages))
        each = np.array([times(t, np.arange(N), end - begin, N) for t in range(end - begin)], float)
        for h in range(H):
            scores = q[begin:end, h].double().numpy() @ keys[:, head(h)].T * scale
            with np.errstate(all="ignore"):
                weights = np.where(each > 0, each * np.exp(scores - scores.max()), 0)
                out[begin:end, h] = weights / weights.sum(-1, keepdims=True) @ values[:, head(h)]
    return out


def merge_parts(parts, lse):                        # (splits, …, D), (splits, …) -> (…, D)
    """The mean of the parts, weighted by exp2(lse): float64."""
    lse = lse.double().numpy()
    weights = np.exp2(lse - lse.max(0))[..., None]
    return (parts.double().numpy() * weights).sum(0) / weights.sum(0)
