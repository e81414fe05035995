"""Given code round context parallelism: shards of a sequence, attention of one rank, and the ring's
messages and gradients

N: tokens of the sequence   W: ranks   r: this rank   n: tokens of a rank, N / W
H: query heads   G: kv heads; query head h reads kv head h // (H // G)   D: head width
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from layer1_kernels import Kernels, kernels

__all__ = ["Attend", "pass_on", "unzigzag", "zigzag"]


def zigzag(N: int, W: int) -> Tensor:                   # (W, n) int64
    """The positions of each rank's tokens: of 2·W pieces rank r has piece r and piece 2·W - 1 - r.

    ValueError unless N divides into 2·W pieces
    """
    if N % (2 * W):
        raise ValueError(f"zigzag: {N} tokens do not divide into 2·W = {2 * W} pieces; pad to "
                         f"{N + -N % (2 * W)}")
    pieces = torch.arange(N).view(2 * W, -1)
    return torch.cat([pieces[:W], pieces[W:].flip(0)], 1)


def unzigzag(parts: list[Tensor]) -> Tensor:            # W × (n, …) -> (N, …)
    """All tokens in their order again. parts: of rank 0, 1, …"""
    whole = torch.cat(parts)
    positions = zigzag(len(whole), len(parts)).flatten()
    return whole[positions.argsort()]


class Attend:
    """Attention of some queries to some keys, on this rank.
    `pairs`: (query, key) of each call"""

    def __init__(self, scale: float, ops: Kernels | None = None) -> None:
        self.scale = scale
        self.ops = ops or kernels("torch")
        self.pairs: list[int] = []

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """(T, H, D), 2 × (N, G, D) -> out (T, H, D), lse (T, H), the natural log of the sums.

        causal: query t sees the keys up to N - T + t
        """
        T = len(q)
        N = len(k)
        self.pairs.append(T * N - causal * (T * (T - 1) // 2))
        out, lse = self.ops.flash_attention(q[None], k[None], v[None], causal, self.scale)
        return out[0], lse[0]


def pass_on(*arrays: Tensor, step: int = 1) -> list[Tensor]:
    """Send arrays to rank r + step; return those that rank r - step sends, in the same order."""
    r = dist.get_rank()
    W = dist.get_world_size()
    if W == 1:
        return list(arrays)
    coming = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in arrays]
    calls = [dist.P2POp(dist.isend, x.contiguous(), (r + step) % W) for x in arrays]
    calls += [dist.P2POp(dist.irecv, x, (r - step) % W) for x in coming]
    for handle in dist.batch_isend_irecv(calls):
        handle.wait()
    return coming


def block_grads(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, upstream: Tensor,
                causal: bool, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v by one block of pairs: (T, H, D), 2 × (N, G, D), as q, k and v.

    out, lse: of these queries over *all* keys they see.  upstream (T, H, D): the gradient of out.
    Dao and others, "FlashAttention", 2022, algorithm 4
    """
    T, H, D = q.shape
    N, G, _ = k.shape
    q, out, upstream = (x.view(T, G, H // G, D) for x in (q, out, upstream))
    scores = torch.einsum("tgrd,ngd->tgrn", q, k) * scale
    if causal:
        later = scores.new_ones(T, N, dtype=torch.bool).triu(N - T + 1)         # (T, N)
        scores = scores.masked_fill(later[:, None, None], -torch.inf)
    weights = (scores - lse.view(T, G, H // G, 1)).exp()                        # (T, G, H/G, N)
    delta = (upstream * out).sum(-1, keepdim=True)
    through = weights * (torch.einsum("tgrd,ngd->tgrn", upstream, v) - delta) * scale
    dq = torch.einsum("tgrn,ngd->tgrd", through, k).reshape(T, H, D)
    dk = torch.einsum("tgrn,tgrd->ngd", through, q)
    return dq, dk, torch.einsum("tgrn,tgrd->ngd", weights, upstream)


def count_pairs(rule: Callable[[int, int, int], tuple[int, int, bool]], n: int,
                W: int) -> list[list[int]]:
    """[round][rank]: pairs (query, key) that a rank computes in each round of the ring.

    rule: as `visible`
    """
    def pairs(r, s):
        first, end, causal = rule(r, (r - s) % W, n)
        T = n - first
        return T * end - causal * (T * (T - 1) // 2)

    return [[pairs(r, s) for r in range(W)] for s in range(W)]


def contiguous(r: int, j: int, n: int) -> tuple[int, int, bool]:
    """The rule of tokens cut into W runs in order: earlier keys whole, later ones not at all."""
    return (0, n, j == r) if j <= r else (n, n, False)
