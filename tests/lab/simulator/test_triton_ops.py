"""Triton's operations at random shapes and types, against torch and numpy."""

import linecache

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402

from lab import simulator  # noqa: E402

INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16,
            torch.uint32, torch.uint64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EPSILON = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float32: 2e-6, torch.float64: 1e-12}


@pytest.fixture(autouse=True)
def simulated_triton():
    simulator.activate_triton()
    torch.manual_seed(0)
    yield
    simulator.deactivate_triton()


def name(dtype):
    return str(dtype).removeprefix("torch.")


def integers(rng, dtype, shape):
    """Of the whole range, with the ends and zero among them."""
    limits = np.iinfo(name(dtype))
    values = rng.integers(limits.min, limits.max, shape, dtype=name(dtype), endpoint=True)
    values.reshape(-1)[:3] = limits.min, limits.max, 0
    return torch.from_numpy(values)


# ---- element by element

@triton.jit
def integer_kernel(x, y, shift, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + i, i < n), tl.load(y + i, i < n, other=1)
    s = tl.load(shift + i, i < n)
    tl.store(out + i, a + b, i < n)
    tl.store(out + n + i, a - b, i < n)
    tl.store(out + 2 * n + i, a * b, i < n)
    tl.store(out + 3 * n + i, a // b, i < n)                # rounds towards zero, as C does
    tl.store(out + 4 * n + i, a % b, i < n)
    tl.store(out + 5 * n + i, (a & b) | (a ^ ~b), i < n)
    tl.store(out + 6 * n + i, a << s, i < n)
    tl.store(out + 7 * n + i, a >> s, i < n)
    tl.store(out + 8 * n + i, tl.where(a < b, tl.minimum(a, b), tl.maximum(a, b) - 1), i < n)
    tl.store(out + 9 * n + i, tl.abs(a), i < n)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name)
def test_integers(dtype, rng):
    n, bits = 300, 8 * dtype.itemsize
    x, y = integers(rng, dtype, n), integers(rng, dtype, n)
    a, b = x.numpy(), y.numpy()
    b[b == 0] = 7
    a[b.astype(np.int64) == -1] = 5                         # the least number / -1 overflows
    shift = torch.from_numpy(rng.integers(0, bits, n).astype(name(dtype)))
    out = torch.zeros(10, n, dtype=dtype)
    integer_kernel[(2,)](x, y, shift, out, n, BLOCK=256)
    s = shift.numpy()
    with np.errstate(over="ignore"):
        q = np.array([abs(int(i)) // abs(int(j)) * (1 if (int(i) < 0) == (int(j) < 0) else -1)
                      for i, j in zip(a, b, strict=True)], dtype=a.dtype)
        want = [a + b, a - b, a * b, q, a - q * b, (a & b) | (a ^ ~b), a << s, a >> s,
                np.where(a < b, np.minimum(a, b), np.maximum(a, b) - a.dtype.type(1)), np.abs(a)]
    for i, row in enumerate(want):
        assert (out[i].numpy() == row).all(), f"output {i}"


@triton.jit
def float_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + i, i < n, other=1.0), tl.load(y + i, i < n, other=1.0)
    tl.store(out + i, a + b * a - b, i < n)
    tl.store(out + n + i, a / b, i < n)
    tl.store(out + 2 * n + i, tl.fma(a, b, a), i < n)
    tl.store(out + 3 * n + i, tl.maximum(tl.minimum(a, b), -a), i < n)
    tl.store(out + 4 * n + i, tl.where(a < b, tl.abs(a), -b), i < n)
    tl.store(out + 5 * n + i, tl.clamp(a, b * 0 - 1, b * 0 + 1), i < n)
    w, v = a.to(tl.float32), b.to(tl.float32)
    if a.dtype == tl.float64:
        w, v = a, b
    tl.store(out + 6 * n + i, tl.exp(w) + tl.log(v), i < n)
    tl.store(out + 7 * n + i, tl.sin(w) * tl.cos(v), i < n)
    tl.store(out + 8 * n + i, tl.sqrt(v) + tl.rsqrt(v), i < n)
    tl.store(out + 9 * n + i, tl.floor(w) + 2 * tl.ceil(v), i < n)
    tl.store(out + 10 * n + i, tl.erf(w) + tl.exp2(w) - tl.log2(v), i < n)
    tl.store(out + 11 * n + i, libdevice.tanh(w) + libdevice.atan2(w, v), i < n)
    tl.store(out + 12 * n + i, libdevice.pow(v, w) + libdevice.lgamma(v), i < n)
    tl.store(out + 13 * n + i, tl.sigmoid(w), i < n)


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_floats(dtype):
    n = 200
    x, y = torch.randn(n).to(dtype), (torch.rand(n) + 0.5).to(dtype)
    out = torch.zeros(14, n, dtype=dtype)
    float_kernel[(2,)](x, y, out, n, BLOCK=128)
    a, b = x.double(), y.double()
    want = [a + b * a - b, a / b, a * b + a, torch.maximum(torch.minimum(a, b), -a),
            torch.where(a < b, a.abs(), -b), a.clamp(-1, 1), a.exp() + b.log(), a.sin() * b.cos(),
            b.sqrt() + b.rsqrt(), a.floor() + 2 * b.ceil(), a.erf() + a.exp2() - b.log2(),
            a.tanh() + torch.atan2(a, b), b.pow(a) + b.lgamma(), a.sigmoid()]
    for i, row in enumerate(want):
        error = (out[i].double() - row).abs() / (1 + row.abs())
        assert error.max() < 4 * EPSILON[dtype], f"output {i}"


@triton.jit
def nan_kernel(x, y, out, n: tl.constexpr):
    i = tl.arange(0, n)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, tl.maximum(a, b))
    tl.store(out + n + i, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 2 * n + i, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 3 * n + i, tl.where(a != a, 1.0, 0.0))
    tl.store(out + 4 * n + i, tl.math.div_rn(a, b))
    tl.store(out + 5 * n + i, tl.math.sqrt_rn(a))


def test_nan_infinity_and_exact_rounding():
    x = torch.tensor([1.0, torch.nan, 3.0, torch.nan, torch.inf, -torch.inf, 0.1, 2.0])
    y = torch.tensor([torch.nan, 2.0, 1.0, torch.nan, -torch.inf, 0.0, 0.3, 3.0])
    out = torch.zeros(6, 8)
    nan_kernel[(1,)](x, y, out, 8)
    want = [torch.fmax(x, y), torch.maximum(x, y), torch.minimum(x, y), x.isnan().float(), x / y,
            x.sqrt()]
    assert torch.equal(out.nan_to_num(-77.0), torch.stack(want).nan_to_num(-77.0))


UNARY = {                       # libdevice's name -> torch's, where it has another
    "asin": "", "acos": "", "atan": "", "sinh": "", "cosh": "", "asinh": "", "acosh": "",
    "atanh": "", "tan": "", "expm1": "", "log1p": "", "log10": "", "erfc": "", "erfinv": "",
    "erfcx": "special.erfcx", "normcdf": "special.ndtr", "normcdfinv": "special.ndtri",
    "j0": "special.bessel_j0", "j1": "special.bessel_j1", "y0": "special.bessel_y0",
    "y1": "special.bessel_y1", "exp10": "", "cbrt": "", "rcbrt": "", "sinpi": "", "cospi": "",
    "trunc": "", "rint": "round", "tgamma": "", "round": "",
}
OWN = {"exp10": lambda x: 10**x, "cbrt": lambda x: x**(1 / 3), "rcbrt": lambda x: x**(-1 / 3),
       "sinpi": lambda x: (torch.pi * x).sin(), "cospi": lambda x: (torch.pi * x).cos(),
       "tgamma": lambda x: x.lgamma().exp(), "round": lambda x: (x + 0.5).floor()}
BINARY = ("libdevice.hypot(v, w)", "libdevice.fmod(w, v)", "libdevice.copysign(v, w - 0.5)",
          "libdevice.nextafter(v, w)", "libdevice.ldexp(v, 3)")
BITS = ("libdevice.popc(b)", "libdevice.clz(b)", "libdevice.brev(b)", "libdevice.ffs(b)",
        "libdevice.mulhi(b, b)", "tl.umulhi(b.to(tl.uint32), b.to(tl.uint32)).to(tl.int32)")


def library_kernel():
    """A kernel that calls everything above, written as text."""
    calls = [*(f"libdevice.{f}(v{' + 1' if f == 'acosh' else ''})" for f in UNARY), *BINARY]
    lines = ["@triton.jit", "def kernel(x, y, out, bits, n: tl.constexpr):",
             "    i = tl.arange(0, n)",
             "    v, w, b = tl.load(x + i), tl.load(y + i), tl.load(bits + i)"]
    lines += [f"    tl.store(out + {k} * n + i, {call})" for k, call in enumerate(calls)]
    lines += [f"    tl.store(bits + {k} * n + i, {call})" for k, call in enumerate(BITS, 1)]
    text = "\n".join(lines) + "\n"
    linecache.cache["<library>"] = len(text), None, text.splitlines(keepends=True), "<library>"
    names = {"triton": triton, "tl": tl, "libdevice": libdevice, "__name__": __name__}
    exec(compile(text, "<library>", "exec"), names)
    return names["kernel"]


def torchs(name):
    place = torch
    for part in (UNARY[name] or name).split("."):
        place = getattr(place, part)
    return place


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name)
def test_libdevice(dtype, rng):
    n = 128
    x, y = (torch.rand(n, dtype=dtype) * 0.98 + 0.01 for _ in range(2))
    bits = torch.zeros(7, n, dtype=torch.int32)
    bits[0] = integers(rng, torch.int32, n)
    out = torch.zeros(len(UNARY) + len(BINARY), n, dtype=dtype)
    library_kernel()[(1,)](x, y, out, bits, n)
    a, b = x.double(), y.double()
    for i, function in enumerate(UNARY):
        argument = (x + 1).double() if function == "acosh" else a
        want = OWN[function](a) if function in OWN else torchs(function)(argument)
        error = (out[i].double() - want).abs() / want.abs().clamp(min=1e-3)
        assert error.max() < (1e-5 if dtype == torch.float32 else 1e-12), function
    want = [torch.hypot(a, b), torch.fmod(b, a), torch.copysign(a, b - 0.5), torch.nextafter(x, y),
            8 * a]
    for i, row in enumerate(want):
        assert torch.allclose(out[len(UNARY) + i].double(), row.double(), rtol=1e-6), i
    b = bits[0].tolist()
    words = [f"{v & 0xFFFFFFFF:032b}" for v in b]
    assert bits[1].tolist() == [w.count("1") for w in words]
    assert bits[2].tolist() == [32 - len(w.lstrip("0")) for w in words]
    assert [v & 0xFFFFFFFF for v in bits[3].tolist()] == [int(w[::-1], 2) for w in words]
    assert bits[4].tolist() == [w[::-1].find("1") + 1 for w in words]
    assert bits[5].tolist() == [v * v >> 32 for v in b]
    assert [v & 0xFFFFFFFF for v in bits[6].tolist()] == [(v & 0xFFFFFFFF)**2 >> 32 for v in b]


# ---- conversions

@triton.jit
def convert_kernel(x, to, n: tl.constexpr):
    i = tl.arange(0, n)
    v = tl.load(x + i)
    for k in tl.static_range(len(to)):
        tl.store(to[k] + i, v.to(to[k].dtype.element_ty))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool, torch.float8_e5m2], ids=name)
def test_conversions(dtype):
    n = 64
    x = torch.arange(-16, 16).repeat(2) if dtype.is_signed else torch.arange(n)
    x = (x / 4).to(dtype) if dtype.is_floating_point else x.to(dtype)
    if dtype == torch.float8_e5m2:
        kinds = [torch.float16, torch.bfloat16, torch.float32]
    else:
        kinds = [*FLOATS, torch.int8, torch.int32, torch.int64]
    out = tuple(torch.zeros(n, dtype=k) for k in kinds)
    convert_kernel[(1,)](x, out, n)
    for got in out:
        assert torch.equal(got.float(), x.to(got.dtype).float()), got.dtype


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=name)
def test_fp8_of_sm_80(dtype):
    """There is no instruction for it; Triton does it with integers."""
    x = (torch.randn(256) * 5).to(dtype)
    out = torch.zeros(256, dtype=torch.float8_e5m2)
    convert_kernel[(1,)](x, (out,), 256)
    assert_nearest(out, x)


def assert_nearest(narrow, x):
    """Ties may go either way, and so may what is nearly a tie: Triton goes by way of float16."""
    error, least = ((v.float() - x.float()).abs() for v in (narrow, x.to(narrow.dtype)))
    assert (error <= 1.02 * least).all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=name)
def test_fp8_of_sm_89(dtype):
    """All values of an 8-bit type, and halves that must be rounded to it."""
    simulator.activate_triton(capability=89)
    x = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    out = tuple(torch.zeros(256, dtype=k) for k in (torch.float16, torch.bfloat16, torch.float32))
    convert_kernel[(1,)](x, out, 256)
    for got in out:
        same = torch.isclose(got.float(), x.float(), rtol=0, atol=0, equal_nan=True)
        if got.dtype == torch.bfloat16:                     # Triton multiplies: no inf, no nan
            same |= ~x.float().isfinite()
        assert same.all(), got.dtype
    for wide in (torch.float16, torch.bfloat16, torch.float32):
        values = (torch.randn(1024) * 20).to(wide)
        narrow = torch.zeros(1024, dtype=dtype)
        convert_kernel[(1,)](values, (narrow,), 1024)
        assert_nearest(narrow, values)


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
def choose_kernel(a, b, out, which):
    """The compiler chooses between the places of the two parameters, and loads one of them."""
    i = tl.arange(0, 32)
    tl.store(out + i, tl.load(tl.where(tl.load(which) == 1, a + i, b + i)))


@pytest.mark.parametrize("which", [0, 1])
def test_a_choice_between_two_arrays(which):
    a, out = torch.arange(32.0), torch.zeros(32)
    choose_kernel[(1,)](a, -a, out, torch.tensor([which]))
    assert torch.equal(out, a if which else -a)
