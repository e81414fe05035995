"""Graders of g10.
Oracles are loops in float64."""

import numpy as np
import pytest
import torch

from lab.judge.mistakes import mistake, raises
from lab.judge.subject import Raised

# ---- the predictions


def check_guess(name, guess, right, why):
    """why: {a wrong guess: (id, sentence)}"""
    assert isinstance(guess, (int, float)), mistake(
        "no_number", f"{name}: a prediction is a number, got {guess!r}")
    near = [row for wrong, row in why.items() if abs(guess - wrong) < 1e-3]
    label, sentence = near[0] if near else ("other", "Count the bits of one group again.")
    assert abs(guess - right) <= 1e-3, mistake(
        label, f"{name}: predicted {guess:g}. {sentence}", sentence)


def test_predict_break_even(subject):
    """Counted on a row of 1,600 weights: the most of them whose bits are not more than all."""
    right = max(n for n in range(1601) if 16 * n + 1600 <= 16 * 1600) / 1600
    check_guess("predict_break_even", subject.predict_break_even(), right, {
        1: ("mask_is_free", "Then the mask takes nothing. It has one bit for each weight."),
        0.5: ("index_of_16", "So it is with a 16-bit index for each value that stays. A mask "
                             "takes one bit for each weight of the whole."),
        0.0625: ("mask_alone", "That is the mask's share of the bytes. How much room is left for "
                               "values?")})


def test_predict_2_4_bytes(subject):
    """Counted on a matrix of 16 rows of 64."""
    values, meta = packed(np.ones((16, 64)), np.arange(64) % 4 // 2 + np.zeros((16, 1)) == 0)
    right = (2 * values.size + meta.nbytes) / (2 * 16 * 64)
    check_guess("predict_2_4_bytes", subject.predict_2_4_bytes(), right, {
        0.5: ("no_places", "Those are the values. Nothing says where they stood."),
        0.625: ("places_of_4_bits", "A place is one of four: 2 bits tell it, and not 4."),
        0.53125: ("one_place", "Each of the two values has a place of its own."),
        1: ("zeros_stored", "So it is if the zeros are stored.")})


# ---- saliency


def removed(w, x):
    """The squared error of x wᵀ with one weight 0, weight by weight."""
    errors = np.empty(w.shape)
    for n, k in np.ndindex(w.shape):
        without = w[n].copy()
        without[k] = 0
        errors[n, k] = ((x @ without - x @ w[n]) ** 2).sum()
    return errors


@pytest.mark.parametrize("N, K, rows", [(5, 12, 40), (1, 1, 3), (3, 127, 9), (6, 6, 1)])
def test_saliency(subject, agree, rng, N, K, rows):
    w = rng.standard_normal((N, K)) + 1.5 * rng.integers(-1, 2, (N, K))
    x = rng.standard_normal((rows, K)) * np.geomspace(1, 100, K) + 1    # loud and silent inputs
    hessian = x.T @ x
    with raises("along_rows", RuntimeError, "Inputs are the columns of w: column k meets x[k]."):
        got = subject.saliency(torch.from_numpy(w), torch.from_numpy(hessian))
    agree(got, removed(w, x), "float64", f"saliency, w {w.shape}, {rows} rows x",
          lambda i: f"row {i[0]}, column {i[1]}", {
        "no_hessian": ("w² alone: a small weight on a loud input costs more than a large one on "
                       "a silent one", w**2),
        "not_squared": ("|w| stands where w² belongs: taking away twice the weight costs four "
                        "times as much", abs(w) * hessian.diagonal()),
        "halved": ("it is halved once too often: `hessian` is half the second derivative already",
                   w**2 * hessian.diagonal() / 2),
        "whole_rows": ("whole rows of the Hessian are added up: one weight is taken away, so only "
                       "its own number on the diagonal counts", w**2 * hessian.sum(1)),
        "along_rows": ("the diagonal goes down the rows of w: inputs are its columns",
                       w**2 * np.resize(hessian.diagonal(), N)[:, None])})


# ---- keep_2_4


def mask_of(score, wrong=None):
    """Group by group."""
    if wrong == "along_n":
        return mask_of(score.T).T
    keep = np.zeros(score.shape, bool)
    N, K = score.shape
    size = K if wrong == "half_of_row" else 4
    for n in range(N):
        for k in range(0, K, size):
            group = score[n, k:k + size]
            sign = 1 if wrong == "smallest" else -1
            late = -1 if wrong == "later_of_equals" else 1
            best = sorted(range(size), key=lambda i: (sign * group[i], late * i))[:size // 2]
            keep[n, k + np.array(best)] = True
            if wrong == "all_equals":
                keep[n, k:k + size] = group >= sorted(group)[-2]
    return keep


KEEPS = {
    "along_n": "groups go down the columns: of four neighbours of a row two stay, since those "
               "meet the same four numbers of x",
    "half_of_row": "the best half of each row stays, wherever it stands: expected two of each four",
    "smallest": "the two smallest stay: they cost least, and go first",
    "all_equals": "where scores are equal, 3 or 4 of a group stay",
    "later_of_equals": "of equal scores the later stays, expected the earlier",
}


@pytest.mark.parametrize("N, K, values", [(8, 12, 1000), (4, 64, 3), (1, 4, 2), (0, 8, 2),
                                          (3, 1000, 1000)])
def test_keep_2_4(subject, agree, rng, N, K, values):
    score = rng.integers(0, values, (N, K)) / 7                     # few values: many are equal
    got = subject.keep_2_4(torch.from_numpy(score))
    assert got.dtype == torch.bool, mistake(
        "not_bool", f"keep_2_4: the mask is {got.dtype}, expected torch.bool")
    agree(got, mask_of(score), "exact", f"keep_2_4 of {score.shape}",
          lambda i: f"row {i[0]}, column {i[1]}, in the group {score[i[0], i[1] // 4 * 4:][:4]}",
          {name: (why, mask_of(score, name)) for name, why in KEEPS.items()
           if name != "along_n" or N % 4 == 0})


# ---- pack_2_4


def packed(w, keep, wrong=None):
    """Group by group: (values, meta)."""
    N, K = w.shape
    values, meta = np.zeros((N, K // 2)), np.zeros((N, K // 8), np.uint8)
    for n in range(N):
        for group in range(K // 4):
            here = [4 * group + i for i in range(4) if keep[n, 4 * group + i]]
            if wrong == "by_score":
                here.sort(key=lambda k: -abs(w[n, k]))
            values[n, 2 * group:2 * group + 2] = w[n, here]
            first, second = (k % 4 for k in here)
            if wrong == "high_first":
                first, second = second, first
            half = 1 - group % 2 if wrong == "second_group_low" else group % 2
            meta[n, group // 2] |= (first | second << 2) << 4 * half
    return values, meta


PACKS = {
    "by_score": "the values of a group stand in the order of their size: their places must rise, "
                "or the instruction refuses them",
    "high_first": "the lower 2 bits of a group have the place of its second value",
    "second_group_low": "the lower 4 bits of a byte have the second of its two groups",
}


@pytest.mark.parametrize("N, K, dtype", [(5, 24, torch.float32), (3, 1000, torch.float16),
                                         (1, 8, torch.float64), (0, 8, torch.float32)])
def test_pack_2_4(subject, agree, rng, N, K, dtype):
    w = torch.from_numpy(rng.standard_normal((N, K))).to(dtype)
    keep = mask_of(rng.random((N, K)))
    values, meta = subject.pack_2_4(w, torch.from_numpy(keep))
    assert values.dtype == dtype and meta.dtype == torch.uint8, mistake(
        "other_types", f"pack_2_4: values are {values.dtype} and meta {meta.dtype}, expected "
        f"{dtype} and torch.uint8")
    right = packed(w.double().numpy(), keep)
    wrong = {name: (why, packed(w.double().numpy(), keep, name)) for name, why in PACKS.items()}
    for i, part in enumerate(("values", "meta")):
        agree((values, meta)[i], right[i], "exact", f"{part} of {(N, K)}",
              lambda at, i=i: f"row {at[0]}, " + (f"group {at[1] // 2}", f"byte {at[1]}")[i],
              {name: (why, both[i]) for name, (why, both) in wrong.items()})


# ---- page_bound


def bounds_of(q, low, high, wrong=None):
    """Page by page, head by head."""
    (H, _), (P, G, _) = q.shape, low.shape
    bounds = np.empty((P, H))
    for p, h in np.ndindex(P, H):
        g = h % G if wrong == "other_kv_head" else h // (H // G)
        a, b = q[h] * low[p, g], q[h] * high[p, g]
        bounds[p, h] = {
            "one_key": lambda a=a, b=b: max(a.sum(), b.sum()), "only_high": b.sum,
            "absolute": lambda a=a, b=b: np.maximum(abs(a), abs(b)).sum(),
        }.get(wrong, lambda a=a, b=b: np.maximum(a, b).sum())()
    return bounds


BOUNDS = {
    "one_key": "the better of q · low and q · high is taken: each number of q chooses its own end",
    "only_high": "q · high is below the true score where q is negative",
    "absolute": "|q| times the larger of |low| and |high|: that is a bound, but a loose one",
    "other_kv_head": "head h reads kv head h % G, expected h // R: heads of a group are neighbours",
}


@pytest.mark.parametrize("P, S, H, G, D", [(7, 16, 6, 2, 32), (20, 5, 4, 4, 8), (3, 1, 2, 1, 127),
                                           (1, 16, 4, 2, 16)])
def test_page_bound(subject, agree, rng, P, S, H, G, D):
    q, keys = rng.standard_normal((H, D)), rng.standard_normal((P, S, G, D)) - 0.5
    low, high = keys.min(1), keys.max(1)
    got = subject.page_bound(*(torch.from_numpy(x) for x in (q, low, high)))
    agree(got, bounds_of(q, low, high), "float64", f"page_bound, {P} pages, {H} heads on {G}",
          lambda i: f"page {i[0]}, head {i[1]}",
          {name: (why, bounds_of(q, low, high, name)) for name, why in BOUNDS.items()})


# ---- chosen_table


def chosen(bounds, table, N, S, budget, wrong=None):
    """(table, len), page by page."""
    P = len(table)
    best = bounds.mean(1) if wrong == "mean_head" else bounds.max(1)
    late = -1 if wrong == "later_of_equals" else 1
    others = P if wrong == "last_by_bound" else P - 1
    pages = sorted(range(others), key=lambda p: (-best[p], late * p))
    pages = pages[:budget - (wrong not in ("last_by_bound", "one_more"))]
    if wrong != "by_bound":
        pages.sort()
    pages += [P - 1] * (others < P)
    rest = {"full_last_page": S, "empty_last_page": N % S}.get(wrong, N - S * (P - 1))
    return table[pages], S * (len(pages) - 1) + rest


CHOICES = {
    "mean_head": "the mean over the heads decides: a page that one head needs is lost",
    "last_by_bound": "the last page is there only if its bound is large: the newest token must see "
                     "itself",
    "one_more": "`budget` pages and the last: the last counts, too",
    "by_bound": "pages stand in the order of their bounds, expected in the order they had",
    "later_of_equals": "of equal bounds the later page is taken, expected the earlier",
    "full_last_page": "the last page counts as full: its slots from N on hold nothing yet",
    "empty_last_page": "a last page that is full counts as empty: N % S is 0 there",
}


def check_choice(subject, agree, bounds, N, S, budget, rng):
    table = rng.permutation(100)[:len(bounds)].astype(np.int32)
    call = bounds, table, N, S, budget
    what = f"chosen_table of {len(table)} pages, {N} tokens, budget {budget}"
    got = subject.chosen_table(torch.from_numpy(bounds), torch.from_numpy(table), N, S, budget)
    assert isinstance(got, (tuple, list)) and len(got) == 2, mistake(
        "not_a_pair", "chosen_table: expected (table, len)")
    right = chosen(*call)
    wrong = {name: (why, chosen(*call, name)) for name, why in CHOICES.items()
             if name != "one_more"}
    names = list(table)
    assert len(got[0]) == len(right[0]), mistake(
        "one_more", f"{what}: {len(got[0])} pages, expected {len(right[0])}. {CHOICES['one_more']}",
        CHOICES["one_more"])
    agree(got[0], right[0], "exact", f"{what}: table", lambda i: f"entry {i[0]}, page number "
          f"{names.index(right[0][i[0]])} of the sequence",
          {name: (why, both[0]) for name, (why, both) in wrong.items()})
    why = "The dtype of `table` is lost: kernels expect int32."
    assert got[0].dtype == torch.int32, mistake(
        "not_int32", f"{what}: the table is {got[0].dtype}, expected torch.int32. {why}", why)
    agree(np.asarray(got[1]), np.asarray(right[1]), "exact", f"{what}: len", mistakes={
        name: (why, np.asarray(both[1])) for name, (why, both) in wrong.items()})


@pytest.mark.parametrize("N, budget", [(481, 8), (17, 1), (16, 1), (1, 4), (129, 9), (129, 100),
                                       (1000, 2)])
def test_chosen_table(subject, agree, rng, N, budget):
    bounds = rng.standard_normal((-(-N // 16), 6))
    bounds[-1] -= 9                                             # the last page is quiet
    bounds[:, 0] = 3 * rng.permutation(len(bounds)) + 1         # head 0 is loud
    bounds[:, 1:] -= bounds[:, :1]                              # the others want the opposite
    check_choice(subject, agree, bounds, N, 16, budget, rng)


def test_chosen_table__equal_bounds(subject, agree, rng):
    check_choice(subject, agree, rng.integers(0, 3, (21, 4)) * 1.0, 163, 8, 6, rng)


# ---- the course's own


@pytest.mark.parametrize("call, says", [
    (lambda s: s.keep_2_4(torch.ones(2, 90)), "rows of 90 numbers, expected a multiple of 4"),
    (lambda s: s.pack_2_4(torch.ones(4, 24), torch.arange(96).view(4, 24) % 4 < 2 + (
        torch.arange(96).view(4, 24) == 94)), "row 3, group 5 keeps 3 of 4, expected 2"),
    (lambda s: s.pack_2_4(torch.ones(4, 12), torch.ones(4, 12).bool()), "rows of 12 numbers"),
    (lambda s: s.saliency(torch.ones(4, 96), torch.ones(64, 64)), "a Hessian of (64, 64) for rows"),
    (lambda s: s.chosen_table(torch.ones(3, 2), torch.arange(3).int(), 40, 16, 0), "budget 0"),
    (lambda s: s.sparse_mma(torch.ones(3, 64).half(), torch.ones(5, 30).half(),
                            torch.ones(5, 8).byte()), "expected K, a multiple of 32, and K / 2"),
    (lambda s: s.dense_mma(torch.ones(3, 64), torch.ones(5, 64)), "expected float16"),
    (lambda s: s.sparse_mma(torch.ones(3, 64).half(), torch.ones(5, 32).half(),
                            torch.ones(5, 4).byte()), "meta is torch.uint8 of (5, 4)")])
def test_what_is_refused(subject, call, says):
    with pytest.raises(Raised) as refusal:
        call(subject)
    assert says in refusal.value.text


def half_empty(rng, N, K):
    from layer2_graph import keep_2_4, pack_2_4

    w = torch.from_numpy(rng.standard_normal((N, K))).half()
    keep = keep_2_4(w.abs())
    return w * keep, pack_2_4(w, keep)


@pytest.mark.parametrize("T, N, K", [(1, 1, 32), (9, 17, 64), (8, 192, 64), (127, 129, 96),
                                     (3, 16, 992), (0, 5, 32), (5, 0, 32)])
def test_sparse_mma(rng, T, N, K):
    from lab import device, simulator
    from layer2_graph import dense_mma, sparse_mma, unpack_2_4

    w, (values, meta) = half_empty(rng, N, K)
    assert torch.equal(unpack_2_4(values, meta), w)
    x = torch.from_numpy(rng.standard_normal((T, K))).half()
    device.use_simulator()
    with simulator.trace() as trace:
        results = sparse_mma(x, values, meta), dense_mma(x, w)
    for y in results:
        assert y.shape == (T, N)
        assert torch.allclose(y.double(), x.double() @ w.double().T, rtol=2e-5, atol=1e-4)
    if T and N:
        sparse, dense = trace.launches
        assert 2 * sparse.flops == dense.flops


def test_chosen_pages_are_those_of_the_oracle(rng):
    """Shuffled pages, the last part empty and poisoned, 6 heads on 2."""
    from layer1_kernels import kernels
    from layer2_graph import ChosenPages, Config
    from layer2_graph.g01_llama import Batch

    H, G, D, S, N, budget, scale = 6, 2, 32, 16, 487, 8, 0.2
    P = -(-N // S)
    cache = ChosenPages(Config(L=1, C=32, H=H, G=G, D=D, F=8, V=9, eps=1e-5, theta=1e4, room=512,
                               tied=True), 1, 512)
    cache.budget = budget
    q, k, v, keys, values = (torch.from_numpy(rng.standard_normal((n, heads, D))).float()
                             for n, heads in ((1, H), (1, G), (1, G), (N, G), (N, G)))
    table = torch.from_numpy(rng.permutation(32)[:P]).int()
    slots = table.long().repeat_interleave(S) * S + torch.arange(P * S) % S
    for pages, numbers, new in ((cache.k, keys, k), (cache.v, values, v)):
        pages.fill_(1e4)                            # what unwritten slots hold
        pages[0].flatten(0, 1)[slots[:N]] = numbers
        numbers[-1] = new
    batch = Batch(torch.tensor([0]), torch.tensor([N - 1]), slots[N - 1:N], table[None],
                  torch.tensor([0, 1]).int(), torch.tensor([N]).int())
    got = cache.attend(0, q, k, v, batch, kernels("torch"), scale)[0]
    whole = [keys[S * p:S * (p + 1)].numpy() for p in range(P)]
    bounds = bounds_of(q[0].numpy(), np.stack([p.min(0) for p in whole]),
                       np.stack([p.max(0) for p in whole]))
    pages, count = chosen(bounds, np.arange(P), N, S, budget)
    tokens = np.concatenate([np.arange(S * p, S * (p + 1)) for p in pages])[:count]
    for h in range(H):
        scores = keys[tokens, h // 3].double() @ q[0, h].double() * scale
        want = scores.softmax(0) @ values[tokens, h // 3].double()
        assert torch.allclose(got[h].double(), want, atol=1e-6), h


@pytest.mark.parametrize("budget, step, equal", [
    (8, [[7], [8]], True), (1, [[7], [8]], False), (1, [[7, 8], []], True)])
def test_a_budget_of_all_pages_changes_nothing(budget, step, equal):
    """Nor does a small one in a step that is no decode step, though it has a token a sequence."""
    from layer2_graph import ChosenPages, PagedCache, load
    from layer2_graph.models import SMALL

    model = load(SMALL, dtype=torch.float32)
    results = []
    for kind in (PagedCache, ChosenPages):
        cache = kind(model.config, 2, 128)
        cache.budget = budget
        model.forward(cache.step([list(range(5, 105)), list(range(40, 60))]), cache)
        results.append(model.forward(cache.step(step), cache, every=True))
    assert torch.equal(*results) == equal


@pytest.mark.gpu
@pytest.mark.parametrize("T, N, K", [(1, 1, 32), (127, 129, 96), (64, 1000, 992)])
def test_sparse_mma_on_the_device(rng, T, N, K):
    from layer2_graph import dense_mma, sparse_mma

    w, packed_w = half_empty(rng, N, K)
    x = torch.from_numpy(rng.standard_normal((T, K))).half()
    for y in (sparse_mma(*(a.cuda() for a in (x, *packed_w))), dense_mma(x.cuda(), w.cuda())):
        assert torch.allclose(y.cpu().double(), x.double() @ w.double().T, rtol=2e-5, atol=1e-3)
