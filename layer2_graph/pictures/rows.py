"""Rows: whose they are, which are computed again, which matrices make them."""

from itertools import accumulate

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed

PALE = "#d0d7de"


def ragged(before, new, S):
    """The new tokens of several sequences, one after another, and below them each sequence's own
    context in pages.

    before, new: tokens that each sequence had, and that it gets in this step    S: slots of a page
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    cu_q = [0, *accumulate(new)]
    colours = (BLUE, INK, "#54aeff")
    figure, axes = plt.subplots(figsize=(7.5, 3.0), layout="constrained")

    def cell(x, y, label, colour):
        axes.add_patch(Rectangle((x + 0.03, y), 0.94, 0.8, fc=colour))
        axes.text(x + 0.5, y + 0.39, label, ha="center", va="center", fontsize=8,
                  color=INK if colour == PALE else "white")

    places = [-(-(n + m) // S) * S for n, m in zip(before, new, strict=True)]
    starts = [0, *accumulate(width + 1.5 for width in places)]
    left = (starts[-1] - 1.5 - cu_q[-1]) / 2
    for b, (n, m) in enumerate(zip(before, new, strict=True)):
        for i in range(places[b]):
            known = i < n + m
            cell(starts[b] + i, 0, i if known else "", PALE if i < n else colours[b] if known
                 else "#f3f5f7")
        for page in range(0, places[b], S):
            axes.add_patch(Rectangle((starts[b] + page, -0.1), S, 1.0, fc="none", ec=GREY, lw=0.9))
        axes.text(starts[b], -0.55, f"sequence {b}: lens {n + m}", fontsize=8, color=colours[b])
        for i in range(m):
            cell(left + cu_q[b] + i, 2.2, n + i, colours[b])
            axes.annotate("", (starts[b] + n + i + 0.5, 0.95), (left + cu_q[b] + i + 0.5, 2.15),
                          arrowprops={"arrowstyle": "-|>", "lw": 0.9, "color": colours[b]})
    for number in cu_q:
        axes.plot([left + number] * 2, [2.1, 3.2], color=RED, lw=1.2)
        axes.text(left + number, 3.35, number, ha="center", fontsize=8, color=RED)
    axes.text(left - 0.4, 2.6, "rows", ha="right", va="center", fontsize=9, color=INK)
    axes.text(left - 0.4, 3.45, "cu_q", ha="right", va="center", fontsize=9, color=RED)
    axes.set(xlim=(-0.3, starts[-1] - 1.2), ylim=(-0.9, 3.8))
    axes.axis("off")
    return closed(figure)


def steps(prompt, count):
    """Which tokens each step computes, in blue, and whose keys and values it reads, pale: left
    without a cache, right with one.

    prompt: tokens of the prompt    count: steps, one new token each
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    N = prompt + count - 1
    figure, every = plt.subplots(1, 2, sharey=True, figsize=(7.5, 0.28 * count + 1.0),
                                 layout="constrained")
    for axes, title, cached in zip(every, ("without a cache", "with a cache"), (False, True),
                                   strict=True):
        computed = 0
        for step in range(count):
            for i in range(prompt + step):
                new = not cached or step == 0 or i == prompt + step - 1
                computed += new
                axes.add_patch(Rectangle((i + 0.05, step + 0.08), 0.9, 0.84,
                                         fc=BLUE if new else PALE))
        axes.set_title(f"{title}: {computed} tokens computed", loc="left", fontsize=9, color=INK)
        axes.set(xlim=(0, N), ylim=(count, 0))
        axes.set_xticks([i + 0.5 for i in range(N)], range(N), fontsize=8)
        axes.set_yticks([i + 0.5 for i in range(count)], [f"step {i}" for i in range(count)],
                        fontsize=8)
        axes.set_xlabel("position", fontsize=9)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return closed(figure)


def stacked(matrices, x):
    """Products of several matrices with one x: left one by one, right stacked into one matrix.

    matrices: {name: (rows, K)}, small integers    x: (K,)
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    x = np.asarray(x)
    colours = dict(zip(matrices, (BLUE, INK), strict=True))
    both = [(name, row) for name, a in matrices.items() for row in np.asarray(a)]
    figure, axes = plt.subplots(figsize=(7.5, 2.6), layout="constrained")

    def cell(left, top, number, colour):
        axes.add_patch(Rectangle((left + 0.04, top + 0.04), 0.92, 0.92, fc=colour))
        axes.text(left + 0.5, top + 0.52, number, ha="center", va="center", fontsize=9,
                  color=INK if colour == PALE else "white")

    def product(left, top, rows):
        """The rows, x, and what the rows make of it.
        Returns where it ends."""
        middle = top + len(rows) / 2 - len(x) / 2
        for y, (name, row) in enumerate(rows):
            for k, number in enumerate(row):
                cell(left + k, top + y, number, colours[name])
            cell(left + len(x) + 3, top + y, row @ x, colours[name])
        for k, number in enumerate(x):
            cell(left + len(x) + 0.8, middle + k, number, PALE)
        axes.text(left + len(x) + 0.4, top + len(rows) / 2, "·", ha="center", va="center")
        axes.text(left + len(x) + 2.4, top + len(rows) / 2, "=", ha="center", va="center")
        return left + len(x) + 4

    top = 0.0
    gap = max(len(x) - len(both) / len(matrices), 0) + 0.8      # x is taller than a matrix
    for name, a in matrices.items():
        rows = [(name, row) for row in np.asarray(a)]
        axes.text(-0.3, top + len(rows) / 2, name, ha="right", va="center", fontsize=9,
                  color=colours[name])
        right = product(0.0, top, rows)
        top += len(rows) + gap
    height = top - gap
    axes.text(right + 1.3, height / 2, "→", ha="center", va="center", fontsize=16, color=INK)
    product(right + 2.6, height / 2 - len(both) / 2, both)
    axes.set(xlim=(-2.2, 2 * right + 2.8), ylim=(height + 0.9, -0.9), aspect="equal")
    axes.axis("off")
    return closed(figure)


def cache_rows(starts, counts, room):
    """A step's new tokens, one sequence after another, and where they go in a contiguous cache.

    starts, counts: tokens that each sequence has, and those it gets    room: slots of a sequence
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(figsize=(7.5, 3.0), layout="constrained")

    def cell(x, y, label, colour):
        axes.add_patch(Rectangle((x + 0.03, y), 0.94, 0.8, fc=colour, ec=GREY, lw=0.5))
        axes.text(x + 0.5, y + 0.42, label, ha="center", va="center", fontsize=8, color="white")

    left = (room - sum(counts)) / 2
    row = 0
    for b, (start, count) in enumerate(zip(starts, counts, strict=True)):
        y = -1.3 * b
        for n in range(room):
            cell(n, y, "", PALE if n < start else "white")
        axes.text(-0.3, y + 0.4, f"sequence {b}, slots from {b * room}", ha="right", va="center",
                  fontsize=9, color=INK)
        for position in range(start, start + count):
            colour = (BLUE, INK, "#54aeff")[b % 3]
            cell(position, y, position, colour)
            cell(left + row, 2.0, position, colour)
            axes.plot([left + row + 0.5, position + 0.5], [1.95, y + 0.85], color=colour, lw=0.8,
                      alpha=0.6)
            row += 1
    axes.text(left - 0.3, 2.4, "positions of the new tokens", ha="right", va="center", fontsize=9,
              color=INK)
    axes.set(xlim=(-6.0, room + 0.2), ylim=(-1.3 * len(starts) + 1.0, 3.0))
    axes.axis("off")
    return closed(figure)


def runs_of_cache(batch, room):
    """The slots that each sequence's queries see, and the rows of q of each run.

    batch: [(first, end, T, N)]    room: slots of a sequence
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(figsize=(7.5, 2.4), layout="constrained")
    row = 0
    for (first, end, T, N), colour in zip(batch, (BLUE, INK, "#54aeff"), strict=False):
        for b in range(first, end):
            for n in range(room):
                axes.add_patch(Rectangle((n + 0.03, b + 0.1), 0.94, 0.8, ec=GREY, lw=0.5, fc=(
                    "white" if n >= N else colour if n >= N - T else PALE)))
            axes.text(-0.3, b + 0.5, f"sequence {b}", ha="right", va="center", fontsize=9,
                      color=INK)
        B = end - first
        middle = (first + end) / 2
        axes.plot([room + 0.3] * 2, [first + 0.15, end - 0.15], color=colour, lw=2)
        axes.text(room + 0.7, middle, f"B = {B}, T = {T}, N = {N}: rows {row} to {row + B * T - 1} "
                  f"of q", va="center", fontsize=9, color=colour)
        row += B * T
    axes.set(xlim=(-2.6, room + 11.5), ylim=(batch[-1][1] + 0.1, -0.1))
    axes.axis("off")
    return closed(figure)


def padded_rows(columns, B, harmless):
    """The arrays of a step in the buffers of a graph: blue its own rows, then padding.

    columns: {array: a value for each row}    harmless: arrays whose padding must be set, in red;
    the others keep what they have, in grey
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(figsize=(7.5, 2.1), layout="constrained")
    for x, (name, values) in enumerate(columns.items()):
        own = B + 1 if name == "cu_q" else B
        for row, value in enumerate(values):
            colour = BLUE if row < own else RED if name in harmless else PALE
            axes.add_patch(Rectangle((1.5 * x + 0.04, row + 0.06), 1.32, 0.88, fc=colour))
            axes.text(1.5 * x + 0.7, row + 0.52, value, ha="center", va="center", fontsize=9,
                      color=INK if colour == PALE else "white")
        axes.text(1.5 * x + 0.7, -0.3, name, ha="center", fontsize=9, color=INK)
    rows = len(next(iter(columns.values())))
    for row in range(rows):
        axes.text(-0.2, row + 0.52, f"row {row}", ha="right", va="center", fontsize=9, color=INK)
    axes.set(xlim=(-1.1, 1.5 * len(columns)), ylim=(rows + 1.05, -0.9))
    axes.axis("off")
    return closed(figure)
