"""Quantised weights: to which integers a group's scale leads, and the parts of a GEMV's step."""

import numpy as np

from lab.plots import BLUE, INK, RED, closed

PALE = "#9cd2ff"            # as in registers.packed_row: the high half of a byte


def scale_steps(groups, top):
    """Groups of weights on the number line, a panel each: where the integers from -top to top lie,
    and to which of them each weight is rounded.

    groups: [weights]    top: the largest integer
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(len(groups), 1, squeeze=False, figsize=(7.5, 1.4 * len(groups)),
                                 layout="constrained")
    for axes, weights in zip(every[:, 0], groups, strict=True):
        scale = np.abs(weights).max() / top
        axes.axhline(0, color=INK, lw=0.8)
        for q in range(-top, top + 1):
            axes.plot([q, q], [-0.1, 0.1], color=INK, lw=0.8)
            axes.text(q, -0.2, q, ha="center", va="top", fontsize=9, color=INK)
            own = [w for w in weights if np.rint(w / scale) == q]
            for w in own:
                axes.plot(w / scale, 0.75, "o", color=BLUE, ms=5)
                axes.annotate("", (q, 0.1), (w / scale, 0.75), arrowprops={
                    "arrowstyle": "->", "color": BLUE, "lw": 1, "shrinkA": 2, "shrinkB": 0})
            if own:
                axes.text(np.mean(own) / scale, 0.95, ",  ".join(f"{w:g}" for w in own),
                          ha="center", fontsize=9, color=BLUE)
        axes.set(xlim=(-top - 0.7, top + 0.7), ylim=(-0.7, 1.4), xticks=[], yticks=[])
        axes.set_title(f"scale {scale:g}", loc="left", fontsize=9, color=RED)
        axes.spines[:].set_visible(False)
    return closed(figure)


def gemv_step(BN, BB, PART):
    """One step of quantized_gemv_triton (k15) in int4: the numbers of x, the bytes of BN rows of w,
    and the numbers of sums to which their parts go.

    BB: bytes of each row    PART: bytes that share a scale
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(figsize=(7.5, 1.3 + 1.25 * BN), layout="constrained")
    cells(axes, BB, 0, PALE)
    cells(axes, BB, 0.6, BLUE)
    ticks = {0.22: "x at k + GROUP // 2", 0.82: "x at k"}
    for n in range(BN):
        top = 1.5 + 2.4 * n
        cells(axes, BB, top, PALE)
        cells(axes, BB, top + 0.45, BLUE)
        ticks |= {top + 0.45: f"bytes of row {n}", top + 1.75: f"sums[{n}]"}
        for part in range(BB // PART):
            middle = (part + 0.5) * PART
            axes.add_patch(Rectangle((part * PART, top - 0.06), PART, 1.02, fc="none", ec=RED))
            axes.annotate("", (middle, top + 1.5), (middle, top + 0.98), arrowprops={
                "arrowstyle": "->", "color": RED, "lw": 1.2, "shrinkA": 0, "shrinkB": 0})
            axes.text(middle + 0.4, top + 1.24, f"add {2 * PART} products, times "
                      f"scale[{n}, {part}]", va="center", fontsize=8, color=RED)
            axes.add_patch(Rectangle((middle - 1, top + 1.5), 2, 0.5, fc="white", ec=INK))
            axes.text(middle, top + 1.75, "+=", ha="center", va="center", fontsize=8, color=INK)
    axes.set(xlim=(-0.2, BB + 0.2), ylim=(1.5 + 2.4 * BN, -0.1), xticks=[])
    axes.set_yticks(list(ticks), ticks.values(), fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return closed(figure)


def cells(axes, count, y, colour):
    """Half a byte each, or a number."""
    from matplotlib.patches import Rectangle

    for x in range(count):
        axes.add_patch(Rectangle((x + 0.06, y), 0.88, 0.45, fc=colour))
