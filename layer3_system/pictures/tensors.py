"""Tensor parallel: which rank has which part of a matrix, and what a cache takes on each rank."""

from typing import TYPE_CHECKING

from lab.plots import BLUE, GREY, INK, RED, closed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALE = "#d0d7de"
GAP = 0.75              # between two boxes
T, C, F = 1.0, 1.5, 2.4     # sides of the boxes


def split_bands(n: int) -> "Figure":
    """The MLP of one layer on n ranks: bands of gate, up and down, and n sums of full size.
    Blue is rank 0's."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 2.3), layout="constrained")
    x = 0.0
    for title, size, bands, upright, mark in (
            ("x, on each rank", (C, T), 1, False, "→"), ("gate", (C, F), n, False, ""),
            ("up", (C, F), n, False, "→"), ("swiglu", (F, T), n, True, "→"),
            ("down", (F, C), n, True, "→"),
            *((f"of rank {r}", (C, T), 0, r == 0, "+" if r < n - 1 else "") for r in range(n))):
        draw_bands(axes, x, size, bands, upright, title)
        x += size[0] + (GAP if mark else GAP / 3)
        axes.text(x - GAP / 2, 0, mark, ha="center", va="center",
                  fontsize=16 if mark == "+" else 11, color=RED if mark == "+" else GREY)
    axes.set(xlim=(-0.1, x), ylim=(-F / 2 - 0.1, F / 2 + 0.6), aspect="equal")
    axes.axis("off")
    return closed(figure)


def draw_bands(axes: "Axes", x: float, size: tuple[float, float], bands: int, upright: bool,
               title: str) -> None:
    """A box cut into bands, the first of them blue. bands: 0 for a box of one colour, blue where it
    is `upright`; 1 for one that every rank has"""
    from matplotlib.patches import Rectangle

    width, height = size
    for band in range(max(bands, 1)):
        share = 1 / max(bands, 1)
        left = x + width * share * band if upright and bands else x
        top = height / 2 if upright or not bands else height / 2 - height * share * band
        w = width * share if upright and bands else width
        h = height if upright or not bands else height * share
        blue = band == 0 and (bands > 1 or not bands and upright)
        axes.add_patch(Rectangle((left, top - h), w, h, fc=BLUE if blue else PALE, ec="white"))
    axes.text(x + width / 2, height / 2 + 0.12, title, ha="center", fontsize=9, color=INK)


def cache_by_ranks(models: "dict[str, tuple[int, int, int]]", most: int = 16) -> "Figure":
    """Bytes of a token's keys and values on each rank, against the number of ranks.

    models: {title: (L layers, G kv heads, numbers of a head and layer)}, 2 bytes a number
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.0), layout="constrained")
    counts = [2 ** i for i in range(most.bit_length())]
    for (title, (L, G, numbers)), colour in zip(models.items(), (BLUE, RED, INK), strict=False):
        sizes = [2 * L * numbers * max(1, G / n) / 1e3 for n in counts]
        axes.plot(counts, sizes, "o-", color=colour, ms=4)
        axes.annotate(title, (counts[-1], sizes[-1]), xytext=(6, 0), textcoords="offset points",
                      va="center", fontsize=8, color=colour, annotation_clip=False)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, counts)
    axes.set(ylim=(0, None), xlim=(0.9, 2.4 * most), xlabel="ranks", ylabel="kB a token and rank")
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)
