"""A small Llama of random weights, for tests of what is around a model."""

from typing import Any

import torch

from layer1_kernels import kernels
from layer2_graph.checkpoint import shapes
from layer2_graph.config import Config
from layer2_graph.g01_llama import Llama


def random_llama(**entries: Any) -> Llama:
    """Its sizes are all different. entries: of its Config, in the place of those here"""
    torch.manual_seed(0)
    m = Config(**{"L": 2, "C": 40, "H": 4, "G": 2, "D": 16, "F": 56, "V": 31, "eps": 1e-5,
                  "theta": 1e4, "room": 64} | entries)
    return Llama(m, {name: torch.randn(shape) / 4 for name, shape in shapes(m)}, kernels("torch"))
