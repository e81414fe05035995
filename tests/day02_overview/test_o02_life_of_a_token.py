"""Graders of o02. Attention and the layer are compared with loops over heads and tokens in float64,
the whole model with a second Llama that is written here, on the same weights."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from lab.course import ROOT
from lab.judge.adversarial import VALUES, shifted
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
        ways = {"it multiplies by the temperature": draws(logits * temperature, u),
                "it does not use the temperature, or divides the probabilities by it":
                    draws(logits, u),
                "no running sums are made: u is looked up among the probabilities themselves":
                    np.searchsorted(weights_of(logits / temperature), u, side="right"),
                "it takes the largest logit though the temperature is above 0": logits.argmax(),
                "it takes the token before the one whose part u falls into": want - 1,
                "it takes the token after the one whose part u falls into": want + 1,
                "parts of [0, 1) go to tokens by falling logits, not in the order of the tokens":
                    draws(logits / temperature, u, rising[::-1]),
                "parts of [0, 1) go to tokens by rising logits, not in the order of the tokens":
                    draws(logits / temperature, u, rising),
                "u is compared with each token's own probability, not with the running sums":
                    (weights_of(logits / temperature) > u).argmax(),
                "the probabilities are divided by the temperature, not the logits":
                    (weights_of(logits).cumsum() / temperature <= u).sum(),
                "parts of [0, 1) are laid out from 1 downwards, not from 0 upwards":
                    draws(logits / temperature, 1 - u)}
        sums = weights_of(logits.astype(np.float64) / temperature).cumsum()
        if len({want, *ways.values()}) < len(ways) + 1 or np.abs(sums - u).min() < 0.01:
            continue                    # two of them, or right and nearly right, are alike
        cases += 1
        got = subject.next_token(logits, temperature, u)
        assert isinstance(got, (int, np.integer)), f"next_token: got {got!r}, expected a token"
        why = [f"\nThis is what comes out when {way}." for way, token in ways.items()
               if token == got]
        assert got == want, (f"next_token: at temperature {temperature} u = {u:.3f} falls into the "
                             f"part of token {want}, got {got}" + "".join(why))


def test_next_token__greedy(subject, rng):
    logits = rng.standard_normal(50).astype(np.float32)
    got, want = subject.next_token(logits, 0, 0.999), int(logits.argmax())
    assert got == want, (f"next_token: at temperature 0 the largest logit, token {want}, is taken "
                         f"whatever u is; got {got}"
                         + ", the token of the smallest" * int(got == logits.argmin()))


def test_next_token__edges(subject):
    logits = np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf])
    for u, want in ((0.0, 1), (0.25, 1), (0.5, 3), (1 - 2**-53, 3)):
        got = subject.next_token(logits, 1, u)
        reaching = ("\nThis is what comes out when the first running sum that reaches u is taken, "
                    "not the first that exceeds it." if got == {0.0: 0, 0.5: 1}.get(u) else "")
        assert got == want, (f"next_token: of five tokens only 1 and 3 are possible, each by one "
                             f"half; at u = {u} expected {want}, got {got}" + reaching)
    large = subject.next_token(np.array([1e4, 1e4 - 1], np.float32), 0.5, 0.5)
    assert large == 0, f"next_token: logits of 10,000 overflow in exp: got token {large}, not 0"


def test_next_token__the_last(subject):
    """Ten tenths add up to 1 - 2⁻⁵³ in float64, and u may be as much."""
    got = subject.next_token(np.zeros(10), 1, 1 - 2**-53)
    assert got == 9, (f"next_token: ten equal logits, u = 1 - 2⁻⁵³: expected token 9, got {got}; "
                      f"by rounding, running sums may end a little below 1, and u may lie beyond "
                      f"the last")


def test_next_token__hard(subject, rng):
    """Logits of every kind and many u, one after the other in one process."""
    cases = [(kind, VALUES[kind](rng, (1, n))[0]) for kind in (
        "negative", "equal", "infinite", "signed_zeros", "denormal", "exact_sums")
        for n in (1, 2, 33)]
    cases += [(f"around {by}", shifted(rng, (1, 40), by)[0]) for by in (200, -200, 3000, -3000)]
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
            in_32_bits = [(low <= u).sum(), (low <= u * low[-1]).sum()]
            why = ("\nThis is what comes out when probabilities and their sums are kept in 32 "
                   "bits, where a small one is lost." if got in in_32_bits else "")
            assert got == want, (f"next_token: {len(logits)} logits of the kind {kind}, at "
                                 f"temperature {temperature}, u = {u}: expected token {want}, got "
                                 f"{got!r}{why}")
        got, want = subject.next_token(logits, 0, 0.7), logits.max()
        assert logits[got] == want, (f"next_token: {len(logits)} logits of the kind {kind}, "
                                     f"temperature 0: token {got} has {logits[got]}, the largest "
                                     f"is {want}")


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
              "every token sees all, also those after it":
                  mixed(q, k, v, 0.3, sees=lambda t, n, T, N: True),
              "new token t sees keys 0 to t, as if there were no old ones":
                  mixed(q, k, v, 0.3, sees=lambda t, n, T, N: n <= t),
              "a token does not see itself":
                  mixed(q, k, v, 0.3, sees=lambda t, n, T, N: n < N - T + t),
              "a token sees one too many, the one after it":
                  mixed(q, k, v, 0.3, sees=lambda t, n, T, N: n <= N - T + t + 1),
              "query head h reads key head h % G, not h // (H // G)":
                  mixed(q, k, v, 0.3, head=lambda h, H, G: h % G),
              "a token sees only those after it: the mask is the wrong way round":
                  mixed(q, k, v, 0.3, sees=lambda t, n, T, N: n > N - T + t),
              "a token sees itself and those after it: the mask is the wrong way round":
                  mixed(q, k, v, 0.3, sees=lambda t, n, T, N: n >= N - T + t),
              "query heads are split into (H // G, G), but h // (H // G) means (G, H // G)":
                  mixed(q, k, v, 0.3, head=lambda h, H, G: h % G).reshape(
                      T, H // G, G, D).swapaxes(1, 2).reshape(T, H, D),
              "query head h reads key head h // G, not h // (H // G)":
                  mixed(q, k, v, 0.3, head=lambda h, H, G: min(h // G, G - 1)),
              "all query heads read key head 0": mixed(q, k, v, 0.3, head=lambda h, H, G: 0),
              "the score of a later token is 0, not -inf: it keeps a weight":
                  masked(q, k, v, 0.3, hidden=0),
              "later tokens are masked after the softmax: the weights left do not add up to 1":
                  masked(q, k, v, 0.3, after=True),
              "the softmax runs over the queries, not over the keys": masked(q, k, v, 0.3, axis=0),
              "the keys are mixed, not the values": mixed(q, k, k, 0.3),
              "heads come before tokens when the result gets its shape":
                  mixed(q, k, v, 0.3).transpose(1, 0, 2).reshape(T, H, D),
              "the scores are not multiplied by scale": mixed(q, k, v, 1.0),
              "the scores are multiplied by D ** -0.5, whatever scale is":
                  mixed(q, k, v, D ** -0.5),
              "the scores are divided by scale": mixed(q, k, v, 1 / 0.3),
              "the scores are multiplied by scale twice": mixed(q, k, v, 0.3 ** 2),
              "scale comes after the softmax: it multiplies the weights": 0.3 * mixed(q, k, v, 1.0),
              "the weights are not divided by their sum":
                  mixed(q, k, v, 0.3, weigh=lambda s: np.exp(s - s.max()))})
    assert np.array_equal(q, before), "attention: it changed q, which belongs to the caller"


def test_attention__softmax_is_an_argument(subject, agree, rng):
    q, k, v = (rng.standard_normal((4, 2, 4)) for _ in range(3))
    sharp = subject.make("lab.judge.mocks:SharpSoftmax")
    agree(subject.attention(q, k, v, 0.5, sharp), mixed(q, k, v, 1.0), "float64",
          "attention with a softmax of twice the scores handed in", mistakes={
              "the softmax that is handed in is not the one that is used": mixed(q, k, v, 0.5)})


def hard_heads(kind, rng):
    """q, k, v of hard numbers: 4 new tokens of 6, 4 heads on 2."""
    make = VALUES.get(kind) or partial(shifted, by=float(kind.split()[-1]))
    return [make(rng, (n, heads, 4)).astype(np.float64) for n, heads in ((4, 4), (6, 2), (6, 2))]


HARD = ("negative", "equal", "uneven", "signed_zeros", "denormal", "rows around 200",
        "rows around -200")


def test_attention__hard(subject, agree, rng):
    """One after the other in one process; the numbers, and then how they lie."""
    for kind in (*HARD, "scores far below 0"):
        q, k, v = hard_heads(kind if kind in HARD else "rows around 200", rng)
        k = k if kind in HARD else -k
        agree(subject.attention(q, k, v, 0.5), mixed(q, k, v, 0.5), "float64",
              f"attention of numbers of the kind {kind}", mistakes={
                  "exp overflows: the softmax does not take the largest score off first":
                      mixed(q, k, v, 0.5, weigh=without_maximum),
                  "a later token's score is -1e4, and scores may lie below that; -inf never is":
                      masked(q, k, v, 0.5, hidden=-1e4)})
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
    assert got.dtype == np.float32, \
        f"attention of float32: got numbers of {got.dtype}, expected float32: is a mask or an " \
        f"array of constants of another precision?"


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
        assert call[2] == given.eps, (f"block: ops.rmsnorm gets eps = {call[2]}; the model's is "
                                      f"model.eps, here {given.eps}")
    assert (given.x == before).all(), \
        "block changes the x that is handed in: expected it unchanged, the caller uses it again"
    assert given.attention.calls, "block: it does not call ops.attention"
    agree(got, given.out(), "float64", "block", at=lambda i: f"token {i[0]}, channel {i[1]}",
          mistakes={"the attention's result is not added to x": given.out(residual=""),
                    "the attention's result is added to the normed x, not to x itself":
                        given.out(residual="y"),
                    "the MLP's result is not added to what came before": given.out(second=""),
                    "the MLP's result is added to the x that entered, and the attention's is lost":
                        given.out(second="entered"),
                    "the MLP's result is added to the attention's alone, without x":
                        given.out(second="attended"),
                    "the MLP's result is added to the normed x, not to x itself":
                        given.out(second="y"),
                    "heads come before tokens in the rows that meet o": given.out(across=True),
                    "the second norm is left out": given.out(norm=None),
                    "the second norm has the weights of the first":
                        given.out(norm="attention_norm"),
                    "gate and up are swapped": given.out(swapped=True),
                    "the second norm reads the x that entered": given.out(from_x=True)})


@pytest.mark.parametrize("D", [4, 8])           # 2 / D is the right scale of heads of four numbers
def test_block__what_attention_is_given(subject, agree, rng, D):
    given = Given(subject, rng, D=D)
    keys, values, N = given.keys.copy(), given.values.copy(), given.old + given.T
    unwritten, empty = keys.copy(), values.copy()
    run_block(subject, given)
    assert given.attention.calls, "block: it does not call ops.attention"
    assert given.rope.calls, "block: it does not call ops.rope, so no token knows where it is"
    q, k, v, scale = given.attention.calls[0]
    at = given.positions
    second = normed(given.x, given.w["mlp_norm"], given.eps)
    agree(q, turned(given.heads("q"), at), "float64", "q as attention gets it",
          mistakes={"q is made of x itself, not of the normed x":
                        turned(given.product(given.x, "q"), at),
                    "the first norm has the weights of the second":
                        turned(given.product(second, "q"), at),
                    "q is multiplied by scale already, and attention does it again":
                        turned(given.heads("q"), at) * given.D ** -0.5,
                    "positions are counted from 1": turned(given.heads("q"), at + 1),
                    "q is not turned by rope": given.heads("q"),
                    "rope counts positions from the first new token, not from the first of all":
                        turned(given.heads("q"), at - given.old)})
    which = {given.T: "; these are the new ones' alone",
             given.old: "; these are the old ones' alone",
             N - 1: "; positions count from 0, so the last one is one less than their number",
             len(keys): "; the rest of it is empty"}.get(len(k), "")
    assert len(k) == N, (f"block: attention gets {len(k)} keys; {given.old} old and {given.T} new "
                         f"tokens are {N}, and the cache has room for {len(keys)}{which}")
    keys[at], values[at] = turned(given.heads("k"), at), given.heads("v")
    unturned = keys.copy()
    unturned[at] = given.heads("k")
    front = unwritten.copy()
    front[:given.T] = keys[at]
    turned_values = values.copy()
    turned_values[at] = turned(given.heads("v"), at)
    of_k = values.copy()
    of_k[at] = given.heads("k")
    agree(k, keys[:N], "float64", "the keys as attention gets them",
          mistakes={"k enters the cache before rope has turned it, or rope does not turn it":
                        unturned[:N],
                    "the new keys do not enter the cache": unwritten[:N],
                    "the new keys are written from place 0 on, over the old ones": front[:N],
                    "the values are handed over in place of the keys": values[:N]})
    agree(v, values[:N], "float64", "the values as attention gets them",
          mistakes={"rope turns the values, too": turned_values[:N],
                    "the values are made with the weights of the keys": of_k[:N],
                    "the keys are handed over in place of the values": keys[:N]})
    kept = "it gets the new tokens' own: later steps read them there"
    agree(given.keys, keys, "float64", f"the cache of keys after the call ({kept})",
          mistakes={"the new keys are not written into it": unwritten})
    agree(given.values, values, "float64", f"the cache of values after the call ({kept})",
          mistakes={"the new values are not written into it": empty})
    agree(scale, given.D ** -0.5, "float64", "the scale of attention",
          mistakes={"it is the root of D, not one over it": given.D ** 0.5,
                    "it is one over D": 1 / given.D,
                    "it is 2 / D, which is right for heads of four numbers alone": 2 / given.D,
                    "it is 0.5, which is right for heads of four numbers alone": 0.5,
                    "it is one over the root of the model's width; heads have width D":
                        given.x.shape[1] ** -0.5,
                    "it is one over the root of H · D; a score is a sum of D products":
                        given.answer[0].size ** -0.5})


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
              mistakes={"block keeps positions of an earlier call": earlier})
        earlier = given.positions
        keys = len(given.attention.calls[0][1])
        assert keys == old + T, (f"block, {case}: attention gets {keys} keys, expected {old + T}: "
                                 f"those of all tokens so far, and no others")
        for name, times in {"matmul": 7, "add": 2, "rmsnorm": 2, "swiglu": 1}.items():
            calls = len(watched[name].calls)
            assert calls == times, (f"block, {case}: ops.{name} is called {calls} times, expected "
                                    f"{times}: what the model computes with is in the table")


# ---- rows


@pytest.mark.parametrize("prompt, count", [(5, 4), (1, 1), (3, 10)])
def test_predict_rows(subject, reference, rng, prompt, count):
    """The right answer is counted in the course's own two functions."""
    got = subject.predict_rows(prompt, count)
    assert isinstance(got, (tuple, list)) and len(got) == 2, \
        f"predict_rows: got {got!r}, expected two numbers, without and with a cache"
    tokens = rng.integers(32, 127, prompt)
    case = f"prompt of {prompt} and {count} new token{'s' * (count > 1)}"
    for which, run, answer in (("without", "generate_from_scratch", got[0]),
                               ("with", "generate", got[1])):
        want = rows_of(reference, run, tokens, count)
        ways = {"all steps but one are counted": want - (prompt + count - 1 if which == "without"
                                                         else 1),
                "the last token enters too; nobody asks what comes after it":
                    want + (prompt + count if which == "without" else 1),
                "every step is counted as long as the last": count * (prompt + count - 1),
                "every step is counted as long as the first": count * prompt,
                "the prompt is left out": count - 1}
        why = [f"\nThis is what comes out when {w}." for w, number in ways.items()
               if number == answer]
        assert answer == want, (f"predict_rows: {case}: {which} a cache {want} rows enter a layer, "
                                f"predicted {answer}" + "".join(why[:1]))


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
        "each new token enters an empty cache, and nothing is known of those before it":
            chain(tokens, count, lambda prompt, new: logits_of(new[-1:] or prompt)[-1]),
        "the scores after the prompt's first token are used, not those after its last":
            chain(tokens, count, lambda prompt, new: logits_of(prompt + new)[-1 if new else 0]),
        "the prompt's last token enters twice":
            chain(tokens, count, lambda prompt, new: logits_of(prompt + prompt[-1:] + new)[-1]),
        "every step is the prompt again": [first] * count,
        "the smallest logit is taken":
            chain(tokens, count, lambda prompt, new: -logits_of(prompt + new)[-1])}


@pytest.mark.parametrize("prompt, count", [("a warp has", 12), ("decode", 18), ("one", 1)])
def test_generate(subject, prompt, count):
    sentence = next(s for s in SENTENCES if s.startswith(prompt + " "))
    want = (sentence + "\n")[len(prompt):][:count]
    tokens = tokens_of(prompt)
    new, steps = steps_of(subject, "generate", tokens, count)
    what = {len(tokens) + count: ": the prompt is one part of the question, not of the answer",
            count - 1: ": one is missing", count + 1: ": one is too many"}.get(len(new), "")
    assert len(new) == count, f"generate: got {len(new)} tokens, expected {count} new ones{what}"
    got = text_of(new)
    why = [] if got == want else [f"\nThis is what comes out when {way}." for way, wrong in
                                  ways_to_go_wrong(tokens, count).items() if wrong == list(new)]
    assert got == want, (f"generate: after {prompt!r} the nano Llama says {want!r}, got {got!r}"
                         + "".join(why[:1]))
    assert steps, "generate: no step computes with the operations that are handed in, `ops`"
    more = ("; there is a step too many: the prompt's last token enters twice, or the last new one "
            "enters" if steps == [len(tokens)] + [1] * count else "")
    assert steps == [len(tokens)] + [1] * (count - 1), (
        f"generate: its steps put {steps} rows through the model; with a cache {len(tokens)} "
        f"enter once, and then each new token alone{more}")


@pytest.mark.parametrize("temperature", [1.5, 0.7])
def test_generate__drawn(subject, temperature):
    """Each token from one random number, by the probabilities after all tokens before it."""
    tokens, rng = list(tokens_of("a")), np.random.default_rng(5)
    drawn = np.random.default_rng(5).random(20)
    why = None                          # the mistakes that give all tokens so far
    new = subject.generate(subject.load_nano("float64"), tokens, 8, subject.NUMPY,
                           temperature, subject.make("numpy.random:default_rng", 5))
    assert len(new) == 8, f"generate: got {len(new)} tokens, expected 8 new ones"
    for place, token in enumerate(new):
        logits = logits_of(tokens)[-1]
        sums = weights_of(logits / temperature).cumsum()
        u = rng.random()
        want = int((sums <= u).sum())
        ways = {"the largest logit is taken: the temperature does not get to next_token":
                    logits.argmax(),
                "next_token gets temperature 1": (weights_of(logits).cumsum() <= u).sum(),
                "every token gets the first random number": (sums <= drawn[0]).sum(),
                "a random number is left out for each token": (sums <= drawn[2 * place + 1]).sum(),
                "the first random number is left out": (sums <= drawn[place + 1]).sum(),
                "u is 0, not a random number": (sums <= 0).sum()}
        why = [way for way in (ways if why is None else why) if ways[way] == token]
        assert token == want, (
            f"generate: at temperature {temperature} the random number {u:.3f} gives token {want} "
            f"as new token {place}, got {token}; one rng.random() a token, and the temperature "
            f"goes to next_token" +
            f"\nThis is what comes out when {' or '.join(why)}." * bool(why))
        tokens.append(want)


def test_generate__none_and_again(subject):
    """No token; and another prompt on the same model, which keeps nothing of the one before."""
    model = subject.load_nano()
    new = subject.generate(model, tokens_of("decode"), 0)
    assert list(new) == [], f"generate: no token was asked for, got {new!r}"
    for prompt in ("a warp has", "decode", "a warp has"):
        sentence = next(s for s in SENTENCES if s.startswith(prompt + " "))
        got, want = text_of(subject.generate(model, tokens_of(prompt), 6)), \
            (sentence + "\n")[len(prompt):][:6]
        assert got == want, (f"generate, prompts one after the other on one model: after "
                             f"{prompt!r} expected {want!r}, got {got!r}")


def test_generate__after_a_sentence(subject):
    """END is a token like the others: another sentence follows it."""
    tokens, count = list(tokens_of("decode")), 26
    new = subject.generate(subject.load_nano("float64"), tokens, count)
    assert len(new) == count, (
        f"generate: got {len(new)} tokens, expected {count}: a sentence ends on the way, and its "
        f"END is one of the tokens and not the last")
    for place, token in enumerate(new):
        want = int(logits_of(tokens)[-1].argmax())
        assert token == want, (f"generate: new token {place} is {token}, expected {want}; "
                               f"a sentence ends on the way, and the next one follows it")
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
