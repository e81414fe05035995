"""Graders of r04. The oracle reads a code as text, bit by bit, and rounds by looking for the
nearest number in the list of all. Given parts are checked by torch, ml_dtypes and the simulator."""

from functools import cache

import numpy as np
import pytest

from lab.judge.adversarial import views
from lab.judge.compare import brief
from lab.judge.subject import Raised

# name: E, M, specials, as the lesson's Float takes them
FORMATS = {"e4m3": (4, 3, "nan"), "e5m2": (5, 2, "ieee"), "e2m1": (2, 1, "none"),
           "fp16": (5, 10, "ieee"), "bf16": (8, 7, "ieee"), "tf32": (8, 10, "ieee"),
           "fp32": (8, 23, "ieee")}
SPACED = ("e5m2", *(name for name in FORMATS if name != "e5m2"))  # in e4m3 E and M are neighbours
SMALL = ("e4m3", "e5m2", "e2m1")
LISTED = (*SMALL, "fp16", "bf16", "tf32")       # all of their numbers fit into a list


def by_book(name, code):
    """The number that a code stands for, read from its bits as text."""
    E, M, specials = FORMATS[name]
    text = f"{code:0{1 + E + M}b}"
    sign, e, m = -1.0 if text[0] == "1" else 1.0, int(text[1:1 + E], 2), int(text[1 + E:], 2)
    if specials == "ieee" and text[1:1 + E] == "1" * E:
        return sign * np.inf if m == 0 else np.nan
    if specials == "nan" and "0" not in text[1:]:
        return np.nan
    bias = 2 ** (E - 1) - 1
    return sign * ((1 + m / 2**M) * 2.0 ** (e - bias) if e else m / 2**M * 2.0 ** (1 - bias))


@cache
def numbers(name):
    """All finite numbers from 0 up, so that the place of a number is its code."""
    E, M, _ = FORMATS[name]
    found = np.array([by_book(name, code) for code in range(2 ** (E + M))])
    return found[np.isfinite(found)]


def beyond(name):
    """(numbers, the first of their codes) from the largest finite number on, had the exponents no
    end: those of five more exponents."""
    E, M, specials = FORMATS[name]
    top = 2 ** (E + M) - 1 - {"ieee": 2**M, "nan": 1, "none": 0}[specials]
    e, m = np.divmod(np.arange(top, min(top + 5 * 2**M, top + 20_000) + 1), 2**M)
    return np.ldexp(1 + m / 2**M, e + 1 - 2 ** (E - 1)), top


def given(subject, name):
    return subject.Float(name, *FORMATS[name])


def as_codes(got, what):
    assert isinstance(got, (int, np.integer, np.ndarray)) and np.asarray(got).dtype.kind in "iu", \
        f"{what}: got {type(got).__name__} {np.asarray(got).dtype}, expected integers, the codes"
    return got


def layouts(x):
    """{layout: the same numbers, or some of them}"""
    grid = x[:12].reshape(3, 4)
    return {"a matrix": grid, "a matrix, columns first": views(grid)["columns first"],
            "every second number of a list": x[::2], "a list from the back": x[::-1],
            "three axes": x[:8].reshape(2, 2, 2), "one number, no axis": x[1:2].reshape(()),
            "one number in a list": x[1:2], "no number": x[:0], "a matrix without rows": grid[:0]}


def any_shape(subject, reference, name, x, what):
    """Numbers of any shape and layout, one after the other in one process, keep their places."""
    f = [given(side, "e4m3") for side in (subject, reference)]
    for how, part in layouts(x).items():
        got, want = (getattr(side, name)(form, part)
                     for side, form in zip((subject, reference), f, strict=True))
        got = as_array(got, f"{name}, {what}: {how}")
        assert got.shape == part.shape, f"{name}, {what}: {how}, shape {part.shape}: the result " \
            f"has shape {got.shape}, expected the same"
        assert (got == want).all(), f"{name}, {what}: {how}: got {brief(got.tolist())}, expected " \
            f"{brief(np.asarray(want).tolist())}"


def as_array(got, what):
    assert isinstance(got, (int, float, np.generic, np.ndarray)), \
        f"{what}: got {brief(got)}, expected numbers of the same shape"
    return np.asarray(got)


# ---- decode


def test_predict_largest_e4m3(subject):
    import torch

    got, want = subject.predict_largest_e4m3(), torch.finfo(torch.float8_e4m3fn).max
    near = {240: "IEEE gives a whole exponent to inf and NaN, e4m3 one code only",
            480: "that would be the code that is NaN",
            57344: "that is the largest of e5m2"}.get(
                got, "take the last code but one: e = 15, m = 6, and the bias is 7")
    assert got == want, f"largest number of e4m3: {got} is not it; {near}"


def parts(name):
    """{part of the codes: codes}."""
    E, M, specials = FORMATS[name]
    if name == "fp32":
        every = np.unique(np.linspace(0, 2**32 - 1, 50_001).astype(np.int64))
    else:
        every = np.arange(2 ** (1 + E + M))
    magnitude, top = every & 2 ** (E + M) - 1, len(numbers(name)) - 1 if name != "fp32" else \
        (2**E - 1 << M) - 1
    low = magnitude < 2**M
    return {"normal": every[~low & (magnitude <= top)], "subnormal": every[low],
            "special": every[magnitude > top]}


@pytest.mark.parametrize("name", FORMATS)
def test_decode(subject, agree, name):
    E, M, _ = FORMATS[name]
    bias = 2 ** (E - 1) - 1
    f = given(subject, name)
    for part, code in parts(name).items():
        if not code.size:
            continue
        want = np.array([by_book(name, int(c)) for c in code])
        magnitude, sign = code & 2 ** (E + M) - 1, np.where(code >> E + M, -1.0, 1.0)
        e, m = magnitude >> M, magnitude & 2**M - 1
        plain = sign * np.ldexp(1 + m / 2**M, e - bias)
        top = len(numbers(name)) - 1 if name != "fp32" else (2**E - 1 << M) - 1
        ones = np.where(m == 0, sign * np.inf, np.nan)
        got = subject.decode(f, code)
        kind = np.asarray(got).dtype
        assert kind == np.float64, f"decode, {name}: got numbers of {kind}, expected float64"
        agree(got, want, what=f"the {part} numbers of {name}",
              at=lambda i, code=code: f"code {code[i[0]]:0{1 + E + M}b}", mistakes={
            "a subnormal is read as a normal number, with a leading 1":
                np.where(e == 0, plain, want),
            "a subnormal has the exponent 0 - bias instead of 1 - bias":
                np.where(e == 0, sign * np.ldexp(m / 2**M, -bias), want),
            "codes beyond the largest finite number are read as numbers": plain,
            "every code beyond the largest finite number is NaN, and inf is forgotten":
                np.where(np.isfinite(want), want, np.nan),
            "every code beyond the largest finite number is inf":
                np.where(np.isfinite(want), want, sign * np.inf),
            "infinity loses its sign": np.where(np.isinf(want), np.inf, want),
            "only the quiet NaN is NaN, and the codes beside it are taken for finite ones":
                np.where((magnitude > top + 1) & (m != 2 ** (M - 1)), plain, want),
            "inf and NaN are exchanged": np.where(
                np.isinf(want), np.nan, np.where(np.isnan(want), sign * np.inf, want)),
            "the largest finite number is taken for one beyond it":
                np.where(magnitude == top, np.nan, want),
            "an exponent field of ones is inf or NaN in each format, as in IEEE's":
                np.where(e == 2**E - 1, ones, want),
            "the leading 1 of a normal number is left out":
                np.where(np.isfinite(want), sign * np.ldexp(m / 2**M, np.maximum(e, 1) - bias),
                         want),
            "the mantissa field is not divided by 2^M": np.where(np.isfinite(want), sign * np.ldexp(
                np.where(e > 0, 1.0, 0.0) + m, np.maximum(e, 1) - bias), want),
            "the sign bit is read as the highest bit of the exponent as well": np.where(
                (sign < 0) & np.isfinite(want) & (e > 0), ldexp_wide(plain, 2**E), want),
            "the bias is not taken off the exponent field":
                np.where(np.isfinite(want), ldexp_wide(want, bias), want),
            "the bias is one too large": np.where(np.isfinite(want), want / 2, want),
            "the bias is one too small": np.where(np.isfinite(want), ldexp_wide(want, 1), want),
            "the sign bit is ignored": np.abs(want)})
        zeros = want == 0
        minus = np.signbit(np.asarray(got, np.float64)[zeros])
        assert (minus == (sign[zeros] < 0)).all(), \
            f"zeros of {name}: the code {1 << E + M:b} is a zero with a sign, -0.0; 0 - value " \
            f"and value + 0 lose it"


def ldexp_wide(x, by):
    """np.ldexp, inf where the exponent is too large for float64."""
    with np.errstate(over="ignore"):
        return np.ldexp(x, by)


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_decode__any_shape(subject, reference, dtype):
    any_shape(subject, reference, "decode", np.arange(1, 120, 7).astype(dtype),
              f"codes of e4m3 as {dtype}")


def test_decode__unseen(unseen, rng):
    """A format that is not in the table."""
    E, M = (int(n) for n in rng.integers(2, 6, 2))
    code = rng.integers(0, 2 ** (1 + E + M), 50)
    specials = ("ieee", "nan", "none")[rng.integers(3)]
    unseen("decode", lambda side: side.Float("", E, M, specials), code,
           shown=f"{E} bits of exponent, {M} of mantissa, specials {specials}")


# ---- spacing


def places(name):
    """Numbers of a format and points between them, largest subnormal and powers of two included."""
    E, M, _ = FORMATS[name]
    if name == "fp32":
        x = np.ldexp(1 + np.arange(8) / 8, np.arange(-152, 128)[:, None]).ravel()
        return np.concatenate(([0.0, 2.0**-126 - 2.0**-149], x))
    v = numbers(name)
    v = v[:: max(1, len(v) // 4096)]
    return np.concatenate((v, (v[1:] + 3 * v[:-1]) / 4))


@pytest.mark.parametrize("name", SPACED)
def test_spacing(subject, agree, name):
    E, M, _ = FORMATS[name]
    x, f = places(name), given(subject, name)
    if name == "fp32":
        low = x.astype(np.float32)
        low = np.where(low > x, np.nextafter(low, np.float32(0)), low)
        want = np.spacing(low).astype(np.float64)
    else:                           # the largest has no next one; its step is the one before it
        v = np.append(numbers(name), 2 * numbers(name)[-1] - numbers(name)[-2])
        place = np.searchsorted(v, x, side="right") - 1
        want = v[place + 1] - v[place]
    steps = subject.spacing(f, -x)
    got = np.asarray(steps, np.float64)
    assert got.shape == x.shape and np.isfinite(got).all() and (got > 0).all(), (
        f"spacing of {name}: expected a number above 0 for each x, at 0 the least subnormal "
        f"number; got {brief(steps)}")
    k = np.frexp(np.where(x > 0, x, 1))[1] - 1
    least = 2 - 2 ** (E - 1)
    positive, log = x > 0, np.log2(want)
    agree(np.log2(got)[positive], log[positive], "float64",
          what=f"log2 of the spacing of {name}", at=lambda i: f"x = {-x[positive][i]:.9g}",
          mistakes={name: answer[positive] for name, answer in {
        "the spacing goes on shrinking below the least normal number":
            k - M,
        "x is bounded by the least number of all, not by the least normal one":
            np.maximum(k, least - M) - M,
        "the spacing of subnormals is that of the exponent 0 - bias":
            np.where(k < least, least - 1 - M, log),
        "the distance to the number below is taken at a power of two":
            log - ((x == np.ldexp(1.0, k)) & (k > least)),
        "half the spacing, the largest error, is given": log - 1,
        "twice the spacing is given": log + 1,
        "the sign of x is not taken off, and what is below 0 counts as small":
            np.full(k.shape, least - M),
        "the spacing at 1, 2^-M, is given for each x": np.full(k.shape, -M),
        "x · 2^-M is given, which is no power of two": np.log2(np.maximum(x, 2.0**least)) - M,
        "E bits of mantissa are counted, not M": np.maximum(k, least) - E,
        "the spacing is that of the exponent 0, as if M alone decided": np.zeros(k.shape) - M,
        "the least normal number is that of another format, e4m3's 2^-6":
            np.maximum(k, -6) - M,
        "x is taken to lie between 2^(k-1) and 2^k, as frexp has it":
            np.maximum(k + 1, least) - M}.items()})
    zero = ~positive
    assert (got == want)[zero].all(), f"spacing of {name} at 0: got {got[zero][0]:.9g}, expected " \
        f"{want[zero][0]:.9g}, the least subnormal number; np.frexp(0) gives the exponent 0, " \
        f"which is larger than the least"


def test_spacing__any_shape(subject, reference):
    x = np.array([-3.5, 0.0, -0.0, 0.001, 448.0, 1e-40, -17.0, 2.0, -1.0, 0.3, 5.0, 6.0, 7.0])
    any_shape(subject, reference, "spacing", x, "numbers of both signs, zeros, 1e-40")
    any_shape(subject, reference, "spacing", x.astype(np.float32), "the same in float32")


@pytest.mark.parametrize("name", FORMATS)
def test_spacing__below_a_power_of_two(subject, agree, name):
    """The float64 just below 2^k, which log2 and any shorter type take for 2^k itself."""
    E, M, _ = FORMATS[name]
    k = np.arange(3 - 2 ** (E - 1), 2 ** (E - 1))
    x = np.nextafter(np.ldexp(1.0, k), 0)
    got = subject.spacing(given(subject, name), x)
    assert np.shape(got) == k.shape and (np.asarray(got) > 0).all(), \
        f"spacing of {name}: got {brief(got)}, expected a number above 0 for each x"
    agree(np.log2(got), k - 1.0 - M, "float64", what=f"log2 of the spacing of {name}",
          at=lambda i: f"x just below 2^{k[i[0]]}", mistakes={
              "log2 of such an x is rounded up, to a whole number": np.floor(np.log2(x)) - M})


@pytest.mark.parametrize("name", FORMATS)
def test_spacing__beyond_the_largest(subject, agree, rng, name):
    """The exponents go on without end, though the format's numbers do not."""
    v, _ = beyond(name)
    place = np.append(0, rng.integers(0, len(v) - 1, 50))
    steps = v[place + 1] - v[place]
    x = v[place] + rng.integers(0, 4, 51) / 4 * steps
    agree(subject.spacing(given(subject, name), x), steps, "float64",
          what=f"spacing of {name} beyond its largest number", at=lambda i: f"x = {x[i[0]]:.9g}",
          mistakes={"x is cut off at the largest number of the format": steps[0]})


def test_spacing__unseen(unseen, rng):
    E, M = (int(n) for n in rng.integers(2, 8, 2))
    x = rng.standard_normal(50) * 2.0 ** rng.integers(-2 ** (E - 1) - M, 2 ** (E - 1), 50)
    unseen("spacing", lambda side: side.Float("", E, M, "ieee"), x,
           shown=f"{E} bits of exponent, {M} of mantissa")


def test_predict_error_bound(subject):
    for M in (1, 2, 3, 7, 10):
        judge_bound(subject.predict_error_bound(M), M)


def judge_bound(got, M):
    assert isinstance(got, (int, float)), f"a prediction is a number, got {got!r}"
    v = 1 + np.arange(2**M + 1) / 2**M                  # the numbers from 1 to 2
    middle = (v[1:] + v[:-1]) / 2
    worst, share = ((middle - v[:-1]) / middle).max(), got * 2 ** (M + 1)
    said = ("that is a whole spacing, and rounding goes to the nearer of two" if share == 2 else
            "that is less than the error halfway between 1 and the next number" if got < worst
            else "no x comes near it; half of 2^-M is enough")
    assert worst <= got <= 2.0 ** -(M + 1), f"error bound for M = {M}: {got:g}; {said}"


def test_predict_error_bound__unseen(subject, rng):
    for M in rng.integers(1, 17, 4).tolist():
        judge_bound(subject.predict_error_bound(M), M)


# ---- encode


def rounded(name, x):
    """The code nearest to each x >= 0, the even one on a tie, found in the list of all."""
    if name == "fp32":
        with np.errstate(over="ignore"):
            return x.astype(np.float32).view(np.uint32).astype(np.int64)
    v = numbers(name)
    v = np.append(v, 2 * v[-1] - v[-2])                 # where the next one would be
    low = np.minimum(np.searchsorted(v, x, side="right") - 1, len(v) - 2)
    below, above = x - v[low], v[low + 1] - x
    return low + np.where(below == above, low & 1, above < below)


def hard(name, rng):
    """x >= 0 up to where rounding passes the largest number: ties, their neighbours, and others."""
    E, M, _ = FORMATS[name]
    if name == "fp32":
        v = np.float32(2.0) ** np.arange(-149, 128).astype(np.float32)
        v = np.concatenate((v, rng.integers(0, 0x7F7FFFFF, 20_000).astype(np.uint32).view("f4")))
        v = np.unique(v)
        after = np.nextafter(v, np.float32(np.inf)).astype(np.float64)
        v, ties = v.astype(np.float64), (v.astype(np.float64) + after) / 2
        end = 2.0**128 - 2.0**103
    else:
        v = numbers(name)
        ties, end = (v[1:] + v[:-1]) / 2, v[-1] + (v[-1] - v[-2]) / 2
        if len(v) > 40_000:
            v, ties = v[::7], ties[::7]
    others = v[-1] * 2.0 ** -rng.uniform(0, 2 ** (E - 1) + M + 6, 2000)
    x = np.concatenate((ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf), v, others,
                        2.0 ** -np.arange(1075.0), [0.0]))         # float64's own subnormals, too
    return x[(x >= 0) & (x < end)]


@pytest.mark.parametrize("name", FORMATS)
def test_nearest_code(subject, agree, rng, name):
    E, M, _ = FORMATS[name]
    x, f = hard(name, rng), given(subject, name)
    want, mistakes = rounded(name, x), {}
    if name != "fp32":
        v = numbers(name)
        v = np.append(v, 2 * v[-1] - v[-2])
        low = np.minimum(np.searchsorted(v, x, side="right") - 1, len(v) - 2)
        below, above = x - v[low], v[low + 1] - x
        least = 2.0 ** (2 - 2 ** (E - 1))
        lowest = np.maximum(low >> M, 1) - 1 << M       # the code of the exponent, less 1
        mistakes = {
            "bits are cut off and nothing is rounded": low,
            "ties go up, away from zero": low + (above <= below),
            "ties go down, towards zero": low + (above < below),
            "ties go to the odd code": low + np.where(below == above, 1 - (low & 1), above < below),
            "numbers below the least normal one become 0": np.where(x < least, 0, want),
            "all that is below the least number becomes 0; more than half of it is nearer to it":
                np.where(x < v[1], 0, want),
            "less than half of the least number becomes the least number, where no bit of it is "
            "left: more bits may drop than float64 has":
                np.where((want == 0) & (x.view(np.int64) & 2**52 - 1 > 0), 1, want),
            "everything above 0 becomes the least number or more": np.where(
                x > 0, np.maximum(want, 1), want),
            "numbers are always rounded up": low + (below > 0),
            "numbers are always rounded up, and even 0 becomes the least": low + (
                (below > 0) | (x == 0)),
            "the exponent is not bounded from below: subnormals get the codes of normal numbers":
                unbounded(x, E, M),
            "subnormals are given the exponent 0 - bias, not 1 - bias":
                bounded(x, E, M, 1 - 2 ** (E - 1)),
            "the leading 1 of the rounded significand is cut off, and a carry with it":
                lowest + (want - lowest & 2**M - 1),
            "x is rounded to float32 first, which puts the neighbours of a tie onto the tie":
                rounded(name, shorter(x, np.float32)),
            "x is rounded to float16 first": rounded(name, shorter(x, np.float16)),
            "each code is 2^M too large: the leading 1 counts in the exponent field twice":
                want + 2**M,
            "the leading 1 of a normal number is not added to the exponent field": np.where(
                want >= 2**M, want - 2**M, want),
            "a mantissa that rounds up to 2^M does not carry into the exponent": np.where(
                (want > low) & (want % 2**M == 0), want - 2**M, want)}
    got = as_codes(subject.nearest_code(f, x), f"codes of {name}")
    agree(got, want, what=f"codes of {name}", at=lambda i: f"x = {x[i]:.17g}", mistakes=mistakes)


def unbounded(x, E, M):
    """Codes of x where no exponent is too small for the field."""
    bits = x.view(np.int64)
    exponent, fraction = (bits >> 52) - 1023, (bits & 2**52 - 1) / 2**52
    return (exponent + 2 ** (E - 1) - 2 << M) + np.rint((1 + fraction) * 2**M).astype(np.int64)


def bounded(x, E, M, least):
    """Codes of x where the exponent does not fall below `least`."""
    exponent = np.maximum((x.view(np.int64) >> 52) - 1023, least)
    return (exponent + 2 ** (E - 1) - 2 << M) + np.rint(np.ldexp(x, M - exponent)).astype(np.int64)


def shorter(x, dtype):
    """x, where it fits, by way of a shorter type."""
    with np.errstate(over="ignore"):
        y = x.astype(dtype).astype(np.float64)
    return np.where(np.isinf(y), x, y)


@pytest.mark.parametrize("name", FORMATS)
def test_nearest_code__beyond_the_largest(subject, agree, rng, name):
    """Codes that would follow if the exponents went on; ties, and points on both sides of them."""
    v, top = beyond(name)
    place = rng.integers(0, len(v) - 1, 50)
    parts = rng.integers(0, 5, 50)
    x = v[place] + parts / 4 * (v[place + 1] - v[place])
    code = top + place
    want = code + np.where(parts == 2, code & 1, parts > 2)
    got = as_codes(subject.nearest_code(given(subject, name), x), f"codes of {name}")
    agree(got, want, what=f"codes of {name} beyond its largest number",
          at=lambda i: f"x = {x[i[0]]:.9g}", mistakes={
              "x is cut off at the largest number of the format, which only encode does": top,
              "every x beyond the largest number gets the code after it":
                  np.minimum(want, top + 1)})


def test_nearest_code__any_shape(subject, reference):
    x = np.array([3.5, 0.0, 0.001, 448.0, 1e-310, 17.0, 17.0, 2.0, 1.0625, 0.3, 5.0, 1e-40, 7.0])
    any_shape(subject, reference, "nearest_code", x, "numbers from 1e-310 to 448")


def test_predict_lost(subject):
    got = subject.predict_lost()
    assert isinstance(got, (tuple, list)) and len(got) == 2, f"expected (inf, zero), got {got!r}"
    power = 2.0 ** np.arange(-32, 32)
    products = np.multiply.outer(power, power).ravel()
    with np.errstate(over="ignore"):
        held = products.astype(np.float16)
    for what, count, want, close in (
            ("overflow", got[0], np.isinf(held).sum(), {
                (products >= 2.0**15).sum(): "2^15 = 32768 is still a number of fp16",
                (products > 2.0**16).sum(): "2^16 = 65536 is beyond 65504 and overflows, too"}),
            ("become 0", got[1], (held == 0).sum(), {
                (products < 2.0**-14).sum(): "below 2^-14 there are the subnormals, down to 2^-24",
                (products < 2.0**-25).sum(): "2^-25 lies halfway between 0 and 2^-24: a tie goes "
                                             "to the even code, and that is 0",
                (products < 2.0**-23).sum(): "2^-24 is the least subnormal number, not 0"})):
        said = next((text for n, text in close.items() if n == count),
                    "i + j = s has 64 - |s + 1| pairs; from which s on?")
        assert count == want, f"products that {what}: {count} is not it; {said}"


# ---- integers


def scaled_error(x, bits, scale):
    top = 2 ** (bits - 1) - 1
    return np.clip(np.round(x / scale), -top, top) * scale - x


def test_best_scale(subject, agree, rng):
    shares = [k / 32 for k in range(32, 0, -1)]
    gauss = rng.normal(size=2000)           # times 8, since q is compared with x by mistake
    for what, x, bits in (("2000 Gaussian numbers times 8", 8 * gauss, 4),
                          ("2000 Gaussian numbers and a 20", np.append(gauss, 20), 4),
                          ("2000 numbers of 1e-3", -gauss * 1e-3, 3),
                          ("2000 Gaussian numbers and a 1000", np.append(gauss, 1000), 8)):
        top, most = 2 ** (bits - 1) - 1, np.abs(x).max()
        scales = np.array(shares) * most / top
        wrong = [scaled_error(x, bits, s) for s in scales]
        squares = [(w**2).sum() for w in wrong]
        inside = [(w[np.abs(x) <= s * top] ** 2).mean() for w, s in zip(wrong, scales, strict=True)]
        want = scales[np.argmin(squares)]
        agree(subject.best_scale(x, bits, shares), want, "float64",
              what=f"best scale of {what}, {bits} bits", mistakes={
            "the largest number is always kept and nothing is ever clipped": most / top,
            "the share of max|x| itself is returned, where top steps should reach it": want * top,
            "the error is not squared": scales[np.argmin([np.abs(w).sum() for w in wrong])],
            "errors of both signs are added and cancel":
                scales[np.argmin([w.sum() for w in wrong])],
            "the largest error counts and not their sum":
                scales[np.argmin([np.abs(w).max() for w in wrong])],
            "the scale with the largest error is taken": scales[np.argmax(squares)],
            "the error of what is clipped is left out": scales[np.argmin(inside)],
            "the index of the scale is returned, not the scale": int(np.argmin(squares)),
            "the share is returned, not the scale": shares[int(np.argmin(squares))],
            "the error is returned, not the scale": min(squares)} | scale_mistakes(
                x, np.array(shares), top))
    got = subject.best_scale(np.zeros(4), 4, [1.0, 0.5])
    assert got == 0, f"best scale of nothing but zeros: got {got}, expected 0"


def scale_mistakes(x, shares, top):
    """{mistake: scale} where another range is divided, or another error is compared."""
    size = np.abs(x).max()

    def best(largest, error):
        scales = shares * largest
        return float(scales[np.argmin([(error(s) ** 2).sum() for s in scales])])

    def level(s, low=-top, high=top):
        return np.clip(np.round(x / s), low, high)

    return {
        "the largest x is taken, not the largest |x|": best(
            x.max() / top, lambda s: level(s) * s - x),
        "the scales reach from the least x to the largest, not to ± max|x|": best(
            np.ptp(x) / (2 * top), lambda s: level(s) * s - x),
        "the levels go down to -2^(bits-1), one more than there are": best(
            size / top, lambda s: level(s, -top - 1) * s - x),
        "max|x| is divided by 2^(bits-1), one more than the largest integer": best(
            size / (top + 1), lambda s: level(s) * s - x),
        "max|x| is divided by 2^bits - 1, all levels, not by those of one sign": best(
            size / (2 * top + 1), lambda s: level(s) * s - x),
        "nothing is clipped at the largest integer": best(
            size / top, lambda s: np.round(x / s) * s - x),
        "x / scale is cut off, not rounded": best(
            size / top, lambda s: np.clip(np.trunc(x / s), -top, top) * s - x),
        "x / scale is rounded down": best(
            size / top, lambda s: np.clip(np.floor(x / s), -top, top) * s - x),
        "the error is measured in steps, before the scale is multiplied back": best(
            size / top, lambda s: level(s) - x / s),
        "the integers are compared with x, and not multiplied by the scale": best(
            size / top, lambda s: level(s) - x),
    }


# Numbers and shares of 2 bits, whose levels are -1, 0 and 1; the share that is right.
VALLEYS = {
    "two scales have the same error, 3; on a tie the first wins": ([3, 1, 1, 1], [1.0, 0.5], 0),
    "two scales have the same error, 3; the first wins, here the smaller":
        ([3, 1, 1, 1], [0.5, 1.0], 0),
    "the error rises from the first scale to the second and is least at the third: all are tried":
        ([3, 1.2, 1.2, 1.2], [1.0, 0.9, 0.5], 2)}


def test_best_scale__of_all(subject):
    for why, (x, shares, right) in VALLEYS.items():
        got = subject.best_scale(np.array(x, float), 2, shares)
        assert got == 3 * shares[right], (
            f"best scale of {x}, 2 bits, shares {shares}: got {got}, expected "
            f"{3 * shares[right]}: {why}")


BEST = {"one number": (np.array([-3.0]), 4), "equal numbers": (np.full(9, 0.7), 4),
        "two bits": (np.array([1.0, -0.2, 0.4, 0.1]), 2), "all below 0": (-np.arange(1.0, 9), 3),
        "zeros among them": (np.array([0.0, -0.0, 0.0, 5.0]), 4),
        "around 200": (200 + np.linspace(-1, 1, 50), 8), "1e-40": (1e-40 * np.arange(1.0, 9), 4),
        "rows of a matrix": (np.array([[1.0, 2.0], [1e-3, 3e-3], [1e3, 7.0]]), 4),
        "every second of a list": (np.linspace(-1, 2, 31)[::2], 4)}


def test_best_scale__hard(unseen):
    """One after the other in one process; shares in any order, one alone, some twice."""
    for what, (x, bits) in BEST.items():
        for shares in ([1.0, 0.75, 0.5, 0.25], [0.1, 0.9, 0.4], [0.6], [0.5, 1.0, 0.5, 1.0]):
            unseen("best_scale", x, bits, shares, shown=f"{what}, {bits} bits, shares {shares}")


def integers(rng):
    """A few that show everything, many, two, as bytes, every second of a list, and an empty one."""
    many = rng.integers(-7, 8, 1000)
    return (np.array([-7, -1, 0, 7, 3, -2]), many, np.array([-7, 7]), many[:34].astype(np.int8),
            many[:60:2], many[:0])


def test_pack_int4(subject, agree, rng):
    for q in integers(rng):
        half = len(q) // 2
        want = np.array([(int(q[i]) + 8) + 16 * (int(q[i + half]) + 8) for i in range(half)])
        got = subject.pack_int4(q)
        assert isinstance(got, np.ndarray) and got.dtype == np.uint8, \
            f"packed: got {getattr(got, 'dtype', type(got).__name__)}, expected bytes, uint8"
        q = q.astype(int)
        low, high = q[:half], q[half:]
        agree(got, want, what=f"{len(q)} integers in {half} bytes", at=lambda i: f"byte {i[0]}",
              mistakes={
            "neighbours share a byte, number i and i + 1": (q[::2] + 8) + 16 * (q[1::2] + 8),
            "the second half lies in the low 4 bits": (high + 8) + 16 * (low + 8),
            "the 8 is not added, and the sign is cut off": (low & 15) + 16 * (high & 15),
            "a negative low number runs over the high one": (low | high << 4) & 255,
            "8 is added to the low half alone": ((low + 8) | (high << 4)) & 255,
            "8 is added to the high half alone": (low | (high + 8) << 4) & 255,
            "8 is added to the high half after its shift": ((low + 8) | ((high << 4) + 8)) & 255,
            "neither half is shifted": (low + 8) | (high + 8),
            "the high half is shifted by 3 bits": ((low + 8) | (high + 8) << 3) & 255,
            "the high half is shifted by 8 bits, out of the byte": low + 8,
            "7 is added where 8 should be": (low + 7) + 16 * (high + 7)})


def test_unpack_int4(subject, agree, rng):
    for q in integers(rng):
        half = len(q) // 2
        packed = np.array([int(q[i]) + 8 + 16 * (int(q[i + half]) + 8) for i in range(half)],
                          dtype=np.uint8)
        low, high, q = packed.astype(int) & 15, packed.astype(int) >> 4, q.astype(int)
        got = subject.unpack_int4(packed)
        kind = np.asarray(got).dtype
        assert not half or kind == np.int64, \
            f"{len(q)} integers from {half} bytes: got {kind}, expected int64: what is computed " \
            f"with the integers of a shorter type wraps round"
        agree(got, q, what=f"{len(q)} integers from {half} bytes",
              at=lambda i: f"number {i[0]}", mistakes={
            "the 8 is not taken off": q + 8,
            "7 is taken off where 8 should be": q + 1,
            "the low 4 bits are not cut out of the byte":
                np.concatenate((packed.astype(int), high)) - 8,
            "the high 4 bits are cut out, but not shifted down":
                np.concatenate((low, high << 4)) - 8,
            "the 8 is taken off the low half alone": np.concatenate((low - 8, high)),
            "the 8 is taken off the high half alone": np.concatenate((low, high - 8)),
            "the 8 is taken off the whole byte, before it is divided": np.concatenate(
                (packed.astype(int) - 8 & 15, packed.astype(int) - 8 >> 4)),
            "15 is the divisor, not 16: a half of 15 becomes 0": np.concatenate(
                (low % 15, high % 15)) - 8,
            "the two halves of a byte are taken as neighbours":
                np.stack((low, high), 1).ravel() - 8,
            "the high 4 bits come first": np.concatenate((high, low)) - 8,
            "bytes wrap round: subtract in more than 8 bits": (q + 256) % 256,
            "the 4 bits are read as two's complement":
                np.where(q + 8 > 7, q - 8, q + 8)})


# ---- given, not exercises: only the course's own tests check it


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
def test_encode_at_the_end_of_the_range(subject, name):
    """What an overflow becomes, and that it begins half a spacing beyond the largest number."""
    E, M, kind = FORMATS[name]
    x, f = specials(name), given(subject, name)
    top = {"ieee": (2**E - 1 << M) - 1, "nan": 2 ** (E + M) - 2, "none": 2 ** (E + M) - 1}[kind]
    over = top if kind == "none" else top + 1
    tie = over if top & 1 else top                      # e4m3 ends on an even code: 464 is 448
    want = np.array([0, over, top, tie, over, top, over])
    minus = 1 << E + M
    assert subject.encode(f, x).tolist() == want.tolist()
    assert subject.encode(f, -x).tolist() == (want | minus).tolist()
    assert subject.encode(f, x, True).tolist() == [0, *[top] * 6]
    if kind == "none":
        with pytest.raises(Raised, match=f"x holds a NaN, and {name} has none"):
            subject.encode(f, np.array([np.nan]))
    else:
        quiet = top + 1 + (2 ** (M - 1) if kind == "ieee" else 0)
        assert subject.encode(f, np.array([np.nan, -np.nan]), True).tolist() in (
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
def test_ml_dtypes_agrees(subject, rng, name):
    """Every code, and the rounding of every number, tie and neighbour: bit for bit."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="not proven here: no ml_dtypes")
    theirs = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "fp16": np.float16,
              "e2m1": ml_dtypes.float4_e2m1fn, "bf16": ml_dtypes.bfloat16}[name]
    E, M, kind = FORMATS[name]
    raw, f = (np.uint16 if E + M == 15 else np.uint8), given(subject, name)
    every = np.arange(2 ** (1 + E + M))
    with np.errstate(all="ignore"):
        want = every.astype(raw).view(theirs).astype(np.float64)
    got = subject.decode(f, every)
    np.testing.assert_array_equal(got, want)
    real = ~np.isnan(want)
    assert (np.signbit(got) == np.signbit(want))[real].all()

    x = floats(name, rng)
    with np.errstate(all="ignore"):
        codes = x.astype(theirs).view(raw).astype(np.int64)
    np.testing.assert_array_equal(subject.encode(f, x.astype(np.float64)), codes)


TORCH = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "fp16": "float16", "bf16": "bfloat16"}


@pytest.mark.parametrize("name", TORCH)
def test_torch_agrees(subject, rng, name):
    """Likewise. A number beyond 464 becomes 448 in e4m3 of torch 2.13; older ones made it NaN."""
    import torch

    theirs, (E, M, _) = getattr(torch, TORCH[name]), FORMATS[name]
    raw, f = (torch.int16 if E + M == 15 else torch.uint8), given(subject, name)
    every = np.arange(2 ** (1 + E + M))
    want = torch.from_numpy(every).to(raw).view(theirs).double().numpy()
    np.testing.assert_array_equal(subject.decode(f, every), want)

    x = floats(name, rng)
    codes = torch.from_numpy(x).to(theirs).view(raw).numpy().astype(np.int64) & len(every) - 1
    got = [subject.encode(f, x.astype(np.float64), saturate) for saturate in (False, True)]
    inside = np.abs(x) <= 464 if name == "e4m3" else np.full(len(x), True)
    np.testing.assert_array_equal(got[0][inside], codes[inside])
    if name == "e4m3":
        assert any((mine == codes).all() for mine in got)


def test_the_simulator_agrees_on_tf32(subject, rng):
    """tf32 is the upper 19 bits of fp32. Ours goes to even; cvt.rna, away from 0, only on ties."""
    from lab.simulator.rounding import f32_to_tf32

    x = floats("tf32", rng)
    bits = x.view(np.uint32)
    f = given(subject, "tf32")
    mine = subject.encode(f, x.astype(np.float64))
    np.testing.assert_array_equal(mine, f32_to_tf32(x, "rn") >> 13)
    tie = bits & 0x1FFF == 0x1000
    away = f32_to_tf32(x, "rna") >> 13
    np.testing.assert_array_equal(mine[~tie], away[~tie])
    assert (mine != away)[tie].any()
    np.testing.assert_array_equal(subject.decode(f, mine[:1000]).astype(np.float32),
                                  (mine[:1000] << 13).astype(np.uint32).view(np.float32))


def test_double_to_fp32(subject, rng):
    x = np.ldexp(rng.normal(size=200_000), rng.integers(-160, 131, 200_000))
    with np.errstate(over="ignore"):
        want = x.astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(subject.encode(given(subject, "fp32"), x), want)


def test_the_lesson_has_these_formats(subject):
    mine = subject.FORMATS
    assert set(mine) == set(FORMATS)
    for name, (E, M, kind) in FORMATS.items():
        assert (mine[name].E, mine[name].M, mine[name].specials) == (E, M, kind)


def test_mxfp4_is_ml_dtypes(subject, rng):
    """Scales are powers of two by e8m0, elements e2m1; a block of zeros, and one that saturates."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="not proven here: no ml_dtypes")
    x = rng.normal(size=32 * 40) * 2.0 ** np.repeat(rng.integers(-90, 90, 40), 32)
    x[:32], x[32] = 0, 7.9
    elements, scales = subject.to_mxfp4(x)
    assert elements.shape == (40, 32) and scales.shape == (40,) and scales[0] == 0
    factor = scales.astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    most = np.abs(x.reshape(40, 32)).max(1)
    assert ((4 * factor <= most) & (most < 8 * factor))[1:].all()
    want = np.clip(x.reshape(40, 32) / factor[:, None], -6, 6).astype(ml_dtypes.float4_e2m1fn)
    assert (elements == want.view(np.uint8)).all()
    back = (want.astype(np.float64) * factor[:, None]).ravel()
    assert (subject.from_mxfp4(elements, scales) == back).all()


def test_nvfp4(subject, rng):
    """Each block's largest number becomes 6 scales; the scales are e4m3, the largest is 448."""
    x = rng.normal(size=16 * 50) * 2.0 ** np.repeat(rng.integers(-6, 6, 50), 16)
    x[:16] = 0
    elements, scales, whole = subject.to_nvfp4(x)
    assert elements.shape == (50, 16) and scales.shape == (50,)
    factor = np.array([by_book("e4m3", int(c)) for c in scales])
    assert factor.max() == 448 and factor[0] == 0
    most = np.abs(x.reshape(50, 16)).max(1)
    assert np.abs(6 * factor * whole - most).max() <= most.max() / 16
    back = subject.from_nvfp4(elements, scales, whole).reshape(50, 16)
    error, step = np.abs(back - x.reshape(50, 16)), (factor * whole)[:, None]
    assert (error <= step * (1 + 1e-9)).all()           # e2m1's largest spacing is 2


def test_trits(subject):
    every = np.array(np.meshgrid(*[[-1, 0, 1]] * 5)).reshape(5, -1).T.ravel()      # all 243 bytes
    packed = subject.pack_trits(every)
    assert packed.dtype == np.uint8 and len(set(packed.tolist())) == 3**5 and packed.max() == 242
    assert (subject.unpack_trits(packed) == every).all()


def test_int4_lies_as_in_k15(subject, rng):
    from layer1_kernels import quantize_weight

    q = np.append(rng.integers(-7, 8, 63), 7)
    import torch
    packed, _ = quantize_weight(torch.from_numpy(q).float()[None], 4, 64)
    assert (packed[0].numpy() == subject.pack_int4(q)).all()


@pytest.mark.parametrize("kind", ["e4m3", "e2m1", 8, 4])
def test_round_scaled(subject, rng, kind):
    import torch

    x = rng.normal(size=96)
    x[64:] = 0
    most = np.repeat(np.abs(x.reshape(3, 32)).max(1), 32)
    top = 2 ** (kind - 1) - 1 if isinstance(kind, int) else numbers(kind)[-1]
    ratio = np.divide(x, most, out=np.zeros(96), where=most > 0) * top
    want = np.round(ratio) if isinstance(kind, int) else \
        np.copysign(numbers(kind)[rounded(kind, np.abs(ratio))], ratio)
    got = subject.round_scaled(kind if isinstance(kind, int) else given(subject, kind), x, 32)
    np.testing.assert_allclose(got, want * most / top, rtol=1e-12)
    if kind == "e4m3":
        theirs = torch.from_numpy(ratio).float().to(torch.float8_e4m3fn).double().numpy()
        np.testing.assert_allclose(got, theirs * most / top, rtol=1e-12)


@pytest.mark.parametrize("bits, steps", [(8, 8), (4, 1), (6, 3)])
def test_round_log(subject, rng, bits, steps):
    """The nearest by ratio, searched for; 0 from half a step below the least on."""
    x = rng.normal(size=300) * 2.0 ** rng.integers(-12, 3, 300)
    x[7] = 0
    top = np.abs(x).max()
    sizes = top * 2.0 ** (-np.arange(2 ** (bits - 1)) / steps)      # the last of them is not there
    with np.errstate(divide="ignore"):
        away = np.abs(np.log2(np.abs(x))[:, None] - np.log2(sizes))
    sizes[-1] = 0
    want = np.copysign(sizes[away.argmin(1)], x) * (x != 0)
    np.testing.assert_allclose(subject.round_log(x, bits, steps), want, rtol=1e-12, atol=0)
    assert (subject.round_log(np.zeros(3), bits, steps) == 0).all()


@pytest.mark.parametrize("dtype, name", [(np.float16, "fp16"), (np.float32, "fp32")])
def test_dot(subject, rng, dtype, name):
    """NumPy adds in the same precision, one at a time."""
    a, b = rng.uniform(size=(2, 3, 300))
    products = a.astype(np.float16).astype(np.float64) * b.astype(np.float16).astype(np.float64)
    want, total = np.empty((3, 300)), np.zeros(3, dtype)
    for k in range(300):
        total = (total.astype(np.float64) + products[:, k]).astype(dtype)
        want[:, k] = total
    got = subject.dot(a, b, given(subject, "fp16"), given(subject, name))
    assert (got == want).all()


@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3"])
def test_a_sum_of_ones_stops(subject, name):
    """At 2^(M + 1) the spacing is 2: one more is a tie, and goes to even."""
    ones, f = np.ones((1, 600 if name != "fp16" else 2200)), given(subject, name)
    assert subject.dot(ones, ones, f, f)[0, -1] == 2 ** (FORMATS[name][1] + 1)


def test_snr(subject, rng):
    x, noise = rng.normal(size=(2, 10_000))
    assert subject.snr(x, x + 0.1 * noise) == pytest.approx(
        20 + 10 * np.log10((x**2).sum() / (noise**2).sum()))


@pytest.mark.parametrize("call, says", [
    (lambda s: s.decode(given(s, "e2m1"), np.array([16])), "decode: expected integers from 0 to"),
    (lambda s: s.decode(given(s, "e2m1"), np.array([1.5])), "integers from 0 to 15, got float64"),
    (lambda s: s.pack_int4(np.array([-8, 0])), "pack_int4: expected integers from -7 to 7, got"),
    (lambda s: s.pack_int4(np.array([1, 0, 2])), r"q has shape \(3,\), expected \(n,\), n even"),
    (lambda s: s.pack_trits(np.array([1, 0])), r"q has shape \(2,\), expected \(n,\), n a mul"),
    (lambda s: s.quantize_int(np.ones(2), 1, 1.0), "an integer of 1 bits, expected 2 or more"),
    (lambda s: s.unpack_trits(np.array([243])), "expected integers from 0 to 242"),
    (lambda s: s.spacing(given(s, "fp16"), np.array([np.inf])), "spacing: x holds inf or NaN"),
    (lambda s: s.to_mxfp4(np.ones(33)), r"to_mxfp4: x has shape \(33,\), expected \(K,\), K a"),
    (lambda s: s.to_nvfp4(np.array([np.nan] * 16)), "to_nvfp4: x holds inf or NaN"),
    (lambda s: s.round_scaled(8, np.ones(33), 32), r"K a multiple of 32"),
    (lambda s: s.best_scale(np.array([np.nan]), 8, [1.0]), "best_scale: x holds inf or NaN")])
def test_bad_input(subject, call, says):
    with pytest.raises(Raised, match=says):
        call(subject)
