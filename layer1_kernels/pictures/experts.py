"""Experts: how many slots each has, and whose tiles a program makes."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed


def loads(title, slots, BM):
    """The slots of each expert, sorted; and the rows that are needed, that tiles of BM rows
    multiply, and that a product multiplies which is padded to the largest load.

    slots: (E,)
    """
    import matplotlib.pyplot as plt

    slots = np.sort(slots)[::-1]
    tiled = -(-slots // BM) * BM
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.2), layout="constrained",
                                         width_ratios=(1.7, 1))
    experts = np.arange(len(slots))
    left.bar(experts, tiled, 1, color="#d0d7de")
    left.bar(experts, slots, 0.8, color=BLUE)
    for height, name, colour in ((slots[0], f"largest: {slots[0]}", RED),
                                 (slots.mean(), f"mean: {slots.mean():g}", INK)):
        left.axhline(height, color=colour, lw=1.2, ls="--")
        left.annotate(name, (len(slots) - 1, height), xytext=(0, 3), textcoords="offset points",
                      ha="right", color=colour)
    left.set(xlabel="experts, the busiest first", ylabel="slots", xlim=(-0.8, len(slots)),
             ylim=(0, 1.15 * max(slots[0], tiled[0])), xticks=[], title=title)
    rows = {"needed": (slots.sum(), BLUE), f"in tiles of {BM}": (tiled.sum(), GREY),
            "padded to\nthe largest": (len(slots) * slots[0], RED)}
    for place, (count, colour) in enumerate(rows.values()):
        right.bar(place, count, 0.7, color=colour)
        right.annotate(f"{count:,}", (place, count), xytext=(0, 3), textcoords="offset points",
                       ha="center", color=INK)
    right.set(title="rows multiplied", xticks=range(len(rows)), xticklabels=rows, yticks=[],
              ylim=(0, 1.12 * max(count for count, _ in rows.values())))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="x", length=0, labelsize=9)
    return closed(figure)


def tile_lists(ways):
    """The tiles that each program makes, one after another: a cell a tile, a colour an expert.

    ways: {label: [(tiles,) experts of a program's tiles, for each program]}, a panel each
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    shades = plt.get_cmap("tab20").colors
    longest = max(len(tiles) for programs in ways.values() for tiles in programs)
    figure, every = plt.subplots(len(ways), 1, squeeze=False, sharex=True, layout="constrained",
                                 figsize=(7.5, 1.0 + 1.9 * len(ways)))
    for axes, (label, programs) in zip(every[:, 0], ways.items(), strict=True):
        for p, tiles in enumerate(programs):
            for place, expert in enumerate(tiles):
                axes.add_patch(Rectangle((place, p), 1, 1, fc=shades[expert % 20], ec="white",
                                         lw=0.6))
        last = max(map(len, programs))
        axes.axvline(last, color=INK, lw=1.2, ls="--")
        axes.set(xlim=(0, longest * 1.01), ylim=(len(programs), 0), ylabel="program",
                 yticks=[p + 0.5 for p in range(len(programs))], yticklabels=range(len(programs)))
        axes.set_title(f"{label}: all done after {last}", loc="left", fontsize=10)
        axes.tick_params(axis="y", length=0, labelsize=8)
        axes.spines[["top", "right", "left"]].set_visible(False)
    every[-1, 0].set(xlabel="tiles, one after another")
    return closed(figure)
