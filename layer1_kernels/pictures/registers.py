"""Which thread holds which numbers in registers, how many, and which bits of a byte are whose."""

from bisect import bisect

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed


def fragment(lanes, place):
    """A · B on a tensor core: one result with the row and the column it needs, and the thread that
    holds each result.

    lanes: (16, 16), the thread of each    place: (row, column) of the result that is followed
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    rows, columns = lanes.shape
    row, column = place
    figure, every = plt.subplots(1, 3, figsize=(7.5, 3.3), layout="constrained",
                                 width_ratios=(1, 1, 2.2))
    for axes, name in zip(every, "ABD", strict=True):
        for r in range(rows):
            for c in range(columns):
                own = name == "D" and lanes[r, c] == lanes[place]
                needed = r == row if name == "A" else c == column if name == "B" else False
                colour = RED if name == "D" and (r, c) == place else BLUE if own else \
                    GREY if needed else "#eaeef2"
                axes.add_patch(Rectangle((c, r), 1, 1, fc=colour, ec="white", lw=0.6))
                if name == "D":
                    axes.text(c + 0.5, r + 0.52, lanes[r, c], ha="center", va="center", fontsize=7,
                              color="white" if own else INK)
        axes.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    every[0].set_title(f"A: row {row}", fontsize=9, color=INK)
    every[1].set_title(f"B: column {column}", fontsize=9, color=INK)
    every[2].set_title(f"D: the thread that holds each result;\nthread {lanes[place]} has "
                       f"{int((lanes == lanes[place]).sum())} of {lanes.size}", fontsize=9,
                       color=INK)
    return closed(figure)


def owners(size, threads):
    """A block's tile of c: which of its elements are those of some threads.

    size: rows and columns of the tile    threads: {label: (rows, columns) of its elements}
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colours = ["#eaeef2", BLUE, RED]
    shade = np.zeros((size, size), int)
    for number, (rows, columns) in enumerate(threads.values(), 1):
        shade[np.ix_(rows, columns)] = number
    figure, axes = plt.subplots(figsize=(5.5, 4.0), layout="constrained")
    axes.imshow(shade, cmap=ListedColormap(colours), vmin=0, vmax=2, interpolation="nearest",
                extent=(0, size, size, 0))
    axes.set(xticks=range(0, size + 1, 16), yticks=range(0, size + 1, 16))
    axes.set_xlabel("column of the block's tile", fontsize=9, color=INK)
    axes.set_ylabel("row of the block's tile", fontsize=9, color=INK)
    axes.tick_params(length=2, labelsize=8)
    handles = [Patch(color=colour, label=label)
               for colour, label in zip(colours[1:], threads, strict=False)]
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)
    return closed(figure)


def head_tile(H, G, HEADS, half):
    """A program of rope_triton (k09): a row for each head of q and k, and the angles of all rows.

    H, G: heads of q and of k    HEADS: rows of the tile, H + G at least    half: D/2, its columns
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(figsize=(7.5, 0.34 * HEADS + 0.9), layout="constrained")
    kinds = ("q", INK, "white"), ("k", BLUE, "white"), ("no head", "white", RED)
    labels = ["c and s"]
    for column in range(half):
        axes.add_patch(Rectangle((column, -1.4), 0.96, 0.86, fc=RED, ec="none"))
        axes.text(column + 0.48, -0.95, f"angle of pair {column}", ha="center", va="center",
                  fontsize=9, color="white")
    for h in range(HEADS):
        name, colour, ink = kinds[bisect((H, H + G), h)]
        head = {"q": f"head {h} of q", "k": f"head {h - H} of k"}.get(name, name)
        labels.append(f"h = {h}: {head}")
        for column in range(half):
            axes.add_patch(Rectangle((column, h), 0.96, 0.86, fc=colour, lw=1,
                                     ec=RED if name == "no head" else colour,
                                     ls="--" if name == "no head" else "-"))
            text = "masked" if name == "no head" else f"{name}[{column}], {name}[{column + half}]"
            axes.text(column + 0.48, h + 0.45, text, ha="center", va="center", fontsize=9,
                      color=ink)
    axes.set(xlim=(0, half), ylim=(HEADS, -1.5), xticks=[],
             yticks=[-0.95, *(h + 0.45 for h in range(HEADS))], yticklabels=labels)
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    return closed(figure)


def packed_row(w, packed, scales):
    """A row of weights as int4: the weights, the integers of each group, and the bytes.

    w: (K,)    packed: (K/2,), bytes of k15's quantize_weight    scales: (groups,)
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    groups, group = len(scales), len(w) // len(scales)
    low, high = packed & 15, packed >> 4                        # 2 × (K/2,), as q + 8
    shades = (BLUE, "white"), ("#9cd2ff", INK)                  # of a group's halves: fill, text
    figure, (above, below) = plt.subplots(2, 1, figsize=(7.5, 3.4), layout="constrained",
                                          sharex=True, height_ratios=(1.15, 1.45))
    above.bar(np.arange(len(w)) + 0.5, w, 0.8, color=GREY)
    above.axhline(0, color=INK, lw=0.6)
    top = np.abs(w).max()

    def cell(x, y, width, half, text):
        below.add_patch(Rectangle((x, y), width, 0.8, fc=shades[half][0], ec="none"))
        below.text(x + width / 2, y + 0.4, text, ha="center", va="center", fontsize=8,
                   color=shades[half][1])

    for g in range(groups):
        above.text((g + 0.5) * group, 1.2 * top, f"group {g}: scale {scales[g]:.3f}", ha="center",
                   va="bottom", fontsize=9, color=BLUE)
        for i in range(group // 2):
            byte = g * group // 2 + i
            for half, codes in enumerate((low, high)):
                cell(g * group + half * (group // 2) + i + 0.04, 2, 0.92, half,
                     int(codes[byte]) - 8)
            cell(2 * byte + 0.1, 0, 0.9, 1, f"{high[byte]:X}")
            cell(2 * byte + 1, 0, 0.9, 0, f"{low[byte]:X}")
    for number, end in ((0, 1.45), (group // 2, 0.55)):
        below.annotate("", (end, 0.84), (number + 0.5, 1.96), arrowprops={
            "arrowstyle": "->", "color": RED, "lw": 1.2, "shrinkA": 0, "shrinkB": 0})
    for axes in (above, below):
        for g in range(1, groups):
            axes.axvline(g * group, color=INK, lw=1, ls=":")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    above.set(xlim=(0, len(w)), ylim=(-1.1 * top, 1.6 * top), yticks=[0], yticklabels=["w"])
    below.set(ylim=(-0.1, 2.9), xticks=[], yticks=[0.4, 2.4],
              yticklabels=["q + 8, two\nin a byte", "q"])
    return closed(figure)


def register_cliff(threads, warps, kernels):
    """Registers of a thread against the warps that an SM holds at once, with kernels as points.

    threads: of a block    warps: {registers: warps on an SM}
    kernels: {label: registers of a thread}; red are those with fewer warps than another has
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    most = max(warps[registers] for registers in kernels.values())
    axes.step(list(warps), list(warps.values()), where="mid", color=GREY, lw=1.5)
    for place, (label, registers) in enumerate(sorted(kernels.items(), key=lambda row: row[1])):
        resident = warps[registers]
        height = resident + 5 + 4 * (len(kernels) - 1 - place)  # a stem must not cross a label
        axes.plot([registers] * 2, [resident, height], color=GREY, lw=0.6)
        axes.plot(registers, resident, "o", color=RED if resident < most else BLUE)
        axes.annotate(f"{label}: {registers}", (registers + 1, height), fontsize=8, color=INK,
                      va="bottom")
    axes.set(xlabel="registers of a thread", ylabel="warps on an SM", ylim=(0, 46),
             xlim=(min(kernels.values()) - 15, max(kernels.values()) + 30))
    axes.set_title(f"blocks of {threads} threads", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)
