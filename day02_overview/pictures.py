"""Pictures of day 2. Each function draws one figure and returns it."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, STROKES, closed


def heads(title, text, weights):
    """Attention weights of one layer: a row asks, a column is asked; dark is a large weight.

    text: a letter a token    weights: (heads, tokens, tokens)
    """
    import matplotlib.pyplot as plt

    letters = [{"\n": "⏎", " ": "·"}.get(letter, letter) for letter in text]
    figure, every = plt.subplots(1, len(weights), figsize=(3.0 * len(weights), 3.5), sharey=True,
                                 squeeze=False, layout="constrained")
    for h, axes in enumerate(every[0]):
        axes.imshow(weights[h], cmap="Blues", vmin=0, vmax=1)
        axes.set_title(f"head {h}", fontsize=10, color=INK)
        axes.set_xticks(range(len(text)), letters, fontsize=7)
        axes.set_yticks(range(len(text)), letters, fontsize=7)
        axes.tick_params(length=0)
    figure.suptitle(title)
    return closed(figure)


FLOOR_SHADES = {"kernel": "#54aeff", "graph": RED, "system": "#0a3069", "idle": "#d0d7de"}


def floors_by_step(title, panels):
    """A bar a step, stacked by floor; a panel for each kind of step, on one scale.

    panels: {label: [({floor: ms}, label of the step)]}
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(panels), squeeze=False, sharey=True, figsize=(7.5, 3.6),
                                 width_ratios=[len(bars) + 1 for bars in panels.values()],
                                 layout="constrained")
    for axes, (label, bars) in zip(every[0], panels.items(), strict=True):
        bottom = np.zeros(len(bars))
        for floor, colour in FLOOR_SHADES.items():
            heights = np.array([times.get(floor, 0) for times, _ in bars])
            if heights.any():
                axes.bar(range(len(bars)), heights, 0.85, bottom=bottom, color=colour, label=floor)
            bottom += heights
        axes.set_title(label, fontsize=10, color=INK)
        axes.set_xticks(range(len(bars)), [name for _, name in bars], fontsize=8)
        axes.set(xlim=(-0.6, len(bars) - 0.4))
        axes.tick_params(length=0)
        axes.spines[["top", "right"]].set_visible(False)
    every[0, 0].set_ylabel("ms")
    figure.legend(*every[0, -1].get_legend_handles_labels(), loc="outside lower center", ncols=4,
                  frameon=False, handlelength=1)
    figure.suptitle(title)
    return closed(figure)


def laws(title, x, y, curves, points, scale="linear"):
    """Lines through points, or beside them: the x axis is logarithmic, the y axis as `scale` says.

    x, y: the axes' names    curves, points: {label: (xs, ys)}, seven labels at most; one label has
    one colour in both, and its name stands at the end of its curve, or at its last point.
    """
    import matplotlib.pyplot as plt

    labels = list(dict.fromkeys([*curves, *points]))
    shades = dict(zip(labels, ("#54aeff", BLUE, "#0a3069", GREY, RED, INK, "#9cd2ff"),
                      strict=False))
    figure, axes = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
    for label in labels:
        if label in curves:
            axes.plot(*curves[label], color=shades[label], lw=1.5)
        if label in points:
            axes.plot(*points[label], "o", color=shades[label], ms=6)
        xs, ys = curves.get(label) or points[label]
        aside = (7, 0) if label in curves else (0, -13)     # a point may lie on another's curve
        axes.annotate(label, (xs[-1], ys[-1]), xytext=aside, textcoords="offset points",
                      va="center", color=shades[label], annotation_clip=False)
    axes.set(title=title, xlabel=x, ylabel=y, xscale="log", yscale=scale)
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def valleys(title, curves, marks, x, y, inside=None):
    """Losses over model sizes, a curve each, and marked points; x is logarithmic.

    curves: {name: (xs, ys)}, nine at most    marks: {label: (x, y)}    x, y: the axes' names
    inside: (from, to, why) of the sizes that are shaded
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator

    figure, axes = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
    if inside:
        low, high, why = inside
        axes.axvspan(low, high, color="#eaeef2", label=why)
    for (name, (xs, ys)), (colour, style) in zip(curves.items(), STROKES, strict=False):
        axes.semilogx(xs, ys, color=colour, ls=style, lw=1.8, label=name)
    for label, (at, value) in marks.items():
        axes.plot(at, value, "o", color=RED, ms=5)
        axes.annotate(label, (at, value), xytext=(0, -14), textcoords="offset points", ha="center",
                      color=RED, bbox={"fc": "white", "ec": "none", "pad": 0.5, "alpha": 0.8})
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(y=0.1)
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return closed(figure)


def timelines(title, groups, kinds):
    """What happened, a lane each, on an axis from 0 to 100 % of each group's time.

    groups: {label: [[(start, end, kind), …], … a lane each]}   kinds: in the order of their colours
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    shades = dict(zip(kinds, (BLUE, "#54aeff", "#d0d7de", GREY, RED), strict=True))
    lanes = [(label if not i else "", lane) for label, group in groups.items()
             for i, lane in enumerate(group)]
    figure, axes = plt.subplots(figsize=(7.5, 1.2 + 0.4 * len(lanes)), layout="constrained")
    for y, (_, lane) in enumerate(lanes):
        whole = max(end for _, end, _ in lane)
        for start, end, kind in lane:
            axes.barh(y, 100 * (end - start) / whole, left=100 * start / whole, height=0.72,
                      color=shades[kind], lw=0, snap=False)     # else short ones vanish
    axes.set(title=title, xlim=(0, 100), xlabel="share of the time, %")
    axes.set_yticks(range(len(lanes)), [label for label, _ in lanes])
    axes.invert_yaxis()
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(handles=[Patch(color=shade, label=kind) for kind, shade in shades.items()],
                  loc="outside lower center", ncols=len(kinds), frameon=False, handlelength=1)
    return closed(figure)


def decisions(title, steps):
    """Questions from top to bottom, each with what its answers lead to on the right.

    steps: [(question, {answer: (a floor of FLOOR_SHADES, what it leads to)})]
    """
    import matplotlib.pyplot as plt

    rows = sum(len(answers) for _, answers in steps)
    figure, axes = plt.subplots(figsize=(7.5, 0.5 + 0.46 * rows), layout="constrained")
    y = 0.0
    before = None
    for question, answers in steps:
        middle = y + (len(answers) - 1) / 2
        if before is not None:
            axes.annotate("", (1.5, middle - 0.36), (1.5, before + 0.36),
                          arrowprops={"arrowstyle": "->", "color": INK})
            axes.text(1.58, (before + middle) / 2, "no", va="center", color=INK, fontsize=9)
        axes.text(1.5, middle, question, ha="center", va="center", color=INK,
                  bbox={"boxstyle": "round,pad=0.4", "fc": "white", "ec": INK})
        for answer, (floor, what) in answers.items():
            axes.plot([1.5, 3.0, 5.1], [middle, y, y], color=GREY, lw=1, zorder=0)
            axes.text(3.1, y - 0.06, answer, va="bottom", color=INK, fontsize=9)
            axes.text(5.15, y, f"{floor}: {what}", va="center",
                      color=INK if floor == "kernel" else "white",
                      bbox={"boxstyle": "round,pad=0.3", "fc": FLOOR_SHADES[floor], "ec": "none"})
            y += 1
        before = middle
    axes.set(title=title, xlim=(0, 7.5), ylim=(rows - 0.4, -0.6))
    axes.axis("off")
    return closed(figure)
