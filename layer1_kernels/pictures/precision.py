"""Precision: which numbers share a scale, and what errors become."""

import numpy as np

from lab.plots import BLUE, INK, RED, closed
from lab.words import plural

COLOURS = (BLUE, RED, INK)
STYLES = ("-", "--", ":")


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
        axes.set(xticks=[], yticks=[], xlabel=plural(count, "scale"))
        axes.set_title(title, fontsize=9.5, color=INK)
        axes.spines[:].set_visible(False)
    return closed(figure)


def errors(title, sizes, curves, x, y):
    """Errors on logarithmic axes, one line each, with a legend beside.

    sizes: [number]    curves: {name: [error at each size]}; names with the same first word, three
    at most, have one colour, and so have three such words    x, y: the axes' names
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.5, 3.6), layout="constrained")
    kinds = {}                                      # first word -> its curves so far
    for name, values in curves.items():
        drawn = kinds.setdefault(name.split()[0], [])
        colour = COLOURS[list(kinds).index(name.split()[0])]
        axes.loglog(sizes, values, STYLES[len(drawn)], marker="o", ms=3, color=colour, lw=1.6,
                    label=name)
        drawn.append(name)
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.grid(color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)
