"""Triton kernels for test_races.py. Triton wants their source in a file."""

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
