"""Graders of s32.
What is right comes in float64, by the book; plans are painted, number by number.
"""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from lab.judge.mistakes import mistake, named, raises
from layer3_system.rl.lanes import idle_share, split
from layer3_system.rl.layout import part

DRIVER = "layer3_system.testing.reshard_ranks"


# ---- what an answer teaches


def book(rewards, eps=1e-4, wrong=""):
    """The advantages of rewards (P, G), or with one mistake of SPREADS."""
    r = np.asarray(rewards, np.float64)
    axis = None if wrong == "over_batch" else 1
    mean = 0 if wrong == "not_centred" else r.mean(axis, keepdims=True)
    variance = r.var(axis, keepdims=True)
    if wrong == "sample_spread":
        variance = variance * r.shape[1] / max(1, r.shape[1] - 1)
    spread = {"variance": variance, "no_spread": 1 - eps}.get(wrong, np.sqrt(variance))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (r - mean) / (spread + (0 if wrong == "dead_group" else eps))


SPREADS = {
    "over_batch": "mean and σ go over all questions: an easy question's answers all look good, a "
                  "hard one's all bad",
    "not_centred": "the mean is not taken off: answers with reward 0 are never pushed down",
    "dead_group": "ε is left out: 0/0 where all answers are equal, and then in every weight",
    "variance": "it is divided by σ², not by σ",
    "sample_spread": "σ is that of a sample, with G - 1 below: it is the population's",
    "no_spread": "it is not divided by σ"}


def check_advantages(subject, agree, rewards):
    wrong = {name: (says, book(rewards, wrong=name)) for name, says in SPREADS.items()}
    got = subject.advantages(torch.as_tensor(np.asarray(rewards, np.float64)))
    agree(got, book(rewards), "float64", f"advantages of rewards of shape {np.shape(rewards)}",
          at=lambda i: f"question {i[0]}, answer {i[1]}", mistakes=wrong)


@pytest.mark.parametrize("rewards", [
    [[1, 0, 0, 1], [0, 0, 0, 1], [1, 1, 1, 0]],
    [[0, 0, 0], [1, 1, 1], [1, 0, 0]],
    [[0.5, 2], [2, 2], [0.5, 0.5]],
    [[1.0]]], ids=["mixed", "dead", "sizes", "one answer"])
def test_advantages(subject, agree, rewards):
    check_advantages(subject, agree, rewards)


def test_advantages__unseen(subject, agree, rng):
    for P, G in ((4, 16), (1, 127), (7, 2)):
        check_advantages(subject, agree, (rng.random((P, G)) < 0.3).astype(float))
        check_advantages(subject, agree, rng.normal(3, 2, (P, G)))


# ---- the objective


def one_token(new, old, A, clip, wrong):
    """(what a token gains, the slope of that by `new`)."""
    if wrong == "no_ratio":
        return A * new, A
    if wrong == "old_is_new":
        return A, A
    ratio = new - old if wrong == "difference" else math.exp(new - old)
    slope = A if wrong == "difference" else ratio * A
    held = min(max(ratio, 1 - clip), 1 + clip)
    if wrong == "no_clip":
        return ratio * A, slope
    if wrong == "clip_alone":
        return held * A, slope if held == ratio else 0.0
    if wrong == "ratio_first":
        return min(ratio, held) * A, slope if ratio <= held else 0.0
    gain = (max if wrong == "max_for_min" else min)(ratio * A, held * A)
    return gain, slope if gain == ratio * A else 0.0


LOSSES = {
    "sign": "the sign is turned: worse answers are pushed up",
    "no_ratio": "there is no ratio: answers of an older model count as this one's",
    "difference": "the ratio is new - old: it is e to that, so 1 where nothing has changed",
    "old_is_new": "the ratio is always 1: that the answers are old cannot be seen",
    "no_clip": "nothing holds the ratio: one update may go as far as it likes",
    "clip_alone": "there is no min: where ρ is 3 and A negative, nothing pushes it back",
    "ratio_first": "the smaller ratio is taken, not the smaller product: for a negative A that is "
                   "the larger one",
    "max_for_min": "of both products the larger one is taken: a bad answer looks better than it is",
    "padding": "the mean goes over B·T: what comes after an answer's end counts as tokens",
    "mean_of_means": "it is a mean of the answers' means: a token of a short answer counts more"}


def objective(new, old, A, mask, clip=0.2, wrong=""):
    """(loss, its gradient by `new`), token by token."""
    gradient = np.zeros(new.shape)
    loss = 0.0
    for b, t in zip(*np.nonzero(mask), strict=True):
        gain, slope = one_token(new[b, t], old[b, t], A[b], clip, wrong)
        count = mask.sum()
        if wrong == "padding":
            count = mask.size
        if wrong == "mean_of_means":
            count = mask[b].sum() * np.count_nonzero(mask.any(1))
        sign = 1 if wrong == "sign" else -1
        loss += sign * gain / count
        gradient[b, t] = sign * slope / count
    return np.float64(loss), gradient


def check_loss(subject, agree, words, new, old, A, mask, clip=0.2):
    every = {name: objective(new, old, A, mask, clip, name) for name in ("", *LOSSES)}
    arrays = [torch.from_numpy(np.array(a)) for a in (new, old, A, mask)]
    for i, what in enumerate(("the loss", "its gradient by `new`")):
        if i:
            new_tensor = arrays[0].clone().requires_grad_()
            with raises("no_gradient", RuntimeError, "The loss must depend on `new`."):
                got = subject.grad("policy_loss", (new_tensor, *arrays[1:], clip),
                                   torch.ones((), dtype=torch.float64))[0]
        else:
            got = subject.policy_loss(*arrays, clip)
        agree(got, every[""][i], "float64", f"{what}, {words}",
              at=lambda at: f"answer {at[0]}, token {at[1]}" if at else "the value", mistakes={
                  name: (says, every[name][i]) for name, says in LOSSES.items()})


def rows(lengths, T):
    return np.arange(T) < np.array(lengths)[:, None]                # (B, T)


def test_policy_loss__first(subject, agree):
    """Nothing has changed since the answers were written: ρ is 1, and the gradient is -A/tokens."""
    new = np.log([[0.5, 0.25, 0.125], [0.1, 0.2, 0.7]])
    check_loss(subject, agree, "with old equal to new", new, new, np.array([1.5, -0.5]),
               rows([3, 2], 3))


def test_policy_loss(subject, agree):
    """Ratios below, inside and above the clip, with both signs of A; ragged ends; no tokens."""
    ratio = np.array([[0.5, 1.1, 3.0], [0.5, 1.1, 3.0], [9.0, 9.0, 9.0], [0.9, 0.5, 9.0]])
    old = np.log(np.array([[0.3, 0.2, 0.25]] * 4))
    A = np.array([2.0, -1.0, 5.0, -3.0])
    check_loss(subject, agree, "with ratios from 0.5 to 3", old + np.log(ratio), old, A,
               rows([3, 3, 0, 2], 3))


def test_policy_loss__unseen(subject, agree, rng):
    for B, T, clip in ((4, 14, 0.2), (1, 1, 0.1), (7, 31, 0.3)):
        old = -rng.exponential(2, (B, T))
        check_loss(subject, agree, f"{B} answers of up to {T} tokens, clip {clip}",
                   old + rng.normal(0, 0.5, (B, T)), old, rng.normal(0, 1, B),
                   rows([T, *rng.integers(0, T + 1, B - 1)], T), clip)


# ---- placing the roles


def test_predict_idle_share(subject):
    right = idle_share(split(60, 20, 8, 4, steps=1), 8)
    known = {"overlapped": (0.0, "both groups begin together, and one of them is done first"),
             "trainer_alone": (2 / 3, "that is the share of the 4 ranks that train; the others are "
                                      "never idle"),
             "by_turns": (1 / 4, "that is training's share of the time by turns; here both run at "
                                 "once, each on half of the ranks"),
             "of_a_whole_step": (1 / 2, "40 s of training are a third of the step of 120 s")}
    guess = subject.predict_idle_share()
    assert isinstance(guess, (int, float)), mistake(
        "no_number", f"predict_idle_share: expected a number, got {guess!r:.50}")
    name, why = next(((name, why) for name, (wrong, why) in known.items()
                      if abs(guess - wrong) < 0.005), ("", "count the seconds of all 8 ranks"))
    assert abs(guess - right) < 0.005, mistake(
        name, f"predict_idle_share: {guess!r:.20} is not right: {why}", why)


def test_predict_moved_share(subject):
    right = sum(len(rectangle(part("fsdp", (64, 8), q, 4), part("rows", (64, 8), r, 4))[0])
                for q in range(4) for r in range(4) if q != r) / 64
    known = {"as_columns": (0.75, "that is the share for a matrix that is served in bands of "
                                  "columns"),
             "gathered": (3.0, "no rank needs the whole matrix: that is what gathering it costs"),
             "all_of_it": (1.0, "compare what each rank has with what it needs")}
    guess = subject.predict_moved_share()
    assert isinstance(guess, (int, float)), mistake(
        "no_number", f"predict_moved_share: expected a number, got {guess!r:.50}")
    name, why = next(((name, why) for name, (wrong, why) in known.items()
                      if abs(guess - wrong) < 0.005),
                     ("", "the share is that of all numbers of the matrix"))
    assert guess == right, mistake(
        name, f"predict_moved_share: {guess!r:.20} is not right: {why}", why)


# ---- from one layout to another


def rectangle(one, other):
    """The rows and the columns that two places have in common, each a sorted list."""
    return [sorted(set(range(*a)) & set(range(*b))) for a, b in zip(one, other, strict=True)]


def plan_of(shape, source, target, W):
    """A plan, by the book."""
    plan = []
    for q in range(W):
        for r in range(W):
            lines = rectangle(part(source, shape, q, W), part(target, shape, r, W))
            if all(lines):
                plan.append((q, r, tuple((line[0], line[-1] + 1) for line in lines)))
    return plan


def inside(place, whole):
    return all(a[0] >= b[0] and a[1] <= b[1] for a, b in zip(place, whole, strict=True))


def read_plan(plan, words):
    """The plan as tuples; a message where it is none."""
    try:
        own = [(int(q), int(r), ((int(a), int(b)), (int(c), int(d))))
               for q, r, ((a, b), (c, d)) in plan]
    except (TypeError, ValueError):
        raise AssertionError(mistake("not_a_plan", (
            f"{words}: expected a list of (from rank, to rank, ((first row, end), (first column, "
            f"end))), got {plan!r:.80}"))) from None
    return own


def check_plan(subject, shape, source, target, W):
    words = f"{shape[0]} rows and {shape[1]} columns, {source} to {target}, {W} ranks"
    plan = read_plan(subject.reshard_plan(shape, source, target, W), words)
    for q, r, place in plan:
        text = f"{words}: rank {q} sends rows {place[0]}, columns {place[1]} to rank {r}"
        assert place[0][0] < place[0][1] and place[1][0] < place[1][1], mistake(
            "empty_pieces", f"{text}: a message of no numbers is a message, too", "empty")
        has = part(source, shape, q, W)
        assert 0 <= q < W and inside(place, has), mistake(
            "not_there", f"{text}, and has rows {has[0]}, columns {has[1]} alone")
        needs = part(target, shape, r, W)
        assert 0 <= r < W and inside(place, needs), mistake(
            "gathers", f"{text}, which needs rows {needs[0]}, columns {needs[1]} alone", "gathers")
    for r in range(W):
        (top, bottom), (left, right) = part(target, shape, r, W)
        paint = np.zeros((bottom - top, right - left), int)         # how often each number comes
        for _, receiver, (a, b) in plan:
            if receiver == r:
                paint[a[0] - top:a[1] - top, b[0] - left:b[1] - left] += 1
        for name, places, why in (
                ("twice", paint > 1, "comes from two ranks, or twice from one"),
                ("stale_slice", paint == 0, "comes from no rank: it stays as it was in the last "
                                            "step, and the model is a mixture")):
            i, j = np.argwhere(places)[0] + (top, left) if places.any() else (0, 0)
            assert not places.any(), mistake(
                name, f"{words}: row {i}, column {j} of rank {r} {why}", why)
    right = plan_of(shape, source, target, W)
    assert Counter(plan) == Counter(right), mistake("in_strips", (
        f"{words}: {len(plan)} pieces, expected {len(right)}: what goes from one rank to another "
        f"is one rectangle"))


@pytest.mark.parametrize("shape", [(12, 8), (96, 512), (10, 12), (7, 12), (3, 12)], ids=str)
def test_reshard_plan(subject, shape):
    for W in (2, 3, 4):
        for target in ("columns", "rows", "all"):
            check_plan(subject, shape, "fsdp", target, W)


@pytest.mark.parametrize("shape", [(5, 2), (2, 5)], ids=str)
def test_reshard_plan__few(subject, shape):
    """Fewer rows or columns than ranks, and layouts that stay as they are."""
    for source in ("fsdp", "columns", "rows"):
        for target in ("columns", "rows", "all"):
            check_plan(subject, shape, source, target, 4)


def test_reshard_plan__unseen(subject, rng):
    for _ in range(6):
        shape = tuple(rng.integers(1, 40, 2).tolist())
        source, target = rng.permutation(["columns", "rows"])
        check_plan(subject, shape, str(source), str(target), int(rng.integers(1, 6)))


# ---- over the wire


def case(rng, shape, source, target, W):
    """([(plan, own, here, there) of each rank], [what each has then])"""
    whole = torch.from_numpy(rng.integers(1, 1000, shape).astype(np.float32))
    plan = plan_of(shape, source, target, W)
    cut = [[part(layout, shape, r, W) for r in range(W)] for layout in (source, target)]
    parts = [[whole[slice(*rows), slice(*columns)].clone() for rows, columns in places]
             for places in cut]
    return [(plan, parts[0][r], cut[0][r], cut[1][r]) for r in range(W)], parts[1]


def check_moves(subject, agree, rng, W, kinds):
    cases = [case(rng, *kind, W) for kind in kinds]
    with named("view", "A piece of a matrix has gaps between its rows: what is sent, and what is "
               "received into, must be contiguous.", lambda error: "contiguous" in str(error)):
        run = subject.ranks(f"{DRIVER}:apply_cases", [
            ([arguments[r] for arguments, _ in cases],) for r in range(W)])
    for i, (kind, (arguments, want)) in enumerate(zip(kinds, cases, strict=True)):
        (N, K), source, target = kind
        plan = arguments[0][0]
        words = f"{N} rows and {K} columns, {source} to {target}, {W} ranks"
        one = run.during(f"case {i}")
        assert not one.collectives, mistake("gathers", (
            f"{words}: {one.collectives[0].name} is a message to everybody" if one.collectives
            else ""), "collective")
        pairs = Counter((m.sender, m.receiver, m.bytes) for m in one.messages)
        right = Counter((q, r, 4 * math.prod(b - a for a, b in place))
                        for q, r, place in plan if q != r)
        extra = next(iter(pairs - right), None)
        to_itself = extra is not None and extra[0] == extra[1]
        assert pairs == right, mistake("to_itself" if to_itself else "messages", (
            f"{words}: messages (from, to, bytes) {sorted(pairs.elements())}, expected "
            f"{sorted(right.elements())}"))
        for r in range(W):
            agree(run.results[r][i], want[r], what=f"{words}: the part of rank {r}", mistakes={
                "own_left_out": ("a rank's own piece is not copied",
                                 blank(plan, arguments[r][3], r, want[r])),
                "nothing_comes": ("what comes is not put in its place",
                                  want[r] - blank(plan, arguments[r][3], r, want[r]))})


def blank(plan, there, r, want):
    """What rank r has without its own piece."""
    (top, _), (left, _) = there
    got = want.clone()
    for q, receiver, (rows, columns) in plan:
        if q == receiver == r:
            got[rows[0] - top:rows[1] - top, columns[0] - left:columns[1] - left] = 0
    return got


@pytest.mark.parametrize("W", [2, 3])
def test_apply_plan(subject, agree, rng, W):
    check_moves(subject, agree, rng, W, [
        ((6 * W, 4 * W), "fsdp", "columns"), ((10, 12), "fsdp", "columns"),
        ((3, 12), "fsdp", "columns"), ((9, 7), "columns", "rows"), ((8, 5), "fsdp", "rows"),
        ((4, 5), "fsdp", "all")])
