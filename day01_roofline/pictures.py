"""Pictures of day 1. Each function draws one figure and returns it."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, STROKES, closed


def runs(title, lists):
    """Every run of a few lists in the order in which it was taken, with each list's median.

    lists: {label: seconds}, three at most
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    longest = max(map(len, lists.values()))
    for (label, seconds), colour in zip(lists.items(), (BLUE, RED, GREY), strict=False):
        micro = np.asarray(seconds) * 1e6
        axes.semilogy(np.arange(1, len(micro) + 1), micro, "o", color=colour, ms=4)
        median = np.median(micro)
        axes.axhline(median, color=colour, lw=1, ls="--")
        axes.annotate(f"{label}\nmedian {median:.3g} µs", (longest, median), xytext=(10, 0),
                      va="center", textcoords="offset points", color=colour, annotation_clip=False)
    axes.set(xlabel="run", ylabel="µs", title=title, xlim=(0, longest + 0.5))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(which="major", axis="y", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def number_lines(title, lines, densities):
    """Above, the positive numbers of some formats, a tick each; below, how dense they are.

    lines: {name: numbers}    densities: {name: (x, x over the spacing there)}, nine at most
    """
    import matplotlib.pyplot as plt

    figure, (ticks, axes) = plt.subplots(2, 1, sharex=True, layout="constrained",
                                         figsize=(7.5, 3.4 + 0.3 * len(lines)),
                                         height_ratios=(0.3 * len(lines), 2.6))
    for row, numbers in enumerate(lines.values()):
        ticks.vlines(numbers, row - 0.36, row + 0.36, color=BLUE, lw=0.6)
    ticks.set_yticks(range(len(lines)), lines)
    ticks.invert_yaxis()
    ticks.tick_params(length=0)
    ticks.spines[["top", "right", "left"]].set_visible(False)
    for (name, (x, density)), (colour, style) in zip(densities.items(), STROKES, strict=False):
        axes.plot(x, density, color=colour, ls=style, lw=1.6, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="x", ylabel="x / spacing")
    axes.grid(color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right lower", frameon=False)
    figure.suptitle(title)
    return closed(figure)


def panels(title, groups, x, y, log=True):
    """Panels of curves side by side, with one legend; a name has the same style in all of them.

    groups: {label of a panel: {name: (xs, ys)}}, nine names at most    x, y: the axes' names
    log: make the y axis logarithmic too, not only the x axis
    """
    import matplotlib.pyplot as plt

    names = dict.fromkeys(name for curves in groups.values() for name in curves)
    strokes = dict(zip(names, STROKES, strict=False))
    figure, every = plt.subplots(1, len(groups), sharey=True, squeeze=False, figsize=(7.5, 3.6),
                                 layout="constrained")
    for axes, (label, curves) in zip(every[0], groups.items(), strict=True):
        for name, (xs, ys) in curves.items():
            colour, style = strokes[name]
            axes.plot(xs, ys, color=colour, ls=style, lw=1.8)
        axes.set_xscale("log", base=2)
        if log:
            axes.set_yscale("log", base=2)
        axes.set_title(label, loc="left", fontsize=10, color=INK)
        axes.set(xlabel=x)
        axes.grid(color="#eaeef2")
        axes.spines[["top", "right"]].set_visible(False)
    every[0, 0].set(ylabel=y)
    for name, (colour, style) in strokes.items():
        every[0, 0].plot([], [], color=colour, ls=style, lw=1.8, label=name)
    figure.legend(loc="outside right center", frameon=False)
    return closed(figure)
