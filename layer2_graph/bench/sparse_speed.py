"""What zeros save on this CPU:  python -m layer2_graph.bench.sparse_speed speed

One matrix of SIDE² numbers in fp32, half of them zeros in each pattern, times one token (bytes
decide) and times a prompt (products decide); one query over a context, of which it reads a quarter;
and a prompt, each block of which reads a quarter of those before it.
Each beside its dense form, by turns. benchmarks/sparsity.json has it.
"""

import sys
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from day01_roofline import speedup, take_turns
from layer2_graph.bench.sparsity import RECORD
from layer2_graph.bench.weight_bits import keep, seconds
from layer2_graph.g10_sparsity import (
    chosen_table,
    keep_2_4,
    pack_2_4,
    page_bound,
    page_extremes,
    unpack_2_4,
)

SIDE = 4096
PROMPT = 256                    # tokens
HEADS, KV_HEADS, WIDTH, SLOTS = 32, 8, 128, 16
CONTEXTS = (480, 16_384)        # tokens
LONG_PROMPT = 2048
ROUNDS = 7


def matrices():
    """{pattern: f(x (T, SIDE)) -> (T, N)}: the dense product, and half of w left in a pattern."""
    w = torch.randn(SIDE, SIDE)
    values, meta = pack_2_4(w, keep_2_4(w.abs()))
    anywhere = (w * (torch.rand_like(w) < 0.5)).to_sparse_csr()
    channels = w[:SIDE // 2].clone()
    return {"dense": lambda x: x @ w.T,
            "anywhere, as CSR": lambda x: (anywhere @ x.T).T,
            "2:4, unpacked first": lambda x: x @ unpack_2_4(values, meta).T,
            "channels": lambda x: x @ channels.T}


def attend(q, k, v):                                # (H, D), 2 × (N, G, D) -> (1, H, 1, D)
    return scaled_dot_product_attention(q[None, :, None], k.transpose(0, 1)[None],
                                        v.transpose(0, 1)[None], enable_gqa=True)


def context(N, share=4):
    """{"all pages", "by bound", "evicted": f()} of one query over N tokens.
    The last two read one of `share`: pages with the largest bounds, or all that a cache has
    kept."""
    pages = N // SLOTS
    k, v = torch.randn(2, pages, SLOTS, KV_HEADS, WIDTH)
    q = torch.randn(HEADS, WIDTH)
    table = torch.arange(pages)
    extremes = page_extremes(k, table, N)           # an engine keeps them beside the pages

    def chosen():
        own, _ = chosen_table(page_bound(q, *extremes), table, N, SLOTS, pages // share)
        return attend(q, k[own].flatten(0, 1), v[own].flatten(0, 1))

    rest = k[:pages // share], v[:pages // share]
    return {"all pages": lambda: attend(q, k.flatten(0, 1), v.flatten(0, 1)), "by bound": chosen,
            "evicted": lambda: attend(q, *(x.flatten(0, 1) for x in rest))}


def prefill(N, share=4):
    """{"all blocks", "by mean": f()} of a prompt of N tokens, each block of which reads itself and
    one of `share` of those up to it, where mean query and mean key agree."""
    q = torch.randn(N // SLOTS, SLOTS, HEADS, WIDTH)
    k, v = torch.randn(2, N // SLOTS, SLOTS, KV_HEADS, WIDTH)
    corner = torch.ones(SLOTS, SLOTS, dtype=torch.bool).tril()

    def some():
        means = k.mean(1).repeat_interleave(HEADS // KV_HEADS, 1)
        scores = torch.einsum("bhd,phd->bph", q.mean(1), means)
        rows = []
        for b, own in enumerate(scores):
            chosen, _ = chosen_table(own[:b + 1], torch.arange(b + 1), (b + 1) * SLOTS, SLOTS,
                                     max(1, (b + 1) // share))
            mask = torch.ones(SLOTS, SLOTS * len(chosen), dtype=torch.bool)
            mask[:, -SLOTS:] = corner
            rows.append(tiles(q[b], k[chosen].flatten(0, 1), v[chosen].flatten(0, 1), mask))
        return torch.cat(rows, 2)

    whole = [x.flatten(0, 1) for x in (q, k, v)]
    return {"all blocks": lambda: tiles(*whole, None), "by mean": some}


def tiles(q, k, v, mask):                           # (T, H, D), 2 × (N, G, D) -> (1, H, T, D)
    """Attention under a mask, causal without one."""
    return scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in (q, k, v)), mask,
                                        is_causal=mask is None, enable_gqa=True)


def compared(calls):
    """{name: (low, median, high) of how many times as fast as the first}"""
    taken = take_turns({name: partial(seconds, call) for name, call in calls.items()}, ROUNDS)
    first = taken[next(iter(calls))]
    return {name: speedup(first, own) for name, own in taken.items()}


def speed():
    torch.set_num_threads(1)
    torch.manual_seed(10)
    known = matrices()
    rows = {}
    for T in (1, PROMPT):
        x = torch.randn(T, SIDE)
        rows[f"T = {T}"] = compared({name: partial(call, x) for name, call in known.items()})
    for N in CONTEXTS:
        rows[f"{N} tokens"] = compared(context(N))
    rows[f"prompt of {LONG_PROMPT}"] = compared(prefill(LONG_PROMPT))
    return {"side": SIDE, "heads": [HEADS, KV_HEADS, WIDTH], "slots": SLOTS, "rounds": ROUNDS,
            "threads": 1, "rows": rows}


if __name__ == "__main__":
    sys.exit(keep({"speed": speed}, RECORD))
