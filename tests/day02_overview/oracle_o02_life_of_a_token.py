"""Softmax, attention, a layer and the nano Llama by loops, in float64, with the ways in which they
go wrong."""

import json

import numpy as np

from lab.course import ROOT

NANO = ROOT / "day02_overview" / "nano"
WATCHED = "lab.judge.mocks:Watched"


def weights_of(scores, largest=np.max):
    """Softmax. largest: what is subtracted from the scores."""
    with np.errstate(over="ignore", invalid="ignore"):
        e = np.exp(scores - largest(scores))
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


def normed(x, w, eps):
    return np.stack([row / np.sqrt(np.mean(row * row) + eps) * w for row in x])


def turned(x, positions, theta=1e4):            # (T, heads, D)
    half = x.shape[-1] // 2
    angle = positions[:, None, None] * theta ** (-np.arange(half) / half)       # (T, 1, D/2)
    c, s, a, b = np.cos(angle), np.sin(angle), x[..., :half], x[..., half:]
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def but(array, place, rows):
    """A copy that holds these rows at a place."""
    other = array.copy()
    other[place] = rows
    return other


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


# ---- what comes out of mistakes in attention


SEES = {                # {id: (what went wrong, whether key n is visible to query t)}
    "no_mask": ("every token sees all tokens, later ones too", lambda t, n, T, N: True),
    "no_old": ("new token t sees keys 0 to t, as if there were no old tokens",
               lambda t, n, T, N: n <= t),
    "not_itself": ("a token does not see itself", lambda t, n, T, N: n < N - T + t),
    "one_later": ("a token also sees the one right after it",
                  lambda t, n, T, N: n <= N - T + t + 1),
    "only_later": ("a token sees only those after it: the mask is the wrong way round",
                   lambda t, n, T, N: n > N - T + t),
    "itself_and_later": ("a token sees itself and those after it: the mask is the wrong way round",
                         lambda t, n, T, N: n >= N - T + t)}
HEADS = {               # {id: (what went wrong, the key head of query head h)}
    "head_modulo": ("query head h reads key head h % G, not h // (H // G)", lambda h, H, G: h % G),
    "head_by_g": ("query head h reads key head h // G, not h // (H // G)",
                  lambda h, H, G: min(h // G, G - 1)),
    "head_0": ("all query heads read key head 0", lambda h, H, G: 0)}


# ---- a layer, and what comes out of mistakes in block


class Given:
    """A layer of ragged widths with random weights, in the test and in the subject."""

    def __init__(self, subject, rng, T=3, old=4, C=6, H=4, G=2, D=4, F=5):
        self.T, self.old, self.G, self.D, self.eps = T, old, G, D, 0.1
        shapes = {"attention_norm": (C,), "q": (H * D, C), "k": (G * D, C), "v": (G * D, C),
                  "o": (C, H * D), "mlp_norm": (C,), "gate": (F, C), "up": (F, C), "down": (C, F)}
        self.w = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
        angle = np.arange(old + T + 2)[:, None] * 1e4 ** (-np.arange(0, D, 2) / D)
        self.layer = subject.Layer(**self.w)
        self.model = subject.NumpyLlama(D, self.eps, np.cos(angle), np.sin(angle), np.zeros((1, C)),
                                   [self.layer], np.ones(C), np.zeros((1, C)))
        self.positions = np.arange(old, old + T)
        self.x = rng.standard_normal((T, C))
        self.keys, self.values = rng.standard_normal((2, old + T + 2, G, D))
        self.answer = rng.standard_normal((T, H, D))        # of the stand-in for attention
        calls = {name: subject.make(WATCHED, getattr(subject, name))
                 for name in ("matmul", "add", "rmsnorm", "rope", "swiglu")}
        self.calls = calls | {"attention": subject.make(WATCHED, None, self.answer)}
        self.ops = subject.Operations(**self.calls)

    def heads(self, name):
        """q, k or v of the new tokens, before rope."""
        return self.product(normed(self.x, self.w["attention_norm"], self.eps), name)

    def product(self, y, name):
        return (y @ self.w[name].T).reshape(self.T, -1, self.D)

    def out(self, residual="x", second="x", norm="mlp_norm", swapped=False, from_x=False,
            across=False, apart=False, first=False, both=None, gated=True, twice=False):
        """residual: what attention's result is added to; second: what the MLP's is added to;
        across: heads come before tokens in the rows that meet o, or (apart) a token's numbers lie
        apart; first: the MLP gets the first norm's rows; both: the weights of gate and up;
        gated: by SiLU; twice: what the MLP's result is added to counts twice"""
        w = self.w
        heads = self.answer.swapaxes(0, 1) if across else self.answer
        heads = heads.reshape(-1, self.T).T if apart else heads
        entered = {"x": self.x, "y": normed(self.x, w["attention_norm"], self.eps), "": 0}
        attended = heads.reshape(self.T, -1) @ w["o"].T
        x = attended + entered[residual]
        y = normed(self.x if from_x else x, w[norm], self.eps) if norm else x
        y = entered["y"] if first else y
        gate, up = (y @ w[both or name].T for name in ("gate", "up"))
        gate, up = (up, gate) if swapped else (gate, up)
        before = {"x": x, "entered": self.x, "attended": attended, "y": y, "": 0}
        sigmoid = 1 / (1 + np.exp(-gate)) if gated else 1
        return (gate * sigmoid * up) @ w["down"].T + (1 + twice) * before[second]


OUTS = {                # {id: (what went wrong, what Given.out makes of it)}
    "attention_not_added": ("the result of attention is not added to x", {"residual": ""}),
    "attention_to_normed": ("the result of attention is added to the normed x, not to x itself",
                            {"residual": "y"}),
    "mlp_not_added": ("the result of the MLP is not added to x", {"second": ""}),
    "mlp_to_original": ("the result of the MLP is added to the original x, so that the result of "
                        "attention is lost", {"second": "entered"}),
    "mlp_without_x": ("the result of the MLP is added to the result of attention alone, without x",
                      {"second": "attended"}),
    "mlp_to_normed": ("the result of the MLP is added to the normed x, not to x itself",
                      {"second": "y"}),
    "heads_first": ("heads come before tokens in the rows that are multiplied with o",
                    {"across": True}),
    "heads_apart": ("the rows that are multiplied with o mix tokens; (T, H, D) becomes (T, H·D) by "
                    "reshape(T, -1) alone", {"apart": True}),
    "first_norm_rows": ("gate and up get the rows of the first norm, not those of the second",
                        {"first": True}),
    "gate_twice": ("gate and up are both made with the weights of gate", {"both": "gate"}),
    "up_twice": ("gate and up are both made with the weights of up", {"both": "up"}),
    "no_silu": ("gate is multiplied by up without SiLU", {"gated": False}),
    "x_twice": ("x with the result of attention is added twice", {"twice": True}),
    "no_second_norm": ("the second norm is left out", {"norm": None}),
    "second_norm_weights": ("the second norm has the weights of the first",
                            {"norm": "attention_norm"}),
    "gate_and_up": ("gate and up are swapped", {"swapped": True}),
    "second_norm_original": ("the second norm reads the original x, not x plus attention",
                             {"from_x": True})}


# ---- what comes out of mistakes in generate


def chain(tokens, count, scores):
    """`count` tokens by greedy steps. scores(prompt, new): what the next token is chosen by."""
    new = []
    for _ in range(count):
        new.append(int(scores(list(tokens), new).argmax()))
    return new


CHAINS = {              # {id: (what went wrong, what the next token is chosen by)}
    "empty_cache": ("each new token enters an empty cache, so the model does not know the tokens "
                    "before it", lambda prompt, new: logits_of(new[-1:] or prompt)[-1]),
    "first_row": ("the logits after the prompt's first token are used, not those after its last",
                  lambda prompt, new: logits_of(prompt + new)[-1 if new else 0]),
    "last_twice": ("the prompt's last token enters twice",
                   lambda prompt, new: logits_of(prompt + prompt[-1:] + new)[-1]),
    "two_a_step": ("each later step sends the token before again: only the newest one is new "
                   "to the model", lambda prompt, new: logits_of(prompt + [t for pair in zip(
                       [*prompt[-1:], *new], new, strict=False) for t in pair])[-1]),
    "prompt_again": ("every step is the prompt again", lambda prompt, new: logits_of(prompt)[-1]),
    "smallest": ("the smallest logit is taken", lambda prompt, new: -logits_of(prompt + new)[-1])}


def draws(logits, temperature, drawn, place):
    """{mistake: (sentence, token)} of new token number `place`, first what is right; then those for
    which rng is not needed."""
    def token(u, temperature=temperature):
        return int((weights_of(logits / temperature).cumsum() <= u).sum())

    return {
        "right": ("", token(drawn[place])),
        "no_temperature": ("the largest logit is taken: the temperature is not passed to "
                           "next_token", int(logits.argmax())),
        "u_0": ("u is 0, not a random number", token(0)),
        "temperature_1": ("next_token gets temperature 1", token(drawn[place], 1)),
        "one_draw": ("every token gets the first random number", token(drawn[0])),
        "two_draws": ("rng.random() is called twice for each token", token(drawn[2 * place + 1])),
        "first_left_out": ("the first random number is left out", token(drawn[place + 1]))}
