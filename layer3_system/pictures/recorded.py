"""Notes of a Recorder, drawn: which pages are held, and which request ran in which step

P: pages of the pool   S: slots of a page, one token each
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lab.plots import GREY, INK, RED, closed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["block_map", "step_timeline"]

COLUMNS = 16            # pages in a row of the map
CROWDED = 40            # with more steps a cell has no room for a number
EMPTY = "#f3f5f7"
PALE = "#d0d7de"


def shades(names):
    """{name: (dark, light)}. After ten they repeat."""
    import matplotlib.pyplot as plt

    pairs = plt.get_cmap("tab20").colors
    return {name: pairs[2 * (i % 10):2 * (i % 10) + 2] for i, name in enumerate(names)}


def block_map(title: str, snapshots: dict[str, dict[str, Any]],
              names: Iterable[str] | None = None) -> "Figure":
    """The pages of a pool, a square each, in a panel for each snapshot.

    snapshots: {label: what pages_of gives}    names: requests in the order of their colours; None:
    as they appear.
    A page is dark as far as it is filled.
    One that several requests hold has a stripe of each, and their number.
    Hatched: free, with contents that are remembered.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    names = names or dict.fromkeys(n for s in snapshots.values() for n in s["requests"])
    colours = shades(names)
    heights = [-(-s["pages"] // COLUMNS) for s in snapshots.values()]
    figure, every = plt.subplots(len(snapshots), 1, squeeze=False, height_ratios=heights,
                                 figsize=(7.5, 0.8 + 0.44 * sum(heights) + 0.45 * len(heights)),
                                 layout="constrained")
    for axes, (label, snapshot) in zip(every[:, 0], snapshots.items(), strict=True):
        P = snapshot["pages"]
        S = snapshot["slots"]
        holders = {page: [] for page in range(P)}
        for name, request in snapshot["requests"].items():
            for i, page in enumerate(request["table"]):
                filled = min(max(request["computed"] - i * S, 0), S) / S
                holders[page].append((name, filled))
        for page, requests in holders.items():
            x = page % COLUMNS
            y = page // COLUMNS
            remembered = page in snapshot["remembered"]
            axes.add_patch(Rectangle((x, y), 0.92, 0.92, fc=EMPTY, ec=GREY, lw=0.5,
                                     hatch="////" if remembered else None))
            for k, (name, filled) in enumerate(requests):
                width, (dark, light) = 0.92 / len(requests), colours[name]
                left = x + k * width
                axes.add_patch(Rectangle((left, y), width, 0.92, fc=light))
                axes.add_patch(Rectangle((left, y + 0.92 * (1 - filled)), width, 0.92 * filled,
                                         fc=dark))
            if snapshot["refs"][page] > 1:
                axes.text(x + 0.46, y + 0.46, f"{snapshot['refs'][page]}", ha="center",
                          va="center", color=INK, weight="bold",
                          bbox={"boxstyle": "circle,pad=0.2", "fc": "white", "ec": INK})
        axes.set_title(label, loc="left", fontsize=10, color=INK)
        axes.set(xlim=(-0.05, COLUMNS), ylim=(-(-P // COLUMNS), -0.05), aspect="equal")
        axes.axis("off")
    legend = [Patch(fc=colours[name][0], label=name) for name in names]
    legend += [Patch(fc=EMPTY, ec=GREY, hatch="////", label="free, remembered"),
               Patch(fc=EMPTY, ec=GREY, label="free")]
    figure.legend(handles=legend, loc="outside lower center", ncols=min(len(legend), 8),
                  frameon=False, handlelength=1)
    figure.suptitle(title)
    return closed(figure)


def step_timeline(title: str, history: Iterable[dict[str, Any]],
                  names: Iterable[str] | None = None) -> "Figure":
    """Which request ran in which step: a lane a request, a column a step.

    history: as a Recorder has it    names: requests in the order of their lanes; None: as they
    appear.
    Dark: tokens of its prompt, or of its answer recomputed, with their number.
    Light: one token of its answer.
    A grey line: it waits.
    """
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, Rectangle
    from matplotlib.ticker import MaxNLocator

    history = list(history)
    if not history:
        raise ValueError("step_timeline: the history is empty: no step was taken")
    names = list(names or dict.fromkeys(
        name for note in history for name in (*note["counts"], *note["waiting"])))
    colours = shades(names)
    crowded = len(history) > CROWDED
    lanes = {name: y for y, name in enumerate(names)}
    figure, axes = plt.subplots(figsize=(7.5, 1.5 + 0.34 * len(names)), layout="constrained")
    for note in history:
        x = note["step"]
        for name, n in note["counts"].items():
            dark, light = colours[name]
            single = n == 1 and name not in note["prompts"]
            axes.add_patch(Rectangle((x + 0.03, lanes[name] + 0.1), 0.94, 0.8,
                                     fc=light if single else dark))
            if not single and not crowded:
                axes.text(x + 0.5, lanes[name] + 0.5, n, ha="center", va="center", color="white",
                          fontsize=8)
        for name in note["waiting"]:
            axes.plot([x, x + 1], [lanes[name] + 0.5] * 2, color=GREY, lw=1.5)
        for name in note["preempted"]:
            axes.plot(x + 0.5, lanes[name] + 0.5, "v", color=RED, ms=9)
        for name, reason in note["ended"].items():
            if reason in ("abort", "error"):
                axes.plot(x + 0.5, lanes[name] + 0.5, "X", color=INK, ms=9)
    axes.set(title=title, xlabel="step", ylim=(len(names), 0),
             xlim=(history[0]["step"], history[-1]["step"] + 1))
    axes.set_yticks([y + 0.5 for y in range(len(names))], names)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(handles=[
        Patch(fc=INK, label="tokens of a prompt, or recomputed"),
        Patch(fc=PALE, label="one of an answer"),
        Line2D([], [], color=GREY, lw=1.5, label="waits"),
        Line2D([], [], color=RED, marker="v", ls="none", ms=8, label="preempted"),
        Line2D([], [], color=INK, marker="X", ls="none", ms=8, label="aborted")],
        loc="outside lower center", ncols=5, frameon=False, handlelength=1,
        columnspacing=1.2)
    return closed(figure)
