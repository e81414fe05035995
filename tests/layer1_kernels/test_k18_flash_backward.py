"""Graders of k18.
Outputs start as 7, which no gradient of normal numbers is likely to be."""

from dataclasses import replace

import numpy as np
import pytest

from lab.judge.mistakes import mistake
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work
from tests.layer1_kernels.matmul_cases import tf32
from tests.layer1_kernels.oracle_k18_flash_backward import (
    BM,
    BN,
    LOG2E,
    TF32,
    Book,
    Case,
    D,
    apart,
    at_pair,
    inputs,
    plain,
    tensor_flops,
    tile_answers,
    visited,
)

SIZES = [   # B, T, N, H, G, D, causal, dtype, BM, BN
    (1, 17, 35, 4, 2, 16, True, "float32", 16, 16),     # ragged, grouped heads, T < N
    (2, 20, 37, 2, 2, 48, False, "float16", 16, 16),    # heads padded from 48 to 64
    (1, 33, 33, 2, 1, 16, True, "float16", 32, 16),
    (1, 16, 16, 1, 1, 32, True, "bfloat16", 16, 16),
    (1, 1, 40, 4, 1, 16, True, "float32", 16, 16)]


# ---- the prediction


def test_predict_products(subject, reference, rng):
    """Both passes are counted, as the course's own kernels make them; forward by k13's formula."""
    got = subject.predict_products()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_products: expected a number, got {got!r}")
    case = Case(rng, (1, 32, 32, 1, 1, 16, True, "float16", 16, 16))
    made = sum(tensor_flops(case.run(reference, which)[1]) for which in ("keys", "queries"))
    want = made / (2 * 2 * 16 * 16 * 16 * visited(32, 32, 16, 16))
    why = {2.5: ("one_loop", "five products are enough for one loop, which cannot keep both kinds "
                             "of sums; of two passes each needs S and dP for itself"),
           2: ("two_gradients", "twice as many would be four products: S, dP, dv, dk and dq are "
                                "five, even in a single loop"),
           1.5: ("stored", "that takes S and dP for stored, and they are what is recomputed: by "
                           "each pass"),
           4: ("twice_in_keys", "dk and dv are made in one pass, from one S and one dP")}
    name, sentence = next((row for value, row in why.items() if abs(got - value) < 0.01),
                          ("other", "list the products of each pass, and divide by two"))
    assert abs(got - want) < 0.01, mistake(
        name, f"predict_products: {got:g} is not what is counted: {sentence}", sentence)


# ---- delta


@pytest.mark.parametrize("rows, D, dtype", [(35, 48, "float32"), (16, 16, "bfloat16"),
                                            (129, 80, "float16"), (1, 128, "float32")])
def test_delta_triton(subject, agree, rng, rows, D, dtype):
    import torch

    out, grad_out, grad_lse, delta = delta_operands(rng, rows, D, dtype)
    run_delta(subject, out, grad_out, grad_lse, delta)
    products = plain(out) * plain(grad_out)
    lost = (out * grad_out).double().numpy() if dtype != "float32" else products
    want = products.sum(-1) - plain(grad_lse)
    agree(delta, want, "float32", f"delta_triton, {rows} rows of {D}, {dtype}",
          lambda i: f"row {i[0]}", {
              "lse_left_out": ("grad_lse is left out: lse has a gradient too, and it comes off",
                               products.sum(-1)),
              "lse_added": ("grad_lse is added, and it comes off",
                            products.sum(-1) + plain(grad_lse)),
              "squares": ("out is multiplied by itself, and not by grad_out",
                          (plain(out) ** 2).sum(-1) - plain(grad_lse)),
              "mean": ("the products are averaged, and not added up",
                       products.mean(-1) - plain(grad_lse)),
              "short_products": ("the products are rounded to 16 bits before they are added: load "
                                 "as fp32", lost.sum(-1) - plain(grad_lse))}, unwritten=7)
    assert torch.isfinite(delta).all(), "delta: some of it is infinite or not a number"


def delta_operands(rng, rows, D, dtype):
    import torch

    out, grad_out = (torch.from_numpy(rng.standard_normal((rows, D), np.float32)).to(
        getattr(torch, dtype)) for _ in range(2))
    grad_lse = torch.from_numpy(rng.standard_normal(rows, np.float32))
    return out, grad_out, grad_lse, torch.full((rows,), 7.0)


def run_delta(subject, out, *operands):
    rows, D = out.shape
    return subject.launch("delta_triton", -(-rows // 16), args=(out, *operands, rows, D),
                          BD=1 << (D - 1).bit_length(), BLOCK=16, num_warps=1)


def test_delta_triton__work(subject, reference, rng):
    operands = delta_operands(rng, 64, 64, "float16")
    same_work("delta_triton", *(run_delta(side, *operands) for side in (subject, reference)))


# ---- one tile


def run_tile(subject, q, k, v, grad_out, lse, delta, scale, turned):
    """([weights, grad_scores], launch), queries first whichever was on the left."""
    import torch

    T = len(q)
    results = [torch.full((BN, T) if turned else (T, BN), 7.0) for _ in range(2)]
    rows = (torch.from_numpy(x.astype(np.float32)) for x in (lse, delta))
    launch = subject.launch("one_tile_triton", 1, args=(
        q, k, v, grad_out, *rows, *results, scale, T, len(k)), TURNED=turned, D=D, BM=BM, BN=BN,
        num_warps=1)
    return [r.T.clone() if turned else r for r in results], launch


@pytest.mark.parametrize("T, N, dtype, turned", [
    (16, 29, "float32", False), (13, 31, "float32", True), (16, 17, "float16", False),
    (9, 27, "float16", True)])
def test_gradient_tile_triton(subject, agree, rng, T, N, dtype, turned):
    """The first N of N + 9 keys, so that lse and delta know of more keys than the tile."""
    scale = 0.3
    whole = inputs(rng, 1, T, N + 9, 1, 1, D, dtype)
    book = Book(*whole, False, scale)
    lse, delta = book.lse[0, :, 0], book.delta[0, :, 0]                         # (T,)
    q, k, v, grad_out = (x[0, :, 0].clone() for x in whole[:4])
    k, v = k[:N].clone(), v[:N].clone()
    results, _ = run_tile(subject, q, k, v, grad_out, lse, delta, scale, turned)
    want, mistakes = tile_answers(*map(plain, (q, k, v, grad_out)), lse, delta, scale, dtype)
    what = f"gradient_tile_triton, {T} queries and {N} of {N + 9} keys, {dtype}" + (
        ", keys on the left" if turned else ", queries on the left")
    for part, name in enumerate(("weights", "grad_scores")):
        agree(results[part], want[part], "float32", f"{what}: {name}", at_pair, {
            key: (sentence, wrong[part]) for key, (sentence, wrong) in mistakes.items()},
            unwritten=7)


def test_gradient_tile_triton__mask(subject, agree, rng):
    """Keys that are not there, where lse is very low: exp2(0 - lse) is infinite."""
    T, N = 5, 20
    q, k, v, grad_out = (x[0, :, 0].clone() for x in inputs(rng, 1, T, N, 1, 1, D)[:4])
    q, k = 5 * abs(q) + 5, -5 * abs(k) - 5
    lse = np.log(np.exp(plain(q) @ plain(k).T * 0.25 + 400).sum(1)) - 400
    results, _ = run_tile(subject, q, k, v, grad_out, lse, 0 * lse, 0.25, False)
    (weights, _), _ = tile_answers(*map(plain, (q, k, v, grad_out)), lse, 0 * lse, 0.25, "")
    sentence = ("a key that is not there has a score of 0, and exp2(0 - lse) may be infinite, and "
                "infinity times 0 is no number: select with tl.where")
    agree(results[0], weights, "float16", f"gradient_tile_triton, lse near {lse[0]:.0f}: weights",
          at_pair, {"masked_by_product": (sentence, np.where(np.arange(BN) < N, weights, np.nan))})


def test_gradient_tile_triton__low_scores(subject, agree):
    """Scores that are powers of two, exact: that of key 0 times scale is lse, others are lower."""
    import torch

    T, N = 5, 20
    q, v = torch.full((T, D), 2.0**14), torch.ones(N, D)
    k = torch.full((N, D), -2.0**15)
    k[0] = -2.0**14
    lse = np.full(T, -D * 2.0**28 / 4)
    results, _ = run_tile(subject, q, k, v, torch.ones(T, D), lse, 0 * lse, 0.25, False)
    n = np.arange(BN) + np.zeros((T, 1))
    agree(results[0], (n == 0).astype(float), "float32",
          f"gradient_tile_triton, lse = {lse[0]:.3g}: weights", at_pair, {"low_mask": (
              "a key that is not there has a finite score, such as -1e4: others may be lower still",
              np.where(n < N, n == 0, np.inf))})


def test_gradient_tile_triton__work(subject, reference, rng):
    """Two products of a tile, on tensor cores."""
    q, k, v, grad_out = (x[0, :, 0].clone() for x in inputs(rng, 1, BN, BN, 1, 1, D, "float16")[:4])
    rows = np.zeros(BM)
    launches = [run_tile(side, q[:BM].clone(), k, v, grad_out[:BM].clone(), rows, rows, 0.25,
                         False)[1] for side in (subject, reference)]
    made = tensor_flops(launches[0]) / (2 * BM * BN * D)
    sentence = "scores and gradients of weights are a product each, of tiles as they are loaded"
    assert made == 2, mistake("other_products", (
        f"gradient_tile_triton makes {made:g} products of an fp16 tile on tensor cores, expected "
        f"2: {sentence}"), sentence)
    same_work("gradient_tile_triton", *launches)


# ---- where a tile of keys begins


@pytest.mark.parametrize("T, N, tile_m, tile_n, causal", [
    (20, 77, 16, 32, True), (96, 160, 16, 16, True), (64, 64, 32, 16, True),
    (50, 77, 16, 32, False), (1, 129, 16, 64, True), (129, 1000, 32, 64, True),
    (100, 100, 16, 64, True)])
def test_first_query(subject, agree, T, N, tile_m, tile_n, causal):
    check_starts(subject, agree, T, N, tile_m, tile_n, causal)


def test_first_query__unseen(subject, agree, rng):
    for T, more in rng.integers(1, 300, (3, 2)).tolist():
        check_starts(subject, agree, T, T + more, 16, 32, True)


def check_starts(subject, agree, T, N, tile_m, tile_n, causal):
    import torch

    n0 = np.arange(0, N, tile_n)
    starts = torch.full((len(n0),), -7, dtype=torch.int32)
    subject.launch("starts_triton", len(n0), args=(starts, T, N), BM=tile_m, BN=tile_n,
                   CAUSAL=causal, num_warps=1)
    query = np.maximum(n0 - (N - T), 0)
    right = query // tile_m * tile_m
    agree(starts, right if causal else 0 * n0, "exact",
          f"first_query, {T} queries, {N} keys, {'' if causal else 'not '}causal, tiles of "
          f"{tile_m} queries by {tile_n} keys", lambda i: f"the tile from key {n0[i[0]]}", {
              "always_causal": ("it is right if causal, and here each query sees each key", right),
              "start_without_offset": ("query t is taken for token t, and it is token N - T + t",
                                       n0 // tile_m * tile_m),
              "start_rounded_up": ("the tile in which the first such query lies is skipped: tiles "
                                   "are rounded down here", -(-query // tile_m) * tile_m),
              "start_one_early": ("the query before the first that sees a key decides: its tile "
                                  "may see none of these keys",
                                  np.maximum(n0 - (N - T) - 1, 0) // tile_m * tile_m),
              "starts_at_zero": ("all tiles of queries are visited, those that see none of these "
                                 "keys too", 0 * n0),
              "before_zero": ("keys before N - T would begin before query 0",
                              np.trunc((n0 - (N - T)) / tile_m).astype(int) * tile_m),
              "no_tile": ("a query is returned, and not the first of its tile", query)},
          unwritten=-7)


# ---- the two passes


PARTS = {"keys": (2, 1), "queries": (0,)}       # of Book.gradients, in the order they are compared
NAMES = "grad_q", "grad_k", "grad_v"
EVERY_TERM = "a sum holds its last tile alone: tl.dot does not add to it"


def right(subject, agree, rng, which, size):
    """What a pass writes is the book's, or the message names the first wrong element."""
    case = Case(rng, size)
    got, _ = case.run(subject, which)
    want = case.book.gradients()
    wrong = mistakes_of(which, case)
    row = "query" if which == "queries" else "key"
    for part in PARTS[which]:
        agree(got[0 if which == "queries" else part - 1], want[part], case.dtype,
              f"{which}_pass_triton, {case.words}: {NAMES[part]}",
              lambda i: f"batch {i[0]}, {row} {i[1]}, head {i[2]}, column {i[3]}",
              {key: (sentence, answer[part]) for key, (sentence, answer) in wrong.items()},
              unwritten=7)


def mistakes_of(which, case):
    """{mistake: (sentence, the three gradients it gives)}."""
    B, T, N, H, G, D, causal, dtype, tile_m, tile_n = case.size
    book = case.book
    t, n, h = np.arange(T)[:, None, None], np.arange(N), np.arange(H)[:, None]
    grad_q, grad_k, grad_v = book.gradients()
    scale = case.scale
    wrong = {
        "scale_missing": ("scale is left out: scores are multiplied by it, so dq and dk are too",
                          (grad_q / scale, grad_k / scale, grad_v)),
        "scale_in_base_two": ("the gradient is multiplied by log2(e), which belongs to exp2 alone",
                              (grad_q * LOG2E, grad_k * LOG2E, grad_v)),
        "head_modulo": ("query head h is taken to read kv head h % G; it reads h // (H // G)",
                        book.gradients(heads=np.arange(H) % G))}
    if which == "keys":
        start = np.maximum(n // tile_n * tile_n - (N - T), 0) // tile_m * tile_m
        last = (t >= (T - 1) // tile_m * tile_m) & (h % (H // G) == H // G - 1)
        first_head = book.seen & (h % (H // G) == 0)
        late = t >= start
    else:
        reach = np.minimum(N - T + t // tile_m * tile_m + tile_m, N)
        late = (n < reach) & (h >= 0)
        last = n >= (reach - 1) // tile_n * tile_n
        if not causal:
            last = n >= (N - 1) // tile_n * tile_n
    wrong["last_tile"] = EVERY_TERM, book.gradients(book.seen & last)
    if causal:
        wrong |= {
            "ignores_causal": ("a query sees keys of its future, which the forward pass masked: "
                               "the tiles along the edge need the mask", book.gradients(late)),
            "top_left": ("query t is masked as token t, and it is token N - T + t",
                         book.gradients((n <= t) & (h >= 0)))}
    if which == "keys":
        wrong["one_head"] = ("the first query head of the group counts alone: the gradients of a "
                             "kv head are sums over all heads that read it",
                             book.gradients(first_head))
        wrong["exchanged"] = ("weights go into dk and gradients of scores into dv",
                              exchanged(book, scale))
    if dtype == "float32":
        wrong["tf32"] = TF32, book.gradients(cut=tf32)
    return wrong


def exchanged(book, scale):
    """With dk made of weights, and dv of gradients of scores."""
    weights = np.where(book.seen, np.exp(book.scores(book.heads) - book.lse[..., None]), 0)
    grad_weights = np.einsum("bthd,bnhd->bthn", book.grad_out, book.v[:, :, book.heads])
    grad_scores = weights * (grad_weights - book.delta[..., None])
    of = (book.heads[:, None] == np.arange(book.G)).astype(float)
    return (book.gradients()[0], scale * np.einsum("bthn,bthd,hg->bngd", weights, book.q, of),
            np.einsum("bthn,bthd,hg->bngd", grad_scores, book.grad_out, of))


@pytest.mark.parametrize("size", SIZES)
def test_keys_pass_triton(subject, agree, rng, size):
    right(subject, agree, rng, "keys", size)


@pytest.mark.parametrize("size", SIZES)
def test_queries_pass_triton(subject, agree, rng, size):
    right(subject, agree, rng, "queries", size)


def test_keys_pass_triton__work(subject, reference, rng):
    work(subject, reference, rng, "keys", 4)


def test_queries_pass_triton__work(subject, reference, rng):
    work(subject, reference, rng, "queries", 3)


def work(subject, reference, rng, which, products):
    """Products of the tiles that are visited, and no other."""
    T = N = 64
    case = Case(rng, (1, T, N, 2, 1, 16, True, "float16", 16, 16))
    launches = [case.run(side, which)[1] for side in (subject, reference)]
    tiles = tensor_flops(launches[0]) / (products * 2 * 16 * 16 * 16 * 2)
    some = visited(T, N, 16, 16)
    sentence = ("tiles of the future are computed, or a product is made again" if tiles > some else
                "not every product is made by tl.dot of fp16 tiles, on tensor cores")
    assert tiles == some, mistake(
        "future_tiles" if tiles > some else "no_tensor_cores",
        f"{which}_pass_triton makes as many products as {tiles:g} tiles of a head need, at "
        f"{products} each, expected {some} of {T * N // 256}: {sentence}", sentence)
    same_work(f"{which}_pass_triton", *launches)


def test_queries_pass_triton__low_scores(subject, agree, rng):
    """A key beyond N has a score of 0, and all others have far lower ones."""
    case = Case(rng, (1, 16, 35, 1, 1, 16, False, "float32", 16, 16))
    case.q, case.k = 10 * abs(case.q) + 5, -10 * abs(case.k) - 5
    case.settle(case.grad_out[..., 0])
    got, _ = case.run(subject, "queries")
    want = case.book.gradients()[0]
    agree(got[0], want, "float16", f"queries_pass_triton, scores near {case.book.lse.mean():.0f}, "
          f"{case.words}: grad_q", lambda i: f"query {i[1]}, column {i[3]}", {
              "no_key_bound": ("the keys beyond N are not masked: they have a score of 0, and "
                               "exp2(0 - lse) is infinite where lse is very low",
                               np.full_like(want, np.nan))}, unwritten=7)


# ---- the launcher, and attention that trains


@pytest.mark.parametrize("size", [
    (1, 70, 70, 2, 1, 64, True, "float32"), (2, 5, 140, 4, 2, 80, True, "float16"),
    (1, 30, 9, 2, 2, 16, False, "bfloat16"), (1, 1, 1, 1, 1, 128, True, "float16")])
def test_flash_backward(subject, agree, rng, size):
    *sizes, causal, dtype = size
    q, k, v, grad_out, grad_lse = inputs(rng, *sizes, dtype)
    book = Book(q, k, v, grad_out, grad_lse, causal, 0.3)
    out, lse = forward(book, q)
    got = subject.flash_backward(*apart(q, k, v), out, lse, grad_out, grad_lse, causal, 0.3)
    for name, mine, true, x in zip(NAMES, got, book.gradients(), (q, k, v), strict=True):
        assert mine.dtype == x.dtype
        agree(mine, true, dtype, f"{name} of flash_backward, {size}")


def forward(book, q):
    """The book's out, as q, and lse as tensors."""
    import torch

    return torch.from_numpy(book.out).to(q.dtype), torch.from_numpy(book.lse).float()


def test_without_a_gradient_of_lse_and_expanded(subject, agree, rng):
    """As after out.sum().backward(): one number for all of out, none for lse."""
    q, k, v, grad_out, grad_lse = inputs(rng, 1, 9, 12, 4, 2, 16)
    one = grad_out[:1, :1, :1, :1].expand(grad_out.shape)
    book = Book(q, k, v, one, 0 * grad_lse, True, 0.3)
    got = subject.flash_backward(q, k, v, *forward(book, q), one, None, True, 0.3)
    for name, mine, true in zip(NAMES, got, book.gradients(), strict=True):
        agree(mine, true, "float32", f"{name}, upstream expanded")


@pytest.mark.parametrize("B, T, N", [(0, 5, 5), (2, 0, 5), (2, 0, 0)])
def test_nothing_to_do(subject, rng, B, T, N):
    q, k, v, grad_out, grad_lse = inputs(rng, B, T, N, 2, 1, 16)
    got = subject.flash_backward(q, k, v, grad_out, grad_lse, grad_out, grad_lse, True, 1.0)
    assert [x.shape for x in got] == [q.shape, k.shape, v.shape]
    assert not any(x.any() for x in got)


def test_what_the_launcher_refuses(subject, rng):
    q, k, v, grad_out, grad_lse = inputs(rng, 1, 5, 6, 4, 2, 16)
    lse = grad_lse
    for args, says in (
            ((grad_out[:, :, :2], lse, grad_out, grad_lse),
             "out (1, 5, 2, 16), expected the shape of q, (1, 5, 4, 16)"),
            ((grad_out, lse, grad_out[:, :, :2], grad_lse), "grad_out (1, 5, 2, 16), expected"),
            ((grad_out, lse, grad_out.half(), grad_lse),
             "grad_out is torch.float16 on cpu, expected torch.float32"),
            ((grad_out, lse.double(), grad_out, grad_lse), "lse is torch.float64"),
            ((grad_out, lse, grad_out, grad_lse[:, :4]),
             "grad_lse (1, 4, 4), expected the shape of (B, T, H), (1, 5, 4)")):
        with pytest.raises(Raised) as refusal:
            subject.flash_backward(q, k, v, *args, True, 1.0)
        assert says in refusal.value.text, refusal.value.text
    with pytest.raises(Raised) as refusal:
        subject.flash_backward(q, k[:, :4], v[:, :4], grad_out, lse, grad_out, grad_lse, True, 1.0)
    assert "5 queries and 4 keys" in refusal.value.text


def test_no_array_of_all_scores(triton_on_the_cpu, rng):
    """Bytes stored are those of the results and of delta, nothing is added by atomics, and two runs
    have the same bits."""
    import torch

    from lab import simulator
    from layer1_kernels import flash_attention, flash_backward

    q, k, v, grad_out, grad_lse = inputs(rng, 1, 50, 70, 4, 2, 16, "float16")
    out, lse = flash_attention(q, k, v, True, 0.25)
    with simulator.trace() as trace:
        first = flash_backward(q, k, v, out, lse, grad_out, grad_lse, True, 0.25)
    again = flash_backward(q, k, v, out, lse, grad_out, grad_lse, True, 0.25)
    assert all(map(torch.equal, first, again))
    assert [launch.bytes_stored for launch in trace.launches] == [
        lse.nbytes, k.nbytes + v.nbytes, q.nbytes]
    assert not any(op == "atomic" for launch in trace.launches
                   for _, _, op in launch.requests)


def test_the_book_agrees_with_differences(rng):
    """One directional derivative of k13's oracle, of out and lse, in float64."""
    from layer1_kernels.k13_flash_attention import flash_attention_oracle

    q, k, v, grad_out, grad_lse = (x.double() for x in inputs(rng, 1, 6, 9, 4, 2, 16))
    gradients = Book(q, k, v, grad_out, grad_lse, True, 0.25).gradients()
    arrays = [plain(x) for x in (q, k, v)]
    steps = [rng.standard_normal(x.shape) for x in arrays]

    def loss(size):
        out, lse = flash_attention_oracle(
            *(x + size * step for x, step in zip(arrays, steps, strict=True)), True, 0.25)
        return (out * plain(grad_out)).sum() + (lse * plain(grad_lse)).sum()

    want = sum((g * step).sum() for g, step in zip(gradients, steps, strict=True))
    assert abs((loss(1e-5) - loss(-1e-5)) / 2e-5 / want - 1) < 1e-7


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_takes_its_gradients_from_here(triton_on_the_cpu, agree, rng, dtype):
    from lab import simulator
    from layer1_kernels import flash_attention

    q, k, v, grad_out, grad_lse = inputs(rng, 1, 9, 12, 4, 2, 16, dtype)
    want = Book(q, k, v, grad_out, grad_lse, True, 0.25).gradients()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    with simulator.trace() as trace:
        out, lse = flash_attention(*leaves, True, 0.25)
        ((out * grad_out).sum() + (lse * grad_lse).sum()).backward()
    assert [launch.name for launch in trace.launches] == [
        "flash_triton", "delta_triton", "keys_pass_triton", "queries_pass_triton"]
    for name, leaf, true in zip(NAMES, leaves, want, strict=True):
        agree(leaf.grad, true, dtype, f"{name} of flash_attention")


def test_a_training_step(triton_on_the_cpu):
    """Of a small Llama: the loss and every gradient with this attention are those of the table that
    is all PyTorch's."""
    import torch

    from layer1_kernels import kernels

    table = kernels("torch")
    own = replace(table, flash_attention=kernels("triton").flash_attention)
    (loss, gradients), (want, true) = training_step(own), training_step(table)
    assert torch.allclose(loss, want, rtol=1e-5)
    for name, gradient in gradients.items():
        assert true[name].any()
        assert torch.allclose(gradient, true[name], rtol=1e-4, atol=1e-6), name


def training_step(ops):
    """(loss, {weight: its gradient}) of one block between embedding and head."""
    import torch

    C, F, V, H, G, D = 32, 48, 64, 2, 1, 16
    shapes = {"embedding": (V, C), "attention_norm": (C,), "q": (H * D, C), "k": (G * D, C),
              "v": (G * D, C), "output": (C, H * D), "mlp_norm": (C,), "gate": (F, C),
              "up": (F, C), "down": (C, F), "head": (V, C)}
    rng = torch.Generator().manual_seed(0)
    w = {name: (torch.randn(shape, generator=rng) / 4).requires_grad_()
         for name, shape in shapes.items()}
    tokens = torch.randint(V, (2, 18), generator=rng)
    x = w["embedding"][tokens[:, :-1].flatten()]                                # (T, C)
    y = ops.rmsnorm(x, w["attention_norm"], 1e-5)
    q, k, v = (ops.matmul(y, w[name]).view(2, 17, -1, D) for name in "qkv")
    out, _ = ops.flash_attention(q, k, v, True, D ** -0.5)
    x = x + ops.matmul(out.reshape(-1, H * D), w["output"])
    y = ops.rmsnorm(x, w["mlp_norm"], 1e-5)
    x = x + ops.matmul(ops.swiglu(ops.matmul(y, w["gate"]), ops.matmul(y, w["up"])), w["down"])
    loss = ops.cross_entropy(ops.matmul(x, w["head"]), tokens[:, 1:].flatten()).mean()
    loss.backward()
    return loss, {name: weight.grad for name, weight in w.items()}


def test_where_this_lesson_is_a_stub_the_formula_stays(monkeypatch):
    """A student edition that has only this lesson's stubs, and a kernel that is in no table."""
    from layer1_kernels import gradients

    assert gradients.backward_of("flash_attention").__name__ == "flash_backward"
    assert gradients.backward_of("swiglu") is None
    monkeypatch.setattr(gradients, "answered", lambda lesson: False)
    assert gradients.backward_of.__wrapped__("flash_attention") is None


@pytest.mark.slow
def test_what_hopper_gets():
    from lab.author import hopper_report
    from layer1_kernels.bench.k18_flash_backward import shipped

    for name, kernel in shipped().items():
        assert kernel.spills <= kernel.may_spill, f"{name}: {kernel.spills}"
        assert not kernel.serialised, f"{name}: {kernel.serialised}"
        assert kernel.shared <= hopper_report.SHARED
        assert bool(kernel.wgmma) == ("bf16" in name), f"{name}: {kernel.wgmma} wgmma"
        assert not kernel.mma_sync, f"{name}: mma.sync"


@pytest.mark.slow
@pytest.mark.parametrize("change, meta", [
    ({"T": "i32", "N": "i32"}, {}), ({"G": "i32:16"}, {}), ({"G": 1}, {}), ({}, {"CAUSAL": False})])
def test_other_launches_compile_as_well(change, meta):
    """Ragged lengths, no grouping, one kv head, not causal: Triton compiles again for each."""
    from layer1_kernels.bench.k18_flash_backward import compiled

    for which, spills in (("keys", 256), ("queries", 0)):
        kernel = compiled(which, 2, 128, change, meta)
        assert kernel.spills <= spills and not kernel.serialised and kernel.wgmma


@pytest.mark.gpu
@pytest.mark.parametrize("T, N, causal", [(1, 1000, True), (129, 129, True), (1000, 1500, True),
                                          (127, 1000, False)])
@pytest.mark.parametrize("D", [16, 64, 80, 128])
def test_every_kernel_on_the_device(T, N, causal, D):
    import torch

    from layer1_kernels import flash_attention, flash_attention_torch

    q = torch.randn(2, T, 8, D, device="cuda")
    k, v = (torch.randn(2, N, 2, D, device="cuda") for _ in range(2))
    upstream = torch.randn_like(q), torch.randn(2, T, 8, device="cuda")
    for dtype, near in ((torch.float32, 2e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        wide = [x.detach().double().requires_grad_() for x in leaves]
        got, want = (torch.autograd.grad(
            attention(*own, causal, D ** -0.5), own,
            [u.to(r.dtype) for u, r in zip(upstream, attention(*own, causal, D ** -0.5),
                                           strict=True)])
            for attention, own in ((flash_attention, leaves), (flash_attention_torch, wide)))
        for mine, true in zip(got, want, strict=True):
            largest = float(true.abs().max())
            assert torch.allclose(mine.double(), true, rtol=near, atol=near * largest), dtype


@pytest.mark.gpu
def test_keys_pass_triton_speed(pace):
    pace("flash_backward", *(numbers("bfloat16", 4, 4096, 16, 128) for _ in range(4)),
         numbers("float32", 4, 4096, 16), numbers("bfloat16", 4, 4096, 16, 128),
         numbers("float32", 4, 4096, 16), True, 128**-0.5)
