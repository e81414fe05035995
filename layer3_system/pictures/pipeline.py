"""Pipelines: which stage does what when, and how many micro-batches it keeps."""

from typing import TYPE_CHECKING

from lab.plots import BLUE, GREY, INK, RED, closed
from layer3_system.pipeline import Times, bubble

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALE = "#9cd2ff"
KINDS = {"F": ("forward", PALE, INK), "B": ("backward", BLUE, "white"),
         "W": ("the weights' part of a backward", "#d0d7de", INK)}


def pipeline_lanes(runs: dict[str, Times], p: int, unit: str = "ticks") -> "Figure":
    """A lane for each rank, a box for each action with the number of its micro-batch; a panel for
    each run.
    What stays white is the bubble.

    runs: {title: when each action begins and ends}.  A stroke after a number: the rank's second
    chunk of layers.
    The title adds the length, in `unit`, and the idle share.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    origins = {title: min(start for start, _ in times.values()) for title, times in runs.items()}
    lengths = {title: max(end for _, end in times.values()) - origins[title]
               for title, times in runs.items()}
    figure, every = plt.subplots(len(runs), 1, sharex=True, squeeze=False, layout="constrained",
                                 figsize=(7.5, 0.7 + len(runs) * (0.45 + 0.27 * p)))
    for axes, (title, times) in zip(every[:, 0], runs.items(), strict=True):
        for (kind, stage, j), (start, end) in times.items():
            chunk, rank = divmod(stage, p)
            _, fill, ink = KINDS[kind]
            axes.add_patch(Rectangle((start - origins[title], rank + 0.06), end - start, 0.88,
                                     fc=fill, ec="white", lw=0.8))
            axes.text((start + end) / 2 - origins[title], rank + 0.5, f"{j}{'′' * chunk}",
                      ha="center", va="center", color=ink, fontsize=7)
        axes.set_title(f"{title}: {lengths[title]:.3g} {unit}, {bubble(times, p):.1%} idle",
                       loc="left", fontsize=9, color=INK)
        axes.set(xlim=(0, max(lengths.values())), ylim=(p, 0))
        axes.set_yticks([r + 0.5 for r in range(p)], [f"stage {r}" for r in range(p)], fontsize=8)
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_color(GREY)
    every[-1, 0].set_xlabel(unit, fontsize=9)
    kinds = {kind for times in runs.values() for kind, _, _ in times}
    figure.legend(handles=[Patch(fc=fill, label=name)
                           for kind, (name, fill, _) in KINDS.items() if kind in kinds],
                  loc="outside lower center", ncols=3, frameon=False, handlelength=1.2, fontsize=8)
    return closed(figure)


def kept_lines(runs: dict[str, Times], p: int) -> "Figure":
    """Micro-batches whose activations each stage keeps, over time: from the end of a forward to the
    end of its backward.
    A panel for each run, a line for each stage of four at most."""
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(runs), sharey=True, squeeze=False, figsize=(7.5, 2.6),
                                 layout="constrained")
    most = max(sum(kind == "F" and s == stage for kind, s, _ in times)
               for times in runs.values() for stage in range(p))
    strokes = ((INK, "-"), (BLUE, "-"), (RED, "-"), (GREY, "-"))
    for axes, (title, times) in zip(every[0], runs.items(), strict=True):
        for stage, (colour, style) in zip(range(p), strokes, strict=False):
            events = sorted((end, 1 if kind == "F" else -1)
                            for (kind, s, _), (_, end) in times.items() if s == stage)
            at = [0.0]
            counts = [0]
            for end, change in events:
                at.append(end)
                counts.append(counts[-1] + change)
            axes.step(at, counts, where="post", color=colour, ls=style, lw=1.6,
                      label=f"stage {stage}: {max(counts)} at the peak")
        axes.set_title(title, loc="left", fontsize=9, color=INK)
        axes.set_xlabel("ticks", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.legend(frameon=False, fontsize=7, loc="upper right", handlelength=1.2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set(ylim=(0, 1.6 * most), yticks=range(0, most + 1, -(-most // 8)))
    every[0, 0].set_ylabel("micro-batches kept", fontsize=9)
    return closed(figure)
