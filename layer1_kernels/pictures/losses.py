"""A row of logits: its probabilities, the m and s of its blocks, and its gradient."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed

PALE = "#d0d7de"


def token_loss(rows, target):
    """Logits above, their softmax below, with the probability of the target.

    rows: {label: logits (V,)}, a panel each    target: a column, in red
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(2, len(rows), squeeze=False, sharex=True, sharey="row",
                                 figsize=(7.5, 3.2), layout="constrained")
    for (above, below), (label, logits) in zip(every.T, rows.items(), strict=True):
        V = len(logits)
        p = np.exp(logits) / np.exp(logits).sum()
        colours = [RED if c == target else GREY for c in range(V)]
        above.bar(range(V), logits, 0.8, color=colours)
        above.axhline(0, color=INK, lw=0.6)
        below.bar(range(V), p, 0.8, color=colours)
        below.text(target, p[target] + 0.03, f"p = {p[target]:.3g}", color=RED, ha="center",
                   va="bottom")
        above.set_title(label, loc="left", fontsize=10)
        below.set(xlabel="token", ylim=(0, 1), xticks=range(V))
        for axes in (above, below):
            axes.spines[["top", "right", "bottom"]].set_visible(False)
            axes.tick_params(axis="x", length=0)
    every[0, 0].set_ylabel("logit")
    every[1, 0].set_ylabel("softmax")
    return closed(figure)


def row_in_blocks(logits, block, target):
    """A row of logits, a block at a time: after each block the maximum so far, m, and the sum of
    exp(logit - m), s.

    logits: (V,)    block: columns taken at a time; it divides V    target: a column, in red
    """
    import matplotlib.pyplot as plt

    V = len(logits)
    figure, axes = plt.subplots(figsize=(7.5, 2.6), layout="constrained")
    low, high = min(0, logits.min()), logits.max()
    axes.bar(range(V), logits, 0.85, color=[RED if c == target else GREY for c in range(V)])
    for begin in range(0, V, block):
        so_far = logits[:begin + block]
        m = so_far.max()
        s = np.exp(so_far - m).sum()
        axes.plot([begin - 0.45, begin + block - 0.55], [m, m], color=BLUE, lw=1.5)
        axes.text(begin + (block - 1) / 2, high + 0.45 * (high - low),
                  f"columns 0 to {begin + block - 1}", ha="center", va="bottom", fontsize=8,
                  color=INK)
        axes.text(begin + (block - 1) / 2, high + 0.12 * (high - low), f"m = {m:.1f}\ns = {s:.2f}",
                  ha="center", va="bottom", fontsize=9, color=BLUE)
        axes.axvline(begin + block - 0.5, color=PALE, lw=1)
    axes.set(xlim=(-0.5, V - 0.5), ylim=(low - 0.05 * (high - low), high + 0.65 * (high - low)),
             xlabel="column", ylabel="logit")
    axes.set_xticks(range(0, V, block))
    axes.set_yticks([y for y in axes.get_yticks() if low <= y <= high])
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def row_before_and_after(logits, gradient, target):
    """The memory of a row: logits, and then the gradient in the same places.

    logits, gradient: (V,)    target: a column, in red
    """
    import matplotlib.pyplot as plt

    V = len(logits)
    figure, every = plt.subplots(2, 1, sharex=True, figsize=(7.5, 3.0), layout="constrained")
    for axes, numbers, name in zip(every, (logits, gradient), ("logit", "gradient"), strict=True):
        axes.bar(range(V), numbers, 0.85,
                 color=[RED if c == target else GREY if name == "logit" else BLUE
                        for c in range(V)])
        axes.axhline(0, color=INK, lw=0.8)
        axes.set(ylabel=name, xlim=(-0.5, V - 0.5))
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(axis="x", length=0)
    every[1].annotate(f"the target: {gradient[target]:.2f}", (target, gradient[target]),
                      xytext=(8, 4), textcoords="offset points", color=RED, fontsize=9)
    every[1].set(xlabel="place in the row", xticks=range(0, V, 4))
    return closed(figure)
