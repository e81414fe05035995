"""Given code round the exercises of s30: micro-batches of known gradient, blocks to run again."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from day02_overview.autograd_memory import Live
from layer3_system.s30_training import Recompute, accumulate


def squares(w: Tensor, b: Tensor, batch: tuple) -> tuple[Tensor, int]:
    """(sum of the squares of x·w + b - y over the tokens that count, how many do)."""
    x, y, counts = batch                            # (T, C), (T,), (T,) bool
    losses = (x @ w + b - y).square()               # (T,)
    return (losses * counts).sum(), int(counts.sum())


def accumulated(w: Tensor, b: Tensor, batches: list, before: float) -> dict[str, Any]:
    """What `accumulate` returns, the gradients, and the most numbers that graphs held at once.

    before: in every gradient at the start.
    A third weight has no part in the loss.
    """
    weights = [w.clone().requires_grad_(), b.clone().requires_grad_(),
               torch.zeros(3, dtype=w.dtype, requires_grad=True)]
    for one in weights[:2]:
        one.grad = torch.full_like(one, before)
    live = Live(weights)
    with saved_tensors_hooks(live.hold, lambda box: box.a):
        loss, count = accumulate(
            batches, lambda batch: squares(weights[0], weights[1], batch), weights)
    return {"loss": loss, "tokens": count, "gradients": [one.grad for one in weights],
            "held": live.peak}


def dense(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """(T, C), (F, C), (C, F) -> (T, C)"""
    return x + torch.tanh(x @ up.T) @ down.T


def dropping(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """As `dense`, and half of its hidden units are dropped at random."""
    return x + F.dropout(torch.tanh(x @ up.T), 0.5) @ down.T


BLOCKS = {"dense": dense, "dropping": dropping}


def recomputed(block: str, arrays: list[Tensor], upstream: Tensor, again: bool) -> dict[str, Any]:
    """Gradients of x and the weights of a block, and a random number that is drawn after that.

    again: by Recompute; else by plain autograd
    """
    torch.manual_seed(30)
    inputs = [a.clone().requires_grad_() for a in arrays]
    y = Recompute.apply(BLOCKS[block], *inputs) if again else BLOCKS[block](*inputs)
    torch.rand(5)                                   # somebody else draws between the two
    y.backward(upstream)
    return {"gradients": [a.grad for a in inputs], "draw": torch.rand(1)}
