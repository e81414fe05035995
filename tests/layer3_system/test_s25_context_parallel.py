"""Graders of s25.
A sequence is (q, k, v) of all its tokens, float64; ranks have shards of it."""

import numpy as np
import pytest
import torch

from lab.judge.mistakes import mistake
from layer3_system.context import zigzag
from tests.layer3_system.reasons import because

DRIVER = "layer3_system.testing.context_ranks"
SCALE = 0.3
# W, and (N, H, G, D) of its cases: W = 2 hides which way a ring turns
ON_RANKS = [(3, [(42, 6, 3, 8), (6, 2, 1, 16), (30, 4, 4, 8)]), (2, [(20, 4, 2, 8)]),
            (4, [(56, 8, 4, 16), (8, 3, 1, 8)]), (1, [(10, 2, 2, 8)])]


def attention(q, k, v, seen=None):                  # (T, H, D), 2 × (N, G, D), (T, N) of bool
    """out (T, H, D) and lse (T, H), by the book; rows that see nothing: 0 and -inf."""
    H, G = q.shape[1], k.shape[1]
    k, v = (np.repeat(x, H // G, 1) for x in (k, v))
    scores = np.einsum("thd,nhd->thn", q, k) * SCALE
    if seen is not None:
        scores = np.where(seen[:, None], scores, -np.inf)
    m = np.maximum(scores.max(-1, keepdims=True), -1e300)
    weights = np.exp(scores - m)
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return np.einsum("thn,nhd->thd", weights / np.maximum(total, 1e-300), v), (
            m + np.log(total))[..., 0]


def place(positions):
    """at(index) for `agree`: of an array of tokens, heads and perhaps numbers."""
    return lambda i: f"the token at position {positions[i[0]]}, head {i[1]}" + "".join(
        f", number {d}" for d in i[2:])


def draw(rng, N, H, G, D):
    return [rng.standard_normal((N, heads, D)) for heads in (H, G, G)]


def shards(sequence, positions):
    """[(q, k, v)] of each rank, as tensors."""
    return [tuple(torch.from_numpy(x[p]) for x in sequence) for p in positions]


# ---- predictions


def test_predict_busiest(subject):
    positions = np.arange(4096).reshape(4, -1)
    pairs = (positions + 1).sum(1)                          # query p sees p + 1 keys
    want = pairs.max() / pairs.mean()                       # 1.7497
    got = subject.predict_busiest()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_busiest: expected a number, got {got!r:.50}")
    known = {1.0: ("equal_queries", "ranks have equally many queries, but the last rank's see most "
                                   "keys"),
             4.0: ("last_alone", "the other ranks' bands have keys, too: only rank 0 has few"),
             1.6: ("whole_diagonal", "of the block on the diagonal only half is visible"),
             7.0: ("over_least", "that is over the least busy rank, not over the mean")}
    name, why = next((row for wrong, row in known.items() if abs(got - wrong) < 0.01),
                     ("other", "count the blocks of n × n in each band, those cut by the diagonal "
                               "as half"))
    assert abs(got - want) < 0.01, because(name, f"predict_busiest: {got:g} is not right", why)


def test_predict_ring_over_ulysses(subject):
    H, G, W = 32, 8, 8
    want, got = W * G / (H + G), subject.predict_ring_over_ulysses()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_ring_over_ulysses: expected a number, got {got!r:.50}")
    name, why = next((row for wrong, *row in (
        (W / 2, "all_heads", "that gives k and v as many heads as q: here they have 8"),
        (G / (H + G), "share_of_ring", "that lets the ring's bytes fall with W, as those of "
                                       "Ulysses do"),
        ((H + G) / (W * G), "turned_round", "that divides Ulysses by the ring"),
        (2 * W * G / (H + 2 * G), "out_forgotten", "that leaves out sending `out` back"))
        if abs(got - wrong) < 1e-6), (
            "other", "which arrays does each scheme send, and how often?"))
    assert abs(got - want) < 1e-6, because(
        name, f"predict_ring_over_ulysses: {got:g} is not right", why)


# ---- visible


def pairs_of(answer, n):
    """(n, n) of bool: what an answer of `visible` lets be seen."""
    first, end, causal = answer
    seen = np.zeros((n, n), bool)
    seen[first:, :end] = True
    return seen & np.tri(n, n, end - n, dtype=bool) if causal else seen


def check_visible(subject, r, j, n, W):
    got = subject.visible(r, j, n)
    call = f"visible({r}, {j}, {n})"
    assert isinstance(got, (tuple, list)) and len(got) == 3 and all(
        isinstance(x, (int, np.integer)) for x in got) and min(got) >= 0 and max(got) <= n, mistake(
            "not_a_block", f"{call}: got {got!r:.100}, expected (first, end, causal), of places "
            f"from 0 to {n}", "expected two places and a bool")
    own, theirs = (positions.numpy() for positions in zigzag(n * W, W)[[r, j]])
    want = own[:, None] >= theirs
    seen = pairs_of(got, n)
    half = n // 2
    names = {
        (0, n, True): ("local_order_mask", "causal by place in the shard, not by position in the "
                       "sequence"),
        (half, n, False) if j < r else (0, half, False): (
            "halves_exchanged", "the cases j < r and j > r are exchanged"),
        (0, n, False): ("whole_block", "every query sees every key of that rank")}
    if j == r:
        names = {(0, n, False): ("no_mask_at_home", "at home a query sees only keys up to its own")}
    name, why = names.get((*map(int, got[:2]), bool(got[2])), ("other", "each rank has an early "
                          "and a late piece: compare their positions with those of the other"))
    for wrong, text in ((seen & ~want, "sees the key at position {}, which comes later"),
                        (want & ~seen, "does not see the key at position {}")):
        if wrong.any():
            t, m = np.argwhere(wrong)[0]
            raise AssertionError(because(
                name, f"{call} = {tuple(got)}, W = {W}: the query at position {own[t]} "
                f"{text.format(theirs[m])}", why))


def test_visible(subject, rng):
    for W, n in [(3, 14), (2, 2), (5, 6), (4, 2 * int(rng.integers(2, 60)))]:
        for r in reversed(range(W)):
            for j in reversed(range(W)):
                check_visible(subject, r, j, n, W)


# ---- merge


def parts(rng, stretch, cut=9):
    """q, k, v where scores are up to `stretch` times as large, and attention to keys before and
    from the cut."""
    q, k, v = draw(rng, 13, 4, 2, 8)
    k[cut:] *= stretch
    return attention(q, k, v), attention(q, k[:cut], v[:cut]), attention(q, k[cut:], v[cut:])


def of_merge(out, lse, more, more_lse):
    """{id: (sentence, (out, lse))} of wrong answers."""
    def mixed(total, exp=np.exp):
        return out * exp(lse - total)[..., None] + more * exp(more_lse - total)[..., None]

    right = np.logaddexp(lse, more_lse)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        a, b = np.exp(lse)[..., None], np.exp(more_lse)[..., None]
        plain = (out * a + more * b) / (a + b), np.log(np.exp(lse) + np.exp(more_lse))
        base_2 = np.logaddexp2(lse, more_lse)
        return {
            "averages": ("both parts weigh the same, whatever they saw", ((out + more) / 2, right)),
            "sums_outputs": ("the parts are added as they are: each is a mean of its own keys",
                             (out + more, right)),
            "base_2": ("lse is taken to be in base 2: it is the natural logarithm",
                       (mixed(base_2), base_2)),
            "base_2_throughout": ("powers and logarithm are those of base 2: lse is natural",
                                  (mixed(base_2, np.exp2), base_2)),
            "old_lse": ("the lse of the first part is returned: the next merge weighs with it",
                        (mixed(right), lse)),
            "overflow": ("exp(lse) is computed: of an lse of 710 it is infinite. Subtract the "
                         "larger of both first", plain)}


def check_merge(subject, agree, words, want, one, two):
    got = subject.merge_parts(*(torch.from_numpy(x) for x in (*one, *two)))
    assert isinstance(got, (tuple, list)) and len(got) == 2, mistake(
        "no_pair", f"merge_parts: expected out and lse, got {type(got).__name__}")
    wrong = of_merge(*one, *two)
    for i, name in enumerate(("out", "lse")):
        agree(got[i], want[i], "float64", f"merge_parts, {words}: {name}", mistakes={
            key: (sentence, answer[i]) for key, (sentence, answer) in wrong.items()
            if not np.array_equal(answer[i], want[i])})


def test_merge_parts(subject, rng, agree):
    check_merge(subject, agree, "9 keys and 4", *parts(rng, 1))
    check_merge(subject, agree, "lse far apart", *parts(rng, 200))
    check_merge(subject, agree, "one key and 12", *parts(rng, 1, cut=1))


def test_merge_parts__large(subject, rng, agree):
    """Scores of some hundred: exp in float64 is infinite, or 0."""
    want, one, two = parts(rng, 1)
    for far in (720, -760):
        raised = [(out, lse + far) for out, lse in (want, one, two)]
        got = subject.merge_parts(*(torch.from_numpy(x) for part in raised[1:] for x in part))
        for name, value, right in zip(("out", "lse"), got, raised[0], strict=True):
            value = np.asarray(value)
            assert np.allclose(value, right, rtol=1e-9, equal_nan=True), because(
                "overflow", f"merge_parts, lse about {far}: {name} begins with "
                f"{value.flat[0]:g}, expected {right.flat[0]:g}", f"exp({far}) is "
                f"{'infinite' if far > 0 else '0'}: subtract one lse from the other before exp")
        check_merge(subject, agree, f"lse about {far}", *raised)


def test_merge_parts__nothing_yet(subject, rng, agree):
    want, _, _ = parts(rng, 1)
    nothing = np.zeros_like(want[0]), np.full_like(want[1], -np.inf)
    for words, one, two in (("nothing, then a part", nothing, want),
                            ("a part, then nothing", want, nothing)):
        got = subject.merge_parts(*(torch.from_numpy(x) for x in (*one, *two)))
        assert not any(np.isnan(x).any() for x in map(np.asarray, got)), because(
            "not_from_nothing", f"merge_parts, {words} (out = 0, lse = -inf): NaN comes out",
            "-inf minus -inf is NaN: the part that saw no key has weight exp(-inf) = 0")
        check_merge(subject, agree, words, want, one, two)


# ---- the ring


def block(r, j, n, W):
    """(n, n) of bool: the pairs of rank r's queries and rank j's keys that are visible."""
    own, theirs = (positions.numpy() for positions in zigzag(n * W, W)[[r, j]])
    return own[:, None] >= theirs


def travel(own, r, rounds=None, held=lambda r, s: r - s, named=lambda r, s: r - s,
           values=None, first_lse=False):
    """What rank r gets by a ring with some mistake: (out, lse). own: [(q, k, v)] of each rank

    held: whose keys it has in round s.  named: whose it takes them for.  values: whose values
    """
    W = len(own)
    q = own[r][0]
    out = np.zeros_like(q)
    lse = np.full(q.shape[:2], -np.inf)
    for s in range(W if rounds is None else rounds):
        k = own[held(r, s) % W][1]
        v = own[(values or held)(r, s) % W][2]
        more, more_lse = attention(q, k, v, block(r, named(r, s) % W, len(q), W))
        total = np.logaddexp(lse, more_lse)
        out = (out * np.exp(lse - total)[..., None] + more * np.exp(more_lse - total)[..., None])
        lse = lse if first_lse and s else total
    return out, lse


def of_ring(own, r):
    """{id: (sentence, (out, lse))} of wrong answers of rank r."""
    W = len(own)
    return {
        "wrong_direction": ("in round s the keys are those of rank r - s, and are taken for those "
                            "of rank r + s", travel(own, r, named=lambda r, s: r + s)),
        "values_at_home": ("the keys go round and the values stay",
                           travel(own, r, values=lambda r, s: r)),
        "never_passed_on": ("a rank sees its own keys in every round",
                            travel(own, r, held=lambda r, s: r)),
        "passed_on_first": ("keys are passed on before a rank has looked at its own: the first "
                            "are those of rank r - 1, masked as its own",
                            travel(own, r, held=lambda r, s: r - s - 1)),
        "last_round_missing": ("the last round is missing", travel(own, r, rounds=W - 1)),
        "old_lse": ("lse is not kept up to date: later parts weigh too much",
                    travel(own, r, first_lse=True))}


def check_traffic(run, words, r, W, numbers):
    """A rank sends k and v to the next, W - 1 times. numbers: of k, and of v"""
    names = sorted({c.name for c in run.collectives})
    assert not names, because("gathers_all", f"{words}: the ranks call {', '.join(names)}",
                              "with all keys at hand each rank needs room for N of them; the ring "
                              "needs room for n")
    count = sum(m.sender == r for m in run.messages)
    assert count == 2 * (W - 1), because(
        "passes_last", f"{words}: rank {r} sends {count} arrays, expected {2 * (W - 1)}, k and v "
        f"in {W - 1} rounds", "what has been everywhere need not be passed on")
    assert run.sent(r) == 8 * 2 * numbers * (W - 1), mistake(
        "bytes", f"{words}: rank {r} sends {run.sent(r)} bytes, expected "
        f"{8 * 2 * numbers * (W - 1)}", "a rank sends more than its k and v in a round")


@pytest.mark.parametrize("W, shapes", ON_RANKS)
def test_ring_attention(subject, rng, agree, W, shapes):
    sequences = [draw(rng, *shape) for shape in shapes]
    cuts = [zigzag(N, W) for N, *_ in shapes]
    own = [shards(*row) for row in zip(sequences, cuts, strict=True)]       # [case][rank]
    run = subject.ranks(f"{DRIVER}:ring_cases", [([one[r] for one in own], SCALE)
                                                 for r in range(W)])
    for i, (N, H, G, D) in enumerate(shapes):
        n = N // W
        words = f"ring_attention, W = {W}, N = {N}, H = {H}, G = {G}"
        out, lse = attention(*sequences[i], np.tri(N, dtype=bool))
        arrays = [tuple(x.numpy() for x in shard) for shard in own[i]]
        for r in range(W):
            wrong = of_ring(arrays, r) if W > 1 else {}
            for k, (name, want) in enumerate((("out", out), ("lse", lse))):
                agree(run.results[r][i][name], want[cuts[i][r]], "float64",
                      f"{words}: {name} of rank {r}", place(cuts[i][r].tolist()), mistakes={
                          key: (sentence, answer[k]) for key, (sentence, answer) in wrong.items()
                          if not np.array_equal(answer[k], want[cuts[i][r]])})
            check_traffic(run.during(f"case {i}"), words, r, W, n * G * D)
            pairs = run.results[r][i]["pairs"]
            right = [n * (n + 1) // 2] + [n * n // 2] * (W - 1)
            assert pairs == right, because(
                "more_pairs", f"{words}: rank {r} computes {pairs} pairs in its rounds, expected "
                f"{right}", "only what `visible` names need be computed")


def test_ring_attention__16_bits(subject, rng, agree):
    """bfloat16 in and out, lse in float32."""
    sequence = draw(rng, 24, 4, 2, 16)
    cut = zigzag(24, 3)
    own = [[x.bfloat16() for x in shard] for shard in shards(sequence, cut)]
    rounded = [torch.from_numpy(x).bfloat16().double().numpy() for x in sequence]
    out, lse = attention(*rounded, np.tri(24, dtype=bool))
    run = subject.ranks(f"{DRIVER}:ring_cases", [([one], SCALE) for one in own])
    for r in range(3):
        one = run.results[r][0]
        for name, want in (("out", torch.bfloat16), ("lse", torch.float32)):
            assert one[name].dtype == want, because(
                "other_dtype", f"ring_attention of bfloat16: {name} is {one[name].dtype}, expected "
                f"{want}", "out has the type of q, and the sums on the way 32 bits")
        agree(one["out"].double(), out[cut[r]], "bfloat16", f"out of rank {r}, bfloat16")
        agree(one["lse"], lse[cut[r]], "float32", f"lse of rank {r}, bfloat16")


# ---- Ulysses


def exchanged(pieces):
    """[receiver][sender]: from [sender][receiver]."""
    return [list(row) for row in zip(*pieces, strict=True)]


def of_tokens(own, W):
    """{id: (sentence, [answer of each rank])} of wrong answers of gather_tokens; own: (n, H, D)"""
    n, H, D = own[0].shape
    def swapped(cut):
        return [np.concatenate(row) for row in exchanged([list(cut(x)) for x in own])]

    return {
        "heads_by_stride": ("rank r gets heads r, r + W, …: with grouped heads its queries then "
                            "meet the keys of others", [np.concatenate(own)[:, r::W]
                                                        for r in range(W)]),
        "axes_not_swapped": ("an array of tokens is cut into W runs of numbers, not into W groups "
                             "of heads", swapped(lambda x: x.reshape(W, n, H // W, D))),
        "not_exchanged": ("a rank keeps what it should send", [
            x.reshape(n, W, H // W, D).swapaxes(0, 1).reshape(n * W, H // W, D) for x in own])}


def of_heads(own, W):
    """The same of gather_heads; own: (N, H/W, D)"""
    N, h, D = own[0].shape
    came = [np.stack(row) for row in exchanged([np.split(x, W) for x in own])]      # (W, n, h, D)
    n = N // W
    return {
        "axes_not_swapped": ("the ranks' pieces, each n tokens of some heads, are read as if "
                             "they were tokens of all heads",
                             [x.reshape(n, W * h, D) for x in came]),
        "heads_interleaved": ("head 0 of each rank comes first, then head 1 of each",
                              [x.transpose(1, 2, 0, 3).reshape(n, W * h, D) for x in came]),
        "not_exchanged": ("a rank keeps what it should send", [
            x.reshape(W, n, h, D).swapaxes(0, 1).reshape(n, W * h, D) for x in own])}


def whole(N, H, D, rng):
    """(N, H, D) of distinct whole numbers, in an order of the draw's."""
    return rng.permutation(N * H * D).reshape(N, H, D).astype(float)


def check_gather(subject, rng, agree, W, tokens):
    """gather_tokens or gather_heads on W ranks, of three arrays."""
    name = "gather_tokens" if tokens else "gather_heads"
    shapes = [(2 * W, 2 * W, 4), (5 * W, W, 3), (W, 3 * W, 2)]              # (N, H, D)
    arrays = [whole(*shape, rng) for shape in shapes]
    runs = [np.split(x, W) for x in arrays]                     # n tokens of all heads, by rank
    groups = [np.split(x, W, 1) for x in arrays]                # all tokens of H / W heads
    sent, want = (runs, groups) if tokens else (groups, runs)
    run = subject.ranks(f"{DRIVER}:gather_cases", [
        ([torch.from_numpy(one[r]) for one in sent], tokens) for r in range(W)])
    for i, (N, H, D) in enumerate(shapes):
        words = f"{name}, W = {W}, N = {N}, H = {H}"
        wrong = (of_tokens if tokens else of_heads)(sent[i], W)
        for r in range(W):
            first = 0 if tokens else r * (N // W)
            agree(run.results[r][i], want[i][r], "exact", f"{words}: rank {r}",
                  place(range(first, N)), mistakes={
                key: (sentence, answers[r]) for key, (sentence, answers) in wrong.items()
                if not np.array_equal(answers[r], want[i][r])})
            right = 8 * N // W * H * D * (W - 1) // W
            got = run.during(f"case {i}").sent(r)
            assert got == right, because(
                "sends_all", f"{words}: rank {r} sends {got} bytes, expected {right}",
                "each other rank needs 1/W of what this one has")


@pytest.mark.parametrize("W", [3, 2, 4, 1])
def test_gather_tokens(subject, rng, agree, W):
    check_gather(subject, rng, agree, W, tokens=True)


@pytest.mark.parametrize("W", [3, 2, 4, 1])
def test_gather_heads(subject, rng, agree, W):
    check_gather(subject, rng, agree, W, tokens=False)
