"""Plans of a training: depth and parameters, GPUs and their slices, a step's bytes and seconds."""

from dataclasses import replace

import numpy as np

from day01_roofline import count_parameters
from lab.plots import BLUE, GREY, INK, RED, SHADES, closed

MACHINE = 8                     # GPUs in a machine


def depth_line(one, N):
    """Parameters over depth for one width and one F: a straight line, and where it crosses N.

    one: a Llama of one layer
    """
    import matplotlib.pyplot as plt

    rest = sum(count_parameters(replace(one, L=0)).values())
    each = sum(count_parameters(one).values()) - rest
    cross = (N - rest) / each
    depths = np.array([0, 1.6 * cross])
    figure, axes = plt.subplots(figsize=(5.0, 2.0), layout="constrained")
    axes.plot(depths, (rest + each * depths) / 1e9, color=BLUE, lw=1.8)
    axes.axhline(N / 1e9, color=GREY, lw=1, ls="--")
    axes.plot([cross], [N / 1e9], "o", color=RED)
    axes.annotate(f"L = {cross:.1f}", (cross, N / 1e9), xytext=(6, -14), color=RED,
                  textcoords="offset points")
    axes.annotate("N", (0, N / 1e9), xytext=(4, 4), color=GREY, textcoords="offset points")
    axes.annotate("without layers", (0, rest / 1e9), xytext=(48, -1), color=INK,
                  textcoords="offset points")
    axes.set(title=f"C = {one.C}, F = {one.F}", xlabel="layers L", ylabel="parameters, billions",
             xlim=(0, None), ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def gpu_grid(W, tps):
    """Machines of eight GPUs, a panel for each tp.
    Each GPU has the number of its slice.

    W: GPUs, a multiple of 16    tps: ranks that share a model, divisors of 8
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, panels = plt.subplots(1, len(tps), figsize=(7.5, 1.6), layout="constrained")
    columns = W // MACHINE // 2
    for axes, tp in zip(panels, tps, strict=True):
        for rank in range(W):
            machine, place = divmod(rank, MACHINE)
            x = machine % columns * 5 + place % 4
            y = -(machine // columns * 3 + place // 4)
            shade, ink = SHADE_OF_SLICE[rank % tp]
            axes.add_patch(Rectangle((x, y), 1, 1, fc=shade, ec="white", lw=1.2))
            axes.text(x + 0.5, y + 0.48, f"{rank % tp + 1}", ha="center", va="center", color=ink,
                      fontsize=7)
            if place == 0:
                axes.add_patch(Rectangle((x - 0.15, y - 1.15), 4.3, 2.3, fc="none", ec=INK, lw=1))
        slices = "whole" if tp == 1 else f"in {tp} slices"
        axes.set_title(f"tp = {tp}: {W // tp} copies of the model, each {slices}", fontsize=9)
        axes.set(xlim=(-0.4, columns * 5 - 0.6), ylim=(-4.4, 1.4), aspect="equal")
        axes.axis("off")
    return closed(figure)


SHADE_OF_SLICE = [(f"#{shade}", ink) for shade, ink in (
    ("54aeff", INK), ("0a3069", "white"), ("9cd2ff", INK), ("0969da", "white"),
    ("d0d7de", INK), ("57606a", "white"), ("ffb3b8", INK), ("cf222e", "white"))]


def plan_bars(panels):
    """Rows of parts, a panel for each unit; a red line is the limit, and the sums stand at the end.

    panels: {title: (unit, {row: {part: number}}, limit or None)}; the rows are those of the first
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(panels), figsize=(7.5, 2.9), sharey=True,
                                 layout="constrained")
    for axes, (title, (unit, rows, limit)) in zip(every, panels.items(), strict=True):
        parts = list(next(iter(rows.values())))
        left = np.zeros(len(rows))
        for part, (colour, _) in zip(parts, SHADES, strict=False):
            sizes = np.array([row[part] for row in rows.values()])
            axes.barh(range(len(rows)), sizes, left=left, color=colour, label=part, height=0.65)
            left = left + sizes
        for y, whole in enumerate(left):
            axes.annotate(f"{whole:.1f}", (whole, y), xytext=(3, 0), va="center", color=INK,
                          textcoords="offset points", fontsize=8)
        if limit:
            axes.axvline(limit, color=RED, lw=1.2)
        axes.set(title=title, xlabel=unit, xlim=(0, 1.15 * max(left)))
        axes.set_yticks(range(len(rows)), rows, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        if len(parts) > 1:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, frameon=False,
                        fontsize=8, handlelength=1)
    every[0].invert_yaxis()
    return closed(figure)
