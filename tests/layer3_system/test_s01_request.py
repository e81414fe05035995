"""Graders of s01. Shares are worked out in float64, texts by decoding all at once.

"case N" in a docstring counts the cases that any engine must handle.
"""

from itertools import product

import numpy as np
import pytest
import torch

from lab.judge.adversarial import VALUES, around
from lab.judge.compare import brief
from layer1_kernels import Sampling, kernels
from layer2_graph import Tokenizer, read_config
from layer2_graph.models import SMALL
from layer3_system import (
    ByteTokenizer,
    Detokenizer,
    Request,
    RequestError,
    SamplingParams,
    finish_reason,
    logprobs_of,
    sample_rows,
    uniform,
)

BROKEN = "\N{REPLACEMENT CHARACTER}"
END = 256               # ByteTokenizer's token that ends a text

# ---- predict_changed


def dealt(alone, both):
    """The numbers of row 0: some steps alone, then some with a neighbour."""
    numbers = iter(range(alone + 2 * both))
    first = [next(numbers) for _ in range(alone)]
    return first + [(next(numbers), next(numbers))[0] for _ in range(both)]


def test_predict_changed(subject):
    """case 23: what one generator for all would do."""
    want = sum(a != b for a, b in zip(dealt(40, 0), dealt(10, 30), strict=True))
    got = subject.predict_changed()
    assert isinstance(got, int), f"a prediction is a whole number here, got {got!r}"
    why = {0: "none. That is what you will build. But one generator for all deals in the order of "
              "rows: whoever joins takes numbers away",
           40: "all of them. But before the neighbour came, the generator had dealt the same "
               "numbers to the same row",
           want + 1: "one too many. In the step in which the neighbour joins, row 0 is dealt its "
                     "number first, the one that it got before"}
    near = why.get(got, "too few" if got < want else "too many")
    assert got == want, f"predict_changed: {got} is {near}"


# ---- keep_top_p


def kept_by_the_book(z, p):
    """Which tokens stay, in float64; and how far p is from where another one would."""
    z = np.asarray(z, np.float64)
    shares = np.exp(z - z.max())
    shares /= shares.sum()
    ordered = np.sort(shares)[::-1]
    sums = np.cumsum(ordered)
    n = int(np.searchsorted(sums, p)) + 1
    return shares >= ordered[min(n, len(z)) - 1], float(np.abs(sums - p).min())


def kept_of(got, z, what):
    """Which tokens stayed in an answer; those that did have their logit."""
    got = np.asarray(got)
    assert got.shape == np.shape(z), (
        f"{what}: shape {got.shape}, expected {np.shape(z)}: a logit for each token, -inf for "
        f"those that go")
    kept = ~np.isneginf(got)
    changed = np.flatnonzero(kept & (got != z))
    assert not len(changed) or got[changed].any() or not kept.all() or len(changed) == len(z), (
        f"{what}: {len(changed)} logits are 0 now, token {changed[0]}'s was {z[changed[0]]:.6g}. "
        f"What goes is -inf; with a logit of 0 it would still be drawn")
    assert not len(changed), (
        f"{what}: the logit of token {changed[0]} was {z[changed[0]]:.6g}, now it is "
        f"{got[changed[0]]:.6g}. A logit that stays keeps its value, at its place")
    return kept


@pytest.mark.parametrize("V, spread", [(127, 0.1), (5, 1), (1000, 3), (1, 1)])
def test_keep_top_p(subject, rng, V, spread):
    """case 25: the token with which the share is reached is kept."""
    for p in (0.9, 0.6, 0.3, 0.999, 1e-6, 1):
        z = (rng.standard_normal(V) * spread + 5).astype(np.float32)
        want, margin = kept_by_the_book(z, p)
        what = f"keep_top_p of {V} logits, p = {p:g}"
        kept = kept_of(subject.keep_top_p(z, p), z, what)
        if margin < 1e-6 < p < 1 or (kept == want).all():   # on a boundary either answer is right
            continue
        n, m = int(want.sum()), int(kept.sum())
        raw = np.sort(np.exp(z.astype(np.float64)))             # from the least likely on
        below = raw.cumsum() - raw
        why = ("none: the token that reaches the share is kept, so there is always one. Is each "
               "token's own share compared with p? It is their sum" if m == 0
               else "one too few: the token with which the share is reached is kept" if m == n - 1
               else "those that reach p in exp(logit). A share is that over the sum of all"
               if m == max(((raw[::-1].cumsum() - raw[::-1]) < p).sum(), 1) else
               "what is left when one adds up from the least likely on. Begin at the other end"
               if m in (V - (below < p * raw.sum()).sum() + 1, (below < p * raw.sum()).sum())
               else "those whose own share is p or more. Their shares are to be added up"
               if m == (raw >= p * raw.sum()).sum() else
               "those with at least p times the largest share. That is min-p, another rule"
               if m == (raw >= p * raw.max()).sum() else
               "the share p of all tokens by number. It is the sum of their shares that is p"
               if m in (int(p * V), round(p * V), -int(-p * V // 1)) and V > 20
               else "too many" if m > n else "too few")
        raise AssertionError(f"{what}: {n} tokens hold it, from the likeliest on; {m} were kept. "
                             f"These are {why}.")


def test_keep_top_p__equals_stay_together(subject):
    z = np.array([0, 3, 0, -2, 3, 0], np.float32)
    kept = kept_of(subject.keep_top_p(z, 0.3), z, "keep_top_p")
    assert kept.tolist() == [False, True, False, False, True, False], (
        f"keep_top_p of {z.tolist()}, p = 0.3: tokens 1 and 4 are equals, and one of them holds "
        f"0.44; kept {np.flatnonzero(kept).tolist()}, expected both or the order would decide")


def test_keep_top_p__reached_exactly(subject):
    """Shares that are powers of 2. A right formula may round one of them, not all."""
    passed = []
    for n in (2, 4, 8):
        z = np.array([np.log(n), *[0] * n])
        passed.append(kept_of(subject.keep_top_p(z, 0.5), z, "keep_top_p").all())
    assert not all(passed), (
        "keep_top_p of [log 2, 0, 0], p = 0.5, and of two rows like it: token 0 holds exactly p, "
        "and all were kept. With the token that reaches p there is enough; it need not pass it")


def test_keep_top_p__in_their_precision(subject):
    """Logits of float64 keep theirs: what is kept has its value, and these two are no equals."""
    z = np.array([1 + 1e-9, 1])
    kept = kept_of(subject.keep_top_p(z, 0.5), z, "keep_top_p of two float64 logits, p = 0.5")
    assert kept.tolist() == [True, False], (
        f"keep_top_p of [1 + 1e-9, 1] in float64, p = 0.5: kept tokens "
        f"{np.flatnonzero(kept).tolist()}, expected 0, whose share is a little above 0.5. In "
        f"float32 the two would be equals")


def test_keep_top_p__after_top_k(subject):
    """A -inf has no share and stays what it is; nor may a large logit overflow."""
    z = np.array([900, -np.inf, 899, 895, -np.inf], np.float32)
    kept = kept_of(subject.keep_top_p(z, 0.9), z, "keep_top_p")
    assert kept.tolist() == [True, False, True, False, False], (
        f"keep_top_p of {z.tolist()}, p = 0.9: kept tokens {np.flatnonzero(kept).tolist()}, "
        f"expected 0 and 2, which hold 0.73 and 0.27. exp(900) is too large for any float: "
        f"subtract the largest first")


def hard_rows(rng):
    """{what: logits} on which a plausible answer differs, and none where its rounding decides."""
    kinds = {"logits below 0 alone": "negative", "0 and -0 among the logits": "signed_zeros",
             "-inf among the logits": "infinite", "logits with all 24 bits": "unrounded"}
    rows = {what: VALUES[kind](rng, (1, 33))[0] for what, kind in kinds.items()}
    rows |= {f"{n} equal logits": np.full(n, 2.5, np.float32) for n in (1, 2, 33)}
    rows |= {f"logits around {by}": VALUES["shifted"](rng, (1, 17), by)[0]
             for by in (3000, -3000)}
    tiny = VALUES["denormal"](rng, (9,))
    rows["two logits beside many of 1e-40"] = np.r_[tiny, np.float32([9, 8])]
    return rows | {f"{n} logits": VALUES["unrounded"](rng, (n,)) for n in around(16)}


def tail():
    """Token 0 has nearly all; 40,000 others, no two alike, have about 1e-8 each."""
    return np.r_[0, np.log(1e-8 * (1 + np.arange(40_000) / 80_000))].astype(np.float32)


LOST = ("in float32 a share of 1e-8 added to nearly 1 is lost, so that 40,000 of them are nothing: "
        "add up in float64")


def test_keep_top_p__hard(subject, rng):
    """All in one process, so that nothing of one row is in the next."""
    for what, z in hard_rows(rng).items():
        for p in (0.35, 0.8, 0.95):
            want, margin = kept_by_the_book(z, p)
            at = f"keep_top_p of {what}, p = {p:g}"
            kept = kept_of(subject.keep_top_p(z, p), z, at)
            assert margin < 1e-9 or (kept == want).all(), (
                f"{at}: kept tokens {np.flatnonzero(kept).tolist()}, expected "
                f"{np.flatnonzero(want).tolist()}")
    z = np.array([0, -800, 3, -1e4, 0], np.float32)
    kept = kept_of(subject.keep_top_p(z, 1), z, "keep_top_p, p = 1")
    assert kept.all(), (
        f"keep_top_p of {z.tolist()}: p = 1 keeps every token, also one whose share is too small "
        f"for a float; kept {np.flatnonzero(kept).tolist()}")
    z = tail()
    (want, _), kept = kept_by_the_book(z, 0.9998), kept_of(subject.keep_top_p(z, 0.9998), z, "tail")
    assert abs(int(kept.sum()) - int(want.sum())) < 50, (
        f"keep_top_p of a likely token and 40,000 unlikely ones, p = 0.9998: kept {kept.sum()}, "
        f"expected {want.sum()}: {LOST}")


# ---- draw


@pytest.mark.parametrize("V, spread, n", [(1, 1, 9), (5, 1, 400), (127, 2, 1000)])
def test_draw(subject, rng, V, spread, n):
    """n numbers at even distances: a token of share p is drawn p · n times, give or take one; the
    numbers in order give tokens in order."""
    z = (rng.standard_normal(V) * spread).astype(np.float32)
    z[rng.permutation(V)[:V // 3]] = -np.inf
    shares = np.exp(z.astype(np.float64))
    shares /= shares.sum()
    tokens = [subject.draw(z, (i + 0.5) / n) for i in range(n)]
    wrong = next((t for t in tokens if not (isinstance(t, int | np.integer) and 0 <= t < V)), None)
    assert wrong is None, (
        f"draw from {V} logits gave {brief(wrong)}, expected a token from 0 to {V - 1}" + (
            ": the place before the one at which the sum passes u, or none"
            if isinstance(wrong, int | np.integer) and wrong == -1 else ""))
    for i in range(0, n, -(-n // 20)):      # by chance all 20 are equal once in 10⁶ at most
        again = subject.draw(z, (i + 0.5) / n)
        assert again == tokens[i], (
            f"draw from {V} logits: the same u gave token {tokens[i]} and then {again}. "
            f"u is the random number: nothing else may be drawn")
    gone = [t for t in tokens if not shares[t]]
    assert not gone, f"draw from {V} logits: token {gone[0]} has the logit -inf, and it was drawn"
    counts = np.bincount(tokens, minlength=V)
    far = np.flatnonzero(np.abs(counts - shares * n) > 1 + 1e-6)
    book = np.searchsorted(np.cumsum(shares), (np.arange(n) + 0.5) / n, side="right")
    if not len(far):
        assert tokens == sorted(tokens), (
            f"draw from {V} logits: each token has its share, but u = "
            f"{next((i + 0.5) / n for i in range(n) if tokens[i] > tokens[i + 1]):g} gives a later "
            f"token than the next u. The running sum goes from token 0 to token {V - 1}")
        return
    t = far[0]
    why = ("u decides nothing: it is the likeliest token each time"
           if set(tokens) == {int(z.argmax())} else
           "each token is as likely as any other that is there: a logit is no share, take exp"
           if np.ptp(counts[shares > 0]) <= 2 else
           "u runs to 1 and the sum of exp(z - z.max()) further: multiply u by it"
           if counts[np.flatnonzero(shares)[-1]] == 0 else
           "it is the token after the one at which the sum passes u"
           if V > 1 and np.mean(tokens == np.minimum(book + 1, V - 1)) > 0.98 else
           "it is the token before the one at which the sum passes u"
           if V > 1 and np.mean(tokens == np.maximum(book - 1, 0)) > 0.98 else "")
    raise AssertionError(f"draw from {V} logits: token {t} has a share of {shares[t]:.3g}; of {n} "
                         f"even numbers {counts[t]} drew it, expected {shares[t] * n:.1f}. {why}")


EDGES = [
    ([0, 0, 0, 0], 0.0, 0, "u = 0 is passed by the first share"),
    ([0, 0, 0, 0], 0.25, 1, "the sum must pass u, not only reach it: 0.25 is token 1's"),
    ([-np.inf, 0, 0], 0.0, 1, "token 0 has no share, so its sum does not pass 0"),
    ([0, 0, -np.inf], 1 - 2**-24, 1, "the largest u that float32 has below 1 is still token 1's"),
    ([801, 800, -800], 0.9, 1, "shares 0.73, 0.27 and 0. Subtract the largest before exp"),
    ([-1001, -1000], 0.1, 0, "shares 0.27 and 0.73. Subtract the largest before exp")]


def test_draw__edges(subject):
    for z, u, want, why in EDGES:
        got = subject.draw(np.array(z, np.float32), u)
        assert got == want, f"draw from logits {z}, u = {u:g}: got {got}, expected {want}: {why}"


def test_draw__hard(subject, rng):
    """All in one process. A number on a boundary, where rounding decides, is left out."""
    rows = hard_rows(rng) | {"a likely token and 40,000 unlikely ones": tail()}
    for what, z in rows.items():
        sums = np.cumsum(np.exp(z.astype(np.float64) - z.max()))
        sums /= sums[-1]
        for u in (*rng.random(4).tolist(), 1e-7, 0.9998, 1 - 2**-24):
            want = int(np.searchsorted(sums, u, side="right"))
            far = len(z) > 9999
            if np.abs(sums - u).min() < (0 if far else 1e-9):
                continue
            got = subject.draw(z, u)
            assert isinstance(got, int | np.integer) and abs(got - want) <= 50 * far, (
                f"draw from {what}, u = {u:.8g}: got {got!r}, expected {want}, at which the "
                f"running sum passes u" + (f": {LOST}" if far else ""))


def test_draw__the_largest_u(subject, rng):
    """Shares that are rounded add up to a little less than 1 as often as not."""
    u = float(np.nextafter(1, 0))
    for V in (3, 7, 49, 1000) * 4:
        z = rng.standard_normal(V).astype(np.float32)
        got = subject.draw(z, u)
        assert isinstance(got, int | np.integer) and 0 <= got < V, (
            f"draw from {V} logits, u = 1 - 2^-53: got {got!r}, which is not a token. Shares that "
            f"were divided by their sum add up to less than u: compare with u times the whole sum")


# ---- rows, beside the kernels' own `sample`


def sampling(temperature, top_k, top_p, u):
    return Sampling(*(torch.tensor(a, dtype=kind) for a, kind in zip(
        (temperature, top_k, top_p, u),
        (torch.float32, torch.int32, torch.float32, torch.float32), strict=True)))


def is_close(z, temperature, top_k, top_p, u):
    """Whether rounding in float32 may decide what is drawn."""
    if temperature == 0:
        return False
    z = (z.astype(np.float64) - z.max()) / np.float64(np.float32(temperature))
    weights = np.exp(z)
    if 0 < top_k < len(z):
        weights[z < np.sort(z)[-top_k]] = 0
    if top_p < 1:
        kept, margin = kept_by_the_book(np.log(np.maximum(weights, 1e-300)), np.float32(top_p))
        weights[~kept] = 0
        if margin < 1e-5:
            return True
    sums = np.cumsum(weights) / weights.sum()
    return np.abs(sums[:-1] - u).min(initial=1) < 1e-5


@pytest.mark.parametrize("V", [1, 2, 129, 2048])
def test_rows_are_those_of_the_kernels(rng, V):
    """case 25: a mixed batch; temperatures 0 and 1e-4; top_k from 0 over V to above it."""
    B = 400
    z = (rng.standard_normal((B, V)) * 3).astype(np.float32)
    temperature = rng.choice([0, 1e-4, 0.5, 1, 2], B).astype(np.float32)
    top_k, top_p = rng.choice([0, 1, 7, V, 3000], B), rng.choice([0.05, 0.5, 0.9, 1], B)
    u = rng.random(B, dtype=np.float32)
    params = sampling(temperature, top_k, top_p, u)
    got = sample_rows(torch.from_numpy(z), params)
    want = kernels("torch").sample(torch.from_numpy(z), params)
    sure = ~np.array([is_close(*row) for row in zip(z, temperature, top_k, top_p, u, strict=True)])
    assert sure.mean() > 0.9, "too few rows are compared"
    assert torch.equal(got[sure], want[sure]) and got.dtype == want.dtype
    greedy = (temperature == 0) | (top_k == 1)
    assert (got.numpy()[greedy] == z.argmax(1)[greedy]).all()


def test_a_row_rests_on_itself_alone(rng):
    z = torch.from_numpy(rng.standard_normal((6, 500)).astype(np.float32))
    p = sampling([0, 1, 0.7, 1.3, 1e-4, 1], [0, 0, 5, 0, 3, 999], [1, 1, 1, 0.9, 0.5, 0.99],
                 [0.1, 0.99, 0.5, 0.2, 0.7, 0.999999])
    alone = [sample_rows(z[b:b + 1], Sampling(*(a[b:b + 1] for a in p))) for b in range(6)]
    assert torch.equal(sample_rows(z, p), torch.cat(alone))


def test_what_cannot_be_sampled_is_minus_one():
    nan, inf = float("nan"), float("inf")
    z = torch.tensor([[0, nan, 1], [-inf, -inf, -inf], [inf, 0, 0], [-inf, 3, -inf]])
    for temperature in (0.0, 1.0):
        p = sampling([temperature] * 4, [2] * 4, [0.9] * 4, [0.5] * 4)
        assert sample_rows(z, p).tolist() == [-1, -1, -1, 1]
        assert torch.equal(sample_rows(z, p), kernels("torch").sample(z, p))


def test_very_large_logits_and_very_small_temperatures():
    """case 25: no NaN where logits / temperature would overflow."""
    z = torch.tensor([[1e38, -1e38, 9e37], [1e4, 1e4 - 1, -1e4]])
    p = sampling([1e-4, 1e-4], [0, 0], [1, 0.5], [0.99, 0.99])
    assert sample_rows(z, p).tolist() == [0, 0]


# ---- uniform


def test_a_number_rests_on_seed_answer_and_position_alone():
    """case 23: in any order, any number of times; others for another seed, answer or position."""
    places = [(seed, index, position) for seed in (0, 1, 2**63, 2**64 - 1) for index in range(3)
              for position in (0, 1, 2, 511)]
    first = {place: uniform(*place) for place in places}
    assert first == {place: uniform(*place) for place in reversed(places)}
    assert len(set(first.values())) == len(places)
    assert all(0 <= u < 1 and np.float32(u) == u for u in first.values())


def test_the_numbers_of_a_request_are_even():
    """Kolmogorov's distance of 4,000 numbers, and none of a request's that follow each other alike:
    limits that even numbers miss once in 10⁶ times."""
    u = np.array([uniform(7, 0, i) for i in range(4000)])
    distance = np.abs(np.sort(u) - (np.arange(4000) + 0.5) / 4000).max()
    assert distance < 2.7 / np.sqrt(4000)
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 5 / np.sqrt(4000)


def test_seeds_of_requests():
    """case 23: a seed that is given, also a negative one; without one, twins differ."""
    given = Request("a", [1], SamplingParams(seed=-1))
    assert given.seed == 2**64 - 1 and given.uniform() == uniform(2**64 - 1, 0, 0)
    given.output.append(5)
    assert given.uniform() == uniform(2**64 - 1, 0, 1)
    twins = [Request("b", [1], SamplingParams()) for _ in range(2)]
    assert twins[0].uniform() != twins[1].uniform()
    brothers = [Request("c", [1], SamplingParams(seed=3), index) for index in range(2)]
    assert brothers[0].uniform() != brothers[1].uniform()


# ---- Detokenizer


def shown(subject, tokenizer, prompt, tokens):
    letters = subject.Detokenizer(tokenizer.decode, prompt)
    return [letters.add(token) for token in tokens], letters


TEXTS = ["plain words", "naïve café, 12 €", "🙂🙃 日本語 🇨🇭.", "a🙂"]


def test_Detokenizer(subject):
    """case 28: bytes as tokens. A character is shown with its last byte, not before, not later."""
    tokenizer = subject.make("layer3_system.testing.mock_llama:ByteTokenizer")
    for text in TEXTS:
        each_byte(subject, tokenizer, text)


def each_byte(subject, tokenizer, text):
    tokens = list(text.encode())
    got, letters = shown(subject, tokenizer, list(b"Say: "), tokens)
    whole = [bytes(tokens[:i + 1]).decode(errors="ignore") for i in range(len(tokens))]
    for i, piece in enumerate(got):
        before, so_far = "".join(got[:i]), whole[i]
        assert BROKEN not in piece, (
            f"{text!r} as bytes: after byte {i}, {tokens[i]:#x}, {piece!r} was shown: half a "
            f"character. Its other bytes may still come")
        if before + piece == so_far:
            continue
        again = piece and not so_far[len(before):] and before.endswith(piece)
        why = ("this was shown before" if again or piece.startswith("Say") or
               len(before + piece) > len(so_far) else
               "a character is held back that has all its bytes")
        raise AssertionError(f"{text!r} as bytes: after byte {i}, {tokens[i]:#x}, {piece!r} was "
                             f"shown, expected {so_far[len(before):]!r}: {why}")
    assert letters.rest() == ""


def test_Detokenizer__a_letter_after_a_stray_byte(subject):
    """case 28: only the end of a text can lack a byte."""
    tokenizer = subject.make("layer3_system.testing.mock_llama:ByteTokenizer")
    (first, piece), _ = shown(subject, tokenizer, [], list(b"\xffa"))
    assert (first, piece) == ("", BROKEN + "a"), (
        f"bytes b'\\xffa': {first!r} was shown with the first, then {piece!r}, expected '' and "
        f"{BROKEN + 'a'!r}. After the letter nothing lacks a byte: a BROKEN within the text is "
        f"whole, and only one at its end waits")


JUNK = [b"a\xff\xfe\xfdb", b"\xf0\x9f\x99 no", b"\x80" * 9 + b"z", b"ok \xf0\x9f"]


def test_Detokenizer__bytes_that_are_no_character(subject):
    """case 28: what never becomes whole is shown in the end, and delays the rest by no more
    than four tokens."""
    tokenizer = subject.make("layer3_system.testing.mock_llama:ByteTokenizer")
    for data in JUNK:
        got, letters = shown(subject, tokenizer, [], list(data))
        want = data.decode(errors="replace")
        for i in range(len(data)):
            so_far, known = "".join(got[:i + 1]), data[:i + 1].decode(errors="replace")
            assert want.startswith(so_far), (
                f"bytes {data!r}: {so_far!r} was shown by byte {i}; the whole text is {want!r}. "
                f"Something was shown twice, or before it was known")
            assert len(known) - len(so_far) <= 4, (
                f"bytes {data!r}: by byte {i} {known!r} is there and only {so_far!r} was shown. No "
                f"character has more than 4 bytes: what is not whole by then never will be")
        assert "".join(got) + letters.rest() == want, (
            f"bytes {data!r}: shown {''.join(got)!r} and at the end {letters.rest()!r}, expected "
            f"{want!r} in all" + (
                ". All was shown before the end: what counts as shown must be the text of the "
                "tokens that are kept, not the last piece" if "".join(got) == want else ""))


def test_Detokenizer__by_turns(subject, rng, reference):
    """Two answers by turns, of bytes that are characters, halves of them, and tokens without a
    text; each may be over at any point. `add` says which piece is shown when."""
    signs = [b"a", b"z", "é".encode(), "🙂".encode(), b"\xf0\x9f", b"\x80", b"\xff", b"\xe6\x97"]
    tokens = list(b"".join(signs[i] for i in rng.integers(0, len(signs), 60)))
    tokens[10:10] = [END, 40_000, END]
    two = [tokens, tokens[::-1], *[[*b"ab", *data] for data in (b"\x80" * 7 + b"c", b"\xff" * 4)]]
    for prompt, (first, second) in product(([], [65], [65, 0xF0, 0x9F]), (two[:2], two[2:])):
        alone = [(first, i) for i in range(len(first))]
        turns = [each for i in range(min(len(first), len(second)))
                 for each in ((first, i), (second, i))]
        beside(subject, reference, prompt, "one answer", alone, "a piece comes too late, or too "
               "soon: what four tokens did not make whole is shown with the fourth")
        beside(subject, reference, prompt, "two answers by turns", turns, "an answer depends "
               "on its own tokens alone, not on what came last to another")


def beside(subject, reference, prompt, what, steps, why):
    """Each step gives an answer one of its tokens, there and in the course's own."""
    sides = []
    for side in (subject, reference):
        decode = side.make("layer3_system.testing.mock_llama:ByteTokenizer").decode
        sides.append({id(tokens): side.Detokenizer(decode, prompt) for tokens, _ in steps})
    for tokens, i in steps:
        at = f"Detokenizer, {what}, token {i}, {tokens[i]:#x} after {tokens[max(i - 5, 0):i]}"
        got, want = (side[id(tokens)].add(tokens[i]) for side in sides)
        assert got == want, f"{at}: {got!r} was shown, expected {want!r}: {why}"
        got, want = (side[id(tokens)].rest() for side in sides)
        assert got == want, (
            f"{at}: were the answer over now, rest() would be {got!r}, expected {want!r}")


def test_Detokenizer__asks_decode(subject):
    """The decode that was handed in writes the tokens, and nothing else does."""
    decoder = subject.make("tokenizers.decoders:Metaspace")
    watched = subject.make("lab.judge.mocks:Watched", decoder.decode)
    letters = subject.Detokenizer(watched, ["▁Say"])
    before = len(watched.calls)
    letters.add("▁a")
    assert len(watched.calls) > before, (
        "Detokenizer.add never calls the decode that was handed in: only that one knows how these "
        "tokens are written")


def test_Detokenizer__a_prompt_that_ends_inside_a_character(subject):
    """case 28: its character is the prompt's; the answer begins after it."""
    tokenizer = subject.make("layer3_system.testing.mock_llama:ByteTokenizer")
    face = list("🙂".encode())
    got, _ = shown(subject, tokenizer, [65, *face[:2]], [*face[2:], 66])
    assert "".join(got) == "B", (
        f"The prompt ends with half of 🙂, the answer has its other half and a B: shown {got}. "
        f"What the prompt began is not the answer's, so only B is")


def test_Detokenizer__words_need_what_is_before_them(subject):
    """A decoder that drops the blank of the first word, as SentencePiece's does."""
    words = ["▁Tom", "▁and", "▁Ida", "▁run"]
    decoder = subject.make("tokenizers.decoders:Metaspace")
    got, _ = shown(subject, decoder, ["▁Say"], words)
    assert got == [" Tom", " and", " Ida", " run"], (
        f"Tokens {words} after a prompt: shown {got}. This tokenizer writes the blank of a word "
        f"only after another token, so decode a token together with those before it")


def test_Detokenizer__decodes_only_the_newest(subject):
    """300 tokens: each decode is of a few."""
    tokenizer = subject.make("layer3_system.testing.mock_llama:ByteTokenizer")
    watched = subject.make("lab.judge.mocks:Watched", tokenizer.decode)
    letters = subject.Detokenizer(watched, [65] * 50)
    text = "".join(letters.add(97 + i % 26) for i in range(300))
    assert text == "".join(chr(97 + i % 26) for i in range(300))
    most = max(len(tokens) for (tokens,) in watched.calls)
    assert most <= 16, (
        f"After 300 tokens {most} were decoded at once: then an answer of n tokens costs n². What "
        f"was shown while all was whole need not be decoded again, except the last of it")


def test_Detokenizer__unseen(subject, rng):
    """Characters of one byte to four."""
    tokenizer = subject.make("layer3_system.testing.mock_llama:ByteTokenizer")
    for _ in range(3):
        signs = [rng.integers(*ends, 4) for ends in (
            (0x20, 0x7f), (0xa1, 0x600), (0x4e00, 0x9000), (0x1f600, 0x1f640))]
        text = "".join(map(chr, rng.permutation(np.concatenate(signs)).tolist()))
        each_byte(subject, tokenizer, text)


@pytest.mark.parametrize("seed", range(3))
def test_pieces_of_the_small_model_are_its_text(seed):
    """case 28: the sum of what is shown is the text, whatever the tokens; also random ones."""
    tokenizer = Tokenizer(SMALL, read_config(SMALL))
    rng = np.random.default_rng(seed)
    tokens = [int(t) for t in rng.integers(2, 400, 300)]            # many are single bytes
    prompt = tokenizer.encode("Once upon a time")
    letters = Detokenizer(tokenizer.decode, prompt)
    got = "".join(letters.add(t) for t in tokens) + letters.rest()
    assert got == tokenizer.decode(prompt + tokens)[len(tokenizer.decode(prompt)):]


def test_a_prompt_is_not_cut_inside_a_character():
    """case 28, for a tokenizer that falls back to bytes: one broken byte breaks all its neighbours,
    so the few tokens of the prompt that are decoded again must begin with a character."""
    from tokenizers import decoders

    decoder = decoders.ByteFallback()

    def decode(tokens):
        return decoder.decode([f"<0x{t:02X}>" for t in tokens])

    for faces in range(1, 5):
        letters = Detokenizer(decode, list(("🙂" * faces).encode()))
        got = [letters.add(token) for token in "🙃é".encode()]
        assert got == ["", "", "", "🙃", "", "é"], f"after {faces} faces"


# ---- StopStrings


def pieces_of(subject, stops, texts):
    watch = subject.StopStrings(stops)
    got = []
    for text in texts:
        got.append(watch.add(text))
        if watch.found is not None:
            break
    return got, watch


STOPS = [
    (["\n\n"], "one\ntwo\n\nthree", "one\ntwo", "\n\n"),
    (["END"], "the EN of ENEND is", "the EN of EN", "END"),
    (["aab"], "aaab!", "a", "aab"),
    (["stop", "top"], "don't stop", "don't ", "stop"),
    (["xyz", "lo"], "hello xyz", "hel", "lo"),
    (["never"], "nev neve", "nev neve", None),
    (["é🙂"], "é é🙂", "é ", "é🙂"),
    ([], "free", "free", None)]


def test_StopStrings(subject):
    """case 27: a character at a time, in pairs, and all at once."""
    for stops, text, want, found, size in [(*row, size) for row in STOPS
                                           for size in (1, 2, len(row[1]))]:
        parts = [text[i:i + size] for i in range(0, len(text), size)]
        got, watch = pieces_of(subject, stops, parts)
        what = f"stops {stops}, text in pieces {parts}"
        shown, stop = "".join(got), watch.found
        if stop is None:
            shown += watch.rest()
        assert stop is None or stop in stops, (
            f"{what}: found is {stop!r}; it is one of the stops, as a text")
        assert found is not None or stop is None, f"{what}: stopped at {stop!r}, which is not there"
        assert stop is None or stop == found, \
            f"{what}: stopped at {stop!r}; {found!r} comes earlier in the text"
        for i in range(len(got)):
            so_far, read = "".join(got[:i + 1]), "".join(parts[:i + 1])
            if want.startswith(so_far):
                continue
            why = ("The stop itself was shown: it is dropped, and all text after it"
                   if found and so_far.startswith(want + found) else
                   "Something is missing: text that was held back and became no stop must be shown"
                   if not text.startswith(so_far) else
                   f"Its end may be the beginning of the stop {found!r}: hold it back"
                   if len(read) < len(want + (found or "")) else
                   f"The stop {found!r} is whole with this piece; it began in an earlier one")
            raise AssertionError(f"{what}: by piece {i}, {parts[i]!r}, {so_far!r} was shown. {why}")
        assert stop == found, f"{what}: no stop was found; {found!r} is there"
        assert shown == want, (
            f"{what}: {shown!r} was shown in the end, expected {want!r}. What was held back and "
            f"then was no stop is text")


def test_StopStrings__holds_back_no_more_than_it_must(subject):
    """case 27: at most the longest stop less one; and only what may be the beginning of one."""
    stops = ["</answer>", "\nUser:"]
    watch, shown, text = subject.StopStrings(stops), "", "a < b and\nUs two </ans> so </answe"
    for i, letter in enumerate(text):
        shown += watch.add(letter)
        held = text[:i + 1].removeprefix(shown)
        assert text.startswith(shown) and shown + held == text[:i + 1], \
            f"stops {stops}: of {text[:i + 1]!r} {shown!r} was shown"
        most = max((n for stop in stops for n in range(1, len(stop))
                    if text[:i + 1].endswith(stop[:n])), default=0)
        assert len(held) >= most, (
            f"stops {stops}: of {text[:i + 1]!r} {shown!r} was shown already, but its end may "
            f"become a stop")
        assert len(held) <= most, (
            f"stops {stops}: of {text[:i + 1]!r} {held!r} is held back. No stop begins so, at most "
            f"with its last {most} characters: the reader waits for nothing")
    assert watch.rest() == "</answe"


def test_StopStrings__of_two_that_begin_alike(subject):
    """The longer beginning must be held back."""
    got, watch = pieces_of(subject, ["ab!", "babab?"], list("babab."))
    assert "".join(got) + watch.rest() == "babab."
    got, watch = pieces_of(subject, ["b!", "babab?"], list("xbabab?y"))
    assert "".join(got) == "x" and watch.found == "babab?", (
        f"stops ['b!', 'babab?'], text 'xbabab?y' letter by letter: shown {''.join(got)!r}, found "
        f"{watch.found!r}. The end of 'xbab' may begin either; the longest such end is held back")


def test_StopStrings__where_two_meet(subject):
    """A stop that is whole ends the text at once, though a longer one may begin so. Of two whole
    ones that begin at one place either may be named."""
    for parts in (["xab"], ["x", "a", "b"], ["xa", "b"]):
        got, watch = pieces_of(subject, ["abc", "ab"], parts)
        assert ("".join(got), watch.found) == ("x", "ab"), (
            f"stops ['abc', 'ab'], text in pieces {parts}: {''.join(got)!r} was shown and "
            f"{watch.found!r} found. 'ab' is whole, so the text ends: no longer stop is waited for")
    for stops in (["abc", "ab"], ["ab", "abc"]):
        got, watch = pieces_of(subject, stops, ["xabcd"])
        assert "".join(got) == "x" and watch.found in stops, (
            f"stops {stops}, both whole at one place of 'xabcd': {''.join(got)!r} was shown and "
            f"{watch.found!r} found")
    for stops, parts in ((["b"], ["abc"]), (["bc"], ["ab", "cd"])):
        got, watch = pieces_of(subject, stops, parts)
        assert watch.rest() == "", (
            f"stops {stops}, text in pieces {parts}: after the stop rest() is {watch.rest()!r}, "
            f"expected nothing: the stop and all text after it are dropped")
    text = "a" * 40_000
    got, watch = pieces_of(subject, ["ab"], [text, "c"])
    assert "".join(got) == text + "c", "stops ['ab'], a piece of 40,000 letters: not all was shown"


def test_StopStrings__the_longest_begin(subject):
    """All of a stop but its last letter is held back, for stops of one letter and more."""
    for stop in ("a", "ab", "abc", "aaaa", "é🙂é"):
        watch = subject.StopStrings([stop])
        shown = [watch.add(letter) for letter in "x" + stop[:-1]]
        assert "".join(shown) == "x" and watch.found is None, (
            f"stop {stop!r}: of {'x' + stop[:-1]!r} {''.join(shown)!r} was shown. All of the stop "
            f"but its last letter is there: hold back each letter of it")
        assert watch.rest() == stop[:-1]


def read_by_the_book(stops, text):
    """(what can be shown of a text, the stop that is whole in it or None)."""
    places = [(text.find(stop), stop) for stop in stops if stop in text]
    if places:
        at, stop = min(places)
        return text[:at], stop
    held = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])),
               default=0)
    return text[:len(text) - held], None


def test_StopStrings__unseen(subject, rng):
    """Of three letters, so that much looks like the beginning of a stop; none is within another."""
    def word(least, most):
        return "".join(rng.choice(list("abc"), int(rng.integers(least, most))))

    for _ in range(40):
        drawn = [word(1, 7) for _ in range(3)]
        stops = [a for a in drawn if not any(b in a for b in drawn if b != a)]
        parts = [word(1, 4) for _ in range(12)]
        watch, shown, read = subject.StopStrings(stops), "", ""
        for part in parts:
            shown, read = shown + watch.add(part), read + part
            got, want = (shown, watch.found), read_by_the_book(stops, read)
            assert got == want, (
                f"stops {stops}, text in pieces {parts}: of {read!r} {got[0]!r} was shown and "
                f"{got[1]!r} found, expected {want[0]!r} and {want[1]!r}")
            assert watch.rest() == ("" if want[1] else read[len(want[0]):]), (
                f"stops {stops}, text in pieces {parts}: of {read!r} rest() is {watch.rest()!r}")
            if want[1] is not None:
                break


# ---- how an answer ends


def answer(output, ends=(1, 2), prompt=(9, 9), limit=2**31, **params):
    request = Request("r", list(prompt), SamplingParams(**params), limit=limit)
    request.output = list(output)
    return finish_reason(request, ends)


def test_an_end_comes_before_the_length():
    """case 26: first the model's ends, which are a list, then stop tokens, then length."""
    assert answer([5, 6]) is None
    assert answer([5, 1]) == answer([5, 2]) == "stop"
    assert answer([1, 5]) is None                               # only the newest token ends it
    assert answer([5, 7], stop_token_ids=(7, 8)) == "stop"
    assert answer([5, 6], max_tokens=2) == "length"
    assert answer([5, 1], max_tokens=2) == "stop"               # both at once
    assert answer([5, 7], max_tokens=2, stop_token_ids=(7,)) == "stop"
    assert answer([5, 6], max_tokens=None, limit=4) == "length"
    assert answer([5], max_tokens=None, limit=4) is None


def test_ignore_eos_leaves_stop_tokens_and_length():
    """case 26"""
    assert answer([1], ignore_eos=True) is None
    assert answer([1], ignore_eos=True, stop_token_ids=(1,)) == "stop"
    assert answer([1], ignore_eos=True, max_tokens=1) == "length"


def test_nothing_but_length_ends_before_min_tokens():
    """case 26"""
    least = {"min_tokens": 3, "max_tokens": 5, "stop_token_ids": (7,)}
    assert answer([1], **least) is None and answer([5, 7], **least) is None
    assert answer([5, 5, 1], **least) == "stop" and answer([5, 5, 7], **least) == "stop"
    assert answer([5, 1], min_tokens=3, max_tokens=9, limit=4) == "length"


def test_one_token_is_an_answer():
    """case 22: max_tokens 1 is done with the token that the prompt's step gives."""
    assert answer([5], max_tokens=1) == "length" and answer([1], max_tokens=1) == "stop"


# ---- log probabilities


def test_log_probabilities_are_those_of_raw_logits(rng):
    """case 29: log-softmax of the logits; the token itself is always there."""
    z = (rng.standard_normal(50) * 4).astype(np.float32)
    want = z.astype(np.float64) - np.log(np.exp(z.astype(np.float64)).sum())
    order = np.argsort(-z)
    for token in (int(order[0]), int(order[3]), int(order[-1])):
        for count in (0, 1, 5, 50, 60):
            got = logprobs_of(torch.from_numpy(z), token, count)
            assert set(got) == {*order[:count].tolist(), token}
            assert all(abs(got[t] - want[t]) < 1e-5 for t in got)
    got = logprobs_of(torch.from_numpy(z), int(order[-1]), 5)
    assert list(got) == [*order[:5].tolist(), order[-1]]        # the likeliest first


def test_log_probabilities_of_extreme_logits():
    """case 29"""
    got = logprobs_of(torch.tensor([1e4, 0.0, -1e4]), 2, 1)
    assert got == {0: 0.0, 2: -2e4}
    assert logprobs_of(torch.tensor([3.0, 3.0], dtype=torch.bfloat16), 1, 0) == \
        {1: pytest.approx(-np.log(2), abs=1e-6)}


# ---- what a client may ask for


@pytest.mark.parametrize("field, value", [
    *(("max_tokens", v) for v in (0, -1, 1.0, "16", True)),
    *(("min_tokens", v) for v in (-1, None, 0.5)), ("min_tokens", 17),
    *(("temperature", v) for v in (-0.1, float("nan"), float("inf"), "1", None, True, 101)),
    *(("top_k", v) for v in (-2, 1.0, 2**31, None, False)),
    *(("top_p", v) for v in (0, -0.5, 1.01, float("nan"), "0.9", None)),
    *(("seed", v) for v in (2**63, -2**63 - 1, 1.0, "1", True)),
    *(("stop", v) for v in ("text", ["text"], ("",), ("a", 1), ("x",) * 17, None)),
    *(("stop_token_ids", v) for v in ((-1,), (1.0,), [1], (True,), 5)),
    *(("ignore_eos", v) for v in (0, None, "yes")),
    *(("logprobs", v) for v in (-1, 21, True, 1.5)),
    *(("prompt_logprobs", v) for v in (-1, 21, "1")),
    *(("n", v) for v in (0, -1, 129, None, 2.0, True))])
def test_a_wrong_field_is_one_sentence(field, value):
    """case 22: zero, negative and wrongly typed; the message names field, expected and found."""
    with pytest.raises(RequestError, match=f"^{field}: expected .*found"):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("params", [
    {}, {"max_tokens": 1}, {"max_tokens": None, "min_tokens": 50}, {"temperature": 0},
    {"temperature": 1e-4}, {"top_k": -1}, {"top_k": 10**6}, {"top_p": 1}, {"top_p": 1e-9},
    {"seed": -2**63}, {"seed": 2**63 - 1}, {"stop": ("a",) * 16}, {"stop_token_ids": (0,)},
    {"logprobs": 0, "prompt_logprobs": 20}, {"n": 128}])
def test_what_is_right_is_taken(params):
    """case 22"""
    made = SamplingParams(**params)
    assert all(getattr(made, name) == value for name, value in params.items())


def test_the_mock_tokenizer_is_what_the_graders_think():
    assert ByteTokenizer().decode([*"é".encode(), END]) == "é"
    assert ByteTokenizer().decode([0xF0, 0x9F]) == BROKEN
