"""Attention: what a token and layer keep, what keeping less costs, and what a window hides."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed

TALL = 16               # squares of a column


def kept_numbers(title, kinds, width):
    """What a token and layer keep, to scale: a square for each `width` numbers, columns of 16.

    kinds: {label: [(colour's name, numbers)]}; the names are keys, values, latent and rotated part
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    colours = {"keys": BLUE, "values": "#9cd2ff", "latent": RED, "rotated part": INK}
    figure, axes = plt.subplots(figsize=(9, 3.9), layout="constrained")
    left = 0.0
    for label, parts in kinds.items():
        square = 0.0
        for name, numbers in parts:
            end = square + numbers / width
            while square < end:
                height = min(end, int(square) + 1) - square
                column, row = divmod(square, TALL)
                axes.add_patch(Rectangle((left + column + 0.06, row + 0.04 * height), 0.88,
                                         0.92 * height, fc=colours[name], ec="none"))
                square += height
        columns = -(-square // TALL)
        total = sum(numbers for _, numbers in parts)
        axes.annotate(f"{label}\n{total:,.0f}", (left + columns / 2, -0.3), ha="center", va="top",
                      color=INK, fontsize=9, annotation_clip=False)
        left += columns + 4
    handles = [Rectangle((0, 0), 1, 1, fc=colour) for colour in colours.values()]
    axes.legend(handles, list(colours), frameon=False, fontsize=9, loc="upper center",
                bbox_to_anchor=(0.74, 1))               # above the shortest columns
    axes.set(xlim=(-1, left), ylim=(-2.6, TALL + 0.2), aspect="equal")
    axes.set_axis_off()
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    return closed(figure)


def quality(title, points, steps):
    """Perplexity against the bytes that a token and layer keep, both logarithmic.

    points: {label: (bytes, [[perplexity of each run] after each of `steps`])}, two steps at most
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullLocator

    figure, axes = plt.subplots(figsize=(7.5, 4), layout="constrained")
    for i, (colour, mark) in zip(range(len(steps)), ((GREY, "o"), (BLUE, "o")), strict=False):
        axes.plot([x for x, y in points.values() for _ in y[i]],
                  [run for _, y in points.values() for run in y[i]], mark, color=colour, ms=6,
                  label=f"after {steps[i]} steps")
    for label, (x, y) in points.items():
        for runs in y:
            axes.annotate(label, (x, float(np.mean(runs))), xytext=(7, 0), va="center", color=INK,
                          textcoords="offset points", fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    low, high = axes.get_ylim()
    axes.set_yticks([y for y in np.arange(2, 20, 0.5) if low < y < high])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set(title=title, xlabel="bytes that a token and layer keep, fp16",
             ylabel="perplexity a token, held-out stories")
    axes.margins(x=0.15)
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return closed(figure)


def visible(masks):
    """Masks beside each other: blue where a query sees a key, the queries the last T of N tokens.

    masks: {label: (T, N) bool}
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap

    figure, every = plt.subplots(1, len(masks), squeeze=False, figsize=(3.2 * len(masks), 3.3),
                                 layout="constrained")
    for axes, (label, mask) in zip(every[0], masks.items(), strict=True):
        T, N = mask.shape
        axes.pcolormesh(np.arange(N + 1), np.arange(N - T, N + 1), np.asarray(mask),
                        cmap=ListedColormap(["#f6f8fa", BLUE]), vmin=0, vmax=1, edgecolors="white",
                        linewidth=0.4)
        axes.set_title(label, fontsize=10, color=INK)
        axes.set(xlabel="key", ylabel="query", aspect="equal")
        axes.invert_yaxis()
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
    return closed(figure)


def against_window(title, whole, series):
    """Perplexity by the width of the window, and a dashed line without one.

    series: {label: {W: perplexity}}, three at most
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    for (label, points), (colour, style) in zip(series.items(), (
            (BLUE, "o-"), (RED, "s--"), (GREY, "D")), strict=False):
        axes.plot(list(points), list(points.values()), style, color=colour, ms=6, lw=1.5,
                  label=label)
    axes.axhline(whole, color=INK, lw=1, ls=":")
    axes.annotate("all tokens kept", (min(min(s) for s in series.values()), whole), xytext=(0, 4),
                  textcoords="offset points", color=INK, fontsize=9)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(title=title, xlabel="W, tokens of the window", ylabel="perplexity a token")
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return closed(figure)
