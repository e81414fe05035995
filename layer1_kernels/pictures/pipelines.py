"""Pipelines: what is copied while something else is multiplied, and where pieces of a row lie."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed


def schedule(stages, steps, copy):
    """When each step's copy and product begin, in units of one product -> two lists.

    A copy takes `copy` units however many there are, and begins when its stage is free: at the
    start of the product `stages` - 1 steps before its own, or after the one before if there is one
    stage.
    """
    copies, products = [], []
    end = 0
    for t in range(steps):
        before = t - stages + 1
        start = 0 if before < 0 else end if stages == 1 else products[before]
        copies.append(start)
        products.append(max(end, start + copy))
        end = products[-1] + 1
    return copies, products


def overlap(ways, steps, copy):
    """Copies and products of one block by schedule(). A panel for each way {title: stages}."""
    import matplotlib.pyplot as plt

    heights = [stages + 1 for stages in ways.values()]
    figure, every = plt.subplots(len(ways), 1, squeeze=False, sharex=True, layout="constrained",
                                 figsize=(7.5, 0.9 + 0.34 * sum(heights) + 0.3 * len(ways)),
                                 height_ratios=heights)
    for axes, (title, stages) in zip(every[:, 0], ways.items(), strict=True):
        copies, products = schedule(stages, steps, copy)
        for t, (start, product) in enumerate(zip(copies, products, strict=True)):
            for y, left, width, colour in ((t % stages, start, copy, BLUE),
                                           (stages, product, 1, RED)):
                axes.barh(y, width, left=left, height=0.8, color=colour, ec="white")
                axes.text(left + width / 2, y, t, ha="center", va="center", color="white",
                          fontsize=8)
        end = products[-1] + 1
        axes.axvline(end, color=INK, lw=1, ls="--")
        axes.set_title(f"{title}: all done after {end}", loc="left", fontsize=10)
        axes.set(yticks=range(stages + 1), ylim=(stages + 0.6, -0.6),
                 yticklabels=[f"copy, stage {s}" for s in range(stages)] + ["multiply"])
        axes.tick_params(axis="y", length=0, labelsize=8)
        axes.spines[["top", "right", "left"]].set_visible(False)
    every[-1, 0].set(xlabel="time, in units of one step's products")
    return closed(figure)


def bank_groups(ways):
    """Where the eight pieces of 16 bytes of eight rows of 128 bytes lie.
    A panel for each {title: place(row, piece)}. A column is a group of four banks, a number the
    piece; the red ones are piece 0 of each row."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(ways), squeeze=False, layout="constrained",
                                  figsize=(3.6 * len(ways), 3.6))
    for axes, (title, place) in zip(panels[0], ways.items(), strict=True):
        for row, piece in np.ndindex(8, 8):
            x = place(row, piece)
            axes.add_patch(plt.Rectangle((x, row), 1, 1, fc=RED if piece == 0 else "#d0d7de",
                                         ec="white"))
            axes.text(x + 0.5, row + 0.5, piece, ha="center", va="center", fontsize=8,
                      color="white" if piece == 0 else INK)
        axes.set(xlim=(0, 8), ylim=(8, 0), xlabel="banks", yticks=np.arange(8) + 0.5,
                 yticklabels=range(8), xticks=np.arange(8) + 0.5,
                 xticklabels=[f"{4 * g}–{4 * g + 3}" for g in range(8)])
        axes.set_title(title, loc="left", fontsize=10)
        axes.tick_params(length=0, labelsize=7, colors=GREY)
        axes.spines[:].set_visible(False)
    panels[0, 0].set(ylabel="row of the tile")
    return closed(figure)
