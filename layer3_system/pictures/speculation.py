"""Guesses: which held, step by step, and how much they speed up a step."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALE = "#d0d7de"
Step = tuple[list[str], list[str], str]     # guesses that held, refused ones, the model's own token


def guess_ribbons(texts: dict[str, list[Step]]) -> "Figure":
    """Texts as they are written, a row a step: blue, guesses that held; dark, the model's own
    token; pale and dashed, refused guesses.

    texts: {title: [(guesses that held, refused ones, the model's own token)]}
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    rows = max(map(len, texts.values()))
    figure, every = plt.subplots(1, len(texts), layout="constrained", squeeze=False,
                                 figsize=(7.5, 0.75 + 0.25 * rows))
    for axes, (title, steps) in zip(every[0], texts.items(), strict=True):
        for y, (hits, refused, own) in enumerate(steps):
            cells = [*((word, BLUE, BLUE, "white") for word in hits), (own, INK, INK, "white"),
                     *((word, "white", PALE, GREY) for word in refused)]
            for x, (word, fill, edge, colour) in enumerate(cells):
                axes.add_patch(Rectangle((x + 0.03, y + 0.08), 0.94, 0.84, fc=fill, ec=edge,
                                         ls="--" if fill == "white" else "-"))
                axes.text(x + 0.5, y + 0.5, word.strip() or "␣", ha="center", va="center",
                          color=colour, fontsize=6.5, clip_on=True)
        tokens = sum(len(hits) + 1 for hits, _, _ in steps)
        axes.set_title(f"{title}: {tokens / len(steps):.1f} tokens a step", loc="left", fontsize=9,
                       color=INK)
        width = max(len(hits) + len(refused) + 1 for hits, refused, _ in steps)
        axes.set(xlim=(0, width), ylim=(rows, 0), xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    every[0][0].set_ylabel("step", fontsize=9)
    return closed(figure)


def byte_bars(parts: dict[str, dict[str, float]]) -> "Figure":
    """Bytes that a step reads, a bar a step, cut into what they are of.

    parts: {step: {what: bytes}}
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 0.7 + 0.4 * len(parts)), layout="constrained")
    colours = dict(zip(next(iter(parts.values())), (BLUE, RED, INK), strict=False))
    for y, row in enumerate(parts.values()):
        left = 0.0
        for what, size in row.items():
            axes.barh(y, size / 1e9, left=left, color=colours[what], height=0.6,
                      label=None if y else what)
            left += size / 1e9
        axes.annotate(f"{left:.2f} GB", (left, y), xytext=(4, 0), textcoords="offset points",
                      va="center", fontsize=9, color=INK)
    axes.set_yticks(range(len(parts)), parts)
    axes.set(xlim=(0, 1.12 * left), xticks=[])
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.02), ncols=3, fontsize=8)
    return closed(figure)


def speedup_curves(curves: dict[str, Callable[[int], float]], most: int,
                   dots: dict[str, dict[int, float]] | None = None) -> "Figure":
    """How much faster a step with γ guesses is than one without, for γ from 0 to `most`.

    curves: {name: from γ to the ratio}, up to four    dots: {name of a curve: {γ: measured}}
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    x = np.arange(most + 1)
    for (name, curve), colour in zip(curves.items(), (BLUE, INK, RED, GREY), strict=False):
        axes.plot(x, [curve(int(n)) for n in x], "-", color=colour, lw=1.8, label=name)
        own = (dots or {}).get(name, {})
        axes.plot(list(own), list(own.values()), "o", color=colour, ms=6)
    axes.axhline(1, color=GREY, lw=1, ls="--")
    axes.set(xlabel="guesses in a step, γ", ylabel="tokens a second ÷ without guesses", xticks=x)
    axes.set_ylim(0, None)
    axes.grid(color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return closed(figure)
