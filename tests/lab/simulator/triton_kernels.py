"""Triton kernels that several files of tests launch.
Triton wants their source in a file."""

import triton
import triton.language as tl


@triton.jit
def sort_kernel(x, N: tl.constexpr):
    places = x + tl.program_id(0) * N + tl.arange(0, N)
    tl.store(places, tl.sort(tl.load(places)))


@triton.jit
def bump_kernel(x):
    """All threads of a program load the element, one of them stores it."""
    place = x + tl.program_id(0) * 256
    tl.store(place, tl.load(place) + 1)


@triton.jit
def clash_kernel(x):
    """All programs write one element."""
    tl.store(x, tl.program_id(0).to(tl.float32))


@triton.jit
def tail_kernel(x, y, n, BLOCK: tl.constexpr):
    """Reductions along both axes of a tile that is only partly there."""
    i = tl.arange(0, BLOCK)
    inside = (i[:, None] < n) & (i[None, :] < n)
    tile = tl.load(x + i[:, None] * n + i[None, :], mask=inside, other=0.0)
    tl.store(y + i, tl.max(tile, 1) + tl.sum(tile, 0), mask=i < n)


@triton.jit
def add_kernel(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                  PRECISION: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        inside = start + k < K
        x = tl.load(a + m[:, None] * K + (start + k)[None, :],
                    (m < M)[:, None] & inside[None, :], 0.0)
        w = tl.load(b + (start + k)[:, None] * N + n[None, :],
                    inside[:, None] & (n < N)[None, :], 0.0)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
    tl.store(c + m[:, None] * N + n[None, :], acc, (m < M)[:, None] & (n < N)[None, :])


@triton.jit
def attention_kernel(q, k, v, o, N, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    head, rows = tl.program_id(1), tl.program_id(0) * BM + tl.arange(0, BM)
    d, base = tl.arange(0, D), head * N * D
    x = tl.load(q + base + rows[:, None] * D + d[None, :], mask=(rows < N)[:, None], other=0.0)
    m = tl.full((BM,), -float("inf"), tl.float32)
    s = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, tl.program_id(0) * BM + BM, BN):
        cols = start + tl.arange(0, BN)
        keys = tl.load(k + base + cols[None, :] * D + d[:, None],
                       mask=(cols < N)[None, :], other=0.0)
        score = tl.dot(x, keys) * scale
        score = tl.where(rows[:, None] >= cols[None, :], score, -float("inf"))
        m_new = tl.maximum(m, tl.max(score, 1))
        p = tl.exp(score - m_new[:, None])
        fix = tl.exp(m - m_new)
        s = s * fix + tl.sum(p, 1)
        values = tl.load(v + base + cols[:, None] * D + d[None, :],
                         mask=(cols < N)[:, None], other=0.0)
        acc = acc * fix[:, None] + tl.dot(p.to(values.dtype), values)
        m = m_new
    tl.store(o + base + rows[:, None] * D + d[None, :], acc / s[:, None], mask=(rows < N)[:, None])
