"""A request's life: waiting, running, finished, and num_computed after num_tokens."""

from typing import TYPE_CHECKING

from lab.plots import BLUE, GREY, INK, RED, closed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WAYS = [("admit", (0.30, 0.78), (0.30, 0.64), 0.03, BLUE),
        ("preempt", (0.15, 0.64), (0.15, 0.78), 0.03, RED),
        ("finish", (0.30, 0.38), (0.30, 0.24), 0.03, INK)]      # name, from, to, its place, colour


def request_life(counts: list[tuple[int, int, int]]) -> "Figure":
    """Left: the states of a request.
    Right: two numbers of one request, step by step.

    counts: its (num_tokens, num_computed, preemptions) before the first step and after each
    """
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.2), layout="constrained",
                                         width_ratios=(1, 2))
    draw_states(left)
    draw_numbers(right, counts)
    return closed(figure)


def draw_states(axes: "Axes") -> None:
    for y, name, pages in ((0.88, "waiting", "no pages"), (0.51, "running", "holds pages"),
                           (0.14, "finished", "pages freed")):
        axes.text(0.225, y, f"{name}\n{pages}", ha="center", va="center", fontsize=9, color=INK,
                  bbox={"boxstyle": "round,pad=0.5", "fc": "white", "ec": INK})
    for name, begin, end, gap, colour in WAYS:
        axes.annotate("", end, begin, arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.5})
        axes.text(begin[0] + (gap if name != "preempt" else -gap), (begin[1] + end[1]) / 2, name,
                  ha="right" if name == "preempt" else "left", va="center", fontsize=9,
                  color=colour)
    axes.annotate("", (0.42, 0.14), (0.42, 0.88), arrowprops={
        "arrowstyle": "->", "color": INK, "lw": 1.5, "connectionstyle": "arc3,rad=-0.6"})
    axes.text(0.76, 0.51, "finish", va="center", fontsize=9, color=INK)
    axes.set(xlim=(-0.15, 1.05), ylim=(0, 1))
    axes.axis("off")


def draw_numbers(axes: "Axes", rows: list[tuple[int, int, int]]) -> None:
    steps = range(len(rows))
    tokens, computed, preemptions = zip(*rows, strict=True)
    axes.fill_between(steps, computed, tokens, step="post", color=GREY, alpha=0.25, lw=0)
    axes.step(steps, tokens, where="post", color=GREY, lw=2, label="num_tokens")
    axes.step(steps, computed, where="post", color=BLUE, lw=2, label="num_computed")
    fall = [i for i in steps[1:] if preemptions[i] > preemptions[i - 1]]
    axes.plot(fall, [0.4] * len(fall), "v", color=RED, ms=8, ls="", label="preempted")
    axes.set(xlabel="steps done", ylabel="tokens", ylim=(0, None), xlim=(0, len(rows) - 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
