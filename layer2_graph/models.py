"""The models that the course ships and measures."""

from pathlib import Path

import torch

from layer2_graph.checkpoint import shapes
from layer2_graph.config import Config

SMALL = Path(__file__).parent / "small"         # a trained Llama, as Hugging Face keeps one
TWINS = Path(__file__).parent / "twins"         # folders of smaller ones that differ in one part


def shape_135m() -> tuple[Config, dict[str, torch.Tensor]]:
    """(Config, weights) of a Llama of 135 million parameters, random."""
    m = Config(L=30, C=576, H=9, G=3, D=64, F=1536, V=49152, eps=1e-5, theta=1e4, room=2048,
               tied=True)
    torch.manual_seed(0)
    return m, {name: torch.randn(shape) * shape[-1] ** -0.5 if len(shape) > 1 else torch.ones(shape)
               for name, shape in shapes(m)}
