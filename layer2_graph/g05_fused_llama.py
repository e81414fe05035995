"""g05 · The fused execution graph: a layer of a Llama in as few launches as fusing allows

T: new tokens of a step   L: layers   C: model width   H: query heads   G: key and value heads
D: head width   F: mlp width
g01's layer makes 15 launches, g03's merged one 12.
Here each add moves into the norm after it, the write into the rotation, SwiGLU into the matrix
product before it.
FLOPs stay the same, and the weights are still read once.
A result that stays on the chip need not go through memory.
"""

import torch  # noqa: F401  (for what an answer may call)
from torch import Tensor

from layer2_graph.config import Config
from layer2_graph.g01_llama import Batch, Cache, last_rows
from layer2_graph.g03_merging import MergedLayer, MergedLlama

__all__ = ["FusedLlama"]


# ---- predictions


def predict_launches() -> int:
    """How many launches the merged layer makes when everything that can be fused is fused.

    Three kernels can be used: an add with the norm after it, the rotation of q and k with the write
    into the pages, and a matrix product with the SwiGLU after it.
    """
    # exercise: the merged layer makes 12 launches; how many are left?
    return 2 + 4 + 1 + 1


def predict_numbers_saved(m: Config) -> int:
    """How many activation numbers fused_block saves over g03's layer, for one token and one layer.

    Each launch reads each of its inputs once and writes each of its results once; an array changed
    in place is both.
    Weights, and what attention reads from the cache, are the same in both.
    """
    # exercise: what did one launch write and the next one read back?
    sums = 2 * m.C                      # twice a layer the norm no longer reads the add's result
    keys = 2 * m.G * m.D                # the rotated k goes straight into its slot
    gate_up = 2 * 2 * m.F               # gate and up are neither written nor read
    return sums + keys + gate_up


# ---- the layer and the model


def fused_block(model, i: int, x: Tensor, residual: Tensor | None, batch: Batch,
                cache: Cache) -> tuple[Tensor, Tensor]:     # 2 × (T, C) -> 2 × (T, C)
    """Layer i: (x, residual).
    The layer's result is their sum, which the next layer computes.

    x, residual: what the layer before returned.
    In the first layer x is the embedding and residual is None.
    model.cos and model.sin: tables of rope    cache.k[i], cache.v[i]: the layer's pages
    ops.paged_attention returns (T, H, D), and layer.o takes (T, H·D)
    """
    m, ops, layer = model.config, model.ops, model.layers[i]
    # exercise: first everything up to attention's output matrix, then the MLP
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
    own.
    The norms of Qwen 3 cost two launches, and two copies in a step of several tokens: a norm needs
    contiguous rows, and in the merged result they are not.
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
