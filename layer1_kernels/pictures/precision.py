"""Precision: which numbers share a scale, and what errors become."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, STROKES, closed


def scale_groups(ways):
    """Matrices whose numbers share scales: a cell a number, a shade a scale.

    ways: {title: ((rows, columns), (rows, columns) that share a scale)}, a panel each
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(ways), layout="constrained", figsize=(9.5, 2.5),
                                 width_ratios=[size[1] for size, _ in ways.values()])
    for axes, (title, ((M, K), (rows, group))) in zip(every, ways.items(), strict=True):
        across = -(-K // group)
        number = np.arange(M)[:, None] // rows * across + np.arange(K) // group     # (M, K)
        shade = (number * 5 % 8) / 8 if number.max() else 0 * number
        axes.imshow(shade, cmap="Blues", vmin=-0.3, vmax=1.3, aspect="auto")
        axes.hlines(np.arange(0, M + 1) - 0.5, -0.5, K - 0.5, color="white", lw=0.6)
        axes.vlines(np.arange(0, K + 1) - 0.5, -0.5, M - 0.5, color="white", lw=0.6)
        count = int(number.max()) + 1
        axes.set(xticks=[], yticks=[], xlabel=f"{count} scale{'s' * (count > 1)}")
        axes.set_title(title, fontsize=9.5, color=INK)
        axes.spines[:].set_visible(False)
    return closed(figure)


def errors(title, sizes, curves, x, y, note=None):
    """Errors on logarithmic axes, one line each, with a legend.

    sizes: [number]    curves: {name: [error at each size]}    x, y: the axes' names
    note: (size, what is there), a dotted line
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
    strokes = [stroke for stroke in STROKES if stroke[0] in (BLUE, RED)] + [(INK, "-"), (INK, ":")]
    for (name, values), (colour, style) in zip(curves.items(), strokes, strict=False):
        axes.loglog(sizes, values, style, marker="o", ms=3, color=colour, lw=1.6, label=name)
    if note:
        axes.axvline(note[0], color=GREY, lw=1, ls=":")
        axes.annotate(note[1], (note[0], 0.03), xycoords=("data", "axes fraction"),
                      xytext=(4, 0), textcoords="offset points", color=GREY)
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.legend(frameon=False, fontsize=9)
    axes.grid(color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)
