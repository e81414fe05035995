"""Grammars: where texts stop to match, tokens that jump over states, and how few may come."""

from typing import TYPE_CHECKING

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALE = "#d0d7de"
GREEN = "#1a7f37"


def match_lines(kinds: dict[str, list[tuple[int, int | None]]]) -> "Figure":
    """Answers as lines, one a row: as long as they match, in colour; from the byte at which they
    stop to match, a red dot, pale.
    A whole match is green.

    kinds: {title: [(bytes of the answer, at which byte it stops to match; None: it matches)]}
    """
    import matplotlib.pyplot as plt

    rows = max(map(len, kinds.values()))
    figure, every = plt.subplots(1, len(kinds), layout="constrained", squeeze=False,
                                 figsize=(7.5, 0.8 + 0.13 * rows), sharex=True)
    for axes, (title, answers) in zip(every[0], kinds.items(), strict=True):
        for y, (length, stop) in enumerate(answers):
            axes.plot([0, length], [y, y], color=PALE if stop is not None else GREEN, lw=3)
            if stop is not None:
                axes.plot([0, stop], [y, y], color=GREY, lw=3)
                axes.plot(stop, y, "o", color=RED, ms=5)
        whole = sum(stop is None for _, stop in answers)
        axes.set_title(f"{title}: {whole} of {len(answers)} match", loc="left", fontsize=9,
                       color=INK)
        axes.set(yticks=[], ylim=(rows - 0.3, -0.7), xlabel="byte")
        axes.spines[["top", "right", "left"]].set_visible(False)
    return closed(figure)


def automaton_jumps(names: list[str], accepting: list[bool], bytes_: list[tuple[int, int, str]],
                    tokens: list[tuple[int, int, str]]) -> "Figure":
    """States as circles in a row, where texts may end with two rings; below, arrows of one byte;
    above, arrows of tokens, which jump over circles.

    names: of the states    bytes_, tokens: (from, to, what is written along the arrow)
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Circle, FancyArrowPatch

    figure, axes = plt.subplots(figsize=(7.5, 2.7), layout="constrained")
    for x, (name, accepts) in enumerate(zip(names, accepting, strict=True)):
        for radius in (0.16, 0.13)[:1 + accepts]:
            axes.add_patch(Circle((x, 0), radius, fc="white", ec=INK, zorder=3))
        axes.text(x, 0, name, ha="center", va="center", fontsize=9, color=INK, zorder=4)
    for arrows, side, colour in ((bytes_, -1, GREY), (tokens, 1, BLUE)):
        for i, (begin, end, label) in enumerate(arrows):
            if begin == end:                        # a loop
                points = ((begin + 0.14, 0.1), (begin + 0.14, -0.1))
                bend = -2.5
                middle = (begin + 0.62, 0.0)
            else:
                points = ((begin + 0.06, 0.16 * side), (end - 0.06, 0.16 * side))
                bend = -side * (0.35 + (0.3 * i if side > 0 else 0))
                middle = ((begin + end) / 2, side * (0.16 + abs(bend) * (end - begin) / 2))
            axes.add_patch(FancyArrowPatch(*points, connectionstyle=f"arc3,rad={bend}",
                                           arrowstyle="-|>", mutation_scale=11, color=colour))
            axes.text(*middle, label, ha="center", va="center", fontsize=9, color=colour,
                      bbox={"fc": "white", "ec": "none", "pad": 1}, zorder=5)
    axes.set(xlim=(-0.4, len(names) - 0.1), ylim=(-0.7, 1), aspect="equal")
    axes.axis("off")
    return closed(figure)


def allowed_steps(words: list[str], allowed: list[int], shares: list[float]) -> "Figure":
    """An answer, token by token: how many tokens may come in its place, red where it is one, and
    which share the model gave to all that may come.    words, allowed, shares: one a token"""
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(7.5, 4.2), layout="constrained",
                                          sharex=True)
    x = np.arange(len(words))
    above.plot(x, allowed, color=PALE, lw=1)
    above.scatter(x, allowed, c=[RED if n == 1 else BLUE for n in allowed], s=22, zorder=3)
    above.set(yscale="log", ylabel="tokens that may come")
    below.plot(x, shares, "o-", color=INK, lw=1, ms=4)
    below.set(yscale="log", ylabel="their share")
    below.set_xticks(x, [word.replace(" ", "␣") for word in words], rotation=90, fontsize=8)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#eaeef2")
    return closed(figure)
