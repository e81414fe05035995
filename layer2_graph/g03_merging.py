"""g03 · Merging: two operations that become one equation, with other weights and fewer launches

T: new tokens   N: a context, new tokens included   C: model width   D: head width
H: query heads   G: key and value heads   F: mlp width   V: vocabulary
&: merged, the weights of two operations are combined before the run    +: fused, two operations
still run, in one launch

Three things can be merged: matrices on the same x (their rows are stacked), a factor for each
number that comes in (it scales columns), a factor and a shift for each number that goes out (they
scale rows and shift biases). Latent attention moves brackets: (q W) · c in place of q · (W c), so
that no key is ever made.
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


def predict_merged_launches():
    """Launches of a layer of MergedLlama. g01's layer takes 15."""
    # exercise: which matrices have the same input?
    return 15 - 2 - 1


def merge_rows(matrices: Sequence[tuple]) -> tuple[Tensor, Tensor | None]:
    """One matrix that does what several on the same input do: ([(weight, bias)]) -> (weight, bias).

    weight: (numbers out, numbers in)    bias: (numbers out,) or None. The results lie one after the
    other in a row, in the order of `matrices`. The merged bias is None if no matrix has one;
    otherwise a matrix without a bias gets zeros, of its weight's dtype.
    """
    widths = {weight.shape[1] for weight, _ in matrices}
    if len(widths) != 1:
        raise ValueError(f"merge_rows: matrices that take {', '.join(map(str, sorted(widths)))} "
                         f"numbers; on the same input all take the same number")
    # exercise: one below the other; and the biases?
    weight = torch.cat([weight for weight, _ in matrices])
    if all(bias is None for _, bias in matrices):
        return weight, None
    return weight, torch.cat([w.new_zeros(len(w)) if b is None else b for w, b in matrices])


def merge_named(weights, names):
    """merge_rows of matrices in `weights`; there each becomes a view of its rows."""
    parts = [(weights[f"{name}.weight"], weights.get(f"{name}.bias")) for name in names]
    merged = merge_rows(parts)
    rows = [len(weight) for weight, _ in parts]
    for kind, tensor in zip(("weight", "bias"), merged, strict=True):
        if tensor is not None:
            for name, view in zip(names, tensor.split(rows), strict=True):
                weights[f"{name}.{kind}"] = view
    return merged


class MergedLayer(NamedTuple):
    """A layer's weights. A matrix is a pair: its weight, and its bias or None."""

    attention_norm: Tensor      # (C,)
    qkv: tuple                  # ((H + 2·G)·D, C): q, k and v, one below the other
    o: tuple                    # (C, H·D)
    q_norm: Tensor | None       # (D,), in the Qwen 3 family
    k_norm: Tensor | None       # (D,)
    mlp_norm: Tensor            # (C,)
    gate_up: tuple              # (2·F, C): gate, and up below it
    down: tuple                 # (C, F)


def merged_block(model, i, x, batch, cache):        # (T, C) -> (T, C)
    """As g01's llama_block, with five matrices in two."""
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

    It takes the same weights, and copies the five matrices of each layer. In its own `weights` the
    five are views of the two, so that nothing is held twice once the caller drops the originals.
    q, k, v, gate and up are views of wider rows. Tables torch and triton take them as they are;
    cuda's attention copies them first if T > 1.
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
        """(T, H, D), 2 × (T, G, D): queries, keys and values.

        They are views of one array, unless a norm of each head made new arrays.
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
    """The matrix that does to x / rms(x) what `weight` does to x / rms(x) · norm.

    It is weight · diag(norm), rounded once to weight's dtype. The matrix's bias stays.
    """
    exact = torch.promote_types(weight.dtype, torch.float32)
    return (weight.to(exact) * norm.to(exact)).to(weight.dtype)


def fold_norms(m, weights):
    """The same model with norms of ones: each norm's weight goes into all matrices that it feeds.

    m: its Config    weights: {name as Hugging Face has it: tensor}. The last norm stays if the
    embedding serves as the head: the rows of incoming tokens must not be scaled.
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
    """(weight, bias) of one convolution that does a convolution, then batch norm in evaluation.

    weight: (O, inputs of a group, side, side), or with more or fewer sides    bias: (O,) or None
    The norm turns an output z into (z - mean) / sqrt(variance + eps) · gamma + beta; all of these
    are (O,). Groups, stride and padding stay. Rounded once, to weight's dtype.
    """
    exact = torch.promote_types(weight.dtype, torch.float32)
    w, mean, variance, gamma, beta = (a.to(exact) for a in (weight, mean, variance, gamma, beta))
    b = torch.zeros_like(mean) if bias is None else bias.to(exact)      # (O,)
    # exercise: what is each output channel multiplied by, and what is then added to it?
    scale = gamma / (variance + eps).sqrt()                             # (O,)
    w = w * scale.view(-1, *[1] * (w.ndim - 1))
    b = (b - mean) * scale + beta                                       # (O,)
    return w.to(weight.dtype), b.to(weight.dtype)


def choose_marks():
    """A mark for each line, in order: & where one equation with other weights does both for every
    input; + where both must be computed, though one launch may do it.

    1  the matrices of gate and of up, on the same x
    2  a convolution, then batch norm in evaluation
    3  a convolution, then ReLU
    4  RMSNorm's division by rms(x), then a matrix
    5  RMSNorm's weight, then a matrix
    6  the matrix of keys, then RoPE
    """
    # exercise: is the second one the same linear map for every input, at every place?
    return "&&++&+"


# ---- latent attention


def causal(scores):                                 # (H, T, N) -> (H, T, N)
    """Attention weights; the T queries are the last of N tokens."""
    T, N = scores.shape[1:]
    hidden = torch.ones(T, N, dtype=torch.bool, device=scores.device).triu(N - T + 1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


def attend_expanded(q: Tensor, turned: Tensor, c: Tensor, k_turned: Tensor, w_k: Tensor,
                    w_v: Tensor, scale: float) -> Tensor:       # (H, T, D)
    """Multi-head latent attention of one sequence, with a key and a value for each head.

    q: (H, T, D), the part of each query without position    turned: (H, T, E), its rotated part
    c: (N, R), the latents    k_turned: (N, E), the rotated part of keys, one for all heads. A cache
    holds c and k_turned    w_k, w_v: (H, D, R), make keys and values from latents
    scale: of the scores
    Source: "DeepSeek-V2", DeepSeek-AI, 2024, section 2.1.
    """
    k = c @ w_k.mT                                              # (H, N, D)
    v = c @ w_v.mT                                              # (H, N, D)
    scores = q @ k.mT + turned @ k_turned.mT                    # (H, T, N)
    return causal(scores * scale) @ v


def attend_absorbed(q: Tensor, turned: Tensor, c: Tensor, k_turned: Tensor, w_k: Tensor,
                    w_v: Tensor, scale: float) -> Tensor:       # (H, T, D)
    """As attend_expanded, but keys and values are never made: the matrices go to the queries and
    to the results, which are fewer."""
    # exercise: scores without keys, a mixture without values
    latent = q @ w_k                                            # (H, T, R)
    scores = latent @ c.mT + turned @ k_turned.mT               # (H, T, N)
    mixed = causal(scores * scale) @ c                          # (H, T, R)
    return mixed @ w_v.mT


def mla_flops(T: int, N: int, H: int, D: int, R: int, E: int, absorbed: bool) -> int:
    """FLOPs of latent attention in a layer, for T new tokens of a sequence of N.

    From queries and latents to the heads' results; letters as in attend_expanded. Pairs that the
    causal mask hides are not counted.
    """
    rows, width = (T, R) if absorbed else (N, D)    # tokens that meet w_k and w_v; width of a score
    return 2 * H * (2 * rows * D * R + attended(T, N) * (2 * width + E))
