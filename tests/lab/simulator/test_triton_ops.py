"""Triton's operations on whole blocks at random shapes and types, against torch and numpy."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from lab import simulator  # noqa: E402

from .triton_types import FLOATS, integers, name  # noqa: E402

pytestmark = pytest.mark.usefixtures("simulated_triton")


# ---- reductions and scans

@triton.jit
def combine_welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    delta = mean_b - mean_a
    share = tl.where(n == 0, 0.0, n_b / n)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@triton.jit
def reduce_kernel(x, out, where, R: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr,
                  OTHER: tl.constexpr):
    r, c, o = tl.arange(0, R), tl.arange(0, C), tl.arange(0, OTHER)
    v = tl.load(x + r[:, None] * C + c[None, :])
    tl.store(out + o, tl.sum(v, AXIS))
    tl.store(out + OTHER + o, tl.max(v, AXIS))
    tl.store(out + 2 * OTHER + o, tl.min(v, AXIS))
    low, at = tl.min(v, AXIS, return_indices=True)
    tl.store(where + o, at)
    tl.store(where + OTHER + o, tl.argmax(v, AXIS))
    if v.dtype.is_int():
        tl.store(out + 3 * OTHER + o, tl.xor_sum(v, AXIS))
    else:
        w = v.to(tl.float32)
        mean, m2, _ = tl.reduce((w, w * 0, w * 0 + 1), AXIS, combine_welford)
        tl.store(out + 3 * OTHER + o, m2)


@pytest.mark.parametrize("R, C, axis, dtype, warps", [
    (1, 64, 1, torch.float32, 1), (16, 4, 0, torch.float32, 4), (64, 128, 1, torch.float16, 8),
    (32, 32, 0, torch.int32, 2), (128, 2, 1, torch.int64, 4), (4, 256, 0, torch.int16, 4)])
def test_reductions(R, C, axis, dtype, warps, rng):
    if dtype.is_floating_point:
        x = torch.from_numpy(rng.normal(size=(R, C))).to(dtype)
    else:
        x = torch.from_numpy(rng.integers(-100, 100, (R, C))).to(dtype)
    other = R if axis == 1 else C
    kind = torch.float32 if dtype.is_floating_point else torch.int64
    out, where = torch.zeros(4, other, dtype=kind), torch.zeros(2, other, dtype=torch.int32)
    reduce_kernel[(1,)](x, out, where, R, C, axis, other, num_warps=warps)
    wide = x.double() if dtype.is_floating_point else x.long()
    last = ((wide - wide.mean(axis, keepdim=True))**2).sum(axis) if dtype.is_floating_point else \
        torch.from_numpy(np.bitwise_xor.reduce(wide.numpy(), axis=axis))
    want = torch.stack([wide.sum(axis), wide.amax(axis), wide.amin(axis), last]).double()
    assert torch.allclose(out.double(), want, rtol=2e-3 if dtype == torch.float16 else 1e-5,
                          atol=2e-2 if dtype == torch.float16 else 1e-5)
    assert (where[0].numpy() == wide.numpy().argmin(axis)).all()
    assert (where[1].numpy() == wide.numpy().argmax(axis)).all()


@triton.jit
def affine(a, b, c, d):
    """(x -> a x + b), then (x -> c x + d)"""
    return a * c, b * c + d


@triton.jit
def scan_kernel(x, y, out, R: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr,
                REVERSE: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, tl.cumsum(b, AXIS, reverse=REVERSE))
    tl.store(out + R * C + at, tl.cumprod(a, AXIS, reverse=REVERSE))
    _, last = tl.associative_scan((a, b), AXIS, affine, reverse=REVERSE)
    tl.store(out + 2 * R * C + at, last)


@pytest.mark.parametrize("R, C, axis, reverse, warps", [
    (1, 256, 1, False, 4), (64, 8, 0, False, 4), (8, 64, 1, True, 2), (32, 32, 0, True, 1)])
def test_scans(R, C, axis, reverse, warps):
    x, y = torch.rand(R, C) + 0.5, torch.randn(R, C)
    out = torch.zeros(3, R, C)
    scan_kernel[(1,)](x, y, out, R, C, axis, reverse, num_warps=warps)
    a, b = ((v.flip(axis) if reverse else v).double() for v in (x, y))
    state, states = torch.zeros_like(a.select(axis, 0)), []
    for i in range(a.shape[axis]):
        state = a.select(axis, i) * state + b.select(axis, i)
        states.append(state)
    want = [b.cumsum(axis), a.cumprod(axis), torch.stack(states, axis)]
    for i, v in enumerate(want):
        v = v.flip(axis) if reverse else v
        assert torch.allclose(out[i].double(), v, rtol=1e-4, atol=1e-4), i


# ---- whole programs at random shapes

@triton.jit
def program_kernel(x, rows, out, A: tl.constexpr, B: tl.constexpr, OP: tl.constexpr,
                   AXIS: tl.constexpr):
    """Centre a matrix, transpose it, scan or sort it, and reduce it along an axis."""
    a, b = tl.arange(0, A), tl.arange(0, B)
    v = tl.load(x + a[:, None] * B + b[None, :]).to(tl.float32)
    v = tl.trans(v - tl.sum(v, 1, keep_dims=True) / B)      # (B, A)
    if OP == "cumsum":
        v = tl.cumsum(v, AXIS)
    elif OP == "sort":
        v = tl.sort(v)
    elif OP == "max":
        v = tl.maximum(v, tl.max(v, AXIS, keep_dims=True) - 1)
    elif OP == "gather":
        v = tl.gather(v, (b[:, None] * 7 + a[None, :] * 3) % (B if AXIS == 0 else A), AXIS)
    tl.store(out + b[:, None] * A + a[None, :], v)
    tl.store(rows + (a if AXIS == 0 else b), tl.sum(v * v, AXIS))


def program_in_torch(x, op, axis):
    A, B = x.shape
    v = x.double()
    v = (v - v.sum(1, keepdim=True) / B).T
    if op == "cumsum":
        v = v.cumsum(axis)
    elif op == "sort":
        v = v.sort(1).values
    elif op == "max":
        v = torch.maximum(v, v.amax(axis, keepdim=True) - 1)
    elif op == "gather":
        at = torch.arange(B)[:, None] * 7 + torch.arange(A)[None, :] * 3
        v = v.gather(axis, at % v.shape[axis])
    return v, (v * v).sum(axis)


def check_random_program(rng):
    A, B = (int(2 ** rng.integers(0, 7)) for _ in range(2))
    op, axis = str(rng.choice(["cumsum", "sort", "max", "gather"])), int(rng.integers(2))
    dtype, warps = FLOATS[rng.integers(3)], int(2 ** rng.integers(4))
    x = torch.from_numpy(rng.normal(size=(A, B))).to(dtype)
    out, rows = torch.zeros(B, A), torch.zeros(A if axis == 0 else B)
    program_kernel[(1,)](x, rows, out, A, B, op, axis, num_warps=warps)
    for got, want in zip((out, rows), program_in_torch(x, op, axis), strict=True):
        assert torch.allclose(got.double(), want, rtol=1e-4, atol=1e-4), \
            f"{A} x {B} {dtype}, {op} along {axis}, {warps} warps"


@pytest.mark.parametrize("number", range(8))
def test_random_programs(number):
    check_random_program(np.random.default_rng(number))


@pytest.mark.slow
def test_many_random_programs():
    for number in range(100, 180):
        check_random_program(np.random.default_rng(number))


# ---- order

@triton.jit
def order_kernel(x, out, best, R: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    r, c, k = tl.arange(0, R), tl.arange(0, C), tl.arange(0, K)
    v = tl.load(x + r[:, None] * C + c[None, :])
    tl.store(out + r[:, None] * C + c[None, :], tl.sort(v))
    tl.store(out + R * C + r[:, None] * C + c[None, :], tl.sort(v, descending=True))
    tl.store(out + 2 * R * C + r[:, None] * C + c[None, :], tl.flip(v, 1))
    tl.store(best + r[:, None] * K + k[None, :], tl.topk(v, K))


@pytest.mark.parametrize("R, C, K, dtype", [
    (1, 128, 8, torch.float32), (8, 16, 4, torch.int32), (4, 64, 16, torch.float16)])
def test_sort_flip_and_topk(R, C, K, dtype):
    x = (100 * torch.randn(R, C)).to(dtype)
    out, best = torch.zeros(3, R, C, dtype=dtype), torch.zeros(R, K, dtype=dtype)
    order_kernel[(1,)](x, out, best, R, C, K)
    assert torch.equal(out[0], x.sort(1).values) and torch.equal(out[2], x.flip(1))
    assert torch.equal(out[1], x.sort(1, descending=True).values)
    assert torch.equal(best, x.topk(K).values)


@triton.jit
def pick_kernel(x, index, picked, counts, n: tl.constexpr, bins: tl.constexpr, m: tl.constexpr):
    i, j = tl.arange(0, n), tl.arange(0, m)
    at = tl.load(index + j)
    tl.store(picked + j, tl.gather(tl.load(x + i), at, 0))
    tl.store(counts + tl.arange(0, bins), tl.histogram(at % bins, bins))
    tl.store(counts + bins + tl.arange(0, bins), tl.histogram(at % bins, bins, mask=j < m // 2))


@pytest.mark.parametrize("n, bins, m, warps", [(64, 16, 128, 4), (256, 64, 64, 2), (8, 8, 512, 4)])
def test_gather_and_histogram(n, bins, m, warps):
    x, index = torch.randn(n), torch.randint(0, n, (m,), dtype=torch.int32)
    picked, counts = torch.zeros(m), torch.zeros(2, bins, dtype=torch.int32)
    pick_kernel[(1,)](x, index, picked, counts, n, bins, m, num_warps=warps)
    assert torch.equal(picked, x[index])
    assert torch.equal(counts[0].long(), torch.bincount(index % bins, minlength=bins))
    assert torch.equal(counts[1].long(), torch.bincount(index[:m // 2] % bins, minlength=bins))


# ---- shapes

@triton.jit
def shape_kernel(x, y, out, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    a, b, c = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    at = a[:, None, None] * (B * C) + b[None, :, None] * C + c[None, None, :]
    n: tl.constexpr = A * B * C
    v, w = tl.load(x + at), tl.load(y + at)
    flat = tl.arange(0, n)
    tl.store(out + flat, tl.ravel(tl.permute(v, (2, 0, 1))))
    tl.store(out + n + flat, tl.reshape(v, (n,)))
    tl.store(out + 2 * n + tl.arange(0, 2 * n), tl.ravel(tl.join(v, w)))
    tl.store(out + 4 * n + tl.arange(0, 2 * n), tl.ravel(tl.interleave(v, w)))
    first, second = tl.split(tl.join(v, w))
    tl.store(out + 6 * n + flat, tl.ravel(first - second))
    tl.store(out + 7 * n + flat, tl.ravel(tl.broadcast_to(tl.sum(v, 1, keep_dims=True),
                                                          (A, B, C))))


@pytest.mark.parametrize("A, B, C", [(2, 4, 8), (16, 1, 4), (4, 32, 2)])
def test_shapes(A, B, C):
    x, y = torch.randn(A, B, C), torch.randn(A, B, C)
    out = torch.zeros(8 * A * B * C)
    shape_kernel[(1,)](x, y, out, A, B, C)
    both = torch.stack([x, y], -1).flatten()
    want = [x.permute(2, 0, 1).flatten(), x.flatten(), both, both, (x - y).flatten(),
            x.sum(1, keepdim=True).expand(A, B, C).flatten()]
    assert torch.allclose(out, torch.cat(want), atol=1e-5)


# ---- products

@triton.jit
def dot_kernel(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, HOW: tl.constexpr,
               OUT: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x, w = tl.load(a + m[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + n[None, :])
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(x, w, input_precision=HOW, out_dtype=OUT))


@pytest.mark.parametrize("dtype, how, out, tolerance", [
    (torch.float32, "ieee", tl.float32, 1e-6), (torch.float32, "tf32", tl.float32, 2e-3),
    (torch.float32, "tf32x3", tl.float32, 1e-6), (torch.float16, None, tl.float32, 1e-6),
    (torch.float16, None, tl.float16, 5e-3), (torch.bfloat16, None, tl.float32, 1e-6),
    (torch.int8, None, tl.int32, 0), (torch.float64, None, tl.float64, 1e-14),
    (torch.float8_e5m2, None, tl.float32, 1e-6)], ids=str)
def test_dot(dtype, how, out, tolerance, rng):
    M, N, K = (int(rng.choice([16, 32, 64])) for _ in range(3))
    if dtype == torch.int8:
        a, b = (torch.from_numpy(rng.integers(-128, 128, s).astype(np.int8))
                for s in ((M, K), (K, N)))
    else:
        a, b = torch.randn(M, K).to(dtype), torch.randn(K, N).to(dtype)
    c = torch.zeros(M, N, dtype=getattr(torch, {"fp32": "float32", "fp16": "float16",
                                                "int32": "int32", "fp64": "float64"}[out.name]))
    dot_kernel[(1,)](a, b, c, M, N, K, how, out)
    want = a.double() @ b.double()
    assert (c.double() - want).abs().max() <= tolerance * want.abs().max()
    if how == "tf32":                                       # what the tensor core drops shows
        assert (c.double() - want).abs().max() > 1e-5 * want.abs().max()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=name)
def test_dot_in_fp8_of_sm_89(dtype):
    simulator.activate_triton(capability=89)
    a, b = torch.randn(32, 64).to(dtype), torch.randn(64, 16).to(dtype)
    c = torch.zeros(32, 16)
    dot_kernel[(1,)](a, b, c, 32, 16, 64, None, tl.float32)
    want = a.double() @ b.double()
    assert (c.double() - want).abs().max() <= 1e-5 * want.abs().max()


@triton.jit
def batch_kernel(a, b, c, B: tl.constexpr, M: tl.constexpr):
    i, m = tl.arange(0, B)[:, None, None], tl.arange(0, M)
    at = i * M * M + m[None, :, None] * M + m[None, None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))


def test_batched_dot():
    a, b, c = torch.randn(4, 16, 16).half(), torch.randn(4, 16, 16).half(), torch.zeros(4, 16, 16)
    batch_kernel[(1,)](a, b, c, 4, 16)
    assert torch.allclose(c, a.float() @ b.float(), atol=1e-3)


# ---- atomics

@triton.jit
def atomic_kernel(x, at, out, old, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v, where = tl.load(x + i, i < n), out + tl.load(at + i, i < n)
    if OP == "add":
        before = tl.atomic_add(where, v, mask=i < n)
    elif OP == "max":
        before = tl.atomic_max(where, v, mask=i < n)
    elif OP == "min":
        before = tl.atomic_min(where, v, mask=i < n)
    elif OP == "and":
        before = tl.atomic_and(where, v, mask=i < n)
    elif OP == "or":
        before = tl.atomic_or(where, v, mask=i < n)
    elif OP == "xor":
        before = tl.atomic_xor(where, v, mask=i < n)
    else:
        before = tl.atomic_xchg(where, v, mask=i < n)
    tl.store(old + i, before, i < n)


COMBINE = {"add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and,
           "or": np.bitwise_or, "xor": np.bitwise_xor}


@pytest.mark.parametrize("op, dtype", [
    *((op, torch.int32) for op in COMBINE), ("add", torch.int64), ("max", torch.int64),
    ("min", torch.uint32), ("max", torch.uint64), ("xor", torch.int64), ("add", torch.float32),
    ("max", torch.float32), ("min", torch.float32), ("add", torch.float64), ("max", torch.float64),
    ("add", torch.float16)])
def test_atomics(op, dtype, rng):
    n, places = 300, 7
    if dtype.is_floating_point:
        x = torch.from_numpy(rng.integers(-20, 20, n) / 4).to(dtype)
    else:
        x = integers(rng, dtype, n)
    at = torch.from_numpy(rng.integers(0, places, n).astype(np.int32))
    out, old = torch.zeros(places, dtype=dtype), torch.zeros(n, dtype=dtype)
    atomic_kernel[(3,)](x, at, out, old, n, OP=op, BLOCK=128)
    want = np.zeros(places, x.numpy().dtype)
    with np.errstate(over="ignore"):
        COMBINE[op].at(want, at.numpy(), x.numpy())
    assert (out.numpy() == want).all()
    for place in range(places):                             # somebody found the first value
        assert 0 in old[at == place].tolist()


def test_atomic_bfloat16_add():
    """bf16 has no native atomic on sm_80: Triton loops on compare-and-swap or refuses."""
    x, at = torch.ones(256, dtype=torch.bfloat16), torch.arange(256, dtype=torch.int32) % 4
    out, old = torch.zeros(4, dtype=torch.bfloat16), torch.zeros(256, dtype=torch.bfloat16)
    atomic_kernel[(2,)](x, at, out, old, 256, OP="add", BLOCK=128)
    assert torch.equal(out, torch.full((4,), 64.0, dtype=torch.bfloat16))


def test_exchange_gives_every_value_away_once():
    x, at = torch.arange(1, 301, dtype=torch.int32), torch.zeros(300, dtype=torch.int32)
    out, old = torch.zeros(1, dtype=torch.int32), torch.zeros(300, dtype=torch.int32)
    atomic_kernel[(3,)](x, at, out, old, 300, OP="xchg", BLOCK=128)
    assert sorted([*old.tolist(), out.item()]) == list(range(301))


@triton.jit
def ticket_kernel(counter, lock, order, SEM: tl.constexpr, SCOPE: tl.constexpr):
    while tl.atomic_cas(lock, 0, 1, sem=SEM, scope=SCOPE) != 0:
        pass
    ticket = tl.load(counter, volatile=True)
    tl.store(counter, ticket + 1)
    tl.store(order + ticket, tl.program_id(0))
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0, sem="release")


@pytest.mark.parametrize("sem, scope", [("acq_rel", "gpu"), ("acquire", "sys")])
def test_a_lock_lets_one_program_in_at_a_time(sem, scope):
    counter, lock = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    order = torch.zeros(8, dtype=torch.int32)
    ticket_kernel[(8,)](counter, lock, order, sem, scope, num_warps=1)
    assert counter.item() == 8 and sorted(order.tolist()) == list(range(8))


@triton.jit
def count_kernel(count, lock, TAKE: tl.constexpr, GIVE: tl.constexpr, VOLATILE: tl.constexpr):
    while tl.atomic_cas(lock, 0, 1, sem=TAKE) != 0:
        pass
    tl.store(count, tl.load(count, volatile=VOLATILE) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0, sem=GIVE)


@pytest.mark.parametrize("take, give, says", [
    ("relaxed", "relaxed", "a flag tells only what a thread did before its last fence"),
    ("acquire", "relaxed", "a flag tells only what a thread did before its last fence"),
    ("relaxed", "release", "this block has read a flag that tells of it, but has not fenced since"),
    ("acquire", "release", ""), ("acq_rel", "acq_rel", "")])
@pytest.mark.parametrize("volatile", [False, True])
def test_a_lock_orders_what_is_done_within(take, give, says, volatile):
    """Both what is read and what is written: taken with acquire, given back with release."""
    count, lock = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with simulator.trace() as trace:
        count_kernel[(8,)](count, lock, take, give, volatile, num_warps=1)
    warnings = trace.launches[0].warnings
    assert count.item() == 8
    assert all("ordering not proven" in w and says in w for w in warnings)
    assert ["is read here" in w for w in warnings] == ([True, False] if says else [])


@triton.jit
def choose_kernel(a, b, out, which):
    """The compiler chooses between the places of the two parameters, and loads one of them."""
    i = tl.arange(0, 32)
    tl.store(out + i, tl.load(tl.where(tl.load(which) == 1, a + i, b + i)))


@pytest.mark.parametrize("which", [0, 1])
def test_a_choice_between_two_arrays(which):
    a, out = torch.arange(32.0), torch.zeros(32)
    choose_kernel[(1,)](a, -a, out, torch.tensor([which]))
    assert torch.equal(out, a if which else -a)
