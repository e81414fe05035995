"""Grids: what rounding to them costs, and what training makes of it."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed

COLOURS = (GREY, BLUE, RED)


def valley(lines, trained=None):
    """Loss along straight lines from the trained weights to their rounded ones and beyond.

    lines: {label: ([distance from the weights, over their length], [loss], the index of the
    rounded weights)}, three at most    trained: (label, distance, loss), a star
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    for (label, (x, y, place)), colour in zip(lines.items(), COLOURS, strict=False):
        axes.plot(x, y, color=colour, lw=1.6)
        axes.plot(x[place], y[place], "o", color=colour, ms=8, label=label)
    if trained is not None:
        axes.plot(*trained[1:], "*", color=INK, ms=14, label=trained[0])
    axes.set(xlabel="distance from the weights as they were, over their length",
             ylabel="loss a token")
    axes.grid(color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return closed(figure)


def recovery(curves, levels):
    """Perplexity by steps of training, a line for each run and colour for each label, beside what
    is reached without training.

    curves: {label: [{step: perplexity}]}, three labels at most    levels: {label: perplexity}
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
    for (label, runs), colour in zip(curves.items(), (RED, BLUE, GREY), strict=False):
        for i, run in enumerate(runs):
            axes.plot(list(run), list(run.values()), "o-", color=colour, lw=1.2, ms=4,
                      label=None if i else label)
    last = max(step for runs in curves.values() for run in runs for step in run)
    for label, level in levels.items():
        axes.axhline(level, color=INK, lw=0.9, ls="--")
        under = level == min(levels.values())           # where the lines end
        axes.annotate(label, (last, level), xytext=(0, -10 if under else 3), fontsize=8,
                      textcoords="offset points", color=INK, ha="right")
    axes.margins(y=0.08)
    axes.set(xlabel="steps of 1,024 tokens", ylabel="perplexity a token, held-out stories")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return closed(figure)


def heaps(panels, low, high):
    """How many weights have w / s where, a panel for each histogram; its bins are of one width.

    panels: {title: [weights of a bin]}    low, high: the ends of the first and the last bin
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(panels), sharey=True, squeeze=False, figsize=(7.5, 2.8),
                                 layout="constrained")
    for axes, (title, counts) in zip(every[0], panels.items(), strict=True):
        edges = np.linspace(low, high, len(counts) + 1)
        share = 100 * np.array(counts) / sum(counts)
        axes.bar(edges[:-1], share, np.diff(edges), align="edge", color=BLUE)
        for border in np.arange(np.ceil(low) + 0.5, high):
            axes.axvline(border, color=GREY, lw=0.8, ls=":")
        axes.set_title(title, loc="left", fontsize=10, color=INK)
        axes.set(xlabel="w / s")
        axes.spines[["top", "right"]].set_visible(False)
    every[0, 0].set_ylabel("% of the weights")
    return closed(figure)
