"""Graders of o02. Attention and the layer are compared with loops over heads and tokens in float64,
the whole model with a second Llama that is written here, on the same weights."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from lab.course import ROOT
from lab.judge.adversarial import VALUES, shifted
from lab.judge.mistakes import mistake
from lab.judge.subject import Raised

NANO = ROOT / "day02_overview" / "nano"
SENTENCES = (NANO / "sentences.txt").read_text("utf-8").splitlines()
# T, N, H, G, D: new tokens after old ones; a prompt; one token; one head for all; no old tokens
SHAPES = [(3, 7, 4, 2, 4), (5, 5, 6, 3, 2), (1, 9, 4, 4, 6), (4, 6, 3, 1, 8), (1, 1, 2, 1, 2)]


# ---- oracles


def weights_of(scores):
    e = np.exp(scores - scores.max())
    return e / e.sum()


def mixed(q, k, v, scale, sees=lambda t, n, T, N: n <= N - T + t,
          head=lambda h, H, G: h // (H // G), weigh=weights_of):                # -> (T, H, D)
    """Attention by loops. sees: is key n visible to query t? head: the key head of query head h.
    NaN for a query that sees nothing."""
    (T, H, _), (N, G, _) = q.shape, k.shape
    out = np.full(q.shape, np.nan)
    for t in range(T):
        rows = [n for n in range(N) if sees(t, n, T, N)]
        for h in range(H if rows else 0):
            g = head(h, H, G)
            out[t, h] = weigh(k[rows, g] @ q[t, h] * scale) @ v[rows, g]
    return out


def masked(q, k, v, scale, hidden=-np.inf, axis=1, after=False):                # -> (T, H, D)
    """Attention by mistakes. hidden: the score of a later token; axis: of the softmax over (T, N);
    after: later tokens are masked after the softmax."""
    (T, H, _), (N, G, _) = q.shape, k.shape
    later = np.arange(N) > np.arange(N - T, N)[:, None]
    out = np.empty(q.shape)
    for h in range(H):
        g = h // (H // G)
        scores = q[:, h] @ k[:, g].T * scale
        scores = scores if after else np.where(later, hidden, scores)
        e = np.exp(scores - scores.max(axis, keepdims=True))
        out[:, h] = np.where(after & later, 0, e / e.sum(axis, keepdims=True)) @ v[:, g]
    return out


def without_maximum(scores):
    with np.errstate(all="ignore"):
        e = np.exp(scores)
        return e / e.sum()


def normed(x, w, eps):
    return np.stack([row / np.sqrt(np.mean(row * row) + eps) * w for row in x])


def turned(x, positions, theta=1e4):            # (T, heads, D)
    D = x.shape[-1]
    out = np.empty_like(x)
    for i in range(D // 2):
        angle = positions[:, None] * theta ** (-2 * i / D)
        a, b = x[..., i], x[..., i + D // 2]
        out[..., i] = a * np.cos(angle) - b * np.sin(angle)
        out[..., i + D // 2] = b * np.cos(angle) + a * np.sin(angle)
    return out


def nano():
    """(configuration, weights in float64)"""
    with np.load(NANO / "weights.npz") as file:
        return (json.loads((NANO / "config.json").read_text("utf-8")),
                {name: file[name].astype(np.float64) for name in file})


def logits_of(tokens):                          # -> (T, V)
    """The nano Llama's scores after each token, without a cache."""
    m, w = nano()
    D, eps, positions = m["head_dim"], m["rms_norm_eps"], np.arange(len(tokens))
    x = w["model.embed_tokens.weight"][tokens]
    for i in range(m["num_hidden_layers"]):
        p = {k.split(f"layers.{i}.")[1]: v for k, v in w.items() if f"layers.{i}." in k}
        y = normed(x, p["input_layernorm.weight"], eps)
        q, k, v = ((y @ p[f"self_attn.{n}_proj.weight"].T).reshape(len(x), -1, D) for n in "qkv")
        x = x + (mixed(turned(q, positions), turned(k, positions), v, D ** -0.5).reshape(len(x), -1)
                 @ p["self_attn.o_proj.weight"].T)
        y = normed(x, p["post_attention_layernorm.weight"], eps)
        gate, up = (y @ p[f"mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ p["mlp.down_proj.weight"].T
    return normed(x, w["model.norm.weight"], eps) @ w["model.embed_tokens.weight"].T


def tokens_of(text):
    return np.array([10, *text.encode("ascii")])


def text_of(tokens):
    return "".join(map(chr, tokens))


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
        want = draws(logits / temperature, u)
        rising = logits.argsort()
        ways = {
            "multiplied": (
                "the logits are multiplied by the temperature, not divided by it",
                draws(logits * temperature, u)),
            "no_temperature": (
                "it does not use the temperature, or divides the probabilities by it",
                draws(logits, u)),
            "no_sums": (
                "u is looked up among the probabilities; it belongs among their running sums",
                np.searchsorted(weights_of(logits / temperature), u, side="right")),
            "always_largest": (
                "it takes the largest logit though the temperature is above 0", logits.argmax()),
            "token_before": ("it takes the token before the right one", want - 1),
            "token_after": ("it takes the token after the right one", want + 1),
            "by_falling": (
                "the parts of [0, 1) are in the order of falling logits, not of the tokens",
                draws(logits / temperature, u, rising[::-1])),
            "by_rising": (
                "the parts of [0, 1) are in the order of rising logits, not of the tokens",
                draws(logits / temperature, u, rising)),
            "own_probability": (
                "u is compared with each token's own probability, not with the running sums",
                (weights_of(logits / temperature) > u).argmax()),
            "divided_later": (
                "the probabilities are divided by the temperature, not the logits",
                (weights_of(logits).cumsum() / temperature <= u).sum()),
            "from_one": (
                "the parts begin at 1 and go down; they begin at 0",
                draws(logits / temperature, 1 - u))}
        sums = weights_of(logits.astype(np.float64) / temperature).cumsum()
        tokens = {want, *(token for _, token in ways.values())}
        if len(tokens) < len(ways) + 1 or np.abs(sums - u).min() < 0.01:
            continue                    # two of them, or right and nearly right, are alike
        cases += 1
        got = subject.next_token(logits, temperature, u)
        assert isinstance(got, (int, np.integer)), f"next_token: got {got!r}, expected a token"
        assert got == want, message_of(ways, got, (
            f"next_token: at temperature {temperature}, u = {u:.3f} lies in the part of token "
            f"{want}; got {got}"))


def test_next_token__greedy(subject, rng):
    logits = rng.standard_normal(50).astype(np.float32)
    got, want = subject.next_token(logits, 0, 0.999), int(logits.argmax())
    smallest = ", the token of the smallest" if got == logits.argmin() else ""
    assert got == want, mistake("drawn_at_zero", (
        f"next_token: at temperature 0 the answer is the largest logit, token {want}, whatever u "
        f"is; got {got}{smallest}"), "")


def test_next_token__edges(subject):
    logits = np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf])
    for u, want in ((0.0, 1), (0.25, 1), (0.5, 3), (1 - 2**-53, 3)):
        got = subject.next_token(logits, 1, u)
        ways = {"sum_reaches_u": (
            "the first running sum that reaches u is taken, not the first that is greater",
            {0.0: 0, 0.5: 1}.get(u))}
        assert got == want, message_of(ways, got, (
            f"next_token: of five tokens only 1 and 3 are possible, each with probability 1/2; at "
            f"u = {u} expected {want}, got {got}"))
    large = subject.next_token(np.array([1e4, 1e4 - 1], np.float32), 0.5, 0.5)
    assert large == 0, mistake("overflow", (
        f"next_token: with logits of 10,000 and 9,999 at temperature 0.5, u = 0.5, expected token "
        f"0, got {large}: does exp, or a type of 16 bits, overflow?"))


def test_next_token__the_last(subject):
    """Ten tenths add up to 1 - 2⁻⁵³ in float64, and u may be as much."""
    got = subject.next_token(np.zeros(10), 1, 1 - 2**-53)
    assert got == 9, mistake("beyond_the_last", (
        f"next_token: ten equal logits, u = 1 - 2⁻⁵³: expected token 9, got {got}; by rounding, "
        f"the last running sum may be a little below 1, and u may not be below it"))


def test_next_token__hard(subject, rng):
    """Logits of every kind and many u, one after the other in one process."""
    kinds = {"negative": "negative logits", "equal": "equal logits",
             "infinite": "logits, some of them -inf", "signed_zeros": "logits, mostly 0 or -0",
             "denormal": "logits of about 1e-40", "exact_sums": "logits up to ±250"}
    cases = [(words, VALUES[kind](rng, (1, n))[0]) for kind, words in kinds.items()
             for n in (1, 2, 33)]
    cases += [(f"logits around {by}", shifted(rng, (1, 40), by)[0])
              for by in (200, -200, 3000, -3000)]
    for kind, logits in cases:
        for temperature, u in ((1, 0.0), (0.25, 0.6), (4, 0.999)):
            if not np.isfinite(logits).any():
                continue
            sums = weights_of(logits.astype(np.float64) / temperature).cumsum()
            if np.abs(sums - u * sums[-1]).min() < 1e-12 and u:
                continue                            # on the edge of a part
            want = int((sums <= u * sums[-1]).sum())
            got = subject.next_token(logits, temperature, u)
            low = weights_of(logits.astype(np.float32) / np.float32(temperature)).cumsum()
            of_these = f"next_token, {len(logits)} {kind}"
            ways = {"in_32_bits": (
                "probabilities and their sums are kept in 32 bits, where a small one is lost",
                got if got in ((low <= u).sum(), (low <= u * low[-1]).sum()) else None)}
            assert got == want, message_of(ways, got, (
                f"{of_these}, temperature {temperature}, u = {u}: expected token {want}, got "
                f"{got!r}"))
        token = subject.next_token(logits, 0, 0.7)
        largest = logits.max()
        assert logits[token] == largest, (f"{of_these}, temperature 0: token {token} has the logit "
                                          f"{logits[token]}, the largest is {largest}")


# ---- attention


@pytest.mark.parametrize("T, N, H, G, D", SHAPES)
def test_attention(subject, agree, rng, T, N, H, G, D):
    q = rng.standard_normal((T, H, D))
    k, v = rng.standard_normal((N, G, D)), rng.standard_normal((N, G, D))
    before = q.copy()
    agree(subject.attention(q, k, v, 0.3), mixed(q, k, v, 0.3), "float64",
          f"attention of the last {T} of {N} tokens, {H} query heads on {G} key heads",
          at=lambda i: f"token {i[0]}, head {i[1]}, number {i[2]}",
          mistakes={
              "no_mask": (
                  "every token sees all tokens, later ones too",
                  mixed(q, k, v, 0.3, sees=lambda t, n, T, N: True)),
              "no_old": (
                  "new token t sees keys 0 to t, as if there were no old tokens",
                  mixed(q, k, v, 0.3, sees=lambda t, n, T, N: n <= t)),
              "not_itself": (
                  "a token does not see itself",
                  mixed(q, k, v, 0.3, sees=lambda t, n, T, N: n < N - T + t)),
              "one_later": (
                  "a token also sees the one right after it",
                  mixed(q, k, v, 0.3, sees=lambda t, n, T, N: n <= N - T + t + 1)),
              "head_modulo": (
                  "query head h reads key head h % G, not h // (H // G)",
                  mixed(q, k, v, 0.3, head=lambda h, H, G: h % G)),
              "only_later": (
                  "a token sees only those after it: the mask is the wrong way round",
                  mixed(q, k, v, 0.3, sees=lambda t, n, T, N: n > N - T + t)),
              "itself_and_later": (
                  "a token sees itself and those after it: the mask is the wrong way round",
                  mixed(q, k, v, 0.3, sees=lambda t, n, T, N: n >= N - T + t)),
              "split_reversed": (
                  "query heads are split into (H // G, G); h // (H // G) means (G, H // G)",
                  mixed(q, k, v, 0.3, head=lambda h, H, G: h % G).reshape(
                    T, H // G, G, D).swapaxes(1, 2).reshape(T, H, D)),
              "head_by_g": (
                  "query head h reads key head h // G, not h // (H // G)",
                  mixed(q, k, v, 0.3, head=lambda h, H, G: min(h // G, G - 1))),
              "head_0": (
                  "all query heads read key head 0", mixed(q, k, v, 0.3, head=lambda h, H, G: 0)),
              "score_0": (
                  "the score of a later token is 0, not -inf: it keeps a weight",
                  masked(q, k, v, 0.3, hidden=0)),
              "masked_later": (
                  "later tokens are masked after the softmax: the weights left do not add up to 1",
                  masked(q, k, v, 0.3, after=True)),
              "over_queries": (
                  "the softmax runs over the queries, not over the keys",
                  masked(q, k, v, 0.3, axis=0)),
              "keys_mixed": (
                  "the keys are summed with the weights, not the values", mixed(q, k, k, 0.3)),
              "heads_first": (
                  "heads come before tokens when the result gets its shape",
                  mixed(q, k, v, 0.3).transpose(1, 0, 2).reshape(T, H, D)),
              "no_scale": ("the scores are not multiplied by scale", mixed(q, k, v, 1.0)),
              "own_scale": (
                  "the scores are multiplied by D ** -0.5; the argument `scale` is not used",
                  mixed(q, k, v, D ** -0.5)),
              "divided_by_scale": ("the scores are divided by scale", mixed(q, k, v, 1 / 0.3)),
              "scaled_twice": (
                  "the scores are multiplied by scale twice", mixed(q, k, v, 0.3 ** 2)),
              "weights_scaled": (
                  "scale comes after the softmax: it multiplies the weights",
                  0.3 * mixed(q, k, v, 1.0)),
              "no_sum": (
                  "the weights are not divided by their sum",
                  mixed(q, k, v, 0.3, weigh=lambda s: np.exp(s - s.max())))})
    assert np.array_equal(q, before), mistake(
        "input_changed", "attention changes q in place; its caller still needs it")


def test_attention__softmax_is_an_argument(subject, agree, rng):
    q, k, v = (rng.standard_normal((4, 2, 4)) for _ in range(3))
    sharp = subject.make("lab.judge.mocks:SharpSoftmax")
    agree(subject.attention(q, k, v, 0.5, sharp), mixed(q, k, v, 1.0), "float64",
          "attention with another softmax as its argument", mistakes={
              "other_softmax": ("the argument `softmax` is not used", mixed(q, k, v, 0.5))})


def hard_heads(kind, rng):
    """q, k, v of hard numbers: 4 new tokens of 6, 4 heads on 2."""
    make = VALUES.get(kind) or partial(shifted, by=float(kind.split()[-1]))
    return [make(rng, (n, heads, 4)).astype(np.float64) for n, heads in ((4, 4), (6, 2), (6, 2))]


HARD = {"negative": "negative numbers", "equal": "rows of equal numbers",
        "uneven": "numbers of sizes from 0.001 to 1000", "signed_zeros": "numbers, mostly 0 or -0",
        "denormal": "numbers of about 1e-40", "rows around 200": "numbers around 200",
        "rows around -200": "numbers around -200"}
LOW_SCORES = "scores far below 0"


def test_attention__hard(subject, agree, rng):
    """One after the other in one process; the numbers, and then how they lie."""
    for kind in (*HARD, LOW_SCORES):
        q, k, v = hard_heads(kind if kind in HARD else "rows around 200", rng)
        k = k if kind in HARD else -k
        agree(subject.attention(q, k, v, 0.5), mixed(q, k, v, 0.5), "float64",
              f"attention of {HARD.get(kind, kind)}", mistakes={
                  "overflow": (
                      "exp overflows: the softmax does not subtract the largest score first",
                      mixed(q, k, v, 0.5, weigh=without_maximum)),
                  "score_1e4": (
                      "a later token's score is -1e4: other scores may be lower still, and none "
                      "is lower than -inf",
                      masked(q, k, v, 0.5, hidden=-1e4))})
    q, k, v = hard_heads("unrounded", rng)
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


class Given:
    """A layer of ragged widths with random weights, in the test and in the subject."""

    def __init__(self, subject, rng, T=3, old=4, C=6, H=4, G=2, D=4, F=5):
        self.T, self.old, self.G, self.D, self.eps = T, old, G, D, 0.1
        shapes = {"attention_norm": (C,), "q": (H * D, C), "k": (G * D, C), "v": (G * D, C),
                  "o": (C, H * D), "mlp_norm": (C,), "gate": (F, C), "up": (F, C), "down": (C, F)}
        self.w = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
        angle = np.arange(old + T + 2)[:, None] * 1e4 ** (-np.arange(0, D, 2) / D)
        self.layer = subject.Layer(**self.w)
        self.model = subject.Llama(D, self.eps, np.cos(angle), np.sin(angle), np.zeros((1, C)),
                                   [self.layer], np.ones(C), np.zeros((1, C)))
        self.positions = np.arange(old, old + T)
        self.x = rng.standard_normal((T, C))
        self.keys, self.values = rng.standard_normal((2, old + T + 2, G, D))
        self.answer = rng.standard_normal((T, H, D))        # of the stand-in for attention
        self.attention = subject.make("lab.judge.mocks:Watched", None, self.answer)
        self.rope = subject.make("lab.judge.mocks:Watched", subject.rope)
        self.ops = subject.Operations(subject.matmul, subject.add, subject.rmsnorm, self.rope,
                                      self.attention, subject.swiglu)

    def heads(self, name):
        """q, k or v of the new tokens, before rope."""
        return self.product(normed(self.x, self.w["attention_norm"], self.eps), name)

    def product(self, y, name):
        return (y @ self.w[name].T).reshape(self.T, -1, self.D)

    def out(self, residual="x", second="x", norm="mlp_norm", swapped=False, from_x=False,
            across=False):
        """residual: what attention's result is added to; second: what the MLP's is added to;
        across: heads come before tokens in the rows that meet o"""
        w = self.w
        heads = self.answer.swapaxes(0, 1) if across else self.answer
        entered = {"x": self.x, "y": normed(self.x, w["attention_norm"], self.eps), "": 0}
        attended = heads.reshape(self.T, -1) @ w["o"].T
        x = attended + entered[residual]
        y = normed(self.x if from_x else x, w[norm], self.eps) if norm else x
        gate, up = y @ w["gate"].T, y @ w["up"].T
        gate, up = (up, gate) if swapped else (gate, up)
        before = {"x": x, "entered": self.x, "attended": attended, "y": y, "": 0}
        return (gate / (1 + np.exp(-gate)) * up) @ w["down"].T + before[second]


def run_block(subject, given):
    return subject.block(given.model, given.layer, given.x, given.keys, given.values,
                         given.positions, given.ops)


def test_block(subject, agree, rng):
    given = Given(subject, rng)
    before = given.x.copy()
    norm = subject.make("lab.judge.mocks:Watched", subject.rmsnorm)
    given.ops = given.ops._replace(rmsnorm=norm)
    got = run_block(subject, given)
    for call in norm.calls:
        assert call[2] == given.eps, mistake("other_eps", (
            f"block: ops.rmsnorm gets eps = {call[2]}; the model's is model.eps, here "
            f"{given.eps}"))
    assert (given.x == before).all(), mistake("input_changed", (
        "block changes its argument x; it must return a new array, because the caller still needs "
        "x"))
    assert given.attention.calls, "block: it does not call ops.attention"
    agree(got, given.out(), "float64", "block", at=lambda i: f"token {i[0]}, channel {i[1]}",
          mistakes={
              "attention_not_added": (
                  "the result of attention is not added to x", given.out(residual="")),
              "attention_to_normed": (
                  "the result of attention is added to the normed x, not to x itself",
                  given.out(residual="y")),
              "mlp_not_added": ("the result of the MLP is not added to x", given.out(second="")),
              "mlp_to_original": (
                  "the result of the MLP is added to the original x, so that the result of "
                  "attention is lost",
                  given.out(second="entered")),
              "mlp_without_x": (
                  "the result of the MLP is added to the result of attention alone, without x",
                  given.out(second="attended")),
              "mlp_to_normed": (
                  "the result of the MLP is added to the normed x, not to x itself",
                  given.out(second="y")),
              "heads_first": (
                  "heads come before tokens in the rows that are multiplied with o",
                  given.out(across=True)),
              "no_second_norm": ("the second norm is left out", given.out(norm=None)),
              "second_norm_weights": (
                  "the second norm has the weights of the first", given.out(norm="attention_norm")),
              "gate_and_up": ("gate and up are swapped", given.out(swapped=True)),
              "second_norm_original": (
                  "the second norm reads the original x, not x plus attention",
                  given.out(from_x=True))})


@pytest.mark.parametrize("D", [4, 8])           # 2 / D is the right scale of heads of four numbers
def test_block__what_attention_is_given(subject, agree, rng, D):
    given = Given(subject, rng, D=D)
    keys, values, N = given.keys.copy(), given.values.copy(), given.old + given.T
    unwritten, empty = keys.copy(), values.copy()
    run_block(subject, given)
    assert given.attention.calls, "block: it does not call ops.attention"
    assert given.rope.calls, mistake("no_rope", (
        "block: it does not call ops.rope, so attention does not know the positions"))
    q, k, v, scale = given.attention.calls[0]
    at = given.positions
    second = normed(given.x, given.w["mlp_norm"], given.eps)
    agree(q, turned(given.heads("q"), at), "float64", "the q passed to ops.attention",
          mistakes={
              "q_not_normed": (
                  "q is made from x itself, not from the normed x",
                  turned(given.product(given.x, "q"), at)),
              "first_norm_weights": (
                  "the first norm has the weights of the second",
                  turned(given.product(second, "q"), at)),
              "scaled_before": (
                  "q is multiplied by scale, and ops.attention does it again",
                  turned(given.heads("q"), at) * given.D ** -0.5),
              "positions_from_1": (
                  "positions are counted from 1", turned(given.heads("q"), at + 1)),
              "q_not_rotated": ("q is not rotated by rope", given.heads("q")),
              "positions_of_step": (
                  "rope gets positions counted from the first new token; pass `positions`",
                  turned(given.heads("q"), at - given.old))})
    counts = {
        "new_keys_alone": ("these are those of the new tokens alone", given.T),
        "old_keys_alone": ("these are those of the old tokens alone", given.old),
        "last_key_missing": ("positions begin at 0, so the last one is N - 1", N - 1),
        "whole_cache": ("these are all rows of the cache, and the last ones are empty", len(keys))}
    for name, (sentence, count) in counts.items():
        assert len(k) == N or len(k) != count, mistake(name, (
            f"block: ops.attention gets {len(k)} keys; it needs {N}, those of {given.old} old and "
            f"{given.T} new tokens: {sentence}"), sentence)
    assert len(k) == N, f"block: ops.attention gets {len(k)} keys; it needs {N}"
    keys[at], values[at] = turned(given.heads("k"), at), given.heads("v")
    unturned = keys.copy()
    unturned[at] = given.heads("k")
    front = unwritten.copy()
    front[:given.T] = keys[at]
    turned_values = values.copy()
    turned_values[at] = turned(given.heads("v"), at)
    of_k = values.copy()
    of_k[at] = given.heads("k")
    agree(k, keys[:N], "float64", "the keys passed to ops.attention",
          mistakes={
              "k_not_rotated": (
                  "k is written to the cache before rope has rotated it, or rope does not get it",
                  unturned[:N]),
              "keys_not_cached": ("the new keys are not written into the cache", unwritten[:N]),
              "over_the_old": (
                  "the new keys are written from row 0 on, over the old ones", front[:N]),
              "values_for_keys": ("the values are passed in place of the keys", values[:N])})
    agree(v, values[:N], "float64", "the values passed to ops.attention",
          mistakes={
              "v_rotated": ("rope rotates the values too", turned_values[:N]),
              "v_of_k": ("the values are made with the weights of the keys", of_k[:N]),
              "keys_for_values": ("the keys are passed in place of the values", keys[:N])})
    reason = "later steps read the new tokens' rows there"
    agree(given.keys, keys, "float64", f"the cache of keys after the call ({reason})",
          mistakes={
              "keys_copied": (
                  "the new keys reach attention and are not written into the cache", unwritten)})
    agree(given.values, values, "float64", f"the cache of values after the call ({reason})",
          mistakes={
              "values_copied": (
                  "the new values reach attention and are not written into the cache", empty)})
    agree(scale, given.D ** -0.5, "float64", "the scale passed to ops.attention",
          mistakes={
              "scale_root": ("it is √D; the scale is 1/√D", given.D ** 0.5),
              "scale_1_over_d": ("it is 1/D; the scale is 1/√D", 1 / given.D),
              "scale_2_over_d": ("it is 2/D, which is right only for D = 4", 2 / given.D),
              "scale_half": ("it is 0.5, which is right only for D = 4", 0.5),
              "scale_of_c": (
                  "it is 1/√C, of the model's width; a head has width D", given.x.shape[1] ** -0.5),
              "scale_of_hd": (
                  "it is 1/√(H·D); a score is a sum of D products", given.answer[0].size ** -0.5)})


def test_block__uses_its_operations(subject, agree, rng):
    """Every operation is one of the table's; positions 0 alone, and a late one."""
    earlier = -1
    for T, old in ((1, 0), (1, 7), (4, 0)):
        given = Given(subject, rng, T=T, old=old)
        watched = {name: subject.make("lab.judge.mocks:Watched", getattr(subject, name))
                   for name in ("matmul", "add", "rmsnorm", "swiglu")}
        given.ops = given.ops._replace(**watched)
        want = given.out()
        case = f"{T} new token{'s' * (T > 1)} after {old}"
        agree(run_block(subject, given), want, "float64", f"block, {case}")
        turned_at = given.rope.calls[0][-1]
        agree(turned_at, given.positions, what=f"block, {case}: the positions that rope gets",
              mistakes={
                  "old_positions": ("rope gets the positions of an earlier call", earlier)})
        earlier = given.positions
        keys = len(given.attention.calls[0][1])
        assert keys == old + T, mistake("other_keys", (
            f"block, {case}: ops.attention gets {keys} keys, expected {old + T}: those of all "
            f"tokens so far, and no others"), "")
        for name, times in {"matmul": 7, "add": 2, "rmsnorm": 2, "swiglu": 1}.items():
            calls = len(watched[name].calls)
            assert calls == times, mistake(f"without_{name}", (
                f"block, {case}: ops.{name} is called {calls} times, expected {times}: do every "
                f"operation through `ops`"), f"ops.{name} is called")


# ---- rows


@pytest.mark.parametrize("prompt, count", [(5, 4), (1, 1), (3, 10)])
def test_predict_rows(subject, reference, rng, prompt, count):
    """The right answer is counted in the course's own two functions."""
    got = subject.predict_rows(prompt, count)
    assert isinstance(got, (tuple, list)) and len(got) == 2, \
        f"predict_rows: got {got!r}, expected two numbers, without and with a cache"
    tokens = rng.integers(32, 127, prompt)
    for which, run, answer in (("without", "generate_from_scratch", got[0]),
                               ("with", "generate", got[1])):
        want = rows_of(reference, run, tokens, count)
        ways = {
            "step_missing": (
                "one step is left out", want - (prompt + count - 1 if which == "without" else 1)),
            "last_enters": (
                "the last token is counted too, but it never enters the model",
                want + (prompt + count if which == "without" else 1)),
            "all_as_last": (
                "every step is counted with as many rows as the last",
                count * (prompt + count - 1)),
            "all_as_first": (
                "every step is counted with as many rows as the first", count * prompt),
            "no_prompt": ("the prompt is left out", count - 1)}
        assert answer == want, message_of(ways, answer, (
            f"predict_rows({prompt}, {count}): {answer} is not the number of rows {which} a cache"))


def test_predict_rows__unseen(unseen, rng):
    for prompt, count in rng.integers(1, 1000, (4, 2)).tolist():
        unseen("predict_rows", prompt, count, precision="exact")


def rows_of(proxy, run, tokens, count):
    """Rows that entered each layer of the nano Llama."""
    return sum(steps_of(proxy, run, tokens, count)[1])


def steps_of(proxy, run, tokens, count):
    """(new tokens, rows of each step), counted at the norms: two a layer, and the last one."""
    model, watched = proxy.load_nano(), proxy.make("lab.judge.mocks:Watched", proxy.rmsnorm)
    new = getattr(proxy, run)(model, tokens, count, proxy.NUMPY._replace(rmsnorm=watched))
    return new, [len(call[0]) for call in watched.calls][::5]


# ---- generate


def chain(tokens, count, scores):
    """`count` tokens by greedy steps. scores(prompt, new): what the next token is chosen by."""
    new = []
    for _ in range(count):
        new.append(int(scores(list(tokens), new).argmax()))
    return new


def ways_to_go_wrong(tokens, count):
    """{mistake: the tokens it gives}, greedily."""
    first = int(logits_of(tokens)[-1].argmax())
    return {
        "empty_cache": (
            "each new token enters an empty cache, so the model does not know the tokens before "
            "it",
            chain(tokens, count, lambda prompt, new: logits_of(new[-1:] or prompt)[-1])),
        "first_row": (
            "the logits after the prompt's first token are used, not those after its last",
            chain(tokens, count, lambda prompt, new: logits_of(prompt + new)[-1 if new else 0])),
        "last_twice": (
            "the prompt's last token enters twice",
            chain(tokens, count, lambda prompt, new: logits_of(prompt + prompt[-1:] + new)[-1])),
        "prompt_again": ("every step is the prompt again", [first] * count),
        "smallest": (
            "the smallest logit is taken",
            chain(tokens, count, lambda prompt, new: -logits_of(prompt + new)[-1]))}


@pytest.mark.parametrize("prompt, count", [("a warp has", 12), ("decode", 18), ("one", 1)])
def test_generate(subject, prompt, count):
    sentence = next(s for s in SENTENCES if s.startswith(prompt + " "))
    want = (sentence + "\n")[len(prompt):][:count]
    tokens = tokens_of(prompt)
    new, steps = steps_of(subject, "generate", tokens, count)
    lengths = {"with_prompt": ("the prompt is returned too", len(tokens) + count),
               "one_missing": ("one token is left out", count - 1),
               "one_too_many": ("there is one step too many", count + 1)}
    assert len(new) == count, message_of(lengths, len(new), (
        f"generate: got {len(new)} tokens, expected {count} new ones"))
    got = text_of(new)
    ways = {} if got == want else ways_to_go_wrong(tokens, count)
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
    tokens, rng = list(tokens_of("a")), np.random.default_rng(5)
    drawn = np.random.default_rng(5).random(20)
    names = None                        # of the mistakes that give all tokens so far
    new = subject.generate(subject.load_nano("float64"), tokens, 8, subject.NUMPY,
                           temperature, subject.make("numpy.random:default_rng", 5))
    assert len(new) == 8, f"generate: got {len(new)} tokens, expected 8 new ones"
    for place, token in enumerate(new):
        logits = logits_of(tokens)[-1]
        sums = weights_of(logits / temperature).cumsum()
        u = rng.random()
        want = int((sums <= u).sum())
        ways = {
            "no_temperature": (
                "the largest logit is taken: the temperature is not passed to next_token",
                logits.argmax()),
            "temperature_1": (
                "next_token gets temperature 1", (weights_of(logits).cumsum() <= u).sum()),
            "one_draw": ("every token gets the first random number", (sums <= drawn[0]).sum()),
            "two_draws": (
                "rng.random() is called twice for each token",
                (sums <= drawn[2 * place + 1]).sum()),
            "first_left_out": (
                "the first random number is left out", (sums <= drawn[place + 1]).sum()),
            "u_0": ("u is 0, not a random number", (sums <= 0).sum())}
        names = ways if names is None else names
        names = [name for name in names if ways[name][1] == token]
        assert token == want, message_of({name: ways[name] for name in names}, token, (
            f"generate: at temperature {temperature} the random number {u:.3f} gives token {want} "
            f"as new token number {place}, got {token}; call rng.random() once per token, and "
            f"pass the temperature to next_token"))
        tokens.append(want)


def test_generate__none_and_again(subject):
    """No token; and another prompt on the same model, which keeps nothing of the one before."""
    model = subject.load_nano()
    new = subject.generate(model, tokens_of("decode"), 0)
    assert list(new) == [], mistake(
        "one_at_least", f"generate: count is 0: expected [], got {new!r}")
    for prompt in ("a warp has", "decode", "a warp has"):
        sentence = next(s for s in SENTENCES if s.startswith(prompt + " "))
        got, want = text_of(subject.generate(model, tokens_of(prompt), 6)), \
            (sentence + "\n")[len(prompt):][:6]
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
    for place, token in enumerate(new):
        want = int(logits_of(tokens)[-1].argmax())
        assert token == want, mistake("forgets_at_end", (
            f"generate: new token number {place} is {token}, expected {want}: after END the model "
            f"still sees all tokens before it"), "")
        tokens.append(want)


def test_generate__ids_of_any_kind(subject):
    """A prompt may be a list; the answer is a list of int."""
    new = subject.generate(subject.load_nano(), [10, *b"rope"], 3)
    assert isinstance(new, list) and all(type(t) is int for t in new), \
        f"generate: got {new!r}, expected a list of int"
    assert text_of(new) == " tu"


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
    whole = subject.forward(model, tokens, subject.Cache(model, 60))
    agree(whole, logits_of(tokens), "float64", "the logits")
    cache = subject.Cache(model, 64)
    parts = [subject.forward(model, tokens[a:b], cache) for a, b in ((0, 31), (31, 32), (32, 60))]
    agree(np.concatenate(parts), logits_of(tokens), "float64", "the logits in three steps")


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_nano_llama_is_sure_of_its_sentences(sentence):
    """After two words each further letter leads by 4 logits: no rounding of fp16 changes it."""
    tokens = tokens_of(sentence + "\n")
    start = len(" ".join(sentence.split(" ")[:2])) + 1
    logits = logits_of(tokens[:-1])[start:]
    assert (logits.argmax(-1) == tokens[start + 1:]).all()
    second, first = np.sort(logits, -1)[:, -2:].T
    assert (first - second).min() > 4


def test_weights_are_small_and_named_as_hugging_face_has_them():
    m, w = nano()
    assert Path(NANO / "weights.npz").stat().st_size < 2**20
    assert w["model.embed_tokens.weight"].shape == (m["vocab_size"], m["hidden_size"])
    assert len(w) == 2 + 9 * m["num_hidden_layers"]


def test_what_is_refused(subject):
    model = subject.load_nano()
    with pytest.raises(Raised, match="it has room for 3"):
        subject.forward(model, [1, 2, 3, 4], subject.Cache(model, 3))
    with pytest.raises(Raised, match="expected ASCII"):
        subject.encode("größer")
    assert subject.decode(subject.encode("warp")) == "\nwarp"
