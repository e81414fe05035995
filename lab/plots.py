"""Pictures that carry a point. Each function draws one figure and returns it."""

import numpy as np

INK, GREY, BLUE, RED = "#24292f", "#8c959f", "#0969da", "#cf222e"


def roofline(name, peak, bandwidth, kernels, measured=None):
    """The two roofs of a machine, and kernels under them.

    peak: FLOP/s    bandwidth: byte/s    kernels: {name: FLOP/byte}
    measured: {name: FLOP/s}; a kernel without a measurement is drawn on the roof, as a bound.
    """
    import matplotlib.pyplot as plt

    measured = measured or {}
    low = min([*kernels.values(), 0.1]) / 2
    high = max([*kernels.values(), peak / bandwidth]) * 8
    x = np.geomspace(low, high, 200)
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    axes.loglog(x, np.minimum(peak, x * bandwidth), color=INK, lw=2)
    ridge = peak / bandwidth
    axes.axvline(ridge, color=GREY, lw=1, ls=":")
    axes.annotate(f"ridge {ridge:.3g} FLOP/byte", (ridge, 0.02), xycoords=("data", "axes fraction"),
                  xytext=(4, 0), textcoords="offset points", color=GREY)
    axes.annotate(f"peak {rate(peak, 'FLOP/s')}", (high, peak), xytext=(-4, 5), ha="right",
                  textcoords="offset points", color=INK)
    middle = np.sqrt(low * ridge)
    axes.annotate(f"memory {rate(bandwidth, 'B/s')}", (middle, middle * bandwidth), xytext=(-8, 4), ha="right",
                  textcoords="offset points", color=INK)
    for kernel, intensity in kernels.items():
        roof = min(peak, intensity * bandwidth)
        y, colour = (measured[kernel], BLUE) if kernel in measured else (roof, RED)
        if kernel in measured:
            axes.plot([intensity] * 2, [y, roof], color=GREY, lw=1)
            label = f"{kernel}\n{y / roof:.0%} of its roof"
        else:
            label = f"{kernel}\nat most {rate(y, 'FLOP/s')}"
        axes.plot(intensity, y, "o", color=colour, ms=7)
        under = intensity > ridge
        axes.annotate(label, (intensity, y), xytext=(0, -8) if under else (8, -2), va="top",
                      ha="center" if under else "left", textcoords="offset points", color=colour)
    axes.set(xlabel="arithmetic intensity, FLOP/byte", ylabel="FLOP/s", title=name, xlim=(low, high))
    axes.set_ylim(top=peak * 4)
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    plt.close(figure)           # a notebook shows what is returned; open figures it would show again
    return figure


def rate(value, unit):
    """312e12 -> '312 TFLOP/s'."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


# Fill and text of a bar's parts.
SHADES = (("#d0d7de", INK), ("#9cd2ff", INK), (RED, "white"), ("#54aeff", INK), ("#0a3069", "white"),
          (BLUE, "white"), (GREY, "white"))


def shares(title, rows):
    """A bar a row, cut into the parts of its whole.

    rows: {label: {part: number}}, seven parts at most; a part has one colour in all rows, and the
    third in order of appearance stands out.
    """
    import matplotlib.pyplot as plt

    parts = list(dict.fromkeys(part for row in rows.values() for part in row))
    shades = dict(zip(parts, SHADES, strict=False))
    figure, axes = plt.subplots(figsize=(7.5, 1.2 + 0.45 * len(rows)), layout="constrained")
    for y, row in enumerate(rows.values()):
        left, whole = 0.0, sum(row.values())
        for part in parts:
            share = 100 * row.get(part, 0) / whole
            axes.barh(y, share, left=left, color=shades[part][0], edgecolor="white", height=0.7)
            if share >= 5:
                axes.annotate(f"{share:.0f}", (left + share / 2, y), ha="center", va="center",
                              color=shades[part][1])
            left += share
    for part in parts:
        axes.barh(0, 0, color=shades[part][0], label=part)
    axes.set(title=title, xlim=(0, 100), xlabel="share, %")
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(parts),
                  frameon=False, handlelength=1, columnspacing=1.2)
    return figure


def intensity_by_batch(title, batches, curves, ridge):
    """FLOP/byte as the batch grows; curves that reach the ridge in blue, the others in red.

    curves: {label: [FLOP/byte at each batch]}    ridge: FLOP/byte
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    axes.axhline(ridge, color=INK, lw=1.5, ls=":")
    axes.annotate(f"ridge {ridge:.3g}: above it arithmetic decides, below it memory", (batches[0], ridge),
                  xytext=(2, 5), textcoords="offset points", color=INK)
    for label, values in curves.items():
        colour = BLUE if max(values) >= ridge else RED
        axes.loglog(batches, values, color=colour, lw=2)
        axes.annotate(label, (batches[-1], values[-1]), xytext=(5, 0), textcoords="offset points",
                      va="center", color=colour, annotation_clip=False)
    axes.set(xlabel="batch, sequences", ylabel="arithmetic intensity, FLOP/byte", title=title,
             xlim=(batches[0], batches[-1]))
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
