"""g03 · Merging: two operations that become one equation, with other weights and fewer launches

T: new tokens   N: tokens in the context, new ones included   C: model width   D: head width
H: query heads   G: key and value heads   F: mlp width   V: vocabulary
&: merged, the weights of two operations are combined before the run    +: fused, two operations
still run, in one launch

What can be merged: matrices on the same x (stack their rows), a factor on each input (scale the
columns), a factor and a shift on each output (scale the rows, add to the bias).
Latent attention moves brackets: (q W) · c instead of q · (W c), so that no key is ever computed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from day01_roofline import attended
from layer1_kernels import Kernels
from layer2_graph.config import Config
from layer2_graph.g01_llama import Batch, Cache, Llama

__all__ = ["MergedLayer", "MergedLlama", "attend_absorbed", "attend_expanded", "fold_batch_norm",
           "fold_norm", "merge_rows", "mla_flops"]


# ---- matrices on the same input


def predict_merged_launches() -> int:
    """The launches of a layer of MergedLlama. g01's layer makes 15."""
    # exercise: which matrices have the same input?
    return 15 - 2 - 1


def merge_rows(matrices: Sequence[tuple]) -> tuple[Tensor, Tensor | None]:
    """Stack matrices that multiply the same input: [(weight, bias)] -> (weight, bias).

    weight: (numbers out, numbers in)    bias: (numbers out,) or None
    The results lie side by side, in the order of `matrices`.
    If no matrix has a bias, the merged bias is None.
    If some have one, a missing bias counts as zeros with the dtype of its weight.
    """
    widths = {weight.shape[1] for weight, _ in matrices}
    if len(widths) != 1:
        raise ValueError(f"merge_rows: the matrices take {', '.join(map(str, sorted(widths)))} "
                         f"numbers; on the same input all must take the same number")
    # exercise: stack the weights; then the biases
    weight = torch.cat([weight for weight, _ in matrices])
    if all(bias is None for _, bias in matrices):
        return weight, None
    return weight, torch.cat([w.new_zeros(len(w)) if b is None else b for w, b in matrices])


def merge_named(weights, names):
    """merge_rows of the named matrices; in `weights` each is replaced by a view of its rows."""
    parts = [(weights[f"{name}.weight"], weights.get(f"{name}.bias")) for name in names]
    merged = merge_rows(parts)
    rows = [len(weight) for weight, _ in parts]
    for kind, tensor in zip(("weight", "bias"), merged, strict=True):
        if tensor is not None:
            for name, view in zip(names, tensor.split(rows), strict=True):
                weights[f"{name}.{kind}"] = view
    return merged


class MergedLayer(NamedTuple):
    """The weights of a layer.
    A matrix is a pair: its weight, and its bias or None."""

    attention_norm: Tensor      # (C,)
    qkv: tuple                  # ((H + 2·G)·D, C): q, k and v, stacked
    o: tuple                    # (C, H·D)
    q_norm: Tensor | None       # (D,), in the Qwen 3 family
    k_norm: Tensor | None       # (D,)
    mlp_norm: Tensor            # (C,)
    gate_up: tuple              # (2·F, C): gate and up, stacked
    down: tuple                 # (C, F)


def merged_block(model, i, x, batch, cache):        # (T, C) -> (T, C)
    """g01's llama_block with two merged matrices instead of five."""
    m = model.config
    ops = model.ops
    layer = model.layers[i]
    y = ops.rmsnorm(x, layer.attention_norm, m.eps)                 # (T, C)
    q, k, v = model.heads(layer, y)
    ops.rope(q, k, model.cos, model.sin, batch.positions)
    mixed = cache.attend(i, q, k, v, batch, ops, m.scale)           # (T, H, D)
    x = x + model.linear(mixed.flatten(1), layer.o)                 # (T, C)
    y = ops.rmsnorm(x, layer.mlp_norm, m.eps)                       # (T, C)
    gate, up = model.linear(y, layer.gate_up).chunk(2, dim=-1)      # (T, F)
    return x + model.linear(ops.swiglu(gate, up), layer.down)


class MergedLlama(Llama):
    """g01's Llama with q, k and v in one matrix, and gate and up in one.

    It takes the same weights and copies five matrices of each layer into two.
    In its own `weights` the five are views of the two, so no number is stored twice once the caller
    drops its own.
    q, k, v, gate and up are views of wider rows.
    The kernels of torch and triton accept such views; attention of cuda copies them first if T > 1.
    """

    def __init__(self, config: Config, weights: dict[str, Tensor], ops: Kernels):
        super().__init__(config, dict(weights), ops)

    # Its layers are MergedLayers where a Llama has Layers: hence the two ignores.

    def pick(self, weights: dict, prefix: str) -> MergedLayer:      # type: ignore[override]
        layer = super().pick(weights, prefix)
        qkv = merge_named(weights, [f"{prefix}self_attn.{name}_proj" for name in "qkv"])
        gate_up = merge_named(weights, [f"{prefix}mlp.{name}_proj" for name in ("gate", "up")])
        return MergedLayer(layer.attention_norm, qkv, layer.o, layer.q_norm, layer.k_norm,
                           layer.mlp_norm, gate_up, layer.down)

    def block(self, i: int, x: Tensor, batch: Batch, cache: Cache) -> Tensor:   # -> (T, C)
        return merged_block(self, i, x, batch, cache)

    def heads(self, layer: MergedLayer, y: Tensor) -> tuple:        # type: ignore[override]
        """(T, H, D), 2 × (T, G, D): q, k and v as views of one array.

        After a norm of each head, q and k are new arrays.
        """
        m = self.config
        together = self.linear(y, layer.qkv).view(len(y), -1, m.D)      # (T, H + 2 * G, D)
        q, k, v = together.split([m.H, m.G, m.G], dim=1)
        if layer.q_norm is not None:
            q, k = (self.ops.rmsnorm(a.flatten(0, 1), w, m.eps).view(a.shape)
                    for a, w in ((q, layer.q_norm), (k, layer.k_norm)))
        return q, k, v


# ---- a factor before a matrix


def fold_norm(norm: Tensor, weight: Tensor) -> Tensor:      # (C,), (N, C) -> (N, C)
    """weight · diag(norm): the matrix for an input without the norm's weights.

    Rounded once, to the dtype of weight.
    The bias of the matrix does not change.
    """
    exact = torch.promote_types(weight.dtype, torch.float32)
    return (weight.to(exact) * norm.to(exact)).to(weight.dtype)


def fold_norms(m, weights):
    """The same model with every norm weight 1: each is folded into all matrices that read the norm.

    m: its Config    weights: {name as Hugging Face has it: tensor}. The last norm is kept if the
    embedding is also the head, because the embeddings must not be scaled.
    """
    folded = dict(weights)
    feeds = {f"model.layers.{i}.{norm}": [f"model.layers.{i}.{name}_proj" for name in names]
             for i in range(m.L) for norm, names in {
                 "input_layernorm": ["self_attn.q", "self_attn.k", "self_attn.v"],
                 "post_attention_layernorm": ["mlp.gate", "mlp.up"]}.items()}
    if not m.tied:
        feeds["model.norm"] = ["lm_head"]
    for norm, matrices in feeds.items():
        scale = weights[f"{norm}.weight"]
        folded[f"{norm}.weight"] = torch.ones_like(scale)
        for name in matrices:
            folded[f"{name}.weight"] = fold_norm(scale, weights[f"{name}.weight"])
    return folded


# ---- a factor and a shift after a convolution


def fold_batch_norm(weight: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor,
                    gamma: Tensor, beta: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(weight, bias) of one convolution equal to a convolution, then batch norm in evaluation.

    weight: (O, inputs of a group, height, width), or with more or fewer axes    bias: (O,) or None
    The norm maps an output z to (z - mean) / sqrt(variance + eps) · gamma + beta; all four are
    (O,).
    Groups, stride and padding do not change.
    Rounded once, to the dtype of weight.
    """
    exact = torch.promote_types(weight.dtype, torch.float32)
    w, mean, variance, gamma, beta = (a.to(exact) for a in (weight, mean, variance, gamma, beta))
    b = torch.zeros_like(mean) if bias is None else bias.to(exact)      # (O,)
    # exercise: by what is each output channel multiplied, and what is then added?
    scale = gamma / (variance + eps).sqrt()                             # (O,)
    w = w * scale.view(-1, *[1] * (w.ndim - 1))
    b = (b - mean) * scale + beta                                       # (O,)
    return w.to(weight.dtype), b.to(weight.dtype)


def choose_marks() -> str:
    """One mark for each line, in order: & if one operation with other weights gives the same result
    for every input; + if both must be computed, though one launch may do both.

    1  the matrices of gate and of up, on the same x
    2  a convolution, then batch norm in evaluation
    3  a convolution, then ReLU
    4  RMSNorm's division by rms(x), then a matrix
    5  RMSNorm's weight, then a matrix
    6  the matrix of keys, then RoPE
    """
    # exercise: are both together one matrix and one shift, for every input and position?
    return "&&++&+"


# ---- latent attention


def causal(scores):                                 # (H, T, N) -> (H, T, N)
    """Attention weights: softmax of the masked scores; the T queries are the last of N tokens."""
    T, N = scores.shape[1:]
    hidden = torch.ones(T, N, dtype=torch.bool, device=scores.device).triu(N - T + 1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


def attend_expanded(q: Tensor, turned: Tensor, c: Tensor, k_turned: Tensor, w_k: Tensor,
                    w_v: Tensor, scale: float) -> Tensor:       # (H, T, D)
    """Multi-head latent attention of one sequence, with a key and a value for each head.

    q: (H, T, D), the part of each query without a position    turned: (H, T, E), the rotated part
    c: (N, R), the latents    k_turned: (N, E), the rotated part of the keys, shared by all heads;
    the cache holds c and k_turned    w_k, w_v: (H, D, R), compute keys and values from latents
    scale: factor of the scores
    Source: "DeepSeek-V2", DeepSeek-AI, 2024, section 2.1.
    """
    k = c @ w_k.mT                                              # (H, N, D)
    v = c @ w_v.mT                                              # (H, N, D)
    scores = q @ k.mT + turned @ k_turned.mT                    # (H, T, N)
    return causal(scores * scale) @ v


def attend_absorbed(q: Tensor, turned: Tensor, c: Tensor, k_turned: Tensor, w_k: Tensor,
                    w_v: Tensor, scale: float) -> Tensor:       # (H, T, D)
    """The same result as attend_expanded without computing keys or values: the matrices multiply
    the queries and the mixtures instead, which are fewer."""
    # exercise: the scores without keys, then the mixture without values
    latent = q @ w_k                                            # (H, T, R)
    scores = latent @ c.mT + turned @ k_turned.mT               # (H, T, N)
    mixed = causal(scores * scale) @ c                          # (H, T, R)
    return mixed @ w_v.mT


def mla_flops(T: int, N: int, H: int, D: int, R: int, E: int, absorbed: bool) -> int:
    """FLOPs of latent attention in a layer, for T new tokens of a sequence of N.

    From queries and latents to the heads' results; letters as in attend_expanded.
    Pairs that the causal mask hides are not counted.
    """
    rows = T if absorbed else N         # tokens that w_k and w_v multiply
    width = R if absorbed else D        # of a score, without its rotated part
    return 2 * H * (2 * rows * D * R + attended(T, N) * (2 * width + E))
