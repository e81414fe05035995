"""Graders of g07.
Codes are compared with oracles without borders, roots or loops over w."""

import itertools
import math

import numpy as np
import pytest
import torch

from lab.judge.adversarial import VALUES, WORDS, shifted, views
from lab.judge.compare import brief
from lab.judge.mistakes import mistake
from lab.judge.subject import Raised
from layer2_graph import LEVELS, dequantize, gptq, is_matrix, load, quantize, schemes
from layer2_graph.g07_weight_quantization import SHRINK, in_a_byte
from layer2_graph.models import SMALL
from tests.layer2_graph.quantization_cases import untied

FORMATS = ("fp4", "int4", "ternary", "fp8", "int8")
FINITE = {name: make for name, make in VALUES.items()
          if name not in ("infinite", "not_a_number")} | {
              "around -3000": lambda rng, shape: shifted(rng, shape, -3000)}


# ---- predict_model_bits


def test_predict_model_bits(subject, truth):
    """Counted: the bytes of the packed codes and the scales, and two for every other weight."""
    weights = load(SMALL, dtype=torch.float32).weights
    codes = truth(lambda: sum(schemes()["int4, 32"].nbytes(w)
                              for name, w in weights.items() if is_matrix(name)))
    sizes = {name: w.numel() for name, w in weights.items()}
    total = sum(sizes.values())
    others = sum(n for name, n in sizes.items() if not is_matrix(name))
    want, got = 8 * (codes + 2 * others) / total, subject.predict_model_bits()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_model_bits: expected a number, got {got!r}")
    known, why = next((row for value, *row in (
        (4, "codes_alone", "Both the scales and the weights that stay in fp16 are missing."),
        (4.5, "matrices_alone",
         "That is a weight of the matrices. The weights that stay in fp16 are missing."),
        ((4 * (total - others) + 16 * others) / total, "no_scales",
         "The scales of the groups are missing."),
        ((4.5 + 16) / 2, "plain_mean",
         "That is the mean of the two kinds, but there are more of one kind than of the other."),
    ) if abs(got - value) < 0.02), ("other", "Add up the bits of both kinds, then divide."))
    assert abs(got - want) <= 0.1, mistake(
        known, f"predict_model_bits: {got:.2f} bits is not right: {total - others:,} weights are "
        f"in int4, {others:,} in fp16. {why}", why)


# ---- nearest


def book(x, levels, tie="even", nearer=True):
    """Codes by comparing each number with every level."""
    x, levels = np.asarray(x, np.float64), np.array(levels)
    with np.errstate(invalid="ignore"):
        away = np.abs(np.abs(x)[:, None] - levels)
    best = away == away.min(-1, keepdims=True)
    low, high = best.argmax(-1), len(levels) - 1 - best[:, ::-1].argmax(-1)
    code = {"even": np.where(low % 2, high, low), "odd": np.where(low % 2, low, high),
            "low": low, "high": high}[tie]
    if not nearer:
        code = np.searchsorted(levels, np.abs(x), "right") - 1
    return np.where(x < 0, -code, code)


def ties(x, levels):
    """{id: (sentence, codes)} of numbers halfway between two levels."""
    return {f"tie_{tie}": (f"a number halfway between two levels gets the {which}; it should get "
                           f"the even code (step 2)", book(x, levels, tie=tie))
            for tie, which in (("low", "smaller code"), ("odd", "odd code"),
                               ("high", "larger code, that of the level farther from 0"))}


@pytest.mark.parametrize("name", FORMATS)
def test_nearest(subject, agree, rng, name):
    """Levels, the ties between them, numbers around them and beyond the last."""
    levels = np.array(LEVELS[name])
    middle = (levels[1:] + levels[:-1]) / 2
    x = np.concatenate([levels, middle, rng.uniform(0, 1.2, 60) * levels[-1], [levels[-1] * 9]])
    x = np.concatenate([x, -x]).astype(np.float32)
    got = subject.nearest(torch.from_numpy(x), LEVELS[name])
    what = f"nearest, {name}, levels {', '.join(f'{v:g}' for v in levels[:8])}" + " …" * (
        len(levels) > 8)
    want = book(x, levels)
    agree(got, want, what=what, at=lambda i: f"x = {x[i[0]]:.6g}", mistakes=ties(x, levels) | {
        "level_below": ("the level below is taken, not the nearest (step 1)",
                        book(x, levels, nearer=False)),
        "level": ("the level is returned, not its code", np.sign(want) * levels[np.abs(want)]),
        "no_sign": ("the sign is missing (step 3)", np.abs(want)),
        "negative_0": ("negative numbers all get code 0 (step 1: take |x|)",
                       np.where(x < 0, 0, want)),
        "rounded": ("numbers are rounded as if the levels were 0, 1, 2 …",
                    np.clip(np.rint(x), 1 - len(levels), len(levels) - 1))})
    assert got.dtype == torch.int8, mistake(
        "dtype", f"{what}: codes are {got.dtype}, expected torch.int8")


def test_nearest__keeps_the_shape(subject, agree):
    x = torch.tensor([[[0.2, -0.9]], [[0.5, 0.51]], [[-0.5, 7.0]]])
    agree(subject.nearest(x, LEVELS["ternary"]), [[[0, -1]], [[0, 1]], [[0, 1]]],
          what="nearest, ternary, of an array of three dimensions")


def test_nearest__hard(subject, agree, rng):
    """Levels that no format has, numbers of every kind, type, shape and layout."""
    def judge(x, levels, what, where=None):
        got, values = subject.nearest(x, levels), x.double().numpy()
        assert tuple(got.shape) == values.shape, mistake("shape", (
            f"nearest, {what}: shape {tuple(got.shape)}, expected {values.shape}"))
        flat = values.ravel()
        want = book(np.clip(flat, -2 * levels[-1], 2 * levels[-1]), levels)
        here = np.ones(values.size, bool) if where is None else where.ravel()
        agree(np.where(here, got.flatten(), want), want, "exact",
              f"nearest, {what}, levels {brief(tuple(levels)[:8])}",
              lambda i: f"x = {flat[i[0]]:.17g}", {
                  "infinite": ("all levels are equally far from inf, and the first is taken; inf "
                               "is beyond the last level", np.where(np.isinf(flat), 0, want)),
                  "rounded_first": ("numbers next to a border are rounded onto it, in a shorter "
                                    "type", book(flat.astype(np.float32), levels)),
              } | ties(flat, levels) if here.all() else {})

    wide = (0.0, 0.5, 3.0, 3.5), (0.0, 7.0), (0.0, 0.25, 100.0), tuple(
        np.cumsum([0, *rng.integers(1, 9, 127) / 8]).tolist())
    for levels in wide:
        values = np.array(levels)
        middle = (values[1:] + values[:-1]) / 2
        for x, what in ((np.concatenate([values, middle]), "halfway"), (np.concatenate(
                [np.nextafter(middle, 0), np.nextafter(middle, 1e9)]), "next to halfway")):
            judge(torch.from_numpy(np.concatenate([x, -x])), levels, f"float64, {what}")
        judge(torch.from_numpy(rng.uniform(-1.2, 1.2, (4, 9)) * levels[-1]).float(), levels,
              "any numbers")
    fp4 = LEVELS["fp4"]
    for kind, make in FINITE.items():
        judge(torch.from_numpy(make(rng, (3, 7))), fp4, WORDS.get(kind, kind))
    x = torch.from_numpy(4 * rng.standard_normal((6, 10))).float()
    for dtype in (torch.float16, torch.bfloat16):
        judge(x.to(dtype), fp4, f"{dtype}")
    for layout, view in views(x).items():
        judge(view, fp4, layout)
    for shape in ((), (1,), (2, 3, 1, 5), (0,), (0, 4)):
        judge(torch.from_numpy(np.asarray(3 * rng.standard_normal(shape))), fp4, f"shape {shape}")
    far = torch.from_numpy(np.tile(rng.uniform(-7, 7, 41), 810)).float()
    agree(subject.nearest(far, fp4), np.tile(book(far[:41].numpy(), fp4), 810), "exact",
          "nearest, 33,210 numbers")
    judge(torch.tensor([math.inf, 1.0, -math.inf]), fp4, "infinite: beyond the last level")
    x[2, 3] = math.nan
    try:
        judge(x, fp4, "the numbers beside one that is NaN", x.isfinite().numpy())
    except Raised as refusal:
        assert "ValueError" in refusal.text, refusal.text


# ---- pack


def bytes_of(codes, low, top, most_first=False, offset=None, radix=None, zeros_first=False,
             power=1, fill=0):
    """The bytes of codes, uint8. offset: what makes a code a digit    power: of the radix"""
    n, own = in_a_byte(low, top)
    digits = [int(q) + (-low if offset is None else offset) for q in codes.ravel()]
    zeros = [fill] * (-len(digits) % n)
    digits = zeros + digits if zeros_first else digits + zeros
    powers = [(radix or own) ** (i * power) for i in range(n)][::-1 if most_first else 1]
    return np.array([sum(d * p for d, p in zip(digits[i:i + n], powers, strict=True)) % 256
                     for i in range(0, len(digits), n)], int)


def right_bytes(subject, agree, codes, low, top, what):
    """The bytes of codes (rows, columns) are those of the book, one after another."""
    n, _ = in_a_byte(low, top)
    got, numbers = subject.pack(codes, low, top), codes.numpy()

    def book(codes=numbers, **wrong):
        return bytes_of(codes, low, top, **wrong)

    want = book()
    what = f"pack, {what}: {numbers.size} codes from {low} to {top}, {n} to a byte"
    count = tuple(got.shape) if torch.is_tensor(got) else None
    known, why = "byte_count", "in_a_byte gives n and radix."
    if count == (len(want) + 1,) and numbers.size % n == 0:
        known, why = "byte_added", "If nothing is left over, no byte is added."
    elif count == (len(numbers) * -(-numbers.shape[1] // n),):
        known, why = "rows_filled", ("Each row is filled up to whole bytes. Only the last byte of "
                                     "all is: the next row begins where the one before ends.")
    assert count == want.shape, mistake(
        known, f"{what}, need {len(want)} bytes, got {brief(got)}. {why}", why)
    agree(got, want, "exact", what, lambda i: f"byte {i[0]}", {
        "most_first": ("the first code of a byte counts most", book(most_first=True)),
        "no_offset": ("low is not subtracted, so some digits are negative", book(offset=0)),
        "from_one": ("the code low becomes the digit 1; it should become 0", book(offset=1 - low)),
        "no_powers": ("digits are added up as they are, without the powers of the radix",
                      book(power=0)),
        "by_columns": ("codes are taken column after column, or as they lie in memory, not row "
                       "after row", book(numbers.T)),
        "own_radix": ("the radix is the number of codes, not `in_a_byte`'s",
                      book(radix=top - low + 1)),
        "zeros_first": ("the zeros that fill the last byte stand before the first code",
                        book(zeros_first=True)),
        "padded_first": ("codes of 0 fill the last byte, and low is subtracted from them, too: a "
                         "digit of 0 is not the code 0", book(fill=-low)),
        "top_added": ("top is added, but low should be subtracted: they differ where low is not "
                      "-top", book(offset=top))})
    assert got.dtype == torch.uint8, mistake(
        "dtype", f"{what}: bytes are {got.dtype}, expected torch.uint8")


def codes_of(rng, low, top, *shape):
    """Any codes from low to top."""
    return torch.from_numpy(rng.integers(low, top + 1, shape)).to(torch.int8)


@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (5, 129)])
@pytest.mark.parametrize("name, low, top", [("ternary", -1, 1), ("2 bits", -2, 1), ("int4", -7, 7),
                                            ("fp8", -126, 126), ("int8", -127, 127)])
def test_pack(subject, agree, rng, name, low, top, shape):
    known = {"ternary": (5, 3), "2 bits": (4, 4), "int4": (2, 16)}.get(name, (1, 256))
    assert in_a_byte(low, top) == known, "the course's own case is wrong: please report it"
    right_bytes(subject, agree, codes_of(rng, low, top, *shape), low, top, name)


def test_pack__hard(subject, agree, rng):
    """Any range of codes, with and without a remainder, every layout."""
    ranges = [(-top, top) for top in (7, 1, 2, 3, 4, 6, 8, 63, 126, 127)]
    for low, top in (*ranges, (-8, 7), (-2, 1), (0, 1), (-3, 0), (0, 15), (-4, 1), (-128, 127)):
        for rows, columns in ((5, 6), (3, 7)):
            right_bytes(subject, agree, codes_of(rng, low, top, rows, columns), low, top,
                        f"{rows} rows of {columns}")
        for end, q in (("last", top), ("first", low)):
            right_bytes(subject, agree, torch.full((2, 5), q, dtype=torch.int8), low, top,
                        f"the {end} code throughout")
    for layout, view in views(codes_of(rng, -1, 1, 4, 9)).items():
        right_bytes(subject, agree, view, -1, 1, layout)
    for shape in ((1, 1), (1, 10), (10, 1), (1, 33_001), (0, 5), (5, 0)):
        right_bytes(subject, agree, codes_of(rng, -1, 1, *shape), -1, 1, f"{shape[0]} x {shape[1]}")


# ---- least_error_scales


def errors(w, levels, scales, power=2):
    """The error of each group under some scales: (N, groups, group), …, (N, groups)."""
    levels, divisor = np.array(levels), np.where(scales > 0, scales, 1)[..., None]
    away = np.abs(np.abs(w / divisor)[..., None] - levels)              # (N, groups, group, levels)
    back = levels[away.argmin(-1)] * np.sign(w) * scales[..., None]
    return (np.abs(back - w) ** power).sum(-1)


def tries(w, levels):
    """The 20 scales of each group, (20, …, groups), in fp32 and as fp16 has them."""
    largest = np.abs(w).max(-1) / np.float32(levels[-1])
    plain = np.stack([largest * np.float32(share) for share in SHRINK])
    return plain, plain.astype(np.float16).astype(float)


def right_scales(subject, w, levels, group, what):
    """The scales of each group have the least error of the 20, or a message with the likely
    mistake."""
    got = subject.least_error_scales(w, levels, group)
    groups = w.unflatten(-1, (w.shape[-1] // group, group)).numpy()
    what = f"least_error_scales, {what}, groups of {group}"
    count = tuple(got.shape) if torch.is_tensor(got) else None
    assert count == groups.shape[:-1], mistake("shape", (
        f"{what}: expected a tensor of {' x '.join(map(str, groups.shape[:-1]))} scales, got "
        f"{brief(got)}"))
    why = "Scales are rounded to fp16: see `half`."
    assert torch.equal(got, got.half().float()), mistake("unrounded", f"{what}: {why}", why)
    got, wide = got.double().numpy(), groups.astype(np.float64)
    plain, tried = tries(groups, levels)
    lost = np.stack([errors(wide, levels, scales) for scales in tried])     # (tries, …, groups)
    own, least = errors(wide, levels, got), lost.min(0)
    worse = np.argwhere(own > least * 1.0001)
    if not len(worse):
        return got

    def chosen(by):
        return np.take_along_axis(tried, by[None], 0)[0]

    absolute = np.stack([errors(wide, levels, scales, 1) for scales in tried])
    unrounded = np.stack([errors(wide, levels, scales) for scales in plain.astype(float)])
    axes = tuple(range(1, lost.ndim))
    known, why = next(((name, f"This is what comes out when {why}.") for name, why, scales in (
        ("no_search", "the largest |w| still becomes the last level: no smaller scale was tried",
         tried[0]),
        ("last_share", "the last share that was tried is kept", tried[-1]),
        ("one_for_all", "one share serves all groups; each must keep its own",
         tried[lost.sum(axes).argmin()]),
        ("absolute", "the sum of the absolute errors is minimised, not the sum of their squares",
         chosen(absolute.argmin(0))),
        ("one_a_row", "one share serves all groups of a row; each must keep its own",
         chosen(np.broadcast_to(lost.sum(-1, keepdims=True).argmin(0), least.shape))),
        ("one_a_column", "one share serves a group in every row; each must keep its own",
         chosen(np.broadcast_to(lost.sum(1, keepdims=True).argmin(0), least.shape))),
        ("share", "the best share is returned, not the scale", np.array(SHRINK)[lost.argmin(0)]),
        ("largest_error", "the largest error is kept", chosen(lost.argmax(0))),
        ("early_error", "errors are of scales that are not rounded yet; another scale is kept",
         chosen(unrounded.argmin(0)))) if np.allclose(got, scales, rtol=2e-3, atol=0)),
        ("worse", ""))
    at = tuple(worse[0])
    raise AssertionError(mistake(known, (
        f"{what}: {len(worse)} of {own.size} groups have a better scale. Group {brief(at)}, "
        f"{brief(wide[at][:4].tolist())} …: your scale {got[at]:.4g} has error {own[at]:.4g}; "
        f"scale {chosen(lost.argmin(0))[at]:.4g} has error {least[at]:.4g}. {why}"), why))


@pytest.mark.parametrize("name, group", [("ternary", 16), ("int4", 32), ("fp4", 16)])
def test_least_error_scales(subject, rng, name, group):
    N, groups = 6, 3
    w = rng.standard_normal((N, groups, group)).astype(np.float32)
    w[1:4, 1, 3] *= (4, 9, 30)                                          # outliers
    w[5, 2] = 0
    got = right_scales(subject, torch.from_numpy(w.reshape(N, -1)), LEVELS[name], group, name)
    assert got[5, 2] == 0, mistake("zeros", (
        f"least_error_scales, {name}: a group of zeros has scale {got[5, 2]:.4g}, expected 0"))


def test_least_error_scales__of_equals_the_first(subject, agree, rng):
    """Whole numbers up to 20 scales: all errors are exact, and many are equal."""
    for name, last in (("ternary", 1), ("int4", 7), ("fp4", 6)):
        levels, (N, groups, group) = LEVELS[name], (30, 4, 5)
        w = rng.integers(-20 * last, 20 * last + 1, (N, groups, group)).astype(np.float32)
        w[:, :, 2] = 20 * last * rng.choice([-1, 1], (N, groups))
        tried = np.stack([np.full((N, groups), float(20 - i)) for i in range(20)])
        lost = np.stack([errors(w, levels, scales) for scales in tried])
        tied = ((lost == lost.min(0)).sum(0) > 1).any()
        assert tied or name != "ternary", "the course's own case is wrong: please report it"
        late = tried[::-1][lost[::-1].argmin(0), *np.indices((N, groups))]
        got = subject.least_error_scales(torch.from_numpy(w.reshape(N, -1)), levels, group)
        agree(got, tried[lost.argmin(0), *np.indices((N, groups))], "exact",
              f"least_error_scales, {name}, whole numbers: two scales may be equally good",
              lambda i, w=w: f"w = {w[i].tolist()}: the scale", {
                  "last_of_equals": ("of equally good scales the last is kept", late)})


def test_least_error_scales__hard(subject, rng):
    """Groups of every kind, each checked alone, in arrays of every shape and layout."""
    def judge(w, levels, group, what):
        right_scales(subject, w, levels, group, what)

    for (kind, make), name in itertools.product(FINITE.items(), ("ternary", "fp4")):
        judge(torch.from_numpy(make(rng, (2, 32))), LEVELS[name], 16,
              f"{name}, {WORDS.get(kind, kind)}")
    w, levels = torch.from_numpy(rng.standard_normal((4, 60))).float(), LEVELS["int4"]
    judge(torch.from_numpy(rng.standard_normal((40, 32))).float() * 1e-6, levels, 16,
          "numbers of 1e-6: scales near fp16's least")
    for layout, view in views(w).items():
        judge(view, levels, 15, layout)
    for shape, group in (((1, 17), 17), ((3, 5), 1), ((30,), 15), ((2, 2, 34), 17), ((0, 4), 2)):
        judge(torch.from_numpy(rng.standard_normal(shape)).float(), levels, group, f"w {shape}")
    judge(torch.from_numpy(rng.standard_normal((1, 33_000))).float(), LEVELS["ternary"], 33_000,
          "a group of 33,000 numbers")
    judge(w, (0.0, 0.5, 3.0, 3.5), 20, "levels that no format has")


def test_least_error_scales__several_minima(subject, rng):
    """Groups by themselves, in which a share is no better than those before it, and a later one
    is."""
    for name, group in (("ternary", 5), ("ternary", 12), ("fp4", 6)):
        levels = LEVELS[name]
        w = rng.standard_normal((400, 1, group)).astype(np.float32)
        lost = np.stack([errors(w, levels, scales)[:, 0] for scales in tries(w, levels)[1]])
        stop = (lost[1:] >= np.minimum.accumulate(lost)[:-1]).argmax(0) + 1     # first no better
        early = np.array([lost[:k, row].min() for row, k in enumerate(stop)])
        for row in np.flatnonzero(early > 1.02 * lost.min(0))[:8]:
            got = subject.least_error_scales(torch.from_numpy(w[row]), levels, group)
            own = errors(w[row][None], levels, got.double().numpy()).item()
            by = lost[:, row].argmin()
            why = "The error has more than one minimum, so try all shares."
            assert own <= lost[by, row] * 1.0001, mistake("stops_early", (
                f"least_error_scales, {name}, the one group {brief(w[row, 0].tolist())}: your "
                f"scale {got.item():.4g} has error {own:.4g}; the share {SHRINK[by]:.2f} has error "
                f"{lost[by, row]:.4g}, though {SHRINK[stop[row]]:.2f} is no better than those "
                f"before it. {why}"), why)


def test_least_error_scales__refused(subject, rng):
    cases = {"infinite values": (VALUES["infinite"](rng, (3, 8)), 4),
             "values that are not numbers": (VALUES["not_a_number"](rng, (3, 8)), 4),
             "values of 10,000,000": (np.full((3, 8), 1e7, np.float32), 4),
             "rows that are not a multiple of the group": (np.ones((3, 8), np.float32), 5)}
    for what, (w, group) in cases.items():
        try:
            subject.least_error_scales(torch.from_numpy(w), LEVELS["int4"], group)
        except Raised as refusal:
            assert "scales: " in refusal.text, refusal.text
        else:
            raise AssertionError(mistake("not_refused", (
                f"least_error_scales: w with {what} returned scales; expected the ValueError that "
                f"absmax_scales raises")))


# ---- gptq


def by_columns(w, hessian, levels, scales, good=1.0, divided=1, first=False, within=False,
               apart=False, in_codes=False, short=False, skip_zeros=False):
    """Codes by the book: after each column the best later ones, from the inverse of the rest."""
    (N, K), w, levels = w.shape, w.copy(), np.array(levels)
    H = hessian + 0.01 * np.diag(hessian).mean() * np.eye(K)
    codes, groups = np.empty((N, K), int), scales.shape[1]
    group = K // groups
    for k in range(K):
        scale = scales[:, 0 if first else k % groups if apart else k // group]
        sizes = np.abs(w[:, k] / np.where(scale > 0, scale, 1))
        code = np.abs(sizes[:, None] - levels).argmin(-1)
        codes[:, k] = code * np.sign(w[:, k])
        e = w[:, k] - np.sign(w[:, k]) * levels[code] * scale
        inverse = np.linalg.inv(H[k:, k:])
        root = inverse[0, 0] ** 0.5                                         # U[k, k]
        factor = inverse[0, 1:] / root / root ** divided
        if within:
            factor[group - k % group - 1:] = 0
        change = (e / scale if in_codes else e * (scale > 0) if skip_zeros else e)[:, None] * factor
        if short:
            e, row = (torch.from_numpy(x).half() for x in (e[:, None], inverse[0, 1:] / root))
            change = (e * row / torch.tensor(root)).double().numpy()
        w[:, k + 1:] -= good * change
    return codes


class Problem:
    """A matrix, its scales, and rows x that correlate, as activations do."""

    def __init__(self, rng, name, group, N=5, K=32):
        self.levels, self.w = LEVELS[name], rng.standard_normal((N, K))
        self.x = rng.standard_normal((200, K)) @ (np.eye(K) + rng.standard_normal((K, K)) / 4)
        self.x /= 7                 # U's diagonal is then neither 1 nor so small that it is 0
        self.hessian = self.x.T @ self.x
        largest = np.abs(self.w.reshape(N, -1, group)).max(-1)
        self.scales = largest / self.levels[-1] * (0.5 if name == "ternary" else 1)

    def run(self, function):
        return function(*(torch.from_numpy(a) for a in (self.w, self.hessian)), self.levels,
                        torch.from_numpy(self.scales))

    def codes(self, **change):
        return by_columns(self.w, self.hessian, self.levels, self.scales, **change)

    def lost(self, codes):
        back = dequantize(torch.as_tensor(codes), self.levels, torch.from_numpy(self.scales))
        return float(np.square(self.x @ (back.numpy() - self.w).T).sum())


UNCORRECTED = "the later columns are not corrected"


@pytest.mark.parametrize("name, group", [("int4", 16), ("ternary", 8), ("fp4", 32)])
def test_gptq(subject, agree, rng, name, group):
    problem = Problem(rng, name, group)
    got = problem.run(subject.gptq)
    agree(got, problem.codes(), what=f"gptq, {name}, groups of {group}",
          at=lambda i: f"row {i[0]}, column {i[1]}", mistakes={
              known: (why, problem.codes(**change)) for known, why, change in (
                  ("uncorrected", UNCORRECTED, {"good": 0.0}),
                  ("added", "the correction is added to the later columns instead of subtracted",
                   {"good": -1.0}),
                  ("undivided", "the correction is not divided by U[k, k]", {"divided": 0}),
                  ("divided_twice", "the correction is divided by U[k, k] twice", {"divided": 2}),
                  ("within_group", "only columns of the same group are corrected; all later ones "
                   "must be", {"within": True}),
                  ("modulo", "column k uses the scale k % groups, as if groups were not neighbours",
                   {"apart": True}),
                  ("in_codes", "the error is counted in codes, before the scale",
                   {"in_codes": True}),
                  ("short", "the corrections are computed in 16 bits", {"short": True}),
                  ("first_scale", "every column uses the scale of the first group",
                   {"first": True}))})
    assert got.dtype == torch.int8, mistake(
        "dtype", f"gptq, {name}: codes are {got.dtype}, expected torch.int8")


def test_gptq__hard(subject, agree, rng):
    """Rows of every kind, groups of every size, each argument in every layout.
    In float64 the codes are the course's own, whatever the order of sums."""
    def numbers(*shape):
        return torch.from_numpy(rng.standard_normal(shape))

    def hessian_of(K):
        x = numbers(200, K) @ (torch.eye(K) + numbers(K, K) / 4) / 7
        return x.T @ x

    def scales_of(w, levels, group):
        return w.unflatten(1, (-1, group)).abs().amax(-1) / levels[-1] * 0.8

    def judge(w, hessian, scales, levels, what, others=None):
        agree(subject.gptq(w, hessian, levels, scales), gptq(w, hessian, levels, scales).numpy(),
              "exact", f"gptq, {what}", lambda i: f"row {i[0]}, column {i[1]}",
              {"uncorrected": (UNCORRECTED, quantize(w, levels, scales).numpy())} | (others or {}))

    hessian, int4 = hessian_of(16), LEVELS["int4"]
    for kind, make in FINITE.items():
        w = torch.from_numpy(untied(rng, make(rng, (4, 16)), kind)).double()
        judge(w, hessian, scales_of(w, int4, 4), int4, WORDS.get(kind, kind))
    w = numbers(4, 16)
    for levels in (LEVELS["int8"], LEVELS["fp8"], (0.0, 0.5, 3.0, 3.5)):
        judge(w, hessian, scales_of(w, levels, 8), levels, f"{len(levels)} levels")
    scales = scales_of(w, int4, 4)
    in_memory = {"as_in_memory": ("a matrix is read as if its rows followed one another in memory",
                                  gptq(w.T.reshape(w.shape), hessian, int4, scales).numpy())}
    for i, layout in itertools.product(range(3), views(w)):
        arrays = [w, hessian, scales]
        arrays[i] = views(arrays[i])[layout]
        judge(*arrays, int4, f"{('w', 'the Hessian', 'scales')[i]} with {layout}", in_memory)
    w = numbers(200, 31)
    judge(w, hessian_of(31), scales_of(w, int4, 31), int4, "200 rows of 31, one group")
    for N, K, group in ((1, 17, 1), (3, 1, 1), (1, 1, 1), (5, 12, 3), (5, 12, 4), (0, 4, 2),
                        (33_000, 4, 2)):
        w = numbers(N, K)
        judge(w, hessian_of(K), scales_of(w, int4, group), int4,
              f"{N} rows of {K}, groups of {group}")
    w = numbers(4, 16)
    scales = scales_of(w, int4, 4)
    scales[1, 2] = 0
    skipping = by_columns(w.numpy(), hessian.numpy(), int4, scales.numpy(), skip_zeros=True)
    judge(w, hessian, scales, int4, "a scale of 0: the group becomes zeros, and all of it is error "
          "to correct", {"zero_scale": ("the error of a group whose scale is 0 is not corrected",
                                        skipping)})


def test_gptq__halfway(subject, agree, rng):
    """Uncorrelated inputs: no column changes, and halves go to the even code."""
    w = torch.from_numpy(rng.integers(-12, 13, (6, 8)) / 2)
    got = subject.gptq(w, torch.eye(8).double() * 3, LEVELS["int4"], torch.ones(6, 2).double())
    agree(got, np.rint(w.numpy()).astype(int), "exact", "gptq, numbers halfway between two codes",
          lambda i: f"w = {w[i].item():g}", {
              "half_up": ("a number halfway between two codes is rounded up; nearest takes the "
                          "even code", np.floor(w.numpy() + 0.5).astype(int))})


def test_results_of_gptq_are_nearer_and_weights_are_not(rng):
    problem = Problem(rng, "int4", 16)
    own, plain = problem.run(gptq), problem.codes(good=0.0)
    assert problem.lost(own) < 0.7 * problem.lost(plain)
    w, scales = torch.from_numpy(problem.w), torch.from_numpy(problem.scales)
    away = [(dequantize(torch.as_tensor(c), problem.levels, scales) - w).square().sum()
            for c in (own, plain)]
    assert away[0] > away[1]
