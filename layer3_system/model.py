"""What the system asks of a model"""

from functools import partial
from typing import Protocol

import torch

from layer2_graph import Batch, Config
from layer3_system.s02_block_pool import Pages
from layer3_system.states import StatePages


class Model(Protocol):
    """What an engine needs of a model. g01's Llama is one.

    A model whose cache is not keys and values has one more method, make_cache(P, S, dtype, device):
    an object with the methods of s02's `Pages`, for P pages of S slots.
    One that keeps a state of each request, like layer 2's HybridLlama, says so by an attribute,
    has_state.
    """

    config: Config
    embedding: torch.Tensor

    def forward(self, batch: Batch, cache: Pages,
                every: bool = False) -> torch.Tensor: ...   # (B, V), or (T, V) for every token


class Runner(Protocol):
    """What computes steps that need one row of scores a request: a Model, or g06's GraphRunner."""

    def forward(self, batch: Batch, cache: Pages) -> torch.Tensor: ...  # (B, V)


def has_state(model: Model) -> bool:
    """Whether a model keeps a state of each request beside its pages."""
    return getattr(model, "has_state", False)


def make_cache(model: Model, P: int, S: int, seats: int = 0) -> Pages:
    """P pages of S slots for a model: its own kind of cache, or keys and values.

    seats: requests whose states it holds, in models that keep one
    """
    dtype = model.embedding.dtype
    device = model.embedding.device
    if has_state(model):
        return StatePages(model.config, P, S, dtype, device, seats)
    make = getattr(model, "make_cache", partial(Pages, model.config))
    return make(P, S, dtype, device)
