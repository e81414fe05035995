"""Codes: how numbers become levels, and what sets their scales."""

from lab.plots import BLUE, GREY, INK, RED, closed
from layer2_graph.g07_weight_quantization import absmax_scales, perplexity, round_trip
from layer2_graph.g08_activation_kv_quantization import with_matmul

PALE = "#d0d7de"


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

    name: of the matrix    document: [token]    sample: [[token]]. Red bars are above the line.
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
