"""Matmul, softmax and attention as Triton's tutorials block them, rewritten.

Our simulator and Triton's interpreter run this very file.
"""

import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """c = a · b: (N, N), (N, N) -> (N, N).
    One program per tile, in groups of GROUP tile rows."""
    tiles = tl.cdiv(N, BN)
    group = tl.program_id(0) // (GROUP * tiles)
    place = tl.program_id(0) % (GROUP * tiles)
    rows = min(tl.cdiv(N, BM) - group * GROUP, GROUP)
    m = (group * GROUP + place % rows) * BM + tl.arange(0, BM)
    n = (place // rows) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a_at = a + (m % N)[:, None] * N + k[None, :]                    # (BM, BK)
    b_at = b + k[:, None] * N + (n % N)[None, :]                    # (BK, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(tl.cdiv(N, BK)):
        left = N - step * BK
        acc = tl.dot(tl.load(a_at, mask=k[None, :] < left, other=0.0),
                     tl.load(b_at, mask=k[:, None] < left, other=0.0), acc)
        a_at += BK
        b_at += BK * N
    tl.store(c + m[:, None] * N + n[None, :], acc.to(tl.float16),
             mask=(m[:, None] < N) & (n[None, :] < N))


@triton.jit
def softmax(x, y, C, BLOCK: tl.constexpr):
    """(R, C) -> (R, C).
    One program per row."""
    r, c = tl.program_id(0), tl.arange(0, BLOCK)
    row = tl.load(x + r * C + c, mask=c < C, other=-float("inf"))
    e = tl.exp(row - tl.max(row, 0))
    tl.store(y + r * C + c, e / tl.sum(e, 0), mask=c < C)


@triton.jit
def attention(q, k, v, o, N, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """softmax(q · kᵀ · scale) · v, four times (H, N, D); N a multiple of BM and BN.
    One program per BM queries of a head; softmax online, in powers of two."""
    head = tl.program_id(1) * N * D
    m, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    at = head + tl.arange(0, BN)[:, None] * D + d[None, :]          # (BN, D)
    query = tl.load(q + head + m[:, None] * D + d[None, :])         # (BM, D)
    largest = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    to_base_2 = scale * 1.44269504                                  # 1 / ln 2
    for start in range(0, N, BN):
        scores = tl.dot(query, tl.trans(tl.load(k + at + start * D))) * to_base_2    # (BM, BN)
        larger = tl.maximum(largest, tl.max(scores, 1))
        p = tl.exp2(scores - larger[:, None])
        shrink = tl.exp2(largest - larger)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.float16), tl.load(v + at + start * D), acc * shrink[:, None])
        largest = larger
    tl.store(o + head + m[:, None] * D + d[None, :], (acc / total[:, None]).to(tl.float16))
