"""Graders of k11. Outputs start as 7, which no answer is, so that unwritten places show."""

import numpy as np
import pytest

from lab.judge.adversarial import VALUES, shifted
from lab.judge.compare import rounded_once
from lab.judge.pace import numbers, whole
from lab.judge.subject import Raised
from lab.judge.work import same_work

IGNORE = -100
BLOCK = 128
SIZES = [(4, 1000, "float32"), (2, 1, "float32"), (3, 127, "float16"), (4, 129, "bfloat16"),
         (3, 256, "float32")]                                               # T, V, dtype

HARD = VALUES | {                               # words: a generator of rows
    "around -3000": lambda rng, shape: shifted(rng, shape, -3000),
    "around 100,000": lambda rng, shape: shifted(rng, shape, 1e5),
    "-inf alone": lambda rng, shape: np.full(shape, -np.inf, np.float32)}
COLUMN = 2                                      # stands for `ignore` where that is a column


# ---- logits, oracles, and what goes wrong


def parts(x, targets, ignore=IGNORE):
    """m, s, the target's logit, and which rows count, in float64."""
    m, kept = x.max(-1), targets != ignore
    own = x[np.arange(len(x)), np.where(kept, targets, 0)]
    return m, np.exp(x - m[:, None]).sum(-1), own, kept


def losses_of(x, targets, ignore=IGNORE):       # (T, V), (T,) -> (T,)
    m, s, own, kept = parts(x, targets, ignore)
    return np.where(kept, np.log(s) + m - own, 0)


def gradient_of(x, targets, up, ignore=IGNORE):     # (T, V), (T,), (T,) -> (T, V)
    m, s, _, kept = parts(x, targets, ignore)
    p = np.exp(x - m[:, None]) / s[:, None]
    return np.where(kept[:, None], (p - one_hot(x, targets)) * up[:, None], 0)


def one_hot(x, targets):
    return (np.arange(x.shape[1]) == targets[:, None]).astype(float)


def inputs(rng, T, V, dtype, offset=0.0):
    """Logits in a wider array, in float64 as rounded to dtype and as a tensor, and targets.

    The maximum of a row grows from block to block, and the last row is ignored. The first target is
    the last column, and the second, of more than two, is in the first block.
    """
    import torch

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
    import torch

    x = np.concatenate([make(rng, (2, V)) for make in HARD.values()])
    targets = np.arange(len(x)) % V
    targets[targets == ignore] = 0
    targets[1::2] = ignore
    return x.astype(float), torch.from_numpy(x), targets, torch.from_numpy(targets)


def kind_of(t):
    return f"{list(HARD)[t // 2].replace('_', ' ')} in row {t}"


def in_blocks(x, block):
    """Sums whose terms are never rescaled: each block takes exp(x - its maximum so far)."""
    m, s = np.full(len(x), -np.inf), np.zeros(len(x))
    for c in range(0, x.shape[1], block):
        m = np.maximum(m, x[:, c:c + block].max(-1))
        s += np.exp(x[:, c:c + block] - m[:, None]).sum(-1)
    return s


def unshifted(x, block):
    """Sums of exp(x), which are nevertheless rescaled from block to block as if m were in them."""
    m, s = np.full(len(x), -np.inf), np.zeros(len(x))
    for c in range(0, x.shape[1], block):
        larger = np.maximum(m, x[:, c:c + block].max(-1))
        s = s * np.exp(m - larger) + np.exp(x[:, c:c + block]).sum(-1)
        m = larger
    return s


def of_loss(name, x, targets):
    """{mistake: the losses that it gives}."""
    m, s, own, kept = parts(x, targets)
    V = x.shape[1]
    zeros = np.pad(x, ((0, 0), (0, -V % BLOCK)))
    m0, s0, _, _ = parts(zeros, targets)
    first = x[:, :BLOCK]
    want = losses_of(x, targets)
    with np.errstate(over="ignore"):
        wrong = {
            f"{name} does not rescale s when a later block has a larger maximum":
                np.log(in_blocks(x, BLOCK)) + m - own,
            f"{name} uses only the first BLOCK columns":
                np.log(np.exp(first - first.max(-1, keepdims=True)).sum(-1)) + first.max(-1) - own,
            f"in {name} the columns beyond the row count as logits of 0; -inf adds nothing":
                np.log(s0) + m0 - own,
            f"{name} leaves out the target's logit": np.log(s) + m,
            f"{name} leaves out the maximum, which has been taken from every logit":
                np.log(s) - own,
            f"{name} leaves out the logarithm of s": s + m - own,
            f"{name} has the wrong sign: a loss is 0 or more": own - m - np.log(s),
            f"{name} takes the logarithm to base 2; here it is the natural one":
                np.log2(s) + m - own,
            f"{name} takes powers of 2, not of e":
                np.log(np.exp2(x - m[:, None]).sum(-1)) + m - own,
            f"{name} adds the target's logit; it should subtract it": np.log(s) + m + own,
            f"{name} takes exp of the logits as they are, without the maximum":
                np.log(unshifted(x, BLOCK)) + m - own,
            f"{name} leaves m at LOWEST: nothing sets it to the larger maximum":
                np.full_like(own, np.finfo(np.float32).min),
            f"{name} divides the sum by V; the loss takes the sum": np.log(s / V) + m - own,
            f"{name} keeps only the sum of the last block":
                np.log(np.exp(x[:, (V - 1) // BLOCK * BLOCK:] - m[:, None]).sum(-1)) + m - own,
            f"{name} writes nothing": np.full_like(own, 7)}
        if V > BLOCK:
            part = x[:, :V // BLOCK * BLOCK]
            wrong[f"{name} drops the columns beyond the last whole BLOCK"] = losses_of(
                part, np.zeros(len(x), int)) + part[:, 0] - own
    found = {text: np.where(kept, got, 0) for text, got in wrong.items()}
    found[f"{name} does not give 0 where the target is `ignore` (NaN times 0 is NaN)"] = np.where(
        kept, want, np.log(s) + m - np.nan)
    found[f"{name} writes nothing"] = np.full_like(own, 7)
    found[f"{name} writes only its first row"] = np.where(np.arange(len(x)) == 0, want, 7)
    return telling(want, found)


def telling(want, mistakes):
    """The mistakes that can be seen here: with one block, say, the first is all."""
    return {text: answer for text, answer in mistakes.items()
            if not np.allclose(answer, want, rtol=2e-3, atol=0)}


def row(index):
    return f"row {index[0]}"


def at(index):
    return f"row {index[0]}, column {index[1]}"


def sevens(*shape, dtype=None):
    import torch

    return torch.full(shape, 7, dtype=dtype or torch.float32)


# ---- the loss


@pytest.mark.parametrize("V", [1, 128, 128_256])
def test_predict_uniform_loss(subject, agree, V):
    want = losses_of(np.zeros((1, V)), np.array([0]))[0]
    agree(subject.predict_uniform_loss(V), want, "float64", f"the loss of {V} equal logits",
          mistakes=telling(want, {
              "that is the probability, 1 / V; the loss is minus its logarithm": 1 / V,
              "the logarithm is to base 2; here it is the natural one": np.log2(V),
              "the sign is wrong: log(1 / V) is negative, and a loss is minus that": -np.log(V),
              "that is V, before the logarithm": float(V)}))


def test_predict_uniform_loss__unseen(unseen, rng):
    for V in rng.integers(2, 10**6, 4).tolist():
        unseen("predict_uniform_loss", V)


def run_loss(subject, x, targets, ignore=IGNORE, block=BLOCK, **meta):
    T, V = x.shape
    losses, m, s = (sevens(T) for _ in range(3))
    launch = subject.launch("cross_entropy_triton", T, args=(
        x, targets, losses, m, s, V, x.stride(0), ignore), BLOCK=block, **meta)
    return losses, m, s, launch


@pytest.mark.parametrize("T, V, dtype", SIZES)
def test_cross_entropy_triton(subject, agree, rng, T, V, dtype):
    name = "cross_entropy_triton"
    x, xt, targets, tt = inputs(rng, T, V, dtype)
    losses, m, s, _ = run_loss(subject, xt, tt)
    what = f"{name}, {T} row(s) of {V} {dtype}, BLOCK = {BLOCK}"
    agree(losses, losses_of(x, targets), "float32", f"{what}: the losses", row,
          of_loss(name, x, targets))
    right_m, right_s, _, kept = parts(x, targets)
    last = x[:, (V - 1) // BLOCK * BLOCK:].max(-1)
    agree(m, right_m, "float32", f"{what}: maxima", row,
          {f"{name} does not store m": np.full(T, 7.0),
           f"{name} does not store m where the target is `ignore`; each row has one":
               np.where(kept, right_m, 7),
           f"{name} stores s in maxima": right_s,
           f"{name} stores m + log s in maxima, which has m alone": right_m + np.log(right_s),
           f"{name} stores the maximum of the last block, not of the row": last})
    agree(s, right_s, "float32", f"{what}: sums", row,
          {f"{name} does not store s": np.full(T, 7.0),
           f"{name} does not store s where the target is `ignore`; each row has one":
               np.where(kept, right_s, 7),
           f"{name} stores m in sums": right_m,
           f"{name} stores the logarithm of s; the gradient divides by s": np.log(right_s)})


def test_cross_entropy_triton__large_logits(subject, agree, rng):
    x, xt, targets, tt = inputs(rng, 3, 300, "float32", offset=1e5)
    losses, *_ = run_loss(subject, xt, tt)
    m, s, own, kept = parts(x, targets)
    lse = (m + np.log(s)).astype(np.float32)
    agree(losses, losses_of(x, targets), "float32", "cross_entropy_triton, logits around 100,000",
          row, {
              "log s is added to m, and its digits are lost, before the target's logit is "
              "taken away; m - own first": np.where(kept, lse - own, 0),
              "exp has overflowed: take the maximum away first": np.where(kept, np.inf, 0)})


def test_cross_entropy_triton__some_minus_infinity(subject, agree, rng):
    """The first block has nothing else."""
    import torch

    x, xt, targets, tt = inputs(rng, 2, 300, "float32")
    xt[:, :BLOCK] = -torch.inf
    x[:, :BLOCK] = -np.inf
    losses, *_ = run_loss(subject, xt, tt)
    agree(losses, losses_of(x, targets), "float32", "cross_entropy_triton, a first block of -inf",
          row, {"-inf minus -inf is NaN: begin with LOWEST, which is finite":
                np.array([np.nan, 0])})


def test_cross_entropy_triton__no_column(subject, agree, rng):
    x, xt, targets, tt = inputs(rng, 5, 130, "float32")
    targets[:], tt[:] = (0, -1, 130, -99, IGNORE), torch_of((0, -1, 130, -99, IGNORE))
    losses, *_ = run_loss(subject, xt, tt)
    want = losses_of(x, np.where((targets < 0) | (targets >= 130), IGNORE, targets))
    want[1:4] = np.nan
    agree(losses, want, "float32", "cross_entropy_triton, targets 0, -1, 130, -99, -100 of 130 "
          "columns; NaN where it is not a column", row, {
              "every target below 0 is ignored; only `ignore` is": np.where(targets < 0, 0, want),
              "every target that is not a column is ignored; only `ignore` is":
                  np.nan_to_num(want)})


def torch_of(numbers):
    import torch

    return torch.tensor(numbers)


def test_cross_entropy_triton__hard_rows(subject, agree, rng):
    name = "cross_entropy_triton"
    for V, ignore in ((3, IGNORE), (300, IGNORE), (300, COLUMN), (129, -1)):
        x, xt, targets, tt = hard_rows(rng, V, ignore)
        losses, m, s, _ = run_loss(subject, xt, tt, ignore)
        with np.errstate(all="ignore"):
            want, (right_m, right_s, own, kept) = (f(x, targets, ignore)
                                                   for f in (losses_of, parts))
            mistakes = {
                f"{name} compares targets with -100; the number that is ignored is `ignore`":
                    np.where(targets == -100, 0, np.log(right_s) + right_m - np.where(
                        (targets >= 0) & (targets < V), x[np.arange(len(x)), targets % V],
                        np.nan)),
                f"{name} takes exp of the logits as they are, without the maximum":
                    np.where(kept, np.log(np.exp(x.astype(np.float32)).sum(-1)) - own, 0)}
        for t in range(len(x)):
            what = f"{name}, {V} columns, ignore = {ignore}, {kind_of(t)} alone"
            at_row = np.s_[t:t + 1]
            agree(losses[at_row], want[at_row], "float32", f"{what}: the loss", row,
                  {text: answer[at_row] for text, answer in mistakes.items()})
            if np.isfinite(right_m[t]):
                agree(m[at_row], right_m[at_row], "float32", f"{what}: its maximum", row,
                      {f"{name} begins its maximum at 0": np.maximum(right_m[at_row], 0)})
                agree(s[at_row], right_s[at_row], "float32", f"{what}: its sum", row)


def test_cross_entropy_triton__work(subject, reference, rng):
    _, x, _, targets = inputs(rng, 2, 4096, "float32")
    *_, launch = run_loss(subject, x.contiguous(), targets, block=1024, num_warps=1)
    least = x.numel() * 4 // 32
    for op, most, verb in (("load", least + 8, "reads"), ("store", 6, "writes")):
        got = launch.memory("global", op)["transactions"]
        assert got <= most, (
            f"cross_entropy_triton {verb} {got} sectors, {most} are enough: " +
            ("the row once, its target, and the target's logit" if op == "load" else
             "three numbers a row"))
    _, x, _, targets = inputs(rng, 5, 4096, "float32")
    *_, launch = run_loss(subject, x, targets, block=1024)
    same_work("cross_entropy_triton", launch, run_loss(reference, x, targets, block=1024)[-1])


# ---- the gradient


def run_gradient(subject, x, targets, m, s, up, gradient, ignore=IGNORE, block=BLOCK, **meta):
    T, V = x.shape
    return subject.launch("gradient_triton", T * -(-V // block), args=(
        x, targets, m, s, up, gradient, V, x.stride(0), gradient.stride(0), ignore), BLOCK=block,
        **meta)


def softmax_parts(rng, x, targets):
    """m, s and an upstream gradient, as arrays and as tensors."""
    import torch

    m, s, _, _ = parts(x, targets)
    arrays = [a.astype(np.float32) for a in (m, s, rng.uniform(0.5, 2, len(x)))]
    return arrays, [torch.from_numpy(a) for a in arrays]


def test_predict_sizes_moved(subject, reference, rng):
    x, xt, targets, tt = inputs(rng, 2, 4096, "float32")
    xt, (_, tensors) = xt.contiguous(), softmax_parts(rng, x, targets)
    *_, loss = run_loss(reference, xt, tt, block=4096, num_warps=1)
    gradient = run_gradient(reference, xt, tt, *tensors, sevens(2, 4096), block=4096, num_warps=1)
    want = round(sum(launch.memory("global", op)["transactions"] for launch in (loss, gradient)
                     for op in ("load", "store")) / (2 * 4096 * 4 // 32), 1)
    got = subject.predict_sizes_moved()
    assert isinstance(got, (int, float)), f"a prediction is a number, got {got!r}"
    why = {1: "1 is the loss alone",
           2: "2 leaves one out: the logits are read for the loss, and again for the gradient, "
              "since m and s are only known after the whole row",
           4: "4 writes too much: the loss is a number a row, and its softmax is not stored",
           5: "5 would store the softmax and load it again; m and s are enough"}.get(
        got, "each of the two reads the logits, and one of them writes as many numbers")
    assert abs(got - want) < 0.05, (
        f"sizes of logits that are moved: {got} is not what the counters say; {why}")


@pytest.mark.parametrize("T, V, dtype", SIZES)
def test_gradient_triton(subject, agree, rng, T, V, dtype):
    name = "gradient_triton"
    x, xt, targets, tt = inputs(rng, T, V, dtype)
    (m, s, up), tensors = softmax_parts(rng, x, targets)
    gradient = sevens(T, V, dtype=xt.dtype)
    run_gradient(subject, xt, tt, *tensors, gradient)
    p, hot = np.exp(x - m[:, None].astype(float)) / s[:, None], one_hot(x, targets)
    kept, g = (targets != IGNORE)[:, None], up[:, None].astype(float)
    want = gradient_of(x, targets, up.astype(float))
    own = hot == 1
    within = (np.arange(V) % BLOCK == targets[:, None]).astype(float)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        wrong = {
            f"{name} takes powers of 2, not of e":
                (np.exp2(x - m[:, None].astype(float)) / s[:, None] - hot) * g,
            f"{name} leaves out the maximum: s is the sum of exp(logit - m)":
                (np.exp(x) / s[:, None] - hot) * g,
            f"{name} adds the maximum to the logits; it should subtract it":
                (np.exp(x + m[:, None]) / s[:, None] - hot) * g,
            f"{name} subtracts s; it should divide by it": (p * s[:, None] - s[:, None] - hot) * g,
            f"{name} divides by s twice": (p / s[:, None] - hot) * g,
            f"{name} divides by log s; it should divide by s":
                (p * s[:, None] / np.log(s[:, None]) - hot) * g,
            f"{name} takes 1 away in every column": (p - 1) * g,
            f"{name} writes 0 in every column but the target's": np.where(own, p - 1, 0) * g,
            f"{name} writes 1 - p at the target; it is p - 1": np.where(own, 1 - p, p) * g,
            f"{name} takes the derivative of the softmax, p · (1 - p)": p * (1 - p) * g,
            f"{name} divides by the upstream gradient; it should multiply": (p - hot) / g,
            f"{name} takes 1 away in every block: c counts within a block, the target in the row":
                (p - within) * g,
            f"{name} multiplies every row by the upstream gradient of row 0": (p - hot) * g[0],
            f"{name} divides every row by the s of row 0":
                (p * s[:, None] / s[0] - hot) * g,
            f"{name} subtracts the maximum of row 0 from every row":
                (np.exp(x - float(m[0])) / s[:, None] - hot) * g,
            f"{name} divides by V; each row has a loss of its own": (p - hot) * g / V,
            f"{name} takes rows of logits to be V (or gradient_row) numbers apart; they are `row` "
            f"apart": (np.exp(xt.as_strided((T, V), (V, 1)).double().numpy()
                              - m[:, None].astype(float)) / s[:, None] - hot) * g}
    wrong |= {f"{name} does not take 1 away at the target": p * g,
             f"{name} adds 1 at the target": (p + hot) * g,
             f"{name} leaves out the upstream gradient": p - hot,
             f"{name} takes 1 away after it has multiplied by the upstream gradient": p * g - hot,
             f"{name} does not divide by s": (p * s[:, None] - hot) * g,
             f"{name} has the wrong sign: it is softmax minus one": (hot - p) * g}
    wrong = {text: np.where(kept, got, 0) for text, got in wrong.items()}
    wrong[f"{name} is not 0 in a row whose target is `ignore`"] = np.where(kept, want, p * g)
    wrong[f"{name} leaves a row whose target is `ignore` unwritten; zeros belong there"] = \
        np.where(kept, want, 7)
    wrong[f"{name} writes nothing"] = np.full_like(want, 7)
    wrong[f"{name} writes only the first BLOCK columns of the first row"] = np.where(
        (np.arange(T)[:, None] == 0) & (np.arange(V) < BLOCK), want, 7)
    what = f"{name}, {T} row(s) of {V} {dtype}, BLOCK = {BLOCK}"
    agree(gradient, want, dtype, what, at, telling(want, wrong))
    agree(xt, x, "exact", f"{what}: the logits after the launch, an input", at)


def test_gradient_triton__rounded_once(subject, rng):
    for dtype in ("float16", "bfloat16"):
        x, xt, targets, tt = inputs(rng, 4, 300, dtype)
        (_, _, up), tensors = softmax_parts(rng, x, targets)
        gradient = sevens(4, 300, dtype=xt.dtype)
        run_gradient(subject, xt, tt, *tensors, gradient)
        rounded_once(gradient, gradient_of(x, targets, up.astype(float)), "gradient_triton",
                     f"4 rows of 300 {dtype}")


def test_gradient_triton__over_the_logits(subject, agree, rng):
    x, xt, targets, tt = inputs(rng, 3, 300, "float32", offset=-100)
    (_, _, up), tensors = softmax_parts(rng, x, targets)
    run_gradient(subject, xt, tt, *tensors, xt)
    agree(xt, gradient_of(x, targets, up.astype(float)), "float32",
          "gradient_triton, over the logits", at)


def test_gradient_triton__hard_rows(subject, agree, rng):
    name = "gradient_triton"
    for V, ignore in ((3, IGNORE), (300, IGNORE), (300, COLUMN), (129, -1)):
        x, xt, targets, tt = hard_rows(rng, V, ignore)
        with np.errstate(all="ignore"):
            (m, s, up), tensors = softmax_parts(rng, x, targets)
            m[~np.isfinite(m)] = np.nan                 # of no right softmax
            up[::4], up[1::4] = -0.5, np.inf            # the latter: of ignored rows
            for array, tensor in zip((m, s, up), tensors, strict=True):
                tensor[:] = torch_of(array)
            gradient = sevens(len(x), V)
            run_gradient(subject, xt, tt, *tensors, gradient, ignore)
            p = np.exp(x - m[:, None].astype(float)) / s[:, None]
            hot, g = one_hot(x, targets), up[:, None].astype(float)
            kept = (targets != ignore)[:, None]
            want = np.where(kept, (p - hot) * g, 0)
            joined = (m + np.log(s)).astype(np.float32)[:, None].astype(float)
            mistakes = {
                "an ignored row is multiplied by 0, and NaN or infinity times 0 is NaN; choose, "
                "with tl.where": np.where(kept, want, (p - hot) * g * 0),
                f"{name} compares targets with -100, or ignores every target below 0; the number "
                f"that is ignored is `ignore`":
                    np.where(targets[:, None] == -100, 0, (p - hot) * g),
                "m and log s are added first, and log s loses its digits; exp(v - m) / s":
                    np.where(kept, (np.exp(x - joined) - hot) * g, 0)}
        agree(gradient, want, "float32", f"{name}, {V} columns, ignore = {ignore}",
              lambda index: f"{kind_of(index[0])}, column {index[1]}", telling(want, mistakes))


def test_gradient_triton__work(subject, reference, rng):
    x, xt, targets, tt = inputs(rng, 2, 1024, "float32")
    xt, (_, tensors) = xt.contiguous(), softmax_parts(rng, x, targets)
    launch = run_gradient(subject, xt, tt, *tensors, sevens(2, 1024), block=512, num_warps=1)
    for op, more, verb in (("load", 16, "reads"), ("store", 0, "writes")):
        counts, least = launch.memory("global", op), xt.numel() * 4 // 32 + more
        assert counts["transactions"] <= least, (
            f"gradient_triton {verb} {counts['transactions']} sectors, {least} are enough: each "
            f"number once" + (", and four numbers a program" if more else ""))
    x, xt, targets, tt = inputs(rng, 5, 1024, "float32")
    _, tensors = softmax_parts(rng, x, targets)
    launch, own = (run_gradient(side, xt, tt, *tensors, sevens(5, 1024), block=512)
                   for side in (subject, reference))
    same_work("gradient_triton", launch, own)


# ---- the course's own launchers


@pytest.mark.parametrize("T, V, dtype", [*SIZES, (2, 20_000, "float32"), (1, 9000, "bfloat16")])
def test_every_launcher(subject, agree, rng, T, V, dtype):
    x, xt, targets, tt = inputs(rng, T, V, dtype)
    found = {name: getattr(subject, name)(xt, tt) for name in (
        "cross_entropy", "cross_entropy_overwriting_logits", "cross_entropy_torch")}
    if dtype == "float32":
        found |= {kernel: subject.cross_entropy_cuda(xt, tt, IGNORE, kernel) for kernel in (
            "cross_entropy_two_read_cuda", "cross_entropy_online_cuda")}
    for name, got in found.items():
        assert str(got.dtype) == "torch.float32"
        agree(got, losses_of(x, targets), "float32", f"{name}, {T} rows of {V} {dtype}", row)
    agree(xt, x, "exact", "logits after every launcher", at)


def test_a_whole_vocabulary(subject, agree, rng):
    import torch

    x = rng.standard_normal((1, 128_256)).astype(np.float32)
    for target in (0, 128_255):
        agree(subject.cross_entropy(torch.from_numpy(x), torch.tensor([target])),
              losses_of(x.astype(float), np.array([target])), "float32", "128,256 columns", row)


def test_ignore_may_be_a_column(subject, agree, rng):
    x, xt, targets, tt = inputs(rng, 3, 50, "float32")
    targets[:], tt[:] = 3, 3
    targets[1] = tt[1] = 7
    for name in ("cross_entropy", "cross_entropy_cuda", "cross_entropy_torch"):
        agree(getattr(subject, name)(xt, tt, 7), losses_of(x, targets, 7), "float32", name, row)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients(subject, agree, rng, dtype):
    """Against the formula in float64; rows of logits apart, upstream one number for all."""
    import torch

    x, xt, targets, tt = inputs(rng, 5, 300, dtype)
    up = torch.full((1,), 0.25).expand(5)
    got, = subject.grad("cross_entropy", (xt.detach().requires_grad_(), tt), up)
    agree(got, gradient_of(x, targets, np.full(5, 0.25)), dtype, "gradient of cross_entropy", at)
    assert got.dtype == xt.dtype


def both_functions():
    """The course's own, in this process: what they do to tensors does not cross to another."""
    from lab import device
    from layer1_kernels.k11_cross_entropy import cross_entropy, cross_entropy_overwriting_logits

    if device.gpu() is None:
        device.use_simulator()
    return cross_entropy, cross_entropy_overwriting_logits


def test_logits_are_overwritten_only_where_asked_for():
    import torch

    keeps, overwrites = both_functions()
    torch.manual_seed(0)
    weight, hidden, targets = torch.randn(50, 8), torch.randn(3, 8), torch.tensor([4, 49, IGNORE])
    want = None
    for function in (keeps, overwrites):
        x = hidden.clone().requires_grad_()
        logits = x @ weight.T
        before = logits.detach().clone()
        losses = function(logits, targets)
        assert torch.equal(logits, before)
        got, of_logits = torch.autograd.grad(losses.sum(), (x, logits), retain_graph=True)
        assert torch.equal(logits, before) == (function is keeps)
        assert (of_logits.data_ptr() == logits.data_ptr()) == (function is overwrites)
        want = got if want is None else want
        assert torch.equal(got, want)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(losses.sum(), x)


def test_what_autograd_may_not_overwrite():
    import torch

    _, overwrites = both_functions()
    with pytest.raises(RuntimeError, match="logits is a leaf"):
        overwrites(torch.ones(2, 3, requires_grad=True), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="its rows overlap"):
        overwrites(torch.ones(1, 3).expand(2, 3), torch.tensor([0, 1]))


def test_targets_that_are_no_column_give_nan(subject):
    import torch

    x, targets = torch.ones(3, 4), torch.tensor([4, -1, 0])
    for name in ("cross_entropy", "cross_entropy_cuda"):
        assert torch.isnan(getattr(subject, name)(x, targets)).tolist() == [True, True, False]


def test_special_logits_are_torchs(subject):
    import torch

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
    import torch

    none = torch.zeros(0, dtype=torch.int64)
    for V in (0, 5):
        for name in ("cross_entropy", "cross_entropy_overwriting_logits", "cross_entropy_cuda"):
            assert getattr(subject, name)(torch.ones(0, V), none).shape == (0,)
    got, = subject.grad("cross_entropy", (torch.ones(0, 5).requires_grad_(), none), torch.ones(0))
    assert got.shape == (0, 5)


def test_what_the_launchers_refuse(subject):
    import torch

    x, targets = torch.ones(4, 6), torch.zeros(4, dtype=torch.int64)
    for given, says in (((x[0], targets), "logits has shape (6,)"),
                        ((x[:, :0], targets), "at least one column"),
                        ((x.double(), targets), "logits is torch.float64"),
                        ((x, targets[:3]), "targets has shape (3,), expected (4,)"),
                        ((x, targets.int()), "targets is torch.int32"),
                        ((torch.ones(6, 4).T, targets), "logits has strides (1, 4)"),
                        ((x, torch.zeros(8, dtype=torch.int64)[::2]), "targets has strides (2,)")):
        for name in ("cross_entropy", "cross_entropy_overwriting_logits", "cross_entropy_cuda"):
            with pytest.raises(Raised) as refusal:
                getattr(subject, name)(*given)
            assert says in refusal.value.text
    with pytest.raises(Raised) as refusal:
        subject.cross_entropy_cuda(x.requires_grad_(), targets)
    assert "logits requires a gradient" in refusal.value.text


def test_oracles_are_torchs(subject, rng):
    import torch

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
    import torch

    from layer1_kernels import (
        cross_entropy,
        cross_entropy_cuda,
        cross_entropy_overwriting_logits,
        cross_entropy_torch,
    )

    x, targets = torch.randn(T, V, device="cuda"), torch.randint(V, (T,), device="cuda")
    targets[::3] = IGNORE
    up = torch.rand(T, device="cuda")
    for dtype, relative in ((torch.float32, 2e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)):
        xd = x.to(dtype)
        exact = xd.double().requires_grad_()
        want = cross_entropy_torch(exact, targets)
        of_logits, = torch.autograd.grad(want, exact, up.double())
        for function in (cross_entropy, cross_entropy_overwriting_logits):
            leaf = xd.clone().requires_grad_()
            got = function(leaf * 1, targets)
            assert torch.allclose(got.double(), want, rtol=2e-5, atol=2e-5)
            gradient, = torch.autograd.grad(got, leaf, up)
            assert torch.allclose(gradient.double(), of_logits, rtol=relative, atol=relative / 10)
    assert torch.allclose(cross_entropy_cuda(x, targets), cross_entropy_torch(x, targets),
                          rtol=2e-5, atol=2e-5)


@pytest.mark.gpu
def test_cross_entropy_triton_speed(pace):
    pace("cross_entropy", numbers("bfloat16", 4096, 128_256), whole("int64", 128_256, 4096))
