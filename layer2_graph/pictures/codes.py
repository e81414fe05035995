"""Codes: how numbers become levels, and what sets their scales."""

from lab.plots import BLUE, GREY, INK, RED, closed
from layer2_graph.g07_weight_quantization import absmax_scales, perplexity, round_trip
from layer2_graph.g08_activation_kv_quantization import with_matmul

PALE = "#d0d7de"
BLUES = ("#0a3069", "#0969da", "#54aeff", "#9cd2ff", "#ddf4ff", "#6e7781")     # scales of x
REDS = ("#cf222e", "#ff8182", "#ffcecb")                                        # of w


def rounded(w, levels, group):
    """One row of weights in groups, with the levels of each group as lines: rings are the weights,
    dots are what comes back.

    w: (K,)    levels: numbers of the format, ascending from 0    group: weights that share a scale
    """
    import matplotlib.pyplot as plt

    scales = absmax_scales(w[None], levels, group)[0].tolist()
    back = round_trip(w[None], levels, absmax_scales(w[None], levels, group))[0].tolist()
    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    for g, scale in enumerate(scales):
        for level in levels:
            for y in {level * scale, -level * scale}:
                axes.plot([g * group - 0.5, (g + 1) * group - 0.5], [y, y], color=PALE, lw=0.8,
                          zorder=0)
        axes.text(g * group, max(scales) * levels[-1] * 1.08, f"scale {scale:.4f}", fontsize=9,
                  color=INK)
        if g:
            axes.axvline(g * group - 0.5, color=GREY, lw=1)
    axes.plot(w.tolist(), "o", ms=6, mfc="white", mec=INK, label="a weight")
    axes.plot(back, "o", ms=3.5, color=BLUE, label="what comes back")
    axes.set(xlim=(-0.5, len(w) - 0.5))
    axes.set_xlabel("weight of the row", fontsize=9)
    axes.set_ylim(-max(scales) * levels[-1] * 1.1, max(scales) * levels[-1] * 1.22)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2,
                  frameon=False, fontsize=9)
    return closed(figure)


def largest_of_tokens(model, name, document, sample):
    """The largest |x| that each token of a document sends into a matrix, a bar each, and the
    largest of a sample as a line.

    name: of the matrix    document: [token]    sample: [[token]]
    Red bars are above the line.
    """
    import matplotlib.pyplot as plt

    rows = []

    def matmul(matrix, x, w):
        if matrix == name:
            rows.extend(x.abs().amax(-1).tolist())
        return model.ops.matmul(x, w)

    perplexity(with_matmul(model, matmul), sample)
    calibration = max(rows)
    rows.clear()
    perplexity(with_matmul(model, matmul), [document])
    figure, axes = plt.subplots(figsize=(7.5, 2.5), layout="constrained")
    axes.bar(range(len(rows)), rows, 0.8, color=[RED if n > calibration else BLUE for n in rows])
    axes.axhline(calibration, color=INK, lw=1.2, ls="--")
    axes.set_title(f"dashed: the largest of the sample; {sum(n > calibration for n in rows)} of "
                   f"{len(rows)} tokens go beyond it", loc="left", fontsize=9, color=INK)
    axes.set(xlim=(-0.7, len(rows) - 0.3), ylim=(0, 1.15 * max(calibration, *rows)))
    axes.set_xlabel("token", fontsize=9)
    axes.set_ylabel("largest |x|", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def scales_of_a_product(T, K, N):
    """x · wᵀ twice: with a scale for each row of x and of w, and with one for each column of x. A
    colour is a scale; below, the K products of one sum, in the colours of their factors from x."""
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, 2, figsize=(7.5, 3.8), layout="constrained")
    rows = [[BLUES[t]] * K for t in range(T)]
    columns = [[REDS[n] for n in range(N)] for _ in range(K)]
    channels = [[BLUES[k] for k in range(K)] for _ in range(T)]
    left = K + 1
    top = K + 1
    for axes, x, title in ((every[0], rows, "a scale for each row: it leaves the sum"),
                           (every[1], channels, "a scale for each column of x: it stays inside")):
        boxes(axes, x, 0, top)
        boxes(axes, columns, left, 0)
        boxes(axes, [[PALE] * N for _ in range(T)], left, top)
        axes.add_patch(plt.Rectangle((left + 1, top + 1), 1, 1, fill=False, ec=INK, lw=1.5))
        boxes(axes, [x[1]], 0, top + T + 1)
        for words, place in ((f"x ({T}, {K})", (K / 2, top - 0.5)),
                             (f"wᵀ ({K}, {N})", (left + N / 2, -0.5)),
                             ("result", (left + N / 2, top - 0.5)),
                             ("products of the framed sum", (K / 2, top + T + 2.6))):
            axes.text(*place, words, ha="center", va="center", fontsize=9, color=INK)
        axes.set_title(title, fontsize=10, color=INK)
        axes.set(xlim=(-0.4, left + N + 0.2), ylim=(top + T + 3.2, -1.2), aspect="equal")
        axes.axis("off")
    return closed(figure)


def boxes(axes, colours, left, top):
    """A matrix of squares, from its colours."""
    from matplotlib.patches import Rectangle

    for row, line in enumerate(colours):
        for column, colour in enumerate(line):
            axes.add_patch(Rectangle((left + column, top + row), 1, 1, fc=colour, ec="white"))


def channel_bars(maxima):
    """The largest |x| of each channel, on a logarithmic axis; those over 3 times the median in red.

    maxima: {label: (K,)}, a panel each
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(maxima), figsize=(7.5, 2.5), layout="constrained",
                                 sharey=True, squeeze=False)
    for axes, (label, largest) in zip(every[0], maxima.items(), strict=True):
        border = 3 * largest.median()
        axes.bar(range(len(largest)), largest.tolist(), 1,
                 color=[RED if n > border else BLUE for n in largest])
        axes.set_yscale("log")
        axes.set_title(label, loc="left", fontsize=10, color=INK)
        axes.set_xlabel("channel", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    every[0, 0].set_ylabel("largest |x|", fontsize=9)
    return closed(figure)


def slots_of_tokens(slots, P, S):
    """Tokens above, pages below: an arrow from each token to its slot, nowhere from slot -1.

    slots: of each token    P, S: pages, slots of a page
    """
    import matplotlib.pyplot as plt

    width = P * (S + 1) - 1
    figure, axes = plt.subplots(figsize=(7.5, 2.2), layout="constrained")
    for page in range(P):
        start = page * (S + 1)
        boxes(axes, [[BLUE if page * S + s in slots else PALE for s in range(S)]], start, 4)
        axes.text(start + S / 2, 5.2, f"page {page}", ha="center", va="top", fontsize=9, color=INK)
    for t, slot in enumerate(slots):
        x = (t + 0.5) * width / len(slots)
        boxes(axes, [[BLUE if slot >= 0 else PALE]], x - 0.5, 0)
        axes.text(x, -0.2, f"token {t}\nslot {slot}", ha="center", va="bottom", fontsize=9,
                  color=INK)
        if slot >= 0:
            axes.annotate("", (slot // S * (S + 1) + slot % S + 0.5, 4), (x, 1), arrowprops={
                "arrowstyle": "->", "color": BLUE, "shrinkA": 0, "shrinkB": 0})
    axes.set(xlim=(-0.5, width + 0.5), ylim=(6.2, -2))
    axes.axis("off")
    return closed(figure)
