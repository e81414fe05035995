"""Graders of k11.
Outputs start as 7, which no answer is, so that unwritten places show."""

import numpy as np
import pytest
import torch

from lab.judge.adversarial import VALUES, shifted
from lab.judge.compare import rounded_once
from lab.judge.mistakes import mistake
from lab.judge.pace import numbers, whole
from lab.judge.subject import Raised
from lab.judge.work import same_work

IGNORE = -100
BLOCK = 128
SIZES = [(4, 1000, "float32"), (2, 1, "float32"), (3, 127, "float16"), (4, 129, "bfloat16"),
         (3, 256, "float32")]                                               # T, V, dtype

HARD = VALUES | {                               # words: a generator of rows
    "around -3000": lambda rng, shape: shifted(rng, shape, -3000),
    "around -100,000": lambda rng, shape: shifted(rng, shape, -1e5),
    "around 100,000": lambda rng, shape: shifted(rng, shape, 1e5),
    "-inf alone": lambda rng, shape: np.full(shape, -np.inf, np.float32)}
COLUMN = 2                                      # stands for `ignore` where that is a column
HARD_CASES = ((3, IGNORE), (300, IGNORE), (300, COLUMN), (129, -1))         # V, ignore


# ---- logits, oracles, and what goes wrong


def parts(x, targets, ignore=IGNORE):
    """m, s, the target's logit, and which rows count, in float64."""
    m, counts = x.max(-1), targets != ignore
    own = x[np.arange(len(x)), np.where(counts, targets, 0)]
    return m, np.exp(x - m[:, None]).sum(-1), own, counts


def losses_of(x, targets, ignore=IGNORE):       # (T, V), (T,) -> (T,)
    m, s, own, counts = parts(x, targets, ignore)
    return np.where(counts, np.log(s) + m - own, 0)


def gradient_of(x, targets, up, ignore=IGNORE):     # (T, V), (T,), (T,) -> (T, V)
    m, s, _, counts = parts(x, targets, ignore)
    p = np.exp(x - m[:, None]) / s[:, None]
    return np.where(counts[:, None], (p - one_hot(x, targets)) * up[:, None], 0)


def one_hot(x, targets):
    return (np.arange(x.shape[1]) == targets[:, None]).astype(float)


def inputs(rng, T, V, dtype, offset=0.0):
    """Logits in a wider array, in float64 as rounded to dtype and as a tensor, and targets.

    The maximum of a row grows from block to block, and the last row is ignored.
    The first target is the last column, and the second, of more than two, is in the first block.
    """
    wide = 3 * rng.standard_normal((T, V + 24)) + offset + 2 * (np.arange(V + 24) // BLOCK)
    tensor = torch.from_numpy(wide.astype(np.float32)).to(getattr(torch, dtype))
    x = tensor.double().numpy()[:, :V]
    targets = rng.integers(0, V, T)
    targets[0] = V - 1
    if T > 2:
        targets[1] = min(5, V - 1)
    if T > 1:
        targets[-1] = IGNORE
    return x, tensor[:, :V], targets, torch.from_numpy(targets)


def hard_rows(rng, V, ignore):
    """Two rows of each kind in HARD, as inputs gives them; the second of a kind is ignored."""
    x = np.concatenate([make(rng, (2, V)) for make in HARD.values()])
    targets = np.arange(len(x)) % V
    targets[targets == ignore] = 0
    targets[1::2] = ignore
    return x.astype(float), torch.from_numpy(x), targets, torch.from_numpy(targets)


def kind_of(t):
    return f"row {t} ({list(HARD)[t // 2].replace('_', ' ')})"


def never_rescaled(x, minus_m):
    """Sums whose blocks each take exp(x - the maximum so far); or, without minus_m, sums of exp(x)
    that are nevertheless rescaled from block to block as if m were in them."""
    m, s = np.full(len(x), -np.inf), np.zeros(len(x))
    for c in range(0, x.shape[1], BLOCK):
        larger = np.maximum(m, x[:, c:c + BLOCK].max(-1))
        s = s * (1 if minus_m else np.exp(m - larger)) + np.exp(
            x[:, c:c + BLOCK] - larger[:, None] * minus_m).sum(-1)
        m = larger
    return s


def named(name, mistakes, want=None, counts=True):
    """{id: (sentence with the exercise as its subject, what it gives, 0 in ignored rows)}; with
    `want`, of those that can be seen here: with one block, say, the first is all."""
    rows = {known: (f"{name} {sentence}", np.where(counts, gives, 0))
            for known, (sentence, gives) in mistakes.items()}
    return {known: row for known, row in rows.items()
            if want is None or not np.allclose(row[1], want, rtol=2e-3, atol=0)}


def of_loss(name, x, targets):
    """{id: (sentence, the losses that it gives)}."""
    m, s, own, counts = parts(x, targets)
    V = x.shape[1]
    last = (V - 1) // BLOCK * BLOCK
    want, log_sum = losses_of(x, targets), np.logaddexp.reduce
    with np.errstate(over="ignore"):
        mistakes = {
            "no_rescale": ("does not rescale s when a later block has a larger maximum",
                           np.log(never_rescaled(x, True)) + m - own),
            "inverse_scale": ("scales s by exp(larger - m), first inf", np.full_like(own, np.nan)),
            "first_block": ("uses only the first BLOCK columns", log_sum(x[:, :BLOCK], -1) - own),
            "filled_with_0": ("counts columns past the row's end as 0; load them as -inf",
                              log_sum(np.pad(x, ((0, 0), (0, -V % BLOCK))), -1) - own),
            "no_target": ("leaves out the target's logit", np.log(s) + m),
            "m_left_out": ("leaves out m, which was subtracted from every logit", np.log(s) - own),
            "no_log": ("leaves out the logarithm of s", s + m - own),
            "sign": ("has the wrong sign: a loss is 0 or more", own - m - np.log(s)),
            "log2": ("takes the logarithm to base 2; use the natural one", np.log2(s) + m - own),
            "exp2": ("takes powers of 2", np.log(np.exp2(x - m[:, None]).sum(-1)) + m - own),
            "target_added": ("adds the target's logit; subtract it", np.log(s) + m + own),
            "no_m": ("takes exp of the logits without subtracting the maximum",
                     np.log(never_rescaled(x, False)) + m - own),
            "m_not_updated": ("leaves m at LOWEST", np.full_like(own, np.finfo(np.float32).min)),
            "mean": ("divides the sum by V; the loss takes the sum", np.log(s / V) + m - own),
            "last_block": ("keeps only the sum of the last block", log_sum(x[:, last:], -1) - own),
            "last_block_left_out": ("leaves out the last columns if V is not a multiple of BLOCK",
                                    log_sum(x[:, :V // BLOCK * BLOCK], -1) - own)}
    return named(name, mistakes, want, counts) | named(name, {
        "ignored_not_0": ("does not give 0 if the target is `ignore`. Choose with tl.where: NaN "
                          "times 0 is NaN", np.where(counts, want, np.nan)),
        "not_stored": ("writes nothing", np.full_like(own, 7)),
        "one_row": ("writes only the first row", np.where(np.arange(len(x)) == 0, want, 7))}, want)


def at(index):
    return ", ".join(map("{} {}".format, ("row", "column"), index))


# ---- the loss


@pytest.mark.parametrize("V", [1, 128, 128_256])
def test_predict_uniform_loss(subject, agree, V):
    want = losses_of(np.zeros((1, V)), np.array([0]))[0]
    agree(subject.predict_uniform_loss(V), want, "float64", f"predict_uniform_loss({V})",
          mistakes=named("the answer", {
              "probability": ("is the probability, 1 / V; the loss is minus its logarithm", 1 / V),
              "log2": ("is a logarithm to base 2; use the natural one", np.log2(V)),
              "sign": ("has the wrong sign: log(1 / V) is negative", -np.log(V)),
              "no_log": ("is V; take its logarithm", float(V))}, want))


def test_predict_uniform_loss__unseen(unseen, rng):
    for V in rng.integers(2, 10**6, 4).tolist():
        unseen("predict_uniform_loss", V)


def run_loss(subject, x, targets, ignore=IGNORE, block=BLOCK, **meta):
    T, V = x.shape
    losses, m, s = torch.full((3, T), 7.0)
    launch = subject.launch("cross_entropy_triton", T, args=(
        x, targets, losses, m, s, V, x.stride(0), ignore), BLOCK=block, **meta)
    return losses, m, s, launch


@pytest.mark.parametrize("T, V, dtype", SIZES)
def test_cross_entropy_triton(subject, agree, rng, T, V, dtype):
    name = "cross_entropy_triton"
    x, xt, targets, tt = inputs(rng, T, V, dtype)
    losses, m, s, _ = run_loss(subject, xt, tt)
    what = f"{name}, {T} row(s) of {V} {dtype}, BLOCK = {BLOCK}"
    agree(losses, losses_of(x, targets), "float32", f"{what}: the losses", at,
          of_loss(name, x, targets))
    right_m, right_s, _, counts = parts(x, targets)
    agree(m, right_m, "float32", f"{what}: maxima", at, named(name, {
        "m_not_stored": ("does not store m", np.full(T, 7.0)),
        "ignored_not_stored": ("does not store m if the target is `ignore`; each row has one",
                               np.where(counts, right_m, 7)),
        "exchanged": ("stores s in maxima", right_s),
        "log_sum_stored": ("stores m + log s in maxima", right_m + np.log(right_s)),
        "last_maximum": ("stores the maximum of the last block, not of the row",
                         x[:, (V - 1) // BLOCK * BLOCK:].max(-1))}))
    agree(s, right_s, "float32", f"{what}: sums", at, named(name, {
        "s_not_stored": ("does not store s", np.full(T, 7.0)),
        "ignored_not_stored": ("does not store s if the target is `ignore`; each row has one",
                               np.where(counts, right_s, 7)),
        "exchanged": ("stores m in sums", right_m),
        "log_stored": ("stores the logarithm of s; the gradient divides by s", np.log(right_s))}))


def test_cross_entropy_triton__large_logits(subject, agree, rng):
    x, xt, targets, tt = inputs(rng, 3, 300, "float32", offset=1e5)
    losses, *_ = run_loss(subject, xt, tt)
    m, s, own, counts = parts(x, targets)
    joined = (m + np.log(s)).astype(np.float32)
    agree(losses, losses_of(x, targets), "float32", "cross_entropy_triton, logits around 100,000",
          at, {
              "brackets": ("log s is added to m first and loses its digits: compute m - own first",
                           np.where(counts, joined - own, 0)),
              "overflow": ("exp overflows: subtract m first", np.where(counts, np.inf, 0))})


def test_cross_entropy_triton__some_minus_infinity(subject, agree, rng):
    x, xt, targets, tt = inputs(rng, 2, 300, "float32")
    xt[:, :BLOCK] = x[:, :BLOCK] = -np.inf
    losses, *_ = run_loss(subject, xt, tt)
    agree(losses, losses_of(x, targets), "float32", "cross_entropy_triton, a first block of -inf",
          at, {"infinite_start": ("m starts at -inf, and -inf minus -inf is NaN: start it at "
                                   "LOWEST, which is finite", np.array([np.nan, 0]))})


def test_cross_entropy_triton__no_column(subject, agree, rng):
    x, xt, targets, tt = inputs(rng, 5, 130, "float32")
    targets[:] = 0, -1, 130, -99, IGNORE        # and tt, which is the same memory
    losses, *_ = run_loss(subject, xt, tt)
    want = losses_of(x, np.where((targets < 0) | (targets >= 130), IGNORE, targets))
    want[1:4] = np.nan
    agree(losses, want, "float32", "cross_entropy_triton, targets 0, -1, 130, -99, -100 of 130 "
          "columns; NaN if the target is not a column", at, {
              "negative_ignored": ("every target below 0 gives 0; only `ignore` should",
                                   np.where(targets < 0, 0, want)),
              "all_ignored": ("every target that is not a column gives 0; only `ignore` should",
                              np.nan_to_num(want))})


def test_cross_entropy_triton__hard_rows(subject, agree, rng):
    name = "cross_entropy_triton"
    for V, ignore in HARD_CASES:
        x, xt, targets, tt = hard_rows(rng, V, ignore)
        losses, m, s, _ = run_loss(subject, xt, tt, ignore)
        with np.errstate(all="ignore"):
            want = losses_of(x, targets, ignore)
            right_m, right_s, own, counts = parts(x, targets, ignore)
            column = (targets >= 0) & (targets < V)
            logit = np.where(column, x[np.arange(len(x)), targets % V], np.nan)
            mistakes = {
                "fixed_ignore": ("compares targets with -100; compare with the argument `ignore`",
                                 np.where(targets == -100, 0, np.log(right_s) + right_m - logit)),
                "shallow_fill": (
                    "loads a number such as -1e4 for columns past the row's end, which a logit may "
                    "be below: load -inf", np.where(counts, np.logaddexp(
                        np.log(-V % BLOCK) - 1e4, right_m + np.log(right_s)) - own, 0)),
                "no_m": ("takes exp of the logits without subtracting the maximum", np.where(
                    counts, np.log(np.exp(x.astype(np.float32)).sum(-1)) - own, 0))}
        for t in range(len(x)):
            what = f"{name}, {V} columns, ignore = {ignore}, {kind_of(t)}"
            agree(losses[t], want[t], "float32", f"{what}: the loss", mistakes=named(
                name, {known: (text, gives[t]) for known, (text, gives) in mistakes.items()}))
            if np.isfinite(right_m[t]):
                agree(m[t], right_m[t], "float32", f"{what}: its maximum", mistakes=named(name, {
                    "starts_at_0": ("starts m at 0; a row may be all negative",
                                    np.maximum(right_m[t], 0))}))
                agree(s[t], right_s[t], "float32", f"{what}: its sum")


def economical(name, launch, enough):
    """Sectors that a launch touches. enough: {"load" or "store": (sectors, what they are)}"""
    for op, (sectors, what) in enough.items():
        got = launch.memory("global", op)["transactions"]
        assert got <= sectors, mistake(
            f"{op}s_again", f"{name} {op}s {got} sectors; {sectors} are enough: {what}", what)


def test_cross_entropy_triton__work(subject, reference, rng):
    _, x, _, targets = inputs(rng, 2, 4096, "float32")
    *_, launch = run_loss(subject, x.contiguous(), targets, block=1024, num_warps=1)
    economical("cross_entropy_triton", launch, {
        "load": (x.numel() * 4 // 32 + 8, "the row once, its target and the target's logit"),
        "store": (6, "three numbers per row")})
    _, x, _, targets = inputs(rng, 5, 4096, "float32")
    same_work("cross_entropy_triton", *(run_loss(side, x, targets, block=1024)[-1]
                                        for side in (subject, reference)))


# ---- the gradient


def run_gradient(subject, x, targets, m, s, up, gradient=None, ignore=IGNORE, block=BLOCK, **meta):
    """(gradient, launch); a new array unless one is there."""
    T, V = x.shape
    gradient = x.new_full((T, V), 7) if gradient is None else gradient
    return gradient, subject.launch("gradient_triton", T * -(-V // block), args=(
        x, targets, m, s, up, gradient, V, x.stride(0), gradient.stride(0), ignore), BLOCK=block,
        **meta)


def softmax_parts(rng, x, targets):
    """m, s and an upstream gradient, as arrays and as tensors on the same memory."""
    m, s, _, _ = parts(x, targets)
    arrays = [a.astype(np.float32) for a in (m, s, rng.uniform(0.5, 2, len(x)))]
    return arrays, [torch.from_numpy(a) for a in arrays]


def test_predict_sizes_moved(subject, reference, rng):
    x, xt, targets, tt = inputs(rng, 2, 4096, "float32")
    xt, (_, tensors) = xt.contiguous(), softmax_parts(rng, x, targets)
    *_, loss = run_loss(reference, xt, tt, block=4096, num_warps=1)
    _, gradient = run_gradient(reference, xt, tt, *tensors, block=4096, num_warps=1)
    want = round(sum(launch.memory("global", op)["transactions"] for launch in (loss, gradient)
                     for op in ("load", "store")) / (2 * 4096 * 4 // 32), 1)
    got = subject.predict_sizes_moved()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_sizes_moved: expected a number, got {got!r}")
    known, why = {
        1: ("first_alone", "1 is the first kernel only."),
        2: ("one_left_out", "2 leaves one out: m and s are known only after a whole row."),
        4: ("softmax_stored", "The first kernel writes three numbers per row, not the softmax."),
        5: ("softmax_loaded", "5 would store the softmax and load it again; m and s are enough."),
    }.get(got, ("other", "Which arrays of T·V numbers does each kernel read, and which write?"))
    assert abs(got - want) < 0.05, mistake(
        known, f"predict_sizes_moved: the simulator does not count {got} sizes. {why}", why)


@pytest.mark.parametrize("T, V, dtype", SIZES)
def test_gradient_triton(subject, agree, rng, T, V, dtype):
    x, xt, targets, tt = inputs(rng, T, V, dtype)
    (m, s, up), tensors = softmax_parts(rng, x, targets)
    gradient, _ = run_gradient(subject, xt, tt, *tensors)
    what = f"gradient_triton, {T} row(s) of {V} {dtype}, BLOCK = {BLOCK}"
    near = xt.as_strided((T, V), (V, 1)).double().numpy()       # as read with rows V numbers apart
    agree(gradient, gradient_of(x, targets, up.astype(float)), dtype, what, at,
          of_gradient(x, near, targets, m, s, up))
    agree(xt, x, "exact", f"{what}: the logits afterwards, which must not change", at)


def of_gradient(x, near, targets, m, s, up):
    """{id: (sentence, the gradient that it gives)}."""
    T, V = x.shape
    m, s, g = (a[:, None].astype(float) for a in (m, s, up))
    hot, counts, c = one_hot(x, targets), (targets != IGNORE)[:, None], np.arange(V)
    p = np.exp(x - m) / s
    want = gradient_of(x, targets, g[:, 0])
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        mistakes = {
            "exp2": ("takes powers of 2, not of e", (np.exp2(x - m) / s - hot) * g),
            "no_m": ("does not subtract the maximum", (np.exp(x) / s - hot) * g),
            "m_added": ("adds the maximum; subtract it", (np.exp(x + m) / s - hot) * g),
            "s_subtracted": ("subtracts s; divide by it", (p * s - s - hot) * g),
            "s_twice": ("divides by s twice", (p / s - hot) * g),
            "log_s": ("divides by log s; divide by s", (p * s / np.log(s) - hot) * g),
            "no_s": ("does not divide by s", (p * s - hot) * g),
            "one_everywhere": ("subtracts 1 in every column", (p - 1) * g),
            "only_target": ("writes 0 in every column but the target's", (p - 1) * hot * g),
            "target_sign": ("writes 1 - p at the target; it is p - 1", abs(p - hot) * g),
            "softmax_derivative": ("takes p · (1 - p), the softmax's derivative", p * (1 - p) * g),
            "divided_by_upstream": ("divides by upstream; multiply", (p - hot) / g),
            "target_in_each_block": ("subtracts 1 in every block: the target counts in the row",
                                     (p - (c % BLOCK == targets[:, None])) * g),
            "upstream_of_row_0": ("multiplies every row by upstream of row 0", (p - hot) * g[0]),
            "s_of_row_0": ("divides every row by the s of row 0", (p * s / s[0] - hot) * g),
            "m_of_row_0": ("subtracts row 0's m in each row", (np.exp(x - m[0]) / s - hot) * g),
            "mean": ("divides by V; each row has a loss of its own", (p - hot) * g / V),
            "near_rows": ("reads logits as if their rows were V (or gradient_row) numbers apart; "
                          "they are `row` apart", (np.exp(near - m) / s - hot) * g),
            "no_target": ("does not subtract 1 at the target", p * g),
            "target_added": ("adds 1 at the target", (p + hot) * g),
            "no_upstream": ("leaves out upstream", p - hot),
            "late_target": ("subtracts 1 after the product with upstream, not before", p * g - hot),
            "sign": ("has the wrong sign: it is softmax minus 1 at the target", (hot - p) * g)}
    return named("gradient_triton", mistakes, want, counts) | named("gradient_triton", {
        "ignored_not_0": ("is not 0 in an ignored row", np.where(counts, want, p * g)),
        "ignored_not_stored": ("leaves a row whose target is `ignore` unwritten; store zeros",
                               np.where(counts, want, 7)),
        "not_stored": ("writes nothing", np.full_like(want, 7)),
        "one_program": ("writes only the first BLOCK columns of the first row", np.where(
            (np.arange(T)[:, None] == 0) & (c < BLOCK), want, 7))}, want)


def test_gradient_triton__rounded_once(subject, rng):
    for dtype in ("float16", "bfloat16"):
        x, xt, targets, tt = inputs(rng, 4, 300, dtype)
        (_, _, up), tensors = softmax_parts(rng, x, targets)
        gradient, _ = run_gradient(subject, xt, tt, *tensors)
        rounded_once(gradient, gradient_of(x, targets, up.astype(float)), "gradient_triton",
                     f"4 rows of 300 {dtype}")


def test_gradient_triton__over_the_logits(subject, agree, rng):
    x, xt, targets, tt = inputs(rng, 3, 300, "float32", offset=-100)
    (_, _, up), tensors = softmax_parts(rng, x, targets)
    run_gradient(subject, xt, tt, *tensors, xt)
    agree(xt, gradient_of(x, targets, up.astype(float)), "float32",
          "gradient_triton, over the logits", at)


def test_gradient_triton__hard_rows(subject, agree, rng):
    for V, ignore in HARD_CASES:
        x, xt, targets, tt = hard_rows(rng, V, ignore)
        with np.errstate(all="ignore"):
            (m, s, up), tensors = softmax_parts(rng, x, targets)
            m[~np.isfinite(m)] = np.nan                 # of no right softmax
            up[::4], up[1::4] = -0.5, np.inf            # the latter: of ignored rows
            gradient, _ = run_gradient(subject, xt, tt, *tensors, ignore=ignore)
            m, s, g = (a[:, None].astype(float) for a in (m, s, up))
            hot = one_hot(x, targets)
            whole_row = (np.exp(x - m) / s - hot) * g
            counts = (targets != ignore)[:, None]
            want = np.where(counts, whole_row, 0)
            joined = (m + np.log(s)).astype(np.float32).astype(float)
            mistakes = named("gradient_triton", {
                "ignored_times_0": ("multiplies an ignored row by 0, but NaN or inf times 0 is "
                                    "NaN: use tl.where", np.where(counts, want, whole_row * 0)),
                "fixed_ignore": ("compares targets with -100, or with 0; compare with `ignore`",
                                 np.where(targets[:, None] == -100, 0, whole_row)),
                "joined": ("adds m and log s first, so log s loses digits: use exp(v - m) / s",
                           np.where(counts, (np.exp(x - joined) - hot) * g, 0))}, want)
        agree(gradient, want, "float32", f"gradient_triton, {V} columns, ignore = {ignore}",
              lambda index: f"{kind_of(index[0])}, column {index[1]}", mistakes)


def test_gradient_triton__work(subject, reference, rng):
    x, xt, targets, tt = inputs(rng, 2, 1024, "float32")
    xt, (_, tensors) = xt.contiguous(), softmax_parts(rng, x, targets)
    _, launch = run_gradient(subject, xt, tt, *tensors, block=512, num_warps=1)
    each = xt.numel() * 4 // 32
    economical("gradient_triton", launch, {
        "load": (each + 16, "each number once, and four single numbers per program"),
        "store": (each, "each number once")})
    x, xt, targets, tt = inputs(rng, 5, 1024, "float32")
    _, tensors = softmax_parts(rng, x, targets)
    same_work("gradient_triton", *(run_gradient(side, xt, tt, *tensors, block=512)[1]
                                   for side in (subject, reference)))


# ---- the course's own launchers


@pytest.mark.parametrize("T, V, dtype", [*SIZES, (2, 20_000, "float32"), (1, 9000, "bfloat16")])
def test_every_launcher(subject, agree, rng, T, V, dtype):
    x, xt, targets, tt = inputs(rng, T, V, dtype)
    results = {name: getattr(subject, name)(xt, tt) for name in (
        "cross_entropy", "cross_entropy_overwriting_logits", "cross_entropy_torch")}
    if dtype == "float32":
        results |= {kernel: subject.cross_entropy_cuda(xt, tt, IGNORE, kernel) for kernel in (
            "cross_entropy_two_read_cuda", "cross_entropy_online_cuda")}
    for name, got in results.items():
        assert str(got.dtype) == "torch.float32"
        agree(got, losses_of(x, targets), "float32", f"{name}, {T} rows of {V} {dtype}", at)
    agree(xt, x, "exact", "logits after every launcher", at)


def test_a_whole_vocabulary(subject, agree, rng):
    x = rng.standard_normal((1, 128_256)).astype(np.float32)
    for target in (0, 128_255):
        agree(subject.cross_entropy(torch.from_numpy(x), torch.tensor([target])),
              losses_of(x.astype(float), np.array([target])), "float32", "128,256 columns", at)


def test_ignore_may_be_a_column(subject, agree, rng):
    x, xt, targets, tt = inputs(rng, 3, 50, "float32")
    targets[:], tt[:] = 3, 3
    targets[1] = tt[1] = 7
    for name in ("cross_entropy", "cross_entropy_cuda", "cross_entropy_torch"):
        agree(getattr(subject, name)(xt, tt, 7), losses_of(x, targets, 7), "float32", name, at)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients(subject, agree, rng, dtype):
    """Against the formula in float64; rows of logits apart, upstream one number for all."""
    x, xt, targets, tt = inputs(rng, 5, 300, dtype)
    up = torch.full((1,), 0.25).expand(5)
    got, = subject.grad("cross_entropy", (xt.detach().requires_grad_(), tt), up)
    agree(got, gradient_of(x, targets, np.full(5, 0.25)), dtype, "gradient of cross_entropy", at)
    assert got.dtype == xt.dtype


def test_targets_that_are_no_column_give_nan(subject):
    x, targets = torch.ones(3, 4), torch.tensor([4, -1, 0])
    for name in ("cross_entropy", "cross_entropy_cuda"):
        assert torch.isnan(getattr(subject, name)(x, targets)).tolist() == [True, True, False]


def test_special_logits_are_torchs(subject):
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([[-inf, -inf, -inf], [0, -inf, 1], [-inf, 0, 1], [inf, 0, 1], [0, nan, 1],
                      [1e38, -1e38, 0]])
    targets = torch.zeros(6, dtype=torch.int64)
    want = torch.nn.functional.cross_entropy(x, targets, reduction="none")
    for name in ("cross_entropy", "cross_entropy_cuda"):
        got = getattr(subject, name)(x, targets)
        assert torch.equal(got.isnan(), want.isnan()), (name, got, want)
        assert torch.allclose(got.nan_to_num(9), want.nan_to_num(9)), (name, got, want)


def test_nothing_to_do(subject):
    none = torch.zeros(0, dtype=torch.int64)
    for V in (0, 5):
        for name in ("cross_entropy", "cross_entropy_overwriting_logits", "cross_entropy_cuda"):
            assert getattr(subject, name)(torch.ones(0, V), none).shape == (0,)
    got, = subject.grad("cross_entropy", (torch.ones(0, 5).requires_grad_(), none), torch.ones(0))
    assert got.shape == (0, 5)


def test_what_the_launchers_refuse(subject):
    x, targets = torch.ones(4, 6), torch.zeros(4, dtype=torch.int64)
    for args, says in (((x[0], targets), "logits has shape (6,)"),
                        ((x[:, :0], targets), "at least one column"),
                        ((x.double(), targets), "logits is torch.float64"),
                        ((x, targets[:3]), "targets has shape (3,), expected (4,)"),
                        ((x, targets.int()), "targets is torch.int32"),
                        ((torch.ones(6, 4).T, targets), "logits has strides (1, 4)"),
                        ((x, torch.zeros(8, dtype=torch.int64)[::2]), "targets has strides (2,)")):
        for name in ("cross_entropy", "cross_entropy_overwriting_logits", "cross_entropy_cuda"):
            with pytest.raises(Raised) as refusal:
                getattr(subject, name)(*args)
            assert says in refusal.value.text
    with pytest.raises(Raised) as refusal:
        subject.cross_entropy_cuda(x.requires_grad_(), targets)
    assert "logits requires a gradient" in refusal.value.text


def test_oracles_are_torchs(subject, rng):
    x, _, targets, tt = inputs(rng, 4, 127, "float32")
    want = torch.nn.functional.cross_entropy(torch.from_numpy(x), tt, reduction="none")
    assert np.allclose(subject.cross_entropy_oracle(x, targets), want, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_shipped_kernels_on_hopper():
    """Narrow loads are those of one number a row: target, its logit, m, s, upstream."""
    from layer1_kernels.bench.k11_cross_entropy import shipped

    for name, kernel in shipped().items():
        assert kernel.spills == 0 and kernel.shared <= 227 * 1024, f"{name}: {kernel}"
        wide, narrow = kernel.loads[16], kernel.loads.total() - kernel.loads[16]
        assert wide and narrow == (2 if name == "cross_entropy_triton" else 4), f"{name}: {kernel}"
    assert set(kernel.stores) == {16}, f"{name}: {kernel}"


@pytest.mark.slow
def test_the_last_cuda_step_does_not_spill():
    from layer1_kernels.k11_cross_entropy import KERNELS

    assert KERNELS.get("cross_entropy_online_cuda").resources.spill_stores == 0


@pytest.mark.gpu
@pytest.mark.parametrize("T, V", [(0, 5), (1, 1), (3, 127), (1000, 1000), (64, 128_256)])
def test_every_kernel_on_the_device(T, V):
    import layer1_kernels as ops

    x, targets = torch.randn(T, V, device="cuda"), torch.randint(V, (T,), device="cuda")
    targets[::3] = IGNORE
    up = torch.rand(T, device="cuda")
    for dtype, relative in ((torch.float32, 2e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)):
        xd = x.to(dtype)
        exact = xd.double().requires_grad_()
        want = ops.cross_entropy_torch(exact, targets)
        of_logits, = torch.autograd.grad(want, exact, up.double())
        for function in (ops.cross_entropy, ops.cross_entropy_overwriting_logits):
            leaf = xd.clone().requires_grad_()
            got = function(leaf * 1, targets)
            assert torch.allclose(got.double(), want, rtol=2e-5, atol=2e-5)
            gradient, = torch.autograd.grad(got, leaf, up)
            assert torch.allclose(gradient.double(), of_logits, rtol=relative, atol=relative / 10)
    assert torch.allclose(ops.cross_entropy_cuda(x, targets), ops.cross_entropy_torch(x, targets),
                          rtol=2e-5, atol=2e-5)


@pytest.mark.gpu
def test_cross_entropy_triton_speed(pace):
    pace("cross_entropy", numbers("bfloat16", 4096, 128_256), whole("int64", 128_256, 4096))
