"""Unmodified Triton kernels through Triton's own compiler, against torch."""

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from lab import simulator  # noqa: E402

from .triton_kernels import add_kernel, attention_kernel, matmul_kernel  # noqa: E402

pytestmark = pytest.mark.usefixtures("simulated_triton")


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
def shift_kernel(x, y):
    p = tl.program_id(0)
    tl.store(y + p, tl.load(x + p + 1) + 1)


def test_a_race_between_two_names_of_one_tensor():
    x, y = torch.zeros(9), torch.zeros(9)
    shift_kernel[(8,)](x, y)
    add_kernel[(8,)](x, x, x, 9, BLOCK=2)                   # in place, each program on its own
    with pytest.raises(simulator.KernelError, match="race"):
        shift_kernel[(8,)](x, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_no_false_alarm_for_half_a_register(dtype):
    """A sum along a row of two-byte floats works on pairs, of which the last has an unset half."""
    x, w, y = torch.randn(64, 64).to(dtype), torch.randn(64).to(dtype), torch.zeros(64, dtype=dtype)
    row_dots_kernel[(1,)](x, w, y, R=64, C=64)
    assert torch.allclose(y.float(), x.float() @ w.float(), atol=0.3)


def test_no_false_alarm_for_one_fp8_number():
    """They are converted in pairs; where a thread has one, the other half is unset."""
    simulator.activate_triton(89)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        x, y = torch.randn(32), torch.zeros(32, dtype=dtype)
        quantise_kernel[(1,)](x.half(), y, N=32)
        assert torch.equal(y.float(), x.half().to(dtype).float())
        quantise_kernel[(1,)](x, y, N=32)
        assert torch.equal(y.float(), x.to(dtype).float())


def test_a_capability_for_some_launches():
    """CUDA C follows it as well: test_cuda_features.py."""
    simulator.activate_triton()
    x, y = torch.randn(32), torch.zeros(32, dtype=torch.float8_e4m3fn)
    with simulator.capability(89):
        quantise_kernel[(1,)](x, y, N=32)
        assert triton.runtime.driver.active.get_current_target().arch == 89
    assert torch.equal(y.float(), x.to(y.dtype).float())
    assert triton.runtime.driver.active.get_current_target().arch == 80
    with pytest.raises(simulator.KernelError, match="capability 90: the simulator has 80 and 89"), \
            simulator.capability(90):
        pass


@triton.jit
def quantise_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i).to(y.dtype.element_ty))


@triton.jit
def row_dots_kernel(x, w, y, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R), tl.arange(0, C)
    tl.store(y + r, tl.sum(tl.load(x + r[:, None] * C + c) * tl.load(w + c)[None, :], 1))


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
