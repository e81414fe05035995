"""Triton's arithmetic, library and conversions on each type, against torch and numpy."""

import linecache

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402

from lab import simulator  # noqa: E402

from .triton_types import EPSILON, FLOATS, INTEGERS, integers, name  # noqa: E402

pytestmark = pytest.mark.usefixtures("simulated_triton")


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
