"""Graders of g07. Codes are compared with oracles without borders, roots or loops over w."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from day01_roofline import decode_costs
from day02_overview import NANO
from lab import simulator
from lab.course import ROOT
from lab.judge.adversarial import VALUES, shifted, views
from lab.judge.compare import brief
from lab.judge.subject import Raised
from layer1_kernels import dequantize_weight, kernels, quantize_weight
from layer2_graph import (
    LEVELS,
    Config,
    ContiguousCache,
    Launches,
    Llama,
    PackedWeight,
    Work,
    absmax_scales,
    absmean_scales,
    dequantize,
    gptq,
    greedy,
    hessians,
    is_matrix,
    least_error_scales,
    load,
    mx_scales,
    nearest,
    nv_scales,
    pack,
    packed_matmul,
    perplexity,
    quantize,
    quantize_llama,
    relative_error,
    round_trip,
    schemes,
    unpack,
    with_matrices,
    with_zero_point,
)
from layer2_graph.checkpoint import shapes
from layer2_graph.g07_weight_quantization import SHRINK, in_a_byte
from layer2_graph.small import evaluate
from layer2_graph.small.corpus import BEGIN, stories
from layer2_graph.small.train import encode

SMALL = ROOT / "layer2_graph" / "small"
FORMATS = ("fp4", "int4", "ternary", "fp8", "int8")
FINITE = {name: make for name, make in VALUES.items()
          if name not in ("infinite", "not_a_number")} | {
              "around -3000": lambda rng, shape: shifted(rng, shape, -3000)}


def untied(rng, x, kind):
    """x, changed so that no number is halfway between two codes: simple fractions would be."""
    noise = rng.uniform(0.99, 1, x.shape).astype(x.dtype)
    return x * noise if kind in ("tied", "exact_sums") else x


@pytest.fixture(scope="module")
def small():
    return load(SMALL, dtype=torch.float32)


def tiny(**entries):
    torch.manual_seed(0)
    m = Config(**{"L": 2, "C": 32, "H": 4, "G": 2, "D": 16, "F": 48, "V": 31, "eps": 1e-5,
                  "theta": 1e4, "room": 64} | entries)
    return Llama(m, {name: torch.randn(shape) / 4 for name, shape in shapes(m)}, kernels("torch"))


# ---- predict_model_bits


def test_predict_model_bits(subject, truth, small):
    """Counted: the bytes of the packed codes and the scales, and two for every other weight."""
    sizes = {k: w.numel() for k, w in small.weights.items()}
    codes = truth(lambda: sum(schemes()["int4, 32"].nbytes(w)
                              for name, w in small.weights.items() if is_matrix(name)))
    others = sum(n for name, n in sizes.items() if not is_matrix(name))
    total = sum(sizes.values())
    want, got = 8 * (codes + 2 * others) / total, subject.predict_model_bits()
    wrong = {4: "Neither the scales are in it, nor what stays in fp16.",
             4.5: "So many has a weight of the matrices. What stays in fp16 is forgotten.",
             (4 * (total - others) + 16 * others) / total: "The scales of groups are forgotten.",
             (4.5 + 16) / 2: "That is the middle of the two kinds; but there are not equally many."}
    assert isinstance(got, (int, float)), f"predict_model_bits: {got!r} is no number"
    near = next((text for value, text in wrong.items() if abs(got - value) < 0.02), "")
    assert abs(got - want) <= 0.1, (
        f"predict_model_bits: predicted {got:.2f}, counted {want:.2f}: {total - others:,} weights "
        f"in int4, {others:,} in fp16. {near}")


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
    agree(got, want, what=what, at=lambda i: f"x = {x[i[0]]:.6g}", mistakes={
        "the level below is taken, not the nearest": book(x, levels, nearer=False),
        "a tie goes to the smaller code": book(x, levels, tie="low"),
        "a tie goes to the odd code": book(x, levels, tie="odd"),
        "a tie goes to the larger code": book(x, levels, tie="high"),
        "the level is returned, not its code": np.sign(want) * levels[np.abs(want)],
        "the sign is lost": np.abs(want),
        "every negative number becomes 0": np.where(x < 0, 0, want),
        "numbers are rounded as if the levels were 0, 1, 2 …":
            np.clip(np.rint(x), 1 - len(levels), len(levels) - 1)})
    assert got.dtype == torch.int8, f"{what}: codes are {got.dtype}, expected torch.int8"


def test_nearest__keeps_the_shape(subject, agree):
    x = torch.tensor([[[0.2, -0.9]], [[0.5, 0.51]], [[-0.5, 7.0]]])
    agree(subject.nearest(x, LEVELS["ternary"]), [[[0, -1]], [[0, 1]], [[0, 1]]],
          what="nearest, ternary, of an array of three dimensions")


def test_nearest__hard(subject, agree, rng):
    """Levels that no format has, numbers of every kind, type, shape and layout."""
    def judge(x, levels, what, where=None):
        got, values = subject.nearest(x, levels), x.double().numpy()
        assert tuple(got.shape) == values.shape, (
            f"nearest, {what}: shape {tuple(got.shape)}, expected {values.shape}")
        want = book(np.clip(values.ravel(), -2 * levels[-1], 2 * levels[-1]), levels)
        here = np.ones(values.size, bool) if where is None else where.ravel()
        agree(np.where(here, got.flatten(), want), want, "exact",
              f"nearest, {what}, levels {brief(tuple(levels)[:8])}",
              lambda i: f"x = {values.ravel()[i[0]]:.17g}", {
                  "every level is as far from inf; it is beyond the last all the same":
                      np.where(np.isinf(values.ravel()), 0, want),
                  "a tie goes to the number that is farther from 0":
                      book(values.ravel(), levels, tie="high"),
                  "a tie goes to the number that is nearer to 0":
                      book(values.ravel(), levels, tie="low")} if here.all() else {})

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
        judge(torch.from_numpy(make(rng, (3, 7))), fp4, f"{kind.replace('_', ' ')} in x")
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


def test_fp8_codes_are_torchs_bits(rng):
    x = torch.from_numpy(rng.standard_normal(4000) * 10.0 ** rng.uniform(-4, 2, 4000)).float()
    x = x.clamp(-448, 448)
    bits = x.to(torch.float8_e4m3fn).view(torch.uint8).to(torch.int16)
    assert torch.equal(nearest(x, LEVELS["fp8"]).abs(), (bits & 127).to(torch.int8))
    every = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    assert LEVELS["fp8"] == tuple(every.tolist())
    assert LEVELS["fp4"] == (0, 0.5, 1, 1.5, 2, 3, 4, 6)            # the table of the OCP's text


@pytest.mark.parametrize("bits", [4, 8])
def test_int_codes_are_k15s(rng, bits):
    w = torch.from_numpy(rng.standard_normal((7, 64))).float()
    w[2, 16:32] = 0
    packed, scales = quantize_weight(w, bits, 16)
    assert torch.equal(round_trip(w, LEVELS[f"int{bits}"], scales),
                       dequantize_weight(packed, scales, bits, 16))


# ---- pack


def bytes_of(codes, levels, most_first=False, offset=True, radix=None, pad_front=False, power=1):
    n, own = {1: (5, 3), 7: (2, 16), 127: (1, 256), 126: (1, 256)}[len(levels) - 1]
    digits = [int(q) + (len(levels) - 1) * offset for q in codes.ravel()]
    zeros = [0] * (-len(digits) % n)
    digits = zeros + digits if pad_front else digits + zeros
    powers = [(radix or own) ** (i * power) for i in range(n)][::-1 if most_first else 1]
    return np.array([sum(d * p for d, p in zip(digits[i:i + n], powers, strict=True)) % 256
                     for i in range(0, len(digits), n)])


@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (5, 129)])
@pytest.mark.parametrize("name", ["ternary", "int4", "fp8", "int8"])
def test_pack(subject, agree, rng, name, shape):
    levels = LEVELS[name]
    codes = rng.integers(1 - len(levels), len(levels), shape)
    got = subject.pack(torch.from_numpy(codes).to(torch.int8), levels)
    n, _ = in_a_byte(levels)
    assert codes.size % n or tuple(got.shape) == (codes.size // n,), (
        f"pack, {name}: {codes.size} codes, {n} a byte, make {brief(got)}, expected "
        f"{codes.size // n} bytes. No byte is added where nothing is left over")
    each = -(-shape[1] // n)
    assert tuple(got.shape) != (shape[0] * each,) or shape[0] * each == -(-codes.size // n), (
        f"pack, {name}: {shape[0]} rows of {shape[1]} codes, {n} a byte, make {shape[0] * each} "
        f"bytes, expected {-(-codes.size // n)}: each row is filled up to whole bytes. Only the "
        f"last byte of all is: the next row begins where the one before ends")
    agree(got, bytes_of(codes, levels), what=f"pack, {name}, {codes.size} codes",
          at=lambda i: f"byte {i[0]}", mistakes={
        "the first code of a byte counts most": bytes_of(codes, levels, most_first=True),
        "the largest code is not added, and digits may be negative":
            bytes_of(codes, levels, offset=False),
        "the number of levels is added, not the largest code, which is one less":
            bytes_of(codes + 1, levels),
        "digits are added up as they are: the powers of the radix are left out":
            bytes_of(codes, levels, power=0),
        "codes are taken column after column": bytes_of(codes.T, levels),
        "the radix is the number of codes": bytes_of(codes, levels, radix=2 * len(levels) - 1),
        "the zeros that fill up come before the first code":
            bytes_of(codes, levels, pad_front=True)})
    assert got.dtype == torch.uint8, f"pack: bytes are {got.dtype}, expected torch.uint8"


def test_pack__hard(subject, agree, rng):
    """Any number of levels, with and without a remainder, every layout."""
    def judge(codes, count, what):
        levels = tuple(map(float, range(count)))
        n, radix = in_a_byte(levels)
        flat, got = codes.flatten().tolist(), subject.pack(codes, levels)
        want = written(flat, count, n, radix)
        assert got.shape == (len(want),), (
            f"pack, {what}: {len(flat)} codes, {n} a byte, make {brief(got)}, expected an array "
            f"({len(want)},)" + ". No byte is added where nothing is left over" * (
                len(flat) % n == 0))
        agree(got, np.array(want), "exact", f"pack, {what}: {count} levels, {n} codes a byte",
              lambda i: f"byte {i[0]}", {
                  "codes are taken as they lie in memory, not row after row":
                      np.array(written(codes.T.flatten().tolist(), count, n, radix))})
        assert got.dtype == torch.uint8, f"pack, {what}: {got.dtype}, expected torch.uint8"

    def written(flat, count, n, radix):
        digits = [q + count - 1 for q in flat] + [0] * (-len(flat) % n)
        return [sum(d * radix ** i for i, d in enumerate(digits[b:b + n]))
                for b in range(0, len(digits), n)]

    def codes(count, *shape):
        return torch.from_numpy(rng.integers(1 - count, count, shape)).to(torch.int8)

    for count in (8, 2, 3, 4, 5, 7, 9, 64, 127, 128):
        judge(codes(count, 5, 6), count, "5 rows of 6")
        judge(codes(count, 3, 7), count, "3 rows of 7")
        judge(torch.full((2, 5), count - 1, dtype=torch.int8), count, "the last code throughout")
    for layout, view in views(codes(2, 4, 9)).items():
        judge(view, 2, layout)
    for shape in ((1, 1), (1, 10), (10, 1), (1, 33_001), (0, 5), (5, 0)):
        judge(codes(2, *shape), 2, f"{shape[0]} x {shape[1]}")


@pytest.mark.parametrize("name", FORMATS)
def test_unpack_gives_the_codes_again(rng, name):
    levels = LEVELS[name]
    codes = torch.from_numpy(rng.integers(1 - len(levels), len(levels), (6, 37))).to(torch.int8)
    assert torch.equal(unpack(pack(codes, levels), levels, (6, 37)), codes)


# ---- least_error_scales


def errors(w, levels, scales, power=2):
    """The error of each group under some scales: (N, groups, group), …, (N, groups)."""
    levels, divisor = np.array(levels), np.where(scales > 0, scales, 1)[..., None]
    away = np.abs(np.abs(w / divisor)[..., None] - levels)              # (N, groups, group, levels)
    back = levels[away.argmin(-1)] * np.sign(w) * scales[..., None]
    return (np.abs(back - w) ** power).sum(-1)


@pytest.mark.parametrize("name, group", [("ternary", 16), ("int4", 32), ("fp4", 16)])
def test_least_error_scales(subject, rng, name, group):
    levels, (N, groups) = LEVELS[name], (6, 3)
    w = rng.standard_normal((N, groups, group)).astype(np.float32)
    w[1:4, 1, 3] *= (4, 9, 30)                                          # outliers
    w[5, 2] = 0
    what = f"least_error_scales, {name}, groups of {group}"
    got = subject.least_error_scales(torch.from_numpy(w.reshape(N, -1)), levels, group)
    assert torch.is_tensor(got) and got.shape == (N, groups), \
        f"{what}: expected a tensor of {N} x {groups} scales, got {getattr(got, 'shape', got)}"
    assert torch.equal(got, got.half().float()), f"{what}: scales are not rounded to fp16"
    got, largest = got.double().numpy(), np.abs(w).max(-1) / levels[-1]
    tried = np.stack([(largest * share).astype(np.float16) for share in SHRINK]).astype(float)
    lost = np.stack([errors(w, levels, scales) for scales in tried])    # (tries, N, groups)
    rows = np.indices((N, groups))

    def chosen(by):
        return tried[by, *rows]

    own, least = errors(w, levels, got), lost.min(0)
    wrong = own > least * 1.0001 + 1e-9
    absolute = np.stack([errors(w, levels, scales, 1) for scales in tried])
    mistakes = {
        "the largest |w| still becomes the last level: no smaller scale was tried": tried[0],
        "the last share that was tried is kept": tried[-1],
        "one share serves all groups; each must keep its own":
            tried[lost.sum((1, 2)).argmin()],
        "the sum of |errors| is made least, not that of their squares": chosen(absolute.argmin(0)),
        "one share serves all groups of a row; each must keep its own":
            chosen(np.repeat(lost.sum(2).argmin(0)[:, None], groups, axis=1)),
        "one share serves a group in every row; each must keep its own":
            chosen(np.repeat(lost.sum(1).argmin(0)[None], N, axis=0)),
        "the best share is returned, not the scale": np.array(SHRINK)[lost.argmin(0)],
        "the largest error is kept": chosen(lost.argmax(0))}
    text = next((f"\nThis is what comes out when {mistake}." for mistake, scales in mistakes.items()
                 if np.allclose(got, scales, rtol=2e-3, atol=0)), "")
    if wrong.any():
        n, g = np.argwhere(wrong)[0]
        raise AssertionError(f"{what}: {wrong.sum()} of {N * groups} groups could be nearer. Row "
                             f"{n}, group {g}: error {own[n, g]:.4g} with scale {got[n, g]:.4g}, "
                             f"{least[n, g]:.4g} with {chosen(lost.argmin(0))[n, g]:.4g}{text}")
    assert got[5, 2] == 0, f"{what}: a group of zeros has scale {got[5, 2]:.4g}, expected 0"


def test_least_error_scales__of_equals_the_first(subject, agree, rng):
    """Whole numbers up to 20 scales: all errors are exact, and many are equal."""
    for name, last in (("ternary", 1), ("int4", 7), ("fp4", 6)):
        levels, (N, groups, group) = LEVELS[name], (30, 4, 5)
        w = rng.integers(-20 * last, 20 * last + 1, (N, groups, group)).astype(np.float32)
        w[:, :, 2] = 20 * last * rng.choice([-1, 1], (N, groups))
        tried = np.stack([np.full((N, groups), float(20 - i)) for i in range(20)])
        lost = np.stack([errors(w, levels, scales) for scales in tried])
        assert ((lost == lost.min(0)).sum(0) > 1).any() or name != "ternary"
        late = tried[::-1][lost[::-1].argmin(0), *np.indices((N, groups))]
        got = subject.least_error_scales(torch.from_numpy(w.reshape(N, -1)), levels, group)
        agree(got, tried[lost.argmin(0), *np.indices((N, groups))], "exact",
              f"least_error_scales, {name}, whole numbers: two scales may be equally good",
              lambda i, w=w: f"w = {w[i].tolist()}: the scale", {
                  "of equals the last is kept": late})


def test_least_error_scales__hard(subject, agree, rng):
    """Groups of every kind, each checked alone, in arrays of every shape and layout."""
    def judge(w, levels, group, what):
        got = subject.least_error_scales(w, levels, group)
        groups = w.double().unflatten(-1, (w.shape[-1] // group, group)).numpy()
        what = f"least_error_scales, {what}, groups of {group}"
        assert tuple(got.shape) == groups.shape[:-1], (
            f"{what}: shape {tuple(got.shape)}, expected {groups.shape[:-1]}")
        assert torch.equal(got, got.half().float()), f"{what}: scales are not rounded to fp16"
        largest = (w.abs().unflatten(-1, (-1, group)).amax(-1) / levels[-1]).numpy()
        tried = np.stack([(largest * share).astype(np.float16).astype(float) for share in SHRINK])
        lost = np.stack([errors(groups, levels, scales) for scales in tried])
        own, least = errors(groups, levels, got.double().numpy()), lost.min(0)
        wrong = np.argwhere(own > least * 1.0001)
        if len(wrong):
            at = tuple(wrong[0])
            best = tried[lost[:, *at].argmin(), *at]
            raise AssertionError(
                f"{what}: {brief(groups[at][:4].tolist())} … has error {own[at]:.4g} with scale "
                f"{got[at]:.4g}, {least[at]:.4g} with {best:.4g}")

    kinds = {kind: make(rng, (2, 32)) for kind, make in FINITE.items()}
    for (kind, array), name in itertools.product(kinds.items(), ("ternary", "fp4")):
        judge(torch.from_numpy(array), LEVELS[name], 16, f"{name}, {kind.replace('_', ' ')} in w")
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
        largest = np.abs(w).max(-1) / levels[-1]
        tried = [(largest * share).astype(np.float16).astype(float) for share in SHRINK]
        lost = np.stack([errors(w, levels, scales)[:, 0] for scales in tried])      # (tries, 400)
        stop = (lost[1:] >= np.minimum.accumulate(lost)[:-1]).argmax(0) + 1     # first no better
        early = np.array([lost[:k, row].min() for row, k in enumerate(stop)])
        for row in np.flatnonzero(early > 1.02 * lost.min(0))[:8]:
            got = subject.least_error_scales(torch.from_numpy(w[row]), levels, group)
            own = errors(w[row][None], levels, got.double().numpy()).item()
            by = lost[:, row].argmin()
            assert own <= lost[by, row] * 1.0001, (
                f"least_error_scales, {name}, the one group {brief(w[row, 0].tolist())}: error "
                f"{own:.4g} with scale {got.item():.4g}, {lost[by, row]:.4g} with the share "
                f"{SHRINK[by]:.2f}. The share {SHRINK[stop[row]]:.2f} is no better than those "
                f"before it, and yet the search goes on: the error has more than one minimum")


def test_least_error_scales__refused(subject, rng):
    for kind in ("infinite", "not_a_number", "too large", "ragged"):
        w = VALUES[kind](rng, (3, 8)) if kind in VALUES else np.full((3, 8), 1e7, np.float32)
        try:
            subject.least_error_scales(torch.from_numpy(w), LEVELS["int4"],
                                       5 if kind == "ragged" else 4)
        except Raised as refusal:
            assert "scales: " in refusal.text, refusal.text
        else:
            raise AssertionError(f"least_error_scales: w that is {kind.replace('_', ' ')} has "
                                 "scales, expected the ValueError that absmax_scales makes")


# ---- gptq


class Given:
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

    def codes(self, good=1.0, divided=1, first=False, within=False, apart=False, in_codes=False):
        """By the book: after each column the best later ones, from the inverse of the rest."""
        (N, K), w = self.w.shape, self.w.copy()
        H = self.hessian + 0.01 * np.diag(self.hessian).mean() * np.eye(K)
        codes, levels = np.empty((N, K), int), np.array(self.levels)
        groups = self.scales.shape[1]
        group = K // groups
        for k in range(K):
            scale = self.scales[:, 0 if first else k % groups if apart else k // group]
            code = np.abs(np.abs(w[:, k] / scale)[:, None] - levels).argmin(-1)
            codes[:, k] = code * np.sign(w[:, k])
            lost = w[:, k] - np.sign(w[:, k]) * levels[code] * scale
            inverse = np.linalg.inv(H[k:, k:])
            factor = inverse[0, 1:] / inverse[0, 0] ** ((1 + divided) / 2)     # its root is U[k, k]
            if within:
                factor[group - k % group - 1:] = 0
            w[:, k + 1:] -= good * (lost / scale if in_codes else lost)[:, None] * factor
        return codes

    def lost(self, codes):
        back = dequantize(torch.as_tensor(codes), self.levels, torch.from_numpy(self.scales))
        return float(np.square(self.x @ (back.numpy() - self.w).T).sum())


@pytest.mark.parametrize("name, group", [("int4", 16), ("ternary", 8), ("fp4", 32)])
def test_gptq(subject, agree, rng, name, group):
    given = Given(rng, name, group)
    agree(given.run(subject.gptq), given.codes(), what=f"gptq, {name}, groups of {group}",
          at=lambda i: f"row {i[0]}, column {i[1]}", mistakes={
              "no column makes good what an earlier one lost": given.codes(good=0.0),
              "what was lost is added to the later columns": given.codes(good=-1.0),
              "the factor is not divided by U[k, k]": given.codes(divided=0),
              "the factor is divided by U[k, k] twice": given.codes(divided=2),
              "only columns of the same group make good what is lost; all later ones must":
                  given.codes(within=True),
              "column k has the scale k % groups, as if groups were not neighbours":
                  given.codes(apart=True),
              "what is lost is counted in codes, before the scale": given.codes(in_codes=True),
              "every column has the scale of the first group": given.codes(first=True)})


def test_gptq__hard(subject, agree, rng):
    """Rows of every kind, groups of every size, each argument in every layout. In float64 the codes
    are the course's own, whatever the order of sums."""
    def numbers(*shape):
        return torch.from_numpy(rng.standard_normal(shape))

    def hessian_of(K):
        x = numbers(200, K) @ (torch.eye(K) + numbers(K, K) / 4) / 7
        return x.T @ x

    def scales_of(w, levels, group):
        return w.unflatten(1, (-1, group)).abs().amax(-1) / levels[-1] * 0.8

    def judge(given, levels, what):
        agree(subject.gptq(given[0], given[1], levels, given[2]),
              gptq(given[0], given[1], levels, given[2]).numpy(), "exact", f"gptq, {what}",
              lambda i: f"row {i[0]}, column {i[1]}", {
                  "no column makes good what was lost before it":
                      quantize(given[0], levels, given[2]).numpy()})

    hessian, int4 = hessian_of(16), LEVELS["int4"]
    for kind, make in FINITE.items():
        w = torch.from_numpy(untied(rng, make(rng, (4, 16)), kind)).double()
        judge((w, hessian, scales_of(w, int4, 4)), int4, f"{kind.replace('_', ' ')} in w")
    w = numbers(4, 16)
    for levels in (LEVELS["int8"], LEVELS["fp8"], (0.0, 0.5, 3.0, 3.5)):
        judge((w, hessian, scales_of(w, levels, 8)), levels, f"{len(levels)} levels")
    for i, layout in itertools.product(range(3), views(w)):
        some = [w, hessian, scales_of(w, int4, 4)]
        some[i] = views(some[i])[layout]
        judge(some, int4, f"{('w', 'the Hessian', 'scales')[i]} with {layout}")
    w = numbers(200, 31)
    judge((w, hessian_of(31), scales_of(w, int4, 31)), int4, "200 rows of 31, one group")
    for N, K, group in ((1, 17, 1), (3, 1, 1), (1, 1, 1), (5, 12, 3), (5, 12, 4), (0, 4, 2),
                        (33_000, 4, 2)):
        w = numbers(N, K)
        judge((w, hessian_of(K), scales_of(w, int4, group)), int4,
              f"{N} rows of {K}, groups of {group}")
    scales = scales_of(w := numbers(4, 16), int4, 4)
    scales[1, 2] = 0
    judge((w, hessian, scales), int4, "a scale of 0: nothing comes back, all is made good")


def test_gptq__halfway(subject, agree, rng):
    """Uncorrelated inputs: no column changes, and halves go to the even code."""
    w = torch.from_numpy(rng.integers(-12, 13, (6, 8)) / 2)
    got = subject.gptq(w, torch.eye(8).double() * 3, LEVELS["int4"], torch.ones(6, 2).double())
    agree(got, np.rint(w.numpy()).astype(int), "exact", "gptq, numbers halfway between two codes",
          lambda i: f"w = {w[i].item():g}", {
              "a half goes up; the even code is nearest's":
                  np.floor(w.numpy() + 0.5).astype(int)})


def test_results_of_gptq_are_nearer_and_weights_are_not(rng):
    given = Given(rng, "int4", 16)
    own, plain = given.run(gptq), given.codes(good=0.0)
    assert given.lost(own) < 0.7 * given.lost(plain)
    w, scales = torch.from_numpy(given.w), torch.from_numpy(given.scales)
    away = [(dequantize(torch.as_tensor(c), given.levels, scales) - w).square().sum()
            for c in (own, plain)]
    assert away[0] > away[1]


# ---- scales


def test_scales_are_those_that_the_formats_keep(rng):
    w = torch.from_numpy(rng.standard_normal((4, 64)) * 10.0 ** rng.uniform(-3, 1, (4, 64))).float()
    w[3] = 0
    for rule in (absmax_scales, absmean_scales, least_error_scales):
        scales = rule(w, LEVELS["int4"], 32)
        assert torch.equal(scales, scales.half().float()) and (scales[3] == 0).all()
    mx = mx_scales(w, LEVELS["fp4"], 32)
    over = w.unflatten(1, (-1, 32)).abs().amax(-1)[:3] / mx[:3]
    assert (mx[:3].log2() % 1 == 0).all() and (over >= 4).all() and (over < 8).all()
    nv = nv_scales(w, LEVELS["fp4"], 16)
    whole = w.abs().max() / 6 / 448
    away = ((nv / whole).flatten()[:, None] - torch.tensor(LEVELS["fp8"])).abs().amin(-1)
    assert (away <= 1e-6 * nv.flatten() / whole).all()
    for scales in (mx, nv):
        assert (round_trip(w, LEVELS["fp4"], scales)[3] == 0).all()


def test_a_zero_point_uses_every_code(rng):
    w = torch.from_numpy(rng.uniform(-0.2, 1, (5, 64))).float()
    back = with_zero_point(w, 4, 16)
    groups = w.unflatten(1, (-1, 16))
    step = (groups.amax(-1).clamp(min=0) - groups.amin(-1).clamp(max=0)) / 15
    assert ((back - w).abs().unflatten(1, (-1, 16)) <= 1.02 * step[..., None]).all()
    plain = round_trip(w, LEVELS["int4"], absmax_scales(w, LEVELS["int4"], 16))
    assert (back - w).square().sum() < 0.6 * (plain - w).square().sum()
    for fixed in (torch.zeros(2, 16), torch.ones(2, 16)):
        torch.testing.assert_close(with_zero_point(fixed, 4, 16), fixed, rtol=1e-3, atol=0)


@pytest.mark.parametrize("w, group, says", [
    (torch.ones(2, 30), 16, "rows of 30 numbers, expected a multiple of the group, 16"),
    (torch.tensor([[1.0, torch.nan]]), 2, "not finite"),
    (torch.full((1, 2), 1e7), 2, "expected up to 65504")])
def test_bad_input_is_one_sentence(w, group, says):
    with pytest.raises(ValueError, match=says):
        absmax_scales(w, LEVELS["int4"], group)


def test_bits_are_counted_from_packed_arrays():
    w = torch.randn(10, 960)
    assert [schemes()[name].nbytes(w) * 8 / w.numel() for name in (
        "int8, a row", "int4, 32", "NVFP4", "MXFP4", "ternary, 32")] == [
        8 + 16 / 960, 4.5, 4.5, 4.25, 1.6 + 0.5]


# ---- a model


def test_perplexity_is_that_of_the_report(small):
    """evaluate.py reads texts one by one, with another forward."""
    m, w, tokenizer = evaluate.load("small")
    documents = encode(tokenizer, stories("held out")[:5])
    want = evaluate.perplexity(evaluate.losses(m, w, documents))
    got = perplexity(small, [tokens.tolist() for tokens in documents], rows=2)
    assert got == pytest.approx(want, rel=1e-4)


def test_hessians_are_sums_of_rows():
    model, documents = tiny(), [[3, 1, 4, 1, 5], [9, 2, 6]]
    found = hessians(model, documents)
    assert set(found) == {name for name in model.weights if is_matrix(name)}
    tokens = torch.tensor([3, 1, 4, 1, 9, 2])                   # the last of each is not read
    x = model.ops.rmsnorm(model.embedding[tokens], model.layers[0].attention_norm, 1e-5)
    first = found["model.layers.0.self_attn.q_proj.weight"]
    torch.testing.assert_close(first, x.T @ x)
    assert found["model.layers.1.mlp.down_proj.weight"].shape == (48, 48)


def test_fewer_bits_are_a_larger_error(small):
    found = [relative_error(small, schemes()[name].llama(small)) for name in (
        "int8, a row", "fp8, a row", "int4, 32", "int4, a row", "ternary, 32")]
    assert found == sorted(found) and found[0] < 0.01 and found[-1] > 0.5


# ---- on k15's kernels


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("entries", [{}, {"tied": True, "bias_qkv": True}])
def test_a_packed_model_is_the_rounded_one(bits, entries):
    model = tiny(**entries)
    packed = quantize_llama(model, bits, 16)

    def back(w):
        return dequantize_weight(*quantize_weight(w, bits, 16), bits, 16)

    plain = with_matrices(model, lambda _, w: back(w))
    plain.head = back(model.head)
    prompts = [[5, 17, 3], [9, 8, 7, 6]]
    assert isinstance(packed.head, PackedWeight) and packed.embedding is model.embedding
    logits = [m.forward((cache := ContiguousCache(m.config, 2, 8)).step(prompts), cache, every=True)
              for m in (packed, plain)]
    torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)
    assert greedy(packed, prompts, 6) == greedy(plain, prompts, 6)


@pytest.mark.parametrize("bits", [4, 8])
def test_bytes_of_a_token_are_day_1s_by_the_bits(small, bits):
    packed, work = quantize_llama(small, bits, 32), Work()
    cache = ContiguousCache(small.config, 1, 16)
    packed.ops = work.counting(packed.ops)
    packed.forward(cache.step([[5]]), cache)
    _, weights, _ = decode_costs(small.config, 1, 4)
    assert work.weights == weights * (bits / 8 + 4 / 32) / 4


def test_launches_are_as_many_as_before():
    model = tiny()
    names = []
    for own in (model, quantize_llama(model, 8, 16)):
        with Launches() as seen:
            table = seen.counting(kernels("torch"))
            own.ops = table if own is model else packed_matmul(table)
            cache = ContiguousCache(own.config, 1, 8)
            step = cache.step([[1, 2]])
            seen.names.clear()
            own.forward(step, cache)
        names.append(seen.names)
    plain, packed = names
    assert ["quantized_matmul" if name == "matmul" else name for name in plain] == packed


def test_a_group_that_does_not_fit_is_one_sentence():
    with pytest.raises(ValueError, match="multiple of the group, 64"):
        quantize_llama(tiny(), 4, 64)


def test_triton_kernels_run_it():
    model = load(NANO, dtype=torch.float32)
    want = greedy(quantize_llama(model, 4, 16), [[10, 97, 30]], 2)
    simulator.activate_triton()
    try:
        model.ops = kernels("triton")
        assert greedy(quantize_llama(model, 4, 16), [[10, 97, 30]], 2) == want
    finally:
        simulator.deactivate_triton()


# ---- the record


@pytest.fixture(scope="module")
def record():
    return json.loads((ROOT / "benchmarks" / "weight_bits.json").read_text("utf-8"))


def test_the_recorded_perplexities_are_of_the_shipped_model(record, small):
    rows, report = record["quality"]["schemes"], json.loads((SMALL / "report.json").read_text())
    plain = report["perplexity"]["small"]
    for part in ("stories", "docstrings"):
        assert rows["fp32"][part] == pytest.approx(plain[part], abs=6e-4)
    tokens = record["quality"]["tokens"]
    loss = sum(n * math.log(rows["fp32"][part]) for part, n in tokens.items())
    assert math.exp(loss / sum(tokens.values())) == pytest.approx(plain["all"], abs=2e-3)
    weights = {name: w for name, w in small.weights.items() if is_matrix(name)}
    for name, scheme in schemes().items():
        bits = 8 * sum(map(scheme.nbytes, weights.values())) / sum(
            w.numel() for w in weights.values())
        assert rows[name]["bits"] == pytest.approx(bits)
        if scheme.scales is not least_error_scales:
            error = relative_error(small, scheme.llama(small))
            assert rows[name]["error"] == pytest.approx(error, rel=1e-3)


def test_the_recorded_times_are_of_the_bytes_that_are_said(record):
    found = record["speed"]
    N, K = found["shape"]
    each = {name: way["bytes"] * 8 / (N * K) for name, way in found["ways"].items()}
    assert each["fp32, PyTorch"] == 32 and each["bf16, PyTorch"] == 16
    for bits in (8, 4):
        assert each[f"int{bits}, k15"] == bits + 32 / found["group"]
    assert each["int8, PyTorch"] == 8 + 16 / K
    assert each["int4, PyTorch"] == 4 + 2 * 16 / found["group"]
    assert all(len(way["seconds"]) == found["rounds"] and min(way["seconds"]) > 0
               for way in found["ways"].values())


def test_gptq_of_a_model_keeps_the_results_nearer(small):
    """One matrix of the small model, with a Hessian of held-out stories."""
    tokenizer = evaluate.load("small")[2]
    texts = [tokenizer.encode(t, add_special_tokens=False).ids for t in stories("dev")[:8]]
    assert texts[0][0] == tokenizer.token_to_id(BEGIN)
    name, scheme = "model.layers.1.mlp.up_proj.weight", schemes()["int4, 32"]
    w, hessian = small.weights[name], hessians(small, texts)[name]
    scales = scheme.scaled(w)

    def lost(codes):
        away = dequantize(codes, scheme.levels, scales) - w
        return float(((away @ hessian) * away).sum())

    assert lost(gptq(w, hessian, scheme.levels, scales)) < 0.8 * lost(
        quantize(w, scheme.levels, scales))


def test_a_part_is_kept_beside_the_others(tmp_path, monkeypatch, capsys):
    from layer2_graph.bench.weight_bits import keep

    file, parts = tmp_path / "record.json", {"quality": lambda: {"b": 2}, "speed": dict}
    file.write_text('{"speed": {"a": 1}}')
    monkeypatch.setattr("sys.argv", ["weight_bits", "quality"])
    assert keep(parts, file) == 0
    found = json.loads(file.read_text())
    assert found["speed"] == {"a": 1} and found["quality"]["b"] == 2
    monkeypatch.setattr("sys.argv", ["weight_bits", "nothing"])
    assert keep(parts, file) == 2
    assert "got nothing, expected quality or speed" in capsys.readouterr().err
    assert json.loads(file.read_text()) == found
