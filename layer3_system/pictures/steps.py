"""Steps: which requests share one, how long a batch lasts, and what the model gets in a step.

S: slots of a page
"""

from typing import TYPE_CHECKING

from lab.plots import BLUE, GREY, INK, RED, closed
from layer3_system.s01_request import Request, SamplingParams
from layer3_system.s07_engine import build_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALE = "#d0d7de"


def padded_batch(prompts: list[int], outputs: list[int]) -> "Figure":
    """One static batch, a lane a request: left its first step, which computes the prompts as a
    rectangle; right all of its steps, until the longest answer has finished.

    prompts, outputs: tokens of each prompt and of each answer.
    Red outlines: padding on the left, an idle seat on the right.
    Dark: the first token of an answer.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    B = len(prompts)
    figure, (left, right) = plt.subplots(
        1, 2, sharey=True, figsize=(7.5, 0.9 + 0.33 * B), layout="constrained",
        width_ratios=(max(prompts), max(outputs)))
    for axes, lens, label in ((left, prompts, "p"), (right, outputs, "")):
        for y, n in enumerate(lens):
            for x in range(max(lens)):
                wanted = x < n
                fill = BLUE if label or x else INK
                axes.add_patch(Rectangle((x + 0.04, y + 0.1), 0.92, 0.8,
                                         fc=fill if wanted else "white",
                                         ec=fill if wanted else RED, ls="-" if wanted else "--"))
                if wanted:
                    axes.text(x + 0.5, y + 0.48, f"{label}{x + 1}", ha="center", va="center",
                              fontsize=8, color="white")
        lost = B * max(lens) - sum(lens)
        what = "tokens are padding" if label else "slot-steps are idle"
        axes.set_title(f"{lost} of {B * max(lens)} {what}", loc="left", fontsize=9, color=INK)
        axes.set(xlim=(0, max(lens)), ylim=(B, 0))
        axes.set_xticks([x + 0.5 for x in range(max(lens))], range(max(lens)), fontsize=8)
        axes.set_xlabel("first step: position in the prompt" if label else "step", fontsize=9)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    left.set_yticks([y + 0.5 for y in range(B)], [f"seat {y}" for y in range(B)], fontsize=8)
    return closed(figure)


def seat_lanes(lens: list[int], seats: int) -> "Figure":
    """Requests that arrive together, a lane each, a column a step: in batches that wait for their
    longest answer, and below with a free seat taken at the next step.

    lens: tokens of each answer    seats: requests that run at a time
    A number counts the tokens of the answer.
    Dark: the step computes the prompt, too.
    Red: a seat held for nothing.
    """
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, Rectangle

    batches: list[tuple[int, int]] = []                 # (first step, step when its seat is free)
    for i in range(0, len(lens), seats):
        begin = batches[-1][1] if batches else 0
        batches += [(begin, begin + max(lens[i:i + seats]))] * len(lens[i:i + seats])
    free = [0] * seats
    turns: list[tuple[int, int]] = []
    for n in lens:
        begin = min(free)
        free[free.index(begin)] = begin + n
        turns.append((begin, begin + n))
    figure, every = plt.subplots(2, 1, sharex=True, layout="constrained",
                                 figsize=(7.5, 0.9 + 0.3 * 2 * len(lens)))
    for axes, title, lanes in zip(every, (
            f"batches of {seats}, each until its longest answer is done",
            "a free seat is taken at the next step"), (batches, turns), strict=True):
        for y, (n, (begin, end)) in enumerate(zip(lens, lanes, strict=True)):
            axes.plot([0, begin], [y + 0.5] * 2, color=GREY, lw=1.5)
            for i in range(n):
                axes.add_patch(Rectangle((begin + i + 0.03, y + 0.1), 0.94, 0.8,
                                         fc=BLUE if i else INK))
                axes.text(begin + i + 0.5, y + 0.48, i + 1, ha="center", va="center",
                          color="white", fontsize=8)
            if begin + n < end:
                axes.add_patch(Rectangle((begin + n + 0.05, y + 0.14), end - begin - n - 0.1, 0.72,
                                         fc="white", ec=RED, ls="--"))
        axes.set_title(title, loc="left", fontsize=9, color=INK)
        axes.set(xlim=(0, batches[-1][1]), ylim=(len(lens), 0))
        axes.set_yticks([y + 0.5 for y in range(len(lens))],
                        [f"request {y}" for y in range(len(lens))], fontsize=8)
        axes.set_xticks([x + 0.5 for x in range(batches[-1][1])], range(batches[-1][1]),
                        fontsize=8)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    every[1].set_xlabel("step", fontsize=9)
    figure.legend(handles=[
        Line2D([], [], color=GREY, lw=1.5, label="waits"),
        Patch(fc=INK, label="its prompt and a token"), Patch(fc=BLUE, label="a token"),
        Patch(fc="white", ec=RED, ls="--", label="done, its seat is empty")],
        loc="outside lower center", ncols=4, frameon=False, handlelength=1.2, fontsize=8)
    return closed(figure)


def lanes(steps: list[list[int]]) -> dict[int, tuple[int, int, int]]:
    """{request: (seat, first step, number of steps)} from the requests of each step.
    A new request takes the first empty seat; a request must not pause."""
    spans: dict[int, tuple[int, int, int]] = {}
    seats: dict[int, int] = {}
    for step, running in enumerate(steps):
        seats = {request: seat for request, seat in seats.items() if request in running}
        for request in running:
            if request not in seats:
                seats[request] = min(set(range(len(seats) + 1)) - set(seats.values()))
            first = spans[request][1] if request in spans else step
            spans[request] = (seats[request], first, step + 1 - first)
    return spans


def seat_bars(title: str, B: int, runs: dict[str, list[list[int]]]) -> "Figure":
    """Which request held which of the B seats in each step: one bar a request, red where a seat was
    idle.

    runs: {label: [[request] of each step]}
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(len(runs), 1, sharex=True, squeeze=False, layout="constrained",
                                 figsize=(7.5, 0.6 + len(runs) * (0.5 + 0.2 * B)))
    for axes, (label, steps) in zip(every[:, 0], runs.items(), strict=True):
        axes.barh(range(B), len(steps), 1.0, color=RED, alpha=0.3)
        for seat, first, count in lanes(steps).values():
            axes.barh(seat, count, 0.86, left=first, color="#54aeff", ec="white", lw=0.8)
        useful = sum(map(len, steps)) / (B * len(steps))
        axes.set_title(f"{label}: {len(steps)} steps, {useful:.0%} of slot-steps give a token",
                       loc="left", fontsize=10, color=INK)
        axes.set(ylabel="seat", ylim=(B - 0.5, -0.5))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    every[-1, 0].set(xlabel="step")
    figure.suptitle(title)
    return closed(figure)


def step_arrays(requests: dict[str, tuple[list[int], int, int, list[int]]], S: int) -> "Figure":
    """The six arrays of a Batch, in strips: the entries of each of two requests in its colour.

    requests: {name: (its tokens, how many were computed before, how many this step computes,
    its block table)}    S: slots of a page
    Pale: what fills up a row of block_tables.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    counts = {Request(name, tokens, SamplingParams(), num_computed=before + n, table=table): n
              for name, (tokens, before, n, table) in requests.items()}
    step = build_step(counts, S)
    colours = dict(zip(counts, (BLUE, INK), strict=True))
    owners = [r for r, n in counts.items() for _ in range(n)]
    figure, axes = plt.subplots(figsize=(7.5, 2.2), layout="constrained")

    def cell(x, y, value, colour):
        axes.add_patch(Rectangle((x, y), 1, 0.9, fc=colour, ec="white", lw=1.5))
        axes.text(x + 0.5, y + 0.44, value, ha="center", va="center", fontsize=9,
                  color=INK if colour == PALE else "white")

    def name(x, y, label):
        axes.text(x, y, label, ha="right", va="center", fontsize=9, color=INK, family="monospace")

    T = len(owners)
    for y, array in ((3, "tokens"), (2, "positions"), (1, "slots")):
        name(-0.4, y + 0.45, array)
        for x, (owner, value) in enumerate(zip(owners, getattr(step, array).tolist(), strict=True)):
            cell(x, y, value, colours[owner])
    name(-0.4, 0.2, "cu_q")
    for x in step.cu_q.tolist():
        axes.plot([x, x], [0.5, 4.0], color=RED, lw=1.5)
        axes.text(x, 0.2, x, ha="center", va="center", fontsize=9, color=RED)
    right = T + 4.2                                     # room for the words before it
    width = step.block_tables.shape[1]
    axes.text(right, 3.1, "block_tables", ha="left", fontsize=9, color=INK, family="monospace")
    axes.text(right + width + 0.7, 3.1, "lens", ha="left", fontsize=9, color=INK,
              family="monospace")
    for b, (request, row, N) in enumerate(zip(
            counts, step.block_tables.tolist(), step.lens.tolist(), strict=True)):
        y = 2 - b
        axes.text(right - 0.2, y + 0.45, f"request {request.id}", ha="right", va="center",
                  fontsize=9, color=colours[request], weight="bold")
        for x, page in enumerate(row):
            cell(right + x, y, page, colours[request] if x < len(request.table) else PALE)
        cell(right + width + 0.7, y, N, colours[request])
    axes.set(xlim=(-2.4, right + width + 2.4), ylim=(-0.1, 4.1))
    axes.axis("off")
    return closed(figure)
