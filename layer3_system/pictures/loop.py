"""The loop of an engine: what a step calls in turn, and what overlap hides."""

from math import cos, pi, sin
from typing import TYPE_CHECKING

from lab.plots import BLUE, GREY, INK, closed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CALLS = [("schedule", "s04", False), ("build_step", "here", True), ("model.forward", "g01", False),
         ("to_draw, sample", "here, s01", True), ("commit", "text, stop, pages", False)]
PALE = "#d0d7de"


def step_circle() -> "Figure":
    """The five calls of a step, with the pool in the middle; blue: written in s07."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    places = [(1.9 * sin(2 * pi * i / len(CALLS)), cos(2 * pi * i / len(CALLS)))
              for i in range(len(CALLS))]
    for i, ((name, lesson, own), (x, y)) in enumerate(zip(CALLS, places, strict=True)):
        axes.annotate("", places[(i + 1) % len(CALLS)], (x, y), arrowprops={
            "arrowstyle": "->", "color": INK, "lw": 1.5, "shrinkA": 42, "shrinkB": 42,
            "connectionstyle": "arc3,rad=-0.15"})
        axes.text(x, y, f"{name}\n{lesson}", ha="center", va="center", fontsize=9,
                  color="white" if own else INK,
                  bbox={"boxstyle": "round,pad=0.4", "fc": BLUE if own else PALE, "ec": "none"})
    axes.text(0, -0.05, "pages\ns02", ha="center", va="center", fontsize=9, color=INK,
              bbox={"boxstyle": "circle,pad=0.5", "fc": "white", "ec": GREY})
    for text, begin, end in (("submit", (-1.6, 1), (-0.55, 1)),
                             ("Output", (-2.3, 0.31), (-3.1, 0.31))):
        axes.annotate("", end, begin, arrowprops={"arrowstyle": "->", "color": GREY, "lw": 1.5})
        axes.text((begin[0] + end[0]) / 2, begin[1] + 0.1, text, ha="center", fontsize=9,
                  color=INK)
    axes.set(xlim=(-3.2, 2.5), ylim=(-1.15, 1.25))
    axes.axis("off")
    return closed(figure)


def overlap_lanes(host: float, device: float, steps: int = 4) -> "Figure":
    """Steps of an engine in two lanes, without overlap and with it; computed, not measured.

    host: ms of a step that the scheduler, the batch and the texts take    device: ms of the model
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(2, 1, sharex=True, figsize=(7.5, 2.6), layout="constrained")
    for axes, overlap in zip(every, (False, True), strict=True):
        begin = 0.0                     # of the host's part of a step
        free = 0.0                      # when the device has computed the step before
        for i in range(steps):
            start = max(begin + host, free)
            free = start + device
            for y, x, width, colour in ((0, begin, host, INK), (1, start, device, BLUE)):
                axes.barh(y, width, 0.8, left=x, color=colour, edgecolor="white")
                axes.text(x + width / 2, y, f"{i + 1}", ha="center", va="center", color="white",
                          fontsize=8)
            begin = max(begin + host, start) if overlap else free
        name = "with" if overlap else "without"
        axes.set_title(f"{name} overlap: {free:.1f} ms", loc="left", fontsize=9, color=INK)
        axes.set_yticks([0, 1], ["host", "device"], fontsize=9)
        axes.set(ylim=(1.5, -0.5))
        axes.tick_params(left=False)
        axes.spines[["top", "right", "left"]].set_visible(False)
    every[1].set_xlabel("ms, computed")
    return closed(figure)
