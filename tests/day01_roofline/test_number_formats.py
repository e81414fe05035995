"""What r04 gives, held to torch, ml_dtypes and the simulator, bit by bit."""

import numpy as np
import pytest
import torch

from day01_roofline import r04_number_formats as lesson
from day01_roofline.r04_number_formats import (
    decode,
    dot,
    encode,
    from_mxfp4,
    from_nvfp4,
    pack_int4,
    pack_trits,
    round_log,
    round_scaled,
    snr,
    to_mxfp4,
    to_nvfp4,
    unpack_trits,
)
from tests.day01_roofline.test_r04_number_formats import (
    FORMATS,
    by_book,
    form,
    numbers,
    rounded,
    top_code,
)


def specials(name):
    """Numbers where formats differ: zeros with a sign, infinities, and the end of the range."""
    if name == "fp32":
        end = [2.0**128 - 2.0**104, 2.0**128 - 2.0**103]
    else:
        v = numbers(name)
        end = [v[-1], v[-1] + (v[-1] - v[-2]) / 2]
    end += [np.nextafter(end[1], np.inf), np.nextafter(end[1], 0), 3 * end[0]]
    return np.array([0.0, np.inf, *end])


@pytest.mark.parametrize("name", FORMATS)
def test_encode_at_the_end_of_the_range(name):
    """What an overflow becomes, and that it begins half a spacing beyond the largest number."""
    E, M, kind = FORMATS[name]
    x, f, top = specials(name), form(lesson, name), top_code(name)
    over = top if kind == "none" else top + 1
    tie = over if top & 1 else top                      # e4m3 ends on an even code: 464 is 448
    want = np.array([0, over, top, tie, over, top, over])
    minus = 1 << E + M
    assert encode(f, x).tolist() == want.tolist()
    assert encode(f, -x).tolist() == (want | minus).tolist()
    assert encode(f, x, True).tolist() == [0, *[top] * 6]
    if kind == "none":
        with pytest.raises(ValueError, match=f"x holds a NaN, and {name} has none"):
            encode(f, np.array([np.nan]))
    else:
        quiet = top + 1 + (2 ** (M - 1) if kind == "ieee" else 0)
        assert encode(f, np.array([np.nan, -np.nan]), True).tolist() in (
            [quiet, quiet | minus], [quiet | minus, quiet])


def floats(name, rng):
    """float32 numbers: all numbers of the format, the ties between them, their neighbours, and a
    million bits at random, NaN left out."""
    with np.errstate(all="ignore"):
        v = numbers(name)
        near = np.concatenate((v, (v[1:] + v[:-1]) / 2, specials(name))).astype(np.float32)
        some = rng.integers(0, 2**32, 1_000_000).astype(np.uint32).view(np.float32)
    near = np.concatenate([np.nextafter(near, np.float32(s)) for s in (-np.inf, np.inf)] + [near])
    x = np.concatenate((near, -near, some))
    return x[~np.isnan(x)]


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m1", "bf16", "fp16"])
def test_ml_dtypes_agrees(rng, name):
    """Every code, and the rounding of every number, tie and neighbour: bit for bit."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="not proven here: no ml_dtypes")
    theirs = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "fp16": np.float16,
              "e2m1": ml_dtypes.float4_e2m1fn, "bf16": ml_dtypes.bfloat16}[name]
    E, M, kind = FORMATS[name]
    raw, f = (np.uint16 if E + M == 15 else np.uint8), form(lesson, name)
    every = np.arange(2 ** (1 + E + M))
    with np.errstate(all="ignore"):
        want = every.astype(raw).view(theirs).astype(np.float64)
    got = decode(f, every)
    np.testing.assert_array_equal(got, want)
    real = ~np.isnan(want)
    assert (np.signbit(got) == np.signbit(want))[real].all()

    x = floats(name, rng)
    with np.errstate(all="ignore"):
        codes = x.astype(theirs).view(raw).astype(np.int64)
    np.testing.assert_array_equal(encode(f, x.astype(np.float64)), codes)


TORCH = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "fp16": "float16", "bf16": "bfloat16"}


@pytest.mark.parametrize("name", TORCH)
def test_torch_agrees(rng, name):
    """Likewise.
    A number beyond 464 becomes 448 in e4m3 of torch 2.13; older ones made it NaN."""
    theirs, (E, M, _) = getattr(torch, TORCH[name]), FORMATS[name]
    raw, f = (torch.int16 if E + M == 15 else torch.uint8), form(lesson, name)
    every = np.arange(2 ** (1 + E + M))
    want = torch.from_numpy(every).to(raw).view(theirs).double().numpy()
    np.testing.assert_array_equal(decode(f, every), want)

    x = floats(name, rng)
    codes = torch.from_numpy(x).to(theirs).view(raw).numpy().astype(np.int64) & len(every) - 1
    got = [encode(f, x.astype(np.float64), saturate) for saturate in (False, True)]
    inside = np.abs(x) <= 464 if name == "e4m3" else np.full(len(x), True)
    np.testing.assert_array_equal(got[0][inside], codes[inside])
    if name == "e4m3":
        assert any((mine == codes).all() for mine in got)


def test_the_simulator_agrees_on_tf32(rng):
    """tf32 is the upper 19 bits of fp32.
    Ours goes to even; cvt.rna, away from 0, only on ties."""
    from lab.simulator.rounding import f32_to_tf32

    x = floats("tf32", rng)
    bits = x.view(np.uint32)
    f = form(lesson, "tf32")
    mine = encode(f, x.astype(np.float64))
    np.testing.assert_array_equal(mine, f32_to_tf32(x, "rn") >> 13)
    tie = bits & 0x1FFF == 0x1000
    away = f32_to_tf32(x, "rna") >> 13
    np.testing.assert_array_equal(mine[~tie], away[~tie])
    assert (mine != away)[tie].any()
    np.testing.assert_array_equal(decode(f, mine[:1000]).astype(np.float32),
                                  (mine[:1000] << 13).astype(np.uint32).view(np.float32))


def test_double_to_fp32(rng):
    x = np.ldexp(rng.normal(size=200_000), rng.integers(-160, 131, 200_000))
    with np.errstate(over="ignore"):
        want = x.astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(encode(form(lesson, "fp32"), x), want)


def test_the_lesson_has_these_formats():
    mine = lesson.FORMATS
    assert set(mine) == set(FORMATS)
    for name, (E, M, kind) in FORMATS.items():
        assert (mine[name].E, mine[name].M, mine[name].specials) == (E, M, kind)


def test_mxfp4_is_ml_dtypes(rng):
    """Scales are powers of two by e8m0, elements e2m1; a block of zeros, and one that saturates."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="not proven here: no ml_dtypes")
    x = rng.normal(size=32 * 40) * 2.0 ** np.repeat(rng.integers(-90, 90, 40), 32)
    x[:32], x[32] = 0, 7.9
    elements, scales = to_mxfp4(x)
    assert elements.shape == (40, 32) and scales.shape == (40,) and scales[0] == 0
    factor = scales.astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    most = np.abs(x.reshape(40, 32)).max(1)
    assert ((4 * factor <= most) & (most < 8 * factor))[1:].all()
    want = np.clip(x.reshape(40, 32) / factor[:, None], -6, 6).astype(ml_dtypes.float4_e2m1fn)
    assert (elements == want.view(np.uint8)).all()
    back = (want.astype(np.float64) * factor[:, None]).ravel()
    assert (from_mxfp4(elements, scales) == back).all()


def test_nvfp4(rng):
    """Each block's largest number becomes 6 scales; the scales are e4m3, the largest is 448."""
    x = rng.normal(size=16 * 50) * 2.0 ** np.repeat(rng.integers(-6, 6, 50), 16)
    x[:16] = 0
    elements, scales, whole = to_nvfp4(x)
    assert elements.shape == (50, 16) and scales.shape == (50,)
    factor = np.array([by_book("e4m3", int(c)) for c in scales])
    assert factor.max() == 448 and factor[0] == 0
    most = np.abs(x.reshape(50, 16)).max(1)
    assert np.abs(6 * factor * whole - most).max() <= most.max() / 16
    back = from_nvfp4(elements, scales, whole).reshape(50, 16)
    error, step = np.abs(back - x.reshape(50, 16)), (factor * whole)[:, None]
    assert (error <= step * (1 + 1e-9)).all()           # e2m1's largest spacing is 2


def test_nvfp4_of_fp32s_smallest_numbers():
    x = np.linspace(-1e-42, 1e-42, 32)
    elements, scales, whole = to_nvfp4(x)
    assert whole == 2.0 ** -149
    assert np.abs(from_nvfp4(elements, scales, whole) - x).max() < 2e-43
    assert not from_nvfp4(*to_nvfp4(np.zeros(32))).any()


def test_trits():
    every = np.array(np.meshgrid(*[[-1, 0, 1]] * 5)).reshape(5, -1).T.ravel()      # all 243 bytes
    packed = pack_trits(every)
    assert packed.dtype == np.uint8 and len(set(packed.tolist())) == 3**5 and packed.max() == 242
    assert (unpack_trits(packed) == every).all()


def test_int4_lies_as_in_k15(rng):
    from layer1_kernels import quantize_weight

    q = np.append(rng.integers(-7, 8, 63), 7)
    packed, _ = quantize_weight(torch.from_numpy(q).float()[None], 4, 64)
    assert (packed[0].numpy() == pack_int4(q)).all()


@pytest.mark.parametrize("kind", ["e4m3", "e2m1", 8, 4])
def test_round_scaled(rng, kind):
    x = rng.normal(size=96)
    x[64:] = 0
    most = np.repeat(np.abs(x.reshape(3, 32)).max(1), 32)
    top = 2 ** (kind - 1) - 1 if isinstance(kind, int) else numbers(kind)[-1]
    ratio = np.divide(x, most, out=np.zeros(96), where=most > 0) * top
    want = np.round(ratio) if isinstance(kind, int) else \
        np.copysign(numbers(kind)[rounded(kind, np.abs(ratio))], ratio)
    got = round_scaled(kind if isinstance(kind, int) else form(lesson, kind), x, 32)
    np.testing.assert_allclose(got, want * most / top, rtol=1e-12)
    if kind == "e4m3":
        theirs = torch.from_numpy(ratio).float().to(torch.float8_e4m3fn).double().numpy()
        np.testing.assert_allclose(got, theirs * most / top, rtol=1e-12)


@pytest.mark.parametrize("bits, steps", [(8, 8), (4, 1), (6, 3)])
def test_round_log(rng, bits, steps):
    """The nearest by ratio, searched for; 0 from half a step below the least on."""
    x = rng.normal(size=300) * 2.0 ** rng.integers(-12, 3, 300)
    x[7] = 0
    top = np.abs(x).max()
    sizes = top * 2.0 ** (-np.arange(2 ** (bits - 1)) / steps)      # the last of them is not there
    with np.errstate(divide="ignore"):
        away = np.abs(np.log2(np.abs(x))[:, None] - np.log2(sizes))
    sizes[-1] = 0
    want = np.copysign(sizes[away.argmin(1)], x) * (x != 0)
    np.testing.assert_allclose(round_log(x, bits, steps), want, rtol=1e-12, atol=0)
    assert (round_log(np.zeros(3), bits, steps) == 0).all()


@pytest.mark.parametrize("dtype, name", [(np.float16, "fp16"), (np.float32, "fp32")])
def test_dot(rng, dtype, name):
    """NumPy adds in the same precision, one at a time."""
    a, b = rng.uniform(size=(2, 3, 300))
    products = a.astype(np.float16).astype(np.float64) * b.astype(np.float16).astype(np.float64)
    want, total = np.empty((3, 300)), np.zeros(3, dtype)
    for k in range(300):
        total = (total.astype(np.float64) + products[:, k]).astype(dtype)
        want[:, k] = total
    got = dot(a, b, form(lesson, "fp16"), form(lesson, name))
    assert (got == want).all()


@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3"])
def test_a_sum_of_ones_stops(name):
    """At 2^(M + 1) the spacing is 2: one more is a tie, and goes to even."""
    ones, f = np.ones((1, 600 if name != "fp16" else 2200)), form(lesson, name)
    assert dot(ones, ones, f, f)[0, -1] == 2 ** (FORMATS[name][1] + 1)


def test_snr(rng):
    x, noise = rng.normal(size=(2, 10_000))
    assert snr(x, x + 0.1 * noise) == pytest.approx(
        20 + 10 * np.log10((x**2).sum() / (noise**2).sum()))


@pytest.mark.parametrize("name, arguments, says", [
    ("decode", (form(lesson, "e2m1"), np.array([16])), "decode: expected integers from 0 to"),
    ("decode", (form(lesson, "e2m1"), np.array([1.5])), "integers from 0 to 15, got float64"),
    ("pack_int4", (np.array([-8, 0]),), "pack_int4: expected integers from -7 to 7, got"),
    ("pack_int4", (np.array([1, 0, 2]),), r"q has shape \(3,\), expected \(n,\), n even"),
    ("pack_trits", (np.array([1, 0]),), r"q has shape \(2,\), expected \(n,\), n a mul"),
    ("quantize_int", (np.ones(2), 1, 1.0), "an integer of 1 bits, expected 2 or more"),
    ("unpack_trits", (np.array([243]),), "expected integers from 0 to 242"),
    ("spacing", (form(lesson, "fp16"), np.array([np.inf])), "spacing: x holds inf or NaN"),
    ("to_mxfp4", (np.ones(33),), r"to_mxfp4: x has shape \(33,\), expected \(K,\), K a"),
    ("to_nvfp4", (np.array([np.nan] * 16),), "to_nvfp4: x holds inf or NaN"),
    ("round_scaled", (8, np.ones(33), 32), r"K a multiple of 32"),
    ("best_scale", (np.array([np.nan]), 8, [1.0]), "best_scale: x holds inf or NaN")])
def test_bad_input(name, arguments, says):
    with pytest.raises(ValueError, match=says):
        getattr(lesson, name)(*arguments)


def test_what_other_formats_make_of_overflow_and_nan():
    """The lesson's table. torch's e4m3: test_torch_agrees."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="not proven here: no ml_dtypes")
    with np.errstate(all="ignore"):
        assert np.isnan(np.float32(1000).astype(ml_dtypes.float8_e4m3fn).astype(float))
        assert np.isinf(np.float32(1e6).astype(ml_dtypes.float8_e5m2).astype(float))
        zero = np.float32(np.nan).astype(ml_dtypes.float4_e2m1fn).astype(float)
    assert zero == 0 and np.signbit(zero)
    assert torch.tensor(1e6).to(torch.float8_e5m2).double() == np.inf
    e4m3, e5m2 = form(lesson, "e4m3"), form(lesson, "e5m2")
    assert np.isnan(lesson.round_to(e4m3, 1000)) and np.isinf(lesson.round_to(e5m2, 1e6))
    assert lesson.round_to(e5m2, 1e6, saturate=True) == 57344


# ---- sentences of r04 whose numbers no cell prints


def others_beside(outlier, kind, block=None):
    """The quality in dB of 4,095 Gaussian numbers that share an array with one outlier."""
    x = np.append(np.random.default_rng(0).normal(size=4095), outlier)
    return snr(x[:-1], round_scaled(kind, x, block)[:-1])


def test_03_in_e4m3_is_rounded_up():
    """The picture of one rounding: 0.3 is 1.2 · 2^-2 and becomes 0.3125, 1.010 in binary."""
    f = form(lesson, "e4m3")
    code = int(encode(f, np.array([0.3]))[0])
    assert code == 0b0_0101_010 and decode(f, np.array([code]))[0] == 0.3125
    below = decode(f, np.array([code - 1]))[0]
    assert 0.3 - below > 0.3125 - 0.3                   # more than half is dropped


def test_integers_are_a_slope():
    """Half of the positive int8 numbers lie from 64 to 127; there its steps are twice bf16's."""
    positive = np.arange(1, 128)
    assert (positive >= 64).sum() / len(positive) == pytest.approx(0.5, abs=0.005)
    assert 1 / lesson.spacing(form(lesson, "bf16"), np.array([127.0]))[0] == 2


def test_bits_at_the_end_of_16_bit_formats():
    """fp16 ends before 256²; bf16 reaches almost as far as fp32."""
    fp16, bf16, fp32 = (lesson.largest(form(lesson, name)) for name in ("fp16", "bf16", "fp32"))
    assert fp16 == 65504 < 256**2 and 0.99 < bf16 / fp32 < 1
    assert FORMATS["bf16"][1] == 7 and FORMATS["fp32"][1] - FORMATS["tf32"][1] == 13


def test_cutting_doubles_the_largest_error_of_tf32(rng):
    """A tensor core that ignores the low 13 bits of fp32 is off by up to a spacing, not half."""
    from lab.simulator.rounding import f32_to_tf32

    x = rng.uniform(1, 2, 200_000).astype(np.float32)
    cut = (x.view(np.uint32) & 0xFFFFE000).view(np.float32)
    near = f32_to_tf32(x, "rn").view(np.float32)
    worst = [np.abs(y.astype(float) - x).max() for y in (cut, near)]
    assert worst[0] / worst[1] == pytest.approx(2, rel=0.01)


def test_what_an_outlier_costs_each_format():
    """int8 loses a bit at each doubling, ten dB more than e4m3 without an outlier; e4m3 loses from
    2^13 on; e5m2 has 6 dB less than e4m3 and loses nothing."""
    e4m3, e5m2 = form(lesson, "e4m3"), form(lesson, "e5m2")
    int8 = [others_beside(2.0**k, 8) for k in range(2, 8)]
    assert np.diff(int8) == pytest.approx(np.full(5, -6.0), abs=0.35)
    x = np.random.default_rng(0).normal(size=4096)
    alone = [snr(x, round_scaled(kind, x)) for kind in (8, e4m3, e5m2)]
    assert alone[0] == pytest.approx(41, abs=0.7)
    assert alone[0] - alone[1] == pytest.approx(10, abs=0.7)
    assert alone[1] - alone[2] == pytest.approx(6, abs=0.3)
    near, far = ([others_beside(2.0**k, f) for k in (4, 12, 14, 16)] for f in (e4m3, e5m2))
    assert near[0] - near[1] < 0.1 < 0.5 < near[1] - near[2] < 5 < near[1] - near[3]
    assert max(far) - min(far) < 0.1


def test_blocks_limit_the_damage_to_31_neighbours():
    x = np.append(np.random.default_rng(0).normal(size=4095), 1e4)
    plain = np.append(x[:-1], 0.5)
    for kind in (4, form(lesson, "e2m1")):
        spoilt, calm = (round_scaled(kind, numbers, 32) for numbers in (x, plain))
        assert (spoilt[:-32] == calm[:-32]).all() and not spoilt[-32:-1].any()


def test_the_finer_scales_of_nvfp4_are_worth_1_5_db():
    x = np.random.default_rng(0).normal(size=4096)
    fine, coarse = from_nvfp4(*to_nvfp4(x)), from_mxfp4(*to_mxfp4(x))
    assert snr(x, fine) - snr(x, coarse) == pytest.approx(1.5, abs=0.3)
    assert (4 + 8 / 16) - (4 + 8 / 32) == 0.25


def test_a_logarithm_of_4_bits_has_seven_sizes():
    """They end at a 64th of the largest."""
    x = np.append(2.0 ** -np.linspace(0, 12, 500), 1.0)
    sizes = np.unique(round_log(x, 4, 1))
    assert sizes[0] == 0 and len(sizes) == 1 + 7 and sizes[1] == 1 / 64
