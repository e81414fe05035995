"""Attention: its arrays to scale, and what a query keeps on its walk along the keys."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed


def attention_arrays(T, N, D):
    """The arrays of one head, sides to scale: strips in blue, the matrix of scores in red.

    T: queries    N: keys    D: head width
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    gap = N / 12
    left = D + gap
    right = left + N + gap
    strips = (("q", 0, 0, D, T), ("kᵀ", left, -gap - D, N, D), ("v", right, 0, D, N),
              ("out", right + D + 1.5 * gap, 0, D, T))
    figure, axes = plt.subplots(figsize=(5.6, 4.3), layout="constrained")
    for name, x, y, width, height in strips:
        axes.add_patch(Rectangle((x, y), width, height, fc=BLUE))
        axes.text(x + width / 2, y + height / 2, f"{name}: {width * height:,}", ha="center",
                  va="center", color="white", rotation=0 if width > height else 90)
    axes.add_patch(Rectangle((left, 0), N, T, fc="white", ec=RED, hatch="//"))
    axes.text(left + N / 2, T / 2, f"scores, then weights\n{T * N:,}", ha="center", va="center",
              color=RED, bbox={"fc": "white", "ec": "none"})
    axes.text(right + D + 0.75 * gap, T / 2, "=", ha="center", va="center", color=INK, fontsize=14)
    axes.set(xlim=(-1, right + 2 * D + 1.5 * gap + 1), ylim=(max(T, N) + 1, -gap - D - 1),
             aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return closed(figure)


def tile_walk(scores, values, BN, current):
    """Above, the tiles of scores while one is in use; below, what query 0 keeps after each tile.

    scores (T, N) in base 2    values (N,): one column of v    BN: keys of a tile
    current: the number of the tile in use
    """
    import matplotlib.pyplot as plt

    names = ["m", "s", "mixed / s"]
    figure, axes = plt.subplot_mosaic([["tiles"] * 3, names], figsize=(7.5, 3.6),
                                      layout="constrained")
    draw_tiles(axes["tiles"], scores, BN, current)
    ends = range(BN, scores.shape[1] + 1, BN)
    rows = [state(scores[0, :end], values[:end]) for end in ends]
    tiles = range(1, len(rows) + 1)
    for name, numbers, colour in zip(names, np.transpose(rows), (RED, BLUE, INK), strict=True):
        axes[name].plot(tiles, numbers, "o-", color=colour, ms=4)
        axes[name].set(title=name, xticks=tiles, xlabel="after tile")
        axes[name].margins(y=0.15)
        axes[name].spines[["top", "right"]].set_visible(False)
    axes["mixed / s"].axhline(rows[-1][-1], color=GREY, ls="--", lw=1)
    return closed(figure)


def draw_tiles(axes, scores, BN, current):
    """A heat map of the scores: faded once dropped, and none where they are still to come."""
    from matplotlib.patches import Rectangle

    T, N = scores.shape
    tile = np.arange(N) // BN
    axes.imshow(np.where(tile <= current, scores, np.nan), cmap="Blues", aspect="auto",
                alpha=np.where(tile < current, 0.3, 1) * np.ones((T, 1)))
    for number in range(N // BN):
        word, colour, style = ("dropped", GREY, "-") if number < current else \
            ("not computed yet", GREY, "--") if number > current else ("in use", RED, "-")
        axes.add_patch(Rectangle((number * BN - 0.4, -0.4), BN - 0.2, T - 0.2, fc="none",
                                 ec=colour, ls=style, lw=1.5))
        axes.text((number + 0.5) * BN - 0.5, -0.8, word, ha="center", color=colour, fontsize=9)
    axes.set(xticks=[], yticks=(0, T - 1), xlabel="key", ylabel="query", ylim=(T, -1))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def state(scores, values):
    """(m, s, mixed / s) of one query, by their definition, for the keys that were visited."""
    weights = np.exp2(scores - scores.max())
    return scores.max(), weights.sum(), weights @ values / weights.sum()
