"""A memory below: what it saves in conversations, and when a copy is faster than computing."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, STROKES, closed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from layer3_system.s11_kv_offload import Costs


def tier_bars(groups: dict[str, dict[str, int]]) -> "Figure":
    """Tokens computed, a group of bars each, as shares of the first bar of the group.

    groups: {group: {bar: tokens}}; all groups have the same bars, at most three
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    names = list(next(iter(groups.values())))
    colours = (GREY, BLUE, RED)
    for i, name in enumerate(names):
        for x, row in enumerate(groups.values()):
            share = 100 * row[name] / row[names[0]]
            at = x + (i - (len(names) - 1) / 2) * 0.27
            axes.bar(at, share, 0.25, color=colours[i], label=name if x == 0 else None)
            axes.annotate(f"{share:.0f}", (at, share), ha="center", va="bottom", fontsize=8,
                          color=INK)
    axes.set_xticks(range(len(groups)), groups)
    axes.set(ylabel=f"tokens computed, % of {names[0]}", ylim=(0, 118))
    axes.legend(frameon=False, ncols=len(names), loc="upper center", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def tier_curves(curves: dict[str, dict[int, float]], x: str, y: str) -> "Figure":
    """Lines over a size that doubles.  curves: {label: {size: percent}}"""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    for (label, points), (colour, style) in zip(curves.items(), STROKES, strict=False):
        axes.plot(list(points), list(points.values()), style, marker="o", ms=4, color=colour, lw=2)
        size, value = next(iter(points.items()))
        axes.annotate(label, (size, value), xytext=(0, 6), textcoords="offset points", ha="left",
                      color=colour, fontsize=9)
    sizes = sorted({size for points in curves.values() for size in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set(xlabel=x, ylabel=y, ylim=(0, 112), xlim=(sizes[0] * 0.9, sizes[-1] * 1.1))
    axes.minorticks_off()
    axes.grid(color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def load_lines(costs: "Costs", befores: dict[str, int], links: dict[str, tuple[float, float]],
               sizes: Sequence[int]) -> "Figure":
    """Milliseconds for n tokens, both axes logarithmic: computed in red, loaded in blue.

    befores: {label: tokens before them}    links: {label: (byte/s, seconds of latency)}
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.0), layout="constrained")
    n = np.unique(np.geomspace(sizes[0], sizes[-1], 60).astype(int))
    compute = {label: (n * costs.flops + (n * before + n * (n + 1) / 2) * costs.attention)
               / costs.rate for label, before in befores.items()}
    load = {label: latency + n * costs.bytes / rate for label, (rate, latency) in links.items()}
    ends = []
    for lines, colour in ((compute, RED), (load, BLUE)):
        for (label, seconds), style in zip(lines.items(), ("-", "--", ":", "-."), strict=False):
            times = 1e3 * seconds
            axes.loglog(n, times, style, color=colour, lw=2)
            ends.append((times[-1], label, colour))
    lowest, highest = axes.get_ylim()
    line = (highest / lowest) ** 0.05               # the factor that one line of text takes
    place = 0.0
    for time, label, colour in sorted(ends):
        place = max(time, place * line)
        axes.annotate(label, (n[-1], place), xytext=(5, 0), textcoords="offset points",
                      va="center", color=colour, fontsize=9, annotation_clip=False)
    axes.set(xlabel="tokens", ylabel="milliseconds", xlim=(n[0], n[-1]))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)
