"""Ranks: who sends how many bytes to whom, and who does what when."""

from typing import TYPE_CHECKING

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from lab.judge.ranks import RankRun

__all__ = ["rank_lanes", "rank_matrix"]

NARROW = 0.06           # share of the time that a span needs to hold its name


def rank_matrix(runs: "dict[str, RankRun] | RankRun") -> "Figure":
    """Bytes from each rank (a row) to each (a column), the darker the more; a panel a run.

    runs: a RankRun, or {title: RankRun}
    """
    import matplotlib.pyplot as plt

    runs = runs if isinstance(runs, dict) else {"": runs}
    matrices = {title: run.matrix() for title, run in runs.items()}             # each (n, n)
    most = max(1, *(int(matrix.max()) for matrix in matrices.values()))
    figure, every = plt.subplots(1, len(runs), squeeze=False, layout="constrained",
                                 figsize=(0.7 + 2.3 * len(runs), 2.7))
    for axes, (title, matrix) in zip(every[0], matrices.items(), strict=True):
        axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1.3 * most)
        for (r, q), count in np.ndenumerate(matrix):
            label = f"{count:,}" if count else "·"
            axes.text(q, r, label, ha="center", va="center", fontsize=8,
                      color=INK if count < 0.7 * most else "white")
        ranks = range(len(matrix))
        axes.set_xticks(ranks, ranks)
        axes.set_yticks(ranks, ranks)
        axes.set_title(f"{title}\n{int(matrix.sum()):,} bytes" if title else "", loc="left",
                       fontsize=9, color=INK)
        axes.set(xlabel="to rank", ylabel="from rank")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return closed(figure)


def rank_lanes(run: "RankRun") -> "Figure":
    """What each rank did when, from a RankRun with spans: two lanes a rank, computing (blue) above
    the exchange of data (red: sends and collectives; grey: receives, which begin to wait early).
    """
    import matplotlib.pyplot as plt

    if not run.spans:
        raise ValueError("rank_lanes: this run has no spans: ask for ranks(…, spans=True)")
    last = max(span.ended for span in run.spans)
    figure, axes = plt.subplots(figsize=(7.5, 0.8 + 0.62 * run.n), layout="constrained")
    for rank in range(run.n):
        own = [span for span in run.spans if span.rank == rank]
        draw_lane(axes, rank - 0.36, [s for s in own if not s.exchange], last)
        draw_lane(axes, rank + 0.0, [s for s in own if s.exchange and s.name != "recv"], last)
        draw_lane(axes, rank + 0.2, [s for s in own if s.name == "recv"], last)
    axes.set(xlim=(0, 1e3 * last), ylim=(run.n - 0.5, -0.5), xlabel="ms")
    axes.set_yticks(range(run.n), [f"rank {r}" for r in range(run.n)])
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    for what, colour in (("computes", BLUE), ("sends, collective", RED), ("receives", GREY)):
        axes.barh(0, 0, color=colour, label=what)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, handlelength=1, fontsize=8)
    return closed(figure)


def draw_lane(axes: "Axes", y: float, spans: list, last: float) -> None:
    """Bars of one lane. last: the end of the picture, in seconds"""
    for span in spans:
        colour = GREY if span.name == "recv" else RED if span.exchange else BLUE
        width = span.ended - span.began
        axes.barh(y, 1e3 * width, 0.16 if span.exchange else 0.3, left=1e3 * span.began,
                  align="edge", color=colour, edgecolor="white", lw=0.5)
        if width > NARROW * last and not span.exchange:
            axes.text(1e3 * (span.began + width / 2), y + 0.15, span.name, ha="center",
                      va="center", fontsize=7, color="white")
