"""The class that computes a model, and the cache that goes with it, by its Config."""

from torch import Tensor

from layer1_kernels import Kernels
from layer2_graph.config import Config
from layer2_graph.g01_llama import Llama, PagedCache
from layer2_graph.g11_attention_variants import LatentCache, LatentLlama
from layer2_graph.g12_mixture_of_experts import llama_of
from layer2_graph.hybrid import HybridCache, HybridLlama

__all__ = ["cache_of", "model_of"]


def model_of(config: Config, weights: dict[str, Tensor], ops: Kernels) -> Llama:
    """A model with latents, with states, with experts, or a plain Llama."""
    if config.latent:
        return LatentLlama(config, weights, ops)
    if config.linear:
        return HybridLlama(config, weights, ops)
    return llama_of(config, weights, ops)


def cache_of(model: Llama, sequences: int, room: int) -> PagedCache:
    """A cache for a model's sequences, of `room` tokens each.
    ModelError if the model cannot."""
    m = model.config
    kind = LatentCache if m.latent else HybridCache if m.linear else PagedCache
    return kind(m, sequences, room, model.embedding.dtype, model.embedding.device)
