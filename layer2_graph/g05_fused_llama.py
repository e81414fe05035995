"""g05 · The fused execution graph: a layer of a Llama in as few launches as fusing allows

T: new tokens of a step   L: layers   C: model width   H: query heads   G: key and value heads
D: head width   F: mlp width
g01's layer makes 15 launches, g03's merged one 12. Here each add moves into the norm after it, the
write into the rotation, SwiGLU into the matrix product before it. FLOPs stay the same, and the
weights are still read once. A result that stays on the chip need not go through memory.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from layer2_graph.config import Config
from layer2_graph.g01_llama import Batch, Cache, last_rows
from layer2_graph.g03_merging import MergedLayer, MergedLlama
from layer2_graph.launches import Launches

__all__ = ["FusedLlama", "Launch", "Traffic"]


# ---- predictions


def predict_launches() -> int:
    """Launches of one layer once everything in the merged layer that can be fused is fused.

    Three kernels can be used: an add with the norm after it, the rotation of q and k with the write
    into the pages, and a matrix product with the SwiGLU after it.
    """
    # exercise: the merged layer makes 12 launches; how many are left?
    return 2 + 4 + 1 + 1


def predict_numbers_saved(m: Config) -> int:
    """How many activation numbers fewer fused_block moves than g03's layer: one token, one layer.

    Each launch reads each of its inputs once and writes each of its results once. Weights, and
    what attention reads from the cache, are the same in both.
    """
    # exercise: what did one launch write and the next one read back?
    sums = 2 * m.C                      # twice a layer the norm no longer reads the add's result
    keys = 2 * m.G * m.D                # the rotated k goes straight into its slot
    gate_up = 2 * 2 * m.F               # gate and up are neither written nor read
    return sums + keys + gate_up


# ---- the layer and the model


def fused_block(model, i: int, x: Tensor, residual: Tensor | None, batch: Batch,
                cache: Cache) -> tuple[Tensor, Tensor]:     # 2 × (T, C) -> 2 × (T, C)
    """Layer i: (x, residual). The layer's result is their sum, which the next layer computes.

    x, residual: what the layer before returned. In the first layer x is the embedding and residual
    is None.
    model.cos and model.sin: tables of rope    cache.k[i], cache.v[i]: the layer's pages
    ops.paged_attention returns (T, H, D), and layer.o takes (T, H·D)
    """
    m, ops, layer = model.config, model.ops, model.layers[i]
    # exercise: first all up to attention and its output matrix, then the MLP
    y, residual = model.add_norm(x, residual, layer.attention_norm)         # (T, C)
    q, k, v = model.heads(layer, y)
    ops.rope_and_cache(q, k, v, model.cos, model.sin, batch.positions, cache.k[i], cache.v[i],
                       batch.slots)
    mixed = ops.paged_attention(q, cache.k[i], cache.v[i], batch.block_tables, batch.cu_q,
                                batch.lens, m.scale)                        # (T, H, D)
    x = model.linear(mixed.flatten(1), layer.o)                             # (T, C)
    y, residual = ops.add_rmsnorm(x, residual, layer.mlp_norm, m.eps)       # (T, C)
    return model.linear(model.gated(layer, y), layer.down), residual


def last_scores(model, x: Tensor, residual: Tensor,
                rows: Tensor | slice) -> Tensor:            # 2 × (T, C) -> (rows, V)
    """Scores of the next token, from what the last layer returned.

    rows: the rows of x and residual whose next token is wanted
    model.norm: (C,)    model.head: (V, C), for ops.matmul
    """
    # exercise: select the rows, then two launches; the last addition is still open
    y, _ = model.ops.add_rmsnorm(x[rows], residual[rows], model.norm, model.config.eps)
    return model.ops.matmul(y, model.head)


class FusedLlama(MergedLlama):
    """g03's Llama with fused layers, for the same weights, steps and caches.

    The fused kernels take no biases and no norms of q and k. A bias of q, k and v, of o or of down
    costs one launch more; a bias of gate and up costs two, because SwiGLU is then a launch of its
    own. The norms of Qwen 3 cost two launches, and two copies in a step of several tokens: a norm
    needs contiguous rows, and in the merged result they are not.
    """

    def forward(self, batch: Batch, cache: Cache,
                every: bool = False) -> Tensor:         # (B, V), or (T, V) for every token
        """Scores of the token that follows each sequence's last new token."""
        x = self.embedding[batch.tokens]                            # (T, C)
        residual = None
        for i in range(self.config.L):
            x, residual = fused_block(self, i, x, residual, batch, cache)
        return last_scores(self, x, residual, slice(None) if every else last_rows(batch.cu_q))

    def add_norm(self, x: Tensor, residual: Tensor | None,
                 w: Tensor) -> tuple[Tensor, Tensor]:   # 2 × (T, C) -> 2 × (T, C)
        """(norm of the sum, the sum): of x + residual, or of x alone in the first layer."""
        if residual is None:
            return self.ops.rmsnorm(x, w, self.config.eps), x
        return self.ops.add_rmsnorm(x, residual, w, self.config.eps)

    def gated(self, layer: MergedLayer, y: Tensor) -> Tensor:   # (T, C) -> (T, F)
        """SiLU(gate) · up: one launch, or three where gate and up have a bias."""
        weight, bias = layer.gate_up
        if bias is None:
            return self.ops.matmul_swiglu(y, weight)
        return self.ops.swiglu(*self.linear(y, layer.gate_up).chunk(2, dim=-1))


# ---- launches and bytes, counted


class Launch(NamedTuple):
    """One recorded launch."""

    name: str
    inputs: tuple[int, ...]     # indices of the earlier launches whose results it reads
    moved: int                  # bytes that it reads and writes
    arrays: frozenset[int]      # addresses of the memory of its arguments


# Arguments that a kernel writes, and those of them that it only writes, all of them pages.
CHANGED = {"rope": (0, 1), "rope_and_cache": (0, 6, 7), "write_kv": (2, 3)}
TARGETS = {"rope_and_cache": (6, 7), "write_kv": (2, 3)}


class Traffic(Launches):
    """Records each launch with its bytes and its inputs: with Traffic() as traffic: …

    Use it as Launches; then traffic.launches has a Launch for each name. It keeps every array that
    it has seen alive: memory that is freed and used again would look like the same array.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launch] = []
        self.writer: dict[int, int] = {}
        self.alive: list[Tensor] = []

    @property
    def moved(self) -> int:
        """Bytes of all launches."""
        return sum(launch.moved for launch in self.launches)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        if len(self.names) > len(self.launches) and not self.inside:
            self.note(args, result)
        return result

    def watch(self, name: str, function: Callable) -> Callable:
        counted = super().watch(name, function)

        def one(*args):
            result = counted(*args)
            if not self.inside:             # a kernel called by another kernel is not a launch
                self.note(args, result)
            return result

        return one

    def note(self, args: tuple, result: object) -> None:
        """Record the most recent launch."""
        name = self.names[-1]
        number = len(self.launches)
        self.inside = True                  # operations of the recorder itself do not count
        targets = TARGETS.get(name, ())
        read = tensors([a for i, a in enumerate(args) if i not in targets])
        changed = tensors([args[i] for i in CHANGED.get(name, ())]) + tensors(result)
        inputs = {self.writer[place(a)] for a in read if place(a) in self.writer}
        self.launches.append(Launch(name, tuple(sorted(inputs)), moved(name, args, result),
                                    frozenset(map(place, tensors(args)))))
        self.writer |= dict.fromkeys(map(place, changed), number)
        self.alive += [*tensors(args), *changed]
        self.inside = False


def moved(name, args, result):
    """Bytes that a launch reads and writes: each array once, and only the needed rows of a table.

    Every slot counts as written; -1 must not occur. Attention reads the keys and values of each
    context once. The embedding counts one row a token.
    """
    if name in ("index", "embedding"):      # the embedding's rows, and rows of x
        return size(args[1], result) + size(result)
    if name == "index_copy_":               # rows of the last into the first, as in a static cache
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
    """Bytes of all arrays in the trees; an array that occurs twice counts once."""
    return sum({id(a): a.nbytes for a in tensors(trees)}.values())


def place(array):
    """The address of an array's memory, which its views share."""
    return array.untyped_storage().data_ptr()
