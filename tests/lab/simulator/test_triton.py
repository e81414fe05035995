"""Unmodified Triton kernels through Triton's own compiler, against torch."""

import linecache
import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
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


# ---- arguments

@triton.jit
def scalars_kernel(out, flag, one, zero, n, big, x, y, nothing, HALF: tl.constexpr,
                   MODE: tl.constexpr):
    if flag:
        tl.store(out, n + one + zero)
    tl.store(out + 1, (big >> 32).to(tl.float64))
    tl.store(out + 2, x * HALF + y)
    if nothing is None:
        tl.store(out + 3, 3.0)
    if MODE == "negate":
        tl.store(out + 4, -x)


@pytest.mark.parametrize("flag, n", [(True, 5), (False, -7)])
def test_scalars(flag, n):
    out = torch.zeros(5, dtype=torch.float64)
    scalars_kernel[(1,)](out, flag, 1, 0, n, 3 << 32, 0.75, 2, None, HALF=0.5, MODE="negate")
    assert out.tolist() == [(n + 1) * flag, 3, 2.375, 3, -0.75]


class Pair(NamedTuple):
    pointer: object
    step: int


@triton.jit
def tuples_kernel(pair, nested, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(pair.pointer + i * pair.step, i < n)
    tl.store(nested[0] + i, v * nested[1][0] + nested[1][1], i < n)


def test_tuples_and_named_tuples():
    x, y = torch.rand(64), torch.zeros(32)
    tuples_kernel[(1,)](Pair(x, 2), (y, (3, 0.5)), 32, BLOCK=32)
    assert torch.allclose(y, 3 * x[::2] + 0.5)


def test_a_member_of_a_tuple_has_its_name_in_messages():
    x, y = torch.rand(10), torch.zeros(32)
    with pytest.raises(simulator.KernelError, match=r"`pair\.pointer`"):
        tuples_kernel[(1,)](Pair(x, 2), (y, (3, 0.5)), 32, BLOCK=32)
    with pytest.raises(simulator.KernelError, match=r"`nested\[0\]`"):
        tuples_kernel[(1,)](Pair(torch.rand(64), 2), (y[:8], (3, 0.5)), 32, BLOCK=32)


@triton.jit
def copy_kernel(x, y, rows, columns, xr, xc, yr, yc, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r, c = i // columns, i % columns
    inside = i < rows * columns
    tl.store(y + r * yr + c * yc, tl.load(x + r * xr + c * xc, inside), inside)


@pytest.mark.parametrize("dtype", [
    torch.bool, torch.int8, torch.uint8, torch.int16, torch.int64, torch.bfloat16, torch.float64,
    torch.float8_e5m2], ids=str)
def test_views_of_any_stride_alignment_and_type(dtype):
    whole = torch.randint(0, 2, (40, 50)).to(dtype)
    for x in (whole, whole.T, whole[3::2, 1::3], whole[:, 7:8], whole[5]):
        x = x if x.ndim == 2 else x[None]
        y = torch.zeros(x.shape, dtype=dtype).T.contiguous().T
        copy_kernel[(triton.cdiv(x.numel(), 128),)](x, y, *x.shape, *x.stride(), *y.stride(),
                                                    BLOCK=128)
        assert torch.equal(y.float(), x.float())


def test_alignment_is_what_the_compiler_saw():
    """Memory from elsewhere may start anywhere: here at 8 beyond a multiple of 16."""
    memory = np.zeros(8192, np.uint8)
    start = -memory.ctypes.data % 16 + 8
    x = torch.from_numpy(memory[start:start + 4096].view(np.float32))
    x[:] = torch.rand(1024)
    for view in (x, x[2:]):                                 # not aligned, and aligned by its offset
        n, z = len(view) // 128 * 128, torch.zeros(1024)
        add_kernel[(8,)](view, view, z, n, BLOCK=128)
        assert torch.equal(z[:n], 2 * view[:n])


def test_a_number_that_does_not_fit_is_an_error():
    @triton.jit
    def kernel(out, n: tl.int8):
        tl.store(out, n)
    out = torch.zeros(1, dtype=torch.int32)
    kernel[(1,)](out, -128)
    assert out.item() == -128
    with pytest.raises(simulator.KernelError, match="`n`: takes i8, 200 does not fit"):
        kernel[(1,)](out, 200)


def test_reinterpreted_tensor():
    x = torch.tensor([1.5, -2.0]).view(torch.int32)
    y, z = torch.zeros(2), torch.ones(2)
    add_kernel[(1,)](triton.reinterpret(x, tl.float32), y, z, 2, BLOCK=2)
    assert z.tolist() == [1.5, -2.0]


class Backwards:
    """A negative stride, which no torch tensor has. Triton takes anything with a data_ptr()."""

    def __init__(self, tensor):
        self.tensor, self.dtype = tensor, tensor.dtype

    def data_ptr(self):
        return self.tensor[-1:].data_ptr()


def test_an_object_with_an_address():
    x, y = torch.rand(100), torch.zeros(100)
    copy_kernel[(1,)](Backwards(x), y, 1, 100, 0, -1, 0, 1, BLOCK=128)
    assert torch.equal(y, x.flip(0))
    with pytest.raises(simulator.KernelError, match="belongs to no argument"):
        copy_kernel[(1,)](Backwards(x), y, 1, 100, 0, 1, 0, 1, BLOCK=128)


def test_the_last_row_of_a_view_has_its_padding_too():
    whole = torch.zeros(4, 32)
    part = whole[1:3, :20]                                  # rows of 20, 32 apart
    fill_kernel[(2,)](part, 32, ROW=32)
    assert torch.equal(whole[1:3], torch.ones(2, 32)) and whole.sum() == 64
    with pytest.raises(simulator.KernelError, match="element 64 of `x`"):
        fill_kernel[(3,)](part, 32, ROW=32)


@triton.jit
def fill_kernel(x, stride, ROW: tl.constexpr):
    tl.store(x + tl.program_id(0) * stride + tl.arange(0, ROW), 1.0)


@triton.jit(repr=lambda specialization: f"fill_{specialization.constants['ROW']}")
def renamed_kernel(x, ROW: tl.constexpr):
    tl.store(x + tl.arange(0, ROW), 1.0)


def test_a_kernel_that_names_itself():
    x = torch.zeros(64)
    with simulator.trace() as t:
        renamed_kernel[(1,)](x, ROW=32)
        renamed_kernel[(1,)](x, ROW=64)
    assert x.sum() == 64 and [launch.name for launch in t.launches] == ["fill_32", "fill_64"]


def test_an_expanded_tensor_reaches_its_whole_storage():
    """Strides of 0 let a kernel pick its own elements of a dimension; a slice ends where it ends.
    """
    x, y = torch.rand(20), torch.zeros(20)
    copy_kernel[(1,)](x[:1].expand(20), y, 1, 20, 0, 1, 0, 1, BLOCK=32)
    assert torch.equal(y, x)
    for short, n in ((x[:10], 20), (x[:1].expand(20), 21)):
        with pytest.raises(simulator.KernelError, match="out-of-bounds read .* of `x`"):
            copy_kernel[(1,)](short, torch.zeros(30), 1, n, 0, 1, 0, 1, BLOCK=32)


def test_an_empty_grid_is_no_launch():
    x = torch.rand(8)
    with simulator.trace() as t:
        add_kernel[(0,)](x, x, x, 8, BLOCK=8)
        add_kernel[(3, 0, 2)](x, x, x, 8, BLOCK=8)
    assert not t.launches
    for grid in ((1, 65536), (-1,), (2.0,)):
        with pytest.raises(simulator.KernelError, match="grid"):
            add_kernel[grid](x, x, x, 8, BLOCK=8)
    add_kernel[(np.int64(1),)](x, x, z := torch.zeros(8), 8, BLOCK=8)
    assert torch.equal(z, 2 * x)


@triton.jit
def grid_kernel(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(out + at, 100 * x + 10 * y + z)


def test_grids_of_three_dimensions():
    out = torch.zeros(4, 3, 2, dtype=torch.int32)
    grid_kernel[lambda meta: (2, 3, 4)](out)
    z, y, x = np.indices((4, 3, 2))
    assert (out.numpy() == 100 * x + 10 * y + z).all()


@triton.jit
def grid_barrier_kernel(x, total, arrived, y, BLOCK: tl.constexpr):
    """Every program needs what all of them have added."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.atomic_add(total, tl.sum(v, 0))
    tl.atomic_add(arrived, 1)
    while tl.atomic_add(arrived, 0) < tl.num_programs(0):
        pass
    tl.store(y + i, v / tl.atomic_add(total, 0.0))


def test_a_cooperative_grid_waits_for_all_its_programs():
    """400 programs of 128 threads are more than one wave of the simulator."""
    x = torch.rand(400 * 128)
    y, total, arrived = torch.zeros_like(x), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    grid_barrier_kernel[(400,)](x, total, arrived, y, BLOCK=128, launch_cooperative_grid=True)
    assert torch.allclose(y, x / x.sum(), rtol=1e-4)


# ---- the language around a kernel

@triton.jit(noinline=True)
def cube(x):
    return x * x * x


@triton.jit
def square(x):
    return x * x


@triton.jit
def language_kernel(x, y, n, BLOCK: tl.constexpr, APPLY: tl.constexpr):
    tl.static_assert(BLOCK >= 32)
    tl.static_print("compiled for", BLOCK)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, i < n, other=0.0)
    swapped = tl.inline_asm_elementwise("shf.l.wrap.b32 $0, $1, $1, 16;", "=r,r",
                                        [v.to(tl.int32, bitcast=True)], dtype=tl.int32,
                                        is_pure=True, pack=1)
    tl.store(y + i, APPLY(v) + cube(n), i < n)
    tl.store(y + BLOCK + i, swapped.to(tl.float32, bitcast=True), i < n)


def test_functions_calls_and_inline_assembly():
    x, y = torch.randn(32), torch.zeros(64)
    language_kernel[(1,)](x, y, 32, BLOCK=32, APPLY=square)
    assert torch.allclose(y[:32], x**2 + 32**3)
    bits = x.numpy().view(np.uint32)
    assert (y[32:].numpy().view(np.uint32) == (bits << 16 | bits >> 16)).all()


@pytest.mark.parametrize("warps, stages", [(1, 1), (8, 4), (16, 2)])
def test_any_number_of_warps_and_stages(warps, stages):
    a, b, c = torch.randn(64, 64).half(), torch.randn(64, 64).half(), torch.zeros(64, 64)
    matmul_kernel[(2, 2)](a, b, c, 64, 64, 64, 32, 32, 16, "ieee", num_warps=warps,
                          num_stages=stages)
    assert torch.allclose(c, a.float() @ b.float(), atol=1e-3)
    assert simulator.last_launch().block == (32 * warps, 1, 1)


@triton.jit
def hints_kernel(x, y, n, BLOCK: tl.constexpr):
    """Where the caches keep a line changes no value."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) * BLOCK >= n:
        return
    total = tl.load(x + i, i < n, eviction_policy="evict_last")
    total += tl.load(x + i, i < n, eviction_policy="evict_first")
    total += tl.load(x + i, i < n, cache_modifier=".cg") + tl.load(x + i, i < n, volatile=True)
    total += tl.load(x + i, i < n, cache_modifier=".cv")
    tl.store(y + i, total, i < n, cache_modifier=".wt")
    tl.store(y + n + i, total, i < n, eviction_policy="evict_first")
    tl.store(y + 2 * n + i, total, i < n, cache_modifier=".cs")


def test_cache_hints_early_return_and_compiler_options():
    x, y = torch.rand(100), torch.zeros(3, 100)
    hints_kernel[(4,)](x, y, 100, BLOCK=64, enable_fp_fusion=False, maxnreg=32)
    assert torch.allclose(y, (5 * x).expand(3, 100))


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def heuristic_kernel(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y + i, tl.load(x + i) + 1)
    else:
        tl.store(y + i, tl.load(x + i, i < n), i < n)


def test_heuristics():
    x = torch.rand(64)
    for n, more in ((64, 1), (50, 0)):
        y = torch.zeros(64)
        heuristic_kernel[(2,)](x, y, n, BLOCK=32)
        assert torch.equal(y[:n], x[:n] + more)


def test_hooks_and_warmup():
    seen, last = [], simulator.last_launch()
    kernel = add_kernel.warmup(torch.float32, torch.float32, torch.float32, 8, BLOCK=64, grid=(1,))
    assert kernel.asm["ptx"].count(".entry") == 1 and simulator.last_launch() is last
    triton.knobs.runtime.launch_enter_hook.add(lambda data: seen.append(data.get()["name"]))
    add_kernel.add_pre_run_hook(lambda *args, **_: seen.append("before"))
    try:
        x, z = torch.rand(8), torch.zeros(8)
        add_kernel[(1,)](x, x, z, 8, BLOCK=64)
    finally:
        add_kernel.pre_run_hooks.clear()
        triton.knobs.runtime.launch_enter_hook.calls.clear()
    assert seen == ["before", "add_kernel"] and torch.equal(z, 2 * x)


def total_config(block):
    return triton.Config({"BLOCK": block}, pre_hook=lambda args: args["total"].zero_())


@triton.autotune([total_config(64), total_config(256)], key=["n"])
@triton.jit
def total_kernel(x, total, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total, tl.sum(tl.load(x + i, i < n, other=0.0), 0))


def test_autotuning_with_a_hook_that_clears_the_result():
    x, total = torch.rand(1000), torch.zeros(1)
    total_kernel[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, total, 1000)
    assert torch.allclose(total, x.sum())
    assert total_kernel.best_config.kwargs["BLOCK"] == 256  # four times fewer programs


def test_an_autotuner_with_its_own_clock_counts_too():
    with pytest.warns(DeprecationWarning):
        tuner = triton.autotune([triton.Config({"BLOCK": b}) for b in (32, 128)], key=["n"],
                                warmup=1, rep=1)(add_kernel)
    x, z = torch.rand(256), torch.zeros(256)
    tuner[lambda meta: (triton.cdiv(256, meta["BLOCK"]),)](x, x, z, 256)
    assert torch.equal(z, 2 * x) and tuner.best_config.kwargs["BLOCK"] == 128


def test_choices_on_disk_are_kept_apart_from_a_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    asked, make = [], triton.compiler.compiler.make_backend

    def make_and_tell(target):
        asked.append(target.arch)
        return make(target)
    monkeypatch.setattr(triton.compiler.compiler, "make_backend", make_and_tell)
    configs = [triton.Config({"BLOCK": b}) for b in (32, 128)]
    x, z = torch.rand(256), torch.zeros(256)
    for _ in range(2):                                      # the second finds the first one's file
        tuner = triton.autotune(configs, key=["n"], cache_results=True)(add_kernel)
        tuner[lambda meta: (triton.cdiv(256, meta["BLOCK"]),)](x, x, z, 256)
        assert torch.equal(z, 2 * x) and tuner.best_config.kwargs["BLOCK"] == 128
    assert asked.count(-80) == 2 and set(asked) <= {80, -80}
    assert len(list(tmp_path.rglob("*.autotune.json"))) == 1


def test_no_time_is_ever_reported():
    with pytest.raises(simulator.Unsupported, match="measures no time"):
        triton.testing.do_bench(lambda: None)


# ---- printing, asserting, failing

@triton.jit
def print_kernel(x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.device_print("value", v)
    tl.device_assert(v < n, "a value is too large")


def test_device_print(capsys):
    x = torch.tensor([0.5, 1.25, -3.0, 4.0])
    print_kernel[(2,)](x, 10, BLOCK=4, num_warps=1)
    lines = capsys.readouterr().out.splitlines()
    for block in (0, 1):
        for i, v in enumerate(x.tolist()):
            assert f"pid ({block}, 0, 0) idx ({i}) value: {v:f}" in lines


def test_device_assert_works_in_debug_mode_only(capsys):
    x = torch.tensor([0.5, 1.25, -3.0, 4.0])
    print_kernel[(1,)](x, 2, BLOCK=4, num_warps=1)
    with pytest.raises(simulator.KernelError, match="a value is too large") as caught:
        print_kernel[(1,)](x, 2, BLOCK=4, num_warps=1, debug=True)
    assert caught.value.kind == "assert" and caught.value.path == __file__
    assert caught.value.source_line.startswith("tl.device_assert(v < n")


@triton.jit
def overflow_kernel(x, y):
    tl.store(y, tl.load(x) + tl.load(x))


def test_debug_mode_finds_integer_overflow():
    x, y = torch.tensor([2**31 - 1], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    overflow_kernel[(1,)](x, y)
    assert y.item() == -2
    with pytest.raises(simulator.KernelError, match="int32 overflow") as caught:
        overflow_kernel[(1,)](x, y, debug=True)
    assert caught.value.kind == "assert" and caught.value.source_line.startswith("tl.store(y")


def test_writing_out_of_bounds_names_parameter_line_and_element():
    x, z = torch.rand(100), torch.zeros(90)
    with pytest.raises(simulator.KernelError) as caught:
        add_kernel[(1,)](x, x, z, 100, BLOCK=128)
    text = str(caught.value)
    assert "element 90 of `z` (90 float32)" in text and "tl.store(z + i" in text
    assert caught.value.kind == "out_of_bounds" and caught.value.path == __file__


@triton.jit
def sum_without_atomics(x, total, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x + i), 0)
    tl.store(total, tl.load(total) + part)


def test_a_race_between_programs():
    with pytest.raises(simulator.KernelError) as caught:
        sum_without_atomics[(4,)](torch.rand(512), torch.zeros(1), BLOCK=128)
    text = str(caught.value)
    assert caught.value.kind == "race" and caught.value.path == __file__
    assert "race" in text and "`total`" in text and "tl.store(total, tl.load(total) + part)" in text


@triton.jit
def exchange_kernel(x, BLOCK: tl.constexpr, BARRIER: tl.constexpr):
    """Threads of one program hand values to each other through global memory."""
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i) + 1)
    if BARRIER:
        tl.debug_barrier()
    tl.store(x + BLOCK + i, tl.load(x + (BLOCK - 1 - i)))


@pytest.mark.parametrize("barrier", [True, False])
def test_threads_of_one_program(barrier):
    x = torch.rand(512)
    want = x[:256].flip(0) + 1
    with simulator.trace() as t:
        exchange_kernel[(1,)](x, BLOCK=256, BARRIER=barrier)
    assert torch.equal(x[256:], want)
    assert bool(t.launches[0].warnings) != barrier          # without it the order is not proven


def test_an_endless_kernel_ends():
    @triton.jit
    def kernel(flag):
        while tl.load(flag, volatile=True) == 0:
            pass
    with simulator.budget(20_000), pytest.raises(simulator.KernelError) as caught:
        kernel[(1,)](torch.zeros(1, dtype=torch.int32))
    assert caught.value.kind == "endless"
    assert caught.value.source_line in ("while tl.load(flag, volatile=True) == 0:", "pass")


def test_tritons_own_errors_come_through():
    @triton.jit
    def kernel(x):
        tl.store(x, tl.arange(0, 3))
    with pytest.raises(triton.CompilationError, match="power of 2"):
        kernel[(1,)](torch.zeros(4))
    with pytest.raises(triton.runtime.errors.OutOfResources, match="shared memory"):
        matmul_kernel[(1, 1)](torch.zeros(256, 256), torch.zeros(256, 256), torch.zeros(256, 256),
                              256, 256, 256, 128, 128, 128, "tf32", num_stages=4)


CELL = """
@triton.jit
def kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, 2 * tl.load(x + i))
"""


def test_a_kernel_of_a_notebook_cell():
    """A cell has a name that no file has; its text is where Python's tracebacks find it."""
    linecache.cache["<cell 7>"] = len(CELL), None, CELL.splitlines(keepends=True), "<cell 7>"
    names = {"triton": triton, "tl": tl, "__name__": "__main__"}
    exec(compile(CELL, "<cell 7>", "exec"), names)
    x, y = torch.rand(64), torch.zeros(64)
    names["kernel"][(1,)](x, y, N=64)
    assert torch.equal(y, 2 * x)
    with pytest.raises(simulator.KernelError) as caught:
        names["kernel"][(1,)](x, y[:60], N=64)
    assert caught.value.path == "<cell 7>" and caught.value.line == 5
    assert "tl.store(y + i, 2 * tl.load(x + i))" in str(caught.value)


def test_a_compiled_kernel_says_what_it_takes():
    x = torch.rand(64)
    kernel = add_kernel.warmup(x, x, x, 64, BLOCK=64, grid=(1,))
    z = torch.zeros(64)
    kernel[(1, 1, 1)](x, x, z, 64, 64)
    assert torch.equal(z, 2 * x)
    with pytest.raises(simulator.KernelError, match=r"takes 5 arguments .* 4 were given"):
        kernel[(1, 1, 1)](x, x, z, 64)


# ---- the device

def test_the_device_key_is_the_simulators_own():
    x = torch.rand(8)
    add_kernel[(1,)](x, x, torch.zeros(8), 8, BLOCK=8)
    assert "simulator" in add_kernel.device_caches
    simulator.activate_triton(capability=89)
    add_kernel[(1,)](x, x, torch.zeros(8), 8, BLOCK=8)
    targets = {key: cached[2].arch for key, cached in add_kernel.device_caches.items()}
    assert targets["simulator"] == 80 and targets["simulator sm_89"] == 89


def test_an_unknown_capability_is_refused():
    with pytest.raises(simulator.KernelError, match="80 and 89"):
        simulator.activate_triton(capability=90)


def test_registers_and_stack_are_the_assemblers():
    """Against what cuobjdump reads from the same cubin."""
    kernel = attention_kernel.warmup(torch.float16, torch.float16, torch.float16, torch.float16, 64,
                                     0.5, D=32, BM=32, BN=32, grid=(1,))
    kernel._init_handles()
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        text = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True,
                              text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", text).groups()
    assert (kernel.n_regs, kernel.n_spills) == (int(registers), int(stack) // 4)


def test_without_a_gpu_triton_says_so_when_the_simulator_is_off():
    simulator.deactivate_triton()
    if torch.cuda.is_available():
        pytest.skip("not proven here: there is a GPU")
    with pytest.raises(RuntimeError, match="active drivers"):
        add_kernel[(1,)](torch.zeros(8), torch.zeros(8), torch.zeros(8), 8, BLOCK=8)


def test_from_the_gpu_to_the_simulator_and_back():
    if not torch.cuda.is_available():
        pytest.skip("not proven here: needs an NVIDIA GPU")
    x = torch.rand(1000)
    total = total_kernel[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)]
    for device in ("cuda", "cpu", "cuda"):
        (simulator.activate_triton if device == "cpu" else simulator.deactivate_triton)()
        here, z, result = (t.to(device) for t in (x, torch.zeros(1000), torch.zeros(1)))
        add_kernel[(4,)](here, here, z, 1000, BLOCK=256)
        assert torch.equal(z, 2 * here)
        total_kernel.cache.clear()
        total(here, result, 1000)
        assert torch.allclose(result, here.sum())
