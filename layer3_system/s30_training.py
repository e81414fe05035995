"""s30 · Train the small model: what a step does, and what breaks when half of the bits go

w: a weight   g: its gradient   m, v: running means of g and of g²   t: the step's number, from 1
B: sequences of a micro-batch   T: tokens of each   N: parameters   L: layers   C: model width
A step on D tokens takes 6·N·D FLOPs, and with recomputation 8·N·D. AdamW reads and writes 28
bytes a parameter in fp32: w, m and v both ways, and g once.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Recompute", "accumulate", "adamw_step", "rate", "unscale_and_clip"]


def predict_bf16_weight() -> float:
    """What becomes of a bf16 weight of 1 after a hundred updates of -0.001."""
    # exercise: what is the next bf16 below 1, and is 0.999 nearer to it or to 1?
    return 1.0


# ---- a step


def rate(step: int, warm: int, steps: int, peak: float, floor: float) -> float:
    """The learning rate of a step: up in a line for `warm` steps, then down by half a cosine.

    step: from 0.
    In warm-up step 0 has peak / warm, and step warm - 1 the peak.
    Of the steps after it, if there are any, the last one, steps - 1, has the floor, and so has all
    that comes later.
    ValueError unless 0 <= warm <= steps
    """
    if not 0 <= warm <= steps:
        raise ValueError(f"rate: {warm} steps of warm-up in {steps}, expected from 0 to {steps}")
    # exercise: the line; else which share of the way down is done, at most 1, and its cosine
    if step < warm:
        return peak * (step + 1) / warm
    share = min(1, (step + 1 - warm) / max(1, steps - warm))
    return floor + (peak - floor) * (1 + math.cos(math.pi * share)) / 2


def adamw_step(w: Tensor, g: Tensor, m: Tensor, v: Tensor, t: int, lr: float,
               betas: tuple[float, float], eps: float, decay: float) -> None:
    """Step t of AdamW on a weight and its two means, in place.
    All four have one shape and dtype.

    t: 1 is the first step.  lr: the learning rate.  betas: of m and of v.  decay: w loses
    lr · decay of itself.
    Loshchilov and Hutter 2019, algorithm 2
    """
    # exercise: both means; divide each by 1 - beta ** t; w shrinks by decay, then takes its step
    m.lerp_(g, 1 - betas[0])
    v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    w.mul_(1 - lr * decay)
    bias = math.sqrt(1 - betas[1] ** t)     # v's, on both sides of the division: a pass less
    w.addcdiv_(m, v.sqrt().add_(eps * bias), value=-lr * bias / (1 - betas[0] ** t))


def accumulate(batches: Iterable[Any], loss_sum: Callable[[Any], tuple[Tensor, int]],
               weights: list[Tensor]) -> tuple[float, int]:
    """(mean loss of all tokens of all micro-batches, how many tokens these are).

    loss_sum(batch): (sum of the losses of its tokens, how many have a loss), the first with a graph
    Afterwards each weight's `grad` is the gradient of that mean, or None where the weight had no
    part in any loss; what it was before is gone.
    A micro-batch may have no token with a loss; at least one has some (you need not check).
    """
    # exercise: a backward for each micro-batch, of its sum; one division, by all tokens
    total = 0.0
    count = 0
    for w in weights:
        w.grad = None
    for batch in batches:
        loss, tokens = loss_sum(batch)
        loss.backward()
        total += loss.item()
        count += tokens
    for w in weights:
        if w.grad is not None:
            w.grad /= count
    return total / count, count


def unscale_and_clip(gradients: list[Tensor | None], scale: float,
                     limit: float) -> tuple[float, bool]:
    """(norm of all gradients together once unscaled, whether it is finite).
    In place.

    gradients: None for a weight that had no part.  scale: by which the loss was multiplied, so that
    each is divided by it.  limit: a longer gradient is made that long.
    If the norm is not finite, the caller skips the step, and the gradients may hold anything.
    """
    # exercise: divide; the root of the sum of all squares; shorten if it is finite and too long
    own = [g for g in gradients if g is not None]
    if scale != 1:                                      # else a pass over all numbers for nothing
        for g in own:
            g /= scale
    norm = math.hypot(*(g.norm().item() for g in own))
    if not math.isfinite(norm):                         # squares of 1e20 do not fit into fp32
        norm = math.hypot(*(g.norm(dtype=torch.float64).item() for g in own))
    if math.isfinite(norm) and norm > limit:
        for g in own:
            g *= limit / norm
    return norm, math.isfinite(norm)


# ---- memory


class Recompute(torch.autograd.Function):
    """A block that keeps its inputs alone, and runs again in backward.
    On a CPU its dropout drops the same units both times; a GPU's generator is not put back.

    `Recompute.apply(block, x, *weights)` is block(x, *weights).
    """

    @staticmethod
    def forward(ctx: Any, block: Callable[..., Tensor], x: Tensor, *weights: Tensor) -> Tensor:
        """The block's result.
        No graph is kept: forward of a Function runs without one."""
        ctx.block = block
        ctx.generator = torch.get_rng_state()           # dropout must drop the same units again
        ctx.save_for_backward(x, *weights)
        return block(x, *weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """None for `block`, then the gradients of x and of each weight.

        gradient: of the block's result.
        Afterwards torch's generator is as it was before.
        """
        # exercise: inputs cut off from the old graph; the block again, with a graph; its gradients
        inputs = [one.detach().requires_grad_() for one in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.generator)
            result = ctx.block(*inputs)
        return None, *torch.autograd.grad(result, inputs, gradient)
