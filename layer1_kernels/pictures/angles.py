"""Rotary positions: pairs of numbers as points of a plane that turn with the position."""

import numpy as np

from lab.plots import BLUE, GREY, INK, closed


def turns(D, base, pairs, positions):
    """A pair of numbers that is turned by its position: one panel for each of several pairs.

    D: head width    base: pair d turns by base^(-2d/D) radians a position
    pairs: which d    positions: tokens at 0, 1, … positions - 1 that carry the same pair
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(pairs), squeeze=False, figsize=(7.5, 2.7),
                                 layout="constrained")
    circle = np.linspace(0, 2 * np.pi, 100)
    for axes, d in zip(every[0], pairs, strict=True):
        speed = base ** (-2 * d / D)                # radians a position
        axes.plot(np.cos(circle), np.sin(circle), color="#d0d7de", lw=1, zorder=0)
        for p in range(positions):
            end = np.cos(p * speed), np.sin(p * speed)
            axes.annotate("", end, (0, 0), arrowprops={
                "arrowstyle": "->", "color": GREY if p == 0 else BLUE, "lw": 1.4, "shrinkA": 0,
                "shrinkB": 0})
            if speed > 0.2 or p in (0, positions - 1):      # else the numbers would overlap
                axes.text(1.17 * end[0], 1.17 * end[1], p, ha="center", va="center", fontsize=9,
                          color=INK)
        axes.set_title(f"pair {d}: {speed:.3g} radian{'' if speed == 1 else 's'} per position",
                       fontsize=8.5, color=INK)
        axes.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal", xticks=[], yticks=[])
        axes.set_xlabel(f"number {d}", fontsize=9, color=INK)
        axes.set_ylabel(f"number {d + D // 2}", fontsize=9, color=INK)
        axes.spines[:].set_color("#d0d7de")
    return closed(figure)
