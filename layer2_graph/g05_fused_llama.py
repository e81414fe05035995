"""g05 · The fused execution graph: a layer of a Llama in eight launches

T: new tokens of a step   L: layers   C: model width   H: query heads   G: key and value heads
D: head width   F: mlp width
g01's layer makes 15 launches, g03's merged one 12. Here each add moves into the norm behind it, the
write into the rotation, SwiGLU into the matrix before it: 8. FLOPs stay as they are. Fusing saves
2·C + 2·G·D + 4·F numbers a token and layer; the weights are read once as before.
"""

from typing import NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from layer2_graph.g01_llama import last_rows
from layer2_graph.g03_merging import MergedLlama
from layer2_graph.launches import Launches

__all__ = ["FusedLlama", "Launch", "Traffic"]


# ---- what is to be predicted


def predict_launches():
    """Launches of a layer when all that can be fused in a merged one is fused.

    The kernels there are for it: an add with the norm behind it, the rotation of q and k with the
    write into the pages, SwiGLU with the matrix before it.
    """
    # exercise: the merged layer makes 12. Which of them are left?
    return 2 + 4 + 1 + 1


def predict_numbers_saved(m):
    """Numbers of activations that fused_block moves less than g03's layer, a token and layer.

    m: a Config. Each launch reads and writes each of its arrays once. Weights, and what attention
    reads of the cache, are the same in both.
    """
    # exercise: what did one launch write, and the next one read again?
    sums = 2 * m.C                      # twice a layer the norm need not read what the add wrote
    keys = 2 * m.G * m.D                # k, once turned, goes into its slot at once
    gate_up = 2 * 2 * m.F               # gate and up are neither written nor read
    return sums + keys + gate_up


# ---- the layer and the model


def fused_block(model, i, x, residual, step, cache):        # 2 × (T, C) -> 2 × (T, C)
    """Layer number i: (x, residual). What the layer has made is their sum, which nobody has added.

    x, residual: from the layer before; residual is None in the first layer, where x is all.
    """
    m, ops, layer = model.config, model.ops, model.layers[i]
    # exercise: eight launches. model.add_norm makes the first, model.heads the second
    y, residual = model.add_norm(x, residual, layer.attention_norm)         # (T, C)
    q, k, v = model.heads(layer, y)
    ops.rope_and_cache(q, k, v, model.cos, model.sin, step.positions, cache.k[i], cache.v[i],
                       step.slots)
    mixed = ops.paged_attention(q, cache.k[i], cache.v[i], step.block_tables, step.cu_q,
                                step.lens, m.scale)                         # (T, H, D)
    x = model.linear(mixed.flatten(1), layer.o)                             # (T, C)
    y, residual = ops.add_rmsnorm(x, residual, layer.mlp_norm, m.eps)       # (T, C)
    return model.linear(model.gated(layer, y), layer.down), residual


def last_scores(model, x, residual, rows):          # 2 × (T, C) -> (rows, V)
    """Scores of the next token, after the last layer. rows: those of x that ask for it."""
    # exercise: two launches, besides taking the rows. The last add is still to be made
    y, _ = model.ops.add_rmsnorm(x[rows], residual[rows], model.norm, model.config.eps)
    return model.ops.matmul(y, model.head)


class FusedLlama(MergedLlama):
    """g03's Llama with a layer of eight launches, for the same weights, steps and caches.

    Biases and norms of q and k are no part of the eight kernels. Each bias of q, k and v, of o or
    of down adds a launch; one of gate and up adds two, and SwiGLU is by itself then. Qwen 3's norms
    add two, and two copies, where there are several tokens: a norm wants its rows one after the
    other, and in the merged result they are not.
    """

    def forward(self, step, cache, every=False):        # -> (B, V), or (T, V) for every token
        """Scores of the next token after the last new token of each sequence."""
        x, residual = self.embedding[step.tokens], None             # (T, C)
        for i in range(self.config.L):
            x, residual = fused_block(self, i, x, residual, step, cache)
        return last_scores(self, x, residual, slice(None) if every else last_rows(step.cu_q))

    def add_norm(self, x, residual, w):                 # 2 × (T, C) -> 2 × (T, C)
        """(norm of x + residual, that sum); before the first layer there is nothing to add."""
        if residual is None:
            return self.ops.rmsnorm(x, w, self.config.eps), x
        return self.ops.add_rmsnorm(x, residual, w, self.config.eps)

    def gated(self, layer, y):                          # (T, C) -> (T, F)
        """SiLU(gate) · up. The fused kernel knows no biases."""
        weight, bias = layer.gate_up
        if bias is None:
            return self.ops.matmul_swiglu(y, weight)
        return self.ops.swiglu(*self.linear(y, layer.gate_up).chunk(2, dim=-1))


# ---- counted


class Launch(NamedTuple):
    """One launch as it was seen."""

    name: str
    inputs: tuple               # numbers of the earlier launches whose results it reads
    moved: int                  # bytes that it asks to read and to write
    arrays: frozenset           # addresses of the memory that it was given


# arguments that a kernel changes, and those of them that it does not read: they are all pages
CHANGED = {"rope": (0, 1), "rope_and_cache": (0, 6, 7), "write_kv": (2, 3)}
TARGETS = {"rope_and_cache": (6, 7), "write_kv": (2, 3)}


class Traffic(Launches):
    """Launches, with the bytes of each and what it reads: with Traffic() as seen: …; seen.launches

    Use it as Launches. All arrays that it saw stay alive as long as it does, since memory that is
    freed and given out again would be taken for the same array.
    """

    def __init__(self):
        super().__init__()
        self.launches, self.writer, self.kept = [], {}, []

    @property
    def moved(self):
        """Bytes of all launches."""
        return sum(launch.moved for launch in self.launches)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        if len(self.names) > len(self.launches) and not self.inside:
            self.note(args, result)
        return result

    def watch(self, name, function):
        counted = super().watch(name, function)

        def one(*args):
            result = counted(*args)
            if not self.inside:             # a kernel that another one calls is not a launch
                self.note(args, result)
            return result

        return one

    def note(self, args, result):
        """Write down the launch whose name was listed last."""
        name, number = self.names[-1], len(self.launches)
        self.inside = True                  # what is done here is no launch
        targets = TARGETS.get(name, ())
        read = tensors([a for i, a in enumerate(args) if i not in targets])
        changed = tensors([args[i] for i in CHANGED.get(name, ())]) + tensors(result)
        inputs = {self.writer[place(a)] for a in read if place(a) in self.writer}
        self.launches.append(Launch(name, tuple(sorted(inputs)), moved(name, args, result),
                                    frozenset(map(place, tensors(args)))))
        self.writer |= dict.fromkeys(map(place, changed), number)
        self.kept += [*tensors(args), *changed]
        self.inside = False


def moved(name, args, result):
    """Bytes that a launch asks to read and to write, each array once; of tables, the rows it needs.

    Slots are taken for places of pages: -1 does not occur. Attention reads the keys and values of
    each context once.
    """
    if name in ("index", "embedding"):      # the embedding's rows, and rows of x
        return size(args[1], result) + size(result)
    if name == "index_copy_":               # rows of the last into the first, as a static cache has
        return size(args[2]) + 2 * size(args[3])
    if name == "rope":
        q, k, cos, _, positions = args
        return 2 * size(q, k) + size(positions) + 2 * len(q) * size(cos[0])
    if name == "rope_and_cache":
        q, k, v, cos, _, positions, _, _, slots = args
        return 2 * size(q, k, v) + size(positions, slots) + 2 * len(q) * size(cos[0])
    if name == "write_kv":
        k, v, _, _, slots = args
        return 2 * size(k, v) + size(slots)
    if name == "paged_attention":
        q, k_pages, _, tables, cu_q, lens, _ = args
        return size(q, tables, cu_q, lens, result) + 2 * int(lens.sum()) * size(k_pages[0, 0])
    return size(args) + size(result)


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if torch.is_tensor(leaf)]


def size(*trees):
    """Bytes of the arrays in it; one that is given twice is read once."""
    return sum({id(a): a.nbytes for a in tensors(trees)}.values())


def place(array):
    """The address of its memory, which its views share."""
    return array.untyped_storage().data_ptr()
