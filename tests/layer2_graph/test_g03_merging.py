"""Graders of g03.
Each merge is compared with its two operations, in float64, and counted."""

import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d
from torch.utils.flop_counter import FlopCounterMode

from day01_roofline import attended
from lab.judge.adversarial import VALUES, WORDS, views
from lab.judge.compare import brief
from lab.judge.mistakes import mistake
from layer1_kernels import kernels
from layer2_graph import (
    Config,
    Launches,
    MergedLlama,
    PagedCache,
    attend_absorbed,
    attend_expanded,
    fold_batch_norm,
    mla_flops,
)
from layer2_graph.checkpoint import shapes
from layer2_graph.g03_merging import merge_rows

# ---- predict_merged_launches


def launched(L):
    """The number of launches in a step of a MergedLlama of L layers."""
    m = Config(L=L, C=32, H=4, G=2, D=16, F=48, V=31, eps=1e-5, theta=1e4, room=64)
    seen, cache = Launches(), PagedCache(m, 2, 16)
    model = MergedLlama(m, {name: torch.ones(shape) for name, shape in shapes(m)},
                        seen.counting(kernels("torch")))
    step = cache.step([[1, 1]] * 2)
    with seen:
        model.forward(step, cache)
    return len(seen.names)


GUESSES = {
    15: ("as_g01", "That is the number before merging."),
    14: ("one_of_three", "Three matrices on the same input become one: two launches fewer, not "
                         "one."),
    13: ("no_mlp", "In the MLP two matrices share an input as well."),
    11: ("down_too", "`down` reads the result of SwiGLU, not the input of gate and up."),
    4: ("matrices", "Those are the matrices that are left; the norms, the rotation, attention and "
                    "more are launches too."),
    3: ("saved", "Those are the launches saved; how many are left?")}


def test_predict_merged_launches(subject, truth):
    """The truth is counted: the launches of two layers less those of one."""
    want = truth(lambda: launched(2) - launched(1))
    got = subject.predict_merged_launches()
    name, why = GUESSES.get(got, ("other", "Which of the seven matrices share an input?"))
    assert got == want, mistake(name, f"predict_merged_launches: {got!r} is not right. {why}", why)


# ---- merge_rows


@pytest.mark.parametrize("biases", [(True, True, True), (True, False, True), (False, True, False),
                                    (False,) * 3])
@pytest.mark.parametrize("rows, C", [((5, 3, 2), 7), ((4, 4, 4), 4), ((1, 127, 2), 9)])
def test_merge_rows(subject, agree, rng, rows, C, biases):
    judge_rows(subject, agree, [(rng.standard_normal((n, C)), rng.standard_normal(n) if has else
                                 None) for n, has in zip(rows, biases, strict=True)])


def judge_rows(subject, agree, parts, words="", tensor=torch.from_numpy):
    """parts: [(weight, bias or None)] as numpy arrays; tensor: makes the tensor of a weight"""
    weights = [w for w, _ in parts]
    rows = [len(w) for w in weights]
    what = f"merge_rows of {', '.join(map(str, rows))} rows, biases: " + \
        ", ".join("no" if b is None else "yes" for _, b in parts) + words
    got = subject.merge_rows([(tensor(w), None if b is None else torch.from_numpy(b))
                              for w, b in parts])
    assert isinstance(got, (tuple, list)) and len(got) == 2 and torch.is_tensor(got[0]), mistake(
        "no_pair", f"{what}: got {brief(got)}, expected two: (weight, bias or None)")

    def at(i):
        which = int(np.searchsorted(np.cumsum(rows), i[0], side="right"))
        return f"number {i[0] - sum(rows[:which])} of matrix {which}"

    stack = np.concatenate(weights)
    within = np.concatenate([np.arange(n) for n in rows])
    agree(got[0], stack, "exact", f"{what}: the weight", at=at, mistakes={
        "reversed": ("the matrices are stacked in the reverse order",
                     np.concatenate(weights[::-1])),
        "interleaved": ("row 0 of each matrix comes first, then row 1 of each",
                        stack[np.argsort(within, kind="stable")]),
        "numbers_replaced": ("NaN and infinities are replaced by numbers", np.nan_to_num(stack))})
    judge_bias(agree, got[1], parts, what, at)


def judge_bias(agree, got, parts, what, at):
    biases = [b for _, b in parts]
    if all(b is None for b in biases):
        assert got is None, mistake(
            "bias_made_up", f"{what}: no matrix has a bias, so the merged bias must be None")
        return
    assert got is not None or any(b is not None and b.any() for b in biases), mistake(
        "zero_bias_lost", f"{what}: all biases are zero, but they exist; got None, expected zeros")
    first = biases[0] is None
    why = "the first matrix does not tell whether there is a bias" if first else \
        "a matrix without a bias gets zeros"
    assert got is not None, mistake(
        "first_decides" if first else "all_or_none",
        f"{what}: the bias is None, so the biases of some matrices are lost: {why}", why)
    rows = sum(len(w) for w, _ in parts)
    lengths = {
        (sum(len(w) for w, b in parts if b is not None),): (
            "left_out", "A matrix without a bias gets zeros, and here it gets nothing"),
        (sum(w.shape[1] if b is None else len(w) for w, b in parts),): (
            "columns", "There are as many zeros as their matrix has columns, not rows"),
        (sum(1 if b is None else len(w) for w, b in parts),): (
            "single_zero", "A matrix without a bias gets a single 0, not one for each row")}
    name, why = lengths.get(tuple(getattr(got, "shape", ())), ("shape", ""))
    assert torch.is_tensor(got) and got.shape == (rows,), mistake(
        name, f"{what}: the bias is {brief(got)}, expected a number for each of the {rows} rows. "
              f"{why}", why)
    each = [np.zeros(len(w)) if b is None else b for w, b in parts]
    agree(got, np.concatenate(each), "exact", f"{what}: the bias", at=at, mistakes={
        "biases_reversed": ("the biases are stacked in reverse, the weights are not",
                            np.concatenate(each[::-1])),
        "zeros_last": ("the existing biases come first and the zeros last",
                       np.concatenate(sorted(each, key=lambda b: not b.any())))})


def random_part(rng, shape):
    """A matrix, and with a probability of one half a bias."""
    return rng.standard_normal(shape), rng.standard_normal(shape[0]) if rng.random() < 0.5 else None


def test_merge_rows__hard(subject, agree, rng):
    """Other counts and sizes, drawn at random, then hard numbers and layouts, in one process."""
    for _ in range(60):
        C = int(rng.integers(1, 5))
        judge_rows(subject, agree, [random_part(rng, (int(rng.integers(1, 4)), C))
                                    for _ in range(rng.integers(1, 6))], ", drawn at random")
    for words, rows, C in ((", all biases 0", (3, 2), 4), (", the second bias 0", (40_000, 3), 1),
                           (", wide", (15, 17), 33), (", one without rows", (2, 0, 1), 3)):
        judge_rows(subject, agree, [
            (rng.standard_normal((n, C)), rng.standard_normal(n) * ("bias" not in words or n > 3))
            for n in rows], words)
    for kind, values in VALUES.items():
        parts = [(values(rng, (3, 4)), values(rng, (3, 1))[:, 0]) for _ in range(2)]
        judge_rows(subject, agree, [*parts, (values(rng, (1, 4)), None)], f", {WORDS[kind]}")
        judge_rows(subject, agree, [tuple(a.astype(np.float64) / 3 for a in part)
                                    for part in parts], f", {WORDS[kind]}, in float64")
    for layout in views(np.ones((2, 2))):
        judge_rows(subject, agree, [random_part(rng, (n, 3)) for n in (4, 2)], f", with {layout}",
                   lambda w, layout=layout: views(torch.from_numpy(w))[layout])


def test_merge_rows__keeps_the_dtype(subject):
    """All of one dtype, then biases that are narrower than their weights."""
    half, brain, wide, double = torch.float16, torch.bfloat16, torch.float32, torch.float64
    for own, narrow in ((brain, brain), (half, half), (wide, half), (wide, brain), (double, wide)):
        none = torch.ones(2, 3, dtype=own), None
        some = torch.ones(1, 3, dtype=own), torch.ones(1, dtype=narrow)
        for parts in ([none, some], [some, none], [some, none, some]):
            for name, tensor in zip(("weight", "bias"), subject.merge_rows(parts), strict=True):
                dtype = getattr(tensor, "dtype", None)
                assert dtype == own, mistake(
                    "zeros_as_biases" if dtype == narrow else "zeros_widen",
                    f"merge_rows: weights of {own}, biases of {narrow}, but the merged {name} is "
                    f"{dtype}. " + (
                        "The zeros must have the dtype of their own weight, not that of the biases "
                        "beside them" if dtype == narrow else
                        "Zeros of another dtype make torch.cat convert everything: they must have "
                        "the dtype of their weight"))


def test_merging_refuses_other_widths():
    with pytest.raises(ValueError, match="take 3, 4 numbers; on the same input all must take"):
        merge_rows([(torch.ones(2, 3), None), (torch.ones(2, 4), None)])


# ---- fold_batch_norm


def parts_of_a_norm(rng, shape):
    """(weight, bias, mean, variance, gamma, beta) in float64; the weight of this shape."""
    O = shape[0]                                                                # noqa: E741
    return [rng.standard_normal(shape), *rng.standard_normal((2, O)), rng.uniform(0.05, 2, O),
            *rng.standard_normal((2, O))]


def folded(w, b, mean, scale, beta):
    """(weight, bias) by the book, with this scale of each output channel."""
    return w * scale.reshape(-1, *[1] * (w.ndim - 1)), (b - mean) * scale + beta


def wrong_folds(w, b, mean, variance, gamma, beta, eps):
    """({id: (sentence, weight)}, {id: (sentence, bias)})"""
    root = np.sqrt(variance + eps)
    scale = gamma / root
    outside = np.sqrt(variance) + eps
    scales = {
        "no_eps": ("eps is left out", gamma / np.sqrt(variance)),
        "clamped": ("the variance is clamped; eps alone keeps the root from 0",
                    gamma / np.sqrt(np.maximum(variance, 1e-3) + eps)),
        "no_root": ("the division is by the variance, not by its square root", gamma / root ** 2),
        "no_sign": ("gamma loses its sign (it was squared under the root)", np.abs(scale)),
        "no_gamma": ("gamma is left out", 1 / root),
        "beta_for_gamma": ("beta is used in the place of gamma", beta / root),
        "eps_outside": ("eps is added to the root, not under it", gamma / outside),
        "times_root": ("the root multiplies instead of dividing", gamma * root),
        "nan_replaced": ("NaN and infinities are replaced by numbers", np.nan_to_num(scale))}
    biases = {name: (why, folded(w, b, mean, wrong, beta)[1])
              for name, (why, wrong) in scales.items()} | {
        "exchanged": ("gamma and beta are exchanged", (b - mean) * beta / root + gamma),
        "no_mean": ("the mean is not subtracted", b * scale + beta),
        "mean_added": ("the mean is added, not subtracted", (b + mean) * scale + beta),
        "mean_unscaled": ("the mean is subtracted unscaled; everything before the norm must be "
                          "multiplied by scale", b * scale - mean + beta),
        "no_beta": ("beta is not added", (b - mean) * scale),
        "beta_subtracted": ("beta is subtracted, not added", (b - mean) * scale - beta),
        "beta_scaled": ("beta is multiplied by scale; only what comes before it is",
                        (b - mean + beta) * scale),
        "bias_unchanged": ("the convolution's bias is returned as it was", b + 0 * scale),
        "nothing_scaled": ("neither bias nor mean is multiplied by scale", b - mean + beta),
        "own_bias_unscaled": ("the bias of the convolution is not multiplied by scale",
                              b - mean * scale + beta),
        "own_bias_lost": ("the convolution's own bias is lost", beta - mean * scale)}
    weights = {name: (why, folded(w, b, mean, wrong, beta)[0])
               for name, (why, wrong) in scales.items()} | {
        "weight_unscaled": ("the weight is not scaled, the bias alone", w)}
    if w.ndim > 1 and w.shape[0] == w.shape[1]:
        weights["input_channels"] = (
            "scale is applied to the input channels instead of the output channels",
            np.moveaxis(np.moveaxis(w, 1, -1) * scale, -1, 1))
    return weights, biases


def judge_fold(subject, agree, parts, what, eps=0.1, dtype=torch.float64, tensor=torch.from_numpy):
    """Weight and bias by the book.
    `tensor`: makes the tensor of the weight"""
    w, b, mean, variance, gamma, beta = parts
    got = subject.fold_batch_norm(tensor(w).to(dtype), *(
        None if a is None else torch.from_numpy(a).to(dtype) for a in parts[1:]), eps)
    what = f"fold_batch_norm, {what}"
    assert isinstance(got, (tuple, list)) and len(got) == 2 and all(map(torch.is_tensor, got)), \
        mistake("no_pair", f"{what}: expected two tensors, (weight, bias), even if the convolution "
                           f"has no bias; got {brief(got)}")
    b = np.zeros(len(w)) if b is None else b
    with np.errstate(all="ignore"):
        want = folded(w, b, mean, gamma / np.sqrt(variance + eps), beta)
        known = wrong_folds(w, b, mean, variance, gamma, beta, eps)
        for i in (1, 0):                        # the bias tells more
            name = ("weight", "bias")[i]
            assert got[i].dtype == dtype, mistake(
                "not_weights_dtype", f"{what}: the {name} is {got[i].dtype}, expected {dtype}, the "
                                     f"dtype of the weight", "the dtype of the weight")
            agree(got[i], want[i], "float64", f"{what}: the {name}",
                  at=lambda i: f"output channel {i[0]}", mistakes=known[i])


LAYERS = {"3 x 3": (4, 4, 3, 3), "3 x 2": (5, 3, 3, 2), "1 x 1": (7, 3, 1, 1),
          "three groups": (6, 3, 3, 3), "depthwise": (5, 1, 3, 3)}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_fold_batch_norm(subject, agree, rng, name, bias):
    weight, own, *rest = parts_of_a_norm(rng, LAYERS[name])
    judge_fold(subject, agree, [weight, own if bias else None, *rest],
               name + ("" if bias else ", without a bias"))


SHAPES = {"a matrix": (4, 3), "one side": (4, 3, 2), "three sides": (4, 2, 3, 1, 2),
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
                       f"{name}: {WORDS[kind]}")
    judge_fold(subject, agree, [*parts[:3], 0 * parts[3], *parts[4:]], "every variance 0", 1e-5)
    judge_fold(subject, agree, [parts[0], None, *parts[2:]], "no bias", 1e-5)
    for layout in views(np.ones((2, 2))):
        judge_fold(subject, agree, [parts[0][:, :, 0, 0], *parts[1:]], f"a matrix with {layout}",
                   tensor=lambda w, layout=layout: views(torch.from_numpy(w))[layout])
    judge_fold(subject, agree, parts, "two-dimensional filters, channels last",
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
            assert one.dtype == dtype, mistake(
                "not_weights_dtype", f"fold_batch_norm: weights of {dtype}, but the new {name} is "
                                     f"{one.dtype}, expected the dtype of the weight",
                "the dtype of the weight")
            wrong = (one.double() - right).abs() > right.abs() / 2**bits + slack / 2**20
            assert not wrong.any(), mistake(
                "rounded_twice", f"fold_batch_norm, {dtype}: {int(wrong.sum())} of {wrong.numel()} "
                f"numbers of the {name} are rounded more than once. Compute in float32 and round "
                f"at the end")


@pytest.mark.parametrize("kind, shape", [
    (torch.nn.Linear, (3, 4)), (torch.nn.Conv1d, (3, 4, 5)), (torch.nn.Conv2d, (3, 4, 5, 4)),
    (torch.nn.Conv3d, (3, 4, 3, 4, 5))])
def test_folding_a_batch_norm_into_a_layer(kind, shape):
    torch.manual_seed(0)
    more = {} if len(shape) == 2 else {"kernel_size": 2, "groups": 2, "stride": 2, "padding": 1}
    first = kind(4, 6, **more).double()
    norm = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d,
            5: torch.nn.BatchNorm3d}[len(shape)]
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
    """[(what, f)]: each pair of operations as one function of a row x and its position."""
    gate, up, w = rng.standard_normal((3, 6, 8))
    weight, kernel, (mean, scale, shift) = rng.standard_normal(8), rng.standard_normal(3), (
        0.3, 1.7, -0.4)

    def conv(x):
        return np.convolve(x, kernel, "valid")

    def rope(x, position):
        a, b = np.split(x, 2)
        angle = position * np.array([1.0, 0.1, 0.01])
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle),
                               b * np.cos(angle) + a * np.sin(angle)])

    return [
        ("the matrices of gate and up", lambda x, position: np.concatenate([gate @ x, up @ x])),
        ("a convolution, then batch norm", lambda x, position: (conv(x) - mean) * scale + shift),
        ("a convolution, then ReLU", lambda x, position: np.maximum(conv(x), 0)),
        ("a division by rms(x), then a matrix",
         lambda x, position: w @ (x / np.sqrt((x * x).mean() + 1e-5))),
        ("RMSNorm's weight, then a matrix", lambda x, position: w @ (x * weight)),
        ("the matrix of keys, then RoPE", lambda x, position: rope(w @ x, position)),
    ]


def test_choose_marks(subject, rng):
    """A matrix and a shift do it if f(x + y) + f(0) = f(x) + f(y), the same at every position."""
    got, pairs = subject.choose_marks(), lines(rng)
    assert isinstance(got, str) and len(got) == len(pairs) and set(got) <= set("&+"), mistake(
        "no_marks", f"choose_marks: got {got!r}, expected a string of {len(pairs)} characters, "
                    f"each & or +")
    x, y = rng.standard_normal((2, 8))
    for number, (mark, (what, f)) in enumerate(zip(got, pairs, strict=True), 1):
        joint, apart = f(x + y, 3) + f(0 * x, 3), f(x, 3) + f(y, 3)
        here, there = f(x, 3), f(x, 5)
        sums, stays = np.allclose(joint, apart), np.allclose(here, there)
        if sums and stays:
            why = ("+, both must be computed. But f(x + y) + f(0) = f(x) + f(y) for all x and y, "
                   "at every position, so one matrix and one bias are enough")
        elif sums:
            why = (f"&, one matrix and one bias do both. Then the result would be the same at "
                   f"every position. It begins with {here[0]:.3g} at position 3 and "
                   f"{there[0]:.3g} at position 5, so each position needs its own matrix")
        else:
            i = int(np.argmax(np.abs(joint - apart)))
            why = (f"&, one matrix and one bias do both. Then f(x + y) + f(0) would equal f(x) + "
                   f"f(y); for random x and y they are {joint[i]:.3g} and {apart[i]:.3g}")
        assert mark == "+&"[bool(sums and stays)], mistake(
            f"line_{number}", f"choose_marks, line {number}, {what}: you chose {why}")


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
                rope = self.k_turned[keys] @ self.turned[h, t] * rotary
                scores = (self.c[keys] @ w_k[h].T) @ self.q[h, t] * own
                scores = scores * scale + rope if outside else (scores + rope) * scale
                if zeros or twice:
                    scores = np.append(scores, [0.0 if zeros else -np.inf] * (N - len(scores)))
                    keys = slice(0, N)
                weights = np.exp(scores - scores.max())
                if twice:
                    weights = np.exp(weights / weights.sum())
                out[h, t] = weights / weights.sum() @ (self.c[keys] @ w_v[h].T)
        return out

    def wrong(self):
        """{id: (sentence, result)}"""
        first = [0] * self.sizes[2]
        known = {
            "no_rotary": ("the rotary part of the scores is missing", {"rotary": False}),
            "rotary_unscaled": ("the rotary part is added after multiplying by scale",
                                {"outside": True}),
            "sees_all": ("a new token attends to later tokens", {"masked": False}),
            "unscaled": ("the scores are not multiplied by scale", {"scale": 1.0}),
            "own_scale": ("1/√D is used instead of the argument `scale`",
                          {"scale": self.sizes[3] ** -0.5}),
            "first_of_context": ("the new tokens are treated as the first of the context; they are "
                                 "the last", {"before": False}),
            "w_k_for_values": ("w_k is used for the values as well", {"w_v": self.w_k}),
            "hidden_zero": ("scores that the mask hides are 0, not -inf, and still have a weight",
                            {"zeros": True}),
            "softmax_twice": ("softmax is taken twice: causal returns weights, not scores",
                              {"twice": True}),
            "w_v_for_keys": ("w_v is used for the keys as well", {"w_k": self.w_v}),
            "exchanged": ("w_k and w_v are exchanged", {"w_k": self.w_v, "w_v": self.w_k}),
            "first_w_k": ("all heads use the w_k of head 0", {"w_k": self.w_k[first]}),
            "first_w_v": ("all heads use the w_v of head 0", {"w_v": self.w_v[first]}),
            "scaled_twice": ("the scores are multiplied by scale twice",
                             {"scale": self.scale ** 2}),
            "divided": ("the scores are divided by scale", {"scale": 1 / self.scale}),
            "queries_too": ("the queries are scaled, and so are the scores, but not their rotary "
                            "part", {"own": self.scale}),
            "rotary_alone": ("the part without a position is missing in the scores", {"own": 0.0}),
            "not_itself": ("a new token does not attend to itself", {"later": -1}),
            "one_later": ("a new token attends to the one after it", {"later": 1})}
        return {name: (why, self.out(**how)) for name, (why, how) in known.items()}

    def judge(self, subject, agree, what, tolerance="float32", known=None):
        got = self.run(subject.attend_absorbed)
        want = self.out()
        overflow = not known and torch.is_tensor(got) and got.isnan().any()
        assert not overflow or np.isnan(want).any(), mistake(
            "overflow", f"attend_absorbed, {what}: the result is NaN. exp of a large score "
                        f"overflows: softmax subtracts the largest first")
        agree(got, want, tolerance, f"attend_absorbed, {what}", mistakes=known or {},
              at=lambda i: f"head {i[0]}, new token {i[1]}, number {i[2]}")


@pytest.mark.parametrize("T, N", [(3, 11), (1, 9), (5, 5), (1, 1)])
def test_attend_absorbed(subject, agree, rng, T, N):
    given = Given(rng, T, N)
    given.judge(subject, agree, f"{T} new of {N} tokens", "float64", given.wrong() if N > 1 else {})


WIDTHS = {"one head": {"H": 1}, "latents narrower than heads": {"D": 6, "R": 2},
          "widths of 1": {"D": 1, "R": 1, "E": 1}, "15 wide, 17 wide": {"D": 15, "R": 17},
          "all sizes alike": {"T": 4, "N": 4, "H": 4, "D": 4, "R": 4, "E": 4},
          "as many heads as tokens": {"T": 2, "N": 3, "H": 3, "D": 3, "R": 2, "E": 2},
          "a context of 40,000": {"T": 1, "N": 40_000, "H": 1, "D": 2, "R": 2, "E": 2}}


def test_attend_absorbed__hard(subject, agree, rng):
    """Other widths, then hard numbers in each argument and layouts, in one process."""
    for what, sizes in WIDTHS.items():
        Given(rng, **{"T": 3, "N": 11} | sizes).judge(subject, agree, what)
    given = Given(rng, 3, 11)
    for name in Given.NAMES:
        before = getattr(given, name)
        for kind in sorted(set(VALUES) - {"infinite", "not_a_number"}):
            setattr(given, name, VALUES[kind](rng, before.shape).astype(np.float64))
            given.judge(subject, agree, f"{name}: {WORDS[kind]}")
        swapped = np.moveaxis(np.moveaxis(before, 0, 1).copy(), 1, 0)        # the same numbers
        layouts = {"the first two axes swapped": swapped, "gaps between rows": np.concatenate(
            [before, before], -1)[..., :before.shape[-1]]}
        for layout, view in layouts.items():
            setattr(given, name, view)
            given.judge(subject, agree, f"{name} with {layout}")
        setattr(given, name, before)
    for name in ("q", "turned"):                # of one head and token: no other result may change
        before = getattr(given, name)
        setattr(given, name, before.copy())
        getattr(given, name)[1, 1, 0] = np.nan
        given.judge(subject, agree, f"a NaN in {name} of head 1, new token 1")
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
    name, why = (
        ("many_expanded", "With several new tokens all keys are computed, as in attend_expanded")
        if T > 1 else
        ("all_expanded", "Keys and values of all 100 tokens are computed: multiply only queries "
                         "and mixtures by w_k and w_v") if got - most > 0.75 * (expanded - most)
        else ("one_on_all", "w_k or w_v still multiplies all 100 latents"))
    assert got <= most, mistake(
        name, f"attend_absorbed: the result is right, but it takes {got:,} FLOPs for {T} new of "
              f"100 tokens; {most:,} are enough. {why}", why)


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
    agree(given.run(attend_expanded), given.out(), "float64", "attend_expanded")


def test_matrices_multiplied_out_give_the_same(rng):
    """What "absorbed into W_q" means: one matrix from x to the query for the latents."""
    given, C = Given(rng, 2, 9), 10
    x, w_q = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((2, C), (3, 5, C)))
    w_k = torch.from_numpy(given.w_k)
    torch.testing.assert_close(x @ (w_k.mT @ w_q).mT, (x @ w_q.mT) @ w_k, rtol=1e-12, atol=1e-12)
