"""g12 · Mixture of experts: a layer owns many MLPs, and each token chooses a few of them

T: tokens   C: model width   E: experts   k: experts that a token chooses   F: width of one expert
B: sequences that decode together   slot: a choice; slot i = token · k + choice, as in k20
A token costs 2·3·k·C·F FLOPs, and 2·C·E to choose.
The layer holds 3·E·C·F weights, and a step reads those of the experts that anybody chose.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from layer1_kernels import Kernels, kernels
from layer2_graph.checkpoint import read_weights
from layer2_graph.config import Config, read_config
from layer2_graph.experts import DOWN, GATE_UP, ROUTER
from layer2_graph.g01_llama import Batch, Cache, Layer, Llama, PagedCache, load

__all__ = ["MoELayer", "MoELlama", "balance_loss", "gate", "keep_within", "llama_of",
           "load_moe", "moe_flops", "moe_mlp", "rebalance", "route",
           "router_scores"]


# ---- what it costs


def predict_loaded():
    """Experts whose weights a layer reads in one step: 4 sequences decode, each token chooses 2 of
    8 experts, and the router spreads them evenly."""
    # exercise: what is the chance that no token chooses a certain expert?
    return 8 * (1 - (1 - 2 / 8) ** 4)


def predict_flops_ratio():
    """FLOPs of an MLP layer with 8 experts of width 128, of which a token chooses 2, over those of
    one dense MLP of width 256.
    The model is 96 wide."""
    # exercise: the products of two experts, and what else is multiplied?
    return 1 + 2 * 96 * 8 / (2 * 3 * 96 * 256)


def moe_flops(C: int, F: int, E: int, k: int) -> int:
    """FLOPs of a token in a layer: three matrices of k experts, and a score for each expert."""
    return 2 * 3 * k * C * F + 2 * C * E


# ---- one layer


def gate(scores: Tensor, k: int, renormalise: bool = True,
         bias: Tensor | None = None) -> tuple[Tensor, Tensor]:      # (T, E) -> 2 × (T, k)
    """(weights, experts) of each token: the k experts that it chooses, and what each counts.

    scores: (T, E), any float type; all is computed in fp32    bias: (E,), for choosing alone
    renormalise: the k weights sum to 1; else they stay those of the softmax over all experts
    experts are int64, the likeliest choice first.
    Of equal ones any may be chosen.
    ValueError unless 1 ≤ k ≤ E.
    """
    E = scores.shape[-1]
    if not 1 <= k <= E:
        raise ValueError(f"gate: k is {k}, expected 1 to the {E} experts")
    # exercise: probabilities of all experts; choose with the bias, weigh without it
    probabilities = scores.float().softmax(-1)                      # (T, E)
    chances = probabilities if bias is None else probabilities + bias
    experts = chances.topk(k, -1).indices                           # (T, k)
    weights = probabilities.gather(-1, experts)                     # (T, k)
    return weights / weights.sum(-1, keepdim=True) if renormalise else weights, experts


def route(x: Tensor, router: Tensor, k: int, ops: Kernels, renormalise: bool = True,
          bias: Tensor | None = None) -> tuple[Tensor, Tensor]:     # (T, C) -> 2 × (T, k)
    """(weights, experts) of tokens x. router: (E, C), a row for each expert"""
    return gate(ops.matmul(x, router), k, renormalise, bias)


def moe_mlp(x: Tensor, weights: Tensor, experts: Tensor, gate_up: Tensor, down: Tensor,
            ops: Kernels) -> Tensor:                                # (T, C) -> (T, C)
    """Each token's k experts, weighed and added up.

    weights, experts: (T, k), as `gate` gives them
    ops: sort_slots, grouped_gemm and swiglu
    gate_up: (E, 2·F, C), the gate's rows first    down: (E, C, F)
    ValueError if an expert is not from 0 to E - 1 (looked for on the CPU alone).
    """
    # exercise: sort the slots, two grouped products with SwiGLU between, add a token's k rows
    order, offsets = ops.sort_slots(experts, len(gate_up))
    hidden = ops.grouped_gemm(x, gate_up, order, offsets)           # (T·k, 2·F)
    hidden = ops.swiglu(*hidden.chunk(2, -1))                       # (T·k, F)
    y = ops.grouped_gemm(hidden, down, order, offsets, weights.flatten())       # (T·k, C)
    return y.view(*experts.shape, len(down[0])).sum(1)


# ---- sharing the work


def keep_within(experts: Tensor, E: int, capacity: int) -> Tensor:  # (T, k) -> (T, k)
    """Which choices an expert with room for `capacity` rows takes: bool.

    First choices of all tokens come before second choices, and so on; equal ones in token order.
    """
    # exercise: in that order, how many choices of the same expert stand before each?
    flat = experts.T.flatten()                                      # (k·T,)
    same = one_hot(flat, E)                                         # (k·T, E)
    before = (same.cumsum(0) * same).sum(1) - 1                     # (k·T,)
    return (before < capacity).view(experts.T.shape).T


def balance_loss(probabilities: Tensor, experts: Tensor) -> Tensor:     # (T, E), (T, k) -> ()
    """E times the sum over experts of share · mean probability: 1 where all have equal shares.

    The share of the T·k choices is a count, and has no gradient.
    Source: Switch Transformers (Fedus and others, 2021), there for k = 1.
    """
    # exercise: shares of choices, mean probabilities, their products
    E = probabilities.shape[1]
    shares = one_hot(experts, E).float().mean((0, 1))               # (E,)
    return E * (shares * probabilities.mean(0)).sum()


def rebalance(bias: Tensor, experts: Tensor, rate: float) -> Tensor:    # (E,), (T, k) -> (E,)
    """The bias after a step: `rate` more for experts below the mean load, less for those above.

    Source: Auxiliary-Loss-Free Load Balancing (Wang and others, 2024).
    """
    # exercise: the load of each expert; its sign against the mean
    load = torch.bincount(experts.flatten(), minlength=len(bias)).float()       # (E,)
    return bias + rate * (load.mean() - load).sign()


# ---- the model


class MoELayer(NamedTuple):
    """g01's Layer with experts in the place of gate, up and down."""

    attention_norm: Tensor      # (C,)
    q: tuple                    # (H·D, C)
    k: tuple                    # (G·D, C)
    v: tuple                    # (G·D, C)
    o: tuple                    # (C, H·D)
    q_norm: Tensor | None       # (D,)
    k_norm: Tensor | None       # (D,)
    mlp_norm: Tensor            # (C,)
    router: Tensor              # (E, C)
    gate_up: Tensor             # (E, 2·F, C)
    down: Tensor                # (E, C, F)


class MoELlama(Llama):
    """A Llama whose layers have experts: Mixtral, Qwen3-MoE.
    Some layers may have one MLP."""

    def pick(self, weights: dict[str, Tensor],              # type: ignore[override]
             prefix: str) -> Layer | MoELayer:
        if prefix + ROUTER not in weights:
            return super().pick(weights, prefix)

        def matrix(name):
            name = f"{prefix}self_attn.{name}_proj"
            return weights[f"{name}.weight"], weights.get(f"{name}.bias")

        return MoELayer(
            attention_norm=weights[prefix + "input_layernorm.weight"],
            q=matrix("q"), k=matrix("k"), v=matrix("v"), o=matrix("o"),
            q_norm=weights.get(prefix + "self_attn.q_norm.weight"),
            k_norm=weights.get(prefix + "self_attn.k_norm.weight"),
            mlp_norm=weights[prefix + "post_attention_layernorm.weight"],
            router=weights[prefix + ROUTER], gate_up=weights[prefix + GATE_UP],
            down=weights[prefix + DOWN])

    def block(self, i: int, x: Tensor, batch: Batch, cache: Cache) -> Tensor:   # -> (T, C)
        layer = self.layers[i]
        if not isinstance(layer, MoELayer):
            return super().block(i, x, batch, cache)
        m, ops = self.config, self.ops
        y = ops.rmsnorm(x, layer.attention_norm, m.eps)             # (T, C)
        q, k, v = self.heads(layer, y)          # type: ignore[arg-type] # it has all that they read
        ops.rope(q, k, self.cos, self.sin, batch.positions)
        mixed = cache.attend(i, q, k, v, batch, ops, m.scale)       # (T, H, D)
        x = x + self.linear(mixed.flatten(1), layer.o)              # (T, C)
        y = ops.rmsnorm(x, layer.mlp_norm, m.eps)                   # (T, C)
        return x + self.experts(layer, y)

    def experts(self, layer: MoELayer, y: Tensor) -> Tensor:        # (T, C) -> (T, C)
        """What the tokens' experts make of y. What lies elsewhere (s24) replaces this method."""
        m = self.config
        weights, chosen = route(y, layer.router, m.k, self.ops, m.renormalise)
        return moe_mlp(y, weights, chosen, layer.gate_up, layer.down, self.ops)


def llama_of(config: Config, weights: dict[str, Tensor], ops: Kernels) -> Llama:
    """The model of a config: with experts or without."""
    return (MoELlama if config.E else Llama)(config, weights, ops)


def load_moe(folder: Path | str, ops: Kernels | None = None, dtype: torch.dtype | None = None,
             device: torch.device | str = "cpu") -> Llama:
    """As g01's `load`, of a folder with experts or without.
    ModelError says what is wrong."""
    config = read_config(folder)
    if not config.E:
        return load(folder, ops, dtype, device)
    return MoELlama(config, read_weights(folder, config, dtype, device), ops or kernels("torch"))


class Watched(MoELlama):
    """An MoELlama that notes the scores of its routers."""

    def __init__(self, model: MoELlama):
        super().__init__(model.config, model.weights, model.ops)
        self.notes: list[Tensor] = []           # (T, E) of each layer with experts, in order

    def experts(self, layer: MoELayer, y: Tensor) -> Tensor:
        self.notes.append(self.ops.matmul(y, layer.router))
        return super().experts(layer, y)


def router_scores(model: MoELlama, documents: Sequence[Sequence[int]]) -> list[Tensor]:
    """The routers' scores of documents, each read alone: [(layers with experts, T, E)]."""
    results = []
    for tokens in documents:
        watched = Watched(model)
        cache = PagedCache(model.config, 1, len(tokens), model.embedding.dtype,
                           model.embedding.device)
        watched.forward(cache.step([list(tokens)]), cache)
        results.append(torch.stack(watched.notes))
    return results
