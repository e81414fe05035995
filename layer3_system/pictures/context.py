"""Context parallelism: which rank computes which pairs, when, and what it sends."""

from typing import TYPE_CHECKING

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

SHADES = ("#9cd2ff", BLUE, "#0a3069", RED)      # of ranks 0 to 3
PALE = "#d0d7de"


def causal_bands(cuts: "dict[str, Tensor]") -> "Figure":
    """The visible pairs of query (row) and key (column), in the colour of the query's rank; a panel
    a cut. cuts: {title: (W, n) positions of each rank's tokens}, W up to 4"""
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    figure, every = plt.subplots(1, len(cuts), squeeze=False, layout="constrained",
                                 figsize=(0.6 + 2.9 * len(cuts), 3.4))
    for axes, (title, cut) in zip(every[0], cuts.items(), strict=True):
        W, n = cut.shape
        rank = np.empty(W * n, int)
        rank[cut.numpy().ravel()] = np.repeat(np.arange(W), n)
        image = np.where(np.tri(W * n, dtype=bool), rank[:, None] + 1, 0)       # (N, N)
        axes.imshow(image, cmap=ListedColormap(["white", *SHADES[:W]]), vmin=0, vmax=W)
        axes.set_title(title, loc="left", fontsize=9, color=INK)
        axes.set(xlabel="key", ylabel="query", xticks=[], yticks=[])
        axes.spines[:].set_color(PALE)
    figure.legend(handles=[Patch(fc=SHADES[r], label=f"rank {r}") for r in range(W)],
                  loc="outside lower center", ncols=W, frameon=False, handlelength=1, fontsize=8)
    return closed(figure)


def ring_work(cuts: dict[str, list[list[int]]], n: int) -> "Figure":
    """A lane a rank, a bar for what it computes in each round of the ring; a panel a cut.
    A round lasts as long as its busiest rank computes; what stays white is waiting.

    cuts: {title: [round][rank]: pairs of query and key}; drawn in blocks of n · n pairs
    """
    import matplotlib.pyplot as plt

    W = len(next(iter(cuts.values())))
    lengths = {title: sum(map(max, rounds)) / n**2 for title, rounds in cuts.items()}
    figure, every = plt.subplots(len(cuts), 1, sharex=True, squeeze=False, layout="constrained",
                                 figsize=(7.5, 0.7 + len(cuts) * (0.45 + 0.27 * W)))
    for axes, (title, rounds) in zip(every[:, 0], cuts.items(), strict=True):
        begin = 0.0
        for s, pairs in enumerate(rounds):
            for r, count in enumerate(pairs):
                axes.barh(r, count / n**2, 0.82, left=begin, color=SHADES[r], edgecolor="white")
                if count > n**2 / 4:
                    axes.text(begin + count / n**2 / 2, r, f"keys of {(r - s) % W}", ha="center",
                              va="center", fontsize=7, color=INK if r == 0 else "white")
            begin += max(pairs) / n**2
            axes.axvline(begin, color=GREY, lw=0.8, ls=":")
        axes.set_title(f"{title}: {lengths[title]:.2f} blocks long", loc="left", fontsize=9,
                       color=INK)
        axes.set(xlim=(0, 1.02 * max(lengths.values())), ylim=(W - 0.5, -0.5))
        axes.set_yticks(range(W), [f"rank {r}" for r in range(W)], fontsize=8)
        axes.tick_params(length=0, labelsize=8)
        axes.spines[["top", "right", "left"]].set_visible(False)
    every[-1, 0].set_xlabel("blocks of n · n pairs", fontsize=9)
    return closed(figure)


def context_bytes(models: dict[str, tuple[int, int]], N: int, D: int, b: int) -> "Figure":
    """MB that a rank sends in a layer's forward over the number of ranks W, by the ring and by
    Ulysses, which ends at W = G; a panel a model. models: {title: (H, G)}; b: bytes a number"""
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(models), sharey=True, squeeze=False, figsize=(7.5, 3.2),
                                 layout="constrained")
    W = 2 ** np.arange(1, 7)                                # 2 … 64
    for axes, (title, (H, G)) in zip(every[0], models.items(), strict=True):
        ring = 2 * G * D * b * N * (W - 1) / W
        trade = 2 * (H + G) * D * b * N / W * (W - 1) / W
        fits = W <= G
        axes.loglog(W, ring / 1e6, "o-", color=BLUE, ms=4, label="ring")
        axes.loglog(W[fits], trade[fits] / 1e6, "s-", color=RED, ms=4, label="Ulysses")
        if not fits.all():
            axes.plot(W[fits][-1], trade[fits][-1] / 1e6, "x", color=RED, ms=11, mew=2)
        axes.set_title(f"{title}: H = {H}, G = {G}", loc="left", fontsize=9, color=INK)
        axes.set_xticks(W, W)
        axes.xaxis.set_minor_locator(plt.NullLocator())
        axes.set_yticks([100, 200, 500, 1000, 2000])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(plt.NullLocator())
        axes.set_xlabel("ranks W", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(which="major", color="#eaeef2")
        axes.spines[["top", "right"]].set_visible(False)
    every[0, 0].set_ylabel("MB sent by a rank")
    every[0, 0].legend(frameon=False, fontsize=8)
    return closed(figure)


def position_errors(errors: "dict[str, Tensor]") -> "Figure":
    """How far the scores of each token are off, by position; a line a run. errors: {title: (N,)}"""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 2.6), layout="constrained")
    for (title, error), colour in zip(errors.items(), (BLUE, RED), strict=False):
        axes.semilogy(error.clamp(min=1e-8), ".-", color=colour, ms=4, lw=0.8, label=title)
    axes.set(xlabel="position of the token", ylabel="largest error")
    axes.tick_params(labelsize=8)
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center right")
    return closed(figure)
