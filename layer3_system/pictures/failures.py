"""Failures: a month of a job as a band, what intervals between saves lose, disks after a stop."""

from typing import TYPE_CHECKING

from lab.plots import BLUE, GREY, INK, RED, closed
from layer3_system.training.failures import HOUR, MONTH, Span, expected_loss, share

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALE = "#d0d7de"
COLOURS = {"useful": BLUE, "lost": RED, "saving": GREY, "starting": PALE}
ORDER = "useful", "lost", "saving", "starting"


def month_bands(months: dict[str, list[Span]]) -> "Figure":
    """A band for each month, and the share of its time that each kind takes."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 0.9 + 0.75 * len(months)), layout="constrained")
    for row, spans in enumerate(months.values()):
        for kind in ORDER:
            bars = [(s.begin / HOUR / 24, (s.end - s.begin) / HOUR / 24) for s in spans
                    if s.kind == kind]
            axes.broken_barh(bars, (row - 0.36, 0.5), color=COLOURS[kind], lw=0)
        shares = "   ".join(f"{kind} {share(spans, kind):.1%}" for kind in ORDER)
        axes.annotate(shares, (0, row + 0.3), fontsize=8, color=INK, va="center")
    axes.set_yticks(range(len(months)), list(months))
    axes.set(xlim=(0, MONTH / HOUR / 24), ylim=(len(months) - 0.5, -0.5), xlabel="day")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    for kind in ORDER:
        axes.barh(0, 0, color=COLOURS[kind], label=kind)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=9, handlelength=1)
    return closed(figure)


def interval_curve(delta: float, mtbf: float, dots: list[tuple[float, float]]) -> "Figure":
    """The share lost by the seconds between saves: the formula as a line, simulated months as dots.

    dots: (τ, share lost)
    """
    import matplotlib.pyplot as plt

    taus = [60 * 1.1 ** k for k in range(90)]
    losses = [expected_loss(tau, delta, mtbf) for tau in taus]
    best = (2 * delta * mtbf) ** 0.5
    least = expected_loss(best, delta, mtbf)
    figure, axes = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    axes.loglog([tau / 60 for tau in taus], losses, color=BLUE, label="δ/τ + τ/(2·M)")
    axes.loglog([tau / 60 for tau, _ in dots], [lost for _, lost in dots], "o", color=INK, ms=4,
                label="simulated")
    axes.plot(best / 60, least, "o", color=RED, ms=8, mfc="none", mew=1.6)
    axes.annotate(f"{best / 60:.1f} minutes: {least:.1%}", (best / 60, least), xytext=(0, -16),
                  textcoords="offset points", ha="center", fontsize=9, color=RED)
    axes.set(xlabel="minutes between saves", ylabel="share of the time lost",
             xlim=(1, 60 * 24 * 2), ylim=(least / 2, 1))
    axes.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5, 1], ["2 %", "5 %", "10 %", "20 %", "50 %", "100 %"])
    axes.set_yticks([], minor=True)
    axes.set_xticks([1, 5, 30, 90, 360, 1440], ["1", "5", "30", "90", "360", "1,440"])
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return closed(figure)


def disk_outcomes(rows: list[tuple[str, dict[int | None, int]]]) -> "Figure":
    """For each operation, a bar: the shares of the disks that a stop after it could leave, by the
    step that a training goes on from.

    rows: (operation, {step: disks})
    """
    import matplotlib.pyplot as plt

    steps = sorted({step for _, counts in rows for step in counts}, key=lambda step: step or -1)
    figure, axes = plt.subplots(figsize=(7.5, 0.9 + 0.2 * len(rows)), layout="constrained")
    colours = dict(zip(steps, (PALE, BLUE, INK), strict=False))
    for row, (_, counts) in enumerate(rows):
        left = 0.0
        for step in steps:
            width = counts.get(step, 0) / sum(counts.values())
            axes.barh(row, width, 0.8, left=left, color=RED if step is None else colours[step])
            left += width
    axes.set_yticks(range(len(rows)), [f"{name}   {sum(counts.values())}" for name, counts in rows],
                    fontsize=8)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, 1), xlabel="share of the disks")
    axes.set_xticks([0, 0.5, 1], ["0", "half", "all"])
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    for step in steps:
        axes.barh(0, 0, color=RED if step is None else colours[step],
                  label="nothing to go on from" if step is None else f"go on from step {step}")
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9, handlelength=1)
    return closed(figure)
