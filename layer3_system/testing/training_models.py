"""Models that the ranks of s21 train, and their batches.

A model has `count(batch)`, the tokens of a batch, and `forward(batch, run)`, the sum of the losses
of all tokens; run(layer, x) calls a layer.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from day01_roofline import LlamaShape
from day02_overview.autograd_memory import TorchLayer, TorchLlama

MODEL = LlamaShape("training", L=2, C=64, H=4, G=2, D=16, F=128, V=257, tied=True)
IGNORED = -100          # the target of padding, which has no loss


def direct(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)


class Layer(nn.Module):
    def __init__(self, weight: Tensor) -> None:             # (out, in)
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, x: Tensor) -> Tensor:                 # (T, in) -> (T, out)
        return torch.tanh(x @ self.weight.T)


class Net(nn.Module):
    """Matrices with tanh; a batch is (x, y), the inputs of T tokens and what should come out."""

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(Layer, weights))

    def count(self, batch: tuple) -> int:
        return len(batch[0])

    def forward(self, batch: tuple, run: Callable = direct) -> Tensor:
        x, y = batch                                        # (T, C), (T, K)
        for layer in self.layers:
            x = run(layer, x)
        return (x - y).square().sum()


class TrainLayer(TorchLayer):
    def forward(self, x: Tensor) -> Tensor:                 # (B, T, C) -> (B, T, C)
        y = super().forward(x)
        self.arrays = {}                        # they would keep gathered weights
        return y


class TrainLlama(TorchLlama):
    """A batch is (tokens, targets), padded with IGNORED in the targets."""

    def __init__(self, m: LlamaShape = MODEL) -> None:
        super().__init__(m)
        self.layers = nn.ModuleList(TrainLayer(m) for _ in range(m.L))
        for p in self.parameters():
            if p.ndim == 2:                     # nn.Embedding's N(0, 1), tied, makes a loss of 60
                nn.init.normal_(p, std=0.02)

    def count(self, batch: tuple) -> int:
        return int((batch[1] != IGNORED).sum())

    def forward(self, batch: tuple, run: Callable = direct) -> Tensor:
        tokens, targets = batch                             # (B, T), (B, T)
        x = self.embedding(tokens)                          # (B, T, C)
        for layer in self.layers:
            x = run(layer, x)
        logits = self.norm(x, {}) @ self.embedding.weight.T                 # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(),
                               ignore_index=IGNORED, reduction="sum")


def llama_batch(lens: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """(tokens, targets) of sequences of some lengths, drawn by a seed and the length."""
    T = max(lens, default=1)
    tokens = torch.zeros(len(lens), T, dtype=torch.long)                    # (B, T)
    targets = torch.full((len(lens), T), IGNORED)                           # (B, T)
    for b, length in enumerate(lens):
        drawn = torch.Generator().manual_seed(1000 * seed + length)
        line = torch.randint(MODEL.V, (length + 1,), generator=drawn)
        tokens[b, :length] = line[:-1]
        targets[b, :length] = line[1:]
    return tokens, targets
