"""Unmodified Triton kernels through Triton's own compiler, against torch."""

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from lab import simulator  # noqa: E402


@pytest.fixture(autouse=True)
def simulated_triton():
    simulator.activate_triton()
    torch.manual_seed(0)
    yield
    simulator.deactivate_triton()


@triton.jit
def add_kernel(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def softmax_kernel(x, y, n, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + i, mask=i < n, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * n + i, e / tl.sum(e, 0), mask=i < n)


@triton.jit
def softmax_online_kernel(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    m, s = -float("inf"), 0.0
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + i, mask=i < n, other=-float("inf")).to(tl.float32)
        m_new = tl.maximum(m, tl.max(v, 0))
        s = s * tl.exp(m - m_new) + tl.sum(tl.exp(v - m_new), 0)
        m = m_new
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + i, mask=i < n, other=-float("inf")).to(tl.float32)
        tl.store(y + row * n + i, tl.exp(v - m) / s, mask=i < n)


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


@pytest.mark.parametrize("n", [1, 127, 1000])
def test_add(n):
    x, y, z = torch.rand(n), torch.rand(n), torch.zeros(n)
    with simulator.trace() as t:
        add_kernel[(triton.cdiv(n, 256),)](x, y, z, n, BLOCK=256)
    assert torch.equal(z, x + y)
    assert t.launches[0].flops >= n and t.launches[0].bytes_stored == 4 * n


@pytest.mark.parametrize("kernel", [softmax_kernel, softmax_online_kernel])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_softmax(kernel, dtype):
    x = 8 * torch.randn(5, 1000)
    x, y = x.to(dtype), torch.zeros(5, 1000, dtype=dtype)
    kernel[(5,)](x, y, 1000, BLOCK=1024 if kernel is softmax_kernel else 256)
    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}[dtype]
    assert torch.allclose(y.float(), torch.softmax(x.float(), 1), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype, precision, tolerance", [
    (torch.float32, "ieee", 1e-5), (torch.float32, "tf32", 5e-3), (torch.float16, "ieee", 2e-3),
    (torch.bfloat16, "ieee", 2e-2)])
@pytest.mark.parametrize("M, N, K", [(64, 64, 64), (65, 40, 72)])
def test_matmul(dtype, precision, tolerance, M, N, K):
    a, b = torch.randn(M, K).to(dtype), torch.randn(K, N).to(dtype)
    c = torch.zeros(M, N, dtype=dtype)
    matmul_kernel[(triton.cdiv(M, 32), triton.cdiv(N, 32))](a, b, c, M, N, K, 32, 32, 16, precision)
    want = a.double() @ b.double()
    assert ((c.double() - want).abs() / want.abs().max()).max() < tolerance


def test_fp32_dots_follow_the_hardware():
    """tf32 keeps 10 bits of mantissa, so its error is far above float32's."""
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    error = {}
    for precision in ("ieee", "tf32"):
        c = torch.zeros(64, 64)
        matmul_kernel[(2, 2)](a, b, c, 64, 64, 64, 32, 32, 32, precision)
        error[precision] = (c.double() - a.double() @ b.double()).abs().max().item()
    assert error["tf32"] > 50 * error["ieee"]


@pytest.mark.parametrize("n", [64, 100])
def test_causal_attention(n):
    q, k, v = (torch.randn(2, n, 32).half() for _ in range(3))
    o = torch.zeros_like(q)
    attention_kernel[(triton.cdiv(n, 32), 2)](q, k, v, o, n, 32**-0.5, 32, 32, 32)
    want = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(),
                                                            is_causal=True)
    assert torch.allclose(o.float(), want, atol=3e-3)


def test_an_error_names_the_python_line():
    x, y = torch.rand(4, 100), torch.zeros(4, 100)
    with pytest.raises(simulator.KernelError) as caught:
        softmax_kernel[(5,)](x, y, 100, BLOCK=128)
    error = caught.value
    assert error.kind == "out_of_bounds" and error.path == __file__ and error.block == (4, 0, 0)
    assert error.source_line.startswith("v = tl.load(x + row * n + i") and "`x`" in str(error)


def test_no_false_alarm_for_a_scan_and_a_sort():
    x, y, z = torch.randn(128), torch.zeros(128), torch.zeros(128)
    scan_and_sort_kernel[(1,)](x, y, z, N=128)
    assert torch.allclose(y, x.cumsum(0), atol=1e-5) and torch.equal(z, x.sort().values)


@triton.jit
def scan_and_sort_kernel(x, y, z, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(y + i, tl.cumsum(v, 0))
    tl.store(z + i, tl.sort(v))


@triton.jit
def atomic_kernel(x, total, count, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.atomic_add(total, tl.sum(v, 0))
    tl.atomic_add(count + (v * 4).to(tl.int32), 1, mask=i < n)


def test_atomics():
    x, total, count = torch.rand(1000), torch.zeros(1), torch.zeros(4, dtype=torch.int32)
    atomic_kernel[(4,)](x, total, count, 1000, BLOCK=256)
    assert torch.allclose(total, x.sum(), rtol=1e-5)
    assert torch.equal(count.long(), torch.bincount((x * 4).int(), minlength=4))


def test_the_device_key_is_the_simulators_own():
    x = torch.rand(8)
    add_kernel[(1,)](x, x, torch.zeros(8), 8, BLOCK=8)
    assert "simulator" in add_kernel.device_caches
