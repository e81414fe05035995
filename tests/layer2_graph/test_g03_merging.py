"""Graders of g03. Each merge is compared with its two operations, in float64, and counted."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d
from torch.utils.flop_counter import FlopCounterMode

from day01_roofline import attended, count_bytes, count_flops
from day02_overview import NANO
from lab import simulator
from lab.judge.adversarial import VALUES, views
from lab.judge.compare import brief
from layer1_kernels import kernels
from layer2_graph import (
    Config,
    ContiguousCache,
    Launches,
    Llama,
    MergedLlama,
    PagedCache,
    Work,
    attend_absorbed,
    attend_expanded,
    fold_batch_norm,
    fold_norm,
    generate_on,
    greedy,
    load,
    mla_flops,
)
from layer2_graph.checkpoint import shapes
from layer2_graph.g03_merging import fold_norms, merge_rows


def random_weights(dtype=torch.float32, **entries):
    torch.manual_seed(0)
    m = Config(**{"L": 2, "C": 32, "H": 4, "G": 2, "D": 16, "F": 48, "V": 31, "eps": 1e-5,
                  "theta": 1e4, "room": 64} | entries)
    return m, {name: (torch.randn(shape) / 4).to(dtype) for name, shape in shapes(m)}


def launched(kind, T=2, **entries):
    """The launches of a step of T tokens of each of two sequences."""
    model = kind(*random_weights(**entries), kernels("torch"))
    cache = PagedCache(model.config, 2, 16)
    step = cache.step([[1] * T] * 2)
    with Launches() as seen:
        model.ops = seen.counting(model.ops)
        model.forward(step, cache)
    return seen.names


# ---- predict_merged_launches


def test_predict_merged_launches(subject, truth):
    """The truth is counted: the launches of two layers less those of one."""
    names, less = truth(lambda: [launched(MergedLlama, L=L) for L in (2, 1)])
    want, got = len(names) - len(less), subject.predict_merged_launches()
    assert got == want, (
        f"predict_merged_launches: a layer makes {want} launches, predicted {got}: "
        f"{', '.join(names[1:1 + want])}"
        + {15: "\nThat is as many as before: then nothing is merged.",
           13: "\nThe MLP has two matrices on the same input, too.",
           14: "\nThree matrices on the same input become one: that is two launches less.",
           11: "\nThe matrix `down` takes what SwiGLU made, another input than gate's and up's."
           }.get(got, ""))


# ---- merge_rows


@pytest.mark.parametrize("biases", [(True, True, True), (True, False, True), (False, True, False),
                                    (False,) * 3])
@pytest.mark.parametrize("rows, C", [((5, 3, 2), 7), ((4, 4, 4), 4), ((1, 127, 2), 9)])
def test_merge_rows(subject, agree, rng, rows, C, biases):
    judge_rows(subject, agree, [(rng.standard_normal((n, C)), rng.standard_normal(n) if has else
                                 None) for n, has in zip(rows, biases, strict=True)])


def judge_rows(subject, agree, parts, words="", tensor=torch.from_numpy):
    """parts: [(weight, bias or None)] as numpy arrays; tensor: makes the tensor of a weight"""
    rows, biases = [len(w) for w, _ in parts], [b is not None for _, b in parts]
    what = f"merge_rows of {', '.join(map(str, rows))} rows, biases: " + \
        ", ".join("yes" if has else "no" for has in biases) + words
    got = subject.merge_rows([(tensor(w), None if b is None else torch.from_numpy(b))
                              for w, b in parts])
    assert isinstance(got, (tuple, list)) and len(got) == 2, \
        f"{what}: got a {type(got).__name__}, expected two: (weight, bias)"
    assert torch.is_tensor(got[0]), f"{what}: the weight is a {type(got[0]).__name__}, not a tensor"

    def at(i):
        which = int(np.searchsorted(np.cumsum(rows), i[0], side="right"))
        return f"number {i[0] - sum(rows[:which])} of matrix {which}"

    agree(got[0], np.concatenate([w for w, _ in parts]), "exact", f"{what}: the weight", at=at,
          mistakes={"the matrices are stacked in the reverse order":
                    np.concatenate([w for w, _ in parts[::-1]]),
                    "row 0 of each matrix comes first, then row 1 of each":
                    np.concatenate([w for w, _ in parts])[sorted(
                        range(sum(rows)), key=lambda i: i - int(np.cumsum([0, *rows])[
                            np.searchsorted(np.cumsum(rows), i, side="right")]))]})
    if not any(biases):
        assert got[1] is None, f"{what}: no matrix has a bias, so the merged one has None"
        return
    assert got[1] is not None or any(b is not None and b.any() for _, b in parts), \
        f"{what}: every bias is 0 and yet a bias; got None, expected zeros"
    assert got[1] is not None, \
        f"{what}: the bias is None, and those of the matrices that have one are lost: " + (
            "a matrix without a bias gets zeros" if biases[0] else
            "a single matrix, the first or the last, does not tell whether there is one")
    assert torch.is_tensor(got[1]) and got[1].shape == (sum(rows),), \
        (f"{what}: the bias is {brief(got[1])}, expected a number for each of the {sum(rows)} rows"
         f"{wrong_length(got[1], parts)}")
    each = [np.zeros(n) if b is None else b for n, (_, b) in zip(rows, parts, strict=True)]
    agree(got[1], np.concatenate(each), "exact", f"{what}: the bias", at=at, mistakes={
        "the last bias comes first, and the matrices stay in their order":
            np.concatenate(each[::-1]),
        "they are those that there are, and the zeros come last": np.concatenate(
            sorted(each, key=lambda b: not b.any()))})


def wrong_length(bias, parts):
    """Why a merged bias may be as long as it is; "" if nothing comes to mind."""
    shape = tuple(getattr(bias, "shape", ()))
    lengths = {
        (sum(len(w) for w, b in parts if b is not None),):
            ". A matrix without a bias gets zeros, and here it gets nothing",
        (sum(w.shape[1] if b is None else len(w) for w, b in parts),):
            ". The zeros are as many as their matrix has columns, not rows",
        (sum(1 if b is None else len(w) for w, b in parts),):
            ". A matrix without a bias gets a single 0, not one for each row"}
    return lengths.get(shape, "")


def has_bias(rng, shape):
    """Rows of numbers, and for about half of them a bias."""
    return rng.standard_normal(shape), rng.standard_normal(shape[0]) if rng.random() < 0.5 else None


def test_merge_rows__hard(subject, agree, rng):
    """Other counts and sizes, drawn at random, then hard numbers and layouts, in one process."""
    for _ in range(60):
        C = int(rng.integers(1, 5))
        judge_rows(subject, agree, [has_bias(rng, (int(rng.integers(1, 4)), C))
                                    for _ in range(rng.integers(1, 6))], ", as drawn")
    for words, rows, C in ((", all biases 0", (3, 2), 4), (", the second bias 0", (40_000, 3), 1),
                           (", wide", (15, 17), 33), (", one without rows", (2, 0, 1), 3)):
        judge_rows(subject, agree, [
            (rng.standard_normal((n, C)), rng.standard_normal(n) * ("bias" not in words or n > 3))
            for n in rows], words)
    for kind, values in VALUES.items():
        parts = [(values(rng, (3, 4)), values(rng, (3, 1))[:, 0]) for _ in range(2)]
        judge_rows(subject, agree, [*parts, (values(rng, (1, 4)), None)],
                   f", numbers of the kind {kind}")
        judge_rows(subject, agree, [tuple(a.astype(np.float64) / 3 for a in part)
                                    for part in parts], f", of the kind {kind}, in float64")
    for layout in views(np.ones((2, 2))):
        judge_rows(subject, agree, [has_bias(rng, (n, 3)) for n in (4, 2)], f", with {layout}",
                   lambda w, layout=layout: views(torch.from_numpy(w))[layout])


def test_merge_rows__keeps_the_dtype(subject):
    for dtype in (torch.bfloat16, torch.float16):
        parts = [(torch.ones(2, 3, dtype=dtype), None),
                 (torch.ones(1, 3, dtype=dtype), torch.ones(1, dtype=dtype))]
        for name, tensor in zip(("weight", "bias"), subject.merge_rows(parts), strict=True):
            found = getattr(tensor, "dtype", None)
            assert found == dtype, (
                f"merge_rows: matrices of {dtype}, and the {name} is {found}. Zeros of "
                f"another dtype widen all the rest: they must have the matrix's dtype")


def test_merge_rows__zeros_of_the_weights_dtype(subject):
    """Biases narrower than the weights, and a matrix that has none."""
    wide, double = torch.float32, torch.float64
    for narrow, own in ((torch.float16, wide), (torch.bfloat16, wide), (wide, double)):
        none = torch.ones(2, 3, dtype=own), None
        some = torch.ones(1, 3, dtype=own), torch.ones(1, dtype=narrow)
        for parts in ([none, some], [some, none], [some, none, some]):
            dtype = getattr(subject.merge_rows(parts)[1], "dtype", None)
            biases = ", ".join("none" if b is None else str(b.dtype) for _, b in parts)
            assert dtype == own, (
                f"merge_rows of matrices of {own} with the biases {biases}: the merged bias is "
                f"{dtype}, expected {own}. Zeros have the dtype of their own weight, not that of "
                f"the biases beside them")


def test_merging_refuses_other_widths():
    with pytest.raises(ValueError, match="matrices that take 3, 4 numbers"):
        merge_rows([(torch.ones(2, 3), None), (torch.ones(2, 4), None)])


# ---- fold_batch_norm


CONVOLUTIONS = {        # outputs, inputs, groups, sides, bias, padding, stride
    "3 x 3 with a bias": (4, 4, 1, (3, 3), True, 1, 1),
    "3 x 2 without a bias": (5, 3, 1, (3, 2), False, 1, 2),
    "1 x 1": (7, 3, 1, (1, 1), True, 0, 1),
    "three groups": (6, 9, 3, (3, 3), True, 1, 1),
    "depthwise, without a bias": (5, 5, 5, (3, 3), False, 2, 1),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_fold_batch_norm(subject, agree, rng, name):
    O, inputs, groups, sides, has_bias, padding, stride = CONVOLUTIONS[name]    # noqa: E741
    x, weight = (torch.from_numpy(rng.standard_normal(shape)) for shape in
                 ((2, inputs, 7, 6), (O, inputs // groups, *sides)))
    bias, mean, gamma, beta = (torch.from_numpy(a) for a in rng.standard_normal((4, O)))
    variance, eps = torch.from_numpy(rng.uniform(0.05, 2, O)), 0.1
    bias = bias if has_bias else None

    def conv(w=weight, b=bias):
        return conv2d(x, w, b, stride, padding, groups=groups).numpy()

    def each(a):                    # (O,) -> (O, 1, 1)
        return a.numpy()[:, None, None]

    def normed(z, mean=mean, eps=eps, root=True, gamma=gamma, beta=beta):
        spread = each(variance) + eps
        return (z - each(mean)) / (np.sqrt(spread) if root else spread) * each(gamma) + each(beta)

    def scaled(z, factor, shift):
        return z * each(factor) + each(shift)

    got = subject.fold_batch_norm(weight, bias, mean, variance, gamma, beta, eps)
    assert isinstance(got, (tuple, list)) and len(got) == 2 and all(map(torch.is_tensor, got)), \
        (f"fold_batch_norm: expected two tensors, (weight, bias); the bias is there in any case; "
         f"got {brief(got)}")
    for tensor, shape, word in zip(got, (weight.shape, (O,)), ("weight", "bias"), strict=True):
        assert tensor.shape == tuple(shape), \
            f"fold_batch_norm: {word} of shape {tuple(tensor.shape)}, expected {tuple(shape)}"
    mistakes = {
        "eps is left out": normed(conv(), eps=0),
        "it is divided by the variance, not by its root": normed(conv(), root=False),
        "the mean is not subtracted": normed(conv(), mean=torch.zeros(O)),
        "gamma loses its sign: gamma² stands under the root":
            (normed(conv()) - each(beta)) * np.sign(each(gamma)) + each(beta),
        "the mean is subtracted as it is: it must be scaled, as everything before the norm":
            normed(conv(), mean=torch.zeros(O)) - each(mean),
    }
    scale = gamma / (variance + eps).sqrt()
    b = torch.zeros(O) if bias is None else bias
    z = conv(b=None)
    shift = (b - mean) * scale + beta
    one = torch.ones(O)
    mistakes |= {
        "beta is not added": normed(conv(), beta=0 * beta),
        "beta is scaled, too; the scale is for what comes before it": scaled(
            z, scale, shift + beta * (scale - 1)),
        "gamma is left out": normed(conv(), gamma=one),
        "beta stands in the place of gamma": normed(conv(), gamma=beta),
        "gamma and beta are exchanged": normed(conv(), gamma=beta, beta=gamma),
        "the mean is added, not subtracted": normed(conv(), mean=-mean),
        "beta is subtracted, not added": normed(conv(), beta=-beta),
        "eps is added to the root, and not under it": scaled(
            z, gamma / (variance.sqrt() + eps), (b - mean) * gamma / (variance.sqrt() + eps)
            + beta),
        "it is multiplied by the root, not divided": scaled(
            z, gamma * (variance + eps).sqrt(), (b - mean) * gamma * (variance + eps).sqrt()
            + beta),
        "the weight is not scaled, the bias alone": scaled(z, one, shift),
        "the weight alone is scaled, and the bias stays as it was": scaled(z, scale, b),
        "bias and mean are not scaled, the weight alone": scaled(z, scale, b - mean + beta)}
    if has_bias:
        unscaled = each(bias * (1 - scale))
        mistakes["the convolution's own bias is not scaled"] = normed(conv()) + unscaled
        mistakes["the convolution's own bias is lost"] = normed(conv(b=None))
    if inputs // groups == O:
        columns = conv(w=weight * scale[None, :, None, None], b=None)
        mistakes["input channels are scaled, not output channels"] = \
            columns + each((bias - mean) * scale + beta)
    agree(conv(*got), normed(conv()), "float64", f"fold_batch_norm, {name}: what comes out of it",
          at=lambda i: f"image {i[0]}, channel {i[1]}, row {i[2]}, column {i[3]}",
          mistakes=mistakes)


def parts_of_a_norm(rng, shape):
    """(weight, bias, mean, variance, gamma, beta) in float64; the weight of this shape."""
    O = shape[0]                                                                # noqa: E741
    return [rng.standard_normal(shape), *rng.standard_normal((2, O)), rng.uniform(0.05, 2, O),
            *rng.standard_normal((2, O))]


def judge_fold(subject, agree, parts, what, eps=0.1, dtype=torch.float64, tensor=torch.from_numpy):
    """Weight and bias by the book. `tensor`: makes the tensor of the weight"""
    w, b, mean, variance, gamma, beta = parts
    got = subject.fold_batch_norm(tensor(w).to(dtype), *(
        None if a is None else torch.from_numpy(a).to(dtype) for a in parts[1:]), eps)
    assert isinstance(got, (tuple, list)) and len(got) == 2 and all(map(torch.is_tensor, got)), \
        f"fold_batch_norm, {what}: expected two tensors, got {brief(got)}"
    for one, name in zip(got, ("weight", "bias"), strict=True):
        assert one.dtype == dtype, (f"fold_batch_norm, {what}: the {name} is {one.dtype}, expected "
                                    f"the weight's own {dtype}")
    with np.errstate(invalid="ignore"):
        scale = gamma / np.sqrt(variance + eps)
        want = (w * scale.reshape(-1, *[1] * (w.ndim - 1)),
                ((0 if b is None else b) - mean) * scale + beta)
    for one, right, name in zip(got, want, ("weight", "bias"), strict=True):
        agree(one, right, "float64", f"fold_batch_norm, {what}: the {name}",
              at=lambda i: f"output channel {i[0]}")


SHAPES = {"a matrix, with no sides": (4, 3), "one side": (4, 3, 2), "three sides": (4, 2, 3, 1, 2),
          "as many outputs as inputs and sides": (3, 3, 3, 3), "one output": (1, 3, 2, 2),
          "a single number": (1, 1, 1, 1), "17 outputs of 15 inputs": (17, 15, 1, 1),
          "40,000 outputs": (40_000, 1)}


def test_fold_batch_norm__hard(subject, agree, rng):
    """Other layers, then hard numbers in each part and layouts, in one process."""
    names = "the weight", "the bias", "the mean", "the variance", "gamma", "beta"
    for what, shape in SHAPES.items():
        judge_fold(subject, agree, parts_of_a_norm(rng, shape), what)
    parts = parts_of_a_norm(rng, (6, 3, 2, 2))
    for where, name in enumerate(names):
        for kind, values in VALUES.items():
            if (name, kind) == ("gamma", "infinite"):
                continue                    # another order of sums would change (b - mean) · scale
            hard = values(rng, parts[where].shape).astype(np.float64)
            hard = np.abs(hard) if name == "the variance" else hard
            judge_fold(subject, agree, [*parts[:where], hard, *parts[where + 1:]],
                       f"{name} of the kind {kind}")
    judge_fold(subject, agree, [*parts[:3], 0 * parts[3], *parts[4:]], "every variance 0", 1e-5)
    judge_fold(subject, agree, [parts[0], None, *parts[2:]], "no bias", 1e-5)
    for layout in views(np.ones((2, 2))):
        judge_fold(subject, agree, [parts[0][:, :, 0, 0], *parts[1:]], f"a matrix with {layout}",
                   tensor=lambda w, layout=layout: views(torch.from_numpy(w))[layout])
    judge_fold(subject, agree, parts, "a picture's weight, channels last",
               tensor=lambda w: torch.from_numpy(w).to(memory_format=torch.channels_last))


def test_fold_batch_norm__rounds_once(subject, rng):
    """In the weight's dtype, and nearer to the exact result than two roundings would be."""
    for dtype, bits in ((torch.bfloat16, 8), (torch.float16, 11), (torch.float32, 23)):
        weight, *others = (torch.from_numpy(a) for a in parts_of_a_norm(rng, (40, 3, 3, 3)))
        rest = [a.to(torch.float32) for a in others]
        weight = weight.to(dtype)
        got = subject.fold_batch_norm(weight, *rest, 1e-5)
        w, (b, mean, variance, gamma, beta) = weight.double(), (a.double() for a in rest)
        scale = gamma / (variance + 1e-5).sqrt()
        terms = (b.abs() + mean.abs()) * scale.abs() + beta.abs()       # which may cancel
        want = w * scale.view(-1, 1, 1, 1), (b - mean) * scale + beta
        for name, one, right, slack in zip(("weight", "bias"), got, want, (
                want[0].abs(), terms), strict=True):
            assert one.dtype == dtype, (f"fold_batch_norm: matrices of {dtype}, and the {name} is "
                                        f"{one.dtype}: the result has the weight's dtype")
            wrong = (one.double() - right).abs() > right.abs() / 2**bits + slack / 2**20
            assert not wrong.any(), (
                f"fold_batch_norm, {dtype}: {int(wrong.sum())} of {wrong.numel()} numbers of the "
                f"{name} are rounded more than once; all is computed in float32 first")


def test_folding_a_batch_norm_rounds_once(rng):
    weight = torch.from_numpy(rng.standard_normal((6, 3, 3, 3))).bfloat16()
    mean, gamma, beta = (torch.from_numpy(a).float() for a in rng.standard_normal((3, 6)))
    variance = torch.from_numpy(rng.uniform(0.1, 2, 6)).float()
    given = weight, beta, mean, variance, gamma, beta
    exact = fold_batch_norm(*(a.double() for a in given), 1e-5)
    got = fold_batch_norm(*given, 1e-5)
    for tensor, want in zip(got, exact, strict=True):
        assert tensor.dtype == torch.bfloat16
        assert ((tensor.double() - want).abs() <= want.abs() / 256).all()


@pytest.mark.parametrize("kind, shape", [(torch.nn.Linear, (3, 4)), (torch.nn.Conv1d, (3, 4, 5)),
                                         (torch.nn.Conv3d, (3, 4, 3, 4, 5))])
def test_folding_a_batch_norm_into_other_layers(kind, shape):
    torch.manual_seed(0)
    first = kind(4, 6, *[2] * (len(shape) > 2)).double()
    norm = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 5: torch.nn.BatchNorm3d}[len(shape)]
    second = norm(6).double()
    for tensor in (*second.parameters(), second.running_mean):
        torch.nn.init.normal_(tensor)
    second.eval()
    x = torch.randn(shape).double()
    want = second(first(x))
    first.weight.data, first.bias.data = fold_batch_norm(
        first.weight.data, first.bias.data, second.running_mean, second.running_var,
        second.weight.data, second.bias.data, second.eps)
    torch.testing.assert_close(first(x), want, rtol=1e-12, atol=1e-12)


def test_batch_norm_before_a_padded_convolution_has_no_one_equation():
    """Inside it could be folded; at the border there are zeros in place of shifted numbers."""
    torch.manual_seed(0)
    x, weight, shift = torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3), torch.randn(2)
    want = conv2d(x + shift[:, None, None], weight, padding=1)
    got = conv2d(x, weight, (weight.sum((2, 3)) * shift).sum(1), padding=1)
    wrong = (got - want).abs().amax((0, 1)) > 1e-4              # (6, 6)
    assert not wrong[1:-1, 1:-1].any() and wrong[0].all() and wrong[:, -1].all()


# ---- choose_marks


def lines(rng):
    """[(what, f)]: each pair of operations as one function of a row x and its place."""
    gate, up, w = rng.standard_normal((3, 6, 8))
    weight, kernel, (mean, scale, shift) = rng.standard_normal(8), rng.standard_normal(3), (
        0.3, 1.7, -0.4)

    def conv(x):
        return np.convolve(x, kernel, "valid")

    def rope(x, place):
        a, b = np.split(x, 2)
        angle = place * np.array([1.0, 0.1, 0.01])
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle),
                               b * np.cos(angle) + a * np.sin(angle)])

    return [
        ("the matrices of gate and up", lambda x, place: np.concatenate([gate @ x, up @ x])),
        ("a convolution, then batch norm", lambda x, place: (conv(x) - mean) * scale + shift),
        ("a convolution, then ReLU", lambda x, place: np.maximum(conv(x), 0)),
        ("a division by rms(x), then a matrix",
         lambda x, place: w @ (x / np.sqrt((x * x).mean() + 1e-5))),
        ("RMSNorm's weight, then a matrix", lambda x, place: w @ (x * weight)),
        ("the matrix of keys, then RoPE", lambda x, place: rope(w @ x, place)),
    ]


def test_choose_marks(subject, rng):
    """A matrix and a shift do it if f(x + y) + f(0) = f(x) + f(y), the same at every place."""
    got, pairs = subject.choose_marks(), lines(rng)
    assert isinstance(got, str) and len(got) == len(pairs) and set(got) <= set("&+"), \
        f"choose_marks: got {got!r}, expected a text of {len(pairs)} marks, each & or +"
    x, y = rng.standard_normal((2, 8))
    for number, (mark, (what, f)) in enumerate(zip(got, pairs, strict=True), 1):
        joint, apart = f(x + y, 3) + f(0 * x, 3), f(x, 3) + f(y, 3)
        here, there = f(x, 3), f(x, 5)
        sums, stays = np.allclose(joint, apart), np.allclose(here, there)
        head = f"choose_marks, line {number}, {what}"
        if sums and stays:
            assert mark == "&", (
                f"{head}: + says that both must be computed. But f(x + y) + f(0) is f(x) + f(y) "
                f"for all x and y, at every place. So one matrix and one bias do it")
            continue
        i, j = (int(np.argmax(np.abs(a - b))) for a, b in ((joint, apart), (here, there)))
        assert mark == "+", (f"{head}: & says that one matrix and one bias do both. Then " + (
            f"f(x + y) + f(0) would be f(x) + f(y). For random x and y the one is {joint[i]:.3g}, "
            f"the other {apart[i]:.3g}" if not sums else
            f"x would give the same result at every place. It gives {here[j]:.3g} at place 3 and "
            f"{there[j]:.3g} at place 5: each place has a matrix of its own"))


# ---- attend_absorbed


class Given:
    """Queries, latents and matrices of a head width, a latent width and a rotary width."""

    scale = 0.37
    NAMES = "q", "turned", "c", "k_turned", "w_k", "w_v"

    def __init__(self, rng, T, N, H=3, D=5, R=7, E=4):
        self.sizes = T, N, H, D, R, E
        shapes = {"q": (H, T, D), "turned": (H, T, E), "c": (N, R), "k_turned": (N, E),
                  "w_k": (H, D, R), "w_v": (H, D, R)}
        for name, shape in shapes.items():
            setattr(self, name, rng.standard_normal(shape))

    def run(self, function):
        return function(*(torch.from_numpy(getattr(self, name)) for name in self.NAMES), self.scale)

    def out(self, rotary=True, outside=False, masked=True, scale=None, w_v=None, before=True,
            w_k=None, own=1.0, later=0, zeros=False, twice=False):
        """By the book: for each head and query the keys and values that it may see.

        own: a factor of the scores without position    later: tokens after its own that one sees
        zeros: hidden scores are 0    twice: softmax of the weights
        """
        T, N, H, D, _, _ = self.sizes
        out, w_v = np.empty((H, T, D)), self.w_v if w_v is None else w_v
        scale, w_k = self.scale if scale is None else scale, self.w_k if w_k is None else w_k
        for h in range(H):
            for t in range(T):
                keys = slice(0, max((N - T) * before + t + 1 + later, 1) if masked else N)
                turned = self.k_turned[keys] @ self.turned[h, t] * rotary
                scores = (self.c[keys] @ w_k[h].T) @ self.q[h, t] * own
                scores = scores * scale + turned if outside else (scores + turned) * scale
                if zeros or twice:
                    scores = np.append(scores, [0.0 if zeros else -np.inf] * (N - len(scores)))
                    keys = slice(0, N)
                weights = np.exp(scores - scores.max())
                if twice:
                    weights = np.exp(weights / weights.sum())
                out[h, t] = weights / weights.sum() @ (self.c[keys] @ w_v[h].T)
        return out


@pytest.mark.parametrize("T, N", [(3, 11), (1, 9), (5, 5), (1, 1)])
def test_attend_absorbed(subject, agree, rng, T, N):
    given = Given(rng, T, N)
    agree(given.run(subject.attend_absorbed), given.out(), "float64",
          f"attend_absorbed, {T} new of {N} tokens",
          at=lambda i: f"head {i[0]}, new token {i[1]}, number {i[2]}", mistakes={
              "the rotary part of the scores is left out": given.out(rotary=False),
              "the rotary part is added after the scale": given.out(outside=True),
              "a new token sees those after it": given.out(masked=False),
              "the scores are not scaled": given.out(scale=1.0),
              "1/√D is the scale, and not the one handed in": given.out(scale=5 ** -0.5),
              "the new tokens are taken for the first of the context, not for its last":
                  given.out(before=False),
              "w_k makes the values, too": given.out(w_v=given.w_k),
              "scores that the mask hides are 0, not -inf, and still have a weight":
                  given.out(zeros=True),
              "softmax is taken twice: causal gives weights, no scores": given.out(twice=True),
              "w_v makes the keys, too": given.out(w_k=given.w_v),
              "w_k and w_v are exchanged": given.out(w_k=given.w_v, w_v=given.w_k),
              "all heads take the w_k of head 0": given.out(w_k=given.w_k[[0, 0, 0]]),
              "all heads take the w_v of head 0": given.out(w_v=given.w_v[[0, 0, 0]]),
              "the scores are scaled twice": given.out(scale=given.scale ** 2),
              "the scores are divided by the scale": given.out(scale=1 / given.scale),
              "the queries are scaled, and so are the scores, but not their rotary part":
                  given.out(own=given.scale),
              "the part without position is left out of the scores": given.out(own=0.0),
              "a new token does not see itself": given.out(later=-1),
              "a new token sees the one after it": given.out(later=1),
          } if N > 1 else {})


WIDTHS = {"one head": {"H": 1}, "latents narrower than heads": {"D": 6, "R": 2},
          "widths of 1": {"D": 1, "R": 1, "E": 1}, "15 wide, 17 wide": {"D": 15, "R": 17},
          "all sizes alike": {"T": 4, "N": 4, "H": 4, "D": 4, "R": 4, "E": 4},
          "as many heads as tokens": {"T": 2, "N": 3, "H": 3, "D": 3, "R": 2, "E": 2},
          "a context of 40,000": {"T": 1, "N": 40_000, "H": 1, "D": 2, "R": 2, "E": 2}}


def test_attend_absorbed__hard(subject, agree, rng):
    """Other widths, then hard numbers in each argument and layouts, in one process."""
    def judge(given, what):
        agree(given.run(subject.attend_absorbed), given.out(), "float32",
              f"attend_absorbed, {what}",
              at=lambda i: f"head {i[0]}, new token {i[1]}, number {i[2]}",
              mistakes={"a new token sees those after it": given.out(masked=False)})

    for what, sizes in WIDTHS.items():
        judge(Given(rng, **{"T": 3, "N": 11} | sizes), what)
    given = Given(rng, 3, 11)
    for name in Given.NAMES:
        before = getattr(given, name)
        for kind in sorted(set(VALUES) - {"infinite", "not_a_number"}):
            setattr(given, name, VALUES[kind](rng, before.shape).astype(np.float64))
            judge(given, f"{name} of the kind {kind}")
        setattr(given, name, before)
        turned = np.moveaxis(np.moveaxis(before, 0, 1).copy(), 1, 0)        # the same numbers
        layouts = {"the first two axes turned": turned, "gaps between rows": np.concatenate(
            [before, before], -1)[..., :before.shape[-1]]}
        for layout, view in layouts.items():
            setattr(given, name, view)
            judge(given, f"{name} with {layout}")
        setattr(given, name, before)
    for name in ("q", "turned"):                # of one head and token: no other result may change
        before = getattr(given, name)
        setattr(given, name, before.copy())
        getattr(given, name)[1, 1, 0] = np.nan
        judge(given, f"a NaN in {name} of head 1, new token 1")
        setattr(given, name, before)


@pytest.mark.parametrize("T", [1, 4])
def test_attend_absorbed__never_makes_a_key(subject, rng, T):
    given = Given(rng, T, 100, D=8, R=12)
    counter = subject.make("torch.utils.flop_counter:FlopCounterMode", display=False)
    with counter:
        given.run(subject.attend_absorbed)
    got, hidden = counter.get_total_flops(), hidden_flops(given, absorbed=True)
    most = mla_flops(*given.sizes, absorbed=True) + hidden
    expanded = mla_flops(*given.sizes, absorbed=False) + hidden_flops(given, absorbed=False)
    new = "one new token" if T == 1 else f"{T} new tokens"
    assert got <= most, (
        f"attend_absorbed: right, in {got:,} FLOPs for {new} of 100; {most:,} do. " + (
            "With several new tokens all keys are made, as in attend_expanded" if T > 1 else
            "Keys and values of all 100 are made. Only queries and results should meet w_k and w_v"
            if got - most > 0.75 * (expanded - most) else
            "One of w_k and w_v still meets all 100 latents"))


def hidden_flops(given, absorbed):
    """FLOPs of the pairs that are computed and then masked; the formula leaves them out."""
    T, N, H, D, R, E = given.sizes
    return 2 * H * (T * N - attended(T, N)) * (2 * (R if absorbed else D) + E)


@pytest.mark.parametrize("T, N", [(1, 9), (4, 9), (6, 6)])
def test_flops_of_latent_attention_are_those_counted(rng, T, N):
    given = Given(rng, T, N)
    for function, absorbed in ((attend_expanded, False), (attend_absorbed, True)):
        with FlopCounterMode(display=False) as counter:
            given.run(function)
        assert counter.get_total_flops() - hidden_flops(given, absorbed) == mla_flops(
            *given.sizes, absorbed)


def test_expanded_attention_is_that_of_the_book(agree, rng):
    given = Given(rng, 3, 11)
    agree(given.run(attend_expanded), given.out(), "float64")


def test_matrices_multiplied_out_give_the_same(rng):
    """What "absorbed into W_q" means: one matrix from x to the query for the latents."""
    given, C = Given(rng, 2, 9), 10
    x, w_q = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((2, C), (3, 5, C)))
    w_k = torch.from_numpy(given.w_k)
    torch.testing.assert_close(x @ (w_k.mT @ w_q).mT, (x @ w_q.mT) @ w_k, rtol=1e-12, atol=1e-12)


# ---- the norm's weight


@pytest.mark.parametrize("T, C, N", [(1, 1, 1), (3, 7, 5), (2, 129, 127)])
def test_fold_norm(agree, rng, T, C, N):
    x, norm, weight = (rng.standard_normal(shape) for shape in ((T, C), C, (N, C)))
    rms = np.sqrt((x * x).mean(-1, keepdims=True) + 0.1)
    folded = fold_norm(torch.from_numpy(norm), torch.from_numpy(weight)).numpy()
    want = (x / rms * norm) @ weight.T
    agree(x / rms @ folded.T, want, "float64")
    agree(x @ folded.T / rms, want, "float64")          # the rest of the norm may come last


@pytest.mark.parametrize("entries", [{}, {"tied": True}, {"bias_qkv": True, "bias_mlp": True},
                                     {"qk_norm": True}])
def test_a_model_with_folded_norms_is_the_same(entries):
    m, weights = random_weights(torch.float64, **entries)
    folded = fold_norms(m, weights)
    prompt = ContiguousCache(m, 1, 5).step([[1, 2, 3, 4, 5]])
    cache = SimpleNamespace(attend=lambda layer, q, k, v, step, ops, scale: ops.flash_attention(
        q[None], k[None], v[None], True, scale)[0][0])          # caches keep no float64

    def logits(weights):
        return Llama(m, weights, kernels("torch")).forward(prompt, cache, every=True)

    torch.testing.assert_close(logits(folded), logits(weights), rtol=1e-12, atol=1e-12)
    ones = {name for name in weights if (folded[name] == 1).all()}
    assert ones == {f"model.layers.{i}.{norm}_layernorm.weight" for i in range(m.L) for norm in
                    ("input", "post_attention")} | (set() if m.tied else {"model.norm.weight"})


# ---- the model


PROMPTS = [[5, 17, 3], [9, 8, 7, 6, 5, 4, 3], [30]]


@pytest.mark.parametrize("entries", [
    {}, {"G": 4}, {"G": 1, "tied": True}, {"bias_qkv": True, "bias_o": True, "bias_mlp": True},
    {"qk_norm": True, "H": 6}], ids=str)
def test_a_merged_model_is_the_same(entries):
    m, weights = random_weights(**entries)
    apart, merged = (kind(m, weights, kernels("torch")) for kind in (Llama, MergedLlama))
    assert greedy(merged, PROMPTS, 8) == greedy(apart, PROMPTS, 8)
    caches = [kind(m, 2, 16) for kind in (PagedCache, ContiguousCache)]
    for new in ([[1, 2, 3], [4]], [[5], [6, 7]], [[1], [2]]):
        want, got = (model.forward(cache.step(new), cache, every=True)
                     for model, cache in zip((apart, merged), caches, strict=True))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("folder", [NANO, NANO.parents[1] / "layer2_graph/small"])
def test_shipped_models_give_the_same_tokens(folder):
    apart = load(folder, dtype=torch.float32)
    merged = MergedLlama(apart.config, apart.weights, apart.ops)
    prompts = [[10, 97], [30, 31, 32, 33, 34], [99]]
    assert greedy(merged, prompts, 25) == greedy(apart, prompts, 25)


def test_nothing_is_held_twice():
    m, weights = random_weights(bias_qkv=True)
    names = set(weights)
    model = MergedLlama(m, weights, kernels("torch"))
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
            for t in model.weights.values()}
    assert sum(held.values()) == sum(t.nbytes for t in weights.values())
    assert set(weights) == set(model.weights) == names
    for name, tensor in weights.items():
        assert torch.equal(model.weights[name], tensor)


def test_merged_launches_and_what_norms_of_heads_give_back():
    def layer(kind, **entries):
        return len(launched(kind, L=2, **entries)) - len(launched(kind, L=1, **entries))

    assert (layer(Llama), layer(MergedLlama)) == (15, 12)
    # rows of views must be copied for a kernel that takes contiguous ones
    assert (layer(Llama, qk_norm=True), layer(MergedLlama, qk_norm=True)) == (17, 16)
    assert launched(MergedLlama, qk_norm=True).count("clone") == 4


@pytest.mark.parametrize("B, T", [(1, 1), (3, 1), (2, 9)])
def test_counted_bytes_are_those_of_day_1(B, T):
    m, weights = random_weights()
    model, work = MergedLlama(m, weights, kernels("torch")), Work()
    cache, model.ops = ContiguousCache(m, B, 16), work.counting(model.ops)
    model.forward(cache.step([[2] * T] * B), cache)
    moved = count_bytes(m, B, T, T, 4)
    assert work.flops == sum(count_flops(m, B, T, T).values())
    assert (work.weights, work.activations, work.cache) == tuple(map(sum, zip(*moved.values(),
                                                                              strict=True)))


@pytest.fixture
def simulated():
    simulator.activate_triton()
    yield
    simulator.deactivate_triton()


def test_triton_kernels_take_the_views(simulated):
    m, weights = random_weights(L=1)
    want = greedy(Llama(m, weights, kernels("torch")), [[5, 17], [9, 8, 7]], 2)
    assert greedy(MergedLlama(m, weights, kernels("triton")), [[5, 17], [9, 8, 7]], 2) == want


@pytest.mark.parametrize("kind", [PagedCache, ContiguousCache])
def test_cuda_kernels_take_the_views(simulated, kind):
    m, weights = random_weights(L=1)
    prompts = [[5, 17], [9, 8, 7]]
    want = greedy(Llama(m, weights, kernels("torch")), prompts, 2)
    assert generate_on(kind(m, 2, 5), MergedLlama(m, weights, kernels("cuda")), prompts, 2) == want
