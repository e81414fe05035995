"""Clients: what happens to a call on its way through a server, and how long requests wait."""

from typing import TYPE_CHECKING

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed
from layer3_system.s09_load_test import poisson_arrivals

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALE = "#d0d7de"


def call_life() -> "Figure":
    """The life of a call, from left to right, in three lanes: its client, the event loop, and the
    engine thread, whose steps follow each other without a pause."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    lanes = {"client": 3.0, "event loop": 2.0, "mailbox": 1.2, "engine thread": 0.2}
    figure, axes = plt.subplots(figsize=(7.5, 2.7), layout="constrained")
    for name, y in lanes.items():
        axes.text(-0.15, y, name, ha="right", va="center", fontsize=9, color=INK)
        axes.plot([0, 10], [y, y], color=PALE, lw=1, zorder=0)

    def box(x, width, lane, label, colour):
        axes.add_patch(Rectangle((x, lanes[lane] - 0.22), width, 0.44, fc=colour, ec="white"))
        axes.text(x + width / 2, lanes[lane] - 0.02, label, ha="center", va="center", fontsize=8,
                  color=INK if colour == PALE else "white")

    def arrow(x, y, to_x, to_y, colour=INK):
        axes.annotate("", (to_x, to_y), (x, y), arrowprops={
            "arrowstyle": "-|>", "lw": 1.2, "color": colour, "shrinkA": 0, "shrinkB": 0})

    own = range(2, 7)                                   # steps that work for this call
    for step in range(8):
        box(0.1 + 1.25 * step, 1.2, "engine thread", f"step {step}",
            BLUE if step in own else GREY)
    box(0.1, 0.9, "client", "request", INK)
    arrow(1.0, 2.8, 1.15, 2.22)
    box(1.1, 0.9, "event loop", "check", INK)
    arrow(1.9, 1.78, 1.95, 1.42)
    box(1.75, 0.72, "mailbox", "letter", INK)
    arrow(2.5, 1.0, 2.6, 0.42)                          # read before step 2
    for step in (2, 3, 4):
        end = 1.3 + 1.25 * step
        arrow(end, 0.42, end + 0.2, 1.78, BLUE)
        box(end + 0.05, 0.75, "event loop", "event", BLUE)
        arrow(end + 0.45, 2.22, end + 0.6, 2.8, BLUE)
        box(end + 0.45, 0.65, "client", "text", BLUE)
    box(7.45, 0.8, "client", "leaves", RED)
    arrow(7.85, 2.78, 7.95, 2.22, RED)
    box(7.7, 0.75, "event loop", "close", RED)
    arrow(8.15, 1.78, 8.25, 1.42, RED)
    box(7.95, 0.72, "mailbox", "letter", RED)
    arrow(8.6, 0.98, 8.85, 0.42, RED)                   # read before step 7
    axes.set(xlim=(-1.7, 10.15), ylim=(-0.15, 3.4))
    axes.axis("off")
    return closed(figure)


def served_in_seats(arrivals: list[float], lens: list[int], seats: int, step: float,
                    each: float) -> list[tuple[float, list[float]]]:
    """[(seconds when it got a seat, [seconds of each token])] of requests in `seats` seats.

    lens: tokens of each answer    step, each: seconds of a step, and more for each request in it
    """
    now = 0.0
    waiting = list(range(len(arrivals)))
    running: list[int] = []
    begins = [0.0] * len(arrivals)
    tokens: list[list[float]] = [[] for _ in arrivals]
    while waiting or running:
        if not running:
            now = max(now, arrivals[waiting[0]])
        while waiting and len(running) < seats and arrivals[waiting[0]] <= now:
            begins[waiting[0]] = now
            running.append(waiting.pop(0))
        now += step + each * len(running)
        for i in list(running):
            tokens[i].append(now)
            if len(tokens[i]) == lens[i]:
                running.remove(i)
    return list(zip(begins, tokens, strict=True))


def waits(rate: float, lens: list[int], seats: int) -> "Figure":
    """Requests that arrive at random, a lane each: grey while one waits for a seat, blue while it
    is served, a dot for each token.
    Below the last request: its TTFT and its E2E.

    rate: requests a second    lens: tokens of each answer
    """
    import matplotlib.pyplot as plt

    arrivals = poisson_arrivals(rate, len(lens), np.random.default_rng(3)).tolist()
    served = served_in_seats(arrivals, lens, seats, step=0.02, each=0.01)
    figure, axes = plt.subplots(figsize=(7.5, 1.35 + 0.3 * len(lens)), layout="constrained")
    for y, (arrival, (begin, tokens)) in enumerate(zip(arrivals, served, strict=True)):
        axes.barh(y, begin - arrival, 0.5, left=arrival, color=PALE)
        axes.barh(y, tokens[-1] - begin, 0.5, left=begin, color="#9cd2ff")
        axes.plot(arrival, y, "|", color=RED, ms=14, mew=2)
        axes.plot(tokens, [y] * len(tokens), ".", color=INK, ms=6, ls="none")
    measure(axes, len(lens), arrivals[-1], served[-1][1])
    axes.set(ylim=(len(lens) + 1.2, -0.6), xlim=(0, None))
    axes.set_xlabel("seconds", fontsize=9)
    axes.set_yticks(range(len(lens)), [f"request {i}" for i in range(len(lens))], fontsize=8)
    axes.tick_params(left=False, labelsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    for colour, label in ((PALE, "waits for a seat"), ("#9cd2ff", "is served")):
        axes.barh(0, 0, color=colour, label=label)
    axes.plot([], [], "|", color=RED, ms=9, mew=2, label="arrives")
    axes.plot([], [], ".", color=INK, ms=6, ls="none", label="a token")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4,
                  frameon=False, handlelength=1, fontsize=8)
    return closed(figure)


def stalled(loops: dict[str, list[tuple[float, float]]], stall: tuple[float, float]) -> "Figure":
    """How long requests waited at a server that stalls once: a dot for each, at its arrival.

    loops: of each way to make a load, (seconds of the arrival, seconds waited) of each request
    stall: seconds from when until when
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 2.8), layout="constrained")
    axes.axvspan(*stall, color=PALE, lw=0)
    axes.text(sum(stall) / 2, 0.3, "stalls", ha="center", fontsize=8, color=INK)
    for (name, waited), colour in zip(loops.items(), (BLUE, RED), strict=True):
        late = sum(wait > 1 for _, wait in waited)
        axes.plot(*zip(*waited, strict=True), ".", color=colour, ms=5,
                  label=f"{name}: {len(waited)} requests, {late} above 1 s")
    axes.set_xlabel("arrival, seconds", fontsize=9)
    axes.set_ylabel("waited, seconds", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.legend(frameon=False, fontsize=8)
    return closed(figure)


def measure(axes: "Axes", y: float, arrival: float, tokens: list[float]) -> None:
    """TTFT, TPOT and E2E of one request, as arrows below its lane."""
    for line, begin, end, label in ((y - 0.25, arrival, tokens[0], "TTFT"),
                                    (y - 0.25, tokens[0], tokens[-1],
                                     f"{len(tokens) - 1} gaps: TPOT on average"),
                                    (y + 0.65, arrival, tokens[-1], "E2E")):
        axes.annotate("", (end, line), (begin, line), arrowprops={
            "arrowstyle": "<->", "lw": 1.1, "color": INK, "shrinkA": 0, "shrinkB": 0})
        axes.text((begin + end) / 2, line + 0.12, label, ha="center", va="top", fontsize=8,
                  color=INK)
