"""Ranks: which sends how many bytes to which, and which does what when."""

from typing import TYPE_CHECKING

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed
from layer3_system.s20_collectives import crossing, ring_seconds, tree_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from lab.judge.ranks import RankRun, Span

__all__ = ["rank_lanes", "rank_matrix", "ring_and_tree", "ring_rounds"]

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
        if colour in map(colour_of, run.spans):
            axes.barh(0, 0, color=colour, label=what)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, handlelength=1, fontsize=8)
    return closed(figure)


def draw_lane(axes: "Axes", y: float, spans: list, last: float) -> None:
    """Bars of one lane. last: the end of the picture, in seconds"""
    for span in spans:
        width = span.ended - span.began
        axes.barh(y, 1e3 * width, 0.16 if span.exchange else 0.3, left=1e3 * span.began,
                  align="edge", color=colour_of(span), edgecolor="white", lw=0.5)
        if width > NARROW * last and not span.exchange:
            axes.text(1e3 * (span.began + width / 2), y + 0.15, span.name, ha="center",
                      va="center", fontsize=7, color="white")


def colour_of(span: "Span") -> str:
    return GREY if span.name == "recv" else RED if span.exchange else BLUE


def ring_rounds(n: int) -> "Figure":
    """An all-reduce by a ring, round by round: a row a rank, n boxes of its array.
    Each box has the number of terms in its sum; the darker, the more.
    Red frame: sent to the next rank in the round.
    """
    import matplotlib.pyplot as plt

    rounds = list(ring_states(n))
    figure, every = plt.subplots(1, len(rounds), figsize=(7.5, 0.75 + 0.42 * n),
                                 layout="constrained")
    titles = {0: "at first", n - 1: "pieces summed", 2 * n - 2: "all have all"}
    for turn, (axes, (terms, out)) in enumerate(zip(every, rounds, strict=True)):
        draw_boxes(axes, terms, out)
        axes.set_title(titles.get(turn, f"after {turn}"), fontsize=8, color=INK)
        if turn == 0:
            axes.set_yticks([r + 0.4 for r in range(n)], [f"rank {r}" for r in range(n)],
                            fontsize=8)
    sent = sum(bool(out) for _, out in rounds)
    figure.supxlabel(f"each rank sends one piece a round: {sent} in all, each 1/{n} of the array",
                     fontsize=8, color=GREY)
    return closed(figure)


def ring_states(n: int) -> "Iterator[tuple[list[list[int]], dict[int, int]]]":
    """What ranks hold before each round and at the end, and the piece that each sends in it.

    ([rank][piece]: terms in the sum, {rank: piece})
    """
    terms = [[1] * n for _ in range(n)]
    for turn in range(2 * n - 2):
        back = turn + 1 if turn < n - 1 else turn - n + 1       # two tours, n - 1 rounds each
        out = {r: (r - back) % n for r in range(n)}
        yield [list(row) for row in terms], out
        for (r, p), came in {(r, p): terms[r][p] for r, p in out.items()}.items():
            right = (r + 1) % n
            terms[right][p] = came if came == n else came + terms[right][p]
    yield terms, {}


def draw_boxes(axes: "Axes", terms: list[list[int]], out: dict[int, int]) -> None:
    """The arrays of all ranks at one moment."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    n = len(terms)
    for (r, p), count in np.ndenumerate(np.array(terms)):
        leaves = out.get(r) == p
        shade = plt.get_cmap("Blues")(0.12 + 0.68 * count / n)
        axes.add_patch(Rectangle((p, r), 0.9, 0.8, fc=shade,
                                 ec=RED if leaves else "white", lw=2 if leaves else 0.5))
        axes.text(p + 0.45, r + 0.42, count, ha="center", va="center", fontsize=8,
                  color="white" if count > n / 2 else INK)
    axes.set(xlim=(-0.15, n), ylim=(n, -0.2), xticks=[], yticks=[])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def ring_and_tree(n: int, sizes: list[int], shared: dict[str, list[float]], alpha: float,
                  beta: float, wired_sizes: list[int], wired: dict[str, list[float]],
                  wire: tuple[float, float]) -> "Figure":
    """Time against bytes at n ranks.
    Left: on shared cores, both axes logarithmic, with the line of alpha and beta.
    Right: on wires, with the lines of both sums; dashed, where these cross.

    shared, wired: {"message", "ring" or "tree": [seconds of each size]}; wire: alpha and beta of it
    """
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.4), layout="constrained")
    draw_shared(left, sizes, shared, alpha, beta)
    draw_wired(right, n, wired_sizes, wired, wire)
    for axes, title in ((left, "shared cores"), (right, "a wire for each rank")):
        axes.set_title(title, loc="left", fontsize=9, color=INK)
        axes.set(xlabel="bytes of the array", ylabel="ms")
        axes.grid(which="major", color="#eaeef2")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3,
                  frameon=False, fontsize=8)
    return closed(figure)


def draw_shared(axes: "Axes", sizes: list[int], seconds: dict[str, list[float]], alpha: float,
                beta: float) -> None:
    """Dots of messages and sums, and the line of a message."""
    from matplotlib.ticker import LogLocator

    for name, colour, label in (("ring", BLUE, "sum by ring"), ("tree", RED, "sum by tree"),
                                ("message", INK, "one message")):
        axes.loglog(sizes, [1e3 * t for t in seconds[name]], "o", color=colour, ms=5, label=label)
    x = np.geomspace(min(sizes), max(sizes), 100)
    axes.loglog(x, 1e3 * (alpha + x * beta), color=INK, lw=1.5)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")


def draw_wired(axes: "Axes", n: int, sizes: list[int], seconds: dict[str, list[float]],
               wire: tuple[float, float]) -> None:
    """Dots and lines of both sums, and where the lines cross."""
    x = np.geomspace(min(sizes), max(sizes), 100)
    for name, formula, colour in (("ring", ring_seconds, BLUE), ("tree", tree_seconds, RED)):
        axes.semilogx(x, [1e3 * formula(n, S, *wire) for S in x], color=colour, lw=1.5)
        axes.semilogx(sizes, [1e3 * t for t in seconds[name]], "o", color=colour, ms=5)
    S = crossing(n, *wire)
    axes.axvline(S, color=GREY, lw=1, ls="--")
    axes.annotate(f"lines cross\nat {S / 1e3:,.0f} kB", (S, 0.97), xytext=(-5, 0),
                  xycoords=("data", "axes fraction"), textcoords="offset points",
                  color=GREY, ha="right", va="top")
    axes.set_ylim(bottom=0)
