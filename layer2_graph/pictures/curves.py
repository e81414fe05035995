"""Curves and bars: wavelengths, sizes of graphs, what bits cost."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed


def waves(title, context, curves):
    """The lengths of waves, pair by pair, on a log scale, and the context they should fit into.

    context: tokens    curves: {name: [tokens of a whole turn]}, two at most
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    for (name, lengths), colour in zip(curves.items(), (GREY, BLUE), strict=False):
        axes.plot(lengths, color=colour, lw=2.5)
        axes.annotate(name, (len(lengths) - 1, lengths[-1]), xytext=(6, 0), color=colour,
                      textcoords="offset points", va="center")
    axes.axhline(context, color=RED, lw=1, ls="--")
    axes.annotate(f"{context:,} tokens", (0, context), xytext=(6, 4), color=RED,
                  textcoords="offset points")
    axes.set_yscale("log")
    axes.set(title=title, xlabel="pair of a head", ylabel="tokens of a whole turn",
             xlim=(0, 1.35 * len(lengths)), xticks=range(0, len(lengths) + 1, 16))
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def padding(title, ladders, most):
    """The rows with which batches of 1 to `most` run, a panel for each ladder of sizes: sequences
    in blue, padding in red; grey if no size is large enough.

    ladders: {label: [size]}
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(len(ladders), 1, sharex=True, squeeze=False, layout="constrained",
                                 figsize=(7.5, 1.7 * len(ladders) + 0.7))
    batches = np.arange(1, most + 1)
    for axes, (label, sizes) in zip(every[:, 0], ladders.items(), strict=True):
        rows = np.array([min((s for s in sizes if s >= batch), default=0) for batch in batches])
        busy = rows > 0
        spare = np.where(busy, rows - batches, 0)
        axes.bar(batches, batches, 1, color=np.where(busy, "#9cd2ff", "#d0d7de"))
        axes.bar(batches, spare, 1, bottom=batches, color=RED)
        axes.set_title(f"{label}   →   {len(sizes)} graphs, {spare.sum() / rows.sum():.0%} of all "
                       f"their rows are padding", loc="left", fontsize=10, color=INK)
        axes.set(ylabel="rows", xlim=(0.5, most + 0.5))
        axes.spines[["top", "right"]].set_visible(False)
    every[-1, 0].set_xlabel("batch, sequences")
    figure.suptitle(title)
    return closed(figure)


def by_bits(title, panels):
    """What the bits of a weight cost and gain, panels one below the other; both axes logarithmic.

    panels: {name of the y axis: {series: [(bits, value)]}}, four series at most
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator

    figure, every = plt.subplots(len(panels), 1, sharex=True, squeeze=False, layout="constrained",
                                 figsize=(7.5, 2.6 * len(panels) + 0.4))
    for axes, (name, series) in zip(every[:, 0], panels.items(), strict=True):
        for (label, points), (colour, mark) in zip(
                series.items(), ((BLUE, "o"), (INK, "s"), (GREY, "D"), (RED, "^")), strict=False):
            axes.loglog(*zip(*sorted(points), strict=True), mark + "-", color=colour, lw=1, ms=6,
                        label=label)
        axes.set(ylabel=name)
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.grid(which="major", color="#eaeef2")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="bits of a weight, scales included")
    axes.xaxis.set_major_formatter("{x:g}")
    figure.suptitle(title)
    return closed(figure)
