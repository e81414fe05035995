"""Training on several ranks: what each keeps of a parameter, and when it computes and sends."""

from typing import TYPE_CHECKING

from day01_roofline import count_parameters
from day02_overview import MIXED, state_bytes
from lab.plots import BLUE, GREY, INK, RED, closed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from day01_roofline import LlamaShape

SHADES = {"weights": "#0a3069", "gradients": RED, "optimiser": "#54aeff"}
PALE = "#d0d7de"
GPU = 80                # GB of an A100 or H100


def state_copies(n: int) -> "Figure":
    """Bytes that each of n ranks keeps for a parameter, a bar a rank; grey: copies of the first."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 0.9 + 0.42 * n), layout="constrained")
    for rank in range(n):
        left = 0
        for part, size in MIXED.items():
            axes.barh(rank, size, 0.78, left=left, color=PALE if rank else SHADES[part],
                      edgecolor="white", label=None if rank else part)
            axes.text(left + size / 2, rank, str(size), ha="center", va="center", fontsize=9,
                      color=INK if rank else "white")
            left += size
    axes.barh(0, 0, color=PALE, label="the same again")
    axes.set(xlabel="bytes a parameter", ylim=(n - 0.5, -0.5))
    axes.set_yticks(range(n), [f"rank {r}" for r in range(n)])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, handlelength=1, fontsize=9)
    return closed(figure)


def stage_bars(models: "list[tuple[LlamaShape, int]]") -> "Figure":
    """GB that a rank keeps at each stage of ZeRO, a panel for each (model, ranks); the line is what
    a GPU has.
    Activations are not counted."""
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(models), squeeze=False, layout="constrained",
                                 figsize=(7.5, 3.0))
    for axes, (m, n) in zip(every[0], models, strict=True):
        P = sum(count_parameters(m).values())
        for stage in range(4):
            size = state_bytes(P, n, stage) / 1e9
            bottom = 0.0
            for part, each in MIXED.items():
                first = {"optimiser": 1, "gradients": 2, "weights": 3}[part]
                height = each * P / 1e9 / (n if stage >= first else 1)
                axes.bar(stage, height, 0.75, bottom=bottom, color=SHADES[part],
                         label=None if stage else part)
                bottom += height
            axes.annotate(f"{size:,.0f}", (stage, size), xytext=(0, 3), ha="center", fontsize=9,
                          textcoords="offset points", color=RED if size > GPU else INK,
                          bbox={"fc": "white", "ec": "none", "pad": 0.5})
        axes.axhline(GPU, color=GREY, lw=1, ls="--")
        axes.annotate(f"{GPU} GB", (3.5, GPU), xytext=(3, 0), textcoords="offset points",
                      va="center", fontsize=8, color=GREY, annotation_clip=False)
        axes.set_title(f"{m.name}, {n} ranks", fontsize=10, color=INK)
        axes.set_xlim(-0.6, 3.5)
        axes.set_xticks(range(4), ["plain", *(f"stage {s}" for s in (1, 2, 3))], fontsize=9)
        axes.tick_params(length=0)
        axes.spines[["top", "right"]].set_visible(False)
    every[0][0].set_ylabel("GB a rank")
    figure.legend(*every[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3,
                  frameon=False, handlelength=1, fontsize=9)
    return closed(figure)


def bucket_lanes(runs: dict[str, list]) -> "Figure":
    """When one rank computed (blue) and when its buckets were summed (red), a panel a run, on one
    axis.

    runs: {title: [[name, began, ended]] of a backward}, in seconds
    """
    import matplotlib.pyplot as plt

    most = max(sum(name == "all_reduce" for name, *_ in spans) for spans in runs.values())
    figure, every = plt.subplots(len(runs), 1, squeeze=False, sharex=True, layout="constrained",
                                 figsize=(7.5, 0.6 + len(runs) * (0.5 + 0.15 * most)))
    for axes, (title, spans) in zip(every[:, 0], runs.items(), strict=True):
        start = min(began for _, began, _ in spans)
        sums = sorted(row[1:] for row in spans if row[0] == "all_reduce")
        for name, began, ended in spans:
            if name != "all_reduce":
                axes.barh(0, 1e3 * (ended - began), 0.7, left=1e3 * (began - start), color=BLUE)
        for b, (began, ended) in enumerate(sums):
            left = 1e3 * (began - start)
            axes.barh(1 + 0.5 * b, 1e3 * (ended - began), 0.42, left=left, color=RED)
            axes.annotate(f"bucket {b}", (left, 1 + 0.5 * b), xytext=(-4, 0), va="center",
                          textcoords="offset points", ha="right", fontsize=8, color=RED)
        axes.set_title(title, loc="left", fontsize=9, color=INK)
        axes.set_yticks([0], ["computes"], fontsize=8)
        axes.set_ylim(0.75 + 0.5 * most, -0.5)
        axes.tick_params(left=False, labelsize=8)
        axes.spines[["top", "right", "left"]].set_visible(False)
    every[-1, 0].set_xlabel("ms since backward began")
    return closed(figure)
