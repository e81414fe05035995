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


def machine(device, intensity, what):
    """A machine and what it joins, and one microsecond of it: the operations that its arithmetic
    can do, and those for which data arrives.

    device: has .peak in FLOP/s, .bandwidth and .link in byte/s    intensity: FLOP/byte of an
    operation    what: its name, in the plural
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, (joined, axes) = plt.subplots(1, 2, figsize=(7.5, 2.6), layout="constrained",
                                          width_ratios=(1.35, 1))
    boxes = ((0, "memory", ""), (4, "chip", f"\n{device.peak / 1e12:.0f}\nTFLOP/s"),
             (8, "another\ndevice", ""))
    for x, name, note in boxes:
        joined.add_patch(Rectangle((x, 0.6), 2, 1.8, fc="#d0d7de", ec=GREY))
        joined.text(x + 1, 1.5, name + note, ha="center", va="center", fontsize=9, color=INK)
    for x, rate, colour, name in ((2, device.bandwidth, BLUE, "bandwidth"),
                                  (6, device.link, GREY, "link")):
        height = 1.2 * rate / device.bandwidth
        joined.add_patch(Rectangle((x, 1.5 - height / 2), 2, height, fc=colour))
        joined.text(x + 1, 0.55, f"{name}\n{rate / 1e12:g} TB/s", ha="center", va="top",
                    fontsize=9, color=colour)
    joined.set(xlim=(-0.1, 10.1), ylim=(-0.4, 2.6))
    joined.axis("off")
    millions = device.peak / 1e12, device.bandwidth * intensity / 1e12
    axes.barh((1, 0), millions, color=(GREY, RED), edgecolor=(GREY, RED), height=0.5)
    for y, number, label in ((1, millions[0], "operations that the chip can do"),
                             (0, millions[1], f"{what} whose data arrives")):
        axes.annotate(f"{number:.3g} million {label}", (0, y + 0.33), color=INK, fontsize=8)
    axes.set(title="in one microsecond", xlim=(-2, 1.02 * max(millions)), ylim=(-0.4, 1.7),
             xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
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
