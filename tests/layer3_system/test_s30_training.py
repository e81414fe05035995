"""Graders of s30.
What is right comes in float64, by the book."""

import math

import numpy as np
import pytest
import torch

from lab.judge.mistakes import mistake, named, raises
from layer3_system import s30_training
from layer3_system.testing import step_driver

DRIVER = "layer3_system.testing.step_driver"


def learner_error(name, words, sentence):
    """Within this context, an error whose text has these words is the mistake `name`."""
    return named(name, sentence, lambda error: words in getattr(error, "text", ""))


def test_predict_bf16_weight(subject):
    weight = torch.ones((), dtype=torch.bfloat16)
    for _ in range(100):
        weight -= 0.001
    right = weight.item()
    guess = subject.predict_bf16_weight()
    known = {"first_counts": (0.998, "the first update counts. But the next bf16 below 1 is "
                                     "1 - 2⁻⁸ = 0.9961, and 0.999 is nearer to 1"),
             "as_fp32": (0.9, "each update counts, as it does in fp32"),
             "one_step_each": (1 - 100 / 256, "each update goes to the next bf16 number below, "
                                              "2⁻⁸ away: it is less than half of the way"),
             "all_lost": (0.0, "the weight itself is lost: an update that is too small leaves it "
                               "as it was")}
    assert isinstance(guess, (int, float)), mistake(
        "no_number", f"predict_bf16_weight: expected a number, got {guess!r:.50}")
    name, why = next(((name, f". This is what comes out when {why}") for name, (wrong, why)
                      in known.items() if abs(guess - wrong) < 0.01),
                     ("other", ": how far below 1 is the next bf16 number?"))
    assert guess == right, mistake(name, f"predict_bf16_weight: {guess} is not right{why}", why)


# ---- the rate


def cosine(share, peak, floor):
    return floor + (peak - floor) * (1 + math.cos(math.pi * share)) / 2


def rates(step, warm, steps, peak, floor):
    """{"right": the rate of a step, id of a mistake: what it gives}"""
    up = step < warm
    share = (step + 1 - warm) / max(1, steps - warm)
    line = peak * (step + 1) / max(1, warm)
    return {"right": line if up else cosine(min(1, share), peak, floor),
            "starts_at_zero": peak * step / max(1, warm) if up else cosine(min(1, share), peak,
                                                                           floor),
            "cosine_from_zero": line if up else cosine(min(1, (step + 1) / steps), peak, floor),
            "rises_again": line if up else cosine(share, peak, floor),
            "no_half": line if up else floor + (peak - floor) * math.cos(
                math.pi * min(1, share)),
            "whole_cosine": line if up else cosine(2 * min(1, share), peak, floor),
            "floor_forgotten": line if up else cosine(min(1, share), peak, 0),
            "one_step_late": line if up else cosine(
                min(1, (step - warm) / max(1, steps - warm)), peak, floor)}


WHY = {"starts_at_zero": "step 0 has the rate 0: a batch is computed for nothing",
       "cosine_from_zero": "the cosine counts the warm-up's steps too, so the rate falls by a jump "
                           "after it",
       "rises_again": "the share of the way down goes beyond 1, and the cosine turns",
       "no_half": "the cosine itself goes down to -1; (1 + cosine) / 2 goes from 1 to 0",
       "whole_cosine": "the cosine makes its whole turn, to 2π, and the rate is at the peak again",
       "floor_forgotten": "the cosine ends at 0, not at the floor",
       "one_step_late": "the first step after warm-up has the peak a second time, and the last "
                        "step is not at the floor"}


def check_rate(subject, step, warm, steps, peak=3e-3, floor=3e-4):
    expected = rates(step, warm, steps, peak, floor)
    with raises("no_steps_left", ZeroDivisionError, "Warm-up may take all steps, or none."):
        got = subject.rate(step, warm, steps, peak, floor)
    close = {name: abs(got - value) < 1e-12 for name, value in expected.items()}
    name = next((name for name in WHY if close[name]), "")
    why = f": {WHY[name]}" if name else ""
    assert close["right"], mistake(name, (
        f"step {step} of {steps}, {warm} of them warm-up, peak {peak}, floor {floor}: got {got}, "
        f"expected {expected['right']:.6g}{why}"), WHY.get(name))


@pytest.mark.parametrize("warm, steps", [(7, 50), (1, 8), (0, 5), (8, 8)])
def test_rate(subject, warm, steps):
    for step in (0, *range(1, steps, 3), steps - 1, steps, steps + 5):
        check_rate(subject, step, warm, steps)


def test_rate__unseen(subject, rng):
    for _ in range(5):
        warm = int(rng.integers(2, 40))
        steps = warm + int(rng.integers(2, 100))
        check_rate(subject, int(rng.integers(steps)), warm, steps, float(rng.random()) + 1, 0.5)


# ---- AdamW


class Adam:
    """AdamW in float64, by the book, or with one mistake of `WRONG`."""

    def __init__(self, w, betas, eps, decay, wrong=""):
        self.w = w.astype(np.float64)
        self.m = np.zeros_like(self.w)
        self.v = np.zeros_like(self.w)
        self.rest = betas, eps, decay
        self.wrong = wrong

    def step(self, g, t, lr):
        (b1, b2), eps, decay = self.rest
        g = g.astype(np.float64)
        if self.wrong == "not_in_place":
            self.w = self.w * (1 - lr * decay)
            return
        if self.wrong == "l2_decay":
            g = g + decay * self.w
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g * g
        c1, c2 = (1, 1) if self.wrong == "no_bias" else (1 - b1 ** t, 1 - b2 ** t)
        root = {"eps_inside": np.sqrt(self.v / c2 + eps),
                "eps_grown": (np.sqrt(self.v) + eps) / np.sqrt(c2)}.get(
                    self.wrong, np.sqrt(self.v / c2) + eps)
        if self.wrong == "decay_unscaled":
            self.w = self.w * (1 - decay)
        elif self.wrong not in ("l2_decay", "decay_last"):
            self.w = self.w * (1 - lr * decay)
        self.w = self.w - lr * (self.m / c1) / root
        if self.wrong == "decay_last":
            self.w = self.w * (1 - lr * decay)


WRONG = {"l2_decay": "decay is added to the gradient, and goes through both means: that is Adam "
                     "with L2, and the W is gone",
         "not_in_place": "it is not changed in place: after `w = w - …` or `m = …` the caller's "
                         "tensor is as it was",
         "decay_last": "decay comes after the step: it takes its share of the old w",
         "no_bias": "the means are not divided by 1 - βᵗ: both began at 0 and are too small at "
                    "first",
         "eps_inside": "ε is under the root: it belongs beside it",
         "eps_grown": "ε is added before the root is divided by that of 1 - βᵗ, so it counts many "
                      "times in the first steps",
         "decay_unscaled": "the weight shrinks by decay itself: it shrinks at the rate's pace, by "
                           "lr · decay"}


def check_adamw(subject, agree, rng, shape, steps, dtype="float64", decay=0.1, size=1.0):
    w = torch.tensor(rng.standard_normal(shape), dtype=getattr(torch, dtype))
    start = w.double().numpy().copy()
    betas, eps, lr = (0.9, 0.95), 1e-8, 1e-2
    books = {name: Adam(start, betas, eps, decay, name) for name in ("", *WRONG)}
    m = torch.zeros_like(w)
    v = torch.zeros_like(w)
    for t in range(1, steps + 1):
        g = torch.from_numpy(size * rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 2)).to(
            w.dtype)
        subject.adamw_step(w, g, m, v, t, lr, betas, eps, decay)
        for book in books.values():
            book.step(g.numpy(), t, lr)
        if t in (1, steps):
            right = books[""]
            for name, got, want in (("m", m, right.m), ("v", v, right.v), ("w", w, right.w)):
                wrong = {k: (why, getattr(books[k], name)) for k, why in WRONG.items()}
                agree(got, want, dtype, f"{name} after step {t}, decay {decay}", mistakes=wrong)


@pytest.mark.parametrize("shape, decay", [((5, 7), 0.1), ((7,), 0.0), ((1, 129), 0.1)])
def test_adamw_step(subject, agree, rng, shape, decay):
    check_adamw(subject, agree, rng, shape, 20, decay=decay)


def test_adamw_step__fp32(subject, agree, rng):
    check_adamw(subject, agree, rng, (5, 7), 20, "float32")


def test_adamw_step__small_gradients(subject, agree, rng):
    """Where ε counts."""
    check_adamw(subject, agree, rng, (5, 7), 3, size=1e-7)


# ---- accumulation


def parts(rng, sizes, empty=()):
    """Micro-batches of T tokens each; those at `empty` have no token that counts."""
    rows = []
    for k, T in enumerate(sizes):
        counts = rng.random(T) < (0 if k in empty else 0.8)
        counts[0] = k not in empty
        rows.append((rng.standard_normal((T, 6)), rng.standard_normal(T) * (k + 1), counts))
    return rows


def sums(w, b, batch):
    """(sum of losses, count, gradients of that sum) of a micro-batch."""
    x, y, counts = batch
    error = (x @ w + b - y) * counts
    return (error ** 2).sum(), counts.sum(), [2 * error @ x, 2 * error.sum(keepdims=True)]


def check_accumulate(subject, reference, agree, rng, batches):
    w = rng.standard_normal(6)
    b = rng.standard_normal(1)
    tensors = [tuple(map(torch.from_numpy, batch)) for batch in batches]
    arguments = torch.from_numpy(w), torch.from_numpy(b), tensors, 2.5
    with learner_error("no_gradient", "'NoneType'", "A weight that had no part in any loss has no "
                       "gradient: leave its `grad` None."):
        got = subject.make(f"{DRIVER}:accumulated", *arguments)
    rows = [sums(w, b, batch) for batch in batches]
    loss = sum(row[0] for row in rows)
    count = sum(row[1] for row in rows)
    words = f"micro-batches of {', '.join(str(row[1]) for row in rows)} tokens"
    for i, name in enumerate(("w", "b")):
        own = [row[2][i] for row in rows]
        agree(got["gradients"][i], sum(own) / count, "float64", f"{words}: the gradient of {name}",
              mistakes={} if len(rows) == 1 else {
            "mean_of_means": ("each micro-batch counts alike, whatever its number of tokens",
                              sum(g / max(1, row[1]) for g, row in zip(own, rows, strict=True))
                              / len(rows)),
            "by_parts": ("the sum is divided by the number of micro-batches, and grows with their "
                         "length", sum(own) / len(rows)),
            "undivided": ("the sum is not divided", sum(own)),
            "zeroed_inside": ("gradients are cleared before each micro-batch, so that only the "
                              "last is left", own[-1] / count),
            "stale": ("what was in `grad` before is still there", (2.5 + sum(own)) / count)})
    agree(got["loss"], loss / count, "float64", f"{words}: the loss", mistakes={
        "loss_of_means": ("the loss is a mean of means", sum(
            row[0] / max(1, row[1]) for row in rows) / len(rows)),
        "loss_undivided": ("the loss is not divided by the tokens", loss)})
    assert isinstance(got["loss"], float), mistake("tensor_loss", (
        f"{words}: the loss is a tensor, expected a float: a tensor may keep its graph (`item`)"))
    assert got["tokens"] == count, f"{words}: got {got['tokens']} tokens, expected {count}"
    most = reference.make(f"{DRIVER}:accumulated", *arguments)["held"]
    assert got["held"] <= most, mistake("one_big_graph", (
        f"{words}: graphs hold {got['held']} numbers at once, expected {most}, those of the "
        f"largest micro-batch: one's backward frees its graph before the next is made"))


@pytest.mark.parametrize("sizes", [(129, 17, 64, 5), (33,), (1, 1000)])
def test_accumulate(subject, reference, agree, rng, sizes):
    check_accumulate(subject, reference, agree, rng, parts(rng, sizes))


def test_accumulate__without_tokens(subject, reference, agree, rng):
    with raises("no_tokens", ZeroDivisionError, "A micro-batch may have no token with a loss."):
        check_accumulate(subject, reference, agree, rng, parts(rng, (17, 9, 5), empty=(1,)))


# ---- clipping


def norm_of(gradients):
    return math.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients))


def clipped(gradients, norm, limit):
    return [g * min(1, limit / norm) for g in gradients]


def check_clip(subject, agree, gradients, scale, limit):
    right = [g / scale for g in gradients]
    norm = norm_of(right)
    tensors = [torch.from_numpy(g.copy()) for g in gradients]
    words = f"two gradients, scale {scale:,.0f}, norm {norm:.4g}, limit {limit}"
    got, finite = subject.unscale_and_clip([tensors[0], None, tensors[1]], scale, limit)
    agree(got, norm, "float64", f"{words}: the norm", mistakes={
        "clip_first": ("the norm is taken before the gradients are unscaled, or they never are, or "
                       "not in place: every step is clipped to nearly nothing", norm * scale),
        "sum_of_norms": ("norms are added: of 3 and 4 come 7, not 5", sum(
            norm_of([g]) for g in right)),
        "squared": ("the root is missing", norm ** 2),
        "after_clipping": ("it is the norm after clipping", min(norm, limit))})
    assert finite is True, f"{words}: got finite = {finite}, expected True"
    added = sum(norm_of([g]) for g in right)
    for i, want in enumerate(clipped(right, norm, limit)):
        agree(tensors[i], want, "float64", f"{words}: gradient {i}", mistakes={
            "not_in_place": ("the gradients are as they were: the division is not in place",
                             gradients[i]),
            "norm_each": ("each gradient is clipped by its own norm, and the direction changes",
                          clipped([right[i]], norm_of([right[i]]), limit)[0]),
            "clipped_by_sum": ("the sum of the norms is compared with the limit, not the norm of "
                               "all", right[i] * min(1, limit / added)),
            "always_scaled": ("a gradient that is short enough is made longer",
                              right[i] * limit / norm),
            "not_unscaled": ("it is still scaled", gradients[i] * min(1, limit / norm)),
            "unclipped": ("it is not clipped", right[i])})


@pytest.mark.parametrize("scale", [4.0, 2.0 ** 16])
@pytest.mark.parametrize("length", [0.3, 1.0, 40.0])
def test_unscale_and_clip(subject, agree, rng, scale, length):
    gradients = [rng.standard_normal(shape) for shape in ((5, 7), (129,))]
    whole = norm_of(gradients)
    check_clip(subject, agree, [g * scale * length / whole for g in gradients], scale, 1.0)


def test_unscale_and_clip__zeros(subject):
    with raises("zero_norm", ZeroDivisionError, "A gradient may be all zeros."):
        gradient = torch.zeros(3)
        got = subject.unscale_and_clip([gradient], 8.0, 1.0)
        assert got == (0.0, True), f"unscale_and_clip of zeros: {got}, expected (0.0, True)"
    assert gradient.tolist() == [0, 0, 0], mistake(
        "zero_norm", f"gradients of zeros: got {gradient.tolist()}, expected zeros")


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_unscale_and_clip__overflow(subject, value):
    last = torch.tensor([0.5, value])
    norm, finite = subject.unscale_and_clip([torch.ones(3), last], 4.0, 1.0)
    assert finite is False, mistake("infinite_step", (
        f"the last gradient holds {value}: got finite = {finite}, norm {norm}, expected False: "
        f"after such a step every weight is NaN"))


def test_a_norm_whose_squares_do_not_fit_into_fp32():
    """Not asked of a learner."""
    gradients = [torch.full((3,), 2e20), torch.full((1,), 2e20)]
    assert s30_training.unscale_and_clip(gradients, 1.0, 2.0) == (pytest.approx(4e20), True)
    assert all(torch.allclose(g, torch.ones_like(g)) for g in gradients)


# ---- recomputation


def arrays(rng, T=9, C=5, F=12):
    shapes = (T, C), (F, C), (C, F), (T, C)
    x, up, down, upstream = (torch.from_numpy(rng.standard_normal(shape)) for shape in shapes)
    return [x, up, down], upstream


def check_recompute(subject, agree, block, own, upstream):
    want = step_driver.recomputed(block, own, upstream, again=False)
    with (learner_error("no_graph", "does not require grad", "In backward of a Function torch "
                        "makes no graph by itself: the second run needs `torch.enable_grad`, with "
                        "what is made of its result; inputs that were cut off need a gradient."),
          learner_error("no_none", "incorrect number of gradients", "backward returns one for each "
                        "argument of forward: for `block` it is None.")):
        got = subject.make(f"{DRIVER}:recomputed", block, own, upstream, True)
    others = "" if block == "dense" else (
        " This is a block with dropout. Are the same units dropped in the second run?")
    for name, mine, right in zip(("x", "the first weight", "the second weight"), got["gradients"],
                                 want["gradients"], strict=True):
        missing = f"the gradient of {name} is missing: backward returns one for every input"
        assert mine is not None, mistake("weights_forgotten", missing)
        close = torch.allclose(mine, right, 1e-12, 1e-12)
        assert close or not others, mistake("other_units", (
            f"the gradient of {name} differs by up to {(mine - right).abs().max():.3g} from that "
            f"of the block without Recompute.{others}"), others)
        agree(mine, right.numpy(), "float64", f"the gradient of {name}", mistakes={
            "upstream_ignored": ("the gradient of the block's result is taken as 1",
                                 step_driver.recomputed(block, own, torch.ones_like(upstream),
                                                        again=False)["gradients"][
                                     ("x", "the first weight", "the second weight").index(name)])})
    assert got["draw"] == want["draw"], mistake("generator_moved", (
        "a random number that is drawn after backward is not the one that it was without "
        "Recompute: backward left the generator elsewhere (`torch.random.fork_rng`)"))


def test_Recompute_backward(subject, agree, rng):
    check_recompute(subject, agree, "dense", *arrays(rng))


def test_Recompute_backward__dropout(subject, agree, rng):
    check_recompute(subject, agree, "dropping", *arrays(rng, T=33, F=64))
