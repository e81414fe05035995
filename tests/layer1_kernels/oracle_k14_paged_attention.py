"""Batches of sequences whose keys and values lie in pages; what is stored there, and attention, in
float64."""

import numpy as np
import torch

NOWHERE = 2**20         # a page that does not exist: a block table's entries after the last page


def batch(rng, counts, lens, H, G, D, S, dtype="float32", spare=2):
    """Arguments of paged_attention except scale.
    The pages are dealt out at random; slots that no token uses hold NaN.

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


def with_more(parts, lse):
    """What comes out in fp32 when splits, up to a power of two, have an lse of 0 and no part.
    Where all of lse is far below -1e4, an lse of -1e4 gives the same."""
    more = (1 << (len(parts) - 1).bit_length()) - len(parts)
    return merge_parts(*(torch.cat([x, torch.zeros(more, *x.shape[1:])])
                         for x in (parts, lse))).astype(np.float32)


def merge_mistakes(parts, lse, want, kind):
    """{id: (sentence, what it gives)} of merge_triton."""
    x, sums = parts.double().numpy(), lse.double().numpy()
    splits, rows, D = x.shape
    natural = np.exp(sums - sums.max(0))[..., None]
    plain = np.exp2(sums - sums.max(0))[..., None]
    name, why = ("some_lse", "the lse of one particular part is subtracted, not the largest") \
        if "above" in kind else ("overflow", "exp2(lse) or exp2(largest - lse) overflows: a weight "
                                 "is exp2(lse - largest)") if sums.max() > 128 else (
            "from_0", "the largest lse starts at 0, so weights are 0 where all are far below 0") \
        if sums.max() > -1e4 else (
            "shallow_start", "the largest lse starts at a number such as -1e4; all are below it")
    fill = ("more_splits", "splits that do not exist get a weight: load -inf for them, not 0") \
        if sums.max() > -1e4 else (
            "shallow_fill", "splits that do not exist get an lse such as -1e4, which that of a "
                            "part may be below: load -inf")
    turned = parts.reshape(rows, splits, D).transpose(0, 1), lse.reshape(rows, splits).T
    return {
        "one_row": ("only the first row is written",
                    np.where(np.arange(rows)[:, None] == 0, want, 7)),
        name: (why, np.full_like(want, np.nan)),
        fill[0]: (fill[1], with_more(parts, lse)),
        "rows_first": ("parts and lse are read as (rows, splits, ...)", merge_parts(*turned)),
        "short": ("the parts are rounded to 16 bits", merge_parts(parts.bfloat16(), lse)),
        "mean": ("the parts are averaged without weights", x.mean(0)),
        "sum": ("the parts are added without weights", x.sum(0)),
        "by_splits": ("the weighted sum is divided by the number of splits",
                      (x * plain).sum(0) / splits),
        "first_part": ("only the first part is used", x[0]),
        "no_division": ("the weights do not add up to 1: divide by their sum", (x * plain).sum(0)),
        "natural": ("lse is in base 2, but exp is used instead of exp2",
                    (x * natural).sum(0) / natural.sum(0)),
        "lse_as_weight": ("the weights are lse itself instead of exp2 of it",
                          (x * sums[..., None]).sum(0) / sums[..., None].sum(0)),
        "best_part": ("only the part with the largest sum is used",
                      np.take_along_axis(x, sums.argmax(0)[None, :, None], 0)[0])}
