"""Graders of r04.
The oracle reads a code as text, bit by bit, and rounds by looking for the nearest number in the
list of all.
What r04 gives: test_number_formats.py."""


from numbers import Real

import numpy as np
import pytest

from lab.judge.adversarial import views
from lab.judge.compare import brief
from lab.judge.mistakes import mistake
from tests.day01_roofline.oracle_r04_number_formats import (
    FORMATS,
    around,
    beyond,
    by_book,
    encoded,
    hard,
    numbers,
    places,
    rounded,
    shorter,
    top_code,
    true_spacing,
)

# name: E, M, specials, as the lesson's Float takes them
SPACED = ("e5m2", *(name for name in FORMATS if name != "e5m2"))  # in e4m3 E and M are neighbours


def form(side, name):
    return side.Float(name, *FORMATS[name])


def as_codes(got, what):
    assert isinstance(got, (int, np.integer, np.ndarray)) and np.asarray(got).dtype.kind in "iu", \
        mistake("no_integers", f"{what}: got {type(got).__name__} {np.asarray(got).dtype}, "
                               "expected integer codes")
    return got


def layouts(x):
    """{layout: the same numbers, or some of them}"""
    grid = x[:12].reshape(3, 4)
    return {"a matrix": grid, "a matrix, columns first": views(grid)["columns first"],
            "every second number of a list": x[::2], "a list in reverse": x[::-1],
            "three axes": x[:8].reshape(2, 2, 2), "one number, no axis": x[1:2].reshape(()),
            "one number in a list": x[1:2], "no number": x[:0], "a matrix without rows": grid[:0]}


def any_shape(subject, reference, agree, name, x, what):
    """Numbers of any shape and layout, one after the other in one process, keep their places."""
    for how, part in layouts(x).items():
        got, want = (getattr(side, name)(form(side, "e4m3"), part) for side in (subject, reference))
        assert isinstance(got, (int, float, np.generic, np.ndarray)), mistake(
            "no_array", f"{name}, {what}: {how}: got {brief(got)}, expected numbers of the same "
                        "shape")
        agree(got, want, what=f"{name}, {what}: {how}")


# ---- decode


def test_predict_largest_e4m3(subject):
    import torch

    got, want = subject.predict_largest_e4m3(), torch.finfo(torch.float8_e4m3fn).max
    name, sentence = {
        240: ("as_ieee", "IEEE reserves a whole exponent for inf and NaN; e4m3 reserves one code."),
        480: ("nan_code", "That is the code of NaN."),
        57344: ("of_e5m2", "That is e5m2's largest number.")}.get(
            got, ("other", "Take the second-last code: e = 15, m = 6; the bias is 7."))
    assert got == want, mistake(name, f"predict_largest_e4m3: not {got}. {sentence}", sentence)


def parts(name):
    """{part of the codes: codes}."""
    E, M, _ = FORMATS[name]
    every = np.arange(2 ** (1 + E + M)) if name != "fp32" else np.unique(
        np.linspace(0, 2**32 - 1, 50_001).astype(np.int64))
    magnitude = every & 2 ** (E + M) - 1
    low, high = magnitude < 2**M, magnitude > top_code(name)
    return {"normal": every[~low & ~high], "subnormal": every[low], "special": every[high]}


@pytest.mark.parametrize("name", FORMATS)
def test_decode(subject, agree, name):
    E, M, _ = FORMATS[name]
    for part, code in parts(name).items():
        if not code.size:
            continue
        want = np.array([by_book(name, int(c)) for c in code])
        got = subject.decode(form(subject, name), code)
        kind = np.asarray(got).dtype
        assert kind == np.float64, mistake(
            "not_float64", f"decode, {name}: got numbers of {kind}, expected float64")
        agree(got, want, what=f"the {part} numbers of {name}",
              at=lambda i, code=code: f"code {code[i[0]]:0{1 + E + M}b}",
              mistakes=decode_mistakes(name, code, want))
        zeros = want == 0
        minus = np.signbit(np.asarray(got, np.float64)[zeros])
        assert (minus == (code[zeros] >> E + M > 0)).all(), mistake(
            "zero_unsigned", f"{name}: code {1 << E + M:b} is −0.0; keep the sign of zero: "
                             "0 - value and value + 0 lose it")


def decode_mistakes(name, code, want):
    """{id: (sentence, the numbers of the codes)}"""
    E, M, _ = FORMATS[name]
    top, bias = top_code(name), 2 ** (E - 1) - 1
    magnitude, sign = code & 2 ** (E + M) - 1, np.where(code >> E + M, -1.0, 1.0)
    e, m = magnitude >> M, magnitude & 2**M - 1
    plain = sign * np.ldexp(1 + m / 2**M, e - bias)
    finite = np.isfinite(want)

    def at(chosen, other):
        return np.where(chosen, other, want)

    return {
        "subnormal_with_1": ("subnormal numbers are read with a leading 1", at(e == 0, plain)),
        "subnormal_exponent": ("subnormal numbers get the exponent 0 − bias; it is 1 − bias",
                               at(e == 0, want / 2)),
        "specials_as_numbers": ("codes above f.top are read as numbers", plain),
        "inf_as_nan": ("codes above f.top are all NaN; f.inf is infinity", at(~finite, np.nan)),
        "nan_as_inf": ("codes above f.top are all inf; only f.inf is", at(~finite, sign * np.inf)),
        "inf_unsigned": ("infinity loses its sign", at(np.isinf(want), np.inf)),
        "quiet_nan_alone": ("only the quiet NaN is NaN; the codes beside it are read as numbers",
                            at((magnitude > top + 1) & (m != 2 ** (M - 1)), plain)),
        "inf_nan_exchanged": ("inf and NaN are exchanged", at(
            ~finite, np.where(np.isnan(want), sign * np.inf, np.nan))),
        "top_special": ("the largest finite number is taken for one above it",
                        at(magnitude == top, np.nan)),
        "always_ieee": ("an exponent field of ones is inf or NaN in each format, as in IEEE's",
                        at(e == 2**E - 1, np.where(m == 0, sign * np.inf, np.nan))),
        "no_leading_1": ("the leading 1 of a normal number is left out",
                         at(finite, sign * np.ldexp(m / 2**M, np.maximum(e, 1) - bias))),
        "mantissa_whole": ("the mantissa field is not divided by 2^M",
                           at(finite, sign * np.ldexp(m + (e > 0.0), np.maximum(e, 1) - bias))),
        "sign_in_exponent": ("the sign bit is read as the highest bit of the exponent as well",
                             at((sign < 0) & finite & (e > 0), wide(plain, 2**E))),
        "no_bias": ("the bias is not subtracted from the exponent field", wide(want, bias)),
        "bias_plus_1": ("the bias is one too large", want / 2),
        "bias_minus_1": ("the bias is one too small", wide(want, 1)),
        "sign_ignored": ("the sign bit is ignored", np.abs(want))}


def wide(x, by):
    """np.ldexp, inf where the exponent is too large for float64."""
    with np.errstate(over="ignore"):
        return np.ldexp(x, by)


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_decode__any_shape(subject, reference, agree, dtype):
    any_shape(subject, reference, agree, "decode", np.arange(1, 120, 7).astype(dtype),
              f"codes of e4m3 as {dtype}")


def test_decode__unseen(unseen, rng):
    """A format that is not in the table."""
    E, M = (int(n) for n in rng.integers(2, 6, 2))
    code = rng.integers(0, 2 ** (1 + E + M), 50)
    specials = ("ieee", "nan", "none")[rng.integers(3)]
    unseen("decode", lambda side: side.Float("", E, M, specials), code,
           shown=f"{E} bits of exponent, {M} of mantissa, specials {specials}")


# ---- spacing


def steps_of(subject, name, x):
    """What spacing gives for x, an array of positive numbers."""
    steps = subject.spacing(form(subject, name), x)
    got = np.asarray(steps, np.float64)
    assert got.shape == x.shape and np.isfinite(got).all() and (got > 0).all(), mistake(
        "not_positive", f"spacing of {name}: expected a positive number for each x; at 0 it is the "
                        f"smallest subnormal number; got {brief(steps)}")
    return got


@pytest.mark.parametrize("name", SPACED)
def test_spacing(subject, agree, name):
    x = places(name)
    want = true_spacing(name, x)
    got = steps_of(subject, name, -x)
    positive = x > 0
    agree(np.log2(got)[positive], np.log2(want)[positive], "float64",
          what=f"log2 of the spacing of {name}", at=lambda i: f"x = {-x[positive][i]:.9g}",
          mistakes=spacing_mistakes(name, x[positive], np.log2(want)[positive]))
    assert (got == want)[~positive].all(), mistake(
        "not_least_at_0", f"spacing of {name} at 0: got {got[~positive][0]:.9g}, expected "
        f"{want[~positive][0]:.9g}, the smallest subnormal number (np.frexp gives exponent 0 for "
        "x = 0)", "the smallest subnormal number (np.frexp gives exponent 0 for x = 0)")


def spacing_mistakes(name, x, log):
    """{id: (sentence, log2 of the spacing at each x > 0)}"""
    E, M, _ = FORMATS[name]
    k, least = np.frexp(x)[1] - 1, 2 - 2 ** (E - 1)
    with np.errstate(over="ignore"):
        short = np.frexp(np.maximum(x.astype(np.float16), 2.0**least))[1] - 1
    return {
        "no_least_exponent": ("the spacing keeps shrinking below the smallest normal number",
                              k - M),
        "least_of_all": ("x is bounded by the smallest number of all, not by the smallest normal "
                         "one", np.maximum(k, least - M) - M),
        "subnormal_exponent": ("subnormal numbers use the exponent 0 − bias; it is 1 − bias",
                               log - (k < least)),
        "number_below": ("at a power of two you return the distance to the number below",
                         log - ((x == np.ldexp(1.0, k)) & (k > least))),
        "half": ("half the spacing, the largest error, is returned", log - 1),
        "twice": ("twice the spacing is returned", log + 1),
        "sign_kept": ("the sign of x is kept, and what is below 0 counts as small", least - M),
        "at_1": ("the spacing at 1, 2^-M, is returned for each x", -M),
        "no_power": ("x · 2^-M is returned, which is not a power of two",
                     np.log2(np.maximum(x, 2.0**least)) - M),
        "by_E": ("E bits of mantissa are counted, not M", log + M - E),
        "other_format": ("the smallest normal number of e4m3, 2^-6, is used for every format",
                         np.maximum(k, -6) - M),
        "frexp_exponent": ("k is 1 too large: frexp returns a mantissa from 0.5 to 1",
                           np.maximum(k + 1, least) - M),
        "short_x": ("x is rounded to 16 bits before its exponent is taken", short - M)}


def test_spacing__any_shape(subject, reference, agree):
    x = np.array([-3.5, 0.0, -0.0, 0.001, 448.0, 1e-40, -17.0, 2.0, -1.0, 0.3, 5.0, 6.0, 7.0])
    for values, what in ((x, "numbers of both signs, zeros, 1e-40"),
                           (x.astype(np.float32), "the same in float32")):
        any_shape(subject, reference, agree, "spacing", values, what)


@pytest.mark.parametrize("name", FORMATS)
def test_spacing__below_a_power_of_two(subject, agree, name):
    """The float64 just below 2^k, which log2 and any shorter type take for 2^k itself."""
    E, M, _ = FORMATS[name]
    k = np.arange(3 - 2 ** (E - 1), 2 ** (E - 1))
    x = np.nextafter(np.ldexp(1.0, k), 0)
    agree(np.log2(steps_of(subject, name, x)), k - 1.0 - M, "float64",
          what=f"log2 of the spacing of {name}", at=lambda i: f"x just below 2^{k[i[0]]}",
          mistakes={"log2_rounds": ("log2 of such an x is rounded up, to a whole number",
                                    np.floor(np.log2(x)) - M)})


@pytest.mark.parametrize("name", FORMATS)
def test_spacing__beyond_the_largest(subject, agree, rng, name):
    """The exponents go on without end, though the format's numbers do not."""
    v, _ = beyond(name)
    place = np.append(0, rng.integers(0, len(v) - 1, 50))
    steps = v[place + 1] - v[place]
    x = v[place] + rng.integers(0, 4, 51) / 4 * steps
    agree(subject.spacing(form(subject, name), x), steps, "float64",
          what=f"spacing of {name} beyond its largest number", at=lambda i: f"x = {x[i[0]]:.9g}",
          mistakes={"cut_at_largest": ("x is cut off at the largest number of the format",
                                       steps[0])})


def test_spacing__unseen(unseen, rng):
    E, M = (int(n) for n in rng.integers(2, 8, 2))
    x = rng.standard_normal(50) * 2.0 ** rng.integers(-2 ** (E - 1) - M, 2 ** (E - 1), 50)
    unseen("spacing", lambda side: side.Float("", E, M, "ieee"), x,
           shown=f"{E} bits of exponent, {M} of mantissa")


def test_predict_error_bound(subject):
    for M in (1, 2, 3, 7, 10):
        judge_bound(subject.predict_error_bound(M), M)


def judge_bound(got, M):
    assert isinstance(got, Real), mistake(
        "no_number", f"predict_error_bound({M}): expected a number, got {got!r}")
    v = 1 + np.arange(2**M + 1) / 2**M                  # the numbers from 1 to 2
    middle = (v[1:] + v[:-1]) / 2
    worst, share = ((middle - v[:-1]) / middle).max(), got * 2 ** (M + 1)
    name, sentence = (
        ("whole_spacing", "That is a whole spacing; rounding to the nearest errs by at most half.")
        if share == 2 else
        ("too_small", "That is less than the error halfway between 1 and the next number.")
        if got < worst else ("too_large", "No x has such an error; half of 2^-M is the bound."))
    assert worst <= got <= 2.0 ** -(M + 1), mistake(
        name, f"predict_error_bound({M}): not {got:g}. {sentence}", sentence)


def test_predict_error_bound__unseen(subject, rng):
    for M in rng.integers(1, 17, 4).tolist():
        judge_bound(subject.predict_error_bound(M), M)


# ---- encode


@pytest.mark.parametrize("name", FORMATS)
def test_nearest_code(subject, agree, rng, name):
    """Normal numbers, then ties among them, then subnormal numbers, as the lesson proposes."""
    E, _, _ = FORMATS[name]
    every = hard(name, rng)
    codes = as_codes(subject.nearest_code(form(subject, name), every), f"codes of {name}")
    assert np.shape(codes) == every.shape, mistake(
        "shape", f"codes of {name}: shape {np.shape(codes)}, expected {every.shape}")
    normal = every >= 2.0 ** (2 - 2 ** (E - 1))
    tie = np.zeros(every.shape, bool) if name == "fp32" else np.equal(*around(name, every)[1:])
    for part, chosen in (("normal numbers", normal & ~tie), ("ties", normal & tie),
                         ("subnormal numbers", ~normal)):
        x = every[chosen]
        agree(np.asarray(codes)[chosen], rounded(name, x), what=f"codes of {name}, {part}",
              at=lambda i, x=x: f"x = {x[i]:.17g}",
              mistakes=code_mistakes(name, x) if name != "fp32" and x.size else {})


def code_mistakes(name, x):
    """{id: (sentence, codes of each x)}. Those of ties stand first: among ties others give the
    same."""
    E, M, _ = FORMATS[name]
    want, (low, below, above) = rounded(name, x), around(name, x)
    least, first = 2.0 ** (2 - 2 ** (E - 1)), numbers(name)[1]
    lowest = np.maximum(low >> M, 1) - 1 << M           # the code of the exponent, less 1

    def at(chosen, other):
        return np.where(chosen, other, want)

    return {
        "ties_up": ("ties go up, away from zero", low + (above <= below)),
        "ties_down": ("ties go down, towards zero", low + (above < below)),
        "ties_odd": ("ties go to the odd code", at(below == above, low + 1 - (low & 1))),
        "truncated": ("the bits are truncated instead of rounded", low),
        "no_subnormals": ("numbers below the smallest normal one become 0; they should be "
                          "subnormal", at(x < least, 0)),
        "least_lost": ("all that is below the smallest number becomes 0; more than half of it is "
                       "nearer to it", at(x < first, 0)),
        "too_few_dropped": (
            "less than half of the smallest number becomes the smallest number, where no bit of it "
            "is left: more bits may drop than float64 has",
            at((want == 0) & (x.view(np.int64) & 2**52 - 1 > 0), 1)),
        "shift_of_63": ("1 << 63 is negative in int64: nothing is left of such an x, so bound the "
                        "number of bits that drop", at(
                            54 - M - 2 ** (E - 1) - np.frexp(x)[1] + 1 == 64, -1)),
        "never_0": ("everything above 0 becomes the smallest number or more",
                    at((x > 0) & (want == 0), 1)),
        "always_up": ("numbers are always rounded up", low + (below > 0)),
        "always_up_from_0": ("numbers are always rounded up, and even 0 becomes the smallest",
                             low + ((below > 0) | (x == 0))),
        "unbounded_exponent": ("the exponent is not bounded from below: subnormal numbers get the "
                               "codes of normal ones", encoded(x, E, M)),
        "subnormal_exponent": ("subnormal numbers get the exponent 0 − bias, not 1 − bias",
                               encoded(x, E, M, 1 - 2 ** (E - 1))),
        "carry_cut": ("the leading 1 of the rounded significand is cut off, and a carry with it",
                      lowest + (want - lowest & 2**M - 1)),
        "by_float32": ("x is rounded to float32 first, which puts the neighbours of a tie onto the "
                       "tie", rounded(name, shorter(x, np.float32))),
        "by_float16": ("x is rounded to float16 first", rounded(name, shorter(x, np.float16))),
        "leading_1_twice": ("each code is 2^M too large: the leading 1 counts in the exponent "
                            "field twice", want + 2**M),
        "no_leading_1": ("the leading 1 of a normal number is not added to the exponent field",
                         at(want >= 2**M, want - 2**M)),
        "no_carry": ("a mantissa that rounds up to 2^M does not carry into the exponent",
                     at((want > low) & (want % 2**M == 0), want - 2**M))}


@pytest.mark.parametrize("name", FORMATS)
def test_nearest_code__beyond_the_largest(subject, agree, rng, name):
    """Codes that would follow if the exponents went on; ties, and points on both sides of them."""
    v, top = beyond(name)
    place = rng.integers(0, len(v) - 1, 50)
    parts = rng.integers(0, 5, 50)
    x = v[place] + parts / 4 * (v[place + 1] - v[place])
    code = top + place
    want = code + np.where(parts == 2, code & 1, parts > 2)
    got = as_codes(subject.nearest_code(form(subject, name), x), f"codes of {name}")
    agree(got, want, what=f"codes of {name} beyond its largest number",
          at=lambda i: f"x = {x[i[0]]:.9g}", mistakes={
              "cut_at_largest": ("x is cut off at the largest number of the format, which only "
                                 "encode does", top),
              "code_after_top": ("every x beyond the largest number gets the code after it",
                                 np.minimum(want, top + 1))})


def test_nearest_code__any_shape(subject, reference, agree):
    x = np.array([3.5, 0.0, 0.001, 448.0, 1e-310, 17.0, 17.0, 2.0, 1.0625, 0.3, 5.0, 1e-40, 7.0])
    any_shape(subject, reference, agree, "nearest_code", x, "numbers from 1e-310 to 448")


def test_predict_lost(subject):
    got = subject.predict_lost()
    assert isinstance(got, (tuple, list, np.ndarray)) and np.size(got) == 2, mistake(
        "no_pair", f"predict_lost: expected two numbers, (inf, zero), got {got!r}")
    power = 2.0 ** np.arange(-32, 32)
    products = np.multiply.outer(power, power).ravel()
    with np.errstate(over="ignore"):
        half = products.astype(np.float16)
    for what, count, want, close in (
            ("become inf", got[0], np.isinf(half).sum(), {
                "32768": (products >= 2.0**15, "2^15 = 32768 is still a number of fp16."),
                "65536": (products > 2.0**16,
                          "2^16 = 65536 overflows too: the largest number is 65504.")}),
            ("become 0", got[1], (half == 0).sum(), {
                "no_subnormals": (products < 2.0**-14,
                                  "Below 2^-14 come the subnormal numbers, down to 2^-24."),
                "tie_up": (products < 2.0**-25, "2^-25 lies halfway between 0 and 2^-24: a tie "
                                                "goes to the even code, and that is 0."),
                "least_lost": (products < 2.0**-23,
                               "2^-24 is the smallest subnormal number, not 0.")})):
        name, sentence = next(((name, text) for name, (lost, text) in close.items()
                               if lost.sum() == count),
                              ("other", f"64 − |s + 1| pairs have the sum s; which s {what}?"))
        assert count == want, mistake(
            name, f"predict_lost: not {count} products {what}. {sentence}", sentence)


# ---- integers


def test_best_scale(subject, agree, rng):
    shares = [k / 32 for k in range(32, 0, -1)]
    gauss = rng.normal(size=2000)           # times 8, since q is compared with x by mistake
    for what, x, bits in (("2000 Gaussian numbers times 8", 8 * gauss, 4),
                          ("2000 Gaussian numbers and a 20", np.append(gauss, 20), 4),
                          ("2000 numbers of 1e-3", -gauss * 1e-3, 3),
                          ("2000 Gaussian numbers and a 1000", np.append(gauss, 1000), 8)):
        want, mistakes = best_and_mistakes(x, np.array(shares), 2 ** (bits - 1) - 1)
        agree(subject.best_scale(x, bits, shares), want, "float64",
              what=f"best scale of {what}, {bits} bits", mistakes=mistakes)
    got = subject.best_scale(np.zeros(4), 4, [1.0, 0.5])
    assert got == 0, mistake("not_0", f"best scale of an array of zeros: got {got}, expected 0")


def best_and_mistakes(x, shares, top):
    """(the best scale, {id: (sentence, a scale)}): another range is divided, another error is
    compared, or something else is returned."""
    size = np.abs(x).max()
    scales = shares * size / top
    errors = [np.clip(np.round(x / s), -top, top) * s - x for s in scales]
    squares = [(error**2).sum() for error in errors]
    best = int(np.argmin(squares))
    inside = [(e[np.abs(x) <= s * top] ** 2).mean() for e, s in zip(errors, scales, strict=True)]

    def by(measure):
        return scales[np.argmin([measure(error) for error in errors])]

    def level(s, low=-top):
        return np.clip(np.round(x / s), low, top)

    def plain(s):
        return level(s) * s - x

    others = (          # id, sentence, the largest scale, the errors with a scale
        ("signed_maximum", "the largest x is taken, not the largest |x|", x.max() / top, plain),
        ("max_minus_min", "the scales reach from the least x to the largest, not to ± max|x|",
         np.ptp(x) / (2 * top), plain),
        ("top_plus_1", "max|x| is divided by 2^(bits-1), one more than the largest integer",
         size / (top + 1), plain),
        ("all_steps", "max|x| is divided by 2^bits - 1, all levels, not by those of one sign",
         size / (2 * top + 1), plain),
        ("one_level_more", "the levels go down to -2^(bits-1), one more than there are",
         size / top, lambda s: level(s, -top - 1) * s - x),
        ("not_cut", "nothing is clipped at the largest integer",
         size / top, lambda s: np.round(x / s) * s - x),
        ("truncated", "x / scale is truncated, not rounded",
         size / top, lambda s: np.clip(np.trunc(x / s), -top, top) * s - x),
        ("rounded_down", "x / scale is rounded down",
         size / top, lambda s: np.clip(np.floor(x / s), -top, top) * s - x),
        ("in_steps", "the error is measured in steps, before the scale is multiplied back",
         size / top, lambda s: level(s) - x / s),
        ("not_multiplied", "the integers are compared with x, and not multiplied by the scale",
         size / top, lambda s: level(s) - x))
    return scales[best], {
        "never_clipped": ("the scale is always that of absmax; try every share", size / top),
        "not_divided": ("you return share · max|x|; divide by largest(bits)", scales[best] * top),
        "not_squared": ("the error is not squared", by(lambda e: np.abs(e).sum())),
        "errors_cancel": ("errors of opposite sign cancel in the sum: square them", by(np.sum)),
        "largest_error": ("the scales are compared by their largest error, not by the sum of "
                          "squares", by(lambda e: np.abs(e).max())),
        "worst": ("the scale with the largest error is taken", scales[np.argmax(squares)]),
        "clipped_left_out": ("the errors of clipped numbers are left out",
                             scales[np.argmin(inside)]),
        "index_returned": ("the index of the scale is returned, not the scale", best),
        "share_returned": ("the share is returned, not the scale", shares[best]),
        "error_returned": ("the error is returned, not the scale", min(squares))} | {
        name: (sentence, (shares * largest)[np.argmin(
            [(error(s) ** 2).sum() for s in shares * largest])])
        for name, sentence, largest, error in others}


# Numbers and shares of 2 bits, whose levels are -1, 0 and 1; the share that is right.
VALLEYS = (
    ("last_of_ties", "two scales have the same error, 3: return the first",
     [3, 1, 1, 1], [1.0, 0.5], 0),
    ("last_of_ties", "two scales have the same error, 3: return the first, here the smaller",
     [3, 1, 1, 1], [0.5, 1.0], 0),
    ("stops_at_a_rise", "the second scale is worse than the first, the third is best: try all",
     [3, 1.2, 1.2, 1.2], [1.0, 0.9, 0.5], 2))


def test_best_scale__of_all(subject):
    for name, why, x, shares, right in VALLEYS:
        got = subject.best_scale(np.array(x, float), 2, shares)
        assert got == 3 * shares[right], mistake(
            name, f"best scale of {x}, 2 bits, shares {shares}: got {got}, expected "
                  f"{3 * shares[right]}: {why}", why)


BEST = {"one number": (np.array([-3.0]), 4), "equal numbers": (np.full(9, 0.7), 4),
        "two bits": (np.array([1.0, -0.2, 0.4, 0.1]), 2), "all below 0": (-np.arange(1.0, 9), 3),
        "zeros among them": (np.array([0.0, -0.0, 0.0, 5.0]), 4),
        "around 200": (200 + np.linspace(-1, 1, 50), 8), "1e-40": (1e-40 * np.arange(1.0, 9), 4),
        "rows of a matrix": (np.array([[1.0, 2.0], [1e-3, 3e-3], [1e3, 7.0]]), 4),
        "every second of a list": (np.linspace(-1, 2, 31)[::2], 4)}


def test_best_scale__hard(subject, reference, agree):
    """One after the other in one process; shares in any order, one alone, some twice."""
    for what, (x, bits) in BEST.items():
        for shares in ([1.0, 0.75, 0.5, 0.25], [0.1, 0.9, 0.4], [0.6], [0.5, 1.0, 0.5, 1.0]):
            got, want = (side.best_scale(x, bits, shares) for side in (subject, reference))
            first = shares[0] * np.abs(x).max() / (2 ** (bits - 1) - 1)
            agree(got, want, "float64", f"best_scale, {what}, {bits} bits, shares {shares}",
                  mistakes={"short_errors": ("errors are kept in a type in which small ones are "
                                             "all 0", first)} if what == "1e-40" else {})


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
        assert isinstance(got, np.ndarray) and got.dtype == np.uint8, mistake(
            "no_bytes", f"packed: got {getattr(got, 'dtype', type(got).__name__)}, expected bytes, "
                        "uint8")
        q = q.astype(int)
        low, high = q[:half], q[half:]
        a, b = low + 8, high + 8
        agree(got, want, what=f"{len(q)} integers in {half} byte{'s' * (half != 1)}",
              at=lambda i: f"byte {i[0]}", mistakes={
                  "neighbours": ("numbers i and i + 1 share a byte; it must be i and i + n/2",
                                 (q[::2] + 8) + 16 * (q[1::2] + 8)),
                  "exchanged": ("the second half lies in the low 4 bits", b + 16 * a),
                  "no_8": ("the 8 is not added", (low & 15) + 16 * (high & 15)),
                  "sign_bits": ("the sign bits of a negative low number overwrite the high one: "
                                "add 8 first", (low | high << 4) & 255),
                  "low_8_alone": ("8 is added to the low half alone", (a | high << 4) & 255),
                  "high_8_alone": ("8 is added to the high half alone", (low | b << 4) & 255),
                  "8_after_shift": ("8 is added to the high half after its shift",
                                    (a | (high << 4) + 8) & 255),
                  "not_shifted": ("neither half is shifted", a | b),
                  "shifted_by_3": ("the high half is shifted by 3 bits", (a | b << 3) & 255),
                  "shifted_by_8": ("the high half is shifted by 8 bits, out of the byte", a),
                  "plus_7": ("7 is added; add 8", (low + 7) + 16 * (high + 7)),
                  "high_twice": ("both halves of a byte hold number i + n/2", 17 * b)})


def test_unpack_int4(subject, agree, rng):
    for q in integers(rng):
        half = len(q) // 2
        packed = np.array([int(q[i]) + 8 + 16 * (int(q[i + half]) + 8) for i in range(half)],
                          dtype=np.uint8)
        whole, q = packed.astype(int), q.astype(int)
        low, high = whole & 15, whole >> 4
        what = f"{len(q)} integers from {half} byte{'s' * (half != 1)}"
        got = subject.unpack_int4(packed)
        kind = np.asarray(got).dtype
        assert not half or kind == np.int64, mistake(
            "not_int64", f"{what}: got {kind}, expected int64: what is computed with the integers "
                         "of a shorter type wraps round")
        agree(got, q, what=what, at=lambda i: f"number {i[0]}", mistakes={
            name: (sentence, np.concatenate(halves)) for name, sentence, *halves in (
                ("no_minus_8", "8 is not subtracted", low, high),
                ("minus_7", "7 is subtracted where 8 should be", low - 7, high - 7),
                ("not_masked", "the low 4 bits are not cut out of the byte", whole - 8, high - 8),
                ("not_shifted", "the high 4 bits are cut out, but not shifted down", low - 8,
                 (high << 4) - 8),
                ("low_8_alone", "8 is subtracted from the low half alone", low - 8, high),
                ("high_8_alone", "8 is subtracted from the high half alone", low, high - 8),
                ("whole_minus_8", "8 is subtracted from the whole byte, before it is divided",
                 whole - 8 & 15, whole - 8 >> 4),
                ("modulo_15", "15 is the divisor, not 16: a half of 15 becomes 0", low % 15 - 8,
                 high % 15 - 8),
                ("neighbours", "the two halves of a byte are returned as neighbours",
                 np.stack((low, high), 1).ravel() - 8),
                ("exchanged", "the high 4 bits come first", high - 8, low - 8),
                ("wraps", "uint8 wraps around: convert to int64 before you subtract",
                 (q + 256) % 256),
                ("twos_complement", "the 4 bits are read as two's complement",
                 np.where(q + 8 > 7, q - 8, q + 8)))})
