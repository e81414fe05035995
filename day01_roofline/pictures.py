"""Pictures of day 1. Each function draws one figure and returns it."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, STROKES, closed

PALE = "#d0d7de"


def runs(title, lists):
    """Every run of a few lists in the order in which it was taken, with each list's median.

    lists: {label: seconds}, three at most
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    longest = max(map(len, lists.values()))
    for (label, seconds), colour in zip(lists.items(), (BLUE, RED, GREY), strict=False):
        micro = np.asarray(seconds) * 1e6
        axes.semilogy(np.arange(1, len(micro) + 1), micro, "o", color=colour, ms=4)
        median = np.median(micro)
        axes.axhline(median, color=colour, lw=1, ls="--")
        axes.annotate(f"{label}\nmedian {float(f'{median:.3g}'):,g} µs", (longest, median),
                      xytext=(10, 0), va="center", textcoords="offset points", color=colour,
                      annotation_clip=False)
    axes.set(xlabel="run", ylabel="µs", title=title, xlim=(0, longest + 0.5))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(which="major", axis="y", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def machine(device, intensity, what):
    """A machine and what it joins, and one microsecond of it: the operations that its arithmetic
    can do, and those for which data arrives.

    device: has .peak in FLOP/s, .bandwidth and .link in byte/s    intensity: FLOP/byte of an
    operation    what: its name, in the plural
    """
    import matplotlib.pyplot as plt

    figure, (pipes, axes) = plt.subplots(1, 2, figsize=(7.5, 2.6), layout="constrained",
                                         width_ratios=(1.35, 1))
    draw_pipes(pipes, device)
    millions = device.peak / 1e12, device.bandwidth * intensity / 1e12
    axes.barh((1, 0), millions, color=(GREY, RED), edgecolor=(GREY, RED), height=0.5)
    for y, number, label in ((1, millions[0], "operations that the chip can do"),
                             (0, millions[1], f"{what} whose data arrives")):
        axes.annotate(f"{number:.3g} million {label}", (0, y + 0.33), color=INK, fontsize=8)
    axes.set(title="in one microsecond", xlim=(-2, 1.02 * max(millions)), ylim=(-0.4, 1.7),
             xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return closed(figure)


def draw_pipes(axes, device):
    """Memory, chip and another device, joined by pipes as thick as their rates."""
    from matplotlib.patches import Rectangle

    for x, name in ((0, "memory"), (4, f"chip\n{device.peak / 1e12:.0f}\nTFLOP/s"),
                    (8, "another\ndevice")):
        axes.add_patch(Rectangle((x, 0.6), 2, 1.8, fc="#d0d7de", ec=GREY))
        axes.text(x + 1, 1.5, name, ha="center", va="center", fontsize=9, color=INK)
    for x, rate, colour, name in ((2, device.bandwidth, BLUE, "bandwidth"),
                                  (6, device.link, GREY, "link")):
        height = 1.2 * rate / device.bandwidth
        axes.add_patch(Rectangle((x, 1.5 - height / 2), 2, height, fc=colour))
        axes.text(x + 1, 0.55, f"{name}\n{rate / 1e12:g} TB/s", ha="center", va="top", fontsize=9,
                  color=colour)
    axes.set(xlim=(-0.1, 10.1), ylim=(-0.4, 2.6))
    axes.axis("off")


def launch_line(launch, work):
    """A launch on the host, and the work on the device; two readings of the clock, in µs.

    launch, work: seconds of each
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    begin = launch * 1e6
    end = begin + work * 1e6
    figure, axes = plt.subplots(figsize=(7.5, 2.2), layout="constrained")
    axes.add_patch(Rectangle((0, 0.15), begin, 0.7, fc=GREY))
    axes.text(begin + 1, 0.5, "launch", va="center", fontsize=9, color=INK)
    axes.add_patch(Rectangle((begin, 1.15), end - begin, 0.7, fc=BLUE))
    axes.text((begin + end) / 2, 1.5, "copy", ha="center", va="center", color="white")
    for x, side, colour, name in (
            (0, "right", INK, "clock "),
            (begin, "left", RED, f" clock again, without synchronise: {begin:.0f} µs"),
            (end, "left", INK, f" clock again,\n after synchronise: {end:.0f} µs")):
        axes.axvline(x, color=colour, lw=1.5)
        axes.text(x, -0.1, name, ha=side, va="bottom", fontsize=8, color=colour)
    axes.set_xlim(-8, end + 24)
    axes.set_ylim(2, -0.5)
    axes.set_yticks([0.5, 1.5], ["host", "device"])
    axes.set_xlabel("µs")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return closed(figure)


def orders(strips, factors):
    """Runs of two kernels in the order in which they are taken, on a machine that changes.

    strips: {title: a letter for each run, two letters}    factors: how long each run takes
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(strips), sharey=True, squeeze=False, figsize=(7.5, 2),
                                 layout="constrained")
    for axes, (title, letters) in zip(every[0], strips.items(), strict=True):
        for letter, colour in zip(sorted(set(letters)), (RED, BLUE), strict=True):
            places = [i for i, other in enumerate(letters) if other == letter]
            axes.bar(places, [factors[i] for i in places], color=colour, label=letter)
        axes.set_xticks(range(len(letters)), letters)
        axes.set_title(title, loc="left", fontsize=9, color=INK)
        axes.tick_params(length=0)
        axes.spines[["top", "right"]].set_visible(False)
    every[0, 0].set_ylabel("seconds")
    return closed(figure)


def code_fields(formats, code):
    """The bits of some formats, a row each: sign, exponent field, mantissa field.
    In the first row stand the bits of a code, its fields as integers, and the normal number that
    it means.

    formats: {name: Float of r04}
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 0.7 * len(formats) + 0.2), layout="constrained")
    for y, f in enumerate(formats.values()):
        bit_fields(axes, y, f, f"{code:0{1 + f.E + f.M}b}" if y == 0 else "")
        if y == 0:
            e, m = divmod(code % 2 ** (f.E + f.M), 2**f.M)
            axes.text(1.4 + f.E + f.M, 0.3, f"e = {e}, m = {m}:  (1 + {m}/{2**f.M}) · "
                      f"2^({e} − {f.bias}) = {(1 + m / 2**f.M) * 2.0 ** (e - f.bias):g}",
                      va="center", fontsize=9, color=RED)
    axes.set(xlim=(-0.1, 16.5), ylim=(len(formats) - 0.3, -0.45), xticks=[],
             yticks=[y + 0.3 for y in range(len(formats))], yticklabels=formats)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return closed(figure)


def bit_fields(axes, y, f, bits):
    """A row of cells, one for each bit of a Float, with the names of its fields above."""
    from matplotlib.patches import Rectangle

    begin = 0
    for name, width, fill, ink in (("sign", 1, GREY, "white"), ("exponent", f.E, BLUE, "white"),
                                   ("mantissa", f.M, "white", INK)):
        for x in range(begin, begin + width):
            axes.add_patch(Rectangle((x, y), 1, 0.6, fc=fill, ec=INK, lw=0.8))
            axes.text(x + 0.5, y + 0.31, bits[x:x + 1], ha="center", va="center", color=ink)
        axes.text(begin + width / 2, y - 0.07, f"{name}, {width}", ha="center", fontsize=8,
                  color=INK)
        begin += width


def one_rounding(x, neighbours, codes, M):
    """A number between two neighbours of a format, the tie between them, and the bits of its
    significand: those that are kept, and the first of those that are dropped.

    neighbours, codes: the two numbers and their codes of 8 bits    M: bits of the mantissa field
    """
    import matplotlib.pyplot as plt

    low, high = neighbours
    step = high - low
    bits = f"{int(x / step * 2**8):b}"                  # M + 1 bits are kept, 8 dropped ones shown
    power = int(np.floor(np.log2(x)))
    figure, axes = plt.subplots(figsize=(7.5, 1.9), layout="constrained")
    axes.plot([low - step / 3, high + step / 3], [0, 0], color=INK, lw=0.8)
    for number, code in zip(neighbours, codes, strict=True):
        axes.plot([number] * 2, [-0.15, 0.15], color=BLUE, lw=2)
        word = f"{code:08b}"
        axes.text(number, -0.22, f"{number:g}\n{word[0]} {word[1:8 - M]} {word[8 - M:]}",
                  ha="center", va="top", color=BLUE)
    axes.plot([low + step / 2] * 2, [-0.4, 0.4], color=GREY, ls=":")
    axes.text(low + step / 2, 0.45, f"tie, {low + step / 2:g}", ha="center", color=GREY)
    axes.plot(x, 0, "o", color=RED)
    axes.text(x, 0.18, f"{x:g}", ha="left", color=RED)
    axes.text(low + step / 3, -1.6, f"{x:g} = 2^{power} · {bits[0]}.{bits[1:M + 1]}", ha="right",
              color=BLUE, family="monospace")
    axes.text(low + step / 3, -1.6, f"|{bits[M + 1:]}…  dropped", color=RED, family="monospace")
    axes.set_ylim(-1.8, 0.8)
    axes.axis("off")
    return closed(figure)


def number_lines(title, lines, densities):
    """Above, the positive numbers of some formats, a tick each; below, how dense they are.

    lines: {name: numbers}    densities: {name: (x, x over the spacing there)}, nine at most
    """
    import matplotlib.pyplot as plt

    figure, (ticks, axes) = plt.subplots(2, 1, sharex=True, layout="constrained",
                                         figsize=(7.5, 3.4 + 0.3 * len(lines)),
                                         height_ratios=(0.3 * len(lines), 2.6))
    for row, numbers in enumerate(lines.values()):
        ticks.vlines(numbers, row - 0.36, row + 0.36, color=BLUE, lw=0.6)
    ticks.set_yticks(range(len(lines)), lines)
    ticks.invert_yaxis()
    ticks.tick_params(length=0)
    ticks.spines[["top", "right", "left"]].set_visible(False)
    for (name, (x, density)), (colour, style) in zip(densities.items(), STROKES, strict=False):
        axes.plot(x, density, color=colour, ls=style, lw=1.6, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="x", ylabel="x / spacing")
    axes.grid(color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right lower", frameon=False)
    figure.suptitle(title)
    return closed(figure)


def panels(title, groups, x, y, log=True):
    """Panels of curves side by side, with one legend; a name has the same style in all of them.

    groups: {label of a panel: {name: (xs, ys)}}, nine names at most    x, y: the axes' names
    log: make the y axis logarithmic too, not only the x axis
    """
    import matplotlib.pyplot as plt

    names = dict.fromkeys(name for curves in groups.values() for name in curves)
    strokes = dict(zip(names, STROKES, strict=False))
    figure, every = plt.subplots(1, len(groups), sharey=True, squeeze=False, figsize=(7.5, 3.6),
                                 dpi=85, layout="constrained")
    for axes, (label, curves) in zip(every[0], groups.items(), strict=True):
        for name, (xs, ys) in curves.items():
            colour, style = strokes[name]
            axes.plot(xs, ys, color=colour, ls=style, lw=1.8)
        axes.set_xscale("log", base=2)
        if log:
            axes.set_yscale("log", base=2)
        axes.set_title(label, loc="left", fontsize=10, color=INK)
        axes.set(xlabel=x)
        axes.grid(color="#eaeef2")
        axes.spines[["top", "right"]].set_visible(False)
    every[0, 0].set(ylabel=y)
    figure.suptitle(title)
    for name, (colour, style) in strokes.items():
        every[0, 0].plot([], [], color=colour, ls=style, lw=1.8, label=name)
    figure.legend(loc="outside right center", frameon=False)
    return closed(figure)


def llama_layer(m):
    """One layer of a Llama, and how many numbers of one token flow through it.

    m: its shape, a Llama of r03.
    Boxes with weights are blue, with the two sides of their matrix
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    heads = m.H * m.D
    qkv = (m.H + 2 * m.G) * m.D
    rows = {        # y: (box, its matrix, numbers that leave it)
        3.1: [("norm", "", m.C), ("qkv", (m.C, qkv), qkv), ("attention", "", heads),
              ("out", (heads, m.C), m.C), ("+", "", m.C)],
        1.1: [("norm", "", m.C), ("gate_up", (m.C, 2 * m.F), 2 * m.F), ("SiLU ·", "", m.F),
              ("down", (m.F, m.C), m.C), ("+", "", m.C)]}
    figure, axes = plt.subplots(figsize=(7.5, 4.2), dpi=85, layout="constrained")

    def box(x, y, name, matrix=""):
        colour = BLUE if matrix else RED if name == "KV cache" else PALE
        axes.add_patch(Rectangle((x, y), 1.15, 0.8, fc=colour, ec="white"))
        text = f"{name}\n{matrix[0]:,} ×\n{matrix[1]:,}" if matrix else name
        axes.text(x + 0.575, y + 0.4, text, ha="center", va="center", fontsize=8,
                  color=INK if colour == PALE else "white")

    def arrow(start, end, text=""):
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": GREY,
                                                  "shrinkA": 0, "shrinkB": 0})
        axes.text((start[0] + end[0]) / 2, start[1] + 0.08, text, ha="center", fontsize=8,
                  color=INK)

    for y, boxes in rows.items():
        for i, (name, matrix, numbers) in enumerate(boxes):
            x = 0.9 + 2 * i
            box(x, y, name, matrix)
            if i == 0:
                arrow((x - 0.85, y + 0.4), (x, y + 0.4), f"{m.C:,}")
            arrow((x + 1.15, y + 0.4), (x + 2, y + 0.4), f"{numbers:,}")
        axes.plot([0.5, 0.5, 9.475], [y + 0.4, y - 0.3, y - 0.3], color=GREY, lw=1)
        arrow((9.475, y - 0.3), (9.475, y))
    box(4.9, 4.5, "KV cache")
    arrow((5.475, 4.5), (5.475, 3.9))
    axes.text(0.05, 4.9, f"one of L = {m.L} layers", fontsize=10, color=INK)
    axes.text(0.05, 0.25, f"Before the first layer: embedding, {m.V:,} × {m.C:,}. After the last: "
                          f"norm, then lm_head, {m.C:,} × {m.V:,}.", fontsize=9, color=INK)
    axes.set(xlim=(0, 11), ylim=(0.1, 5.4), title=m.name)
    axes.axis("off")
    return closed(figure)


def causal_mask(T, N):
    """T new tokens at the end of a context of N: blue where a new token may see another."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(figsize=(0.5 * N + 1.8, 0.5 * T + 0.8), layout="constrained")
    for t in range(T):
        for n in range(N):
            axes.add_patch(Rectangle((n, t), 1, 1, fc=BLUE if n <= N - T + t else PALE, ec="white"))
    axes.set(xlim=(0, N), ylim=(T, 0), aspect="equal", xlabel="token of the context",
             title=f"attended({T}, {N}) = {sum(N - t for t in range(T))}")
    axes.set_xticks(np.arange(N) + 0.5, range(N))
    axes.set_yticks(np.arange(T) + 0.5, [f"new token {N - T + t}" for t in range(T)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return closed(figure)
