"""Experts: which token chooses which, how even their work is, and how many a step reads."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed

EIGHT = ("#0969da", "#54aeff", "#1a7f37", "#9a6700", "#cf222e", "#8250df", "#8c959f", "#24292f")


def routes(words, experts, loads):
    """Above, a column for each token and a row for each layer, in the colour of the expert that the
    token chose first.
    Below, the shares of each layer's experts, a row of panels for each model.

    words: [text of a token]    experts: (L, T), at most 8 different    loads: {model: [[choices of
    each expert] of each layer]}
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    L, T = np.shape(experts)
    figure = plt.figure(figsize=(9, 1.8 + 1.3 * len(loads) + 0.25 * L), layout="constrained")
    rows = figure.add_gridspec(1 + len(loads), L, height_ratios=[1.1] + [1] * len(loads))
    axes = figure.add_subplot(rows[0, :])
    for i, row in enumerate(experts):
        for t, e in enumerate(row):
            axes.add_patch(Rectangle((t + 0.04, i + 0.06), 0.92, 0.88, fc=EIGHT[e]))
    axes.set(xlim=(0, T), ylim=(L, 0))
    axes.set_xticks(np.arange(T) + 0.5, words, rotation=90, fontsize=8)
    axes.set_yticks(np.arange(L) + 0.5, [f"layer {i}" for i in range(L)], fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    largest = max(max(load) / sum(load) for layers in loads.values() for load in layers)
    for y, (name, layers) in enumerate(loads.items(), 1):
        for i, load in enumerate(layers):
            panel = figure.add_subplot(rows[y, i])
            share = np.array(load) / sum(load)
            panel.bar(range(len(load)), 100 * share, 0.85, color=EIGHT[:len(load)])
            panel.axhline(100 / len(load), color=INK, lw=0.8, ls=":")
            panel.set_title(f"{name}, layer {i}", fontsize=9, loc="left", color=INK)
            panel.set(xticks=range(len(load)), ylim=(0, 110 * largest))
            panel.tick_params(labelsize=8, length=0)
            panel.spines[["top", "right"]].set_visible(False)
            if i == 0:
                panel.set_ylabel("% of choices", fontsize=8)
    return closed(figure)


def loaded_share(lines, dots):
    """The share of a layer's experts that a step reads, by the sequences that decode together.

    lines: {label: (E, k)}, if routing were even and each choice drawn alone, two at most
    dots: {label: {B: share}}, counted
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    B = np.geomspace(1, 256, 200)
    for (label, (E, k)), colour in zip(lines.items(), (BLUE, GREY), strict=False):
        axes.plot(B, 100 * (1 - (1 - k / E) ** B), color=colour, lw=2, label=label)
    for label, points in dots.items():
        axes.plot(list(points), [100 * share for share in points.values()], "o", color=RED, ms=5,
                  label=label)
    axes.axhline(100, color=INK, lw=1, ls="--")
    axes.annotate("dense, as many weights", (1, 100), xytext=(2, 4), color=INK, fontsize=9,
                  textcoords="offset points")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="sequences that decode together", ylabel="% of the experts read",
             ylim=(0, 112))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    return closed(figure)


def learning(kinds):
    """How far each run's perplexity is above the mean of the first kind's, after as many steps.

    kinds: {label: [{step: perplexity}]}, a dot for each run and step, five labels at most
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    first = list(kinds.values())[0]
    steps = sorted({step for run in first for step in run})
    mean = {step: np.mean([run[step] for run in first]) for step in steps}
    styles = ((INK, "o"), (BLUE, "s"), (RED, "D"), ("#9a6700", "^"), (GREY, "o"))
    for i, ((label, runs), (colour, mark)) in enumerate(zip(kinds.items(), styles, strict=False)):
        dots = [(steps.index(step) + (i - (len(kinds) - 1) / 2) / 6, 100 * (score / mean[step] - 1))
                for run in runs for step, score in run.items()]
        axes.plot(*zip(*dots, strict=True), mark, color=colour, ms=6, label=label)
    axes.axhline(0, color=GREY, lw=0.9, ls=":")
    axes.set_xticks(range(len(steps)), [f"{step:,}" for step in steps])
    axes.set(xlabel="steps of 1,024 tokens", xlim=(-0.6, len(steps) - 0.4),
             ylabel=f"perplexity, % above\nthe mean of {list(kinds)[0]}")
    axes.grid(axis="y", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return closed(figure)
