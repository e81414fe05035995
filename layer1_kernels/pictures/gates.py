"""SwiGLU: its curve, gate and up in memory, and the tiles of one program."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed
from layer1_kernels.pictures.tiles import matrix

PALE = "#d0d7de"


def silu_curve():
    """SiLU of a number g, between its two factors: g and the sigmoid of g."""
    import matplotlib.pyplot as plt

    g = np.linspace(-6, 6, 241)
    sigmoid = 1 / (1 + np.exp(-g))
    figure, axes = plt.subplots(figsize=(7.5, 2.6), layout="constrained")
    for name, values, colour, place in (
            ("g", g, GREY, (3.2, 3.7)), ("sigmoid(g)", sigmoid, RED, (5.9, 1.25)),
            ("SiLU(g) = g · sigmoid(g)", g * sigmoid, BLUE, (5.9, 2.6))):
        axes.plot(g, values, color=colour, lw=2)
        axes.text(*place, name, color=colour, ha="right", va="center")
    axes.axhline(0, color=INK, lw=0.6, zorder=0)
    axes.set(xlabel="g", xlim=(-6, 6), ylim=(-1, 4.5), yticks=range(5))
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def halves(T, F, t, f):
    """gate and up as halves of one array, and y: each number with its place in memory.

    T, F: rows and columns of each half    t, f: the row and the column that are marked
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    gap = 1.5
    figure, axes = plt.subplots(figsize=(7.5, 2.1), layout="constrained")
    for left, name, first, stride, pale, colour in (
            (0, "gate", 0, 2 * F, "#9cd2ff", BLUE), (F, "up", F, 2 * F, "#ffcecb", RED),
            (2 * F + gap, "y", 0, F, PALE, INK)):
        for row in range(T):
            for column in range(F):
                marked = (row, column) == (t, f)
                axes.add_patch(Rectangle((left + column, row), 1, 1, ec="white", lw=1.5,
                                         fc=colour if marked else pale))
                axes.text(left + column + 0.5, row + 0.52, first + row * stride + column,
                          ha="center", va="center", color="white" if marked else INK, fontsize=9)
        axes.text(left + F / 2, -0.15, name, ha="center", va="bottom", color=colour, fontsize=10)
    for left, stride in ((0, 2 * F), (2 * F + gap, F)):
        axes.text(left + stride / 2, T + 0.15, f"row to row: {stride} numbers", ha="center",
                  va="top", color=INK, fontsize=9)
    axes.text(-0.2, t + 0.5, f"t = {t}", ha="right", va="center", color=INK, fontsize=9)
    axes.set(xlim=(-1, 3 * F + gap + 0.1), ylim=(T + 0.8, -0.8), aspect="equal", xticks=[],
             yticks=[])
    axes.spines[:].set_visible(False)
    return closed(figure)


def gated_tiles(sizes, tile, place, step):
    """One program of SwiGLU in a matmul: tiles of x and of w, two tiles of sums, one of y.

    sizes: (T, C, F)    tile: (BT, BC, BF), which divide them    place: the (row, column) of y's
    tile among all tiles    step: of the walk along C that is drawn
    """
    import matplotlib.pyplot as plt

    T, C, F = sizes
    BT, BC, BF = tile
    row, column = place
    gap = C / 6
    top = C + gap
    before = range(step)
    figure, axes = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
    matrix(axes, "x", (0, top), (T, C), (BT, BC),
           {(row, step): BLUE} | {(row, i): GREY for i in before})
    for number, half in enumerate(("gate", "up")):
        left = C + gap + number * (F + gap)
        matrix(axes, f"wᵀ, {half}", (left, 0), (C, F), (BC, BF),
               {(step, column): BLUE} | {(i, column): GREY for i in before})
        matrix(axes, "", (left, top), (T, F), (BT, BF), {(row, column): RED})
        axes.text(left + F / 2, top + T + 2, f"sums: {half}", ha="center", va="top", color=RED)
    matrix(axes, "y", (left + F + 2 * gap, top), (T, F), (BT, BF), {(row, column): INK})
    y = top + (row + 0.5) * BT
    axes.annotate("", (left + F + 1.8 * gap, y), (left + F + 0.2 * gap, y), arrowprops={
        "arrowstyle": "->", "color": INK, "lw": 1.5, "shrinkA": 0, "shrinkB": 0})
    axes.set(xlim=(-1, left + 2 * F + 2 * gap + 1), ylim=(top + T + 9, -8), aspect="equal",
             xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return closed(figure)
