"""A decode step as instructions: what each of them does, by the book, in NumPy.

L: layers   C: model width   H: query heads   G: key and value heads   D: head width
F: mlp width   V: vocabulary   R: room, tokens that a cache can hold
A kernel gets the same weights and the same tensors, so that each tensor can be compared.
"""

from typing import NamedTuple

import numpy as np

from day02_overview import NumpyLlama, add, attention, matmul, rmsnorm, rope, swiglu

QKV, ATTEND, OUT, MLP, DOWN, HEAD, EMBED, PAUSE = range(8)  # as in g14_megakernel.cu
STAGES = 5                                                  # of a layer: QKV to DOWN
OPS = ("qkv", "attention", "o", "mlp", "down", "head", "embedding", "pause")


class Sizes(NamedTuple):
    """The sizes of a Llama."""

    L: int                  # layers
    C: int                  # model width
    H: int                  # query heads
    G: int                  # key and value heads
    D: int                  # head width
    F: int                  # mlp width
    V: int                  # vocabulary
    R: int                  # room: tokens that a cache can hold


class Instruction(NamedTuple):
    """A piece of one operation: rows begin to end - 1 of what it writes, heads in attention.

    It may begin when counter `wait` has reached `need`, and at its end adds 1 to counter `signal`.
    PAUSE does nothing, `end` times: a block that is late, for a test.
    """

    op: int                 # QKV, ATTEND, OUT, MLP, DOWN, HEAD, EMBED or PAUSE
    layer: int
    begin: int
    end: int
    wait: int               # the number of a counter
    need: int               # what that counter must have reached; 0: it waits for nothing
    signal: int             # the number of the counter that it adds 1 to

    def __str__(self) -> str:
        return (f"{OPS[self.op]} {self.begin}:{self.end} of layer {self.layer}: counter "
                f"{self.wait} at {self.need}, then adds to {self.signal}")


class Weights(NamedTuple):
    """Those of all layers, stacked, in fp32 and in the order of the kernel's parameters."""

    embedding: np.ndarray           # (V, C)
    attention_norm: np.ndarray      # (L, C)
    qkv: np.ndarray                 # (L, (H+2G)·D, C): q's rows, then k's, then v's
    o: np.ndarray                   # (L, C, H·D)
    mlp_norm: np.ndarray            # (L, C)
    gate_up: np.ndarray             # (L, 2·F, C): gate's rows, then up's
    down: np.ndarray                # (L, C, F)
    norm: np.ndarray                # (C,)
    head: np.ndarray                # (V, C)
    cos: np.ndarray                 # (R, D/2)
    sin: np.ndarray                 # (R, D/2)


class Tensors(NamedTuple):
    """What instructions write, in the order of the kernel's parameters.
    No array is used twice."""

    x: np.ndarray                   # (L + 1, C): before each layer, and after the last
    qkv: np.ndarray                 # (L, (H+2G)·D)
    mixed: np.ndarray               # (L, H·D): the heads' mixed values
    y: np.ndarray                   # (L, C): x plus attention
    hidden: np.ndarray              # (L, F)
    logits: np.ndarray              # (V,)
    keys: np.ndarray                # (L, R, G, D)
    values: np.ndarray              # (L, R, G, D)


def sizes_of(model: NumpyLlama) -> Sizes:
    layer = model.layers[0]
    return Sizes(len(model.layers), layer.q.shape[1], len(layer.q) // model.D,
                 len(layer.k) // model.D, model.D, len(layer.gate), len(model.head),
                 len(model.cos))


def stacked(model: NumpyLlama) -> Weights:
    """The weights of a Llama of o02, copied."""
    def every(*names):
        return np.stack([np.concatenate([getattr(layer, name) for name in names])
                         for layer in model.layers]).astype(np.float32)

    single = (x.astype(np.float32) for x in (model.norm, model.head, model.cos, model.sin))
    return Weights(model.embedding.astype(np.float32), every("attention_norm"),
                   every("q", "k", "v"), every("o"), every("mlp_norm"), every("gate", "up"),
                   every("down"), *single)


def blank(m: Sizes) -> Tensors:
    """Tensors in which each number is NaN: what is read too early shows."""
    shapes = ((m.L + 1, m.C), (m.L, (m.H + 2 * m.G) * m.D), (m.L, m.H * m.D), (m.L, m.C),
              (m.L, m.F), (m.V,), (m.L, m.R, m.G, m.D), (m.L, m.R, m.G, m.D))
    return Tensors(*(np.full(shape, np.nan, np.float32) for shape in shapes))


class Machine:
    """Weights, tensors and counters, and what an instruction does with them.

    weights, tensors: the tensors are written    eps: of the norms
    position: of the token in the cache, whose first `position` places are filled
    counters: as many as a step has
    """

    def __init__(self, m: Sizes, weights: Weights, tensors: Tensors, eps: float, token: int,
                 position: int):
        if not 0 <= position < m.R:
            raise ValueError(f"Machine: position {position}, expected 0 to {m.R - 1}: the cache "
                             f"has room for {m.R}")
        self.m = m
        self.weights = weights
        self.tensors = tensors
        self.eps = eps
        self.token = token
        self.position = position
        self.counters = [0] * (STAGES * m.L + 2)

    def execute(self, instruction: Instruction) -> None:
        """Compute and write the rows of an instruction.
        It neither waits nor signals."""
        op, i, begin, end = instruction[:4]
        rows = slice(begin, end)
        w = self.weights
        t = self.tensors
        if op == EMBED:
            t.x[0, rows] = w.embedding[self.token, rows]
        elif op == QKV:
            t.qkv[i, rows] = matmul(rmsnorm(t.x[i], w.attention_norm[i], self.eps), w.qkv[i, rows])
        elif op == ATTEND:
            for g in range(begin, end):
                self.attend(i, g)
        elif op == OUT:
            t.y[i, rows] = add(t.x[i, rows], matmul(t.mixed[i], w.o[i, rows]))
        elif op == MLP:
            row = rmsnorm(t.y[i], w.mlp_norm[i], self.eps)                          # (C,)
            gate, up = w.gate_up[i].reshape(2, self.m.F, -1)[:, rows]
            t.hidden[i, rows] = swiglu(matmul(row, gate), matmul(row, up))
        elif op == DOWN:
            t.x[i + 1, rows] = add(t.y[i, rows], matmul(t.hidden[i], w.down[i, rows]))
        elif op == HEAD:
            t.logits[rows] = matmul(rmsnorm(t.x[-1], w.norm, self.eps), w.head[rows])
        elif op != PAUSE:
            raise ValueError(f"Machine: an instruction has op {op}, expected 0 to {len(OPS) - 1}")

    def attend(self, i: int, g: int) -> None:
        """Head g of the keys and values: rotate, put into the cache, mix for its query heads."""
        m = self.m
        t = self.tensors
        per = m.H // m.G                                                # query heads of a kv head
        heads = t.qkv[i].reshape(-1, m.D)                               # (H + 2·G, D)
        q = heads[None, g * per:(g + 1) * per].copy()                   # (1, per, D)
        k = heads[None, None, m.H + g].copy()                           # (1, 1, D)
        rope(q, k, self.weights.cos, self.weights.sin, np.array([self.position]))
        t.keys[i, self.position, g] = k
        t.values[i, self.position, g] = heads[m.H + m.G + g]
        past = slice(self.position + 1)
        mixed = attention(q, t.keys[i, past, g, None], t.values[i, past, g, None], m.D ** -0.5)
        t.mixed[i, g * per * m.D:(g + 1) * per * m.D] = mixed.ravel()
