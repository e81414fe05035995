"""Graders of g08: codes against oracles in float64 that compare with every level."""

import itertools

import numpy as np
import pytest
import torch

from lab.judge.adversarial import VALUES, WORDS, shifted, views
from lab.judge.compare import brief
from lab.judge.mistakes import mistake, named
from lab.judge.subject import Raised
from layer2_graph import LEVELS, QuantizedCache, load
from layer2_graph.models import SMALL
from tests.layer2_graph.oracle_g08_activation_kv_quantization import (
    Pages,
    book,
    coded,
    dequantized,
    over,
    product,
    settled,
    split_product,
    whole_numbers,
    zeroed,
)
from tests.layer2_graph.quantization_cases import untied

FINITE = {WORDS[kind]: make for kind, make in VALUES.items()
          if kind not in ("infinite", "not_a_number")} | {
              "numbers around -3000": lambda rng, shape: shifted(rng, shape, -3000)}
TIED = {WORDS[kind]: kind for kind in ("tied", "exact_sums")}
UNEVEN = (0.0, 0.5, 3.0, 3.5)           # levels of no format
FORMATS = (*LEVELS.values(), UNEVEN)
INT4, INT8 = LEVELS["int4"], LEVELS["int8"]


def refused(call, words, name, what):
    """AssertionError of the mistake `name` unless a call raises an error with these words."""
    try:
        call()
    except Raised as refusal:
        assert words in refusal.text, mistake(
            "other_error", f"{what}: expected an error containing {words!r}, got {refusal.text}")
    else:
        raise AssertionError(mistake(name, f"{what}, and no error is raised; expected one "
                                           f"containing {words!r}"))


def pair(got, what, words):
    assert isinstance(got, (tuple, list)) and len(got) == 2, mistake(
        "no_pair", f"{what}: expected {words}, got {brief(got)}")
    return got


def same_shape(got, shape, what):
    own = tuple(getattr(got, "shape", ()))
    assert own == shape, mistake("shape", f"{what}: shape {own}, expected {shape}", "")


# ---- predict_kv_bytes


def test_predict_kv_bytes(subject, truth):
    """Counted: the bytes of a cache's four arrays, by its slots."""
    m = load(SMALL, dtype=torch.float32).config
    want = truth(lambda: QuantizedCache(m, 1, 64, INT8, INT8).nbytes / 64)
    got = subject.predict_kv_bytes()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_kv_bytes: expected a number, got {got!r}")
    known, why = {
        2 * m.L * m.G * m.D: ("no_scales", "The scales are missing."),
        2 * m.L * m.G * (m.D + 4): ("fp32_scales", "The scales are fp16: 2 bytes each."),
        m.L * m.G * (m.D + 2): ("keys_alone", "That is the keys alone; the values take as much "
                                              "again."),
        2 * m.G * (m.D + 2): ("one_layer", "That is one layer."),
        2 * m.L * m.H * (m.D + 2): ("query_heads", "That would be one key for each query head. The "
                                                   "cache stores keys for the kv heads."),
        2 * m.L * (m.G * m.D + 2): ("one_scale", "Every head's key has its own scale."),
        4 * m.L * m.G * m.D: ("fp16", "That is what fp16 takes."),
    }.get(got, ("other", "Count the bytes of one row, then the rows."))
    assert got == want, mistake(known, f"predict_kv_bytes: {got:g} bytes is not right. {why}", why)


# ---- quantize_tokens


@pytest.mark.parametrize("name", ["int8", "fp8", "int4"])
def test_quantize_tokens(subject, agree, rng, name):
    levels, (T, K) = LEVELS[name], (5, 33)
    x = (rng.standard_normal((T, K)) * 10.0 ** np.arange(-2, 3)[:, None]).astype(np.float32)
    x[1, 7] = -3 * np.abs(x[1]).max()                   # the largest |x| is a negative number
    x[2] = 0
    what = f"quantize_tokens, {name}"
    with named("no_keepdim", "Scales have the shape (T, 1): keep the axis, with keepdim=True.",
               lambda error: "multiply up" in getattr(error, "text", "")):
        got = subject.quantize_tokens(torch.from_numpy(x), levels)
    codes, scales = pair(got, what, "codes and scales")
    shapes = [tuple(getattr(part, "shape", ())) for part in (codes, scales)]
    assert shapes[0] != (T, 1), mistake("scales_first", (
        f"{what}: the first result has shape {(T, 1)}, like scales; return codes, then scales"))
    assert shapes[1] != (1, K), mistake("by_channel", (
        f"{what}: there are {K} scales, one for each channel; each of the {T} tokens has its own"))
    x = x.astype(np.float64)
    largest = np.abs(x).max(-1, keepdims=True)
    want = largest / levels[-1]
    agree(scales, want, "float32", f"{what}, scales", lambda i: f"token {i[0]}", {
        "one_scale": ("all tokens share one scale", np.full((T, 1), largest.max() / levels[-1])),
        "signed": ("the largest x is used, without the absolute value",
                   x.max(-1, keepdims=True) / levels[-1]),
        "undivided_largest": ("the largest |x| is not divided by the last level", largest),
        "by_count": ("the largest |x| is divided by the number of levels, not by the last level",
                     largest / len(levels)),
        "by_code": ("the largest |x| is divided by the last code, not by the level that it stands "
                    "for", largest / (len(levels) - 1)),
        "fp16_scales": ("scales are rounded to fp16; they keep x's dtype", want.astype(np.float16)),
        "mean": ("the mean |x| is used, not the largest",
                 np.abs(x).mean(-1, keepdims=True) / levels[-1]),
        "inverse": ("the last level is divided by the largest |x|: that is 1 / scale",
                    levels[-1] / np.where(largest > 0, largest, np.inf))})
    agree(codes, book(over(x, want), levels), what=f"{what}, codes",
          at=lambda i: f"token {i[0]}, channel {i[1]}", mistakes={
              "undivided": ("x is not divided by its scale", book(x, levels)),
              "whole_numbers": whole_numbers(x, want)})
    assert codes.dtype == torch.int8, mistake(
        "codes_dtype", f"{what}: codes are {codes.dtype}, expected torch.int8")


def test_quantize_tokens__hard(subject, agree, rng):
    """Tokens of every kind in arrays of every layout, each checked alone."""
    K = 33
    x = torch.from_numpy(np.concatenate([make(rng, (2, K)) for make in FINITE.values()]))
    rows = [f"{kind}, token {i} of two" for kind in FINITE for i in range(2)]
    wide = torch.from_numpy(rng.standard_normal((1, 33_000))).float()
    cases = [(x, rows, levels, "") for levels in FORMATS]
    cases += [(view, rows, INT4, f", {layout}") for layout, view in views(x).items()]
    cases += [(-x.abs() - 0.25, rows, INT4, ", all negative"), (x[:0], [], INT8, ", no token"),
              (wide, ["33,000 numbers"], LEVELS["fp8"], ""), (x[:1], rows, INT8, ", one token"),
              (x[:, :1], rows, INT8, ", of one number each"), (x.double(), rows, INT8, ", float64")]
    for x, rows, levels, how in cases:
        what = f"quantize_tokens, {len(levels)} levels{how}"
        codes, scales = subject.quantize_tokens(x, levels)
        assert scales.dtype == x.dtype, mistake(
            "scales_dtype", f"{what}: scales are {scales.dtype}, expected x's own, {x.dtype}",
            "scales keep x's dtype")
        same_shape(codes, tuple(x.shape), f"{what}, codes")
        same_shape(scales, (len(x), 1), f"{what}, scales")
        values = x.double().numpy()
        want = (x.abs().amax(-1, keepdim=True) / levels[-1]).double().numpy()
        for t, words in enumerate(rows[:len(x)]):
            row = np.s_[t:t + 1]
            clamped = [np.maximum(want[row], least / levels[-1])
                       for least in (1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-4)]
            agree(scales[row], want[row], "float64" if how == ", float64" else "float32",
                  f"{what}, {words}: its scale", mistakes={
                      "clamped": ("the largest |x| is clamped from below, so tokens of small "
                                  "numbers lose their precision", min(
                                      clamped, key=lambda floor: abs(floor - scales[t].item())))})
            agree(settled(codes[row], values[row], want[row], levels),
                  book(over(values[row], want[row]), levels), "exact",
                  f"{what}, {words}: its codes", lambda i: f"channel {i[1]}",
                  {"whole_numbers": whole_numbers(values[row], want[row])})


def test_quantize_tokens__halfway(subject, agree):
    """Scale 1, and numbers halfway between two codes: the even one."""
    x = np.float32([[127, *np.arange(-5.5, 6)], [-127, *np.arange(-120.5, -109)]])
    got, _ = subject.quantize_tokens(torch.from_numpy(x), INT8)
    agree(got, np.rint(x).astype(int), "exact", "quantize_tokens, numbers halfway between codes",
          lambda i: f"token {i[0]}, x = {x[i]:g}", {
              "half_up": ("halves are rounded up, not to the even code",
                          np.floor(x + 0.5).astype(int)),
              "half_away": ("halves are rounded away from 0, not to the even code",
                            (np.sign(x) * np.floor(np.abs(x) + 0.5)).astype(int)),
              "cut_off": ("the fraction is cut off instead of rounded", np.trunc(x).astype(int))})


def test_quantize_tokens__not_finite(subject, rng):
    for kind in ("infinite", "not_a_number"):
        x = torch.from_numpy(VALUES[kind](rng, (3, 8)))
        for some in (x, -x):
            refused(lambda some=some: subject.quantize_tokens(some, INT8), "not finite",
                    "not_refused", f"quantize_tokens: x with {kind.replace('_', ' ')} values")


# ---- split_matmul


def split_mistakes(x, w, columns, levels, want):
    """{id: (sentence, what it gives)} of split_matmul."""
    rest = np.setdiff1d(np.arange(x.shape[1]), columns)
    some = x[:, columns] @ w[:, columns].T
    (a, p), (b, q) = coded(x, levels), coded(w, levels)
    (own_a, own_p), (own_b, _) = (coded(zeroed(m, columns), levels) for m in (x, w))
    half_x, half_w = (m[:, columns].astype(np.float16).astype(float) for m in (x, w))
    of_x, of_w = (dequantized(m, columns, levels) for m in (x, w))
    other_x, other_w = (dequantized(m, rest, levels) for m in (x, w))
    return {
        "no_outliers": ("the outlier columns are left out of the result", want - some),
        "not_split": ("no column is split, so the outliers set the scales", product(x, w, levels)),
        "early_scales": ("the scales are computed with the outlier columns still in x and w",
                         some + a[:, rest] @ b[:, rest].T * p * q.T),
        "twice": ("the outlier columns are counted twice", some + product(x, w, levels)),
        "early_w_scales": ("w's scales are computed with the outlier columns still in w",
                           some + own_a @ zeroed(b, columns).T * own_p * q.T),
        "unrounded": ("nothing is rounded", x @ w.T),
        "fp16": ("the outlier columns are rounded to fp16", want - some + half_x @ half_w.T),
        "added_twice": ("the unrounded product of the outlier columns is added twice", want + some),
        "only_w": ("only w is rounded, x is not", some + zeroed(x, columns) @ of_w.T),
        "only_x": ("only x is rounded, w is not", some + of_x @ zeroed(w, columns).T),
        "sets_swapped": ("the outlier columns are rounded, and all others are not",
                         other_x @ other_w.T + x[:, rest] @ w[:, rest].T),
        "all_rounded": ("the outlier columns are rounded too, as a set of their own",
                        want - some + other_x @ other_w.T),
        "no_scales": ("the sums of codes are not multiplied by the scales",
                      some + own_a @ own_b.T)}


def judge_split(subject, agree, x, w, columns, levels, what, precision="float64"):
    """Each token is checked alone. x, w: tensors"""
    got = subject.split_matmul(x, w, columns, levels)
    same_shape(got, (len(x), len(w)), f"split_matmul, {what}")
    x, w, columns = x.double().numpy(), w.double().numpy(), columns.numpy()
    want = split_product(x, w, columns, levels)
    for t in range(len(x)):
        agree(got[t], want[t], precision, f"split_matmul, {what}: token {t}",
              lambda i: f"output {i[0]}", {"unrounded": ("nothing is rounded", (x @ w.T)[t])})


def check_split(subject, agree, x, w, columns, levels, what, want=None):
    """want: the result, if not that of the oracle"""
    got = subject.split_matmul(*map(torch.from_numpy, (x, w, columns)), levels)
    x, w = x.astype(np.float64), w.astype(np.float64)
    want = split_product(x, w, columns, levels) if want is None else want
    agree(got, want, "float32", f"split_matmul, {what}", lambda i: f"token {i[0]}, output {i[1]}",
          split_mistakes(x, w, columns, levels, want))


def test_split_matmul__where_nothing_needs_rounding(subject, agree, rng):
    """All but the outlier columns are whole numbers up to 127: x wᵀ itself."""
    columns = np.array([3, 20])
    x, w = (rng.integers(-126, 127, (n, 24)).astype(np.float32) for n in (5, 7))
    x[:, 0], w[:, 1] = 127, -127
    x[:, columns] = rng.uniform(300, 2000, (5, 2))
    w[:, columns] = rng.uniform(-900, 900, (7, 2))
    check_split(subject, agree, x, w, columns, INT8, "integers and two outlier columns",
                x.astype(np.float64) @ w.astype(np.float64).T)


@pytest.mark.parametrize("columns", [[5], [0, 9, 30], [], list(range(31))])
def test_split_matmul(subject, agree, rng, columns):
    columns = np.array(columns, int)
    x, w = (rng.standard_normal((n, 31)).astype(np.float32) for n in (6, 9))
    x[:, columns] *= 40
    check_split(subject, agree, x, w, columns, INT4,
                f"int4, outlier columns {columns.tolist()}")


def test_split_matmul__hard(subject, agree, rng):
    """Rows of every kind in x and in w, float64, so that codes are those of the book."""
    def numbers(*shape):
        return torch.from_numpy(rng.standard_normal(shape))

    def judge(x, w, levels, what, columns=(20, 3)):                 # in no order
        judge_split(subject, agree, x, w, torch.tensor(columns, dtype=torch.int64), levels, what)

    for (kind, make), in_w in itertools.product(FINITE.items(), (False, True)):
        hard = torch.from_numpy(untied(rng, make(rng, (3, 24)), TIED.get(kind))).double()
        other = numbers(4, 24)
        judge(*((other, hard) if in_w else (hard, other)), INT8,
              f"{kind} in {'w' if in_w else 'x'}")
    x, w = numbers(5, 24), numbers(7, 24)
    for levels in FORMATS:
        judge(x, w, levels, f"{len(levels)} levels")
    for layout, view in views(x).items():
        judge(view, w, INT4, f"x with {layout}")
    for layout, view in views(w).items():
        judge(x, view, INT4, f"w with {layout}")
    for T, N, K, which in ((1, 4, 9, [2]), (3, 1, 9, [8]), (3, 4, 1, []), (3, 4, 1, [0]),
                           (2, 3, 33_000, [32_999]), (0, 4, 9, [2]), (3, 0, 9, [2])):
        judge(numbers(T, K), numbers(N, K), INT8,
              f"T = {T}, N = {N}, K = {K}, columns {which}", which)


def test_split_matmul__halfway(subject, agree):
    """Scales of 1, and factors halfway between two codes: the even one."""
    x = torch.tensor([[127.0, 99.25, 0.5, 1.5, 2.5, -0.5, -3.5, 4.5]]).double()
    w = torch.tensor([[127.0, 11.5, 1, 2, 3, 4, 5, 6], [127.0, -8, 0.5, -2.5, 4.5, 6.5, 1.5, 9]])
    w, columns = w.double(), torch.tensor([1])

    def out(round_half):
        a, b = round_half(x.numpy()), round_half(w.numpy())
        a[:, 1], b[:, 1] = x[:, 1], w[:, 1]
        return a @ b.T

    agree(subject.split_matmul(x, w, columns, INT8), out(np.rint), "float64",
          "split_matmul, factors halfway between two codes", mistakes={
              "half_up": ("halves are rounded up; g07's codes are even there",
                          out(lambda a: np.floor(a + 0.5)))})


def test_split_matmul__not_finite(subject, rng):
    """A refusal is right, and so are numbers that are not finite: finite ones would hide it."""
    w, columns = torch.from_numpy(rng.standard_normal((4, 24))), torch.tensor([3])
    for kind, k in itertools.product(("infinite", "not_a_number"), (3, 5)):
        x = torch.from_numpy(rng.standard_normal((3, 24)))
        x[1, k] = VALUES[kind](rng, (1, 1)).item()
        for some in ((x, w), (w, x)):
            try:
                got = subject.split_matmul(*some, columns, INT8)
            except Raised as refusal:
                assert "finite" in refusal.text, refusal.text
            else:
                lost = got[1] if some[0] is x else got[:, 1]
                assert not lost.isfinite().any(), mistake("made_finite", (
                    f"split_matmul: column {k} has {x[1, k].item()}, but the result is finite; "
                    f"expected inf or NaN in it, or a ValueError"), "the result is finite")


# ---- smooth


@pytest.mark.parametrize("alpha", [0.5, 0.8])
@np.errstate(divide="ignore", invalid="ignore")
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
    what = f"smooth, alpha {alpha}"
    new, several = pair(subject.smooth(torch.from_numpy(norm), [*map(torch.from_numpy, matrices)],
                                       torch.from_numpy(largest), alpha), what,
                        "a norm and a list of matrices")
    whole = np.concatenate(matrices).astype(np.float64)
    every = np.abs(whole).max(0)

    def s(columns=every, power=alpha, other=1 - alpha, rule=None):
        """largest^power / columns^other, and 1 where the rule is broken."""
        rule = (largest > 0) & (columns > 0) if rule is None else rule
        return np.where(rule, largest.astype(np.float64) ** power / columns ** other, 1)

    own = s()
    agree(new, norm / own, "float32", f"{what}, the norm", lambda i: f"channel {i[0]}", {
        "norm_times_s": ("the norm is multiplied by s", norm * own),
        "same_norm": ("the norm stays as it was", norm),
        "first_matrix": ("only the first matrix is used for the largest |w|",
                         norm / s(np.abs(matrices[0]).max(0).astype(np.float64))),
        "last_matrix": ("only the last matrix is used for the largest |w|",
                        norm / s(np.abs(matrices[-1]).max(0).astype(np.float64))),
        "exponents": ("alpha and 1 - alpha are swapped", norm / s(every, 1 - alpha, alpha)),
        "signed": ("the largest w is used, without the absolute value", norm / s(whole.max(0))),
        "multiplied": ("columns^(1 - alpha) is multiplied instead of divided by",
                       norm / s(other=alpha - 1)),
        "no_rule": ("there is no rule for 0: s is 0 where the largest |x| is, and infinite where "
                    "|w| is", norm / s(rule=True)),
        "rule_of_w": ("s is 1 where |w| is 0; where the largest |x| is 0 it is not, and should be",
                      norm / s(rule=every > 0)),
        "rule_of_x": ("s is 1 where the largest |x| is 0; where |w| is 0 it is not, and should be",
                      norm / s(rule=largest > 0)),
        "no_exponents": ("there are no exponents: s is the largest |x| over |w|",
                         norm / s(every, 1, 1)),
        "same_exponent": ("|w| has the exponent alpha, too, not 1 - alpha",
                          norm / s(every, alpha, alpha)),
        "mean_of_matrices": ("the mean of the matrices' largest |w| is used, not the largest",
                             norm / s(np.mean([np.abs(w).max(0) for w in matrices], 0))),
        "mean": ("the mean |w| is used, not the largest", norm / s(np.abs(whole).mean(0)))})
    for i, (w, got) in enumerate(zip(matrices, several, strict=True)):
        agree(got, w * own, "float32", f"{what}, matrix {i}",
              lambda i: f"row {i[0]}, channel {i[1]}", {
                  "divided": ("the matrices are divided by s, like the norm; multiply them",
                              w / own),
                  "same_matrices": ("the matrices stay as they were", w)})


def judge_smooth(subject, agree, norm, matrices, largest, alpha, what):
    """Each channel is checked alone: they may differ by powers of ten."""
    new, several = pair(subject.smooth(norm, matrices, largest, *alpha), f"smooth, {what}",
                        f"a norm and {len(matrices)} matrices")
    assert len(several) == len(matrices), mistake("shape", (
        f"smooth, {what}: {len(several)} matrices, expected {len(matrices)}"), "")
    power, own = alpha[0] if alpha else 0.5, largest.double().numpy()
    columns = np.abs(np.concatenate([w.double().numpy() for w in matrices])).max(0)
    bare = own ** power / columns ** (1 - power)
    s = np.where((own > 0) & (columns > 0), bare, 1)
    floors = own.clip(1e-5) ** power / columns.clip(1e-5) ** (1 - power)
    zero = np.where(s == 1, bare, s)
    precision = "float64" if norm.dtype == torch.float64 else "float32"
    rows = [("the norm", new, norm, 1 / s, 1 / floors, 1 / zero)] + [
        (f"matrix {i} of {len(matrices)}", out, w, s, floors, zero)
        for i, (out, w) in enumerate(zip(several, matrices, strict=True))]
    for name, out, array, factor, floor, no_rule in rows:
        same_shape(out, tuple(array.shape), f"smooth, {what}, {name}")
        array = array.double().numpy()
        for c in range(len(s)):
            agree(out[..., c], array[..., c] * factor[c], precision,
                  f"smooth, {what}, {name}, channel {c}", mistakes={
                      "zero_rule": ("s is not 1 where the largest |x| or |w| is 0",
                                    array[..., c] * no_rule[c]),
                      "clamped": ("the maxima are clamped from below; only a maximum of exactly 0 "
                                  "has a rule of its own (s = 1)", array[..., c] * floor[c]),
                      "one_factor": ("every channel gets the factor of channel 0",
                                     array[..., c] * factor[0])})


@np.errstate(all="ignore")
def test_smooth__hard(subject, agree, rng):
    C = 12

    def numbers(*shape):
        return torch.from_numpy(rng.standard_normal(shape)).float()

    def judge(norm, matrices, largest, what, *alpha):
        judge_smooth(subject, agree, norm, matrices, largest, alpha, what)

    norm, largest, w = numbers(C), numbers(C).abs(), [numbers(n, C) for n in (5, 3)]
    judge(norm, w, largest, "alpha left out")
    for kind, make in FINITE.items():
        hard = torch.from_numpy(make(rng, (5, C)))
        judge(norm, [w[1], hard], largest, f"{kind} in a matrix")
        judge(hard[0], w, largest, f"{kind} in the norm")
        judge(norm, w, hard[1].abs(), f"{kind} in largest")
    for rows in (1, 7):
        judge(numbers(rows, C), w, largest, f"a norm of shape ({rows}, {C})", 0.3)
    for kind in ("infinite", "not_a_number"):
        judge(torch.from_numpy(VALUES[kind](rng, (3, C))), w, largest, f"{WORDS[kind]} in the norm")
    for which, layout in itertools.product(("the norm", "matrix 0", "matrix 1"), views(w[0])):
        some = {"the norm": numbers(4, C), "matrix 0": w[0], "matrix 1": w[1]}
        some[which] = views(some[which])[layout]
        judge(some["the norm"], [some["matrix 0"], some["matrix 1"]], largest,
              f"{which} with {layout}", 0.6)
    judge(norm.double(), [m.double() for m in w], largest.double(), "float64", 0.7)
    for count, C in ((1, 17), (4, 31), (2, 1)):
        judge(numbers(C), [numbers(2 + i, C) for i in range(count)], numbers(C).abs(),
              f"{count} matrices of {C} columns")
    wide = numbers(33_000), [numbers(2, 33_000)], numbers(33_000).abs()
    s = (wide[2].double() / wide[1][0].double().abs().amax(0)).sqrt()
    agree(subject.smooth(*wide)[0], wide[0].double() / s, "float32",
          "smooth, 33,000 channels, the norm")
    norm, largest, some = numbers(6), numbers(6).abs(), numbers(3, 6)
    largest[:2], some[:, 1:3] = 0, 0            # of x, of both, of w
    for alpha in (0.5, 0.0, 1.0):
        judge(norm, [some], largest, f"alpha {alpha:g}, nothing in some channels", alpha)


# ---- write_quantized


def check_pages(agree, pages, what):
    """Each slot alone, the first 40 of those that no token has."""
    places = {slot: t for t, slot in enumerate(pages.slots) if slot >= 0}
    rows, early = pages.bytes_of(pages.own), pages.bytes_of(pages.exact)
    codes, scales = (a.reshape(pages.P * pages.S, *a.shape[2:]).numpy()
                     for a in (pages.codes, pages.scales))
    for slot in sorted({*range(min(len(codes), 40))} - {*places}):
        where = f"{pages.place(slot)}, which no token of this call has"
        agree(codes[slot], np.full_like(codes[slot], 77), "exact", f"{what}: codes at {where}",
              mistakes=pages.intruder(slot, codes[slot], rows))
        agree(scales[slot], np.full_like(scales[slot], 0.5), "exact", f"{what}: scales at {where}")
    for slot, t in places.items():
        words = f"of token {t}, {pages.place(slot)}"
        agree(scales[slot], pages.own[t], "exact", f"{what}: scales {words}",
              lambda i: f"head {i[0]}", {
                  "no_scale": ("no scale is written", np.full_like(scales[slot], 0.5)),
                  "clamped": ("a scale of 0 is replaced by a small number; it may be 0",
                              np.where(pages.own[t] == 0, scales[slot], pages.own[t]))})
        agree(codes[slot], rows[t], "exact", f"{what}: codes {words}",
              lambda i: f"head {i[0]}, byte {i[1]}", {
                  "not_written": ("nothing is written", np.full_like(codes[slot], 77)),
                  "early_codes": ("the codes use scales before they are rounded to fp16",
                                  early[t])})


@pytest.mark.parametrize("name", ["int8", "fp8", "int4", "ternary"])
def test_write_quantized(subject, agree, rng, name):
    x = rng.standard_normal((5, 2, 6)).astype(np.float32)
    x[:, 1] *= 9
    slots = [6, -1, 13, 0, 7]
    pages = Pages(torch.from_numpy(x), slots, LEVELS[name], P=4, S=4)
    pages.write(subject)
    x, what = pages.numbers, f"write_quantized, {name}"
    codes, scales, last_level = pages.bytes_of(pages.own), pages.own, pages.levels[-1]
    shared = np.broadcast_to(np.abs(x).max((1, 2))[:, None] / last_level, (5, 2))
    last = [15 if slot < 0 else slot for slot in slots]
    first = [*slots[:1], 15, *slots[2:4], -1]               # of as many tokens as have a slot
    early = [slot for slot in slots if slot >= 0]
    short = x.astype(np.float16).astype(np.float64)
    rough = (np.abs(short).max(-1).astype(np.float32) / np.float32(last_level)).astype(np.float16)
    agree(pages.codes, pages.filled(77, codes), what=f"{what}, codes",
          at=lambda i: f"page {i[0]}, place {i[1]}, head {i[2]}, byte {i[3]}", mistakes={
              "not_written": ("nothing is written", pages.filled(77, codes, [-1] * 5)),
              "slot_0": ("slot 0 is skipped as well", pages.filled(77, codes, [6, -1, 13, -1, 7])),
              "last_slot": ("slot -1 is written to the last slot", pages.filled(77, codes, last)),
              "swapped": ("page and place are swapped", pages.filled(77, codes, swap=True)),
              "one_scale": ("all heads of a token share one scale",
                            pages.filled(77, pages.bytes_of(shared))),
              "undivided": ("the numbers are not divided by their scale",
                            pages.filled(77, pages.bytes_of(np.ones((5, 2))))),
              "first_tokens": ("the first tokens are taken for those with a slot; a -1 may come "
                               "before them", pages.filled(77, codes, first)),
              "own_tokens": ("known slots get the first tokens; skip tokens with slot -1, too",
                             pages.filled(77, codes[:len(early)], early)),
              "fp16_x": ("x is rounded to fp16 before it is divided by its scale",
                         pages.filled(77, pages.bytes_of(rough, short)))})
    agree(pages.scales, pages.filled(0.5, scales), "float16", f"{what}, scales",
          lambda i: f"page {i[0]}, place {i[1]}, head {i[2]}", {
              "no_scale": ("no scale is written", pages.filled(0.5, scales, [-1] * 5)),
              "inverse": ("the stored scale is 1 / scale",
                          pages.filled(0.5, 1 / scales.astype(np.float32))),
              "largest": ("the stored scale is the largest |x|, not divided by the last level",
                          pages.filled(0.5, np.abs(x).max(-1))),
              "scales_swapped": ("scales go to place and page, codes to page and place",
                                 pages.filled(0.5, scales, swap=True)),
              "last_scale": ("the scale of a token with slot -1 is stored in the last slot",
                             pages.filled(0.5, scales, last))})


@np.errstate(invalid="ignore")                  # NaN in a token that is skipped
def test_write_quantized__hard(subject, agree, rng):
    """Pages, places, heads and widths are all different; tokens of every kind."""
    def numbers(*shape):
        return torch.from_numpy(rng.standard_normal(shape)).float()

    def judge(what, x, slots, levels=INT4, P=7, S=3, layout=""):
        pages = Pages(x, slots, levels, P, S, layout)
        pages.write(subject)
        check_pages(agree, pages, f"write_quantized, {what}")

    judge("three places a page", numbers(1, 2, 6), [7])
    for levels in LEVELS.values():
        judge(f"{len(levels)} levels", numbers(6, 2, 129), [5, 0, -1, 20, 7, 3], levels)
    for kind, make in FINITE.items():
        x = torch.from_numpy(untied(rng, make(rng, (6, 11)), TIED.get(kind))).view(3, 2, 11)
        judge(f"{kind} in x", x, [4, 19, 0])
    judge("numbers of 1e-6: scales near fp16's least", numbers(4, 2, 40) * 1e-6, [1, 2, 3, 4], INT8)
    judge("a head of zeros", numbers(2, 3, 6) * torch.tensor([1, 0, 1])[:, None], [8, 2], INT8)
    for dtype in (torch.float16, torch.float64):
        judge(f"x in {dtype}", numbers(3, 2, 9).to(dtype), [1, 3, 2], INT8)
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
    for number in (np.nan, np.inf):
        x = numbers(3, 2, 6)
        x[1] = number
        with named("skipped_token", f"The token with slot -1 contains {number}, as padding may. "
                   f"Select the tokens first; a skipped token needs no scale.",
                   lambda error: isinstance(error, Raised)):
            judge(f"{number} in a token that is skipped", x, [3, -1, 8])


def test_write_quantized__drawn(subject, agree, rng):
    """Small sizes, any of which may be 1, tokens in any order, some of them skipped."""
    for _ in range(60):
        T, P, S, G, D = (int(n) for n in rng.integers(1, 6, 5))
        slots = rng.permutation(max(P * S, T))[:T]
        slots = np.where((slots >= P * S) | (rng.random(T) < 0.3), -1, slots).tolist()
        levels = LEVELS[("int8", "int4", "ternary")[int(rng.integers(3))]]
        pages = Pages(torch.from_numpy(rng.standard_normal((T, G, D))).float(), slots, levels, P, S)
        pages.write(subject)
        check_pages(agree, pages, f"write_quantized, {P} pages of {S} places, {G} heads of {D}, "
                           f"{len(levels)} levels, slots {slots}")


def test_write_quantized__halfway(subject, agree):
    """Scale 1, and numbers halfway between two codes: the even one."""
    x = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]).view(1, 1, 8)
    pages = Pages(x, [1], INT8, 1, 2)
    pages.write(subject)
    bent = torch.sign(x) * torch.floor(x.abs() + 0.5)
    agree(pages.codes[0, 1, 0], (x.round().int() + 127).flatten().numpy(), "exact",
          "write_quantized, numbers halfway between two codes", lambda i: f"number {i[0]}", {
              "half_away": ("halves are rounded away from 0; they belong to the even code",
                            (bent.int() + 127).flatten().numpy())})


@np.errstate(over="ignore")                     # a scale beyond fp16
def test_write_quantized__refused(subject, rng):
    """What absmax_scales refuses."""
    for kind in ("infinite", "not_a_number", "too large"):
        x = torch.full((3, 2, 6), 1e7) if kind == "too large" else \
            torch.from_numpy(VALUES[kind](rng, (3, 12))).view(3, 2, 6)
        pages = Pages(x, [1, 5, 2], INT8, 7, 3)
        refused(lambda pages=pages: pages.write(subject), "scales", "not_refused",
                f"write_quantized: x has {kind.replace('_', ' ')} values")
