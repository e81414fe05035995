"""States: what a request holds, what a state is as a matrix, how many pairs it can tell apart."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed


def held_bytes(lines, mark):
    """Bytes that a request holds by tokens of its context, both axes logarithmic.

    lines: {label: (bytes a token, bytes whatever the length)}, three at most
    mark: (tokens, words), where two lines meet
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    N = np.geomspace(1, 2**15, 200)
    for (label, (each, always)), colour in zip(lines.items(), (INK, RED, BLUE), strict=False):
        axes.plot(N, each * N + always, color=colour, lw=2)
        axes.annotate(label, (N[-1], each * N[-1] + always), xytext=(6, 0), va="center",
                      color=colour, textcoords="offset points")
    axes.axvline(mark[0], color=GREY, lw=1, ls=":")
    axes.annotate(mark[1], (mark[0], 0.9), xycoords=("data", "axes fraction"), xytext=(5, 0),
                  color=GREY, textcoords="offset points")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks([2**i for i in range(0, 16, 3)], [f"{2**i:,}" for i in range(0, 16, 3)])
    kib = [2**i for i in range(9, 26, 4)]
    axes.set_yticks(kib, [f"{b / 1024:g} KiB" if b < 2**20 else f"{b / 2**20:g} MiB" for b in kib])
    axes.set(xlabel="tokens of the context", ylabel="bytes of a request", xlim=(1, N[-1]))
    axes.grid(color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def mixing(panels, Q):
    """Weights of token s (column) in the answer of token t (row), a panel each.

    panels: {title: (T, T)}. Blue: positive, red: negative; over the last one the chunks of Q tokens
    are outlined: squares on the diagonal, and left of them what comes through the state.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, every = plt.subplots(1, len(panels), figsize=(10, 3.7), layout="constrained")
    for axes, (title, weights) in zip(every, panels.items(), strict=True):
        T = len(weights)
        largest = np.quantile(np.abs(weights[np.tril_indices(T)]), 0.98)
        axes.imshow(weights, cmap="RdBu", vmin=-largest, vmax=largest)
        axes.set_title(title, fontsize=10, color=INK)
        axes.set(xticks=[], yticks=[], xlabel="token s", ylabel="token t")
        axes.spines[:].set_visible(False)
    for begin in range(0, T, Q):
        n = min(Q, T - begin)
        axes.add_patch(Rectangle((begin - 0.5, begin - 0.5), n, n, fc="none", ec=INK, lw=1.5))
        if begin:
            axes.add_patch(Rectangle((-0.5, begin - 0.5), begin, n, fc="none", ec=RED, lw=1.5,
                                     ls="--"))
    return closed(figure)


def recall(shares, N):
    """Right answers by pairs of key and value that a memory was shown, a line for each run.

    shares: {kind: [{pairs: share}]}, three kinds at most    N: width of a key, marked
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    styles = ((INK, "o-"), (BLUE, "s-"), (RED, "d--"))
    for (kind, runs), (colour, style) in zip(shares.items(), styles, strict=False):
        for i, points in enumerate(runs):
            axes.plot([int(n) for n in points], [100 * share for share in points.values()], style,
                      color=colour, lw=1.2, ms=4, label=None if i else kind)
    axes.axvline(N, color=GREY, lw=1, ls=":")
    axes.annotate(f"keys are {N} wide", (N, 0.05), xycoords=("data", "axes fraction"),
                  xytext=(5, 0), color=GREY, textcoords="offset points")
    axes.set(xlabel="pairs shown", ylabel="% of answers right", ylim=(0, 104))
    axes.grid(color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="lower left")
    return closed(figure)
