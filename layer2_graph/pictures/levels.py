"""Levels: formats on a line, a group's error by its scale, inputs that go together."""

import torch

from lab.plots import BLUE, INK, RED, closed
from layer2_graph.g07_weight_quantization import absmax_scales, perplexity, round_trip
from layer2_graph.g08_activation_kv_quantization import with_matmul


def level_lines(formats, weights):
    """The levels of some formats, divided by their last, a tick each; below them a group of
    weights, divided by its largest.

    formats: {name: levels from 0 up}    weights: (group,)
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 2.7), layout="constrained")
    labels = [f"{name}: {2 * len(levels) - 1} codes" for name, levels in formats.items()]
    for row, levels in enumerate(formats.values()):
        places = [sign * level / levels[-1] for level in levels for sign in (1, -1)]
        axes.vlines(places, row - 0.33, row + 0.33, color=BLUE, lw=0.8)
    axes.plot((weights / weights.abs().max()).tolist(), [len(labels)] * len(weights), "o", ms=6,
              mfc="none", mec=INK)
    axes.set_yticks(range(len(labels) + 1), [*labels, f"{len(weights)} weights"], fontsize=9)
    axes.set_xlabel("divided by the last level, or by the largest |weight|", fontsize=9)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return closed(figure)


def error_by_share(weights, formats, shares):
    """The squared error of one group of weights if its largest scale is multiplied by a share.

    weights: (group,)    formats: {name: levels}, two    shares: factors of the largest scale
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(formats), sharey=True, figsize=(7.5, 2.4),
                                 layout="constrained")
    for axes, (name, levels) in zip(every, formats.items(), strict=True):
        scale = absmax_scales(weights[None], levels, len(weights))
        errors = [float((round_trip(weights[None], levels, scale * share) - weights).square().sum())
                  for share in shares]
        best = errors.index(min(errors))
        axes.semilogy(shares, errors, "o-", ms=3.5, lw=1, color=BLUE)
        axes.plot(shares[best], errors[best], "o", ms=6, color=RED)
        axes.set_title(name, loc="left", fontsize=10, color=INK)
        axes.set_xlabel("share of the largest scale", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    every[0].set_ylabel("squared error", fontsize=9)
    return closed(figure)


def inputs_together(model, name, documents):
    """The two inputs of a matrix that go together most: a dot for each token of the documents.

    name: of the matrix    documents: [[token]]
    """
    import matplotlib.pyplot as plt

    rows = []

    def matmul(matrix, x, w):
        if matrix == name:
            rows.append(x)
        return model.ops.matmul(x, w)

    perplexity(with_matmul(model, matmul), documents)
    x = torch.cat(rows)                             # (tokens, K)
    together = torch.corrcoef(x.T).triu(1)
    j, k = divmod(int(together.argmax()), x.shape[1])
    figure, axes = plt.subplots(figsize=(4.2, 3.0), layout="constrained")
    axes.plot(x[:, j].tolist(), x[:, k].tolist(), "o", ms=3, color=BLUE, alpha=0.5)
    axes.set_xlabel(f"input {j}", fontsize=9)
    axes.set_ylabel(f"input {k}", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)
