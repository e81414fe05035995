"""Shares of tokens: which a sampler keeps, where a number falls; and the way of a request."""

from typing import TYPE_CHECKING

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed
from layer3_system.s01_request import draw, keep_top_k, keep_top_p

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALE = "#d0d7de"
# The way of a request: (column, row, what, is it written in s01?), in order
STATIONS = [(0, 2, "prompt", False), (1, 2, "tokenizer", False), (2, 2, "tokens", False),
            (3, 2, "model", False), (4, 2, "logits", False), (4, 1, "temperature,\ntop-k", False),
            (3, 1, "top-p", True), (2, 1, "draw", True), (1, 1, "token", False),
            (1, 0, "Detokenizer", True), (2, 0, "StopStrings", True), (3, 0, "text", False),
            (4, 0, "client", False)]


def request_loop() -> "Figure":
    """The way of a request from its prompt to its client, with the loop over tokens; blue: written
    in s01."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 2.9), layout="constrained")
    places = [(x, y) for x, y, *_ in STATIONS]
    random = (2.45, 1.55)
    ways = [*zip(places, places[1:], strict=False), ((1, 1), (2, 2)), (random, (2, 1))]
    for begin, end in ways:
        gap = 35 if begin[1] == end[1] else 20                      # points
        axes.annotate("", end, begin, arrowprops={"arrowstyle": "->", "color": GREY, "lw": 1.4,
                                                  "shrinkA": gap, "shrinkB": gap})
    for x, y, what, own in STATIONS:
        axes.text(x, y, what, ha="center", va="center", fontsize=9, color="white" if own else INK,
                  bbox={"boxstyle": "round,pad=0.4", "fc": BLUE if own else PALE, "ec": "none"})
    axes.text(*random, "u = uniform(seed, …)", ha="left", va="center", fontsize=8, color=INK)
    axes.set(xlim=(-0.45, 4.5), ylim=(-0.35, 2.35))
    axes.axis("off")
    return closed(figure)


def share_line(logits: list[float], p: float, u: float) -> "Figure":
    """The shares of tokens end to end, of all and of those that top-p keeps, and where u falls.

    logits: of token 0, 1, …    u: in [0, 1)
    The token that it draws is dark.
    """
    import matplotlib.pyplot as plt

    z = np.array(logits)                                            # (V,)
    figure, axes = plt.subplots(figsize=(7.5, 1.9), layout="constrained")
    for y, row in enumerate((z, keep_top_p(z, p))):
        draw_line(axes, y, row, u)
    axes.axvline(u, color=RED, lw=1.5)
    axes.annotate(f"u = {u}", (u, -0.45), xytext=(4, 0), textcoords="offset points", color=RED,
                  fontsize=9, va="bottom")
    axes.set_yticks([0, 1], ["all", f"top-p {p:g}"], fontsize=9)
    axes.set(xlim=(0, 1), ylim=(1.45, -0.75))
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    return closed(figure)


def draw_line(axes: "Axes", y: float, z: np.ndarray, u: float) -> None:
    """One line from 0 to 1, a box for each token's share."""
    shares = np.exp(z - z.max()) / np.exp(z - z.max()).sum()        # (V,)
    begin = 0.0
    for token, share in enumerate(shares.tolist()):
        dark = token == draw(z, u)
        axes.barh(y, share, 0.62, left=begin, color=BLUE if dark else PALE, edgecolor="white")
        if share > 0.04:
            narrow = share < 0.1
            axes.text(begin + share / 2, y, f"token {token}\n{share:.2f}", ha="center",
                      va="center", fontsize=7 if narrow else 8, rotation=90 if narrow else 0,
                      color="white" if dark else INK)
        begin += share


def kept_shares(logits: dict[str, float], k: int, p: float) -> "Figure":
    """From logits to shares, and which of them top-k and top-p keep: four panels, a bar a token.

    logits: {token: its score}    k, p: of top-k and top-p. Blue: kept, with its share of all that
    is kept.
    Red, dashed: cut, with the share that it had.
    """
    import matplotlib.pyplot as plt

    z = np.array(list(logits.values()))                             # (V,)
    panels = {"logit": z, "share of all, %": z, f"top-k, k = {k}, %": keep_top_k(z, k),
              f"top-p, p = {p:g}, %": keep_top_p(z, p)}
    figure, every = plt.subplots(1, len(panels), sharey=True, layout="constrained",
                                 figsize=(7.5, 0.7 + 0.26 * len(z)))
    whole = 100 * np.exp(z) / np.exp(z).sum()                       # (V,)
    for axes, (title, some) in zip(every, panels.items(), strict=True):
        values = z if title == "logit" else 100 * np.exp(some) / np.exp(some).sum()
        for y, value in enumerate(values):
            cut = np.isinf(some[y])
            axes.barh(y, whole[y] if cut else value, height=0.7, fc="white" if cut else BLUE,
                      ec=RED if cut else BLUE, ls="--" if cut else "-")
            number = f"{value:.1f}" if title == "logit" else f"{value:.0f}"
            label = "cut" if cut else number.replace("-", "−")
            axes.annotate(label, (max(whole[y] if cut else value, 0), y), xytext=(4, 0),
                          textcoords="offset points", va="center", fontsize=8,
                          color=RED if cut else INK)
        axes.set_title(title, loc="left", fontsize=10, color=INK)
        axes.set(xlim=(min(0, *values), 1.35 * max(values)), xticks=[])
        axes.axvline(0, color=GREY, lw=0.8)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    every[0].set_yticks(range(len(logits)), logits, fontsize=9)
    every[0].invert_yaxis()
    return closed(figure)
