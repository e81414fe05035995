"""Plans: what each kind of parallelism does to a token, plans by bytes and seconds, their parts."""

from typing import TYPE_CHECKING, Any

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed
from layer3_system.planner import Cluster
from layer3_system.token_costs import TokenCost

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHADES = {"compute": "#24292f", "tp": "#0969da", "cp": "#54aeff", "ep": "#8250df",
          "bubble": "#cf222e", "pp": "#bf8700", "dp": "#8c959f"}
CUTS = {"dp": "the sequences", "zero": "… and the optimiser", "fsdp": "… and weights, at rest",
        "tp": "each matrix", "sp": "tokens between matrices", "pp": "the layers",
        "cp": "the context", "ep": "the experts"}
COLUMNS = ("seconds", "bytes", "sent")
BEHIND = {"facecolor": "white", "lw": 0, "pad": 1}      # of a label that lies on lines or dots


def kind_grid(costs: dict[str, TokenCost], hidden: bool = False) -> "Figure":
    """Eight kinds of parallelism: what each cuts, and what it does to one token.
    Blue: less than
    on one rank, red: more. hidden: with question marks in place of the numbers."""
    import matplotlib.pyplot as plt

    one = costs["one rank"]
    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    for y, (kind, words) in enumerate(CUTS.items()):
        axes.text(-1.25, y, kind, va="center", ha="right", fontsize=10, color=INK, weight="bold")
        axes.text(-1.1, y, words, va="center", fontsize=9, color=GREY)
        for x, column in enumerate(COLUMNS):
            value = getattr(costs[kind], column)
            before = getattr(one, column)
            colour = "#f6f8fa"
            if not hidden and abs(value - before) > 0.05 * max(value, before):
                colour = "#b6d4fb" if value < before else "#ffc9c4"
            axes.add_patch(plt.Rectangle((x + 0.02, y - 0.46), 0.96, 0.92, fc=colour))
            axes.text(x + 0.5, y, "?" if hidden else written(column, value), va="center",
                      ha="center", fontsize=9, color=INK)
    for x, title in enumerate(("time of a token", "bytes on a rank", "bytes that it sends")):
        axes.text(x + 0.5, -0.75, title, ha="center", fontsize=9, color=INK)
    axes.set(xlim=(-1.75, 3), ylim=(len(CUTS) - 0.4, -1.1))
    axes.axis("off")
    return closed(figure)


def written(column: str, value: float) -> str:
    """A number with its unit."""
    if column == "seconds":
        return f"{1e3 * value:.2f} ms"
    unit, name = next(row for row in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (0, "B"))
                      if value >= row[0])
    return f"{value / unit:.1f} {name}" if unit else f"{value:.0f}"


def plan_cloud(points: list[tuple[float, float]], cluster: Cluster,
               marks: dict[str, tuple[float, float]]) -> "Figure":
    """Plans as dots: bytes on the fullest rank, and seconds of a step.
    Dotted: a rank's memory; what is to its right does not fit.
    Rings: marks.

    points: [(bytes, seconds), …]    marks: {name: (bytes, seconds)}
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    size, seconds = np.array(points).T
    axes.loglog(size / 1e9, seconds, ".", color=BLUE, ms=3)
    axes.axvline(cluster.memory / 1e9, color=INK, lw=1, ls=":")
    for name, (x, y) in marks.items():
        axes.loglog(x / 1e9, y, "o", color=RED, mfc="none", ms=11)
        axes.annotate(name, (x / 1e9, y), xytext=(9, -12), textcoords="offset points",
                      fontsize=9, color=RED, bbox=BEHIND)
    axes.set(xlabel="GB on the fullest rank", ylabel="seconds of a step")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.annotate("memory", (cluster.memory / 1e9, 1), xycoords=("data", "axes fraction"),
                  xytext=(4, -10), textcoords="offset points", fontsize=9, color=INK)
    return closed(figure)


def step_bars(rows: dict[str, dict[str, float]]) -> "Figure":
    """The parts of a step, one after another: a bar a plan, seconds."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 0.9 + 0.5 * len(rows)), layout="constrained")
    for y, parts in enumerate(rows.values()):
        left = 0.0
        for part, seconds in parts.items():
            axes.barh(y, seconds, 0.62, left, color=SHADES[part],
                      label=part if y == 0 and any(row[part] for row in rows.values()) else None)
            if seconds > 0.04 * sum(parts.values()):
                axes.text(left + seconds / 2, y, f"{seconds:.1f}", ha="center", va="center",
                          fontsize=8, color="white")
            left += seconds
    axes.set_yticks(range(len(rows)), rows, fontsize=9)
    axes.invert_yaxis()
    axes.set(xlabel="seconds of a step")
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, ncols=len(SHADES), loc="lower left",
                bbox_to_anchor=(0, 1))
    return closed(figure)


def measured_plans(rows: list[dict[str, Any]]) -> "Figure":
    """Plans from the fastest prediction down: grey the predicted seconds of a step, blue the
    measured ones, on a logarithmic scale.    rows: of bench/s26_planner.json"""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.8, 3.2), layout="constrained")
    for y, row in enumerate(rows):
        axes.plot([row["predicted"], row["median"]], [y, y], color=GREY, lw=1, zorder=1)
    for name, field, colour in (("predicted", "predicted", GREY), ("measured", "median", BLUE)):
        axes.scatter([row[field] for row in rows], range(len(rows)), s=45, color=colour, zorder=2,
                     label=name)
    ticks = (0.5, 1, 2, 3, 4, 5)
    axes.set_xscale("log")
    axes.set_xticks(ticks, map(str, ticks))
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), [row["plan"] for row in rows], fontsize=9)
    axes.set(xlabel="seconds of a step", ylim=(len(rows) - 0.5, -0.5))
    axes.legend(frameon=False, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def serving_lines(lines: dict[int, list[tuple[float, float]]]) -> "Figure":
    """Tokens a second of a GPU against tokens a second of one user, a line for each tp, a dot for
    each batch.

    lines: {tp: [(of a user, of a GPU), …]}
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    for (tp, pairs), colour in zip(lines.items(), (INK, GREY, BLUE, RED), strict=False):
        user, gpu = np.array(pairs).T
        axes.plot(user, gpu, ".-", color=colour, lw=1.2, ms=4)
        axes.annotate(f"tp {tp}", (user[0], gpu[0]), xytext=(-5, 0), ha="right", va="center",
                      fontsize=9, color=colour, textcoords="offset points", bbox=BEHIND)
    axes.set(xlabel="tokens a second of one user", ylabel="tokens a second of a GPU",
             yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)
