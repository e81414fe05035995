"""Pictures that several floors draw.
Each function draws one figure and returns it."""

import numpy as np

INK, GREY, BLUE, RED = "#24292f", "#8c959f", "#0969da", "#cf222e"
# Colour and style of many curves.
STROKES = ((INK, "-"), (GREY, "-"), (BLUE, "-"), (RED, "-"), (BLUE, "--"), (RED, "--"), (INK, ":"),
           (BLUE, ":"), (RED, ":"))


def closed(figure):
    """The figure, closed: a notebook shows what is returned, and open figures again."""
    import matplotlib.pyplot as plt

    plt.close(figure)
    return figure


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
    for side, words in (("right", "memory-bound"), ("left", "compute-bound")):
        axes.annotate(words, (ridge, 0.09), xycoords=("data", "axes fraction"), ha=side,
                      xytext=(-4 if side == "right" else 4, 0), textcoords="offset points",
                      color=GREY)
    axes.annotate(f"peak {rate(peak, 'FLOP/s')}", (high, peak), xytext=(-4, 5), ha="right",
                  textcoords="offset points", color=INK)
    slope = low**0.15 * ridge**0.85         # high up, so that the label stays inside
    axes.annotate(f"memory {rate(bandwidth, 'B/s')}", (slope, slope * bandwidth), xytext=(-8, 4),
                  ha="right", textcoords="offset points", color=INK)
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
        if under and kernel not in measured:
            label = kernel              # its bound is the peak, which is written above
        axes.annotate(label, (intensity, y), xytext=(0, -8) if under else (8, -2), va="top",
                      ha="center" if under else "left", textcoords="offset points", color=colour,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0})
    axes.set(xlabel="arithmetic intensity, FLOP/byte", ylabel="FLOP/s", title=name,
             xlim=(low, high))
    axes.set_ylim(min([low * bandwidth, *measured.values()]) / 3, peak * 4)      # room for labels
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def rate(value, unit):
    """312e12 -> '312 TFLOP/s'."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


# Fill and text of a bar's parts.
SHADES = (("#d0d7de", INK), ("#9cd2ff", INK), (RED, "white"), ("#54aeff", INK),
          ("#0a3069", "white"), (BLUE, "white"), (GREY, "white"))


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
        left = 0.0
        whole = sum(row.values())
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
    return closed(figure)


def intensity_by_batch(title, batches, curves, ridge):
    """FLOP/byte as the batch grows; curves that reach the ridge in blue, the others in red.

    curves: {label: [FLOP/byte at each batch]}    ridge: FLOP/byte
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    axes.axhline(ridge, color=INK, lw=1.5, ls=":")
    axes.annotate(f"ridge {ridge:.3g}: arithmetic decides above it",
                  (batches[0], ridge), xytext=(4, 5), textcoords="offset points", color=INK)
    for label, values in curves.items():
        colour = BLUE if max(values) >= ridge else RED
        axes.loglog(batches, values, color=colour, lw=2)
        axes.annotate(label, (batches[-1], values[-1]), xytext=(5, 0), textcoords="offset points",
                      va="center", color=colour, annotation_clip=False)
    axes.set(xlabel="batch, sequences", ylabel="arithmetic intensity, FLOP/byte", title=title,
             xlim=(batches[0], batches[-1]))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def traffic(title, kernels):
    """What kernels move, in sizes of their input: reads in blue, writes in grey.

    kernels: {name: (reads, writes)}, both in sizes of the input
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 1.2 + 0.4 * len(kernels)), layout="constrained")
    narrow = max(map(sum, kernels.values())) / 6        # a bar without room for the word
    for y, (reads, writes) in enumerate(kernels.values()):
        for left, width, colour, verb in ((0, reads, BLUE, "read"),
                                          (reads, writes, GREY, "written")):
            axes.barh(y, width, left=left, color=colour, edgecolor="white", height=0.7)
            axes.annotate(f"{width:g}×" if width < narrow else f"{verb} {width:g}×",
                          (left + width / 2, y), ha="center", va="center", color="white")
    axes.set(title=title, xlabel="bytes moved, in sizes of the input")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_yticks(range(len(kernels)), kernels)
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    return closed(figure)


def growth(title, curves, x, y):
    """Counts that grow with 1, 2, 3 … of something, one line each.

    curves: {name: [count for 1, for 2, …]}    x, y: what the axes count
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    for (name, values), colour in zip(curves.items(), (GREY, BLUE, RED), strict=False):
        axes.plot(range(1, len(values) + 1), values, color=colour, lw=2)
        last = f"{values[-1]:,}" if isinstance(values[-1], int) else f"{values[-1]:.1f}"
        axes.annotate(f"{name}: {last}", (len(values), values[-1]), xytext=(-6, 6),
                      textcoords="offset points", ha="right", color=colour)
    axes.set(title=title, xlabel=x, ylabel=y, ylim=(0, 1.15 * max(map(max, curves.values()))))
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def crossing(title, sizes, curves, at, x, y):
    """Two costs that grow with a size, both axes logarithmic, and the size at which they
    change places.

    sizes: [number]    curves: {name: [cost at each size]}    at: the size    x, y: the axes' names
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
    for (name, values), colour in zip(curves.items(), (RED, BLUE), strict=True):
        axes.loglog(sizes, values, color=colour, lw=2)
        axes.annotate(name, (sizes[len(sizes) // 5], values[len(sizes) // 5]), xytext=(6, -5),
                      textcoords="offset points", va="top", color=colour)
    axes.axvline(at, color=GREY, lw=1, ls=":")
    axes.annotate(f"{at:,}", (at, 0.03), xycoords=("data", "axes fraction"), xytext=(5, 0),
                  textcoords="offset points", color=GREY)
    axes.set(title=title, xlabel=x, ylabel=y, xlim=(sizes[0], sizes[-1]))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def timeline(title, requests):
    """What happened to each request: a bar of waiting, prefill and decode, a dot a token.

    requests: {name: ([(what, begin, end)], [when a token was sent])}, in ms
    """
    import matplotlib.pyplot as plt

    shades = {"waiting": "#d0d7de", "prefill": RED, "decode": "#9cd2ff"}
    figure, axes = plt.subplots(figsize=(7.5, 1.5 + 0.6 * len(requests)), layout="constrained")
    for y, (spans, sent) in enumerate(requests.values()):
        for what, begin, end in spans:
            axes.barh(y, end - begin, 0.6, left=begin, color=shades[what])
        axes.plot(sent, [y] * len(sent), ".", color=INK, ms=5, ls="none")
    for what, colour in shades.items():
        axes.barh(0, 0, color=colour, label=what)
    axes.plot([], [], ".", color=INK, ms=5, ls="none", label="a token is sent")
    axes.set(title=title, xlabel="ms")
    axes.set_yticks(range(len(requests)), requests)
    axes.invert_yaxis()
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4,
                  frameon=False, handlelength=1)
    return closed(figure)
