"""Graders of o02.
Attention and the layer are compared with loops over heads and tokens in float64, the whole model
with a second Llama on the same weights: oracle_o02_life_of_a_token.py."""

import math
import re
from functools import partial
from numbers import Integral

import numpy as np
import pytest

from lab.judge.adversarial import VALUES, WORDS, shifted
from lab.judge.mistakes import mistake, named
from lab.judge.subject import Raised
from tests.day02_overview.oracle_o02_life_of_a_token import (
    CHAINS,
    HEADS,
    NANO,
    OUTS,
    SEES,
    WATCHED,
    Given,
    but,
    chain,
    draws,
    logits_of,
    masked,
    mixed,
    normed,
    turned,
    weights_of,
)

SENTENCES = (NANO / "sentences.txt").read_text("utf-8").splitlines()
# T, N, H, G, D: new tokens after old ones; a prompt; one token; one head for all; no old tokens
SHAPES = [(3, 7, 4, 2, 4), (5, 5, 6, 3, 2), (1, 9, 4, 4, 6), (4, 6, 3, 1, 8), (1, 1, 2, 1, 2)]


# ---- words and texts


def tokens_of(text):
    return np.array([10, *text.encode("ascii")])


def text_of(tokens):
    return "".join(map(chr, tokens))


def rest_of(prompt, count):
    """What follows a prompt in the sentence that it begins."""
    sentence = next(s for s in SENTENCES if s.startswith(prompt + " "))
    return (sentence + "\n")[len(prompt):][:count]


def message_of(ways, got, text):
    """A message, with the first mistake whose answer is `got`. ways: {id: (sentence, answer)}"""
    for name, (sentence, answer) in ways.items():
        if np.array_equal(answer, got):
            return mistake(name, f"{text}\nThis is what comes out when {sentence}.", sentence)
    return text


# ---- next_token


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_next_token(subject, rng, temperature):
    def draws(scores, u, order=slice(None)):
        weights = weights_of(scores.astype(np.float64))[order]
        return int(np.arange(50)[order][(weights.cumsum() <= u).sum()])

    cases = 0
    while cases < 10:
        logits, u = (1.5 * rng.standard_normal(50)).astype(np.float32), rng.random()
        scores, rising = logits / temperature, logits.argsort()
        want, parts = draws(scores, u), weights_of(scores)
        ways = {
            "multiplied": ("the logits are multiplied by the temperature, not divided by it",
                           draws(logits * temperature, u)),
            "no_temperature": ("it does not use the temperature, or divides the probabilities by "
                               "it", draws(logits, u)),
            "no_sums": ("u is looked up among the probabilities; it belongs among their running "
                        "sums", np.searchsorted(parts, u, side="right")),
            "always_largest": (
                "it takes the largest logit though the temperature is above 0", logits.argmax()),
            "token_before": ("it takes the token before the right one", want - 1),
            "token_after": ("it takes the token after the right one", want + 1),
            **{f"by_{order}": (
                f"the parts of [0, 1) are in the order of {order} logits, not of the tokens",
                draws(scores, u, tokens))
               for order, tokens in (("falling", rising[::-1]), ("rising", rising))},
            "own_probability": ("u is compared with each token's own probability, or with the "
                                "running sums the wrong way round: the first sum that is greater "
                                "than u decides", (parts > u).argmax()),
            "divided_later": ("the probabilities are divided by the temperature, not the logits",
                              (weights_of(logits).cumsum() / temperature <= u).sum()),
            "from_one": ("the parts begin at 1 and go down; they begin at 0", draws(scores, 1 - u))}
        sums = weights_of(logits.astype(np.float64) / temperature).cumsum()
        tokens = {want, *(token for _, token in ways.values())}
        if len(tokens) < len(ways) + 1 or np.abs(sums - u).min() < 0.01:
            continue                    # two of them, or right and nearly right, are alike
        cases += 1
        got = subject.next_token(logits, temperature, u)
        assert isinstance(got, (int, np.integer)), f"next_token: got {got!r}, expected a token"
        if got != want:
            others = {subject.next_token(logits, temperature, u) for _ in range(8)} - {got}
            assert not others, mistake("own_random", (
                f"next_token: the same logits, temperature and u gave token {got}, then "
                f"{min(others)}: u decides, nothing else may be random"))
        assert got == want, message_of(ways, got, (
            f"next_token: at temperature {temperature}, u = {u:.3f} lies in the part of token "
            f"{want}; got {got}"))


def test_next_token__edges(subject):
    logits = np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf])
    for u, want, before in ((0.0, 1, 0), (0.25, 1, None), (0.5, 3, 1), (1 - 2**-53, 3, None)):
        got = subject.next_token(logits, 1, u)
        assert got == want, message_of({"sum_reaches_u": (
            "the first running sum that reaches u is taken, not the first that is greater",
            before)}, got, (
                f"next_token: of five tokens only 1 and 3 are possible, each with probability 1/2; "
                f"at u = {u} expected {want}, got {got}"))
    for name, logits, temperature, u, want, words in (
            ("overflow", np.array([1e4 - 1, 1e4], np.float32), 0.5, 0.3, 1,
             "logits of 9,999 and 10,000: does exp, or a type of 16 bits, overflow? softmax "
             "subtracts the largest first"),
            ("beyond_the_last", np.zeros(10), 1, 1 - 2**-53, 9,     # the sum of ten tenths
             "ten equal logits: by rounding, the last running sum may be a little below 1, and u "
             "may not be below it")):
        got = subject.next_token(logits, temperature, u)
        assert got == want, mistake(name, (
            f"next_token, temperature {temperature}, u = {u}: expected token {want}, got {got}; "
            f"{words}"), words)


@pytest.mark.parametrize("temperature", [0.02, 1e-4])
def test_next_token__cold(subject, temperature):
    logits = np.array([0, temperature])         # probabilities 1 / (1 + e) = 0.269 and 0.731
    for u, want, name, words in (
            (0.2, 0, "cold_as_zero", "it takes the largest logit, as if the temperature were 0. "
             "Only 0 itself is greedy"),
            (0.33, 1, "raised", "the logits are divided by a larger temperature: is a low one "
             "raised, or something added to it?")):
        got = subject.next_token(logits, temperature, u)
        assert got == want, mistake(name, (
            f"next_token, temperature {temperature}: of two logits that differ by {temperature}, "
            f"token 0 owns 0.269 of [0, 1); u = {u} gave token {got}, expected {want}: {words}"),
            words)


def test_next_token__hard(subject, rng):
    """Logits of every kind and many u, one after the other in one process."""
    cases = [("50 logits", rng.standard_normal(50).astype(np.float32))]
    cases += [(f"{n} logits, {WORDS[kind]}", VALUES[kind](rng, (1, n))[0]) for kind in (
        "negative", "equal", "infinite", "signed_zeros", "denormal", "exact_sums")
        for n in (1, 2, 33)]
    cases += [(f"40 logits around {by}", shifted(rng, (1, 40), by)[0])
              for by in (200, -200, 3000, -3000)]
    for what, logits in cases:
        for temperature, u in ((1, 0.0), (0.25, 0.6), (4, 0.999)):
            if not np.isfinite(logits).any():
                continue
            sums = weights_of(logits.astype(np.float64) / temperature).cumsum()
            if np.abs(sums - u * sums[-1]).min() < 1e-12 and u:
                continue                            # on the edge of a part
            want = int((sums <= u * sums[-1]).sum())
            got = subject.next_token(logits, temperature, u)
            low = weights_of(logits.astype(np.float32) / np.float32(temperature)).cumsum()
            ways = {"in_32_bits": (
                "probabilities and their sums are kept in 32 bits, where a small one is lost",
                got if got in ((low <= u).sum(), (low <= u * low[-1]).sum()) else None)}
            assert got == want, message_of(ways, got, (
                f"next_token, {what}, temperature {temperature}, u = {u}: expected token {want}, "
                f"got {got!r}"))
        token = subject.next_token(logits, 0, 0.999)
        note = ", the token of the smallest" if token == logits.argmin() else ""
        assert token in np.flatnonzero(logits == logits.max()), mistake("drawn_at_zero", (
            f"next_token, {what}: at temperature 0 the answer is the largest logit, token "
            f"{logits.argmax()}, whatever u is; got {token}{note}"), "")


# ---- attention


@pytest.mark.parametrize("T, N, H, G, D", SHAPES)
def test_attention(subject, agree, rng, T, N, H, G, D):
    q = rng.standard_normal((T, H, D))
    k, v = rng.standard_normal((N, G, D)), rng.standard_normal((N, G, D))
    before = q.copy()
    want, unscaled = mixed(q, k, v, 0.3), mixed(q, k, v, 1.0)
    modulo = mixed(q, k, v, 0.3, head=HEADS["head_modulo"][1])
    mistakes = {name: (words, mixed(q, k, v, 0.3, sees=sees))
                for name, (words, sees) in SEES.items()}
    mistakes |= {name: (words, mixed(q, k, v, 0.3, head=head))
                 for name, (words, head) in HEADS.items()}
    agree(subject.attention(q, k, v, 0.3), want, "float64",
          f"attention of the last {T} of {N} tokens, {H} query heads on {G} key heads",
          at=lambda i: f"token {i[0]}, head {i[1]}, number {i[2]}", mistakes=mistakes | {
              "split_reversed": (
                  "query heads are split into (H // G, G); h // (H // G) means (G, H // G)",
                  modulo.reshape(T, H // G, G, D).swapaxes(1, 2).reshape(T, H, D)),
              "score_0": ("the score of a later token is 0, not -inf: it keeps a weight",
                          masked(q, k, v, 0.3, hidden=0)),
              "masked_later": ("later tokens are masked after the softmax: the weights left do not "
                               "add up to 1", masked(q, k, v, 0.3, after=True)),
              "over_queries": ("the softmax runs over the queries, not over the keys",
                               masked(q, k, v, 0.3, axis=0)),
              "keys_mixed": ("the keys are summed with the weights, not the values",
                             mixed(q, k, k, 0.3)),
              "heads_first": ("heads come before tokens when the result gets its shape",
                              want.transpose(1, 0, 2).reshape(T, H, D)),
              "no_scale": ("the scores are not multiplied by scale", unscaled),
              "own_scale": ("the scores are multiplied by D ** -0.5; the argument `scale` is not "
                            "used", mixed(q, k, v, D ** -0.5)),
              "divided_by_scale": ("the scores are divided by scale", mixed(q, k, v, 1 / 0.3)),
              "scaled_twice": ("the scores are multiplied by scale twice", mixed(q, k, v, 0.09)),
              "weights_scaled": ("scale comes after the softmax: it multiplies the weights",
                                 0.3 * unscaled),
              "no_sum": ("the weights are not divided by their sum",
                         mixed(q, k, v, 0.3, weigh=lambda s: np.exp(s - s.max())))})
    assert np.array_equal(q, before), mistake(
        "input_changed", "attention changes q in place; its caller still needs it")


def test_attention__softmax_is_an_argument(subject, agree, rng):
    q, k, v = (rng.standard_normal((4, 2, 4)) for _ in range(3))
    sharp = subject.make("lab.judge.mocks:SharpSoftmax")
    agree(subject.attention(q, k, v, 0.5, sharp), mixed(q, k, v, 1.0), "float64",
          "attention with another softmax as its argument", mistakes={
              "other_softmax": ("the argument `softmax` is not used", mixed(q, k, v, 0.5))})


def hard_heads(make, rng):
    """q, k, v of hard numbers: 4 new tokens of 6, 4 heads on 2."""
    return [make(rng, (n, heads, 4)).astype(np.float64) for n, heads in ((4, 4), (6, 2), (6, 2))]


def test_attention__hard(subject, agree, rng):
    """One after the other in one process; the numbers, and then how they lie."""
    cases = {WORDS[kind]: hard_heads(VALUES[kind], rng) for kind in (
        "negative", "equal", "uneven", "signed_zeros", "denormal", "shifted")}
    cases["numbers around -200"] = hard_heads(partial(shifted, by=-200), rng)
    q, k, v = hard_heads(shifted, rng)
    cases["scores far below 0"] = q, -k, v
    for what, (q, k, v) in cases.items():
        agree(subject.attention(q, k, v, 0.5), mixed(q, k, v, 0.5), "float64",
              f"attention of {what}", mistakes={
                  "overflow": (
                      "exp overflows: the softmax does not subtract the largest score first",
                      mixed(q, k, v, 0.5, weigh=partial(weights_of, largest=lambda s: 0))),
                  "score_1e4": ("a later token's score is -1e4: other scores may be lower still, "
                                "and none is lower than -inf", masked(q, k, v, 0.5, hidden=-1e4))})
    q, k, v = hard_heads(VALUES["unrounded"], rng)
    q = np.asfortranarray(q)
    room = np.full((2, 9, 2, 4), 77.0)                      # a cache that holds more
    room[0, :6], room[1, :6] = k, v
    for what, views in (("rows of a larger cache", (q, room[0, :6], room[1, :6])),
                        ("keys in another layout than values", (q, np.asfortranarray(k), v)),
                        ("values in another layout than keys", (q, k, np.asfortranarray(v)))):
        agree(subject.attention(*views, 0.5), mixed(q, k, v, 0.5), "float64", f"attention, {what}")
    low = [x.astype(np.float32) for x in (q, k, v)]
    got = subject.attention(*low, 0.5)
    agree(got, mixed(q, k, v, 0.5), "float32", "attention of float32")
    assert got.dtype == np.float32, mistake("other_dtype", (
        f"attention of float32: got numbers of {got.dtype}, expected float32: does a mask or a "
        f"constant have another dtype?"))


# ---- block


@pytest.mark.parametrize("D", [10, 4])          # 2 / D is the right scale of heads of four numbers
def test_block(subject, agree, rng, D):
    judge_block(subject, agree, Given(subject, rng, D=D))


def test_block__uses_its_operations(subject, agree, rng):
    """Positions 0 alone, a late one, one past 15 bits, and a prompt, one after the other in one
    process."""
    earlier = -1
    for T, old in ((1, 0), (1, 7), (1, 40_000), (4, 0)):
        given = Given(subject, rng, T=T, old=old)
        judge_block(subject, agree, given, f"block, {T} new token{'s' * (T > 1)} after {old}",
                    earlier)
        earlier = given.positions


def judge_block(subject, agree, given, case="block", earlier=None):
    """The result, what the operations are given, the caches, and that every operation is one of the
    table's. earlier: the positions of a call before"""
    N, D, at, before = given.old + given.T, given.D, given.positions, given.x.copy()
    unwritten, empty = given.keys.copy(), given.values.copy()
    got = subject.block(given.model, given.layer, given.x, given.keys, given.values, at, given.ops)
    for _, _, eps in given.calls["rmsnorm"].calls:
        assert eps == given.eps, mistake("other_eps", (
            f"block: ops.rmsnorm gets eps = {eps}; the model's is model.eps, here {given.eps}"))
    assert (given.x == before).all(), mistake("input_changed", (
        "block changes its argument x; it must return a new array, because the caller still needs "
        "x"))
    assert given.calls["attention"].calls, f"{case}: it does not call ops.attention"
    check_counts(given, case, fewest=1)
    agree(got, given.out(), "float64", case, at=lambda i: f"token {i[0]}, channel {i[1]}",
          mistakes={name: (words, given.out(**way)) for name, (words, way) in OUTS.items()})
    assert given.calls["rope"].calls, mistake("no_rope", (
        "block: it does not call ops.rope, so attention does not know the positions"))
    if earlier is not None:
        agree(given.calls["rope"].calls[0][-1], at, what=f"{case}: the positions that rope gets",
              mistakes={"old_positions": ("rope gets the positions of an earlier call", earlier),
                        "short_positions": ("positions are kept in 16 bits, which end at 32,767",
                                            at.astype(np.int16))})
    passed = given.calls["attention"].calls[0]
    assert len(passed) == 4, mistake("arguments", (
        f"block: ops.attention gets {len(passed)} arguments, expected 4: q, keys, values and the "
        f"scale, 1/√D"), "")
    q, k, v, scale = passed
    last, first = slice(given.old, N), slice(given.T)
    new_q, new_k, new_v = map(given.heads, "qkv")
    second = normed(given.x, given.w["mlp_norm"], given.eps)
    agree(q, turned(new_q, at), "float64", "the q passed to ops.attention", mistakes={
        "q_not_normed": ("q is made from x itself, not from the normed x",
                         turned(given.product(given.x, "q"), at)),
        "first_norm_weights": ("the first norm has the weights of the second",
                               turned(given.product(second, "q"), at)),
        "scaled_before": ("q is multiplied by scale, and ops.attention does it again",
                          turned(new_q, at) * D ** -0.5),
        "positions_from_1": ("positions are counted from 1", turned(new_q, at + 1)),
        "q_not_rotated": ("q is not rotated by rope", new_q),
        "positions_of_step": ("rope gets positions counted from the first new token; pass "
                              "`positions`", turned(new_q, at - given.old))})
    counts = {
        given.T: ("new_keys_alone", "these are those of the new tokens alone"),
        given.old: ("old_keys_alone", "these are those of the old tokens alone"),
        N - 1: ("last_key_missing", "positions begin at 0, so the last one is N - 1"),
        len(empty): ("whole_cache", "these are all rows of the cache, and the last ones are empty")}
    name, words = counts.get(len(k), ("other_keys", "those of all tokens so far, and no others"))
    assert len(k) == N, mistake(name, (
        f"{case}: ops.attention gets {len(k)} keys; it needs {N}, those of {given.old} old and "
        f"{given.T} new tokens: {words}"), words)
    keys, values = but(unwritten, last, turned(new_k, at)), but(empty, last, new_v)
    agree(k, keys[:N], "float64", "the keys passed to ops.attention", mistakes={
        "k_not_rotated": ("k is written to the cache before rope has rotated it, or rope does not "
                          "get it", but(keys, last, new_k)[:N]),
        "keys_not_cached": ("the new keys are not written into the cache", unwritten[:N]),
        "over_the_old": ("the new keys are written from row 0 on, over the old ones",
                         but(unwritten, first, keys[last])[:N]),
        "values_for_keys": ("the values are passed in place of the keys", values[:N])})
    agree(v, values[:N], "float64", "the values passed to ops.attention", mistakes={
        "v_rotated": ("rope rotates the values too", but(values, last, turned(new_v, at))[:N]),
        "v_of_k": ("the values are made with the weights of the keys",
                   but(values, last, new_k)[:N]),
        "keys_for_values": ("the keys are passed in place of the values", keys[:N])})
    for what, cache, want, old in (("keys", given.keys, keys, unwritten),
                                   ("values", given.values, values, empty)):
        agree(cache, want, "float64", f"the cache of {what} after the call (later steps read the "
              f"new tokens' rows there)", mistakes={f"{what}_copied": (
                  f"the new {what} reach attention and are not written into the cache", old)})
    agree(scale, D ** -0.5, "float64", "the scale passed to ops.attention", mistakes={
        "scale_root": ("it is √D; the scale is 1/√D", D ** 0.5),
        "scale_1_over_d": ("it is 1/D; the scale is 1/√D", 1 / D),
        "scale_2_over_d": ("it is 2/D, which is right only for D = 4", 2 / D),
        "scale_half": ("it is 0.5, which is right only for D = 4", 0.5),
        "scale_quarter": ("it is 0.25, which is right only for D = 16", 0.25),
        "scale_of_c": ("it is 1/√C, of the model's width; a head has width D",
                       given.x.shape[1] ** -0.5),
        "scale_of_hd": ("it is 1/√(H·D); a score is a sum of D products",
                        given.answer[0].size ** -0.5)})
    check_counts(given, case)


def check_counts(given, case, fewest=7):
    """How often the operations are called; fewest: calls that may do, of those that have more"""
    for name, times in {"matmul": 7, "add": 2, "rmsnorm": 2, "swiglu": 1}.items():
        calls = len(given.calls[name].calls)
        assert min(fewest, times) <= calls <= times, mistake(f"without_{name}", (
            f"{case}: ops.{name} is called {calls} times, expected {times}: do every operation "
            f"through `ops`, and once"), f"ops.{name} is called")


# ---- predict_rows and generate


@pytest.mark.parametrize("prompt, count", [(5, 4), (1, 1), (3, 10)])
def test_predict_rows(subject, reference, rng, prompt, count):
    """The right answer is counted in the course's own two functions."""
    got = subject.predict_rows(prompt, count)
    assert isinstance(got, (tuple, list)) and len(got) == 2, \
        f"predict_rows: got {got!r}, expected two numbers, without and with a cache"
    tokens = rng.integers(32, 127, prompt)
    wants = [sum(steps_of(reference, run, tokens, count)[1])
             for run in ("generate_from_scratch", "generate")]
    assert list(got) == wants or list(got) != wants[::-1], mistake("swapped", (
        f"predict_rows({prompt}, {count}): the first number is without a cache, the second with"))
    for which, want, answer in zip(("without", "with"), wants, got, strict=True):
        last, more = (prompt + count - 1, prompt + count) if which == "without" else (1, 1)
        ways = {
            "first_longer": ("the first step already has a new token; it has only the prompt",
                             want + count if which == "without" else None),
            "all_full": ("every step is counted with all tokens, also those still to come, or "
                         "count · (count − 1) has lost its parentheses",
                         count * (prompt + count)),
            "prompt_as_row": ("the prompt counts as one row; each token of it is one", count),
            "step_missing": ("one step is left out", want - last),
            "last_enters": ("the last token is counted too, but it never enters the model",
                            want + more),
            "all_as_last": ("every step is counted with as many rows as the last",
                            count * (prompt + count - 1)),
            "all_as_first": (
                "every step is counted with as many rows as the first", count * prompt),
            "no_prompt": ("the prompt is left out", count - 1),
            "both_layers": ("the rows of both layers are counted; those that enter one layer are "
                            "wanted", 2 * want)}
        assert answer == want, message_of(ways, answer, (
            f"predict_rows({prompt}, {count}): {answer} is not the number of rows {which} a cache"))


def test_predict_rows__unseen(unseen, rng):
    for prompt, count in rng.integers(1, 1000, (4, 2)).tolist():
        unseen("predict_rows", prompt, count, precision="exact")


def steps_of(proxy, run, tokens, count):
    """(new tokens, rows of each step), counted at the norms: two a layer, and the last one."""
    model, watched = proxy.load_nano(), proxy.make(WATCHED, proxy.rmsnorm)
    new = getattr(proxy, run)(model, tokens, count, proxy.NUMPY._replace(rmsnorm=watched))
    return new, [len(call[0]) for call in watched.calls][::5]


def room_of(error):
    """The room of a Cache that says it is full; infinite for any other error."""
    full = re.search(r"and 1 more; it has room for (\d+)", getattr(error, "text", ""))
    return int(full[1]) if full else math.inf


@pytest.mark.parametrize("prompt, count", [("a warp has", 12), ("decode", 18), ("one", 1)])
def test_generate(subject, prompt, count):
    want, tokens = rest_of(prompt, count), tokens_of(prompt)
    with named("small_cache", "The cache has too little room: the prompt enters it, and the new "
               "tokens.", lambda error: room_of(error) < len(tokens) + count), \
            named("too_many_steps", "The room is enough for `count` tokens; the loop makes more "
                  "steps.", lambda error: len(tokens) + count <= room_of(error) < math.inf), \
            named("no_token", "V = 128: next_token gives no such token if it gets one row of "
                  "logits, the last.", lambda error: "with size 128" in getattr(error, "text", "")):
        new, steps = steps_of(subject, "generate", tokens, count)
    assert np.array_equal(tokens, tokens_of(prompt)), mistake(
        "prompt_changed", "generate changes its argument prompt; expected it as before the call")
    lengths = {"with_prompt": ("the prompt is returned too", len(tokens) + count),
               "one_missing": ("one token is left out", count - 1),
               "one_too_many": ("there is one step too many", count + 1)}
    assert len(new) == count, message_of(lengths, len(new), (
        f"generate: got {len(new)} tokens, expected {count} new ones"))
    got = text_of(new)
    ways = {} if got == want else {name: (words, chain(tokens, count, scores))
                                   for name, (words, scores) in CHAINS.items()}
    assert got == want, message_of(ways, list(new), (
        f"generate: after {prompt!r} the nano Llama says {want!r}, got {got!r}"))
    assert steps, mistake("without_ops", "generate: no step uses the argument `ops`")
    assert steps != [len(tokens)] + [1] * count, mistake("step_too_many", (
        "generate: there is one step too many: the prompt's last token enters twice, or the last "
        "new token enters"))
    assert steps == [len(tokens)] + [1] * (count - 1), mistake("all_again", (
        f"generate: its steps send {steps} rows through the model; with a cache the first step "
        f"sends {len(tokens)} and each later one sends 1"), "")


@pytest.mark.parametrize("temperature", [1.5, 0.7])
def test_generate__drawn(subject, temperature):
    """Each token from one random number, by the probabilities after all tokens before it."""
    tokens, drawn = list(tokens_of("a")), np.random.default_rng(5).random(99)
    own = subject.make("numpy.random:default_rng", 5)
    new = list(subject.generate(subject.load_nano("float64"), tokens, 8, subject.NUMPY, temperature,
                                own))
    assert len(new) == 8, f"generate: got {len(new)} tokens, expected 8 new ones"
    rows = [draws(logits_of(tokens + new[:place])[-1], temperature, drawn, place)
            for place in range(8)]
    want = [row["right"][1] for row in rows]
    used = np.flatnonzero(drawn == own.random()).tolist()       # the next one tells how many
    names = list(rows[0])[1:3 if used in ([], [0]) else None]
    ways = {name: (rows[0][name][0], [row[name][1] for row in rows]) for name in names}
    if used != [8]:
        ways["other_draws"] = (f"rng.random() is called {used[0]} times for 8 tokens" if used else
                               "rng is asked for something else than rng.random()", new)
    assert new == want, message_of(ways, new, next(
        f"generate: at temperature {temperature} the random number {drawn[place]:.3f} gives token "
        f"{want[place]} as new token number {place}, got {token}; call rng.random() once per "
        f"token, and pass the temperature to next_token"
        for place, token in enumerate(new) if token != want[place]))


def test_generate__none_and_again(subject, rng):
    """No token; a prompt that is a list; and others on the same model, which keeps nothing of the
    one before."""
    model = subject.load_nano()
    new = subject.generate(model, tokens_of("decode"), 0)
    assert list(new) == [], mistake(
        "one_at_least", f"generate: count is 0: expected [], got {new!r}")
    new = subject.generate(model, [10, *b"rope"], 3)
    assert not subject.edited, mistake("prompt_changed", (
        "generate changes its argument prompt, a list; expected it as before the call"))
    assert isinstance(new, (list, tuple)) and all(isinstance(t, Integral) for t in new), \
        f"generate: got {new!r}, expected a list of int"
    assert text_of(new) == " tu", f"generate, three tokens: got {text_of(new)!r}, expected ' tu'"
    prompt = rng.integers(32, 127, 20)
    first, second = (list(subject.generate(model, prompt, 8)) for _ in range(2))
    assert first == second, mistake("keeps_the_past", (
        f"generate: the same call gave {first}, then {second}: make a new Cache in each call"), "")
    for prompt in ("a warp has", "decode", "a warp has"):
        got, want = text_of(subject.generate(model, tokens_of(prompt), 6)), rest_of(prompt, 6)
        assert got == want, mistake("keeps_the_past", (
            f"generate, several prompts on the same model: after {prompt!r} expected {want!r}, "
            f"got {got!r}. Does something remain from the prompt before?"), "")


def test_generate__after_a_sentence(subject):
    """END is a token like the others: another sentence follows it."""
    tokens, count = list(tokens_of("decode")), 26
    new = subject.generate(subject.load_nano("float64"), tokens, count)
    assert len(new) == count, mistake("stops_at_end", (
        f"generate: got {len(new)} tokens, expected {count}: END is a token like any other, and "
        f"the answer goes on after it"), "")
    want = chain(tokens, count, lambda prompt, new: logits_of(prompt + new)[-1])
    assert list(new) == want, mistake("forgets_at_end", (
        f"generate: got the new tokens {new}, expected {want}: after END the model still sees all "
        f"tokens before it"), "")


def test_generate__unseen(unseen, rng):
    """Any prompt, greedily and drawn."""
    for temperature in (0, float(rng.uniform(0.5, 2))):
        prompt, seed = rng.integers(1, 128, rng.integers(1, 30)).tolist(), int(rng.integers(2**31))
        unseen("generate", lambda side: side.load_nano("float64"), prompt, 8,
               lambda side: side.NUMPY, temperature,
               lambda side, seed=seed: side.make("numpy.random:default_rng", seed),
               precision="exact",
               shown=f"prompt {prompt}, 8 tokens, temperature {temperature:.3g}, seed {seed}")


# ---- the rest of the lesson


def test_logits_are_those_of_a_second_llama(subject, agree, rng):
    model = subject.load_nano("float64")
    tokens = rng.integers(0, 128, 60)
    for steps in ([(0, 60)], [(0, 31), (31, 32), (32, 60)]):
        cache = subject.Cache(model, 64)
        parts = [subject.forward(model, tokens[a:b], cache) for a, b in steps]
        agree(np.concatenate(parts), logits_of(tokens), "float64",
              f"the logits of {len(steps)} steps")


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_nano_llama_is_sure_of_its_sentences(sentence):
    """After two words each further letter leads by 4 logits: no rounding of fp16 changes it."""
    tokens = tokens_of(sentence + "\n")
    start = len(" ".join(sentence.split(" ")[:2])) + 1
    logits = logits_of(tokens[:-1])[start:]
    assert (logits.argmax(-1) == tokens[start + 1:]).all()
    second, first = np.sort(logits, -1)[:, -2:].T
    assert (first - second).min() > 4


def test_what_is_refused(subject):
    model = subject.load_nano()
    with pytest.raises(Raised, match="it has room for 3"):
        subject.forward(model, [1, 2, 3, 4], subject.Cache(model, 3))
    with pytest.raises(Raised, match="expected ASCII"):
        subject.encode("größer")
    assert subject.decode(subject.encode("warp")) == "\nwarp"
