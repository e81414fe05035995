"""Graders of g08. Codes are compared with oracles in float64 that compare with every level."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from day02_overview import NANO
from lab import simulator
from lab.course import ROOT
from lab.judge.adversarial import VALUES, shifted, views
from lab.judge.compare import brief
from lab.judge.subject import Raised
from layer1_kernels import kernels
from layer2_graph import (
    LEVELS,
    Config,
    Llama,
    PagedCache,
    QuantizedCache,
    Tokenizer,
    by_channel,
    by_token,
    channel_maxima,
    dynamic,
    generate_on,
    int_levels,
    is_matrix,
    load,
    outlier_columns,
    perplexity,
    quantize_tokens,
    read_quantized,
    scaled_matmul,
    smooth,
    smoothed,
    split,
    split_matmul,
    static,
    with_kv,
    with_outliers,
    write_quantized,
)
from layer2_graph.checkpoint import shapes
from layer2_graph.small.corpus import BEGIN, stories

SMALL = ROOT / "layer2_graph" / "small"
FINITE = {name: make for name, make in VALUES.items()
          if name not in ("infinite", "not_a_number")} | {
              "around -3000": lambda rng, shape: shifted(rng, shape, -3000)}
UNEVEN = (0.0, 0.5, 3.0, 3.5)           # levels of no format


@pytest.fixture(scope="module")
def small():
    return load(SMALL, dtype=torch.float32)


def tiny(**entries):
    torch.manual_seed(0)
    m = Config(**{"L": 2, "C": 32, "H": 4, "G": 2, "D": 16, "F": 48, "V": 31, "eps": 1e-5,
                  "theta": 1e4, "room": 64} | entries)
    return Llama(m, {name: torch.randn(shape) / 4 for name, shape in shapes(m)}, kernels("torch"))


def logits(model, prompts, cache=None):
    cache = cache or PagedCache(model.config, len(prompts), 32)
    return model.forward(cache.step(prompts), cache, every=True)


def book(x, levels):
    """Codes of numbers without ties: of the nearest level."""
    away = np.abs(np.abs(x)[..., None] - np.array(levels))
    return (away.argmin(-1) * np.sign(x)).astype(int)


def coded(x, levels):
    """(what the codes stand for, the scales), a scale for each row: float64."""
    scales = np.abs(x).max(-1, keepdims=True) / levels[-1]
    codes = book(x / np.where(scales > 0, scales, 1), levels)
    return np.array(levels)[np.abs(codes)] * np.sign(codes), scales


def settled(codes, x, scales, levels):
    """The codes, replaced by the book's if two levels are almost equally near to x / scale."""
    ratio, codes = np.abs(x / np.where(scales > 0, scales, 1)), np.asarray(codes)
    own, values = book(x / np.where(scales > 0, scales, 1), levels), np.array(levels)
    some = np.abs(codes.astype(int)).clip(max=len(levels) - 1)
    as_good = np.abs(ratio - values[some]) <= np.abs(ratio - values[np.abs(own)]) + 1e-4
    return np.where(as_good & (codes * own >= 0) & (np.abs(codes.astype(int)) == some), own, codes)


def untied(rng, x, kind):
    """x, changed so that no number is halfway between two codes: simple fractions would be."""
    noise = rng.uniform(0.99, 1, x.shape).astype(x.dtype)
    return x * noise if kind in ("tied", "exact_sums") else x


def product(x, w, levels):
    """Rows of both rounded, then multiplied."""
    (a, p), (b, q) = coded(x, levels), coded(w, levels)
    return a @ b.T * p * q.T


# ---- predict_kv_bytes


def test_predict_kv_bytes(subject, truth, small):
    """Counted: the bytes of a cache's four arrays, by its slots."""
    m, got = small.config, subject.predict_kv_bytes()
    want = truth(lambda: QuantizedCache(m, 1, 64, LEVELS["int8"], LEVELS["int8"]).nbytes / 64)
    wrong = {2 * m.L * m.G * m.D: "The scales are forgotten.",
             2 * m.L * m.G * (m.D + 4): "The scales are fp16: 2 bytes each.",
             m.L * m.G * (m.D + 2): "So much the keys take; values take as much.",
             2 * m.G * (m.D + 2): "That is one layer's.",
             2 * m.L * m.H * (m.D + 2): "So it were if every query head had its own keys.",
             2 * m.L * (m.G * m.D + 2): "Each head's key has a scale of its own.",
             4 * m.L * m.G * m.D: "That is what fp16 takes."}
    assert isinstance(got, (int, float)), f"predict_kv_bytes: {got!r} is no number"
    assert got == want, (f"predict_kv_bytes: predicted {got:g}, counted {want:g} bytes a token in "
                         f"the arrays of a cache. {wrong.get(got, '')}")


# ---- quantize_tokens


@pytest.mark.parametrize("name", ["int8", "fp8", "int4"])
def test_quantize_tokens(subject, agree, rng, name):
    levels, (T, K) = LEVELS[name], (5, 33)
    x = (rng.standard_normal((T, K)) * 10.0 ** np.arange(-2, 3)[:, None]).astype(np.float32)
    x[1, 7] = -3 * np.abs(x[1]).max()                   # the largest |x| is a negative number
    x[2] = 0
    what = f"quantize_tokens, {name}"
    got = subject.quantize_tokens(torch.from_numpy(x), levels)
    assert isinstance(got, (tuple, list)) and len(got) == 2, \
        f"{what}: expected codes and scales, got {type(got).__name__}"
    codes, scales = got
    assert tuple(getattr(codes, "shape", ())) != (T, 1), (
        f"{what}: the first result has shape {(T, 1)}, as scales have: codes come first, then "
        f"scales")
    assert tuple(getattr(scales, "shape", ())) != (1, K), (
        f"{what}: {K} scales, one for each channel; each of the {T} tokens has its own")
    x = x.astype(np.float64)
    largest = np.abs(x).max(-1, keepdims=True)
    want = largest / levels[-1]
    agree(scales, want, "float32", f"{what}, scales", lambda i: f"token {i[0]}", {
        "one scale serves all tokens": np.full((T, 1), largest.max() / levels[-1]),
        "the largest x is taken, not the largest |x|": x.max(-1, keepdims=True) / levels[-1],
        "the largest |x| is not divided by the last level": largest,
        "the largest |x| is divided by the number of levels": largest / len(levels),
        "the largest |x| is divided by the last code, not by the level that it stands for":
            largest / (len(levels) - 1),
        "scales are rounded to fp16; they keep x's dtype": want.astype(np.float16),
        "the mean |x| is taken, not the largest": np.abs(x).mean(-1, keepdims=True) / levels[-1],
        "the last level is divided by the largest |x|: that is 1 / scale":
            levels[-1] / np.where(largest > 0, largest, np.inf)})
    own = book(x / np.where(want > 0, want, 1), levels)
    agree(codes, own, what=f"{what}, codes", at=lambda i: f"token {i[0]}, channel {i[1]}",
          mistakes={"x is not divided by its scale": book(x, levels),
                    "x / scale is rounded to a whole number; codes number the nearest levels":
                        np.rint(x / np.where(want > 0, want, 1)).clip(-127, 127).astype(int)})
    assert codes.dtype == torch.int8, f"{what}: codes are {codes.dtype}, expected torch.int8"


def test_quantize_tokens__hard(subject, agree, rng):
    """Tokens of every kind in arrays of every layout, each checked alone."""
    K, name = 33, "quantize_tokens"
    kinds = [(kind.replace("_", " "), make(rng, (2, K))) for kind, make in FINITE.items()]
    x = torch.from_numpy(np.concatenate([array for _, array in kinds]))
    words = [f"{kind}, token {i} of two" for kind, _ in kinds for i in range(2)]
    wide = torch.from_numpy(rng.standard_normal((1, 33_000))).float()
    cases = [(x, words, levels, "") for levels in (*map(LEVELS.get, LEVELS), UNEVEN)]
    cases += [(view, words, LEVELS["int4"], f", {layout}") for layout, view in views(x).items()]
    cases += [(-x.abs() - 0.25, words, LEVELS["int4"], ", all negative"),
              (x.double(), words, LEVELS["int8"], ", float64"),
              (wide, ["33,000 numbers"], LEVELS["fp8"], ""),
              (x[:1], words, LEVELS["int8"], ", one token"),
              (x[:, :1], words, LEVELS["int8"], ", of one number each"),
              (x[:0], [], LEVELS["int8"], ", no token")]
    for x, words, levels, how in cases:
        codes, scales = subject.quantize_tokens(x, levels)
        what = f"{name}, {len(levels)} levels{how}"
        assert scales.dtype == x.dtype, \
            f"{what}: scales are {scales.dtype}, expected x's own, {x.dtype}"
        assert codes.shape == x.shape and scales.shape == (len(x), 1), (
            f"{what}: codes {tuple(codes.shape)} and scales {tuple(scales.shape)}, expected "
            f"{tuple(x.shape)} and {(len(x), 1)}")
        values = x.double().numpy()
        want = (x.abs().amax(-1, keepdim=True) / levels[-1]).double().numpy()
        for t, word in enumerate(words[:len(x)]):
            row = np.s_[t:t + 1]
            agree(scales[row], want[row], "float64" if how == ", float64" else "float32",
                  f"{what}, {word}: its scale", mistakes={
                      f"the largest |x| of a token is taken for {least} at least, so that smaller "
                      "numbers lose their digits": np.maximum(want[row], least / levels[-1])
                      for least in (1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-4)})
            agree(settled(codes[row], values[row], want[row], levels),
                  book(values[row] / np.where(want[row] > 0, want[row], 1), levels), "exact",
                  f"{what}, {word}: its codes", lambda i: f"channel {i[1]}")


def test_quantize_tokens__halfway(subject, agree):
    """Scale 1, and numbers halfway between two codes: the even one."""
    x = np.float32([[127, *np.arange(-5.5, 6)], [-127, *np.arange(-120.5, -109)]])
    got, _ = subject.quantize_tokens(torch.from_numpy(x), LEVELS["int8"])
    agree(got, np.rint(x).astype(int), "exact", "quantize_tokens, numbers halfway between codes",
          lambda i: f"token {i[0]}, x = {x[i]:g}", {
              "halves are rounded up, not to the even code": np.floor(x + 0.5).astype(int),
              "halves are rounded away from 0, not to the even code":
                  (np.sign(x) * np.floor(np.abs(x) + 0.5)).astype(int),
              "what is behind the point is cut off": np.trunc(x).astype(int)})


def test_quantize_tokens__not_finite(subject, rng):
    for kind in ("infinite", "not_a_number"):
        x = torch.from_numpy(VALUES[kind](rng, (3, 8)))
        for some in (x, -x):
            try:
                subject.quantize_tokens(some, LEVELS["int8"])
            except Raised as refusal:
                assert "not finite" in refusal.text, refusal.text
            else:
                raise AssertionError(f"quantize_tokens: x with {kind.replace('_', ' ')} values "
                                     "has codes, expected a ValueError that says: not finite")


def test_quantizing_tokens_refuses_what_is_not_finite():
    with pytest.raises(ValueError, match="not finite"):
        quantize_tokens(torch.tensor([[1.0, math.inf]]), LEVELS["int8"])
    codes, scales = quantize_tokens(torch.ones(0, 8), LEVELS["int8"])
    assert codes.shape == (0, 8) and scales.shape == (0, 1)


def test_scales_of_rows_leave_the_sum(rng):
    """In integers, as a kernel adds: the same to the last bit."""
    x, w = (torch.from_numpy(rng.standard_normal((n, 512))).float() for n in (4, 7))
    (a, p), (b, q) = (quantize_tokens(m, LEVELS["int8"]) for m in (x, w))
    added = (a.long() @ b.long().T).float()
    assert torch.equal(scaled_matmul(a, p, b, q, LEVELS["int8"]), added * p * q.T)


# ---- split_matmul


def test_split_matmul__where_nothing_needs_rounding(subject, agree, rng):
    """All but the columns that are split are whole numbers up to 127: x wᵀ itself."""
    levels, columns = LEVELS["int8"], np.array([3, 20])
    x, w = (rng.integers(-126, 127, (n, 24)).astype(np.float32) for n in (5, 7))
    x[:, 0], w[:, 1] = 127, -127
    x[:, columns] = rng.uniform(300, 2000, (5, 2))
    w[:, columns] = rng.uniform(-900, 900, (7, 2))
    got = subject.split_matmul(*map(torch.from_numpy, (x, w, columns)), levels)
    x, w = x.astype(np.float64), w.astype(np.float64)
    check_split(agree, got, x, w, columns, levels, x @ w.T, "integers and two columns of outliers")


@pytest.mark.parametrize("columns", [[5], [0, 9, 30], [], list(range(31))])
def test_split_matmul(subject, agree, rng, columns):
    levels, columns = LEVELS["int4"], np.array(columns, int)
    x, w = (rng.standard_normal((n, 31)).astype(np.float32) for n in (6, 9))
    x[:, columns] *= 40
    got = subject.split_matmul(*map(torch.from_numpy, (x, w, columns)), levels)
    x, w = x.astype(np.float64), w.astype(np.float64)
    rest = np.setdiff1d(np.arange(31), columns)
    want = x[:, columns] @ w[:, columns].T
    if len(rest):
        want = want + product(x[:, rest], w[:, rest], levels)
    check_split(agree, got, x, w, columns, levels, want, f"int4, split columns {columns.tolist()}")


def check_split(agree, got, x, w, columns, levels, want, what):
    rest = np.setdiff1d(np.arange(x.shape[1]), columns)
    some, (a, p), (b, q) = x[:, columns] @ w[:, columns].T, coded(x, levels), coded(w, levels)
    agree(got, want, "float32", f"split_matmul, {what}", lambda i: f"token {i[0]}, output {i[1]}", {
        "the columns that are split are lost": want - some,
        "no column is split: outliers set the scales": product(x, w, levels),
        "the scales are taken before the columns are out":
            some + a[:, rest] @ b[:, rest].T * p * q.T,
        "the columns are added to a product that has them, too": some + product(x, w, levels),
        "w's scales are taken before the columns are out": some + (
            coded(zeroed(x, columns), levels)[0] @ zeroed(b, columns).T
            * coded(zeroed(x, columns), levels)[1] * q.T),
        "nothing is rounded": x @ w.T,
        "the columns that are split are rounded to fp16": want - some + (
            x[:, columns].astype(np.float16).astype(float)
            @ w[:, columns].astype(np.float16).astype(float).T),
        "the columns that are split are added twice": want + some,
        "only w is rounded, x is not":
            some + zeroed(x, columns) @ dequantized(w, columns, levels).T,
        "only x is rounded, w is not":
            some + dequantized(x, columns, levels) @ zeroed(w, columns).T,
        "the two sets have changed places: the columns are rounded, all others are not":
            dequantized(x, rest, levels) @ dequantized(w, rest, levels).T
            + x[:, rest] @ w[:, rest].T,
        "the columns that are split are rounded too, as a set of their own": want - some + (
            dequantized(x, rest, levels) @ dequantized(w, rest, levels).T),
        "the sums of codes are not multiplied by the scales": some + (
            coded(zeroed(x, columns), levels)[0] @ coded(zeroed(w, columns), levels)[0].T)})


def dequantized(x, columns, levels):
    """What codes of x without some columns stand for: scales are of the others alone."""
    values, scales = coded(zeroed(x, columns), levels)
    return values * scales


def zeroed(x, columns):
    x = x.copy()
    x[:, columns] = 0
    return x


def judge_split(agree, got, x, w, columns, levels, what, precision="float32"):
    """Each token is checked alone. x, w: tensors"""
    x, w, columns = x.double().numpy(), w.double().numpy(), columns.numpy()
    assert tuple(got.shape) == (len(x), len(w)), (
        f"split_matmul, {what}: shape {tuple(got.shape)}, expected {(len(x), len(w))}")
    rest = np.setdiff1d(np.arange(x.shape[1]), columns)
    want = x[:, columns] @ w[:, columns].T + (
        product(x[:, rest], w[:, rest], levels) if len(rest) else 0)
    for t in range(len(x)):
        agree(got[t], want[t], precision, f"split_matmul, {what}: token {t}",
              lambda i: f"output {i[0]}", {"nothing is rounded": (x @ w.T)[t]})


def test_split_matmul__hard(subject, agree, rng):
    """Rows of every kind in x and in w, float64, so that codes are those of the book."""
    def numbers(*shape):
        return torch.from_numpy(rng.standard_normal(shape))

    columns = torch.tensor([20, 3])                                 # in no order
    for (kind, make), in_w in itertools.product(FINITE.items(), (False, True)):
        hard, other = torch.from_numpy(untied(rng, make(rng, (3, 24)), kind)), numbers(4, 24)
        x, w = (other, hard.double()) if in_w else (hard.double(), other)
        judge_split(agree, subject.split_matmul(x, w, columns, LEVELS["int8"]), x, w, columns,
                    LEVELS["int8"], f"{kind.replace('_', ' ')} in {'w' if in_w else 'x'}",
                    "float64")
    x, w = numbers(5, 24), numbers(7, 24)
    for levels in (*map(LEVELS.get, LEVELS), UNEVEN):
        judge_split(agree, subject.split_matmul(x, w, columns, levels), x, w, columns, levels,
                    f"{len(levels)} levels", "float64")
    for i, layout in itertools.product((0, 1), views(x)):
        some = [x, w]
        some[i] = views(some[i])[layout]
        judge_split(agree, subject.split_matmul(*some, columns, LEVELS["int4"]), x, w, columns,
                    LEVELS["int4"], f"{'xw'[i]} with {layout}", "float64")
    for T, N, K, which in ((1, 4, 9, [2]), (3, 1, 9, [8]), (3, 4, 1, []), (3, 4, 1, [0]),
                           (2, 3, 33_000, [32_999]), (0, 4, 9, [2]),
                           (3, 0, 9, [2])):
        x, w, columns = numbers(T, K), numbers(N, K), torch.tensor(which, dtype=torch.int64)
        judge_split(agree, subject.split_matmul(x, w, columns, LEVELS["int8"]), x, w, columns,
                    LEVELS["int8"], f"T = {T}, N = {N}, K = {K}, columns {which}", "float64")


def test_split_matmul__halfway(subject, agree):
    """Scales of 1, and factors halfway between two codes: the even one."""
    x = torch.tensor([[127.0, 99.25, 0.5, 1.5, 2.5, -0.5, -3.5, 4.5]]).double()
    w = torch.tensor([[127.0, 11.5, 1, 2, 3, 4, 5, 6], [127.0, -8, 0.5, -2.5, 4.5, 6.5, 1.5, 9]])
    w, columns = w.double(), torch.tensor([1])

    def out(rounded):
        a, b = rounded(x.numpy()), rounded(w.numpy())
        a[:, 1], b[:, 1] = x[:, 1], w[:, 1]
        return a @ b.T

    agree(subject.split_matmul(x, w, columns, LEVELS["int8"]), out(np.rint), "float64",
          "split_matmul, factors halfway between two codes", mistakes={
              "halves are rounded up, as no code of g07 is": out(lambda a: np.floor(a + 0.5))})


def test_split_matmul__not_finite(subject, rng):
    """A refusal is right, and so are numbers that are not finite: finite ones would hide it."""
    w, columns = torch.from_numpy(rng.standard_normal((4, 24))), torch.tensor([3])
    for kind, k in itertools.product(("infinite", "not_a_number"), (3, 5)):
        x = torch.from_numpy(rng.standard_normal((3, 24)))
        x[1, k] = VALUES[kind](rng, (1, 1)).item()
        for some in ((x, w), (w, x)):
            try:
                got = subject.split_matmul(*some, columns, LEVELS["int8"])
            except Raised as refusal:
                assert "finite" in refusal.text, refusal.text
            else:
                lost = got[1] if some[0] is x else got[:, 1]
                assert not lost.isfinite().any(), (
                    f"split_matmul: {kind.replace('_', ' ')} in column {k}, and what it makes is "
                    "finite; expected inf or NaN there, or a ValueError")


def test_a_split_product_is_within_its_bound(rng):
    """Each factor is off by half a scale at most."""
    x, w = (torch.from_numpy(rng.standard_normal((n, 64))) for n in (5, 6))
    x[:, 9] *= 60
    columns, levels = torch.tensor([9]), LEVELS["int8"]
    rest = torch.arange(64) != 9
    p, q = (quantize_tokens(m[:, rest], levels)[1] for m in (x, w))
    bound = (p / 2 * w[:, rest].abs().sum(1) + q.T / 2 * x[:, rest].abs().sum(1, keepdim=True)
             + rest.sum() * p * q.T / 4)
    split_away = (split_matmul(x, w, columns, levels) - x @ w.T).abs()
    assert (split_away <= bound + 1e-9).all()
    assert (split_matmul(x, w, columns[:0], levels) - x @ w.T).abs().mean() > 4 * split_away.mean()


# ---- smooth


@pytest.mark.parametrize("alpha", [0.5, 0.8])
def test_smooth(subject, agree, rng, alpha):
    C = 12
    norm = rng.uniform(0.5, 2, C).astype(np.float32)
    matrices = [rng.standard_normal((n, C)).astype(np.float32) for n in (5, 3, 3)]
    largest = rng.uniform(0.2, 3, C).astype(np.float32)
    matrices[1][:, 2] *= 9                              # the largest is not in the first matrix
    largest[7] *= 50
    largest[4] = 0
    for w in matrices:
        w[:, 10] = 0
    got = subject.smooth(torch.from_numpy(norm), [torch.from_numpy(w) for w in matrices],
                         torch.from_numpy(largest), alpha)
    assert isinstance(got, (tuple, list)) and len(got) == 2 and len(got[1]) == 3, \
        f"smooth: expected a norm and three matrices, got {brief(got)}"

    def s(alpha, columns, power=None, rule=None):
        with np.errstate(divide="ignore", invalid="ignore"):
            found = largest.astype(np.float64) ** alpha / columns ** (
                1 - alpha if power is None else power)
        return np.where((largest > 0) & (columns > 0) if rule is None else rule, found, 1)

    def over(s):
        with np.errstate(divide="ignore"):
            return norm / s

    every = np.abs(np.concatenate(matrices)).max(0).astype(np.float64)
    own, what = s(alpha, every), f"smooth, alpha {alpha}"
    agree(got[0], norm / own, "float32", f"{what}, the norm", lambda i: f"channel {i[0]}", {
        "the norm is multiplied by s": norm * own,
        "the norm stays as it was": norm,
        "only the first matrix is asked for its largest |w|":
            norm / s(alpha, np.abs(matrices[0]).max(0).astype(np.float64)),
        "alpha and 1 - alpha have changed places": norm / s(1 - alpha, every),
        "the largest w is taken, not the largest |w|":
            norm / s(alpha, np.concatenate(matrices).max(0).astype(np.float64)),
        "w's factor is multiplied, not divided by": norm / np.where(
            (largest > 0) & (every > 0), largest ** alpha * every ** (1 - alpha), 1),
        "there is no rule for 0: s is 0 where the largest |x| is, and infinite where |w| is":
            over(s(alpha, every, rule=True)),
        "s is 1 where |w| is 0; where the largest |x| is 0 it is not, and should be":
            over(s(alpha, every, rule=every > 0)),
        "s is 1 where the largest |x| is 0; where |w| is 0 it is not, and should be":
            over(s(alpha, every, rule=largest > 0)),
        "there are no exponents: s is the largest |x| over |w|": norm / s(1, every, power=1),
        "|w| has the exponent alpha, too, not 1 - alpha": norm / s(alpha, every, power=alpha),
        "only the last matrix is asked for its largest |w|":
            norm / s(alpha, np.abs(matrices[-1]).max(0).astype(np.float64)),
        "the mean |w| is taken, not the largest":
            norm / s(alpha, np.abs(np.concatenate(matrices)).mean(0, dtype=np.float64))})
    for i, (w, found) in enumerate(zip(matrices, got[1], strict=True)):
        agree(found, w * own, "float32", f"{what}, matrix {i}",
              lambda i: f"row {i[0]}, channel {i[1]}", {
                  "the matrices are divided by s, as the norm is": w / own,
                  "the matrices stay as they were": w})


def judge_smooth(subject, agree, norm, matrices, largest, alpha, what):
    """Each channel is checked alone: they may differ by powers of ten."""
    got = subject.smooth(norm, matrices, largest, *alpha)
    assert isinstance(got, (tuple, list)) and len(got) == 2 and len(got[1]) == len(matrices), (
        f"smooth, {what}: expected a norm and {len(matrices)} matrices, got {brief(got)}")
    power, own = alpha[0] if alpha else 0.5, largest.double().numpy()
    columns = np.abs(np.concatenate([w.double().numpy() for w in matrices])).max(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        bare = own ** power / columns ** (1 - power)
        s = np.where((own > 0) & (columns > 0), bare, 1)
        floors = own.clip(1e-5) ** power / columns.clip(1e-5) ** (1 - power)
    precision = "float64" if norm.dtype == torch.float64 else "float32"
    rows = [("the norm", got[0], norm, 1 / s, 1 / floors, 1 / np.where(s == 1, bare, s))] + [
        (f"matrix {i} of {len(matrices)}", out, w, s, floors, np.where(s == 1, bare, s))
        for i, (out, w) in enumerate(zip(got[1], matrices, strict=True))]
    for name, out, array, factor, floor, zero in rows:
        array, out = array.double().numpy(), out
        assert tuple(out.shape) == array.shape, (
            f"smooth, {what}, {name}: shape {tuple(out.shape)}, expected {array.shape}")
        for c in range(len(s)):
            agree(out[..., c], array[..., c] * factor[c], precision,
                  f"smooth, {what}, {name}, channel {c}", mistakes={
                      "s is not 1 where the largest |x| or |w| is 0": array[..., c] * zero[c],
                      "the largest |x| and |w| have a least value; only for 0 the text has a rule":
                          array[..., c] * floor[c]})


@np.errstate(all="ignore")
def test_smooth__hard(subject, agree, rng):
    C = 12

    def numbers(*shape):
        return torch.from_numpy(rng.standard_normal(shape)).float()

    norm, largest, w = numbers(C), numbers(C).abs(), [numbers(n, C) for n in (5, 3)]
    judge_smooth(subject, agree, norm, w, largest, (), "alpha left out")
    for kind, make in FINITE.items():
        hard, what = torch.from_numpy(make(rng, (5, C))), kind.replace("_", " ")
        judge_smooth(subject, agree, norm, [w[1], hard], largest, (), f"{what} in a matrix")
        judge_smooth(subject, agree, hard[0], w, largest, (), f"{what} in the norm")
        judge_smooth(subject, agree, norm, w, hard[1].abs(), (), f"{what} in largest")
    for rows in (1, 7):
        judge_smooth(subject, agree, numbers(rows, C), w, largest, (0.3,),
                     f"a norm of {rows} row(s)")
    for kind in ("infinite", "not_a_number"):
        hard = torch.from_numpy(VALUES[kind](rng, (3, C)))
        judge_smooth(subject, agree, hard, w, largest, (), f"{kind.replace('_', ' ')} in the norm")
    for which, layout in itertools.product(("the norm", "matrix 0", "matrix 1"), views(w[0])):
        some = {"the norm": numbers(4, C), "matrix 0": w[0], "matrix 1": w[1]}
        some[which] = views(some[which])[layout]
        judge_smooth(subject, agree, some["the norm"], [some["matrix 0"], some["matrix 1"]],
                     largest, (0.6,), f"{which} with {layout}")
    judge_smooth(subject, agree, norm.double(), [m.double() for m in w], largest.double(), (0.7,),
                 "float64")
    for count, C in ((1, 17), (4, 31), (2, 1), (1, 33_000)):
        judge = numbers(C), [numbers(2 + i, C) for i in range(count)], numbers(C).abs()
        judge_smooth(subject, agree, *judge, (), f"{count} matrices of {C} columns") \
            if C < 100 else agree(subject.smooth(*judge)[0], smooth(*judge)[0].numpy(), "float32",
                                  "smooth, 33,000 channels, the norm")
    norm, largest, some = numbers(6), numbers(6).abs(), numbers(3, 6)
    largest[:2], some[:, 1:3] = 0, 0            # of x, of both, of w
    for alpha in (0.5, 0.0, 1.0):
        judge_smooth(subject, agree, norm, [some], largest, (alpha,),
                     f"alpha {alpha:g}, nothing in some channels")


def test_smoothing_keeps_the_product(rng):
    norm, x, w = (torch.from_numpy(rng.standard_normal(shape)) for shape in (16, (4, 16), (5, 16)))
    own, (v,) = smooth(norm, [w], (x * norm).abs().amax(0))
    torch.testing.assert_close(x * own @ v.T, x * norm @ w.T, rtol=1e-12, atol=1e-12)


# ---- write_quantized


def packed(codes, levels):
    """Bytes of rows of codes, digit by digit."""
    n, radix = {1: (5, 3), 7: (2, 16)}.get(len(levels) - 1, (1, 256))
    digits = codes + len(levels) - 1
    digits = np.pad(digits, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % n)],
                    constant_values=len(levels) - 1)
    return (digits.reshape(*codes.shape[:-1], -1, n) * radix ** np.arange(n)).sum(-1)


@pytest.mark.parametrize("name", ["int8", "fp8", "int4", "ternary"])
def test_write_quantized(subject, agree, rng, name):
    levels, (P, S, G, D) = LEVELS[name], (4, 4, 2, 6)
    x = rng.standard_normal((5, G, D)).astype(np.float32)
    x[:, 1] *= 9
    slots = np.array([6, -1, 13, 0, 7])
    scales = (np.abs(x).max(-1) / np.float32(levels[-1])).astype(np.float16)        # (T, G)
    codes = book(x / scales.astype(np.float64)[..., None], levels)
    width = packed(codes, levels).shape[-1]
    pages, kept = np.full((P, S, G, width), 77, np.uint8), np.full((P, S, G), 0.5, np.float16)

    def filled(start, rows, slots=slots, swap=False):
        out = start.copy()
        for row, slot in zip(rows, slots, strict=True):
            if slot >= 0:
                out[(slot % S, slot // S) if swap else (slot // S, slot % S)] = row
        return out

    shared = np.broadcast_to(np.abs(x).max((1, 2), keepdims=True) / levels[-1], (5, G, 1))
    own, what = filled(pages, packed(codes, levels)), f"write_quantized, {name}"
    last = np.where(slots < 0, P * S - 1, slots)
    short = x.astype(np.float16).astype(np.float64)
    rough = (np.abs(short).max(-1).astype(np.float32) / np.float32(levels[-1])).astype(np.float16)
    first = np.where(np.arange(5) < (slots >= 0).sum(), last, -1)       # of tokens, not of slots
    early = slots[slots >= 0]                                           # and then in their order
    got, found = torch.from_numpy(pages.copy()), torch.from_numpy(kept.copy())
    subject.write_quantized(torch.from_numpy(x), got, found, torch.from_numpy(slots), levels)
    agree(got, own, what=f"{what}, codes",
          at=lambda i: f"page {i[0]}, place {i[1]}, head {i[2]}, byte {i[3]}", mistakes={
              "nothing is written": pages,
              "what has slot 0 is skipped, too":
                  filled(pages, packed(codes, levels), np.where(slots == 0, -1, slots)),
              "a slot of -1 is taken for the last one": filled(pages, packed(codes, levels), last),
              "page and place have changed places":
                  filled(pages, packed(codes, levels), swap=True),
              "the heads of a token share one scale":
                  filled(pages, packed(book(x / shared, levels), levels)),
              "numbers are not divided by their scale":
                  filled(pages, packed(book(x, levels), levels)),
              "the first tokens are taken for those with a slot; a -1 may come before them":
                  filled(pages, packed(codes, levels), first),
              "known slots get the first tokens; skip the tokens of slots of -1, too":
                  filled(pages, packed(codes, levels)[:len(early)], early),
              "x is rounded to fp16 before it is divided by its scale": filled(pages, packed(
                  book(short / rough.astype(np.float64)[..., None], levels), levels))})
    agree(found, filled(kept, scales), "float16", f"{what}, scales",
          lambda i: f"page {i[0]}, place {i[1]}, head {i[2]}", {
              "no scale is written": kept,
              "what is kept is 1 / scale": filled(kept, 1 / scales.astype(np.float32)),
              "what is kept is the largest |x|": filled(kept, np.abs(x).max(-1)),
              "scales go to place and page, codes to page and place":
                  filled(kept, scales, swap=True),
              "the scale of a slot of -1 is kept in the last one": filled(kept, scales, last)})


class Pages:
    """Pages of codes and scales, before and after a call, and those of the book."""

    def __init__(self, rng, x, slots, levels, P, S, layout=""):
        self.x, self.slots, self.levels, self.P, self.S = x, slots, levels, P, S
        (self.T, G, D), n = x.shape, {1: 5, 7: 2}.get(len(levels) - 1, 1)
        self.codes = self.laid((P, S, G, -(-D // n)), 77, torch.uint8, "codes" in layout)
        self.scales = self.laid((P, S, G), 0.5, torch.float16, "scales" in layout)

    @staticmethod
    def laid(shape, value, dtype, apart):
        """An array of one value; apart: neighbouring pages, places and heads are not adjacent."""
        room = torch.full((shape[0], shape[1] + 1, shape[2] + 2, *shape[3:]), value, dtype=dtype)
        return room[:, 1:, 1:-1] if apart else torch.full(shape, value, dtype=dtype)

    def write(self, side):
        side.write_quantized(self.x, self.codes, self.scales, torch.tensor(
            self.slots, dtype=torch.int64), self.levels)

    def place(self, slot):
        return f"page {slot // self.S}, place {slot % self.S}"

    def check(self, agree, what):
        x, last = self.x.double().numpy(), self.levels[-1]
        exact = (np.abs(self.x.float().numpy()).max(-1) / np.float32(last)).astype(np.float32)
        scales = exact.astype(np.float16)
        places = {slot: t for t, slot in enumerate(self.slots) if slot >= 0}
        own, early = (book(x / np.where(some > 0, some, 1).astype(float)[..., None], self.levels)
                      for some in (scales, exact))
        flat = [a.reshape(self.P * self.S, *a.shape[2:]) for a in (
            self.codes.numpy(), self.scales.numpy())]
        for slot in sorted({*range(min(len(flat[0]), 40))} - {*places}):
            at = f"{self.place(slot)}, a slot of no token here"
            agree(flat[0][slot], np.full_like(flat[0][slot], 77), "exact", f"{what}: codes on {at}",
                  mistakes={f"token {t} is written here, not on {self.place(own_slot)}":
                            packed(own[t], self.levels) for own_slot, t in places.items()})
            agree(flat[1][slot], np.full_like(flat[1][slot], 0.5), "exact", f"{what}: scales {at}")
        for slot, t in places.items():
            where = self.place(slot)
            rows = packed(own[t], self.levels)
            agree(flat[1][slot], scales[t], "exact", f"{what}: scales of token {t}, {where}",
                  lambda i: f"head {i[0]}", {"nothing is written": np.full_like(scales[t], 0.5)})
            agree(flat[0][slot], rows, "exact", f"{what}: codes of token {t}, {where}",
                  lambda i: f"head {i[0]}, byte {i[1]}", {
                      "nothing is written": np.full_like(rows, 77),
                      "the codes are of scales that are not rounded to fp16 yet":
                          packed(early[t], self.levels)})


def test_write_quantized__hard(subject, agree, rng):
    """Pages, places, heads and widths are all different; tokens of every kind."""
    int4, int8 = LEVELS["int4"], LEVELS["int8"]

    def numbers(*shape):
        return torch.from_numpy(rng.standard_normal(shape)).float()

    def judge(what, x, slots, levels=int4, P=7, S=3, layout=""):
        pages = Pages(rng, x, slots, levels, P, S, layout)
        pages.write(subject)
        pages.check(agree, f"write_quantized, {what}")

    judge("three places a page", numbers(1, 2, 6), [7])
    for levels in map(LEVELS.get, LEVELS):
        judge(f"{len(levels)} levels", numbers(6, 2, 129), [5, 0, -1, 20, 7, 3], levels)
    for kind, make in FINITE.items():
        x = torch.from_numpy(untied(rng, make(rng, (6, 11)), kind)).view(3, 2, 11)
        judge(f"{kind.replace('_', ' ')} in x", x, [4, 19, 0])
    judge("numbers of 1e-6: scales near fp16's least", numbers(4, 2, 40) * 1e-6, [1, 2, 3, 4], int8)
    judge("a head of zeros", numbers(2, 3, 6) * torch.tensor([1, 0, 1])[:, None], [8, 2], int8)
    for dtype in (torch.float16, torch.float64):
        judge(f"x in {dtype}", numbers(3, 2, 9).to(dtype), [1, 3, 2], int8)
    for layout, x in views(numbers(4, 14)).items():
        judge(f"x with {layout}", x.unflatten(1, (2, 7)), [6, 1, 0, 12])
    for layout in ("codes", "scales"):
        judge(f"{layout} that are part of a larger array", numbers(4, 2, 7), [6, 1, 0, 12],
              layout=layout)
    judge("one page", numbers(3, 2, 6), [4, 0, 2], P=1, S=5)
    judge("one place a page", numbers(3, 2, 6), [4, 0, 2], P=5, S=1)
    judge("one token, in the last slot", numbers(1, 2, 6), [20])
    judge("one token, in slot 0", numbers(1, 1, 1), [0])
    judge("more than 32,768 pages", numbers(3, 1, 2), [65_536, 65_999, 32_767], P=33_000, S=2)
    for T in (1, 4):
        judge(f"{T} tokens, all skipped", numbers(T, 2, 6), [-1] * T)
    judge("no token", numbers(0, 2, 6), [])
    for rubbish in (np.nan, np.inf):
        x = numbers(3, 2, 6)
        x[1] = rubbish
        try:
            judge(f"{rubbish} in a token that is skipped", x, [3, -1, 8])
        except Raised as error:
            raise AssertionError(
                f"write_quantized, {rubbish} in a token whose slot is -1, as a padded row may have "
                f"it: {error.text}. What is skipped has no scale either") from None


def test_write_quantized__drawn(subject, agree, rng):
    """Small sizes, any of which may be 1, tokens in any order, some of them skipped."""
    for _ in range(60):
        T, P, S, G, D = (int(n) for n in rng.integers(1, 6, 5))
        slots = rng.permutation(max(P * S, T))[:T]
        slots = np.where((slots >= P * S) | (rng.random(T) < 0.3), -1, slots).tolist()
        levels = LEVELS[("int8", "int4", "ternary")[int(rng.integers(3))]]
        pages = Pages(rng, torch.from_numpy(rng.standard_normal((T, G, D))).float(), slots, levels,
                      P, S)
        pages.write(subject)
        pages.check(agree, f"write_quantized, {P} pages of {S} places, {G} heads of {D}, "
                           f"{len(levels)} levels, slots {slots}")


def test_write_quantized__halfway(subject, agree):
    """Scale 1, and numbers halfway between two codes: the even one."""
    x = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]).view(1, 1, 8)
    codes, scales = torch.zeros(1, 2, 1, 8, dtype=torch.uint8), torch.zeros(1, 2, 1).half()
    subject.write_quantized(x, codes, scales, torch.tensor([1]), LEVELS["int8"])
    bent = torch.sign(x) * torch.floor(x.abs() + 0.5)
    agree(codes[0, 1, 0], (x.round().int() + 127).flatten().numpy(), "exact",
          "write_quantized, numbers halfway between two codes", lambda i: f"number {i[0]}", {
              "halves are rounded away from 0; the even code is theirs":
                  (bent.int() + 127).flatten().numpy()})


def test_write_quantized__refused(subject, rng):
    """What absmax_scales refuses."""
    for kind in ("infinite", "not_a_number", "too large"):
        x = torch.full((3, 2, 6), 1e7) if kind == "too large" else \
            torch.from_numpy(VALUES[kind](rng, (3, 12))).view(3, 2, 6)
        pages, what = Pages(rng, x, [1, 5, 2], LEVELS["int8"], 7, 3), kind.replace("_", " ")
        try:
            pages.write(subject)
        except Raised as refusal:
            assert "scales" in refusal.text, refusal.text
        else:
            raise AssertionError(f"write_quantized: {what} in x is written, expected the "
                                 "ValueError of absmax_scales")


@pytest.mark.parametrize("name", ["int8", "fp8", "int4", "ternary"])
def test_what_is_read_is_the_round_trip(rng, name):
    levels, x = LEVELS[name], torch.from_numpy(rng.standard_normal((6, 2, 10))).float()
    width = {"ternary": 2, "int4": 5}.get(name, 10)
    codes, scales = torch.zeros(2, 4, 2, width, dtype=torch.uint8), torch.zeros(2, 4, 2)
    write_quantized(x, codes, scales, torch.tensor([0, 5, 2, 3, 4, 7]), levels)
    pages = read_quantized(codes, scales, levels, 10).flatten(0, 1)
    assert torch.equal(pages[[0, 5, 2, 3, 4, 7]], by_token(levels)(x))
    assert (pages[[1, 6]] == 0).all()                   # a scale of 0
    before = codes.clone()
    write_quantized(x[:1], codes, scales, torch.tensor([-1]), levels)
    assert torch.equal(codes, before)


# ---- the cache


@pytest.mark.parametrize("kinds", [("int8", "int8"), ("fp8", "int8"), ("int4", "ternary")])
def test_a_quantized_cache_is_a_cache_of_rounded_numbers(kinds):
    model, (k, v) = tiny(), (LEVELS[kind] for kind in kinds)
    rounded, prompts = with_kv(model, by_token(k), by_token(v)), [[5, 17, 3], [9] * 20]
    cache, plain = QuantizedCache(model.config, 2, 40, k, v), PagedCache(model.config, 2, 40)
    torch.testing.assert_close(logits(model, prompts, cache), logits(rounded, prompts, plain))
    assert generate_on(QuantizedCache(model.config, 2, 40, k, v), model, prompts, 8) == \
        generate_on(PagedCache(model.config, 2, 40), rounded, prompts, 8)
    with pytest.raises(ValueError, match="there is room for 40"):
        cache.step([[1] * 38, [1]])


def test_bytes_are_counted_from_the_arrays(small):
    m, found = small.config, {}
    for kind in ("int8", "fp8", "int4", "ternary"):
        found[kind] = QuantizedCache(m, 2, 64, LEVELS[kind], LEVELS[kind]).nbytes / 128
    rows = 2 * m.L * m.G
    assert found == {"int8": rows * 34, "fp8": rows * 34, "int4": rows * 18, "ternary": rows * 9}


def test_greedy_tokens_with_int8_are_those_without(small):
    words = Tokenizer(SMALL, small.config)
    prompts = [words.encode("Once upon a time"), words.encode("Return the number of")]
    cache = QuantizedCache(small.config, 2, 64, LEVELS["int8"], LEVELS["int8"])
    assert generate_on(cache, small, prompts, 30) == generate_on(
        PagedCache(small.config, 2, 64), small, prompts, 30)


def test_triton_kernels_attend_to_it():
    model, prompts = load(NANO, dtype=torch.float32), [[10, 97, 30], [5]]

    def cache():
        return QuantizedCache(model.config, 2, 16, LEVELS["int8"], LEVELS["int4"])

    want = generate_on(cache(), model, prompts, 2)
    simulator.activate_triton()
    try:
        model.ops = kernels("triton")
        assert generate_on(cache(), model, prompts, 2) == want
    finally:
        simulator.deactivate_triton()


def test_scales_by_channel_are_of_neighbours_in_time(rng):
    x = torch.from_numpy(rng.standard_normal((7, 2, 5))).float()
    got, levels = by_channel(LEVELS["int4"], 4)(x), LEVELS["int4"]
    for part, own in ((x[:4], got[:4]), (x[4:], got[4:])):
        for g in range(2):
            want, scales = coded(part[:, g].T.double().numpy(), levels)
            np.testing.assert_allclose(own[:, g].T, want * scales, rtol=2e-3, atol=1e-6)


# ---- a model


@pytest.mark.parametrize("entries", [{}, {"bias_qkv": True}])
def test_outliers_made_and_smoothed_leave_the_function(entries):
    model, prompts = tiny(**entries), [[5, 17, 3], [9, 8, 7, 6]]
    want = logits(model, prompts)
    hard = with_outliers(model, [3, 11], 50)
    torch.testing.assert_close(logits(hard, prompts), want, rtol=1e-4, atol=1e-4)
    maxima = channel_maxima(hard, prompts)
    name = "model.layers.0.mlp.gate_proj.weight"
    assert set(outlier_columns(maxima, 8)[name].tolist()) == {3, 11}
    smooth_one = smoothed(hard, maxima)
    torch.testing.assert_close(logits(smooth_one, prompts), want, rtol=1e-4, atol=1e-4)
    after = channel_maxima(smooth_one, prompts)
    for name, largest in maxima.items():
        if "o_proj" not in name:
            assert after[name].max() / after[name].median() < largest.max() / largest.median()


def test_smoothed_refuses_a_bias_that_it_would_have_to_move():
    model = tiny(bias_mlp=True)
    with pytest.raises(ValueError, match="up_proj has a bias, expected none"):
        smoothed(model, channel_maxima(model, [[1, 2, 3]]))


def test_static_scales_cut_off_what_the_sample_had_not():
    model, prompts = tiny(), [[5, 17, 3, 8]]
    maxima = channel_maxima(model, prompts)
    near = logits(static(model, LEVELS["int8"], maxima), prompts)
    half = logits(static(model, LEVELS["int8"], {k: v / 4 for k, v in maxima.items()}), prompts)
    want = logits(model, prompts)
    assert (half - want).abs().mean() > 4 * (near - want).abs().mean()
    own = logits(dynamic(model, LEVELS["int8"]), prompts)
    assert (own - want).abs().mean() < (near - want).abs().mean()


def test_a_model_of_split_matmuls_without_rounding_is_the_model():
    model, prompts = tiny(), [[5, 17, 3, 8]]
    every = {name: torch.arange(w.shape[1]) for name, w in model.weights.items() if is_matrix(name)}
    torch.testing.assert_close(logits(split(model, LEVELS["int4"], every), prompts),
                               logits(model, prompts))


def test_levels_of_integers():
    assert int_levels(8) == LEVELS["int8"] and int_levels(4) == LEVELS["int4"]
    assert int_levels(2) == LEVELS["ternary"]


# ---- the record


@pytest.fixture(scope="module")
def record():
    return json.loads((ROOT / "benchmarks" / "flow_bits.json").read_text("utf-8"))


def test_the_recorded_perplexities_are_of_the_shipped_model(record, small):
    """Stories are judged again, unrounded and rounded in some ways; all must come in order."""
    found = record["quality"]["perplexity"]
    words = Tokenizer(SMALL, small.config)
    judged = [words.encode(text.removeprefix(BEGIN)) for text in stories("held out")[::8]]
    assert sum(len(text[:small.config.room]) - 1 for text in judged) == \
        record["quality"]["tokens"]["stories"]
    int2 = by_token(int_levels(2))
    for row, model, rows in ((found["fp32"]["fp32"], small, 16),
                             (found["cache"]["int2, both"], with_kv(small, int2, int2), 1)):
        assert row["stories"] == pytest.approx(perplexity(model, judged, rows), rel=1e-3)
    for part in ("stories", "docstrings"):
        plain = found["fp32"]["fp32"][part]
        for name in ("small, fp32", "small, smooth, fp32", "made, fp32", "made, smooth, fp32"):
            assert found["outliers"][name][part] == pytest.approx(plain, rel=1e-3)
        assert found["activations"]["int8, dynamic"][part] == pytest.approx(plain, rel=5e-3)
        losses = [found["cache"][f"int{bits}, both"][part] for bits in (8, 4, 3, 2)]
        assert losses == sorted(losses)


def test_the_recorded_times_are_of_the_bytes_that_are_said(record):
    found = record["speed"]
    assert {k: v["size"] for k, v in found["activations"].items()} == {"fp32": 32, "int8": 8}
    assert {k: v["size"] for k, v in found["cache"].items()} == {
        "fp32": 2 * 8 * 128 * 4, "int8": 2 * 8 * (128 + 2), "int4": 2 * 8 * (64 + 2)}
    for way in (*found["activations"].values(), *found["cache"].values()):
        assert len(way["seconds"]) == found["rounds"] and min(way["seconds"]) > 0
