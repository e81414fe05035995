"""Launches and bytes of a step and of a layer, on random models of three kinds and six families."""

from collections.abc import Sequence
from typing import Any

from layer2_graph.g01_llama import Llama, PagedCache
from layer2_graph.g03_merging import MergedLlama
from layer2_graph.g05_fused_llama import FusedLlama
from layer2_graph.testing.random_llama import random_llama
from layer2_graph.traffic import Traffic

FAMILIES = {"Llama": {}, "SmolLM": {"H": 9, "G": 3, "tied": True},
            "Mistral": {"H": 8, "D": 32, "theta": 1e6}, "Qwen 2": {"bias_qkv": True},
            "Llama with biases": {"bias_qkv": True, "bias_o": True, "bias_mlp": True},
            "Qwen 3": {"qk_norm": True}}
KINDS = (Llama, MergedLlama, FusedLlama)
Tokens = Sequence[Sequence[int]]


def fused(model: Llama, kind: type[Llama] = FusedLlama) -> Llama:
    """A model of another kind with the same weights and kernels."""
    return kind(model.config, model.weights, model.ops)


def traffic(kind: type[Llama], new: Tokens = ((3,),), before: Tokens = (),
            **entries: Any) -> Traffic:
    """That of one step of a random model of this kind.    new, before: as of a cache's steps

    entries: of its Config
    """
    model = fused(random_llama(**entries), kind)
    cache = PagedCache(model.config, len(new), 32)
    if before:
        model.forward(cache.step([list(some) for some in before]), cache)
    step = cache.step([list(some) for some in new])
    with Traffic() as counts:
        model.ops = counts.counting(model.ops)
        model.forward(step, cache)
    return counts


def of_a_layer(kind: type[Llama], **how: Any) -> tuple[int, int]:
    """(launches, bytes) of the second layer: of two layers less those of one. how: as `traffic`"""
    two, one = (traffic(kind, **how, L=L) for L in (2, 1))
    return len(two.names) - len(one.names), two.moved - one.moved
