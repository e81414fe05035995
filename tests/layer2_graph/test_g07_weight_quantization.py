"""Graders of g07. Codes are compared with oracles that know no borders, roots or loops over w."""

import json
import math

import numpy as np
import pytest
import torch

from day01_roofline import decode_costs
from day02_overview import NANO
from lab import simulator
from lab.adversarial import VALUES, views
from lab.course import ROOT
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
from layer2_graph.g07_weight_quantization import SHRINK
from layer2_graph.small import evaluate
from layer2_graph.small.corpus import BEGIN, stories
from layer2_graph.small.train import encode

SMALL = ROOT / "layer2_graph" / "small"
FINITE = {kind: values for kind, values in VALUES.items()
          if kind not in ("infinite", "not_a_number")}
FORMATS = ("fp4", "int4", "ternary", "fp8", "int8")


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
    found = []
    for value in x:
        away = [abs(abs(float(value)) - level) for level in levels]
        best = [q for q, distance in enumerate(away) if distance == min(away)]
        q = best[0] if len(best) == 1 else {
            "even": min(best, key=lambda q: q % 2), "odd": max(best, key=lambda q: q % 2),
            "low": best[0]}[tie]
        if not nearer:
            q = max(i for i, level in enumerate(levels) if level <= abs(float(value)))
        found.append(-q if value < 0 else q)
    return np.array(found)


@pytest.mark.parametrize("name", FORMATS)
def test_nearest(subject, agree, rng, name):
    """Levels, the ties between them, what is around them and beyond the last."""
    levels = np.array(LEVELS[name])
    middle = (levels[1:] + levels[:-1]) / 2
    x = np.concatenate([levels, middle, rng.uniform(0, 1.2, 60) * levels[-1], [levels[-1] * 9]])
    x = np.concatenate([x, -x]).astype(np.float32)
    got = subject.nearest(torch.from_numpy(x), LEVELS[name])
    what = f"nearest, {name}, levels {', '.join(f'{v:g}' for v in levels[:8])}" + " …" * (
        len(levels) > 8)
    want = book(x, levels)
    agree(got, want, what=what, at=lambda i: f"x = {x[i[0]]:.6g}", mistakes={
        "x is rounded to 16 bits first": book(x.astype(np.float16).astype(np.float32), levels),
        "the level below is taken, not the nearest": book(x, levels, nearer=False),
        "a tie goes to the smaller code": book(x, levels, tie="low"),
        "a tie goes to the odd code": book(x, levels, tie="odd"),
        "the sign is lost": np.abs(want),
        "every negative number becomes 0": np.where(x < 0, 0, want),
        "numbers are rounded as if the levels were 0, 1, 2 …":
            np.clip(np.rint(x), 1 - len(levels), len(levels) - 1)})
    assert got.dtype == torch.int8, f"{what}: codes are {got.dtype}, expected torch.int8"


def test_nearest__keeps_the_shape(subject, agree):
    x = torch.tensor([[[0.2, -0.9]], [[0.5, 0.51]], [[-0.5, 7.0]]])
    agree(subject.nearest(x, LEVELS["ternary"]), [[[0, -1]], [[0, 1]], [[0, 1]]],
          what="nearest, ternary, of an array of three dimensions")


def drawn_levels(rng, count):
    """Eighths that ascend from 0, so that borders and ties are exact; whole runs among them."""
    return tuple(np.append(0, np.cumsum(rng.integers(1, 4, count - 1))) / 8.0)


def test_nearest__hard(subject, agree, rng):
    """Formats and drawn levels, in each type of float: the borders, their next neighbours, numbers
    far beyond the last level. Then layouts and shapes."""
    formats = {name: LEVELS[name] for name in FORMATS} | {
        f"{count} levels": drawn_levels(rng, count) for count in (2, 3, 4, 7, 17)}
    for name, levels in formats.items():
        for kind in (np.float32, np.float64, np.float16):
            if kind == np.float16 and len(levels) > 64:     # not every border is a number of it
                continue
            borders = (np.array(levels[1:]) + np.array(levels[:-1])).astype(kind) / kind(2)
            most, none = kind(np.finfo(kind).max), kind(0)
            x = np.concatenate([borders, np.nextafter(borders, none), np.nextafter(borders, most),
                                [none, kind(1e-7), kind(6e4), most, kind(np.inf)],
                                FINITE["unrounded"](rng, 9).astype(kind)])
            judge_codes(subject, agree, np.concatenate([x, -x]).astype(kind), levels,
                        f"{name}, {np.dtype(kind).name}")
    for kind, values in FINITE.items():
        x = values(rng, (4, 6))
        judge_codes(subject, agree, x, LEVELS["fp4"], f"fp4, numbers of the kind {kind}")
        for layout, view in views(x).items() if kind == "unrounded" else ():
            judge_codes(subject, agree, view, LEVELS["int4"], f"int4, an array with {layout}")
    for shape in ((0,), (), (3, 0, 2), (2, 1, 3, 2)):
        judge_codes(subject, agree, np.full(shape, -0.75, np.float32), LEVELS["int4"],
                    f"int4, an array of shape {shape}")


def judge_codes(subject, agree, x, levels, what):
    got = subject.nearest(torch.from_numpy(x), levels)
    with np.errstate(over="ignore"):
        want, short = (book(np.clip(y.astype(np.float64).ravel(), -2 * levels[-1], 2 * levels[-1]),
                            levels) for y in (x, x.astype(np.float16)))
    agree(got, want.reshape(x.shape), what=f"nearest, {what}",
          at=lambda i: f"x = {float(x[i]):.9g}",
          mistakes={"x is rounded to 16 bits first": short.reshape(x.shape)})
    assert got.dtype == torch.int8, f"nearest, {what}: got {got.dtype}, expected torch.int8"


def test_nearest__unseen(subject, agree, rng):
    for count in rng.integers(2, 128, 4).tolist():
        levels = drawn_levels(rng, count)
        x = (rng.integers(-24 * count, 24 * count, 50) / 16).astype(np.float32)
        judge_codes(subject, agree, x, levels, f"levels {levels[:8]} …")


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


def bytes_of(codes, levels, most_first=False, offset=True, radix=None, pad_front=False):
    n, own = {2: (5, 3), 3: (3, 6), 4: (2, 16), 5: (2, 16), 8: (2, 16)}.get(len(levels), (1, 256))
    digits = [int(q) + (len(levels) - 1) * offset for q in codes.ravel()]
    zeros = [0] * (-len(digits) % n)
    digits = zeros + digits if pad_front else digits + zeros
    powers = [(radix or own) ** i for i in range(n)][::-1 if most_first else 1]
    return np.array([sum(d * p for d, p in zip(digits[i:i + n], powers, strict=True)) % 256
                     for i in range(0, len(digits), n)])


@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (5, 129)])
@pytest.mark.parametrize("name", ["ternary", "int4", "fp8", "int8"])
def test_pack(subject, agree, rng, name, shape):
    levels = LEVELS[name]
    codes = rng.integers(1 - len(levels), len(levels), shape)
    got = subject.pack(torch.from_numpy(codes).to(torch.int8), levels)
    judge_length(got, bytes_of(codes, levels), codes, f"pack, {name}")
    agree(got, bytes_of(codes, levels), what=f"pack, {name}, {codes.size} codes",
          at=lambda i: f"byte {i[0]}", mistakes={
        "the first code of a byte counts most": bytes_of(codes, levels, most_first=True),
        "the largest code is not added, and digits may be negative":
            bytes_of(codes, levels, offset=False),
        "the radix is the number of codes": bytes_of(codes, levels, radix=2 * len(levels) - 1),
        "the zeros that fill up come before the first code":
            bytes_of(codes, levels, pad_front=True)})
    assert got.dtype == torch.uint8, f"pack: bytes are {got.dtype}, expected torch.uint8"


PACKS = {
    "one code": (1, 1), "no row": (0, 4), "rows of none": (3, 0), "one short of two bytes": (1, 9),
    "one code more than two bytes": (1, 11), "rows of 4, in which bytes run on": (5, 4),
    "40,000 codes": (1, 40_000)}


def test_pack__hard(subject, agree, rng):
    """Every number of codes in a byte, and radixes that are more than there are codes; extremes,
    layouts and sizes."""
    for count in (2, 3, 4, 5, 8, 9, 127, 128):
        levels, top = tuple(map(float, range(count))), count - 1
        for what, shape in PACKS.items() if count < 9 else [("9 codes", (3, 3))]:
            judge_bytes(subject, agree, rng.integers(-top, top + 1, shape), levels, what)
        for code in (top, -top, 0):
            judge_bytes(subject, agree, np.full((3, 5), code), levels, f"every code is {code}")
        for layout, view in views(rng.integers(-top, top + 1, (4, 7)).astype(np.int8)).items():
            judge_bytes(subject, agree, view, levels, f"an array with {layout}")


def judge_bytes(subject, agree, codes, levels, what):
    what = f"pack, {len(levels)} levels, {what}"
    got = subject.pack(torch.from_numpy(codes.astype(np.int8, copy=False)), levels)
    want = bytes_of(codes, levels)
    judge_length(got, want, codes, what)
    agree(got, want, what=what, at=lambda i: f"byte {i[0]}")
    assert got.dtype == torch.uint8, f"{what}: bytes are {got.dtype}, expected torch.uint8"


def judge_length(got, want, codes, what):
    shape = tuple(np.shape(got))
    assert shape == want.shape, (
        f"{what}: {codes.shape[0]} rows of {codes.shape[1]} codes make bytes of shape {shape}, "
        f"expected {want.shape}." + (
            "\nIs each row filled up by itself? Codes run on, row after row, and only the last "
            "byte is filled up." if np.prod(shape) > len(want) else ""))


def test_pack__unseen(subject, agree, rng):
    for count in rng.integers(2, 10, 6).tolist():
        codes = rng.integers(1 - count, count, rng.integers(1, 12, 2))
        if count not in (6, 7):
            judge_bytes(subject, agree, codes, tuple(map(float, range(count))), f"{codes.shape}")


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
    judge_fp16(got, what)
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
        "the largest error is kept": chosen(lost.argmax(0))}
    text = next((f"\nThis is what comes out when {mistake}." for mistake, scales in mistakes.items()
                 if np.allclose(got, scales, rtol=2e-3, atol=0)), "")
    if wrong.any():
        n, g = np.argwhere(wrong)[0]
        raise AssertionError(f"{what}: {wrong.sum()} of {N * groups} groups could be nearer. Row "
                             f"{n}, group {g}: error {own[n, g]:.4g} with scale {got[n, g]:.4g}, "
                             f"{least[n, g]:.4g} with {chosen(lost.argmin(0))[n, g]:.4g}{text}")
    assert got[5, 2] == 0, f"{what}: a group of zeros has scale {got[5, 2]:.4g}, expected 0"


def judge_fp16(scales, what):
    assert torch.equal(scales, scales.half().to(scales.dtype)), (
        f"{what}: a scale has digits that fp16 does not keep; the error is that of another scale")


def first_least(w, levels):
    """Of the scales that are tried the first with the least error: (N, groups)."""
    largest = np.abs(w).max(-1) / np.float32(levels[-1])
    tried = np.stack([(largest * np.float32(share)).astype(np.float16) for share in SHRINK])
    lost = np.stack([errors(w.astype(np.float64), levels, scales.astype(float))
                     for scales in tried])
    return np.take_along_axis(tried, lost.argmin(0)[None], 0)[0], tried, lost


def test_least_error_scales__hard(subject, agree, rng):
    """Whole numbers whose scales are whole too: errors are exact, and ties frequent. Then hard
    numbers, shapes and layouts."""
    for name, group in [("ternary", 2), ("ternary", 4), ("int4", 2), ("fp4", 3)] * 5:
        levels = LEVELS[name]
        top = int(20 * levels[-1])
        w = (rng.integers(-20, 21, (12, 3, group)) * (top // 20)).astype(np.float32)
        w[..., 0] = top
        judge_scales(subject, agree, w, levels, f"{name}, whole numbers in groups of {group}", True)
    for kind, values in FINITE.items():
        for name in ("ternary", "int4", "fp8"):
            judge_scales(subject, agree, values(rng, (8, 2, 16)), LEVELS[name],
                         f"{name}, numbers of the kind {kind}")
    wide = FINITE["unrounded"](rng, (6, 4, 8))
    for layout, view in views(wide.reshape(6, 32)).items():
        judge_scales(subject, agree, wide, LEVELS["fp4"], f"fp4, a matrix with {layout}",
                     handed=view)
    for shape in ((32,), (2, 3, 32), (0, 32), (1, 32)):
        judge_scales(subject, agree, wide[:int(np.prod(shape)) // 32 or 0], LEVELS["int4"],
                     f"int4, an array of shape {shape}", shape=shape)
    for group in (1, 17, 15):
        w = FINITE["unrounded"](rng, (3, 2, group))
        judge_scales(subject, agree, w, LEVELS["ternary"], f"ternary, groups of {group}")


def judge_scales(subject, agree, w, levels, what, whole=False, handed=None, shape=None):
    """whole: errors are exact, and so is the choice"""
    N, groups, group = w.shape
    shape = shape or (N, groups * group)
    handed = w.reshape(shape) if handed is None else handed
    got = subject.least_error_scales(torch.from_numpy(handed), levels, group)
    what, form = f"least_error_scales, {what}", (*shape[:-1], groups)
    assert torch.is_tensor(got) and got.shape == form, (
        f"{what}: expected a tensor of shape {form}, got {getattr(got, 'shape', got)}")
    judge_fp16(got, what)
    if not w.size:
        return
    want, tried, lost = first_least(w, levels)
    if whole:
        last = np.take_along_axis(tried, len(SHRINK) - 1 - lost[::-1].argmin(0)[None], 0)[0]
        agree(got, want.reshape(form), what=what, at=lambda i: f"row {i[0]}, group {i[1]}",
              mistakes={"of equal errors the last share counts, not the first": last})
    own, least = errors(w.astype(np.float64), levels, got.double().numpy().reshape(N, groups)), \
        lost.min(0)
    wrong = np.argwhere(own > least * 1.001 + 1e-6 * np.square(w.astype(np.float64)).sum(-1))
    assert not len(wrong), (
        f"{what}: row {wrong[0][0]}, group {wrong[0][1]}: error {own[tuple(wrong[0])]:.4g}, and "
        f"{least[tuple(wrong[0])]:.4g} with scale {want[tuple(wrong[0])]:.4g}")


def test_least_error_scales__unseen(subject, agree, rng):
    for name in ("fp4", "int8", "ternary"):
        judge_scales(subject, agree, FINITE["unrounded"](rng, (5, 3, int(rng.integers(2, 20)))),
                     LEVELS[name], name)


# ---- gptq


class Given:
    """A matrix, its scales, and rows x that go together, as activations do."""

    def __init__(self, rng, name, group, N=5, K=32, values=None):
        self.levels, self.w = LEVELS[name], rng.standard_normal((N, K))
        if values:
            self.w = values(rng, (N, K)).astype(np.float64)
        self.x = rng.standard_normal((200, K)) @ (np.eye(K) + rng.standard_normal((K, K)) / 4)
        self.x /= 7                 # U's diagonal is then neither 1 nor so small that it is 0
        self.hessian = self.x.T @ self.x
        largest = np.abs(self.w.reshape(N, K // group, group)).max(-1)
        self.scales = largest / self.levels[-1] * (0.5 if name == "ternary" else 1)

    def run(self, function, w=None, hessian=None, scales=None):
        """w, hessian, scales: the same numbers in another layout"""
        given = ((self.w, w), (self.hessian, hessian), (self.scales, scales))
        w, hessian, scales = (torch.from_numpy(a if b is None else b) for a, b in given)
        return function(w, hessian, self.levels, scales)

    def codes(self, good=1.0, divided=True, first=False, short=False):
        """By the book: after each column the best later ones, from the inverse of what is left."""
        (N, K), w = self.w.shape, self.w.copy()
        H = self.hessian + 0.01 * np.diag(self.hessian).mean() * np.eye(K)
        codes, levels = np.empty((N, K), int), np.array(self.levels)
        for k in range(K):
            scale = self.scales[:, 0 if first else k // (K // self.scales.shape[1])]
            code = np.abs(book(w[:, k] / np.where(scale > 0, scale, 1), levels))
            codes[:, k] = code * np.sign(w[:, k])
            column = w[:, k].astype(np.float16).astype(np.float64) if short else w[:, k]
            lost = column - np.sign(w[:, k]) * levels[code] * scale
            inverse = np.linalg.inv(H[k:, k:])
            factor = inverse[0, 1:] / (inverse[0, 0] if divided else np.sqrt(inverse[0, 0]))
            w[:, k + 1:] -= good * lost[:, None] * factor
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
              "a column is rounded to 16 bits before what is lost is taken":
                  given.codes(short=True),
              "what was lost is added to the later columns": given.codes(good=-1.0),
              "the factor is not divided by U[k, k]": given.codes(divided=False),
              "every column has the scale of the first group": given.codes(first=True)})


GPTQ = {
    "one column": {"K": 1, "group": 1}, "one row of two columns": {"N": 1, "K": 2, "group": 2},
    "a scale for each number": {"K": 9, "group": 1}, "a scale for each row": {"K": 17, "group": 17},
    "15 columns in groups of 5": {"K": 15, "group": 5}, "no row": {"N": 0, "K": 4, "group": 2},
    "40 rows": {"N": 40, "K": 24, "group": 8},
}


def test_gptq__hard(subject, agree, rng):
    """Sizes, hard weights, a group of zeros, inputs of which some are 0 or go together wholly, and
    layouts of each argument."""
    for what, case in GPTQ.items():
        for name in ("int4", "fp8"):
            judge_gptq(subject, agree, Given(rng, name, **case), f"{name}, {what}")
    for kind, values in FINITE.items():
        judge_gptq(subject, agree, Given(rng, "fp4", 8, values=values),
                   f"fp4, weights of the kind {kind}")
    given = Given(rng, "int4", 8)
    given.w[2, 8:16] = given.scales[2, 1] = 0
    judge_gptq(subject, agree, given, "a group of zeros")
    given.x[:, 3:6] = 0
    given.x[:, 9] = 3 * given.x[:, 8]
    given.hessian = given.x.T @ given.x
    judge_gptq(subject, agree, given, "three inputs are always 0, and one is thrice another")
    given = Given(rng, "int8", 16)
    for name in ("w", "hessian", "scales"):
        for layout, view in views(getattr(given, name)).items():
            judge_gptq(subject, agree, given, f"{name} with {layout}", **{name: view})


def judge_gptq(subject, agree, given, what, **layouts):
    got = given.run(subject.gptq, **layouts)
    agree(got, given.codes() if given.w.size else np.zeros(given.w.shape, int),
          what=f"gptq, {what}", at=lambda i: f"row {i[0]}, column {i[1]}")
    assert got.dtype == torch.int8, f"gptq, {what}: codes are {got.dtype}, expected torch.int8"


def test_gptq__unseen(subject, agree, rng):
    for name in ("int4", "fp4", "int8"):
        judge_gptq(subject, agree, Given(rng, name, 4, K=int(4 * rng.integers(2, 7))), name)


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
    from layer2_graph.weight_bits import keep

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
