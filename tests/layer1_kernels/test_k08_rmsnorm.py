"""Graders of k08.
Outputs start as 7, which no norm gives, so that unwritten places show."""

import numpy as np
import pytest

from lab.judge.adversarial import VALUES, shifted
from lab.judge.compare import rounded_once
from lab.judge.mistakes import mistake, same_report
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work
from tests.layer1_kernels.mistake_rows import telling
from tests.layer1_kernels.row_cases import at, block, tensors, total

SHORT = ("float16", "bfloat16")
EPS = 0.02              # large enough to be missed
SIZES = [(3, 600, "float32"), (1, 1, "float32"), (2, 127, "float16"), (3, 129, "bfloat16"),
         (2, 128, "float32"), (1, 0, "float32")]                         # T, C, dtype
HARD = {                                        # words: (dtype, a generator of rows)
    "numbers around 0.001": ("float32", lambda rng, shape: 1e-3 * rng.standard_normal(shape)),
    "fp16 numbers around 1000": ("float16", lambda rng, shape: 1000 * rng.standard_normal(shape)),
    "numbers around 10^10": ("float32", lambda rng, shape: 1e10 * rng.standard_normal(shape)),
    "rows of zeros": ("float32", lambda rng, shape: np.zeros(shape)),
    "rows around 100": ("float32", lambda rng, shape: shifted(rng, shape, 100.0)),
    "rows around -200": ("float32", lambda rng, shape: shifted(rng, shape, -200.0)),
    "fp16 numbers around 2000": ("float16", lambda rng, shape: 2000 + 1000 * rng.standard_normal(
        shape)),
    "negative numbers only": ("float32", VALUES["negative"]),
    "all numbers of a row equal": ("float32", VALUES["equal"]),
    "rows of very different sizes": ("float32", VALUES["uneven"]),
    "bf16 rows of very different sizes": ("bfloat16", VALUES["uneven"]),
    "0 and -0 among the numbers": ("float32", VALUES["signed_zeros"]),
    "numbers of 1e-40": ("float32", VALUES["denormal"]),
    "rows with some -inf": ("float32", VALUES["infinite"]),
    "a NaN in the second row": ("float32", VALUES["not_a_number"])}


# ---- rows, oracles, and what goes wrong


def mean(x):                                    # (T, C) -> (T, 1)
    return x.mean(-1, keepdims=True)


def normed(x, spread=mean, eps=EPS):            # (T, C) -> (T, C)
    """Each row over the root of its mean square, or of what `spread` makes of the squares."""
    return x / np.sqrt(spread(x * x) + eps)


def inputs(rng, T, C, dtype, generator=None, count=1):
    """Arrays (T, C) and two of (C,), in float64 as rounded to dtype, and the same as tensors.

    Unless a generator says otherwise the mean square is 1/4: of 1 the root would not show.
    """
    arrays = [generator(rng, (T, C)).astype(float) if generator else
              0.5 * rng.standard_normal((T, C)) for _ in range(count)]
    arrays += [rng.uniform(0.5, 2, C), rng.uniform(-1, 1, C)]
    return arrays, tensors(dtype, *arrays)


def first_row(right):
    return np.where(np.arange(len(right))[:, None] > 0, 7, right)


def of_norm(d, w, b):
    """{mistake: (what the kernel does, what it gives)} of either norm. d: the row, or the row minus
    its mean; b: 0 where there is none"""
    C = d.shape[1]
    square = mean(d * d)
    return {
        "sum_of_squares": ("divides by the root of the sum of squares, not of their mean",
                           normed(d, total) * w + b),
        "squares_over_block": ("takes the mean of the squares over BLOCK columns; the row has C",
                               normed(d, lambda s: total(s) / block(C)) * w + b),
        "c_minus_1": ("divides the sum of squares by C - 1; a norm takes the mean",
                      normed(d, lambda s: total(s) / max(C - 1, 1)) * w + b),
        "no_root": ("divides by the mean square without taking the root, or scales twice",
                    d / (square + EPS) * w + b),
        "times_root": ("multiplies by the root of the mean square; it should divide",
                       d * np.sqrt(square + EPS) * w + b),
        "no_eps": ("leaves out eps, or takes it for the least mean square; eps is added",
                   normed(d, eps=0) * w + b),
        "eps_after_root": ("adds eps after the root; it belongs under the root",
                           d / (np.sqrt(square) + EPS) * w + b),
        "eps_per_square": ("adds eps to each of BLOCK squares, and divides their sum by C",
                           normed(d, eps=EPS * block(C) / max(C, 1)) * w + b),
        "no_w": ("leaves out w", normed(d) + b),
        "one_plus_w": ("multiplies by 1 + w, as some models do; here it is w",
                       normed(d) * (1 + w) + b),
        "w_before_squares": ("multiplies by w before it squares", normed(d * w) + b),
        "first_row_only": ("writes only its first row", first_row(normed(d) * w + b)),
        "nothing_written": ("does not write y", np.full_like(d, 7))}


def of_rms(name, x, w):
    """{mistake: (sentence, what it gives)} of a kernel that should give the RMSNorm of x."""
    C = x.shape[1]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        square = mean(x * x)
        return telling(name, normed(x) * w, of_norm(x, w, 0) | {
            "numbers_summed": ("sums the numbers, not their squares",
                               x / np.sqrt(mean(x) + EPS) * w),
            "absolute_values": ("sums absolute values, not squares",
                                x / np.sqrt(mean(np.abs(x)) + EPS) * w),
            "largest_square": ("takes the largest square; a norm takes the mean of all",
                               normed(x, lambda s: s.max(-1, keepdims=True, initial=0)) * w),
            "ones_past_row": (
                "loads 1 for columns beyond the row, and they count in the mean square",
                normed(x, lambda s: (total(s) + block(C) - C) / max(C, 1)) * w),
            "eps_on_scale": ("adds eps to the scale; it belongs under the root",
                             x * (1 / np.sqrt(square) + EPS) * w),
            "divided_by_w": ("divides by w; it should multiply", normed(x) / w),
            "w_0": ("multiplies each column by w[0]", normed(x) * w[:1]),
            "layernorm": ("subtracts the mean, which is LayerNorm", normed(x - mean(x)) * w),
            "fp16_squares": ("squares in float16, where 256² overflows to inf: convert "
                             "to fp32 first",
                             np.zeros_like(x)),
            "no_scale": ("writes w times x, without the scale", x * w),
            "scale_of_row_0": ("uses the scale of row 0 for every row",
                               x / np.sqrt(square[:1] + EPS) * w)})


def of_sum(name, x, residual, w):
    """{mistake: (sentence, what it gives)} in place of the RMSNorm of x + residual."""
    s = x + residual
    with np.errstate(all="ignore"):
        of_x, of_s = (np.sqrt(mean(each * each) + EPS) for each in (x, s))
        return telling(name, normed(s) * w, {
            "x_times_scale": ("takes the scale from the sum, but multiplies x by it", x / of_s * w),
            "scale_of_x": ("takes the scale from x, and not from the sum", s / of_x * w),
            "residual_left_out": ("normalises x without the residual", normed(x) * w),
            "x_left_out": ("normalises the residual without x", normed(residual) * w),
            "sum_in_y": ("stores the sum in y too", s),
            "added_after": ("adds the residual after the norm, not before it",
                            normed(x) * w + residual)}) | of_rms(name, s, w)


def of_layer(name, x, w, b):
    """{mistake: (sentence, what it gives)} of a kernel that should give the LayerNorm of x."""
    C = x.shape[1]
    m = mean(x)
    d = x - m
    beyond = block(C) - C
    with np.errstate(divide="ignore", invalid="ignore"):
        return telling(name, normed(d) * w + b, of_norm(d, w, b) | {
            "b_subtracted": ("subtracts b; it is added", normed(d) * w - b),
            "w_and_b_swapped": ("takes w for b and b for w", normed(d) * b + w),
            "sum_subtracted": ("subtracts the sum of the row, not its mean",
                               normed(x - m * C) * w + b),
            "mean_added": ("adds the mean; it should subtract it", normed(x + m) * w + b),
            "mean_over_block": ("takes the mean of the row over BLOCK columns; the row has C",
                                normed(x - m * C / block(C)) * w + b),
            "mean_of_row_0": ("uses the mean of row 0 for every row", normed(x - m[:1]) * w + b),
            "largest_subtracted": ("subtracts the largest number; a norm subtracts the mean",
                                   normed(x - x.max(-1, keepdims=True, initial=-np.inf)) * w + b),
            "minus_mean_past_row": (
                "leaves -mean instead of 0 beyond the row, and it counts in the mean square",
                normed(d, lambda s: mean(s) + beyond * m * m / C) * w + b),
            "no_mean": ("does not subtract the mean, which is RMSNorm plus b", normed(x) * w + b),
            "mean_in_result": ("subtracts the mean for the sum of squares, but not in the result",
                               x / np.sqrt(mean(d * d) + EPS) * w + b),
            "no_b": ("leaves out b", normed(d) * w),
            "b_before_w": ("adds b before it multiplies by w", (normed(d) + b) * w)})


def economical(name, launch, reads, writes, weights, what):
    """Bytes asked for, in sizes of x, are the least; requests want all that they move."""
    for op, times, verb in (("load", reads, "reads"), ("store", writes, "writes")):
        got = (launch.bytes(op) - (weights if op == "load" else 0)) / what.nbytes
        assert got <= times, mistake(
            "read_again" if op == "load" else "written_again",
            f"{name} {verb} {got:g} times the size of x; {times} is enough. What you have loaded "
            f"or computed is still in registers.")
        counts = launch.memory("global", op)
        assert counts["transactions"] == counts["ideal"], mistake(
            "far_apart", f"{name}: one {op} request touches {launch.sectors_per_request(op):g} "
            f"sectors; {counts['ideal'] / counts['requests']:g} are enough. Give neighbouring "
            f"threads neighbouring columns.")


def start(subject, name, x, *args):
    """The launch of one program a row; args: after x, before C."""
    with same_report("reads_past_row", kind="out_of_bounds", array="x"), \
            same_report("writes_past_row", kind="out_of_bounds", array="y"), \
            same_report("beyond_w", "One w, of C numbers, serves all rows: load w + c, masked.",
                        kind="out_of_bounds", array="w"), \
            same_report("one_row_of_y", "Every program stores y in row 0: `row` is missing in the "
                        "address.", kind="race", array="y"):
        return subject.launch(name, len(x), args=(x, *args, x.shape[1], EPS),
                              BLOCK=block(x.shape[1]))


# ---- RMSNorm


def run_rmsnorm(subject, x, w):
    y = x.new_full(x.shape, 7)
    return y, start(subject, "rmsnorm_triton", x, w, y)


@pytest.mark.parametrize("T, C, dtype", SIZES)
def test_rmsnorm_triton(subject, agree, rng, T, C, dtype):
    (x, w, _), (xt, wt, _) = inputs(rng, T, C, dtype)
    got, _ = run_rmsnorm(subject, xt, wt)
    agree(got, normed(x) * w, dtype, f"rmsnorm_triton, {T} row(s) of {C} {dtype}", at,
          of_rms("rmsnorm_triton", x, w))


def test_rmsnorm_triton__hard_rows(subject, agree, rng):
    name = "rmsnorm_triton"
    for what, (dtype, generator) in HARD.items():
        (x, w, _), (xt, wt, _) = inputs(rng, 3, 300, dtype, generator)
        got, _ = run_rmsnorm(subject, xt, wt)
        with np.errstate(all="ignore"):
            agree(got, normed(x) * w, dtype, f"{name}, {what}", at, of_rms(name, x, w))


def test_rmsnorm_triton__rounded_once(subject, rng):
    for dtype in SHORT:
        (x, w, _), (xt, wt, _) = inputs(rng, 3, 500, dtype)
        got, _ = run_rmsnorm(subject, xt, wt)
        rounded_once(got, normed(x) * w, "rmsnorm_triton", f"3 rows of 500 {dtype}")


def test_rmsnorm_triton__work(subject, reference, rng):
    _, (x, w, _) = inputs(rng, 4, 1024, "float32")
    _, launch = run_rmsnorm(subject, x, w)
    economical("rmsnorm_triton", launch, 1, 1, 4 * w.nbytes, x)
    same_work("rmsnorm_triton", launch, run_rmsnorm(reference, x, w)[1])


# ---- the add before it


def run_add_rmsnorm(subject, x, residual, w):
    y, s = x.new_full(x.shape, 7), x.new_full(x.shape, 7)
    return y, s, start(subject, "add_rmsnorm_triton", x, residual, w, y, s)


def test_predict_bytes_ratio(subject, reference, rng):
    _, (x, residual, w, _) = inputs(rng, 2, 1000, "float32", count=2)
    _, norm = run_rmsnorm(reference, x, w)
    *_, fused = run_add_rmsnorm(reference, x, residual, w)
    norm, fused = (launch.bytes("load") + launch.bytes("store") - 2 * w.nbytes
                   for launch in (norm, fused))
    add = 3 * x.nbytes
    got = subject.predict_bytes_ratio()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_bytes_ratio: expected a number, got {got!r}")
    rows = {5 / 3: ("one_result", "5/3 is right for a kernel that writes only y; but the next "
                                  "addition needs the sum."),
            3 / 2: ("reads_alone", "3/2 compares only the reads; both also write."),
            2: ("launches_counted", "2 counts launches; count the arrays that each moves."),
            fused / (add + norm): ("upside_down", "Two launches move more than one.")}
    known, why = next((row for value, row in rows.items() if abs(got - value) < 0.01), (
        "other", "Count the arrays that the addition, the norm and the one kernel read and write."))
    assert abs(got - (add + norm) / fused) < 0.01, mistake(
        known, f"predict_bytes_ratio: the simulator does not count {got:g} for the bytes of two "
               f"launches ÷ the bytes of one. {why}", why)


@pytest.mark.parametrize("T, C, dtype", SIZES)
def test_add_rmsnorm_triton(subject, agree, rng, T, C, dtype):
    name = "add_rmsnorm_triton"
    (x, residual, w, _), (xt, rt, wt, _) = inputs(rng, T, C, dtype, count=2)
    y, s, _ = run_add_rmsnorm(subject, xt, rt, wt)
    what = f"{name}, {T} row(s) of {C} {dtype}"
    sums = telling(name, x + residual, {
        "y_in_total": ("stores y in total; the next addition needs the sum",
                       normed(x + residual) * w),
        "sum_not_stored": ("does not store the sum", np.full_like(x, 7)),
        "x_alone_stored": ("stores x in total, without the residual", x),
        "residual_subtracted": ("subtracts the residual; it is added", x - residual),
        "residual_row_0": ("adds row 0 of the residual to every row: `row` is missing in its "
                           "address", x + residual[:1]),
        "x_row_0": ("adds row 0 of x to every row: `row` is missing in its address",
                    x[:1] + residual),
        "first_row_only": ("writes only its first row", first_row(x + residual)),
        "row_0_read": ("loads row 0 in every program: `row` is missing in an address",
                       np.broadcast_to((x + residual)[:1], x.shape)),
        "added_after": ("stores the normalised x plus the residual", normed(x) * w + residual)})
    agree(s, x + residual, dtype, f"{what}: total", at, sums)
    agree(y, normed(s.double().numpy()) * w, dtype, f"{what}: y", at, of_sum(name, x, residual, w))


def test_add_rmsnorm_triton__hard_rows(subject, agree, rng):
    name = "add_rmsnorm_triton"
    for what, (dtype, generator) in HARD.items():
        (x, residual, w, _), (xt, rt, wt, _) = inputs(rng, 3, 300, dtype, generator, count=2)
        y, s, _ = run_add_rmsnorm(subject, xt, rt, wt)
        with np.errstate(all="ignore"):
            agree(s, x + residual, dtype, f"{name}, {what}: total", at)
            agree(y, normed(s.double().numpy()) * w, dtype, f"{name}, {what}: y", at,
                  of_sum(name, x, residual, w))


def test_add_rmsnorm_triton__rounded_once(subject, rng):
    name = "add_rmsnorm_triton"
    for dtype in SHORT:
        (x, residual, w, _), (xt, rt, wt, _) = inputs(rng, 3, 500, dtype, count=2)
        y, s, _ = run_add_rmsnorm(subject, xt, rt, wt)
        what = f"3 sums of 500 {dtype}"
        rounded_once(s, x + residual, f"total of {name}", what)
        of_total, of_sum_itself = (np.abs(y.double().numpy() - normed(each) * w).sum()
                                   for each in (s.double().numpy(), x + residual))
        assert of_total < of_sum_itself, mistake(
            "unrounded_sum", f"{name}, {what}: y is the norm of the sum before it is rounded. Use "
            f"the sum as it is stored, as a separate norm would read it.")
        rounded_once(y, normed(s.double().numpy()) * w, f"y of {name}", what)


def test_add_rmsnorm_triton__work(subject, reference, rng):
    _, (x, residual, w, _) = inputs(rng, 4, 1024, "float32", count=2)
    *_, launch = run_add_rmsnorm(subject, x, residual, w)
    economical("add_rmsnorm_triton", launch, 2, 2, 4 * w.nbytes, x)
    same_work("add_rmsnorm_triton", launch, run_add_rmsnorm(reference, x, residual, w)[-1])


# ---- LayerNorm


def run_layernorm(subject, x, w, b):
    y = x.new_full(x.shape, 7)
    return y, start(subject, "layernorm_triton", x, w, b, y)


@pytest.mark.parametrize("T, C, dtype", SIZES)
def test_layernorm_triton(subject, agree, rng, T, C, dtype):
    (x, w, b), _ = inputs(rng, T, C, dtype)
    x += 3                                      # a mean that cannot be overlooked
    xt, wt, bt = tensors(dtype, x, w, b)
    got, _ = run_layernorm(subject, xt, wt, bt)
    agree(got, normed(x - mean(x)) * w + b, dtype, f"layernorm_triton, {T} row(s) of {C} {dtype}",
          at, of_layer("layernorm_triton", x, w, b))


def test_layernorm_triton__hard_rows(subject, agree, rng):
    name = "layernorm_triton"
    for what, (dtype, generator) in HARD.items():
        (x, w, b), (xt, wt, bt) = inputs(rng, 3, 300, dtype, generator)
        got, _ = run_layernorm(subject, xt, wt, bt)
        with np.errstate(all="ignore"):
            want = normed(x - mean(x)) * w + b
            mistakes = of_layer(name, x, w, b)
        if what == "rows around 100":            # right to three digits, and no better
            mistakes["shortcut"] = (f"{name} computes mean(x²) - mean(x)²: two large, almost equal "
                                    f"numbers, whose difference is rounding error", want)
        agree(got, want, dtype, f"{name}, {what}", at, mistakes)


def test_layernorm_triton__rounded_once(subject, rng):
    for dtype in SHORT:
        (x, w, b), (xt, wt, bt) = inputs(rng, 3, 500, dtype)
        got, _ = run_layernorm(subject, xt, wt, bt)
        rounded_once(got, normed(x - mean(x)) * w + b, "layernorm_triton",
                     f"3 rows of 500 {dtype}")


def test_layernorm_triton__work(subject, reference, rng):
    _, (x, w, b) = inputs(rng, 4, 1024, "float32")
    _, launch = run_layernorm(subject, x, w, b)
    economical("layernorm_triton", launch, 1, 1, 8 * w.nbytes, x)
    same_work("layernorm_triton", launch, run_layernorm(reference, x, w, b)[1])


# ---- the course's own launchers


@pytest.mark.parametrize("C", [1, 1000, 12_001, 33_000])
def test_every_launcher(subject, agree, rng, C):
    """The last two lengths are too long for shared memory, and for a program."""
    (x, residual, w, b), (xt, rt, wt, bt) = inputs(rng, 2, C, "float32", count=2)
    s = x + residual
    agree(subject.layernorm(xt, wt, bt, EPS), normed(x - mean(x)) * w + b, "float32",
          f"layernorm, rows of {C}", at)
    for name in ("rmsnorm", "rmsnorm_cuda", "rmsnorm_torch"):
        agree(getattr(subject, name)(xt, wt, EPS), normed(x) * w, "float32",
              f"{name}, rows of {C}", at)
    for name in ("add_rmsnorm", "add_rmsnorm_cuda", "add_rmsnorm_torch"):
        y, new = getattr(subject, name)(xt, rt, wt, EPS)
        agree(y, normed(s) * w, "float32", f"y of {name}, rows of {C}", at)
        agree(new, s, "float32", f"the residual of {name}, rows of {C}", at)


def test_layernorm_of_a_long_row_around_100(subject, agree, rng):
    """Its blocks of columns have means of their own, which must be merged without cancellation."""
    x = 100 + rng.standard_normal((1, 33_000)) + np.linspace(-1, 1, 33_000)
    w, b = np.ones(33_000), np.zeros(33_000)
    got = subject.layernorm(*tensors("float32", x, w, b), EPS)
    agree(got, normed(x - mean(x)), "float32", "layernorm of a long row around 100", at)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("C", [1000, 33_000])
def test_fused_is_the_pair_to_the_bit(subject, rng, dtype, C):
    import torch

    _, (x, residual, w, _) = inputs(rng, 2, C, dtype, count=2)
    y, new = subject.add_rmsnorm(x, residual, w, EPS)
    assert torch.equal(new, x + residual)
    assert torch.equal(y, subject.rmsnorm(x + residual, w, EPS))


def test_gradients(subject, agree, rng):
    """Of float32 inputs, against PyTorch's own norms in float64."""
    import torch
    from torch.nn.functional import layer_norm, rms_norm

    arrays = [rng.standard_normal((3, 100)) for _ in range(4)]
    arrays += [rng.uniform(0.5, 2, 100), rng.uniform(-1, 1, 100)]
    x, residual, g, h, w, b = (torch.from_numpy(a).float().requires_grad_() for a in arrays)
    g, h = g.detach(), h.detach()
    cases = {
        "rmsnorm": ((x, w), g, lambda x, w: rms_norm(x, (100,), w, EPS)),
        "layernorm": ((x, w, b), g, lambda x, w, b: layer_norm(x, (100,), w, b, EPS)),
        "add_rmsnorm": ((x, residual, w), (g, h), lambda x, residual, w: (
            rms_norm(x + residual, (100,), w, EPS), x + residual))}
    for name, (args, upstream, formula) in cases.items():
        doubles = [a.detach().double().requires_grad_() for a in args]
        up = [u.double() for u in upstream] if isinstance(upstream, tuple) else upstream.double()
        want = torch.autograd.grad(formula(*doubles), doubles, up)
        for i, (got, right) in enumerate(zip(subject.grad(name, (*args, EPS), upstream), want,
                                             strict=True)):
            agree(got, right.numpy(), "float32", f"gradient of {name} for argument {i}")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_in_16_bits(subject, agree, rng, dtype):
    import torch
    from torch.nn.functional import rms_norm

    _, (x, g, w, _) = inputs(rng, 3, 100, dtype, count=2)
    doubles = [a.double().requires_grad_() for a in (x, w)]
    want = torch.autograd.grad(rms_norm(doubles[0], (100,), doubles[1], EPS), doubles, g.double())
    gradients = subject.grad("rmsnorm", (x.requires_grad_(), w.requires_grad_(), EPS), g)
    for i, (got, right) in enumerate(zip(gradients, want, strict=True)):
        assert got.dtype == x.dtype
        agree(got, right.numpy(), dtype, f"gradient of rmsnorm for argument {i}")


@pytest.mark.parametrize("T, C", [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_do(subject, T, C):
    import torch

    x, w = torch.ones(T, C), torch.ones(C)
    assert subject.layernorm(x, w, w, EPS).shape == (T, C)
    for suffix in ("", "_cuda"):
        assert getattr(subject, f"rmsnorm{suffix}")(x, w, EPS).shape == (T, C)
        pair = getattr(subject, f"add_rmsnorm{suffix}")(x, x, w, EPS)
        assert [a.shape for a in pair] == [(T, C)] * 2


def test_squares_that_overflow_give_zeros_as_in_torch(subject):
    import torch

    x, w = torch.full((1, 64), 1e20), torch.ones(64)
    want = torch.nn.functional.rms_norm(x, (64,), w, EPS)
    assert torch.equal(want, torch.zeros(1, 64))
    assert all(torch.equal(f(x, w, EPS), want) for f in (subject.rmsnorm, subject.rmsnorm_cuda))


def test_what_the_launchers_refuse(subject):
    import torch

    x, w = torch.ones(4, 6), torch.ones(6)
    for pair, words in (((torch.ones(6), w), "x has shape (6,)"),
                        ((x.double(), w), "x is torch.float64"),
                        ((x, w.half()), "w is torch.float16"),
                        ((x, torch.ones(5)), "w has shape (5,)"),
                        ((torch.ones(6, 4).T, w), "x has strides (1, 4)"),
                        ((torch.ones(4, 12)[:, :6], w), "x has strides (12, 1)"),
                        ((x, torch.ones(12)[::2]), "w has strides (2,)")):
        for launcher in (subject.rmsnorm, subject.rmsnorm_cuda):
            with pytest.raises(Raised) as refusal:
                launcher(*pair, EPS)
            assert words in refusal.value.text
    for launcher in (subject.add_rmsnorm, subject.add_rmsnorm_cuda):
        with pytest.raises(Raised) as refusal:
            launcher(x, torch.ones(4, 5), w, EPS)
        assert "residual has shape (4, 5)" in refusal.value.text
    with pytest.raises(Raised) as refusal:
        subject.rmsnorm_cuda(torch.ones(1, 12_001), torch.ones(12_001), EPS,
                             "rmsnorm_one_read_cuda")
    assert "at most 12,000" in refusal.value.text


def test_oracles_are_torchs(subject, rng):
    import torch
    from torch.nn.functional import layer_norm, rms_norm

    (x, w, b), _ = inputs(rng, 3, 127, "float32")
    xt, wt, bt = (torch.from_numpy(a) for a in (x, w, b))
    assert np.allclose(subject.rmsnorm_oracle(x, w, EPS), rms_norm(xt, (127,), wt, EPS),
                       rtol=1e-12, atol=1e-14)
    assert np.allclose(subject.layernorm_oracle(x, w, b, EPS),
                       layer_norm(xt, (127,), wt, bt, EPS), rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("C", [4096, 8192, 32_768, 65_536])
def test_shipped_kernels_on_hopper(C):
    from layer1_kernels.bench.k08_rmsnorm import shipped

    for name, kernel in shipped(C).items():
        assert kernel.spills == 0, f"{name}: {kernel}"
        assert set(kernel.loads) == set(kernel.stores) == {16}, f"{name}: {kernel}"
        assert kernel.shared <= 227 * 1024, f"{name}: {kernel}"


@pytest.mark.slow
def test_the_last_cuda_step_does_not_spill():
    from layer1_kernels.k08_rmsnorm import KERNELS

    assert KERNELS.get("add_rmsnorm_fused_cuda").resources.spill_stores == 0


@pytest.mark.gpu
@pytest.mark.parametrize("T, C", [(0, 5), (1, 1), (3, 127), (1000, 1000), (2, 12_001),
                                  (2, 100_000)])
def test_every_kernel_on_the_device(T, C):
    import torch
    from torch.nn.functional import layer_norm, rms_norm

    from layer1_kernels import add_rmsnorm, add_rmsnorm_cuda, layernorm, rmsnorm, rmsnorm_cuda

    x, residual = (torch.randn(T, C, device="cuda") for _ in range(2))
    w, b = (torch.randn(C, device="cuda") for _ in range(2))

    def near(got, want, dtype=torch.float32):
        relative = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
        return torch.allclose(got.double(), want, rtol=relative, atol=relative)

    total = (x + residual).double()
    want = rms_norm(total, (C,), w.double(), EPS)
    assert near(rmsnorm_cuda(x + residual, w, EPS), want)
    assert near(add_rmsnorm_cuda(x, residual, w, EPS)[0], want)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        xd, rd, wd, bd = (a.to(dtype) for a in (x, residual, w, b))
        y, new = add_rmsnorm(xd, rd, wd, EPS)
        assert torch.equal(new, xd + rd)
        assert torch.equal(y, rmsnorm(new, wd, EPS))
        assert near(y, rms_norm(new.double(), (C,), wd.double(), EPS), dtype)
        assert near(layernorm(xd, wd, bd, EPS),
                    layer_norm(xd.double(), (C,), wd.double(), bd.double(), EPS), dtype)


@pytest.mark.gpu
def test_add_rmsnorm_triton_speed(pace):
    pace("add_rmsnorm", numbers("bfloat16", 4096, 8192), numbers("bfloat16", 4096, 8192),
         numbers("bfloat16", 8192), 1e-5)


@pytest.mark.gpu
def test_layernorm_triton_speed(pace):
    pace("layernorm", numbers("bfloat16", 8192, 8192), numbers("bfloat16", 8192),
         numbers("bfloat16", 8192), 1e-5)
