"""Losses by size: recorded runs, laws, their errors, and what a budget buys."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, STROKES, closed


def laws(title, x, y, curves, points, scale="linear"):
    """Lines through points, or beside them: the x axis is logarithmic, the y axis as `scale` says.

    x, y: the axes' names    curves, points: {label: (xs, ys)}, seven labels at most; one label has
    one colour in both, and its name stands at the end of its curve, or at its last point.
    """
    import matplotlib.pyplot as plt

    labels = list(dict.fromkeys([*curves, *points]))
    shades = dict(zip(labels, ("#54aeff", BLUE, "#0a3069", GREY, RED, INK, "#9cd2ff"),
                      strict=False))
    figure, axes = plt.subplots(figsize=(5.0, 2.6), layout="constrained")
    for label in labels:
        if label in curves:
            axes.plot(*curves[label], color=shades[label], lw=1.5)
        if label in points:
            axes.plot(*points[label], "o", color=shades[label], ms=6)
        xs, ys = curves.get(label) or points[label]
        aside = (7, 0) if label in curves else (0, -13)     # a point may lie on another's curve
        axes.annotate(label, (xs[-1], ys[-1]), xytext=aside, textcoords="offset points",
                      va="center", color=shades[label], annotation_clip=False,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0})
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

    figure, axes = plt.subplots(figsize=(6.0, 3.3), layout="constrained")
    if inside:
        low, high, why = inside
        axes.axvspan(low, high, color="#eaeef2", label=why)
    for (name, (xs, ys)), (colour, style) in zip(curves.items(), STROKES, strict=False):
        axes.semilogx(xs, ys, color=colour, ls=style, lw=1.8, label=name)
    for label, (at, value) in marks.items():
        axes.plot(at, value, "o", color=RED, ms=5)
        axes.annotate(label, (at, value), xytext=(0, -11), textcoords="offset points", ha="center",
                      color=RED, fontsize=8)
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(y=0.15)
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return closed(figure)


def law_errors(title, N, D, errors):
    """A square a run, rows of N and columns of D: blue below the law, red above it.

    N, D, errors: (runs,)
    """
    import matplotlib.pyplot as plt

    rows, columns = np.unique(N), np.unique(D)
    grid = np.full((len(rows), len(columns)), np.nan)
    grid[np.searchsorted(rows, N), np.searchsorted(columns, D)] = errors
    most = np.nanmax(np.abs(grid))
    figure, axes = plt.subplots(figsize=(5.0, 2.4), layout="constrained")
    axes.imshow(grid, cmap="RdBu_r", vmin=-1.6 * most, vmax=1.6 * most, aspect="auto")
    for (row, column), error in np.ndenumerate(grid):
        if not np.isnan(error):
            axes.text(column, row, f"{error:+.3f}", ha="center", va="center", color=INK)
    axes.set(title=title, xlabel="characters D", ylabel="parameters N")
    axes.set_xticks(range(len(columns)), [f"{d:,.0f}" for d in columns])
    axes.set_yticks(range(len(rows)), [f"{n:,.0f}" for n in rows])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return closed(figure)


def bent_cost(title, delta):
    """A residual's cost and its slope, which stops growing at delta; in grey, without a bound."""
    import matplotlib.pyplot as plt

    r = np.linspace(-4 * delta, 4 * delta, 801)
    slope = np.clip(r, -delta, delta)
    area = np.concatenate([[0], np.cumsum((slope[1:] + slope[:-1]) / 2)]) * (r[1] - r[0])
    cost = area - area.min()                    # the cost is the area under its slope
    figure, panels = plt.subplots(1, 2, figsize=(5.0, 1.9), layout="constrained")
    for axes, name, free, bound in zip(panels, ("cost", "slope = weight · r"), (r * r / 2, r),
                                       (cost, slope), strict=True):
        axes.plot(r, free, color=GREY, lw=1)
        axes.plot(r, bound, color=BLUE, lw=2)
        axes.set_title(name, fontsize=10, color=INK)
        axes.set_xticks([-delta, 0, delta], ["−delta", "0", "delta"], fontsize=8)
        axes.set(xlabel="residual r", yticks=[], ylim=(min(bound) * 2, max(bound) * 1.3))
        axes.grid(axis="x", color="#eaeef2")
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    return closed(figure)
