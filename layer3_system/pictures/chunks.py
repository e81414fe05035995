"""Chunks: a prompt in steps that other requests share, and what a chunk's size gains and costs.

N: tokens of a prompt
"""

from itertools import accumulate
from typing import TYPE_CHECKING

from lab.plots import BLUE, GREY, INK, RED, closed
from layer3_system.s05_chunked_prefill import SweepPoint, chunks_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def chunk_steps(N: int, decodes: int, chunks: list[int], plain: int = 2) -> "Figure":
    """A prompt beside requests that decode, in chunks of several sizes, a panel for each: a lane a
    request, and each step as wide as it has tokens.

    N: tokens of the prompt    decodes: requests that decode    chunks: sizes
    plain: steps before the prompt comes.
    Red: the longest time between two tokens of an answer.
    """
    import matplotlib.pyplot as plt

    runs = {chunk: [0] * plain + chunks_of(N, decodes, N + decodes, chunk) for chunk in chunks}
    steps = max(map(len, runs.values())) + 1
    width = N + decodes * steps
    figure, every = plt.subplots(len(runs), 1, sharex=True, layout="constrained",
                                 figsize=(7.5, len(runs) * (0.55 + 0.24 * (decodes + 1)) + 0.35))
    for axes, (chunk, counts) in zip(every, runs.items(), strict=True):
        draw_steps(axes, counts + [0] * (steps - len(counts)), decodes)
        title = "the whole prompt in one step" if chunk >= N else f"in chunks of {chunk}"
        axes.set_title(f"{title}: an answer waits for at most {decodes + max(counts)} tokens",
                       loc="left", fontsize=9, color=INK)
        axes.set(xlim=(0, width), ylim=(decodes + 1.1, -0.5))
        axes.set_yticks([y + 0.5 for y in range(decodes + 1)],
                        ["prompt", *(f"answer {i}" for i in range(decodes))], fontsize=8)
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
    every[-1].set_xlabel("tokens computed so far", fontsize=9)
    return closed(figure)


def draw_steps(axes: "Axes", counts: list[int], decodes: int) -> None:
    """The steps of one panel. counts: tokens of the prompt in each step"""
    from matplotlib.patches import Rectangle

    ends = list(accumulate(n + decodes for n in counts))
    longest = max(counts)
    for n, end in zip(counts, ends, strict=True):
        begin = end - n - decodes
        if n:
            axes.add_patch(Rectangle((begin + 0.12, 0.1), end - begin - 0.24, 0.8, fc=INK))
            axes.text((begin + end) / 2, 0.48, f"{n}", ha="center", va="center", fontsize=8,
                      color="white")
        for y in range(1, decodes + 1):
            axes.add_patch(Rectangle((begin + 0.12, y + 0.1), end - begin - 0.24, 0.8, fc=BLUE))
    at = counts.index(longest)
    axes.annotate("", (ends[at], -0.2), (ends[at] - longest - decodes, -0.2),
                  arrowprops={"arrowstyle": "<->", "lw": 1.3, "color": RED, "shrinkA": 0,
                              "shrinkB": 0})


def sweep_curves(title: str, sweep: dict[int, SweepPoint], free: int | None = None) -> "Figure":
    """Throughput above and gaps below, against the size of a chunk on a logarithmic axis.

    sweep: {chunk: SweepPoint}, ascending; the last is the whole prompt
    free: prompt tokens that fit into the time in which a step's bytes are moved; marked
    """
    import matplotlib.pyplot as plt

    chunks = list(sweep)
    rows = list(sweep.values())
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(7.5, 5), layout="constrained")
    above.plot(chunks, [point.rate for point in rows], "o-", color=BLUE, lw=2, ms=5)
    for name, colour, mark in (("p95", INK, "s-"), ("longest", RED, "o--")):
        gaps = [getattr(point, name) * 1e3 for point in rows]
        below.plot(chunks, gaps, mark, color=colour, lw=1.8, ms=5, label=name)
    for axes in (above, below):
        axes.set_ylim(0)
        axes.grid(color="#eaeef2")
        axes.spines[["top", "right"]].set_visible(False)
        if free:
            axes.axvline(free, color=GREY, lw=1, ls=":")
    if free:
        above.annotate(f"{free} prompt tokens fit into the memory time", (free, 0), xytext=(5, 8),
                       color=GREY, textcoords="offset points")
    above.set(title=title, ylabel="tokens a second")
    above.yaxis.set_major_formatter("{x:,.0f}")
    below.set(ylabel="gap, ms", xlabel="tokens of a chunk")
    below.legend(frameon=False)
    draw_sizes(below, chunks)
    return closed(figure)


def draw_sizes(axes: "Axes", chunks: list[int]) -> None:
    """The logarithmic axis of chunk sizes, a tick for each."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(chunks, [*map(str, chunks[:-1]), f"{chunks[-1]}\nwhole"])
    axes.minorticks_off()
