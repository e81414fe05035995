"""Losses by size: recorded runs, laws, and what a budget buys."""

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
