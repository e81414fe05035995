"""Shares of tokens: which of them a sampler keeps."""

from typing import TYPE_CHECKING

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed
from layer3_system.s01_request import keep_top_k, keep_top_p

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def kept_shares(logits: dict[str, float], k: int, p: float) -> "Figure":
    """From logits to shares, and which of them top-k and top-p keep: four panels, a bar a token.

    logits: {token: its score}    k, p: of top-k and top-p. Blue: kept, with its share of all that
    is kept. Red, dashed: cut, with the share that it had.
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
