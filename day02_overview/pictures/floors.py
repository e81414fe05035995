"""The floors of serving: which has the time of a step, and to which a cause belongs."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed

FLOOR_SHADES = {"kernel": "#54aeff", "graph": RED, "system": "#0a3069", "idle": "#d0d7de"}


def floors_by_step(title, panels):
    """A bar a step, stacked by floor; a panel for each kind of step, on one scale.

    panels: {label: [({floor: ms}, label of the step)]}
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(panels), squeeze=False, sharey=True, figsize=(7.5, 3.6),
                                 width_ratios=[len(bars) + 1 for bars in panels.values()],
                                 layout="constrained")
    for axes, (label, bars) in zip(every[0], panels.items(), strict=True):
        bottom = np.zeros(len(bars))
        for floor, colour in FLOOR_SHADES.items():
            heights = np.array([times.get(floor, 0) for times, _ in bars])
            if heights.any():
                axes.bar(range(len(bars)), heights, 0.85, bottom=bottom, color=colour, label=floor)
            bottom += heights
        axes.set_title(label, fontsize=10, color=INK)
        axes.set_xticks(range(len(bars)), [name for _, name in bars], fontsize=8)
        axes.set(xlim=(-0.6, len(bars) - 0.4))
        axes.tick_params(length=0)
        axes.spines[["top", "right"]].set_visible(False)
    every[0, 0].set_ylabel("ms")
    figure.legend(*every[0, -1].get_legend_handles_labels(), loc="outside lower center", ncols=4,
                  frameon=False, handlelength=1)
    figure.suptitle(title)
    return closed(figure)


STEP_SHADES = {"matmul": BLUE, "paged_attention": RED}


def building(title, step, measures):
    """One step, seen from each floor: a bar a span, its name where there is room.

    step: an o01 Step    measures: {floor: how it is measured}, from top to bottom
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    start = step.spans[0].begin
    figure, axes = plt.subplots(figsize=(7.5, 3.0), layout="constrained")
    for span in step.spans:
        y = list(measures).index(span.floor)
        left = (span.begin - start) / 1e6
        ms = (span.end - span.begin) / 1e6
        small = span.floor == "kernel"
        colour = STEP_SHADES.get(span.name, GREY) if small else "#ddf4ff"
        axes.barh(y, ms, left=left, color=colour, edgecolor="white" if small else BLUE, lw=0.5)
        if ms > 1:
            axes.text(left + ms / 2, y, f"{span.name}, {ms:.1f} ms", ha="center", va="center")
    axes.set(title=title, xlabel="ms", xlim=(0, None))
    axes.set_yticks(range(len(measures)), [f"{name}\n{text}" for name, text in measures.items()])
    axes.invert_yaxis()
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    shades = {"matmul": BLUE, "attention": RED, "other kernels": GREY}
    figure.legend(handles=[Patch(color=shade, label=name) for name, shade in shades.items()],
                  loc="outside lower center", ncols=3, frameon=False, handlelength=1)
    return closed(figure)


def decisions(title, steps):
    """Questions from top to bottom, each with what its answers lead to on the right.

    steps: [(question, {answer: (a floor of FLOOR_SHADES, what it leads to)})]
    """
    import matplotlib.pyplot as plt

    rows = sum(len(answers) for _, answers in steps)
    figure, axes = plt.subplots(figsize=(7.5, 0.5 + 0.46 * rows), layout="constrained")
    y = 0.0
    before = None
    for question, answers in steps:
        middle = y + (len(answers) - 1) / 2
        if before is not None:
            axes.annotate("", (1.5, middle - 0.36), (1.5, before + 0.36),
                          arrowprops={"arrowstyle": "->", "color": INK})
            axes.text(1.58, (before + middle) / 2, "no", va="center", color=INK, fontsize=9)
        axes.text(1.5, middle, question, ha="center", va="center", color=INK,
                  bbox={"boxstyle": "round,pad=0.4", "fc": "white", "ec": INK})
        for answer, (floor, what) in answers.items():
            axes.plot([1.5, 3.0, 5.1], [middle, y, y], color=GREY, lw=1, zorder=0)
            axes.text(3.1, y - 0.06, answer, va="bottom", color=INK, fontsize=9)
            axes.text(5.15, y, f"{floor}: {what}", va="center",
                      color=INK if floor == "kernel" else "white",
                      bbox={"boxstyle": "round,pad=0.3", "fc": FLOOR_SHADES[floor], "ec": "none"})
            y += 1
        before = middle
    axes.set(title=title, xlim=(0, 7.5), ylim=(rows - 0.4, -0.6))
    axes.axis("off")
    return closed(figure)
