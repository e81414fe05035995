"""Expert parallelism: which rows travel, whose experts are busy, what two ways send."""

from typing import TYPE_CHECKING

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

PALE = "#d0d7de"
SHADES = ("#0969da", "#54aeff")         # of a rank's experts, in turn


def row_matrix(panels: "dict[str, Tensor]") -> "Figure":
    """Rows from each rank (a row) to the experts of each (a column), the darker the more; grey on
    the diagonal: they stay.
    Below, bars of what each rank's experts compute.

    panels: {title: (W, W)}
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(2, len(panels), squeeze=False, layout="constrained",
                                 figsize=(0.8 + 3.1 * len(panels), 4.3), height_ratios=(2.4, 1))
    for above, below, (title, rows) in zip(*every, panels.items(), strict=True):
        rows = np.asarray(rows)
        draw_rows(above, rows)
        above.set_title(title, loc="left", fontsize=10, color=INK)
        totals = rows.sum(0)
        below.bar(range(len(rows)), totals, 0.6, color=[
            RED if total == totals.max() else BLUE for total in totals])
        below.axhline(totals.mean(), color=INK, lw=1, ls=":")
        below.annotate(f"busiest: {totals.max() / totals.mean():.2f} × the mean", (0, 1.0),
                       xycoords="axes fraction", xytext=(0, 4), textcoords="offset points",
                       fontsize=8, color=RED)
        below.set(xlim=above.get_xlim(), xticks=range(len(rows)), xlabel="rank",
                  ylabel="rows computed")
        below.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def draw_rows(axes: "Axes", rows: np.ndarray) -> None:
    """The matrix of one panel."""
    away = np.where(np.eye(len(rows), dtype=bool), np.nan, rows)
    axes.set_facecolor(PALE)
    axes.imshow(away, cmap="Blues", vmin=0, vmax=1.3 * np.nanmax(away), aspect="auto")
    for (r, q), count in np.ndenumerate(rows):
        dark = r != q and count > 0.8 * np.nanmax(away)
        axes.text(q, r, f"{count:,}", ha="center", va="center", fontsize=9,
                  color="white" if dark else GREY if r == q else INK)
    ranks = range(len(rows))
    axes.set_xticks(ranks)
    axes.set_yticks(ranks)
    axes.set(xlabel="to the experts of rank", ylabel="from rank")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def expert_loads(panels: "dict[str, tuple[list[int], list[list[int]]]]") -> "Figure":
    """Rows that each rank computes: a bar a rank, a box an expert with its number, a panel a way.
    Red: the busiest rank; dotted: the mean.

    panels: {title: (rows of each expert, the experts of each rank)}
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(panels), sharey=True, squeeze=False, layout="constrained",
                                 figsize=(0.8 + 2.6 * len(panels), 3.3))
    for axes, (title, (loads, ranks)) in zip(every[0], panels.items(), strict=True):
        totals = [sum(loads[e] for e in own) for own in ranks]
        mean = sum(totals) / len(totals)
        for r, own in enumerate(ranks):
            bottom = 0.0
            for i, e in enumerate(own):
                share = loads[e] / mean
                axes.bar(r, share, 0.7, bottom, color=SHADES[i % 2], edgecolor="white")
                axes.text(r, bottom + share / 2, f"{e}", ha="center", va="center", fontsize=8,
                          color="white" if i % 2 == 0 else INK)
                bottom += share
        busiest = int(np.argmax(totals))
        axes.annotate(f"{max(totals) / mean:.2f}", (busiest, max(totals) / mean), xytext=(0, 3),
                      textcoords="offset points", ha="center", fontsize=9, color=RED)
        axes.axhline(1, color=INK, lw=1, ls=":", zorder=0)      # behind the bars and their numbers
        axes.set_title(title, loc="left", fontsize=9, color=INK)
        axes.set(xlabel="rank", xticks=range(len(ranks)))
        axes.tick_params(length=0)
        axes.spines[["top", "right"]].set_visible(False)
    every[0][0].set_ylabel("rows computed, over the mean")
    every[0][0].set_ylim(0, 1.12 * every[0][0].get_ylim()[1])
    return closed(figure)


def rows_by_k(counted: dict[str, dict[int, float]], W: int, others: tuple[int, ...]) -> "Figure":
    """Rows that a rank sends for a token, there and back, by the experts that a token chooses.
    Lines: even routing; EP falls below TP left of the circle, k = W. Crosses: counted on W ranks.

    counted: {"EP" or "TP": {k: rows}}    others: more numbers of ranks to draw
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
    k = np.geomspace(1, 64, 100)
    for n, colour in zip((W, *others), (BLUE, INK, GREY), strict=False):
        axes.loglog(k, 2 * k * (n - 1) / n, color=colour, lw=1.5)
        axes.loglog(k, np.full_like(k, 2 * (n - 1)), color=colour, lw=1.5, ls="--")
        axes.loglog(n, 2 * (n - 1), "o", color=colour, mfc="white", ms=7)
        axes.annotate(f"TP, {n} ranks", (1, 2 * (n - 1)), xytext=(2, 4), fontsize=8, color=colour,
                      textcoords="offset points")
    for (name, points), mark in zip(counted.items(), ("x", "+"), strict=True):
        axes.loglog(list(points), list(points.values()), mark, color=RED, ms=8,
                    label=f"{name}, counted on {W} ranks")
    axes.plot([], [], color=INK, label="EP, even routing")
    axes.plot([], [], color=INK, ls="--", label="TP")
    axes.set(xlabel="k, experts that a token chooses", ylabel="rows a token")
    axes.set_xticks([1, 2, 4, 8, 16, 32, 64])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(plt.NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return closed(figure)
