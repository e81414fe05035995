"""g15 · Train with the error: the forward pass sees the grid, the backward pass looks past it

w: a weight   s: the scale of its group   q: its code, from `low` to `top`
n: weights of a group   ŵ = s · q, which is all that a kernel will ever see
A step costs what a step of training costs, 6 FLOPs a weight and token, and rounds each weight
once.
Training holds 16 bytes a weight: w, its gradient, and AdamW's two means.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from day02_overview.nano.train import forward
from layer2_graph.g07_weight_quantization import SHRINK, is_matrix, pack, unpack

__all__ = ["GRIDS", "Grid", "LEAST_SCALE", "MAX_NORM", "PackedMatrix", "Round", "ShadowLlama",
           "Student", "as_half", "export", "fake_quantise", "on_grid", "restored",
           "searched_scales"]

GRIDS = {"int4": (-7, 7), "2 bits": (-2, 1), "ternary": (-1, 1)}     # (low, top)
LEAST_SCALE = 1e-5      # fp16 keeps it; a scale of 0 or below would turn its group's signs
MAX_NORM = 1.0          # of all gradients together, in a step


# ---- predictions


def predict_dead_share() -> float:
    """The share of weights that never get a gradient: ternary, groups of 32, each group's scale its
    largest |w|, and a rule that lets a gradient through where |w / s| < 1."""
    # exercise: within 5 % is right; which weights of a group are not below the bound?
    return 1 / 32


def predict_steps_to_move() -> int:
    """Steps until a code changes: w is exactly on a level, s is 0.1, and AdamW moves w by its rate,
    0.001, in each step, always the same way."""
    # exercise: within 10 % is right; how far is the next border?
    return 50


# ---- rounding that can be trained


def as_half(x: Tensor) -> Tensor:
    """x rounded to fp16, in x's dtype; the gradient passes as it is, all its digits kept."""
    # exercise: x, and a difference that has no gradient
    return x + (x.half().to(x.dtype) - x).detach()


class Grid(torch.autograd.Function):
    """Each weight on its group's grid: forward alone."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, scales: Tensor, low: int, top: int) -> Tensor:
        """(…, K), (…, K / n) -> (…, K): s · q, where q = w / s, rounded and clamped.

        Halfway between two codes q is the even one.
        It is low at least, and top at most.
        """
        ctx.save_for_backward(w, scales)
        ctx.bounds = low, top
        groups = w.unflatten(-1, (scales.shape[-1], -1))            # (…, K / n, n)
        codes = (groups / scales[..., None]).round().clamp(low, top)
        return (codes * scales[..., None]).flatten(-2)


class Round(Grid):
    """A Grid whose gradient is that of a straight line within the bounds."""

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of w (…, K) and of the scales (…, K / n), then None for low and for top.

        upstream: (…, K), of ŵ
        A weight is inside if its code needed no clamping.
        There the gradient of w is that of ŵ, and ∂ŵ/∂s = q - w/s.
        Outside w has none, and ∂ŵ/∂s = q.
        The scales' gradient is divided by sqrt(n · top).
        Source: "Learned Step Size Quantization", Esser and others, 2020.
        """
        w, scales = ctx.saved_tensors
        low, top = ctx.bounds
        ratio = w.unflatten(-1, (scales.shape[-1], -1)) / scales[..., None]     # (…, K / n, n)
        g = upstream.unflatten(-1, ratio.shape[-2:])                            # (…, K / n, n)
        # exercise: which codes needed no clamping; w's gradient there; a sum over each group
        codes = ratio.round().clamp(low, top)
        inside = codes == ratio.round()
        of_scales = (g * (codes - ratio * inside)).sum(-1) / math.sqrt(ratio.shape[-1] * top)
        return (g * inside).flatten(-2), of_scales, None, None


def on_grid(w: Tensor, scales: Tensor, low: int, top: int) -> Tensor:       # -> (…, K)
    """Round, after a look at what it takes. w: (…, K)   scales: (…, K / n), above 0"""
    if low > 0 or top < 1:
        raise ValueError(f"Round: codes from {low} to {top}, expected from 0 or less to 1 or more")
    if w.shape[:-1] != scales.shape[:-1] or w.shape[-1] % scales.shape[-1]:
        raise ValueError(f"Round: scales {tuple(scales.shape)} for weights {tuple(w.shape)}, "
                         f"expected {tuple(w.shape[:-1])} and a divisor of {w.shape[-1]}")
    if not (scales > 0).all():
        raise ValueError(f"Round: the least scale is {scales.min():g}, expected above 0")
    return Round.apply(w, scales, low, top)


def fake_quantise(w: Tensor, scales: Tensor, low: int, top: int) -> Tensor:     # -> (…, K)
    """What the kernel will see of w, bit by bit: its codes times fp16 scales.
    It can be trained."""
    return on_grid(w, as_half(scales), low, top)


def searched_scales(w: Tensor, low: int, top: int, group: int) -> Tensor:   # -> (…, K / group)
    """The scale with the least squared error in each group, of those that g07's search tries.

    The same for codes that reach further down than up.
    LEAST_SCALE at least.
    """
    groups = w.unflatten(-1, (-1, group))
    largest = groups.abs().amax(-1) / top
    best = torch.full_like(largest, LEAST_SCALE)
    least = torch.full_like(largest, torch.inf)
    for share in SHRINK:
        scales = (largest * share).half().to(w.dtype).clamp(min=LEAST_SCALE)
        error = (on_grid(w, scales, low, top) - w).unflatten(-1, (-1, group)).square().sum(-1)
        best = torch.where(error < least, scales, best)
        least = torch.minimum(error, least)
    return best


# ---- training


class ShadowLlama:
    """A Llama whose matrices are on a grid whenever it reads, with the weights behind them.

    m: the entries of config.json    weights: {name: w}, copied, in their dtype; matrices are
    (N, K)    bounds: (low, top)    group: weights that share a scale    rate: AdamW's
    matrices: False keeps them where they are, and trains scales, norms and embedding alone
    """

    def __init__(self, m: Mapping[str, Any], weights: Mapping[str, Tensor],
                 bounds: tuple[int, int], group: int = 32, rate: float = 1e-3,
                 matrices: bool = True):
        self.m = m
        self.low, self.top = bounds
        self.rate = rate
        self.steps = 0
        self.weights = {name: w.detach().clone().requires_grad_(matrices or not is_matrix(name))
                        for name, w in weights.items()}
        self.scales = {name: searched_scales(w.detach(), *bounds, group).requires_grad_()
                       for name, w in weights.items() if is_matrix(name)}
        self.optimiser = torch.optim.AdamW(self.trained(), lr=rate, weight_decay=0)

    def trained(self) -> list[Tensor]:
        """Everything that a step moves."""
        return [w for w in (*self.weights.values(), *self.scales.values()) if w.requires_grad]

    def fake(self) -> dict[str, Tensor]:
        """{name: what the model reads}: matrices on the grid, all else in fp16."""
        return {name: fake_quantise(w, self.scales[name], self.low, self.top)
                if name in self.scales else as_half(w) for name, w in self.weights.items()}

    def loss(self, tokens: Tensor) -> Tensor:                   # (B, T + 1) -> ()
        """The mean loss of each token but the first, read by the fake weights."""
        logits = forward(self.m, self.fake(), tokens[:, :-1])   # (B, T, V)
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        if not loss.isfinite():
            raise ValueError(f"step: the loss is {loss.item()} at step {self.steps}; the rate "
                             f"is {self.rate:g}, try a smaller one")
        return loss


class Student(ShadowLlama):
    """A ShadowLlama that learns."""

    def step(self, tokens: Tensor) -> float:                    # (B, T + 1) -> the loss before it
        """One step of training on these tokens.

        Gradients longer than MAX_NORM, all together, are made that long.
        Afterwards no scale is below LEAST_SCALE.
        """
        # exercise: gradients of this step alone, not too long; the optimiser's step; the scales
        self.optimiser.zero_grad()
        loss = self.loss(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained(), MAX_NORM)
        self.optimiser.step()
        self.steps += 1
        for scales in self.scales.values():
            scales.data.clamp_(min=LEAST_SCALE)
        return loss.item()


# ---- what ships


class PackedMatrix(NamedTuple):
    """A matrix as a file holds it."""

    codes: Tensor               # (bytes,), uint8, as g07's `pack` writes them
    scales: Tensor              # (N, K / group), fp16
    shape: tuple[int, ...]      # (N, K)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes


def export(weights: Mapping[str, Tensor], scales: Mapping[str, Tensor],
           low: int, top: int) -> dict[str, PackedMatrix | Tensor]:
    """{name: what ships}: a PackedMatrix for each matrix that has scales, an fp16 tensor else.

    low, top: of the grid.
    A code is w over its own scale in fp16, rounded and clamped as in Grid.
    """
    for name, scale in scales.items():
        if not (scale > 0).all():
            raise ValueError(f"export: {name} has a scale of {scale.min():g}, expected above 0")
    # exercise: matrices: scales to fp16, codes over them, packed; all else to fp16
    result: dict[str, PackedMatrix | Tensor] = {}
    for name, w in weights.items():
        if name in scales:
            small = scales[name].detach().half()
            groups = w.detach().unflatten(-1, (small.shape[-1], -1))        # (N, K / n, n)
            codes = (groups / small.to(w.dtype)[..., None]).round().clamp(low, top).flatten(-2)
            result[name] = PackedMatrix(pack(codes, low, top), small, tuple(w.shape))
        else:
            result[name] = w.detach().half()
    return result


def restored(packed: Mapping[str, PackedMatrix | Tensor], low: int,
             top: int) -> dict[str, Tensor]:
    """{name: w in fp32} of what ships."""
    def back(matrix: PackedMatrix) -> Tensor:
        codes = unpack(matrix.codes, low, top, matrix.shape)
        groups = codes.unflatten(-1, (matrix.scales.shape[-1], -1))         # (N, K / n, n)
        return (groups * matrix.scales.float()[..., None]).flatten(-2)

    return {name: back(matrix) if isinstance(matrix, PackedMatrix) else matrix.float()
            for name, matrix in packed.items()}
