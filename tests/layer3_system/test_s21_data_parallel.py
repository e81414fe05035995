"""Graders of s21.
Gradients are whole numbers, so that sums over ranks are exact in any order."""

import numpy as np
import pytest
import torch

from day02_overview import MIXED, sent_by, state_bytes
from lab.judge.compare import lists
from lab.judge.mistakes import mistake, raises
from layer3_system.testing.training_models import Net
from layer3_system.testing.training_stages import LIMIT, LR

DRIVER = "layer3_system.testing.training_driver"
SHAPES = ((7, 7), (7, 7), (5, 7), (5, 5))
SIZES = [49, 49, 35, 25]
LENS = (5, 9, 2, 7, 3, 6)       # tokens of each sequence


def test_predict_stage_bytes(subject):
    n = 8
    right = {stage: state_bytes(n, n, stage) / n for stage in (1, 2, 3)}
    weights, gradients, optimiser = MIXED.values()
    known = {
        "all_at_once": ("all three parts are in shards already at stage 1", dict.fromkeys(
            right, 16 / n)),
        "gradients_first": ("stage 1 shards the gradients, and the largest part comes later",
                            right | {1: weights + optimiser + gradients / n}),
        "own_shard_forgotten": ("a part in shards is counted as nothing: each rank keeps 1/8 of it",
                                {1: weights + gradients, 2: weights, 3: 0}),
    }
    guess = subject.predict_stage_bytes()
    name, why = next(((name, f". This is what comes out when {why}") for name, (why, wrong)
                      in known.items() if guess == wrong), ("", ""))
    assert guess == right, mistake(
        name, f"predict_stage_bytes: {guess} is not right{why}", why)


def test_predict_dearer_stage(subject):
    size, n = 16e9, 8
    half = sent_by("all_gather", size, n)
    scatter = sent_by("reduce_scatter", size, n)
    sent = {"1": scatter + half, "2": scatter + half, "3": scatter + 2 * half}
    plain = sent_by("all_reduce", size, n)
    right = next((stage for stage in sent if sent[stage] > plain), "none")
    why = {"1": "stage 1 adds an all-gather, but a reduce-scatter is half of the all-reduce that "
                "was there",
           "2": "stage 2 sends what stage 1 sends: it only drops gradients after that",
           "none": "one stage gathers all weights twice in a step"}
    guess = str(subject.predict_dearer_stage())
    name = {"1": "gather_added", "2": "dropping_sends", "none": "gathers_once"}.get(guess, "")
    sentence = why.get(guess, 'expected "1", "2", "3" or "none"')
    assert guess == right, mistake(
        name, f"predict_dearer_stage: {guess!r} is not right: {sentence}", sentence)


# ---- buckets


def buckets(order, sizes, capacity, over=False):
    """Parameters in buckets, in some order. over: a bucket ends after what exceeds it"""
    rows = []
    for i in order:
        held = sum(sizes[j] for j in rows[-1]) if rows else 0
        fits = rows and (held <= capacity if over else held + sizes[i] <= capacity)
        if not fits:
            rows.append([])
        rows[-1].append(i)
    return rows


def check_buckets(subject, sizes, capacity):
    order = range(len(sizes))
    right = buckets(order[::-1], sizes, capacity)
    known = {
        "first_to_last": ("the first parameters come first, whose gradients are complete only when "
                          "backward is over: nothing overlaps", buckets(order, sizes, capacity)),
        "last_dropped": ("the bucket that is open at the end is left out", right[:-1]),
        "over_capacity": ("a bucket ends only after it has exceeded its capacity",
                          buckets(order[::-1], sizes, capacity, over=True)),
        "one_each": ("every parameter has a bucket of its own", [[i] for i in order[::-1]]),
    }
    got = lists(subject.fill_buckets(list(sizes), capacity))
    name, why = next(((name, f". This is what comes out when {why}") for name, (why, wrong)
                      in known.items() if got == wrong), ("", ""))
    assert got == right, mistake(
        name, f"sizes {list(sizes)}, capacity {capacity}: got {got}, expected {right}{why}", why)


@pytest.mark.parametrize("sizes, capacity", [
    ([10, 30, 5, 10, 10], 25), (SIZES, 60), ([7], 1), ([1, 1, 1], 3), ([4, 4, 9, 2], 8), ([], 5)])
def test_fill_buckets(subject, sizes, capacity):
    check_buckets(subject, sizes, capacity)


def test_fill_buckets__unseen(subject, rng):
    for _ in range(5):
        check_buckets(subject, rng.integers(1, 200, 12).tolist(), int(rng.integers(1, 500)))


def draw(rng, n, steps=1):
    """Gradients of each rank: [rank][step][parameter], whole numbers from 1 to 9."""
    return [[[torch.from_numpy(rng.integers(1, 10, shape).astype(np.float32)) for shape in SHAPES]
             for _ in range(steps)] for _ in range(n)]


def total(own, orders, step, i):
    """The sum of gradient i over the ranks that have it."""
    return sum((own[r][step][i] for r in range(len(own)) if i in orders[r][step]),
               torch.zeros(SHAPES[i]))


def check_launches(run, orders, capacity, want):
    """AssertionError unless each rank launches `want` buckets at each gradient of step 0."""
    count = len(buckets(range(4)[::-1], SIZES, capacity))
    for r, (order, *_) in enumerate(orders):
        labels = [c.label for c in run.collectives if c.rank == r]
        assert len(labels) == count, mistake(
            "one_by_one", f"rank {r} begins {len(labels)} all-reduces in a step, expected "
            f"{count}, one a bucket: what is not full yet waits")
        got = [labels.count(f"step 0, gradient {k}") for k in range(len(order))]
        text = (f"rank {r} gets gradients {order} in turn and launches {got} buckets at them, "
                f"expected {want}")
        assert any(got), mistake("all_at_end", f"{text}: nothing is sent before `finish`, so "
                                 f"nothing overlaps with backward")
        early = np.cumsum(got) > np.cumsum(want)
        assert not early.any(), mistake(
            "any_order", f"{text}: a full bucket waits for those before it, since all ranks launch "
            f"bucket 0 first, then 1, and so on")
        assert got == want, mistake("one_a_call", f"{text}: two buckets may be waiting for the "
                                    f"same gradient")
        assert not run.results[r][0]["waited"], mistake(
            "waits_at_once", f"rank {r} waits for a sum while backward still has gradients to "
            f"compute: waiting belongs into `finish`")


@pytest.mark.parametrize("n, capacity, order, want", [
    (2, 60, [3, 2, 1, 0], [0, 1, 1, 1]), (3, 49, [2, 3, 1, 0], [0, 2, 1, 1])])
def test_Buckets_ready(subject, rng, agree, n, capacity, order, want):
    own = draw(rng, n)
    orders = [[order]] * n
    run = subject.ranks(f"{DRIVER}:backward", [(own[r], orders[r], capacity) for r in range(n)],
                        finish=False)
    check_launches(run, orders, capacity, want)
    for r in range(n):
        for i in range(4):
            agree(run.results[r][0]["gradients"][i], total(own, orders, 0, i),
                  what=f"n = {n}: the sum of gradient {i} on rank {r}")


def test_Buckets_ready__order(subject, rng, agree):
    """Rank 1 skips layer 1. Its bucket of layer 0 is as large as that of layer 1 on the others."""
    own = draw(rng, 3)
    orders = [[[3, 2, 1, 0]], [[3, 2, 0]], [[3, 2, 1, 0]]]
    run = subject.ranks(f"{DRIVER}:backward", [(own[r], orders[r], 49) for r in range(3)],
                        finish=False)
    mixed = own[0][0][1] + own[2][0][1] + own[1][0][0]
    agree(run.results[0][0]["gradients"][1], total(own, orders, 0, 1),
          what="the sum of gradient 1 on rank 0, where rank 1 has none", mistakes={"any_order": (
              "rank 1 launches its bucket 3 before its bucket 2, and it is added to bucket 2 of "
              "the others: a full bucket waits for those before it", mixed)})


def finished(subject, own, orders, capacity=60):
    with raises("no_zeros", ValueError, "The other ranks have a gradient there, and wait for the "
                "sum: a rank that has none sends zeros."):
        return subject.ranks(f"{DRIVER}:backward", [
            (own[r], orders[r], capacity) for r in range(len(own))])


def test_Buckets_finish(subject, rng, agree):
    """Two steps on two ranks."""
    own = draw(rng, 2, steps=2)
    orders = [[[3, 2, 1, 0]] * 2] * 2
    run = finished(subject, own, orders)
    for step in (0, 1):
        for r in (0, 1):
            for i in range(4):
                local = own[r][step][i]
                want = total(own, orders, step, i)
                agree(run.results[r][step]["gradients"][i], want,
                      what=f"step {step}: gradient {i} on rank {r}", mistakes={
                    "average": ("the sum is divided by the number of ranks: the loss was divided "
                                "by the tokens of all ranks already", want / 2),
                    "accumulates": ("the sum is added to the rank's own gradient, which is in it "
                                    "already", local + want),
                    "own_alone": ("the sum is not written back", local)} | ({} if not step else {
                    "stale": ("the second step writes the sums of the first: `start` makes the "
                              "buckets ready for it", total(own, orders, 0, i))}))


def test_Buckets_finish__without_gradients(subject, rng, agree):
    """Rank 1 skips layers 1 and 3. Of three sequences rank 3 has none."""
    own = draw(rng, 4)
    orders = [[[3, 2, 1, 0]], [[2, 0]], [[3, 2, 1, 0]], [[]]]
    run = finished(subject, own, orders)
    for r in range(4):
        for i in range(4):
            agree(run.results[r][0]["gradients"][i], total(own, orders, 0, i),
                  what=f"gradient {i} on rank {r}, where rank 1 has two gradients and rank 3 none")


# ---- whole training: three steps, as one process does them in float64


def problem(rng):
    """(weights, [batch] of each sequence) of a Net."""
    weights = [torch.from_numpy(rng.standard_normal(shape) / 3).float() for shape in SHAPES]
    sequences = [[tuple(torch.from_numpy(rng.standard_normal((T, C))).float() for C in (7, 5))
                  for _ in range(3)] for T in LENS]
    return weights, sequences


def joined(sequences, step):
    return tuple(torch.cat([one[step][k] for one in sequences]) for k in (0, 1))


def adam(weights, gradients, lr, limit):
    """(norms, weights after each step), float64, by the book; gradients: {step: of the whole}"""
    w = weights.copy()
    mean = np.zeros_like(w)
    variance = np.zeros_like(w)
    norms, after = [], []
    for t, gradient in enumerate(gradients, 1):
        g = gradient(w) if callable(gradient) else gradient
        norms.append(np.linalg.norm(g))
        g = g * min(1, limit / norms[-1])
        mean = 0.9 * mean + 0.1 * g
        variance = 0.999 * variance + 0.001 * g * g
        w = w - lr * mean / (1 - 0.9 ** t) / (np.sqrt(variance / (1 - 0.999 ** t)) + 1e-8)
        after.append(w)
    return norms, after


def alone(weights, sequences):
    """(losses, norms, weights at the end) of one process that has the whole batch."""
    losses = []

    def gradient_of(batch):
        def gradient(w):
            parts = torch.from_numpy(w).split(SIZES)
            net = Net([part.view(shape) for part, shape in zip(parts, SHAPES, strict=True)])
            loss = net(tuple(one.double() for one in batch)) / len(batch[0])
            loss.backward()
            losses.append(loss.item())
            return np.concatenate([p.grad.numpy().ravel() for p in net.parameters()])
        return gradient

    norms, after = adam(np.concatenate([w.double().numpy().ravel() for w in weights]),
                        [gradient_of(joined(sequences, step)) for step in range(3)], LR, LIMIT)
    return losses, norms, after[-1]


def check_training(subject, rng, agree, stage, n):
    """The run of n ranks, which train as one process does."""
    weights, sequences = problem(rng)
    batches = [[joined(sequences[r::n], step) for step in range(3)] for r in range(n)]
    run = subject.ranks(f"{DRIVER}:train_net", [(stage, weights, batches[r]) for r in range(n)])
    losses, norms, after = alone(weights, sequences)
    for r in range(n):
        own = run.results[r]
        agree(own["losses"], losses, "float32", f"losses of three steps of training on rank {r}")
        agree(own["norms"], norms, "float32", f"norms of the gradient in training on rank {r}")
        agree(own["weights"], after, "float32", f"weights after three steps of training, rank {r}")
    return run


def test_Buckets_finish__training(subject, rng, agree):
    check_training(subject, rng, agree, stage=0, n=3)


def padded(values, n):
    return np.concatenate([values, np.zeros(-len(values) % n)])


@pytest.mark.parametrize("n, P", [(3, 10), (2, 1000)])
def test_zero_step(subject, rng, agree, n, P):
    limit, lr = 2.0, 0.1
    weights = torch.from_numpy(rng.standard_normal(P)).float()
    own = [[torch.from_numpy(rng.integers(1, 9, P) * scale).float() for scale in (1.0, 0.25)]
           for _ in range(n)]
    with raises("update_all", ValueError, "A rank updates its shard alone, with its piece of the "
                "summed gradient."):
        run = subject.ranks(f"{DRIVER}:zero_steps", [(weights, own[r], lr, limit)
                                                     for r in range(n)])
    sums = [sum(own[r][step].double().numpy() for r in range(n)) for step in (0, 1)]
    start = weights.double().numpy()
    norms, after = adam(start, sums, lr, limit)
    pieces = [np.split(padded(g, n), n) for g in sums]
    roots = [[np.linalg.norm(piece) for piece in rows] for rows in pieces]
    for r in range(n):
        agree(run.results[r]["norms"], norms, "float32",
              f"n = {n}: norms of the gradient on rank {r}", mistakes={
            "local_norm": ("a rank takes the norm of its own shard, so each scales differently",
                           [row[r] for row in roots]),
            "norm_of_norms": ("the norms of the shards are added, and not their squares",
                              [sum(row) for row in roots]),
            "no_root": ("the sum of squares is returned", np.square(norms))})
        for step in (0, 1):
            before = padded(after[step - 1] if step else start, n)
            here = padded(after[step], n)
            k = len(here) // n
            mine = np.where(np.arange(len(here)) // k == r, here, padded(start, n))
            agree(run.results[r]["weights"][step], here, "float32",
                  f"n = {n}: weights on rank {r} after step {step}", mistakes={
                "no_gather": ("a rank updates its shard and never gets those of the others", mine),
                "not_clipped": ("the gradient is not clipped",
                                padded(adam(start, sums, lr, np.inf)[1][step], n)),
                "no_update": ("the weights stay as they are", before)})
    check_bytes(run.during("step 1"), n, padded(start, n))


def check_bytes(run, n, flat):
    """AssertionError unless a step of ZeRO sends what one reduce-scatter, one all-gather and an
    all-reduce of one number do."""
    size = 4 * len(flat)
    want = sum(sent_by(name, size, n) for name in ("reduce_scatter", "all_gather"))
    got = run.sent(0)
    names = [c.name for c in run.collectives if c.rank == 0]
    assert want < got <= want + 8, mistake(
        "all_reduced", f"zero_step: rank 0 sends {got} bytes in {', '.join(names)}, expected "
        f"{want:.0f} and one number for the norm: a reduce-scatter of the gradient gives each rank "
        f"its piece")


def test_zero_step__training(subject, rng, agree):
    check_training(subject, rng, agree, stage=1, n=3)


@pytest.mark.parametrize("n, shape", [(3, (5, 7)), (2, (4, 6)), (4, (1, 3))])
def test_GatherWeight_backward(subject, rng, agree, n, shape):
    weight = torch.from_numpy(rng.standard_normal(shape)).float()
    own = [torch.from_numpy(rng.integers(1, 10, shape[::-1]).astype(np.float32)).T
           for _ in range(n)]
    run = subject.ranks(f"{DRIVER}:sharded_gradient", [(weight, own[r]) for r in range(n)])
    rows = [np.split(padded(one.numpy().ravel(), n), n) for one in own]
    for r in range(n):
        want = sum(one[r] for one in rows)
        agree(run.results[r], want, what=f"n = {n}, weight {shape}: rank {r}'s shard of the "
              f"gradient", mistakes={
            "no_scatter": ("a rank keeps its piece of its own gradient: the tokens of the other "
                           "ranks are missing", rows[r][r]),
            "average": ("the sum is divided by the number of ranks", want / n),
            "first_piece": ("every rank keeps piece 0 of the sum", sum(one[0] for one in rows))})
    backward = run.during("backward")
    count = len(padded(weight.numpy().ravel(), n))
    got = backward.sent(0)
    assert got == sent_by("reduce_scatter", 4 * count, n), mistake(
        "all_reduced", f"backward: rank 0 sends {got} bytes, expected {count * 4 * (n - 1) // n}, "
        f"those of a reduce-scatter: no rank needs the sum of more than its piece")


def test_GatherWeight_backward__training(subject, rng, agree):
    run = check_training(subject, rng, agree, stage=3, n=3).during("step")
    names = [c.name for c in run.collectives if c.rank == 0]
    counts = [names.count(name) // 3 for name in ("all_gather", "reduce_scatter")]
    assert counts == [8, 4], (f"a step of 4 layers has {counts[0]} all-gathers and {counts[1]} "
                              f"reduce-scatters, expected 8 and 4")
