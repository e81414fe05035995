"""Softmax, attention and the nano Llama by loops, in float64, with the ways in which they go
wrong."""

import json

import numpy as np

from lab.course import ROOT

NANO = ROOT / "day02_overview" / "nano"


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
