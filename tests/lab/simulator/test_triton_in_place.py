"""Triton kernels that work in place: right ones are silent, those that hand values from thread to
thread without a barrier are reported."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from lab import simulator  # noqa: E402


@pytest.fixture(autouse=True)
def on_simulator():
    simulator.activate_triton()


@triton.jit
def rope_kernel(x, cos, sin, H, D: tl.constexpr):
    """A program loads the two halves of its head and stores them."""
    t, h = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, D // 2)
    p = x + (t * H + h) * D + d
    a, b = tl.load(p), tl.load(p + D // 2)
    c, s = tl.load(cos + t * (D // 2) + d), tl.load(sin + t * (D // 2) + d)
    tl.store(p, a * c - b * s)
    tl.store(p + D // 2, b * c + a * s)


@triton.jit
def cross_entropy_kernel(logits, target, loss, V, BLOCK: tl.constexpr):
    """A program stores the gradient over its row of logits."""
    r = tl.program_id(0)
    p = logits + r * V
    y = tl.load(target + r)
    m, s = float("-inf"), 0.0
    for i in range(0, V, BLOCK):
        o = i + tl.arange(0, BLOCK)
        x = tl.load(p + o, o < V, float("-inf")).to(tl.float32)
        n = tl.maximum(m, tl.max(x, 0))
        s = s * tl.exp(m - n) + tl.sum(tl.exp(x - n), 0)
        m = n
    at = tl.load(p + y)
    tl.debug_barrier()
    for i in range(0, V, BLOCK):
        o = i + tl.arange(0, BLOCK)
        x = tl.load(p + o, o < V, float("-inf")).to(tl.float32)
        g = tl.exp(x - m) / s
        g = tl.where(o == y, g - 1, g)
        tl.store(p + o, g, o < V)
    tl.store(loss + r, m + tl.log(s) - at)


@triton.jit
def picks_kernel(logits, target, loss, V, BLOCK: tl.constexpr):
    """The same, and the first thread also reads a logit that another thread overwrites."""
    r = tl.program_id(0)
    p = logits + r * V
    y = tl.load(target + r)
    o = tl.arange(0, BLOCK)
    x = tl.load(p + o, o < V, float("-inf")).to(tl.float32)
    m = tl.max(x, 0)
    s = tl.sum(tl.exp(x - m), 0)
    at = tl.load(p + y)
    g = tl.exp(x - m) / s
    g = tl.where(o == y, g - 1, g)
    tl.store(p + o, g, o < V)
    tl.store(loss + r, m + tl.log(s) - at)


@triton.jit
def sum_of_two_kernel(x, BLOCK: tl.constexpr):
    """Each thread also reads its neighbour's element, which the neighbour overwrites."""
    i = tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(x + i + 1)
    tl.store(x + i, a + b)


@triton.jit
def shift_kernel(x, y, BLOCK: tl.constexpr):
    """Each thread reads what its neighbour has stored."""
    i = tl.arange(0, BLOCK)
    tl.store(x + i, i.to(tl.float32))
    tl.store(y + i, tl.load(x + i + 1))


@triton.jit
def next_program_kernel(x, BLOCK: tl.constexpr):
    """Each program reads what the next one overwrites."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i + BLOCK)
    tl.store(x + i, a)


@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    """One element a place."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, i < n) * 2, i < n)


@triton.jit
def norm_kernel(x, C, BLOCK: tl.constexpr):
    """A sum between the load and the store."""
    r = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + r * C + c, c < C, 0)
    tl.store(x + r * C + c, v / tl.sqrt(tl.sum(v * v) / C), c < C)


@triton.jit
def reverse_kernel(x, N: tl.constexpr):
    """The first thread stores where the last has read."""
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(x + N - 1 - i, v)


def warnings(kernel, grid, *args, **meta):
    with simulator.trace() as t:
        kernel[grid](*args, **meta)
    assert t.launches[0].checked_blocks
    return t.launches[0].warnings


@pytest.mark.parametrize("num_warps", [1, 4])
@pytest.mark.parametrize("D", [16, 64, 128])
def test_rope(D, num_warps):
    x, cos, sin = torch.rand(3, 2, D), torch.rand(3, 1, D // 2), torch.rand(3, 1, D // 2)
    a, b = x.chunk(2, -1)
    want = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    assert warnings(rope_kernel, (3, 2), x, cos, sin, 2, D=D, num_warps=num_warps) == []
    assert torch.allclose(x, want, atol=1e-6)


@pytest.mark.parametrize("num_warps", [1, 4])
@pytest.mark.parametrize("V, BLOCK", [(100, 64), (100, 128), (1000, 256)])
def test_cross_entropy(V, BLOCK, num_warps):
    logits, target, loss = torch.rand(2, V), torch.tensor([3, 60]), torch.zeros(2)
    x = logits.clone().requires_grad_()
    want = torch.nn.functional.cross_entropy(x, target, reduction="none")
    want.sum().backward()
    assert warnings(cross_entropy_kernel, (2,), logits, target, loss, V, BLOCK=BLOCK,
                    num_warps=num_warps) == []
    assert torch.allclose(logits, x.grad, atol=1e-6) and torch.allclose(loss, want, atol=1e-5)


@pytest.mark.parametrize("num_warps", [1, 4])
@pytest.mark.parametrize("BLOCK", [16, 64, 512])
def test_maps_and_sums(BLOCK, num_warps):
    x = torch.rand(3, BLOCK)
    want = 2 * x / (4 * (x * x).mean(1, keepdim=True)).sqrt()
    assert warnings(double_kernel, (3,), x, x.numel(), BLOCK=BLOCK, num_warps=num_warps) == []
    assert warnings(norm_kernel, (3,), x, BLOCK, BLOCK=BLOCK, num_warps=num_warps) == []
    assert torch.allclose(x, want, atol=1e-5)


def test_one_warp_stays_together():
    """It has read all before it stores the first."""
    x = torch.rand(64)
    want = x.flip(0)
    assert warnings(reverse_kernel, (1,), x, N=64, num_warps=1) == []
    assert torch.equal(x, want)


@pytest.mark.parametrize("kernel, read, written, args", [
    (sum_of_two_kernel, "tl.load(x + i + 1)", "tl.store(x + i, a + b)", ()),
    (shift_kernel, "tl.load(x + i + 1)", "tl.store(x + i, i.to", ("y",)),
    (reverse_kernel, "v = tl.load(x + i)", "tl.store(x + N - 1 - i, v)", ()),
])
def test_threads_that_need_a_barrier(kernel, read, written, args):
    more = {"N": 64} if kernel is reverse_kernel else {"BLOCK": 64}
    with pytest.raises(simulator.KernelError) as caught:
        kernel[1,](torch.rand(65), *(torch.zeros(64) for _ in args), **more)
    source = Path(__file__).read_text("utf-8").splitlines()
    start = next(i for i, line in enumerate(source) if line.startswith(f"def {kernel.__name__}("))
    line = {text: next(i + 1 for i in range(start, len(source)) if text in source[i])
            for text in (read, written)}
    assert caught.value.kind == "race" and caught.value.line == line[read]
    says = str(caught.value)
    assert f"written in line {line[written]} by" in says and "tl.debug_barrier()" in says


def test_one_element_that_another_thread_overwrites():
    logits, target, loss = torch.rand(2, 100), torch.tensor([3, 60]), torch.zeros(2)
    with pytest.raises(simulator.KernelError, match="element 160 of `logits`.* goes on to use it") \
            as caught:
        picks_kernel[2,](logits, target, loss, 100, BLOCK=128, num_warps=4)
    assert caught.value.block == (1, 0, 0)


def test_another_program_is_a_race():
    with pytest.raises(simulator.KernelError) as caught:
        next_program_kernel[(4,)](torch.rand(320), BLOCK=64)
    assert caught.value.kind == "race" and "nothing orders two blocks" in str(caught.value)


@triton.jit
def bins_kernel(x, bins, BLOCK: tl.constexpr):
    """Elements of one bin overwrite each other."""
    i = tl.arange(0, BLOCK)
    b = tl.load(x + i)
    tl.store(bins + b, tl.load(bins + b) + i)


@pytest.mark.parametrize("bins, raced", [(64, True), (256, False)])
def test_elements_of_one_store_that_share_a_place(bins, raced):
    x = torch.arange(256, dtype=torch.int32) % bins
    y = torch.zeros(256, dtype=torch.int32)
    if raced:
        with pytest.raises(simulator.KernelError, match="write different values to element"):
            bins_kernel[1,](x, y, 256)
    else:
        bins_kernel[1,](x, y, 256)
        assert y.equal(x)
