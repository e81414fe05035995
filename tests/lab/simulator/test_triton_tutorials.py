"""The kernels of Triton's tutorials, rewritten from their algorithms, against torch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from lab import simulator  # noqa: E402

pytestmark = pytest.mark.usefixtures("simulated_triton")


def close(got, want, tolerance):
    """Relative to the largest element, since sums of products cancel."""
    got, want = got.double(), want.double()
    error = (got - want).abs().max() / want.abs().max()
    assert error < tolerance, f"error {error:.1e} of the largest element, {tolerance} allowed"


# ---- fused softmax: programs that take several rows each, sized by the kernel's occupancy

@triton.jit
def softmax_rows(y, x, x_stride, y_stride, M, N, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    c = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0), num_stages=STAGES):
        v = tl.load(x + row * x_stride + c, mask=c < N, other=-float("inf"))
        e = tl.exp(v - tl.max(v, axis=0))
        tl.store(y + row * y_stride + c, e / tl.sum(e, axis=0), mask=c < N)


def test_fused_softmax_sized_by_occupancy():
    x = torch.randn(23, 300)
    y = torch.empty_like(x)
    properties = triton.runtime.driver.active.utils.get_device_properties(x.device.index)
    kernel = softmax_rows.warmup(y, x, 300, 300, 23, 300, BLOCK=512, STAGES=2, num_warps=4,
                                 grid=(1,))
    kernel._init_handles()
    by_registers = properties["max_num_regs"] // (kernel.n_regs * properties["warpSize"] * 4)
    assert 1 <= by_registers <= 64 and kernel.metadata.shared < properties["max_shared_mem"]
    programs = min(by_registers * properties["multiprocessor_count"], 5)
    kernel[(programs, 1, 1)](y, x, 300, 300, 23, 300, 512, 2)
    assert torch.allclose(y, torch.softmax(x, 1), atol=1e-6)


def test_softmax_of_columns_of_a_larger_matrix():
    x = torch.randn(40, 64)[::3, 10:50]                     # strides 192 and 1, offset 10
    y = torch.empty(14, 40)
    softmax_rows[(4,)](y, x, x.stride(0), y.stride(0), 14, 40, BLOCK=64, STAGES=1)
    assert torch.allclose(y, torch.softmax(x, 1), atol=1e-6)


# ---- matmul: autotuned, programs in groups of rows, an activation by name

CONFIGS = [triton.Config({"BM": 16, "BN": 16, "BK": 16, "GROUP": 2}, num_stages=2, num_warps=2),
           triton.Config({"BM": 32, "BN": 32, "BK": 32, "GROUP": 2}, num_stages=3, num_warps=4)]


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def place_in_group(number, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Programs that follow each other share rows of A and columns of B in the cache."""
    width = GROUP * tiles_n
    first = number // width * GROUP
    rows = min(tiles_m - first, GROUP)
    return first + number % width % rows, number % width // rows


@triton.autotune(configs=CONFIGS, key=["M", "N", "K"])
@triton.jit
def matmul(a, b, c, M, N, K, am, ak, bk, bn, cm, cn, BM: tl.constexpr, BN: tl.constexpr,
           BK: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr):
    i, j = place_in_group(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    m = (i * BM + tl.arange(0, BM)) % M
    n = (j * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    at, bt = a + m[:, None] * am + k[None, :] * ak, b + k[:, None] * bk + n[None, :] * bn
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(tl.cdiv(K, BK)):
        x = tl.load(at, mask=k[None, :] < K - step * BK, other=0.0)
        w = tl.load(bt, mask=k[:, None] < K - step * BK, other=0.0)
        acc = tl.dot(x, w, acc)
        at += BK * ak
        bt += BK * bk
    if ACTIVATION == "leaky_relu":
        acc = leaky_relu(acc)
    m, n = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    tl.store(c + cm * m[:, None] + cn * n[None, :], acc.to(c.dtype.element_ty),
             mask=(m[:, None] < M) & (n[None, :] < N))


def run_matmul(a, b, activation=""):
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N, dtype=torch.float16)
    matmul[lambda meta: (triton.cdiv(M, meta["BM"]) * triton.cdiv(N, meta["BN"]),)](
        a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(), ACTIVATION=activation)
    return c


def test_autotuned_matmul():
    a, b = torch.randn(70, 80).half(), torch.randn(96, 80).half().T
    close(run_matmul(a, b), a.double() @ b.double(), 1e-3)
    close(run_matmul(a, b, "leaky_relu"),
          torch.nn.functional.leaky_relu(a.double() @ b.double(), 0.01), 1e-3)


def test_autotuning_compares_counted_instructions():
    a, b = torch.randn(64, 64).half(), torch.randn(64, 64).half()
    choices = []
    for _ in range(2):
        run_matmul(a, b)
        choices.append(matmul.best_config)
        counts = dict(matmul.configs_timings)
        simulator.deactivate_triton()                       # forgets what it has tuned
        assert not matmul.cache
        simulator.activate_triton()
    assert choices[0] is choices[1] is min(CONFIGS, key=lambda c: counts[c][0])
    with simulator.trace() as t:
        run_matmul(a, b)
    assert counts[choices[0]][0] == t.launches[-1].steps


# ---- dropout: random numbers that depend on a seed and a place alone

@triton.jit
def dropout(x, y, n, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.rand(seed, i) > p
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.where(keep, v / (1 - p), 0.0), mask=i < n)


def philox(counter, key, rounds=10):
    """Philox4x32 (Salmon et al., SC 2011): (n, 4) uint32, (2,) uint32 -> (n, 4) uint32"""
    x = [c.astype(np.uint64) for c in counter.T]
    k0, k1 = (int(k) for k in key)
    low = np.uint64(0xFFFFFFFF)
    for _ in range(rounds):
        p0, p1 = x[0] * np.uint64(0xD2511F53), x[2] * np.uint64(0xCD9E8D57)
        x = [(p1 >> np.uint64(32)) ^ x[1] ^ np.uint64(k0), p1 & low,
             (p0 >> np.uint64(32)) ^ x[3] ^ np.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(x, 1).astype(np.uint32)


def test_philox_agrees_with_its_known_answer():
    """From the test vectors that come with the paper's library."""
    zero = philox(np.zeros((1, 4), np.uint32), np.zeros(2, np.uint32))
    assert [f"{v:08x}" for v in zero[0]] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


@triton.jit
def random_words(words, uniform, normal, seed, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b, c, d = tl.randint4x(seed, i)
    tl.store(words + i * 4, a)
    tl.store(words + i * 4 + 1, b)
    tl.store(words + i * 4 + 2, c)
    tl.store(words + i * 4 + 3, d)
    tl.store(uniform + i, tl.rand(seed, i))
    tl.store(normal + i, tl.randn(seed, i))


def test_random_numbers_are_philox():
    n, seed = 1024, 12345678901
    words = torch.empty(n, 4, dtype=torch.int32)
    uniform, normal = torch.empty(n), torch.empty(n)
    random_words[(1,)](words, uniform, normal, seed, BLOCK=n)
    counter = np.zeros((n, 4), np.uint32)
    counter[:, 0] = np.arange(n)
    want = philox(counter, [seed & 0xFFFFFFFF, seed >> 32])
    assert (words.numpy().view(np.uint32) == want).all()
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.05
    assert abs(normal.mean()) < 0.15 and abs(normal.std() - 1) < 0.1


def test_dropout_by_seed():
    x = torch.randn(1000) + 10
    y, again, other = (torch.empty_like(x) for _ in range(3))
    for out, seed in (y, 123), (again, 123), (other, 512):
        dropout[(4,)](x, out, 1000, 0.3, seed, BLOCK=256)
    assert torch.equal(y, again) and not torch.equal(y, other)
    assert 0.2 < (y == 0).float().mean() < 0.4
    assert torch.allclose(y[y != 0], x[y != 0] / 0.7)


# ---- layer norm: the gradients of the weights are summed under locks

@triton.jit
def layer_norm_forward(x, y, w, b, mean, rstd, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + c, mask=c < N, other=0.0).to(tl.float32)
    m = tl.sum(v, axis=0) / N
    d = tl.where(c < N, v - m, 0.0)
    r = 1 / tl.sqrt(tl.sum(d * d, axis=0) / N + eps)
    tl.store(mean + row, m)
    tl.store(rstd + row, r)
    tl.store(y + row * stride + c, d * r * tl.load(w + c, mask=c < N) + tl.load(b + c, mask=c < N),
             mask=c < N)


@triton.jit
def layer_norm_backward(dx, dy, dw, db, x, w, mean, rstd, lock, stride, N, GROUP: tl.constexpr,
                        BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    inside = c < N
    v = tl.load(x + row * stride + c, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(dy + row * stride + c, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(w + c, mask=inside, other=0.0).to(tl.float32)
    r = tl.load(rstd + row)
    hat = tl.where(inside, (v - tl.load(mean + row)) * r, 0.0)
    gw = weight * g
    tl.store(dx + row * stride + c,
             (gw - hat * (tl.sum(hat * gw, axis=0) / N) - tl.sum(gw, axis=0) / N) * r, mask=inside)
    mine = row % GROUP
    lock += mine
    count = lock + GROUP
    dw += mine * N + c
    db += mine * N + c
    part_w, part_b = g * hat, g
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(count) == 0:                                 # the first to come finds rubbish
        tl.atomic_xchg(count, 1)
    else:
        part_w += tl.load(dw, mask=inside)
        part_b += tl.load(db, mask=inside)
    tl.store(dw, part_w, mask=inside)
    tl.store(db, part_b, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def sum_rows(part, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    c = tl.program_id(0) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, M, BM):
        r = start + tl.arange(0, BM)
        acc += tl.load(part + r[:, None] * N + c[None, :], (r[:, None] < M) & (c[None, :] < N), 0.0)
    tl.store(out + c, tl.sum(acc, axis=0), mask=c < N)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b, eps):
        M, N = x.shape
        y, mean, rstd = torch.empty_like(x), torch.empty(M), torch.empty(M)
        layer_norm_forward[(M,)](x, y, w, b, mean, rstd, x.stride(0), N, eps,
                                 BLOCK=triton.next_power_of_2(N), num_warps=4)
        ctx.save_for_backward(x, w, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w, mean, rstd = ctx.saved_tensors
        (M, N), groups = x.shape, 4
        dx, lock = torch.empty_like(dy), torch.zeros(2 * groups, dtype=torch.int32)
        parts, grads = torch.full((2, groups, N), torch.nan), torch.empty(2, N)
        layer_norm_backward[(M,)](dx, dy, parts[0], parts[1], x, w, mean, rstd, lock, x.stride(0),
                                  N, GROUP=groups, BLOCK=triton.next_power_of_2(N), num_warps=4)
        for part, grad in zip(parts, grads, strict=True):
            sum_rows[(triton.cdiv(N, 64),)](part, grad, groups, N, BM=8, BN=64)
        return dx, grads[0], grads[1], None


def test_layer_norm_forward_and_backward():
    x = (3 * torch.randn(30, 100) + 1).requires_grad_()
    w, b = torch.rand(100, requires_grad=True), torch.rand(100, requires_grad=True)
    dy = torch.randn(30, 100)
    y = LayerNorm.apply(x, w, b, 1e-5)
    got = torch.autograd.grad(y, (x, w, b), dy)
    reference = torch.nn.functional.layer_norm(x, (100,), w, b, 1e-5)
    want = torch.autograd.grad(reference, (x, w, b), dy)
    close(y, reference, 1e-5)
    for g, r in zip(got, want, strict=True):
        close(g, r, 1e-5)


# ---- attention, forward and backward

@triton.jit
def attention_forward(q, k, v, o, lse, scale, N, D: tl.constexpr, BM: tl.constexpr,
                      BN: tl.constexpr, CAUSAL: tl.constexpr, FP8: tl.constexpr):
    head = tl.program_id(1)
    rows, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    base = head * N * D
    x = tl.load(q + base + rows[:, None] * D + d[None, :])
    m = tl.full((BM,), -float("inf"), tl.float32)
    s = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    log2_scale = scale * 1.44269504
    end = (tl.program_id(0) + 1) * BM if CAUSAL else N
    for start in tl.range(0, end, BN, num_stages=2):
        cols = start + tl.arange(0, BN)
        keys = tl.load(k + base + cols[None, :] * D + d[:, None])
        score = tl.dot(x, keys) * log2_scale
        if CAUSAL:
            score = tl.where(rows[:, None] >= cols[None, :], score, -float("inf"))
        m_new = tl.maximum(m, tl.max(score, 1))
        p = tl.math.exp2(score - m_new[:, None])
        fix = tl.math.exp2(m - m_new)
        s = s * fix + tl.sum(p, 1)
        values = tl.load(v + base + cols[:, None] * D + d[None, :])
        p = p.to(tl.float8e5) if FP8 else p.to(values.dtype)
        acc = tl.dot(p, values, acc * fix[:, None])
        m = m_new
    tl.store(o + base + rows[:, None] * D + d[None, :], (acc / s[:, None]).to(o.dtype.element_ty))
    tl.store(lse + head * N + rows, m + tl.math.log2(s))


@triton.jit
def attention_delta(o, do, delta, N, D: tl.constexpr, BM: tl.constexpr):
    rows, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    at = tl.program_id(1) * N * D + rows[:, None] * D + d[None, :]
    product = tl.load(o + at).to(tl.float32) * tl.load(do + at).to(tl.float32)
    tl.store(delta + tl.program_id(1) * N + rows, tl.sum(product, axis=1))


@triton.jit
def attention_backward(q, k, v, do, dq, dk, dv, lse, delta, scale, N, D: tl.constexpr,
                       BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    """One program for each block of keys; it adds to dq with atomics."""
    head = tl.program_id(1)
    cols, d = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, D)
    base = head * N * D
    at = base + cols[:, None] * D + d[None, :]
    keys, values = tl.load(k + at), tl.load(v + at)
    acc_k, acc_v = tl.zeros((BN, D), tl.float32), tl.zeros((BN, D), tl.float32)
    first = tl.program_id(0) * BN // BM * BM if CAUSAL else 0
    for start in range(first, N, BM):
        rows = start + tl.arange(0, BM)
        here = base + rows[:, None] * D + d[None, :]
        x, g = tl.load(q + here), tl.load(do + here)
        score = tl.dot(keys, tl.trans(x)) * (scale * 1.44269504)            # (BN, BM)
        p = tl.math.exp2(score - tl.load(lse + head * N + rows)[None, :])
        if CAUSAL:
            p = tl.where(rows[None, :] >= cols[:, None], p, 0.0)
        acc_v = tl.dot(p.to(g.dtype), g, acc_v)
        dp = tl.dot(values, tl.trans(g))
        ds = (p * (dp - tl.load(delta + head * N + rows)[None, :])).to(x.dtype)
        acc_k = tl.dot(ds, x, acc_k)
        tl.atomic_add(dq + here, tl.dot(tl.trans(ds), keys) * scale)
    tl.store(dk + at, (acc_k * scale).to(dk.dtype.element_ty))
    tl.store(dv + at, acc_v.to(dv.dtype.element_ty))


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        H, N, D = q.shape
        o, lse = torch.empty_like(q), torch.empty(H, N)
        attention_forward[(N // 32, H)](q, k, v, o, lse, D**-0.5, N, D=D, BM=32, BN=16,
                                        CAUSAL=causal, FP8=False)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal = causal
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        H, N, D = q.shape
        delta, dq = torch.empty(H, N), torch.zeros(H, N, D)
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        do = do.contiguous()
        attention_delta[(N // 32, H)](o, do, delta, N, D=D, BM=32)
        attention_backward[(N // 32, H)](q, k, v, do, dq, dk, dv, lse, delta, D**-0.5, N, D=D,
                                         BM=16, BN=32, CAUSAL=ctx.causal)
        return dq.to(q.dtype), dk, dv, None


@pytest.mark.parametrize("causal, dtype, tolerance", [
    (True, torch.float16, 3e-3), (False, torch.bfloat16, 2e-2)])
def test_attention_forward_and_backward(causal, dtype, tolerance):
    q, k, v, do = (torch.randn(2, 64, 32).to(dtype) for _ in range(4))
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    o = Attention.apply(q, k, v, causal)
    got = torch.autograd.grad(o, (q, k, v), do)
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    reference = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=causal)
    want = torch.autograd.grad(reference, exact, do.double())
    close(o, reference, tolerance)
    for g, r in zip(got, want, strict=True):
        close(g, r, 2 * tolerance)


def test_attention_in_fp8():
    simulator.activate_triton(capability=89)
    q, k, v = (torch.randn(1, 64, 32).to(torch.float8_e5m2) for _ in range(3))
    o, lse = torch.empty(1, 64, 32, dtype=torch.float16), torch.empty(1, 64)
    attention_forward[(2, 1)](q, k, v, o, lse, 32**-0.5, 64, D=32, BM=32, BN=32, CAUSAL=False,
                              FP8=True)
    want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    close(o, want, 0.15)                                    # probabilities in two bits of mantissa


# ---- libdevice

@triton.jit
def asin_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, libdevice.asin(tl.load(x + i, mask=i < n)), mask=i < n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_libdevice_asin(dtype):
    x = 2 * torch.rand(300, dtype=dtype) - 1
    y = torch.empty_like(x)
    asin_kernel[(2,)](x, y, 300, BLOCK=256)
    assert torch.allclose(y, torch.asin(x), rtol=2e-6, atol=1e-6)


# ---- grouped GEMM: a table of addresses

@triton.jit
def grouped_matmul(a_table, b_table, c_table, sizes, groups, PROGRAMS: tl.constexpr,
                   BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tile, before = tl.program_id(0), 0
    for g in range(groups):
        M, N, K = tl.load(sizes + g * 3), tl.load(sizes + g * 3 + 1), tl.load(sizes + g * 3 + 2)
        across = tl.cdiv(N, BN)
        tiles = tl.cdiv(M, BM) * across
        while tile >= before and tile < before + tiles:
            a = tl.load(a_table + g).to(tl.pointer_type(tl.float16))
            b = tl.load(b_table + g).to(tl.pointer_type(tl.float16))
            c = tl.load(c_table + g).to(tl.pointer_type(tl.float16))
            m = (tile - before) // across * BM + tl.arange(0, BM)
            n = (tile - before) % across * BN + tl.arange(0, BN)
            k = tl.arange(0, BK)
            acc = tl.zeros((BM, BN), tl.float32)
            for start in range(0, K, BK):
                x = tl.load(a + m[:, None] * K + (start + k)[None, :])
                w = tl.load(b + (start + k)[:, None] * N + n[None, :])
                acc = tl.dot(x, w, acc)
            tl.store(c + m[:, None] * N + n[None, :], acc.to(tl.float16))
            tile += PROGRAMS
        before += tiles


def addresses(tensors):
    return torch.tensor([t.data_ptr() for t in tensors])


def test_grouped_matmul_by_addresses():
    shapes = [(32, 32, 32), (64, 32, 48), (32, 96, 16)]
    a = [torch.randn(M, K).half() for M, N, K in shapes]
    b = [torch.randn(K, N).half() for M, N, K in shapes]
    c = [torch.zeros(M, N).half() for M, N, K in shapes]
    sizes = torch.tensor(shapes, dtype=torch.int32)
    grouped_matmul[(4,)](addresses(a), addresses(b), addresses(c), sizes, 3, PROGRAMS=4, BM=32,
                         BN=32, BK=16)
    for x, w, got in zip(a, b, c, strict=True):
        close(got, x.double() @ w.double(), 1e-3)


def test_an_address_beyond_its_tensor_is_an_error():
    a, b = torch.randn(32, 32).half(), torch.randn(32, 32).half()
    c = torch.zeros(32, 32).half()
    sizes = torch.tensor([[32, 32, 4096]], dtype=torch.int32)
    with pytest.raises(simulator.KernelError) as caught:
        grouped_matmul[(1,)](addresses([a]), addresses([b]), addresses([c]), sizes, 1, PROGRAMS=4,
                             BM=32, BN=32, BK=16)
    assert caught.value.kind == "out_of_bounds" and caught.value.path == __file__


# ---- persistent matmul, block pointers, tensor descriptors

@triton.jit
def matmul_persistent(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                      GROUP: tl.constexpr, PROGRAMS: tl.constexpr):
    tl.assume(K > 0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=True,
                         warp_specialize=False):
        i, j = place_in_group(tile, tiles_m, tiles_n, GROUP)
        m, n, k = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
        rows = tl.max_contiguous(tl.multiple_of(tl.where(m < M, m, 0), BM), BM)
        columns = tl.max_contiguous(tl.multiple_of(tl.where(n < N, n, 0), BN), BN)
        acc = tl.zeros((BM, BN), tl.float32)
        for start in range(0, K, BK):
            x = tl.load(a + rows[:, None] * K + (start + k)[None, :], (start + k < K)[None, :], 0.0)
            w = tl.load(b + (start + k)[:, None] * N + columns[None, :], (start + k < K)[:, None],
                        0.0)
            acc = tl.dot(x, w, acc)
        tl.store(c + m[:, None] * N + n[None, :], acc.to(tl.float16),
                 (m < M)[:, None] & (n < N)[None, :])


@triton.jit
def matmul_block_pointers(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    at = tl.make_block_ptr(a, (M, K), (K, 1), (i, 0), (BM, BK), (1, 0))
    bt = tl.make_block_ptr(b, (K, N), (N, 1), (0, j), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(at, boundary_check=(0, 1), padding_option="zero"),
                     tl.load(bt, boundary_check=(0, 1), padding_option="zero"), acc)
        at = tl.advance(at, (0, BK))
        bt = tl.advance(bt, (BK, 0))
    ct = tl.make_block_ptr(c, (M, N), (N, 1), (i, j), (BM, BN), (1, 0))
    tl.store(ct, acc.to(tl.float16), boundary_check=(0, 1))


@triton.jit
def matmul_descriptors(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Descriptors made on the device. b: (N, K)"""
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    right = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    out = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(left.load([tl.program_id(0) * BM, k]),
                     right.load([tl.program_id(1) * BN, k]).T, acc)
    out.store([tl.program_id(0) * BM, tl.program_id(1) * BN], acc.to(tl.float16))


@triton.jit
def matmul_host_descriptors(left, right, out, K, BM: tl.constexpr, BN: tl.constexpr,
                            BK: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(left.load([tl.program_id(0) * BM, k]),
                     right.load([tl.program_id(1) * BN, k]).T, acc)
    out.store([tl.program_id(0) * BM, tl.program_id(1) * BN], acc.to(tl.float16))


@pytest.mark.parametrize("way", ["persistent", "block pointers", "descriptors", "host descriptors"])
def test_matmul_in_other_ways(way):
    M, N, K = 72, 40, 56
    a, b = torch.randn(M, K).half(), torch.randn(K, N).half()
    c = torch.zeros(M, N).half()
    tiles = {"BM": 32, "BN": 32, "BK": 16}
    if way == "persistent":
        matmul_persistent[(4,)](a, b, c, M, N, K, **tiles, GROUP=2, PROGRAMS=4)
    elif way == "block pointers":
        try:
            matmul_block_pointers[(3, 2)](a, b, c, M, N, K, **tiles)
        except triton.CompilationError as error:
            if "removed" not in str(error):
                raise
            pytest.skip("not proven here: this Triton has no block pointers any more")
    elif way == "descriptors":
        matmul_descriptors[(3, 2)](a, b.T.contiguous(), c, M, N, K, **tiles)
    else:
        matmul_host_descriptors[(3, 2)](
            TensorDescriptor.from_tensor(a, [32, 16]),
            TensorDescriptor.from_tensor(b.T.contiguous(), [32, 16]),
            TensorDescriptor.from_tensor(c, [32, 32]), K, **tiles)
    close(c, a.double() @ b.double(), 1e-3)


# ---- block-scaled matmul: on GPUs without it Triton unpacks the numbers before the product

@triton.jit
def scaled_matmul(a, a_scale, b, b_scale, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k, s = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K), tl.arange(0, K // 32)
    x = tl.load(a + m[:, None] * K + k[None, :])
    w = tl.load(b + k[:, None] * N + n[None, :])
    xs = tl.load(a_scale + m[:, None] * (K // 32) + s[None, :])
    ws = tl.load(b_scale + n[:, None] * (K // 32) + s[None, :])
    acc = tl.dot_scaled(x, xs, "e5m2", w, ws, "e5m2")
    tl.store(c + m[:, None] * N + n[None, :], acc)


def test_block_scaled_matmul():
    a, b = torch.randn(32, 64).to(torch.float8_e5m2), torch.randn(64, 32).to(torch.float8_e5m2)
    exponents = [torch.randint(124, 130, (32, 2), dtype=torch.uint8) for _ in range(2)]
    c = torch.empty(32, 32)
    scaled_matmul[(1,)](a, exponents[0], b, exponents[1], c, M=32, N=32, K=64)
    x, w = (2.0 ** (e.double() - 127) for e in exponents)
    want = (a.double() * x.repeat_interleave(32, 1)) @ (b.double() * w.T.repeat_interleave(32, 0))
    close(c, want, 1e-2)
