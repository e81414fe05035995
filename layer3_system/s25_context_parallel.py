"""s25 · Context parallelism: one sequence on W ranks, and no rank ever has all its keys

N: tokens of the sequence   W: ranks   r: this rank   n: tokens of a rank, N / W   s: a round
H: query heads   G: kv heads   D: head width   lse: the natural log of a softmax's sum
Forward a rank sends, in numbers: by the ring 2·G·D·n·(W - 1), by Ulysses 2·(H + G)·D·n·(W - 1) / W.
Ring attention: Liu, Zaharia and Abbeel, 2023.
Ulysses: Jacobs and others, 2023.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from layer1_kernels import Kernels
from layer2_graph import Batch
from layer3_system.context import Attend, block_grads, pass_on

__all__ = ["Ring", "RingCache", "attend_spread", "gather_heads", "gather_tokens",
           "ring_attention", "ring_backward", "ulysses"]


def predict_busiest() -> float:
    """Pairs of query and key on the busiest of 4 ranks, over the mean of all: the tokens cut into
    four runs, causal, a long sequence."""
    # exercise: in quarters of the sequence, which area of the triangle lies in each band?
    return (4 - 1 / 2) / (4 / 2)


def visible(r: int, j: int, n: int) -> tuple[int, int, bool]:
    """(first, end, causal): with rank j's keys at hand, rank r's queries from `first` on see the
    keys before `end`; all of these if not causal, else each query the keys up to its own place.

    Both ranks have n tokens, in zigzag, the earlier half first.
    """
    # exercise: three cases: j is r, j is before r, j is after r
    if j == r:
        return 0, n, True
    return (0, n // 2, False) if j < r else (n // 2, n, False)


def merge_parts(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention to two sets of keys, from that to each: out and more (T, H, D), lse (T, H).

    One lse may be -inf, of a part that saw no key.
    Neither overflows, however large they are.
    """
    # exercise: the log of both sums; each part counts as its share of the sum
    total = torch.logaddexp(lse, more_lse)                              # (T, H)
    shares = [(part - total).exp()[..., None] for part in (lse, more_lse)]
    return out * shares[0] + more * shares[1], total


def ring_attention(q: Tensor, k: Tensor, v: Tensor,
                   attend: Attend) -> tuple[Tensor, Tensor]:
    """(n, H, D), 2 × (n, G, D) -> out (n, H, D), lse (n, H): this rank's queries over all keys of
    the sequence that they may see.
    Tokens are cut in zigzag; n must be even.

    attend(q, k, v, causal) -> out, lse
    """
    n, H, _ = q.shape
    if n % 2:
        raise ValueError(f"ring_attention: {n} tokens on a rank, expected an even number: two "
                         f"pieces of the zigzag")
    r = dist.get_rank()
    W = dist.get_world_size()
    wide = torch.promote_types(q.dtype, torch.float32)      # W roundings to 16 bits would add up
    out = torch.zeros_like(q, dtype=wide)                   # (n, H, D)
    lse = q.new_full((n, H), -math.inf, dtype=wide)         # (n, H): no key seen yet
    # exercise: in W rounds attend to the keys at hand, merge into the rows that saw them, pass on
    for s in range(W):
        first, end, causal = visible(r, (r - s) % W, n)
        part = attend(q[first:], k[:end], v[:end], causal)
        out[first:], lse[first:] = merge_parts(out[first:], lse[first:], *part)
        if s < W - 1:
            k, v = pass_on(k, v)
    return out.to(q.dtype), lse


def ring_backward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, upstream: Tensor,
                  scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of this rank's q, k and v, from that of its out.

    The keys and values go round a second time, and their gradients with them.
    Those have to get home, one rank further: each rank sends (4·W - 2)·n·G·D numbers.
    """
    r = dist.get_rank()
    W = dist.get_world_size()
    n = len(q)
    dq = torch.zeros_like(q)
    dk = torch.zeros_like(k)
    dv = torch.zeros_like(v)
    for s in range(W):
        first, end, causal = visible(r, (r - s) % W, n)
        grads = block_grads(q[first:], k[:end], v[:end], out[first:], lse[first:], upstream[first:],
                            causal, scale)
        for total, more in zip((dq[first:], dk[:end], dv[:end]), grads, strict=True):
            total += more
        if s < W - 1:
            k, v, dk, dv = pass_on(k, v, dk, dv)
    dk, dv = pass_on(dk, dv)
    return dq, dk, dv


class Ring(torch.autograd.Function):
    """ring_attention for autograd, which keeps one shard of keys and values: `Ring.apply(q, k, v,
    attend)` is out (n, H, D)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
        out, lse = ring_attention(q, k, v, attend)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale = attend.scale
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple:
        q, k, v, out, lse = ctx.saved_tensors
        return *ring_backward(q, k, v, out, lse, upstream, ctx.scale), None


class RingCache:
    """What g01's Llama needs of a cache, for one sequence on W ranks, in zigzag.
    It keeps nothing: for training and for reading a prompt."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch, ops: Kernels,
               scale: float) -> Tensor:                     # (n, H, D), 2 × (n, G, D) -> (n, H, D)
        return Ring.apply(q, k, v, Attend(scale, ops))


def attend_spread(q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
    """Decoding: out (T, H, D) of queries that every rank has, keys and values spread over ranks.

    The answers go round instead of the keys: T·H·(D + 1) numbers a round.
    """
    part = list(attend(q, k, v, False))
    out, lse = part
    for _ in range(dist.get_world_size() - 1):
        part = pass_on(*part)
        out, lse = merge_parts(out, lse, *part)
    return out


# ---- Ulysses: other heads instead of other tokens


def predict_ring_over_ulysses() -> float:
    """Bytes that the ring sends forward, over those of Ulysses: H = 32, G = 8, W = 8."""
    # exercise: k and v go round W - 1 times; q, k, v and out are exchanged once
    return 2 * 8 * 7 / ((32 + 8 + 8 + 32) * 7 / 8)


def gather_tokens(x: Tensor) -> Tensor:                     # (n, H, D) -> (N, H/W, D)
    """All tokens of this rank's H / W heads, from its own n tokens of all heads.
    Tokens are cut in
    order: rank 0 has the first n. ValueError unless W divides H."""
    n, H, D = x.shape
    W = dist.get_world_size()
    if H % W:
        raise ValueError(f"gather_tokens: {H} heads do not divide by {W} ranks")
    # exercise: a piece for each rank, its heads together, in the order of ranks; exchange them
    out = x.view(n, W, H // W, D).transpose(0, 1).contiguous()          # (W, n, H/W, D)
    into = torch.empty_like(out)                                        # (W, n, H/W, D)
    dist.all_to_all_single(into, out)
    return into.flatten(0, 1)


def gather_heads(x: Tensor) -> Tensor:                      # (N, H/W, D) -> (n, H, D)
    """All heads of this rank's n tokens, from its own heads of all tokens: the way back."""
    N, _, D = x.shape
    W = dist.get_world_size()
    if N % W:
        raise ValueError(f"gather_heads: {N} tokens do not divide by {W} ranks")
    x = x.contiguous()                  # what attention returns, and gradients, need not be
    # exercise: a piece for each rank, its tokens; put the heads that come in the order of ranks
    into = torch.empty_like(x)
    dist.all_to_all_single(into, x)
    return into.view(W, N // W, -1, D).transpose(0, 1).flatten(1, 2)


def ulysses(q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
    """(n, H, D), 2 × (n, G, D) -> (n, H, D): attention of this rank's queries, tokens cut in order.

    ValueError where there are fewer kv heads than ranks
    """
    G = k.shape[1]
    W = dist.get_world_size()
    if G % W:
        raise ValueError(f"ulysses: {G} kv heads cannot be shared by {W} ranks; use the ring, or "
                         f"a number of ranks that divides {G}")
    out, _ = attend(gather_tokens(q), gather_tokens(k), gather_tokens(v), True)
    return gather_heads(out)
