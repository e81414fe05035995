"""Learning from own answers: which were good, rewards and gaps by update, placements, a plan."""

from typing import TYPE_CHECKING, Any

from lab.plots import BLUE, GREY, INK, RED, STROKES, closed
from layer3_system.rl.lanes import Work
from layer3_system.rl.layout import Piece, part

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["answer_grid", "gap_curves", "placement_lanes", "plan_grid", "reward_curves"]

PALE = "#d0d7de"
COLOURS = {"rollout": BLUE, "training": RED}
RANKS = BLUE, RED, "#bf8700", "#1a7f37", GREY       # of the rank that gets a piece


def answer_grid(grids: dict[str, list[list[float]]], roles: list[str]) -> "Figure":
    """A panel a grid: a row a question, a square an answer, blue where its reward is above 0."""
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(len(grids), 1, squeeze=False, layout="constrained",
                                 figsize=(7.5, 1.9 * len(grids)))
    for axes, (title, rows) in zip(every[:, 0], grids.items(), strict=True):
        for i, row in enumerate(rows):
            for j, reward in enumerate(row):
                axes.add_patch(plt.Rectangle((j + 0.06, i + 0.06), 0.88, 0.88,
                                             color=BLUE if reward > 0 else PALE, lw=0))
            axes.annotate(f"{sum(row) / len(row):.2f}", (len(row) + 0.2, i + 0.5), va="center",
                          fontsize=9, color=INK)
        mean = sum(map(sum, rows)) / sum(map(len, rows))
        axes.set_title(f"{title}: reward {mean:.2f}", loc="left", fontsize=10, color=INK)
        axes.set(xlim=(0, len(rows[0]) + 1.5), ylim=(len(rows), 0), aspect="equal")
        axes.set_yticks([i + 0.5 for i in range(len(rows))], roles, fontsize=9)
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return closed(figure)


def lines(axes: "Axes", runs: dict[str, list[float]]) -> None:
    """A line a run, by update from 1 on, named at the side."""
    for (name, values), (colour, style) in zip(runs.items(), STROKES, strict=False):
        axes.plot(range(1, len(values) + 1), values, style, color=colour, lw=1.5, label=name)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def reward_curves(seeds: dict[str, dict[str, Any]], roles: list[str],
                  larger: dict[str, dict[str, Any]]) -> "Figure":
    """The mean reward by update of each seed; of the first seed, that of each role; and a larger
    model's seeds."""
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(3, 1, figsize=(7.5, 5.8), layout="constrained", sharex=True)
    by_role = zip(*next(iter(seeds.values()))["roles"], strict=True)
    panels = {
        "the draft model": {f"seed {seed}": run["reward"] for seed, run in seeds.items()},
        "its seed 0, by role": {role: list(values)
                                for role, values in zip(roles, by_role, strict=True)},
        "the small model": {f"seed {seed}": run["reward"] for seed, run in larger.items()}}
    for axes, (title, runs) in zip(every, panels.items(), strict=True):
        lines(axes, runs)
        axes.set_title(title, loc="left", fontsize=10, color=INK)
        axes.set(ylabel="reward", ylim=(-0.02, 1.02))
    every[-1].set_xlabel("update")
    return closed(figure)


def gap_curves(arms: dict[str, dict[str, Any]], bound: float) -> "Figure":
    """Reward and gap by update of each arm; dashed: the bound of the gap."""
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(7.2, 4.0), layout="constrained",
                                          sharex=True)
    lines(above, {name: run["reward"] for name, run in arms.items()})
    lines(below, {name: run["gap"] for name, run in arms.items()})
    below.get_legend().remove()
    below.set_yscale("log")
    below.axhline(bound, color=GREY, lw=1, ls="--")
    above.set(ylabel="reward", ylim=(-0.02, 1.02))
    below.set(ylabel="gap, nats", xlabel="update")
    below.locator_params(axis="x", integer=True)        # there is no update 2.5
    return closed(figure)


def placement_lanes(placements: dict[str, list[Work]]) -> "Figure":
    """A panel a placement, a lane a rank; all have the same seconds."""
    import matplotlib.pyplot as plt

    last = max(work.end for works in placements.values() for work in works)
    figure, every = plt.subplots(len(placements), 1, squeeze=False, layout="constrained",
                                 figsize=(7.5, 1.6 * len(placements)), sharex=True)
    for axes, (title, works) in zip(every[:, 0], placements.items(), strict=True):
        for work in works:
            axes.barh(work.rank, work.end - work.begin, 0.86, left=work.begin, edgecolor="white",
                      color=COLOURS[work.kind])
        ranks = max(work.rank for work in works) + 1
        axes.set_title(title, loc="left", fontsize=9, color=INK)
        axes.set(xlim=(0, last), ylim=(ranks - 0.5, -0.5))
        axes.set_yticks([0, ranks - 1], ["rank 0", f"rank {ranks - 1}"], fontsize=8)
        axes.tick_params(left=False)
        axes.spines[["top", "right", "left"]].set_visible(False)
    for kind, colour in COLOURS.items():
        every[0, 0].barh(0, 0, color=colour, label=kind)
    every[-1, 0].set_xlabel("seconds")
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=9, handlelength=1)
    return closed(figure)


def plan_grid(shape: tuple[int, int], W: int, plan: list[Piece]) -> "Figure":
    """A matrix in bands of rows, one a rank, and where each piece goes; pale ones stay."""
    import matplotlib.pyplot as plt

    N, K = shape
    figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    for source, target, (rows, columns) in plan:
        corner = columns[0], rows[0]
        axes.add_patch(plt.Rectangle(corner, columns[1] - columns[0], rows[1] - rows[0],
                                     color=RANKS[target % len(RANKS)], lw=0,
                                     alpha=0.25 if source == target else 0.85))
        axes.text(sum(columns) / 2, sum(rows) / 2, "stays" if source == target else
                  f"{source} → {target}", ha="center", va="center", fontsize=10,
                  color=INK if source == target else "white")
    for rank in range(W):
        (top, bottom), _ = part("fsdp", shape, rank, W)
        axes.axhline(bottom, color=INK, lw=1.5)
        axes.annotate(f"rank {rank}", (-0.2, (top + bottom) / 2), ha="right", va="center",
                      fontsize=9, color=INK, annotation_clip=False)
    axes.set(xlim=(0, K), ylim=(N, 0))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return closed(figure)
