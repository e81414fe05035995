"""What crosses between memory and the chip, and what stays on the chip."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed

PALE = "#d0d7de"


def crossings(ways):
    """Arrays in memory above, kernels on the chip below: blue arrows read, red arrows write.

    ways: {label: [(name of a kernel, arrays it reads, arrays it writes)]}, two at most
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyBboxPatch

    figure, every = plt.subplots(1, len(ways), squeeze=False, figsize=(7.5, 2.5),
                                 layout="constrained",
                                 width_ratios=[width(kernels) for kernels in ways.values()])
    for axes, (label, kernels) in zip(every[0], ways.items(), strict=True):
        arrays = in_order(kernels)
        place = {name: x + 0.5 for x, name in enumerate(arrays)}
        for y, colour in ((2, PALE), (0, "#ddf4ff")):
            axes.add_patch(FancyBboxPatch((0.05, y - 0.32), len(arrays) - 0.1, 0.64, ec="none",
                                          boxstyle="round,pad=0,rounding_size=0.1", fc=colour))
        for name, x in place.items():
            axes.text(x, 2, name, ha="center", va="center", fontsize=9, color=INK)
        for name, reads, writes in kernels:
            at = np.mean([place[array] for array in (*reads, *writes)])
            axes.text(at, 0, name, ha="center", va="center", fontsize=9, color=INK)
            for array, colour, style in ((*((a, BLUE, "<-") for a in reads),
                                          *((a, RED, "->") for a in writes))):
                end = at + 0.25 * (place[array] - at)
                side = 0.12 * np.sign(at - place[array])        # two arrows of an array stay apart
                axes.annotate("", (place[array] + side, 1.66), (end, 0.34), arrowprops={
                    "arrowstyle": style, "color": colour, "lw": 1.6, "shrinkA": 0, "shrinkB": 0})
        axes.set_title(label, loc="left", fontsize=10, color=INK)
        axes.set(xlim=(0, len(arrays)), ylim=(-0.4, 2.4), yticks=[], xticks=[])
        axes.spines[:].set_visible(False)
    every[0, 0].set_yticks([0, 2], ["the chip", "memory"])
    every[0, 0].tick_params(length=0)
    return closed(figure)


def residual_stream(branches, kernel):
    """A layer of a Llama: the residual stream, and the branches that read it and add to it.

    branches: names of what computes x, in order    kernel: which addition is framed, with the norm
    after it, as one kernel
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(figsize=(7.5, 2.2), layout="constrained")
    arrow = {"arrowstyle": "->", "color": BLUE, "lw": 1.6, "shrinkA": 11, "shrinkB": 11}
    width = 4.2                                     # of a branch: norm, what computes x, addition
    axes.annotate("", (len(branches) * width + 1.6, 0), (-1.4, 0), arrowprops=arrow | {
        "color": INK, "lw": 2.5})
    for i, name in enumerate((*branches, "next layer")):
        begin = i * width
        last = i == len(branches)
        stops = [(begin, 1, "norm"), (begin + 1.6, 2, name), (begin + 3.2, 0, "+")]
        for place, height, text in stops[:1] if last else stops:
            axes.text(place, height, text, ha="center", va="center", fontsize=9, color=INK,
                      zorder=3, bbox={"fc": PALE, "ec": PALE, "boxstyle": "round,pad=0.4"})
        path = [(begin - 0.6, 0), *(stop[:2] for stop in stops)][:2 if last else 4]
        for source, end in zip(path, path[1:], strict=False):
            axes.annotate("", end, source, arrowprops=arrow)
    axes.add_patch(Rectangle((kernel * width + 2.7, -0.5), 2.1, 2, fc="none", ec=RED, lw=1.6))
    axes.text(kernel * width + 3.75, -0.9, "this kernel", ha="center", color=RED, fontsize=9)
    axes.text(-1.4, -0.6, "residual", color=INK, fontsize=9)
    axes.set(xlim=(-1.6, len(branches) * width + 1.8), ylim=(-1.1, 2.5), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return closed(figure)


def in_order(kernels):
    """The arrays of kernels, as crossings has them, in the order in which they are needed."""
    return list(dict.fromkeys(array for _, reads, writes in kernels for array in (*reads, *writes)))


def width(kernels):
    """Of a panel of crossings: its arrays."""
    return len(in_order(kernels))


def attention_tile(T, N, BM, BN, row, column):
    """One program of attention at work: its queries, the tile of keys and values in use, and their
    scores, the only ones that exist.

    T, N: queries, keys    BM, BN: of a tile    row, column: of the tile in use
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    side = 4.0                                      # of the square of all scores
    down = side / (T // BM)
    across = side / (N // BN)
    thin = 0.55                                     # width of a head, not to scale
    left, top = thin + 0.15, 2 * (thin + 0.15)

    def tile(x, y, w, h, colour, edge="white", style="-"):
        axes.add_patch(Rectangle((x, y), w, h, fc=colour, ec=edge, ls=style, lw=1))

    for n in range(N // BN):
        colour = BLUE if n == column else GREY if n < column else PALE
        for y in (0, thin + 0.15):
            tile(left + n * across, y, across, thin, colour)
    for t in range(T // BM):
        colour = BLUE if t == row else PALE
        tile(0, top + t * down, thin, down, colour)
        tile(left + side + 0.15, top + t * down, thin, down, RED if t == row else PALE)
        for n in range(N // BN):
            taken = (t, n) == (row, column)
            tile(left + n * across, top + t * down, across, down, BLUE if taken else "white",
                 "white" if taken else PALE, "-" if taken else ":")
    for text, x, y, align in (("values v", left - 0.1, thin / 2, "right"),
                              ("keys k", left - 0.1, 1.5 * thin + 0.15, "right"),
                              ("queries q", -0.1, top + side / 2, "right")):
        axes.text(x, y, text, ha=align, va="center", fontsize=9, color=INK)
    axes.text(left + side + 0.15 + thin / 2, top - 0.12, "out", ha="center", va="bottom",
              fontsize=9, color=INK)
    axes.text(left + side / 2, top + side + 0.12, "scores: a tile at a time, none in memory",
              ha="center", va="top", fontsize=9, color=INK)
    lines = ((INK, "In use on the chip:"), (BLUE, f"{BM} queries, kept for the whole walk"),
             (BLUE, f"{BN} keys and their {BN} values"),
             (BLUE, f"{BM} × {BN} scores, then weights"),
             (RED, f"m and s of {BM} queries, {BM} rows of out"), (INK, ""),
             (INK, f"Grey: used and dropped. {BM} × {BN} scores"),
             (INK, f"are 1/{T * N // (BM * BN)} of all {T} × {N}."))
    for number, (colour, text) in enumerate(lines):
        axes.text(left + side + thin + 0.45, 0.85 + 0.5 * number, text, fontsize=9, color=colour,
                  va="center")
    axes.set(xlim=(-1.3, left + side + thin + 4.6), ylim=(top + side + 0.5, -0.1), aspect="equal",
             xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return closed(figure)
