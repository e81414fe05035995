"""o02 · A Llama in NumPy: from a prompt to the next token, and the one after

T: tokens in this step   N: context, all tokens so far, these included   V: vocabulary   L: layers
C: model width   H: query heads   G: key and value heads   D: head width   F: mlp width
A step reads every weight once and does 2 FLOPs with it for each of its T tokens.
With one token that is 2 FLOPs for 4 bytes in fp32, or 1 FLOP per byte in fp16: memory is the limit.

The model calls its operations through a table.
Here they are plain NumPy, the oracle of all later floors, which put their kernels into the table.
The model does not change.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["NANO", "NUMPY", "Cache", "NumpyLlama", "Operations", "add", "attention", "decode",
           "encode", "forward", "generate", "load_nano", "matmul", "rmsnorm", "rope", "softmax",
           "swiglu"]

NANO = Path(__file__).parent / "nano"       # 2 layers of width 64, trained by its train.py
END = ord("\n")                             # the token before and after a sentence


# ---- text and tokens


def encode(text):                               # -> (T,)
    """The tokens of a text: END, then its ASCII codes.

    A large Llama uses longer pieces, which byte-pair encoding (BPE) chooses.
    """
    if not text.isascii():
        raise ValueError(f"encode: {text!r} has characters that the nano Llama does not know; "
                         f"expected ASCII")
    return np.array([END, *text.encode("ascii")])


def decode(tokens):
    """The text of tokens 0 to 127."""
    return bytes(list(tokens)).decode("ascii")


# ---- the operations, by the book, in the precision of their inputs


def matmul(a, w):                               # (M, K), (N, K) -> (M, N)
    """a · wᵀ: a weight matrix has the shape (outputs, inputs)."""
    return a @ w.T


def add(a, b):                                  # (T, C), (T, C) -> (T, C)
    return a + b


def rmsnorm(x, w, eps):                         # (T, C), (C,) -> (T, C)
    """Each row divided by the root of its mean square, each column times its weight."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def rope(q, k, cos, sin, positions):            # (T, H, D), (T, G, D), 2 × (room, D/2), (T,)
    """Rotate each pair of q and of k by its angle, in place.
    Returns nothing.

    Number i of a head's first half and number i of its second half are a pair, as in Hugging Face.
    cos, sin: a row for each position.
    """
    c = cos[positions, None]                                # (T, 1, D//2)
    s = sin[positions, None]                                # (T, 1, D//2)
    for x in (q, k):
        a, b = np.split(x, 2, axis=-1)
        x[:] = np.concatenate((a * c - b * s, b * c + a * s), axis=-1)


def softmax(x):                                 # (..., C) -> (..., C)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q, k, v, scale, softmax=softmax):     # (T, H, D), (N, G, D), (N, G, D) -> (T, H, D)
    """For each query, the weighted sum of the values up to its own token.

    The T queries belong to the last T of the N tokens.
    Query head h uses the keys and values of head h // (H // G). softmax: the function that turns
    scores into weights, over the last axis.
    The result has the dtype of q, k and v.
    """
    (T, H, D), (N, G, _) = q.shape, k.shape
    # exercise: scores of all pairs, -inf for later tokens, softmax over n, weighted sum of values
    q = q.reshape(T, G, H // G, D)
    scores = np.einsum("tghd,ngd->ghtn", q, k) * scale      # (G, H//G, T, N)
    later = np.arange(N) > np.arange(N - T, N)[:, None]     # (T, N)
    weights = softmax(np.where(later, -np.inf, scores).astype(scores.dtype))
    return np.einsum("ghtn,ngd->tghd", weights, v).reshape(T, H, D)


def swiglu(gate, up):                           # (T, F), (T, F) -> (T, F)
    """SiLU(gate) · up.
    SiLU(x) = x · sigmoid(x), and sigmoid(x) = (1 + tanh(x/2)) / 2."""
    return gate * (1 + np.tanh(gate / 2)) / 2 * up


class Operations(NamedTuple):
    """The table of operations that the model calls.
    Signatures as above; rope works in place."""

    matmul: Callable
    add: Callable
    rmsnorm: Callable
    rope: Callable
    attention: Callable
    swiglu: Callable


NUMPY = Operations(matmul, add, rmsnorm, rope, attention, swiglu)


# ---- the model


class Layer(NamedTuple):
    """The weights of one layer, in the order of their use."""

    attention_norm: np.ndarray      # (C,)
    q: np.ndarray                   # (H·D, C)
    k: np.ndarray                   # (G·D, C)
    v: np.ndarray                   # (G·D, C)
    o: np.ndarray                   # (C, H·D)
    mlp_norm: np.ndarray            # (C,)
    gate: np.ndarray                # (F, C)
    up: np.ndarray                  # (F, C)
    down: np.ndarray                # (C, F)


class NumpyLlama(NamedTuple):
    D: int
    eps: float                      # of the norms
    cos: np.ndarray                 # (room, D/2)
    sin: np.ndarray                 # (room, D/2)
    embedding: np.ndarray           # (V, C)
    layers: list[Layer]
    norm: np.ndarray                # (C,)
    head: np.ndarray                # (V, C); in a small Llama the embedding itself


class Cache:
    """Keys and values of all tokens so far: two arrays for each layer, with room for more.

    ValueError if room is more than the model's positions
    """

    def __init__(self, model, room):
        if room > len(model.cos):
            raise ValueError(f"Cache: room for {room} tokens, expected at most {len(model.cos)}, "
                             f"the positions of the model")
        G = len(model.layers[0].k) // model.D
        shape = (len(model.layers), room, G, model.D)
        dtype = model.embedding.dtype
        self.keys = np.empty(shape, dtype)          # (L, room, G, D)
        self.values = np.empty(shape, dtype)        # (L, room, G, D)
        self.N = 0                                  # tokens whose keys and values are in it

    def next(self, T):                              # -> (T,)
        """The positions of the next T tokens.
        ValueError where there is no room for them."""
        room = self.keys.shape[1]
        if room < self.N + T:
            raise ValueError(f"Cache: {self.N} tokens and {T} more; it has room for {room}")
        self.N += T
        return np.arange(self.N - T, self.N)


def block(model, layer, x, keys, values, positions, ops):       # (T, C) -> (T, C)
    """One layer: attention is added to x, then the MLP. x itself stays unchanged.

    keys, values (room, G, D): this layer's cache.
    Its rows before positions[0] are filled; this function writes those at `positions`.
    """
    T = len(x)
    D = model.D
    # exercise: norm, q k v, rope, cache, attention, o, add; norm, gate and up, swiglu, down, add
    y = ops.rmsnorm(x, layer.attention_norm, model.eps)                             # (T, C)
    q, k, v = (ops.matmul(y, w).reshape(T, -1, D) for w in (layer.q, layer.k, layer.v))
    ops.rope(q, k, model.cos, model.sin, positions)
    keys[positions] = k
    values[positions] = v
    N = positions[-1] + 1
    mixed = ops.attention(q, keys[:N], values[:N], D ** -0.5)                       # (T, H, D)
    x = ops.add(x, ops.matmul(mixed.reshape(T, -1), layer.o))                       # (T, C)
    y = ops.rmsnorm(x, layer.mlp_norm, model.eps)                                   # (T, C)
    hidden = ops.swiglu(ops.matmul(y, layer.gate), ops.matmul(y, layer.up))         # (T, F)
    return ops.add(x, ops.matmul(hidden, layer.down))


def forward(model, tokens, cache, ops=NUMPY):   # (T,) -> (T, V)
    """The logits of the next token after each of these, which follow the tokens in the cache."""
    positions = cache.next(len(tokens))
    x = model.embedding[tokens]                                                     # (T, C)
    for layer, keys, values in zip(model.layers, cache.keys, cache.values, strict=True):
        x = block(model, layer, x, keys, values, positions, ops)                    # (T, C)
    return ops.matmul(ops.rmsnorm(x, model.norm, model.eps), model.head)


# ---- one token after another


def next_token(logits, temperature, u):         # (V,) -> int
    """The token of the largest logit at temperature 0; else drawn from softmax(logits/temperature).

    u: a random number, 0 <= u < 1. In the order of the tokens, each owns a part of [0, 1) whose
    length is its probability; the part that contains u decides.
    Use float64.
    Even then the last sum may be below 1; a u that no sum exceeds draws the last token.
    """
    # exercise: at temperature 0 the largest; else softmax, running sums, the first greater than u
    if temperature == 0:
        return int(logits.argmax())
    sums = softmax(logits.astype(np.float64) / temperature).cumsum()                # (V,)
    return int(np.searchsorted(sums, u * sums[-1], side="right"))


def generate_from_scratch(model, prompt, count, ops=NUMPY):
    """The next `count` tokens, greedily, with an empty cache for each of them."""
    tokens = list(prompt)
    for _ in range(count):
        logits = forward(model, tokens, Cache(model, len(tokens)), ops)             # (..., V)
        tokens.append(next_token(logits[-1], 0, 0))
    return tokens[len(prompt):]


def predict_rows(prompt, count):
    """(rows without a cache, rows with one): the rows of x that enter each layer, over all steps.

    `count` tokens, at least one, are generated after a prompt of `prompt` tokens: without a cache
    as in generate_from_scratch; with one, no token enters twice.
    """
    # exercise: add up the rows of all steps, both ways
    return sum(prompt + i for i in range(count)), prompt + count - 1


def generate(model, prompt, count, ops=NUMPY, temperature=0, rng=None):
    """The next `count` tokens after a prompt; no token goes through the model twice.

    temperature: above 0, tokens are drawn with rng.random(). Returns a list of int.
    """
    # exercise: first the whole prompt with an empty cache, then each new token alone
    cache = Cache(model, len(prompt) + count)
    step = prompt
    tokens = []
    for _ in range(count):
        logits = forward(model, step, cache, ops)                                   # (..., V)
        tokens.append(next_token(logits[-1], temperature, rng.random() if temperature else 0))
        step = tokens[-1:]
    return tokens


# ---- the weights


def load_nano(dtype=np.float32):
    """The nano Llama of this course.
    It knows nano/sentences.txt by heart and nothing else.

    dtype: of the weights, and so of everything computed from them.
    They were saved in fp16.
    """
    m = json.loads((NANO / "config.json").read_text("utf-8"))
    with np.load(NANO / "weights.npz") as file:
        w = {name: file[name].astype(dtype) for name in file}
    names = ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
             "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj",
             "mlp.down_proj")
    layers = [Layer(*(w[f"model.layers.{i}.{name}.weight"] for name in names))
              for i in range(m["num_hidden_layers"])]
    D = m["head_dim"]
    room = np.arange(m["max_position_embeddings"])
    angle = room[:, None] * m["rope_theta"] ** (-np.arange(0, D, 2) / D)            # (room, D//2)
    embedding = w["model.embed_tokens.weight"]                                      # (V, C)
    return NumpyLlama(D, m["rms_norm_eps"], np.cos(angle).astype(dtype),
                      np.sin(angle).astype(dtype), embedding, layers, w["model.norm.weight"],
                      embedding)
