"""What zeros save on this CPU:  python -m layer2_graph.bench.sparse_speed speed

One matrix of SIDE² numbers in fp32, half of them zeros in each pattern, times one token (bytes
decide) and times a prompt (products decide); and one query over a context, of whose pages it reads
a quarter, chosen by bound. Each beside its dense form, by turns. benchmarks/sparsity.json has it.
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


def context(N):
    """{"all pages", "a quarter, by bound": f()} of one query over N tokens."""
    pages = N // SLOTS
    k, v = torch.randn(2, pages, SLOTS, KV_HEADS, WIDTH)
    q = torch.randn(HEADS, WIDTH)
    table = torch.arange(pages)
    extremes = page_extremes(k, table, N)           # an engine keeps them beside the pages

    def chosen():
        own, _ = chosen_table(page_bound(q, *extremes), table, N, SLOTS, pages // 4)
        return attend(q, k[own].flatten(0, 1), v[own].flatten(0, 1))

    return {"all pages": lambda: attend(q, k.flatten(0, 1), v.flatten(0, 1)),
            "a quarter, by bound": chosen}


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
    return {"side": SIDE, "heads": [HEADS, KV_HEADS, WIDTH], "slots": SLOTS, "rounds": ROUNDS,
            "threads": 1, "rows": rows}


if __name__ == "__main__":
    sys.exit(keep({"speed": speed}, RECORD))
