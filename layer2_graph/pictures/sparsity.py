"""Sparsity: which zeros cost what, which patterns they make, which pages a head needs."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed

PALE = "#d0d7de"
STYLES = ((BLUE, "o-"), (INK, "s-"), (RED, "^-"), (GREY, "D-"), (BLUE, "s--"), (INK, "o:"))


def zeros(dense, curves, points, masks):
    """Above, perplexity by the share of weights that are zero; below, one mask for each pattern.

    dense: perplexity without zeros    curves: {label: {share: perplexity}}, six at most
    points: {label: (share, perplexity)}
    masks: {label: (rows, K) bool, True where a weight stays}
    """
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(7.5, 5.2), layout="constrained")
    rows = figure.add_gridspec(2, len(masks), height_ratios=[3, 1])
    axes = figure.add_subplot(rows[0, :])
    for (label, curve), (colour, style) in zip(curves.items(), STYLES, strict=False):
        axes.plot([100 * share for share in curve], list(curve.values()), style, color=colour,
                  lw=1.5, ms=4.5, label=label)
    for (label, (share, value)), mark, colour in zip(points.items(), "*PX", (INK, RED, GREY),
                                                     strict=False):
        axes.plot(100 * share, value, mark, color=colour, ms=8, label=label, ls="none")
    axes.axhline(dense, color=GREY, lw=1, ls="--")
    axes.set_yscale("log")
    axes.set_ylim(0.95 * dense, 8 * dense)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set(xlabel="% of the weights that are zero", ylabel="perplexity, held-out stories")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    figure.get_layout_engine().set(w_pad=0.12)
    for x, (label, mask) in enumerate(masks.items()):
        panel = figure.add_subplot(rows[1, x])
        panel.pcolormesh(np.asarray(mask)[::-1], cmap="Blues", vmin=-0.2, vmax=1.4, ec="white",
                         lw=1)
        panel.set_title(label, fontsize=9, color=INK)
        panel.set(xticks=[], yticks=[], aspect="equal")
        panel.spines[:].set_visible(False)
    return closed(figure)


def bounds(title, best, bound, chosen):
    """A bar for each page of a context and one head: the best score of its keys, and the bound
    above it.
    Dark bars are loaded.

    best, bound: (P,)    chosen: pages that are loaded
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 2.8), layout="constrained")
    pages = np.arange(len(best))
    low = min(0, min(best)) - 0.03 * (max(bound) - min(best))       # the lowest bar is seen, too
    colours = [BLUE if p in set(chosen) else PALE for p in pages]
    axes.bar(pages, np.subtract(best, low), 0.8, bottom=low, color=colours)
    axes.plot(pages, bound, "_", color=RED, ms=12, mew=2, label="bound of the page")
    axes.set(xlabel="page of the context", xlim=(-0.7, len(pages) - 0.3))
    axes.set_ylabel("score, q · k")
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    return closed(figure)


def contexts(dense, curves, reads):
    """Perplexity by the share of the cache that a decode step reads.

    dense: perplexity with all of it; what is 16 % above it leaves the page
    curves: {label: [(share, perplexity)]}, six at most
    reads: what the x axis counts, in words
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
    for (label, points), (colour, style) in zip(curves.items(), STYLES, strict=False):
        axes.plot(*zip(*((100 * share, value) for share, value in points), strict=True), style,
                  color=colour, lw=1.5, ms=5, label=label)
    axes.axhline(dense, color=GREY, lw=1, ls="--")
    axes.annotate("all of the context", (100, dense), ha="right", xytext=(0, 4), color=GREY,
                  textcoords="offset points", fontsize=9)
    axes.set(xlabel=reads, ylabel="perplexity, held-out stories", xlim=(0, 102),
             ylim=(0.99 * dense, 1.16 * dense))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return closed(figure)
