"""A training: losses of several arms, the rate and norm of one, and gradients beside fp16's range.
"""

from typing import TYPE_CHECKING

import torch

from lab.plots import BLUE, GREY, INK, RED, STROKES, closed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from layer3_system.training.loop import StepRecord

FP16 = -24, 16          # log2 of the smallest number above 0, and of the first that is infinite


def smooth(values: list[float], count: int = 8) -> list[float]:
    """The mean of each value and up to count - 1 before it."""
    return [sum(part) / len(part) for part in (values[max(0, i + 1 - count):i + 1]
                                               for i in range(len(values)))]


def loss_curves(runs: dict[str, list[float]]) -> "Figure":
    """The loss by step of each run, a mean of its last eight."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    for (name, losses), (colour, style) in zip(runs.items(), STROKES, strict=False):
        axes.plot(smooth(losses), style, color=colour, label=name, lw=1.6)
    axes.set(xlabel="step", ylabel="loss, nats a token")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return closed(figure)


def training_lines(rows: "list[StepRecord]", limit: float) -> "Figure":
    """Of each step: the learning rate, the gradient's norm with the limit, the loss."""
    import matplotlib.pyplot as plt

    figure, (rate, norm, loss) = plt.subplots(3, 1, figsize=(7.5, 5), layout="constrained",
                                              sharex=True)
    steps = [row.step for row in rows]
    rate.plot(steps, [row.rate for row in rows], color=BLUE)
    norm.semilogy(steps, [row.norm for row in rows], color=RED)
    norm.axhline(limit, color=GREY, lw=1, ls="--")
    norm.annotate("clipped above", (steps[-1], limit), xytext=(0, 4), ha="right", fontsize=8,
                  textcoords="offset points", color=GREY)
    loss.plot(steps, [row.loss for row in rows], color=INK)
    for axes, name in ((rate, "rate"), (norm, "norm"), (loss, "loss")):
        axes.set_ylabel(name)
        axes.spines[["top", "right"]].set_visible(False)
    loss.set_xlabel("step")
    return closed(figure)


def gradient_range(gradients: torch.Tensor, scales: list[float]) -> "Figure":
    """How large gradients are, as powers of two, at each scale; blue: what fp16 can hold."""
    import matplotlib.pyplot as plt

    sizes = gradients[gradients != 0].abs().double().log2()
    figure, every = plt.subplots(len(scales), 1, figsize=(7.5, 0.8 + 1.4 * len(scales)),
                                 sharex=True, layout="constrained", squeeze=False)
    for axes, scale in zip(every[:, 0], scales, strict=True):
        own = sizes + torch.tensor(scale).log2()
        axes.axvspan(*FP16, color=BLUE, alpha=0.15, lw=0)
        axes.hist(own.numpy(), bins=60, range=(-60, 20), color=INK)
        below = (own < FP16[0]).double().mean().item()
        axes.set_title(f"scale {scale:,.0f}: {below:.1%} below fp16's range", loc="left",
                       fontsize=9, color=INK)
        axes.set_yticks([])
        axes.spines[["top", "right", "left"]].set_visible(False)
    every[-1, 0].set_xlabel("log₂ |gradient of a logit|")
    return closed(figure)
