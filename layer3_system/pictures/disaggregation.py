"""Prompts and answers apart: token times, layers on the wire, goodput by load."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lab.plots import BLUE, GREY, INK, RED, closed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def token_ticks(rows: dict[str, Sequence[float]]) -> "Figure":
    """When the tokens of an answer come, a tick each; the longest gap of a row is red.

    rows: {label: [seconds]}, ascending
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 0.9 + 0.75 * len(rows)), layout="constrained")
    for y, times in enumerate(rows.values()):
        gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
        at = gaps.index(max(gaps))
        axes.barh(y, gaps[at], left=times[at], height=0.5, color=RED, alpha=0.35, lw=0)
        axes.vlines(times, y - 0.25, y + 0.25, color=BLUE, lw=0.9)
        axes.annotate(f"longest gap {1e3 * gaps[at]:.0f} ms", (times[at], y - 0.3), color=INK,
                      fontsize=9, va="bottom")
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel="seconds", ylim=(len(rows) - 0.55, -0.75))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return closed(figure)


def wire_lanes(lanes: dict[str, Sequence[tuple[float, float]]]) -> "Figure":
    """Layers, computed and on the wire; what is sent after the last is computed is red.

    lanes: {label: [(begin, end) of each layer, seconds]}, the computing first
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 0.9 + 0.6 * len(lanes)), layout="constrained")
    computed, *_ = lanes.values()
    over = computed[-1][1]
    for y, spans in enumerate(lanes.values()):
        for begin, end in spans:
            colour = GREY if spans is computed else RED if end > over else BLUE
            axes.barh(y, 1e3 * (end - begin), left=1e3 * begin, height=0.6, color=colour,
                      edgecolor="white", lw=0.6)
    axes.axvline(1e3 * over, color=INK, lw=1, ls="--")
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set(xlabel="milliseconds", ylim=(len(lanes) - 0.5, -0.5))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return closed(figure)


def goodput_panels(panels: dict[str, dict[str, Sequence[float]]]) -> "Figure":
    """Requests within the objective against those offered, a panel for each kind of load.

    panels: {title: {"offered", "together", "split": [requests a second]}}
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(panels), figsize=(9, 3.2), squeeze=False,
                                 layout="constrained")
    for axes, (title, curves) in zip(every[0], panels.items(), strict=True):
        offered = curves["offered"]
        axes.plot(offered, offered, color=GREY, lw=1, ls=":")
        for name, mark, colour in (("together", "s--", RED), ("split", "o-", BLUE)):
            axes.plot(offered, curves[name], mark, color=colour, lw=1.8, ms=4, label=name)
        axes.set(title=title, xlabel="requests a second, offered", ylim=(0, None))
        axes.title.set_fontsize(9)
        axes.grid(color="#eaeef2")
        axes.spines[["top", "right"]].set_visible(False)
    every[0][0].set_ylabel("a second, within the objective")
    every[0][0].legend(frameon=False, fontsize=9)
    return closed(figure)
