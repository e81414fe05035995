"""Graders of s01: shares are worked out in float64, texts by decoding all at once.

"case N" counts the cases that any engine must handle; what s01 gives: test_sampling.py.
"""

from itertools import product

import numpy as np
import pytest

from lab.judge.adversarial import VALUES, around
from lab.judge.compare import brief
from lab.judge.mistakes import mistake

BROKEN = "\N{REPLACEMENT CHARACTER}"
END = 256               # ByteTokenizer's token that ends a text
BYTES = "layer3_system.testing.mock_llama:ByteTokenizer"

WHY = {
    # predict_changed
    "nothing": "None would: that is what you will build. A shared generator is drawn row by row.",
    "everything": "Before the neighbour joins, row 0 gets the same numbers as when it is alone.",
    "one_too_many": "In the step in which the neighbour joins, row 0 still gets its number first.",
    "too_few": "Too few. Which numbers does row 0 get once there are two rows?",
    # keep_top_p
    "zero_logit": "What goes is -inf; with a logit of 0 it would still be drawn.",
    "value_changed": "A logit that is kept must keep its value and its place.",
    "own_share": "There is always one that reaches p. Is each token's own share compared with p?",
    "one_too_few": "One too few: the token that reaches p is kept.",
    "raw_exp": "Those add up to p in exp(logit). A share is that, divided by the sum of all.",
    "least_first": "That comes from adding from the least likely token up. Start at the likeliest.",
    "own_share_p": "Those have a share of p or more, each alone. The shares are to be added up.",
    "min_p": "Those have at least p times the largest share. That is min-p, another rule.",
    "by_count": "That is the share p of all tokens by number. The sum of their shares is p.",
    "ties_split": "Two that tie must both stay, so that their order does not decide.",
    "passes_p": "The token that reaches p exactly is enough: the sum need not exceed p.",
    "all_of_1": "p = 1 keeps every token, also one whose share is too small for a float.",
    "float32": "In float32 a share of 1e-8 added to nearly 1 is lost: add in float64.",
    # draw
    "draws_again": "u is the random number: nothing else may be drawn.",
    "ignores_u": "u is ignored: the likeliest token is drawn every time.",
    "all_alike": "All tokens are equally likely: a logit is not a share, take exp.",
    "u_not_scaled": "u ends at 1, the sum of exp(z - z.max()) does not: multiply u by the sum.",
    "token_after": "It is the token after the one at which the sum exceeds u.",
    "token_before": "It is the token before the one at which the sum exceeds u.",
    "sorted": "Shares are right, the order is not: add up from token 0 to the last.",
    "reaches": "The sum must exceed u: u = 0.25 belongs to token 1.",
    "overflow": "Subtract the largest before exp.",
    "sum_below_1": "Shares divided by their sum add up to less than u: compare with u · sum.",
    # Detokenizer
    "half_character": "The character is incomplete: its other bytes may still come.",
    "shown_before": "This was shown before.",
    "held_back": "A complete character was held back.",
    "broken_inside": "No byte is missing after the letter: only a BROKEN at the end waits.",
    "too_early": "Something was shown twice, or before it was known.",
    "waits_for_ever": "No character has more than 4 bytes: after 4 tokens show what is incomplete.",
    "rest_lost": "What was held back is lost at the end: rest() shows it.",
    "length_of_piece": "`shown` counts the text of the tokens that are kept, not the last piece.",
    "waits_for_5": "Too late or too early: the fourth token shows what is still incomplete.",
    "shared_state": "An answer depends on its own tokens alone: keep state in self, not the class.",
    "own_decode": "It does not call self.decode: only that function knows this tokenizer.",
    "forgets_all": "The space depends on the token before: decode a token together with those.",
    "keeps_all": "So n tokens cost n² work. Once the text is complete, drop the older tokens.",
    # StopStrings
    "by_index": "found is one of the stop strings, as a text.",
    "later_stop": "found is the one that starts earliest in the text.",
    "stop_shown": "The stop string itself was shown: it is dropped, and all text after it.",
    "held_lost": "Text is missing: held-back text that became no stop string must be shown.",
    "not_held": "Its ending may be the beginning of a stop string: hold it back.",
    "shorter_ending": "Hold back the longest ending that can begin a stop string, no shorter one.",
    "piece_alone": "With this piece a stop string is complete; it began in an earlier piece.",
    "holds_too_much": "Hold back only what can begin a stop string: a reader waits for the rest.",
    "waits_for_longer": "A stop string is complete, so the text ends: wait for no longer one.",
    "held_after_stop": "The stop string and everything after it are dropped.",
}


def tell(name, seen):
    """The message of a mistake, or of "", which names none: what was seen, and why it is wrong."""
    return mistake(name, f"{seen}. {WHY.get(name, '')}".rstrip(), WHY.get(name, ""))


def first_true(cases):
    """The first name whose condition holds, of {name: condition}; "" if none does."""
    return next((name for name, holds in cases.items() if holds), "")


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
    assert isinstance(got, int), f"predict_changed: expected a whole number, got {got!r}"
    name = first_true({"nothing": got == 0, "everything": got == 40,
                       "one_too_many": got == want + 1, "too_few": got < want})
    assert got == want, tell(name, f"predict_changed: {got} is not right")


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
    assert got.shape == np.shape(z), \
        f"{what}: shape {got.shape}, expected {np.shape(z)}: a logit a token, -inf if removed"
    kept = ~np.isneginf(got)
    changed = np.flatnonzero(kept & (got != z))
    zeros = kept.all() and not got[changed].any() and len(changed) < len(z)
    assert not len(changed), tell(
        "zero_logit" if zeros else "value_changed",
        f"{what}: {len(changed)} logits have changed; that of token {changed[0]} was "
        f"{z[changed[0]]:.6g}, now it is {got[changed[0]]:.6g}")
    return kept


def kept_by_mistake(z, p, n, m):
    """The mistake that keeps m tokens where n are right, "" if none is known."""
    V = len(z)
    raw = np.sort(np.exp(z.astype(np.float64)))             # from the least likely on
    up = int(((raw.cumsum() - raw) < p * raw.sum()).sum())
    return first_true({
        "own_share": m == 0,
        "one_too_few": m == n - 1,
        "raw_exp": m == max(int(((raw[::-1].cumsum() - raw[::-1]) < p).sum()), 1),
        "least_first": m in (V - up + 1, up),
        "own_share_p": m == (raw >= p * raw.sum()).sum(),
        "min_p": m == (raw >= p * raw.max()).sum(),
        "by_count": V > 20 and m in (int(p * V), round(p * V), -int(-p * V // 1))})


@pytest.mark.parametrize("V, spread", [(127, 0.1), (5, 1), (1000, 3), (1, 1)])
def test_keep_top_p(subject, rng, V, spread):
    """case 25: the token with which the share is reached is kept."""
    for p in (0.9, 0.6, 0.3, 0.999, 1e-6, 1):
        z = (rng.standard_normal(V) * spread + 5).astype(np.float32)
        want, margin = kept_by_the_book(z, p)
        what = f"keep_top_p of {V} logits, p = {p:g}"
        kept = kept_of(subject.keep_top_p(z, p), z, what)
        if margin < 1e-6 < p < 1:           # on a boundary either answer is right
            continue
        n, m = (int(tokens.sum()) for tokens in (want, kept))
        assert (kept == want).all(), tell(
            kept_by_mistake(z, p, n, m), f"{what}: the {n} likeliest tokens reach p; {m} were kept")


ROWS = [        # (logits, p, the tokens that stay, why, the mistake)
    (np.array([0, 3, 0, -2, 3, 0], np.float32), 0.3, [1, 4],
     "tokens 1 and 4 tie, and each has a share of 0.44", "ties_split"),
    (np.array([1 + 1e-9, 1]), 0.5, [0],
     "token 0 has a little more than 0.5; only in float32 would the two be equal", ""),
    (np.array([900, -np.inf, 899, 895, -np.inf], np.float32), 0.9, [0, 2],
     "they hold 0.73 and 0.27; exp(900) is too large for any float: subtract the largest", ""),
    (np.array([0, -800, 3, -1e4, 0], np.float32), 1, [0, 1, 2, 3, 4], "all", "all_of_1")]


def test_keep_top_p__rows(subject):
    """Equals stay together; float64 keeps its precision; after top-k; p = 1."""
    for z, p, want, why, name in ROWS:
        what = f"keep_top_p of {z.tolist()} in {z.dtype}, p = {p}"
        got = np.flatnonzero(kept_of(subject.keep_top_p(z, p), z, what)).tolist()
        assert got == want, tell(name, f"{what}: kept tokens {got}, expected {want}: {why}")


def test_keep_top_p__reached_exactly(subject):
    """Shares that are powers of 2. A right formula may round one of them, not all."""
    passed = []
    for n in (2, 4, 8):
        z = np.array([np.log(n), *[0] * n])
        passed.append(kept_of(subject.keep_top_p(z, 0.5), z, "keep_top_p").all())
    assert not all(passed), tell(
        "passes_p", "keep_top_p of [log 2, 0, 0], p = 0.5, and of two rows like it: token 0 holds "
                    "exactly p, and all were kept")


def hard_rows(rng):
    """{what: logits} on which a plausible answer differs, and none where its rounding decides."""
    kinds = {"negative logits only": "negative", "0 and -0 among the logits": "signed_zeros",
             "-inf among the logits": "infinite", "logits that use all 24 bits": "unrounded"}
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
    z = tail()
    want, _ = kept_by_the_book(z, 0.9998)
    kept = kept_of(subject.keep_top_p(z, 0.9998), z, "tail")
    assert abs(int(kept.sum()) - int(want.sum())) < 50, tell(
        "float32", f"keep_top_p of a likely token and 40,000 unlikely ones, p = 0.9998: kept "
                   f"{kept.sum()}, expected {want.sum()}")


# ---- draw


def drawn_by_mistake(z, tokens, counts, shares):
    """The mistake that draws these tokens with even numbers, "" if none is known."""
    V = len(z)
    book = np.searchsorted(np.cumsum(shares), (np.arange(len(tokens)) + 0.5) / len(tokens),
                           side="right")
    return first_true({
        "ignores_u": set(tokens) == {int(z.argmax())},
        "all_alike": np.ptp(counts[shares > 0]) <= 2,
        "u_not_scaled": counts[np.flatnonzero(shares)[-1]] == 0,
        "token_after": V > 1 and np.mean(tokens == np.minimum(book + 1, V - 1)) > 0.98,
        "token_before": V > 1 and np.mean(tokens == np.maximum(book - 1, 0)) > 0.98})


@pytest.mark.parametrize("V, spread, n", [(1, 1, 9), (5, 1, 400), (127, 2, 1000)])
def test_draw(subject, rng, V, spread, n):
    """n even numbers in order: a token of share p is drawn p · n times, give or take 1."""
    z = (rng.standard_normal(V) * spread).astype(np.float32)
    z[rng.permutation(V)[:V // 3]] = -np.inf
    shares = np.exp(z.astype(np.float64))
    shares /= shares.sum()
    tokens = [subject.draw(z, (i + 0.5) / n) for i in range(n)]
    what = f"draw from {V} logits"
    wrong = next((t for t in tokens if not (isinstance(t, int | np.integer) and 0 <= t < V)), None)
    assert wrong is None, tell(
        "token_before" if isinstance(wrong, int | np.integer) and wrong == -1 else "",
        f"{what} gave {brief(wrong)}, expected a token from 0 to {V - 1}")
    for i in range(0, n, -(-n // 20)):      # by chance all 20 are equal once in 10⁶ at most
        again = subject.draw(z, (i + 0.5) / n)
        assert again == tokens[i], tell(
            "draws_again", f"{what}: the same u gave token {tokens[i]} and then {again}")
    gone = [t for t in tokens if not shares[t]]
    assert not gone, f"{what}: token {gone[0]} has the logit -inf, and it was drawn"
    counts = np.bincount(tokens, minlength=V)
    far = np.flatnonzero(np.abs(counts - shares * n) > 1 + 1e-6)
    assert not len(far), tell(
        drawn_by_mistake(z, tokens, counts, shares),
        f"{what}: token {far[0]} has a share of {shares[far[0]]:.3g}; of {n} evenly spaced u, "
        f"{counts[far[0]]} drew it; expected {shares[far[0]] * n:.1f}")
    late = next(((i + 0.5) / n for i in range(n - 1) if tokens[i] > tokens[i + 1]), None)
    assert late is None, tell("sorted", f"{what}: u = {late} gives a later token than the next "
                                        f"larger u")


EDGES = [       # (logits, u, the token, why, the mistake)
    ([0, 0, 0, 0], 0.0, 0, "u = 0 belongs to the first token with a share", ""),
    ([0, 0, 0, 0], 0.25, 1, "equal shares of 0.25", "reaches"),
    ([-np.inf, 0, 0], 0.0, 1, "token 0 has share 0, so u = 0 belongs to token 1", ""),
    ([0, 0, -np.inf], 1 - 2**-24, 1, "the largest float32 below 1 still belongs to token 1", ""),
    ([801, 800, -800], 0.9, 1, "shares 0.73, 0.27 and 0", "overflow"),
    ([-1001, -1000], 0.1, 0, "shares 0.27 and 0.73", "overflow")]


def test_draw__edges(subject):
    for z, u, want, why, name in EDGES:
        got = subject.draw(np.array(z, np.float32), u)
        assert got == want, tell(
            name, f"draw from logits {z}, u = {u:g}: got {got}, expected {want}: {why}")


def test_draw__hard(subject, rng):
    """All in one process; a number on a boundary, where rounding decides, is left out."""
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
            assert isinstance(got, int | np.integer) and abs(got - want) <= 50 * far, tell(
                "float32" if far else "", f"draw from {what}, u = {u:.8g}: got {got!r}, expected "
                                          f"{want}, at which the running sum exceeds u")


def test_draw__the_largest_u(subject, rng):
    """Shares that are rounded add up to a little less than 1 as often as not."""
    u = float(np.nextafter(1, 0))
    for V in (3, 7, 49, 1000) * 4:
        z = rng.standard_normal(V).astype(np.float32)
        got = subject.draw(z, u)
        assert isinstance(got, int | np.integer) and 0 <= got < V, tell(
            "sum_below_1", f"draw from {V} logits, u = 1 - 2^-53: got {got!r}, which is no token")


# ---- Detokenizer


def shown(subject, tokenizer, prompt, tokens):
    letters = subject.Detokenizer(tokenizer.decode, prompt)
    return [letters.add(token) for token in tokens], letters


TEXTS = ["plain words", "naïve café, 12 €", "🙂🙃 日本語 🇨🇭.", "a🙂"]


def test_Detokenizer(subject):
    """case 28, bytes as tokens: a character is shown with its last byte, not sooner or later."""
    tokenizer = subject.make(BYTES)
    for text in TEXTS:
        each_byte(subject, tokenizer, text)


def each_byte(subject, tokenizer, text):
    tokens = list(text.encode())
    got, letters = shown(subject, tokenizer, list(b"Say: "), tokens)
    for i, piece in enumerate(got):
        before = "".join(got[:i])
        so_far = bytes(tokens[:i + 1]).decode(errors="ignore")
        again = piece and not so_far[len(before):] and before.endswith(piece)
        name = first_true({"half_character": BROKEN in piece, "shown_before": (
            again or piece.startswith("Say") or len(before + piece) > len(so_far)),
            "held_back": True})
        assert before + piece == so_far, tell(
            name, f"{text!r} as bytes: after byte {i}, {tokens[i]:#x}, {piece!r} was shown, "
                  f"expected {so_far[len(before):]!r}")
    assert letters.rest() == "", f"{text!r} as bytes: after the last, rest() is not ''"


def test_Detokenizer__a_letter_after_a_stray_byte(subject):
    """case 28: only the end of a text can lack a byte."""
    (first, piece), _ = shown(subject, subject.make(BYTES), [], list(b"\xffa"))
    assert (first, piece) == ("", BROKEN + "a"), tell(
        "broken_inside", f"bytes b'\\xffa': {first!r} was shown with the first, then {piece!r}, "
                         f"expected '' and {BROKEN + 'a'!r}")


JUNK = [b"a\xff\xfe\xfdb", b"\xf0\x9f\x99 no", b"\x80" * 9 + b"z", b"ok \xf0\x9f"]


def test_Detokenizer__bytes_that_are_no_character(subject):
    """case 28: what is never whole is shown in the end, and delays the rest by 4 tokens at most."""
    tokenizer = subject.make(BYTES)
    for data in JUNK:
        got, letters = shown(subject, tokenizer, [], list(data))
        want = data.decode(errors="replace")
        for i in range(len(data)):
            so_far = "".join(got[:i + 1])
            known = data[:i + 1].decode(errors="replace")
            assert want.startswith(so_far), tell(
                "too_early", f"bytes {data!r}: {so_far!r} was shown by byte {i}; in all {want!r}")
            assert len(known) - len(so_far) <= 4, tell(
                "waits_for_ever", f"bytes {data!r}: of {known!r} only {so_far!r} was shown")
        assert "".join(got) + letters.rest() == want, tell(
            "length_of_piece" if "".join(got) == want else "rest_lost",
            f"bytes {data!r}: shown {''.join(got)!r} and at the end {letters.rest()!r}, expected "
            f"{want!r} in all")


def test_Detokenizer__by_turns(subject, rng, reference):
    """Two answers by turns: characters, halves of them, no text; each may be over at any point."""
    signs = [b"a", b"z", "é".encode(), "🙂".encode(), b"\xf0\x9f", b"\x80", b"\xff", b"\xe6\x97"]
    tokens = list(b"".join(signs[i] for i in rng.integers(0, len(signs), 60)))
    tokens[10:10] = [END, 40_000, END]
    two = [tokens, tokens[::-1], *[[*b"ab", *data] for data in (b"\x80" * 7 + b"c", b"\xff" * 4)]]
    for prompt, (first, second) in product(([], [65], [65, 0xF0, 0x9F]), (two[:2], two[2:])):
        alone = [(first, i) for i in range(len(first))]
        turns = [each for i in range(min(len(first), len(second)))
                 for each in ((first, i), (second, i))]
        beside(subject, reference, prompt, "one answer", alone, "waits_for_5")
        beside(subject, reference, prompt, "two answers by turns", turns, "shared_state")


def beside(subject, reference, prompt, what, steps, name):
    """Each step gives an answer one of its tokens, there and in the course's own."""
    sides = []
    for side in (subject, reference):
        decode = side.make(BYTES).decode
        sides.append({id(tokens): side.Detokenizer(decode, prompt) for tokens, _ in steps})
    for tokens, i in steps:
        at = f"Detokenizer, {what}, token {i}, {tokens[i]:#x} after {tokens[max(i - 5, 0):i]}"
        got, want = (side[id(tokens)].add(tokens[i]) for side in sides)
        assert got == want, tell(name, f"{at}: {got!r} was shown, expected {want!r}")
        got, want = (side[id(tokens)].rest() for side in sides)
        assert got == want, tell(
            "shared_state" if len(sides[0]) > 1 else "",
            f"{at}: if the answer ended here, rest() would be {got!r}, expected {want!r}")


def test_Detokenizer__asks_decode(subject):
    """The decode that was handed in writes the tokens, and nothing else does."""
    decoder = subject.make("tokenizers.decoders:Metaspace")
    watched = subject.make("lab.judge.mocks:Watched", decoder.decode)
    letters = subject.Detokenizer(watched, ["▁Say"])
    before = len(watched.calls)
    letters.add("▁a")
    assert len(watched.calls) > before, tell("own_decode", "Detokenizer.add, one token")


def test_Detokenizer__a_prompt_that_ends_inside_a_character(subject):
    """case 28: its character is the prompt's; the answer begins after it."""
    face = list("🙂".encode())
    got, _ = shown(subject, subject.make(BYTES), [65, *face[:2]], [*face[2:], 66])
    assert "".join(got) == "B", (
        f"The prompt ends with half of 🙂, the answer has its other half and a B: shown {got}. A "
        f"character that begins in the prompt belongs to the prompt, so only B is the answer's")


def test_Detokenizer__words_need_what_is_before_them(subject):
    """A decoder that drops the space of the first word, as SentencePiece's does."""
    words = ["▁Tom", "▁and", "▁Ida", "▁run"]
    decoder = subject.make("tokenizers.decoders:Metaspace")
    got, _ = shown(subject, decoder, ["▁Say"], words)
    assert got == [" Tom", " and", " Ida", " run"], tell(
        "forgets_all", f"Tokens {words} after a prompt: shown {got}")


def test_Detokenizer__decodes_only_the_newest(subject):
    """300 tokens: each decode is of a few."""
    tokenizer = subject.make(BYTES)
    watched = subject.make("lab.judge.mocks:Watched", tokenizer.decode)
    letters = subject.Detokenizer(watched, [65] * 50)
    text = "".join(letters.add(97 + i % 26) for i in range(300))
    assert text == "".join(chr(97 + i % 26) for i in range(300)), f"300 letters: {text!r} shown"
    most = max(len(tokens) for (tokens,) in watched.calls)
    assert most <= 16, tell("keeps_all", f"After 300 tokens, one call decoded {most} of them")


def test_Detokenizer__unseen(subject, rng):
    """Characters of one byte to four."""
    tokenizer = subject.make(BYTES)
    for _ in range(3):
        signs = [rng.integers(*ends, 4) for ends in (
            (0x20, 0x7f), (0xa1, 0x600), (0x4e00, 0x9000), (0x1f600, 0x1f640))]
        text = "".join(map(chr, rng.permutation(np.concatenate(signs)).tolist()))
        each_byte(subject, tokenizer, text)


# ---- StopStrings


def pieces_of(subject, stops, texts):
    watch = subject.StopStrings(stops)
    got = []
    for text in texts:
        got.append(watch.add(text))
        if watch.found is not None:
            break
    return got, watch


def longest_ending(stops, text):
    """Characters at the end of a text that may begin a stop string."""
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])),
               default=0)


STOPS = [       # (stops, text, what is shown, found)
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
        stop = watch.found
        assert stop is None or stop in stops, tell("by_index", f"{what}: found is {stop!r}")
        assert found is not None or stop is None, f"{what}: stopped at {stop!r}, which is not there"
        assert stop is None or stop == found, tell(
            "later_stop", f"{what}: stopped at {stop!r}; {found!r} comes earlier in the text")
        for i in range(len(got)):
            so_far = "".join(got[:i + 1])
            read = "".join(parts[:i + 1])
            name = first_true({
                "stop_shown": found and so_far.startswith(want + found),
                "held_lost": not text.startswith(so_far),
                "piece_alone": len(read) >= len(want + (found or "")),
                "shorter_ending": len(read) > len(so_far), "not_held": True})
            assert want.startswith(so_far), tell(
                name, f"{what}: after piece {i}, {parts[i]!r}, the text shown was {so_far!r}")
        assert stop == found, f"{what}: found is None, but the stop string {found!r} is in the text"
        shown = "".join(got) + ("" if stop else watch.rest())
        assert shown == want, tell(
            "held_lost", f"{what}: {shown!r} was shown in the end, expected {want!r}")


def test_StopStrings__holds_back_no_more_than_it_must(subject):
    """case 27: at most the longest stop less one; and only what may be the beginning of one."""
    stops = ["</answer>", "\nUser:"]
    watch = subject.StopStrings(stops)
    shown = ""
    text = "a < b and\nUs two </ans> so </answe"
    for i, letter in enumerate(text):
        shown += watch.add(letter)
        read = text[:i + 1]
        held = read.removeprefix(shown)
        what = f"stops {stops}: of {read!r} {shown!r} was shown"
        assert text.startswith(shown) and shown + held == read, what
        most = longest_ending(stops, read)
        assert len(held) >= most, tell("not_held", what)
        assert len(held) <= most, tell(
            "holds_too_much", f"{what}, and {held!r} is held back; at most its last {most} "
                              f"characters can begin a stop string")
    assert watch.rest() == "</answe", "StopStrings.rest: expected all that was held back"


SEVERAL = [     # (stops, text in pieces, what add shows, found: one of these, the mistake)
    *((["abc", "ab"], parts, "x", ["ab"], "waits_for_longer")
      for parts in (["xab"], ["x", "a", "b"], ["xa", "b"])),
    *((stops, ["xabcd"], "x", stops, "") for stops in (["abc", "ab"], ["ab", "abc"])),
    (["b"], ["abc"], "a", ["b"], ""), (["bc"], ["ab", "cd"], "a", ["bc"], ""),
    (["ab"], ["a" * 40_000, "c"], "a" * 40_000 + "c", [None], ""),
    (["ab!", "babab?"], list("babab."), "babab.", [None], ""),
    (["b!", "babab?"], list("xbabab?y"), "x", ["babab?"], "shorter_ending"),
    *(([stop], list("x" + stop[:-1]), "x", [None], "")
      for stop in ("a", "ab", "abc", "aaaa", "é🙂é"))]


def test_StopStrings__several(subject):
    """A complete stop ends the text at once, though a longer one may begin so; of two at one place
    either may be named; all of a stop but its last letter is held back."""
    for stops, parts, want, names, name in SEVERAL:
        got, watch = pieces_of(subject, stops, parts)
        shown = "".join(got)
        what = f"stops {stops}, text in pieces {brief(parts)}: {brief(shown)} was shown and " \
               f"{watch.found!r} found"
        assert shown == want and watch.found in names, tell(
            name, f"{what}; expected {brief(want)} and {names[0]!r}")
        rest = "" if watch.found else "".join(parts)[len(want):]
        assert watch.rest() == rest, tell(
            "held_after_stop" if watch.found else "",
            f"{what}; after that rest() is {watch.rest()!r}, expected {rest!r}")


def read_by_the_book(stops, text):
    """(what can be shown of a text, the stop that is whole in it or None)."""
    places = [(text.find(stop), stop) for stop in stops if stop in text]
    if places:
        at, stop = min(places)
        return text[:at], stop
    return text[:len(text) - longest_ending(stops, text)], None


def test_StopStrings__unseen(subject, rng):
    """Of three letters, so that much looks like the beginning of a stop; none is within another."""
    def word(least, most):
        return "".join(rng.choice(list("abc"), int(rng.integers(least, most))))

    for _ in range(40):
        drawn = [word(1, 7) for _ in range(3)]
        stops = [a for a in drawn if not any(b in a for b in drawn if b != a)]
        parts = [word(1, 4) for _ in range(12)]
        watch = subject.StopStrings(stops)
        shown = ""
        read = ""
        for part in parts:
            shown += watch.add(part)
            read += part
            text, stop = read_by_the_book(stops, read)
            got = shown, watch.found, watch.rest()
            want = text, stop, "" if stop else read[len(text):]
            assert got == want, (f"stops {stops}, text in pieces {parts}: of {read!r} shown, found "
                                 f"and rest() are {got}, expected {want}")
            if stop is not None:
                break
