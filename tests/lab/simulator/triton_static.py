"""Triton kernels for test_static.py; Triton reads their source from a file."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, z, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    inside = i < n
    tl.store(z + i, tl.load(x + i, inside) + tl.load(y + i, inside), inside)


@triton.jit
def dot(a, b, c, K, M: tl.constexpr, N: tl.constexpr, B: tl.constexpr):
    m, n = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, K, B):
        k = start + tl.arange(0, B)
        total = tl.dot(tl.load(a + m * K + k[None, :]), tl.load(b + k[:, None] * N + n), total)
    tl.store(c + m * N + n, total)


@triton.jit
def dot_by_descriptors(a, b, c, K, M: tl.constexpr, N: tl.constexpr, B: tl.constexpr):
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [M, B])
    right = tl.make_tensor_descriptor(b, [K, N], [N, 1], [B, N])
    out = tl.make_tensor_descriptor(c, [M, N], [N, 1], [M, N])
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, K, B):
        total = tl.dot(left.load([0, start]), right.load([start, 0]), total)
    out.store([0, 0], total.to(tl.float16))


@triton.jit
def dot_by_host_descriptors(a, b, c, K, M: tl.constexpr, N: tl.constexpr, B: tl.constexpr):
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, K, B):
        total = tl.dot(a.load([0, start]), b.load([start, 0]), total)
    c.store([0, 0], total.to(tl.float16))
