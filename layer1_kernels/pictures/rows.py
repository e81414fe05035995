"""Rows: what a kernel reads, keeps and writes of one, and what sizes cost."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed


def running(x, maxima, sums):
    """Online softmax along a row: the maximum so far, and the sum of exp(x - maximum so far).

    x, maxima, sums: a number a column
    """
    import matplotlib.pyplot as plt

    columns = np.arange(len(x))
    grows = np.flatnonzero(np.diff(maxima) > 0) + 1
    figure, (above, below) = plt.subplots(2, 1, figsize=(7.5, 4.8), sharex=True,
                                          layout="constrained")
    above.plot(columns, x, "o", color=GREY, ms=4)
    above.plot(columns, maxima, color=RED, lw=1.5, drawstyle="steps-post")
    above.annotate("maximum so far, m", (columns[-1], maxima[-1]), xytext=(0, 5), ha="right",
                   textcoords="offset points", color=RED,
                   bbox={"fc": "white", "ec": "none", "pad": 1})
    below.plot(columns, sums, "o-", color=BLUE, lw=1.5, ms=4, label="sum of exp(x - m) so far, s")
    below.plot(columns, np.cumsum(np.exp(x - maxima[-1])), color=GREY, lw=1.5, ls="--",
               label="the sum if the last m were known from the start")
    for axes in (above, below):
        for column in grows:
            axes.axvline(column, color=RED, lw=0.8, ls=":", zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.2)
    above.set(ylabel="x", title="Where the maximum grows, the sum is rescaled")
    below.set(xlabel="column", ylabel="s")
    below.set_ylim(0)
    figure.legend(*below.get_legend_handles_labels(), loc="outside lower center", ncols=2,
                  frameon=False)
    return closed(figure)


def passes(x):
    """Softmax of a row, cell by cell: the maximum after each number, the exponentials, and the
    weights.
    A number in red is known only when the line of cells before it is complete.

    x: the row, ten numbers at most
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    m = x.max()
    e = np.exp(x - m)
    s = e.sum()
    lines = (("x", x, "{:.0f}", "white", INK), ("maximum so far", np.maximum.accumulate(x),
             "{:.0f}", "#d0d7de", INK), ("exp(x - m)", e, "{:.3f}", "#9cd2ff", INK),
             ("y = exp(x - m) / s", e / s, "{:.3f}", BLUE, "white"))
    results = {1: f"m = {m:.0f}", 2: f"s = {s:.3f}"}
    figure, axes = plt.subplots(figsize=(7.5, 2.3), layout="constrained")
    for y, (_, values, form, fill, ink) in enumerate(lines):
        for c, value in enumerate(values):
            axes.add_patch(Rectangle((c, y), 0.94, 0.66, fc=fill, ec="#d0d7de"))
            axes.text(c + 0.47, y + 0.34, form.format(value), ha="center", va="center",
                      fontsize=9, color=ink)
        if y in results:
            axes.text(len(x) + 0.2, y + 0.3, results[y], ha="left", va="center", fontsize=10,
                      color=RED)
            axes.annotate("", (len(x) + 0.02, y + 1.08), (len(x) + 0.4, y + 0.55), arrowprops={
                "arrowstyle": "->", "color": RED, "lw": 1.2, "shrinkA": 0, "shrinkB": 0})
    axes.set(xlim=(-0.05, len(x) + 1.35), ylim=(len(lines) - 0.25, -0.1), xticks=[],
             yticks=[y + 0.33 for y in range(len(lines))], yticklabels=[line[0] for line in lines])
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    return closed(figure)


def row_by_threads(C, threads):
    """A row shared by the threads of a block: which thread reads which column, and how the
    threads' results become one.
    Thread 0 is red.

    C: columns, twelve at most    threads: of the block
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 2.3), layout="constrained")
    box = {"boxstyle": "square,pad=0.45", "ec": "none"}
    arrow = {"arrowstyle": "<->", "color": GREY, "lw": 1, "shrinkA": 0, "shrinkB": 0}
    middle = [(t + 0.5) * C / threads for t in range(threads)]
    for c in range(C):
        colour = BLUE if c % threads else RED
        axes.text(c + 0.5, 0, f"x[{c}]", ha="center", va="center", fontsize=9, color="white",
                  bbox=box | {"fc": colour})
        axes.plot([c + 0.5, middle[c % threads]], [0.3, 1.55], color=colour, lw=1,
                  antialiased=False)                # a smaller file
    for t, x in enumerate(middle):
        axes.text(x, 2, f"thread {t}: maximum\nof {', '.join(map(str, range(t, C, threads)))}",
                  ha="center", va="center", fontsize=9, color="white",
                  bbox=box | {"fc": BLUE if t else RED})
        end = C / 2 + 0.5 * (x - C / 2)
        axes.annotate("", (end, 3.6), (x, 2.55), arrowprops=arrow)
    axes.text(C / 2, 4, "block_max: the largest of all, returned to every thread", ha="center",
              va="center", fontsize=9, color=INK, bbox=box | {"fc": "#d0d7de"})
    axes.set(xlim=(0, C), ylim=(4.5, -0.5), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return closed(figure)


def rescaled(first, second):
    """The terms of two parts of a row, exp(x - m): each part with its own maximum m, then both with
    the maximum of the row.
    Dashed outlines are the heights of before.

    first, second: the numbers of each part
    """
    import matplotlib.pyplot as plt

    parts = (np.asarray(first), BLUE), (np.asarray(second), GREY)
    m = max(x.max() for x, _ in parts)
    figure, every = plt.subplots(2, 1, sharex=True, figsize=(7.5, 3.8), layout="constrained")
    for axes, common in zip(every, (False, True), strict=True):
        begin = 0
        for x, colour in parts:
            own = x.max()
            columns = np.arange(begin, begin + len(x))
            terms = np.exp(x - (m if common else own))
            axes.bar(columns, terms, color=colour)
            axes.bar(columns, np.exp(x - own), fc="none", ec=colour, ls="--", lw=1)
            factor = f"  (each × {np.exp(own - m):.2f})" if common else ""
            axes.text(columns.mean(), 1.08, f"sum {terms.sum():.2f}{factor}", ha="center",
                      color=INK, fontsize=9)
            begin += len(x)
        axes.set(ylim=(0, 1.3), ylabel="exp(x - m)", yticks=(0, 1))
        axes.spines[["top", "right"]].set_visible(False)
    every[0].set_title("m: the maximum of each part", loc="left", fontsize=10, color=INK)
    every[1].set_title("m: the maximum of the row", loc="left", fontsize=10, color=INK)
    every[1].set(xlabel="column", xticks=range(begin))
    return closed(figure)


def row_program(T, C, BLOCK, row):
    """One Triton program for each row: what the program of one row reads and writes.

    T, C: rows and columns of x    BLOCK: positions of a program, C or more    row: of the program
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(figsize=(7.5, 2.0), layout="constrained")
    gap = BLOCK - C + 5                             # columns between x and y: room for an arrow
    for left, name, colour in ((0, "x", BLUE), (C + gap, "y", INK)):
        axes.text(left + C / 2, -0.25, f"{name} (T, C)", ha="center", va="bottom", fontsize=10,
                  color=INK)
        for t in range(T):
            for c in range(C):
                axes.add_patch(Rectangle((left + c, t), 1, 1, ec="white", lw=1,
                                         fc=colour if t == row else "#d0d7de"))
    for c in range(C, BLOCK):
        axes.add_patch(Rectangle((c + 0.06, row + 0.06), 0.88, 0.88, ec=RED, fc="white", ls="--"))
    for c in range(C):
        axes.add_patch(Rectangle((c, T + 0.7), 1, 1, ec="white", lw=1, fc=BLUE))
    axes.text(-0.4, T + 1.2, "w (C,)", ha="right", va="center", fontsize=10, color=INK)
    axes.text(-0.4, row + 0.5, f"program {row}", ha="right", va="center", fontsize=10, color=BLUE)
    axes.text(C + 0.4, T + 1.2, "read by every program", ha="left", va="center", fontsize=9,
              color=INK)
    axes.text(C + (BLOCK - C) / 2, row - 0.15, f"{BLOCK - C} masked", ha="center", va="bottom",
              fontsize=9, color=RED)
    axes.annotate("", (C + gap - 0.3, row + 0.5), (BLOCK + 0.4, row + 0.5), arrowprops={
        "arrowstyle": "->", "color": INK, "lw": 1.5, "shrinkA": 0, "shrinkB": 0})
    axes.text(BLOCK + (gap - BLOCK + C) / 2, row + 0.8, "× scale × w", ha="center", va="top",
              fontsize=9, color=INK)
    axes.set(xlim=(-4.2, 2 * C + gap + 0.1), ylim=(T + 1.8, -1.1), aspect="equal", xticks=[],
             yticks=[])
    axes.spines[:].set_visible(False)
    return closed(figure)


def masked_row(x, BLOCK):
    """A row as a Triton program loads it: 0 beyond its columns; then the mean of its squares.

    x: the row, whole numbers    BLOCK: positions of the program, at least as many
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    C = len(x)
    v = [*x, *[0] * (BLOCK - C)]
    square = sum(number * number for number in x)
    lines = ("c", range(BLOCK)), ("inside", [c < C for c in range(BLOCK)]), ("v", v)
    figure, axes = plt.subplots(figsize=(7.5, 1.8), layout="constrained")
    for y, (_, values) in enumerate(lines):
        for c, value in enumerate(values):
            axes.add_patch(Rectangle((c, y), 0.94, 0.8, fc=BLUE if c < C else "white",
                                     ec=BLUE if c < C else RED, ls="-" if c < C else "--"))
            axes.text(c + 0.47, y + 0.42, value, ha="center", va="center", fontsize=9,
                      color="white" if c < C else RED)
    axes.text(BLOCK + 0.6, 2.4, f"tl.sum(v * v) = {square}\nmean: {square} / {C} = {square / C:g}",
              ha="left", va="center", fontsize=10, color=INK)
    axes.annotate("", (BLOCK + 0.5, 2.4), (BLOCK + 0.05, 2.4), arrowprops={
        "arrowstyle": "->", "color": INK, "lw": 1.5, "shrinkA": 0, "shrinkB": 0})
    axes.set(xlim=(-0.05, BLOCK + 3.6), ylim=(3, -0.1), xticks=[],
             yticks=[y + 0.42 for y in range(len(lines))], yticklabels=[name for name, _ in lines])
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    return closed(figure)


def launches(ways):
    """What chains of kernels read from memory (blue arrows) and write to it (grey arrows).

    ways: {label: [(kernel, arrays it reads, arrays it writes)]}, a panel each
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(len(ways), 1, squeeze=False, figsize=(7.5, 1.6 * len(ways)),
                                 layout="constrained")
    for axes, (label, kernels) in zip(every[:, 0], ways.items(), strict=True):
        arrays = list(dict.fromkeys(a for _, reads, writes in kernels for a in (*reads, *writes)))
        place = {array: 1 + 2 * i for i, array in enumerate(arrays)}
        moves = 0
        for kernel, reads, writes in kernels:
            ends = [place[array] for array in (*reads, *writes)]
            middle = sum(ends) / len(ends)
            axes.text(middle, 0, kernel, ha="center", va="center", fontsize=9, color="white",
                      bbox={"fc": INK, "ec": INK, "boxstyle": "round,pad=0.4"})
            for array in reads:
                axes.annotate("", (middle, 0.3), (place[array], 0.78), arrowprops={
                    "arrowstyle": "->", "color": BLUE, "lw": 1.8, "shrinkA": 0, "shrinkB": 0})
            for array in writes:
                axes.annotate("", (place[array], 0.78), (middle, 0.3), arrowprops={
                    "arrowstyle": "->", "color": GREY, "lw": 1.8, "shrinkA": 0, "shrinkB": 0})
            moves += len(reads) + len(writes)
        for array, x in place.items():
            axes.text(x, 1, array, ha="center", va="center", fontsize=9, color=INK,
                      bbox={"fc": "#d0d7de", "ec": "#d0d7de", "boxstyle": "square,pad=0.4"})
        axes.set_title(f"{label}   →   {moves} arrays moved", loc="left", fontsize=10, color=INK)
        axes.set(xlim=(0, 8), ylim=(-0.3, 1.3), xticks=[], yticks=[0, 1],
                 yticklabels=["on the chip", "in memory"])
        axes.tick_params(length=0, labelsize=9)
        axes.spines[:].set_visible(False)
    return closed(figure)


def falling(title, sizes, curves, x, y):
    """Values that fall as a size doubles again and again, one line each, named where it begins.

    sizes: [number]    curves: {name: [value at each size]}, three at most    x, y: the axes' names
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    for (name, values), colour in zip(curves.items(), (RED, BLUE, INK), strict=False):
        axes.plot(sizes, values, "o-", color=colour, lw=2, ms=4)
        axes.annotate(name, (sizes[0], values[0]), xytext=(-8, 0), textcoords="offset points",
                      ha="right", va="center", color=colour)
    axes.set_xscale("log", base=2)
    axes.set(title=title, xlabel=x, ylabel=y, xlim=(sizes[0] / 2.2, sizes[-1] * 1.1),
             ylim=(0, 1.1 * max(map(max, curves.values()))))
    axes.set_xticks(sizes, sizes)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eaeef2")
    return closed(figure)
