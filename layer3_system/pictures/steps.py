"""Steps: which requests share one, how long it lasts, and what the model gets in it.

N: tokens of a prompt   S: slots of a page
"""

from itertools import accumulate
from typing import TYPE_CHECKING

from lab.plots import BLUE, GREY, INK, RED, closed
from layer3_system.s01_request import Request, SamplingParams
from layer3_system.s05_chunked_prefill import chunks_of
from layer3_system.s07_engine import build_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALE = "#d0d7de"


def padded_batch(prompts: list[int], outputs: list[int]) -> "Figure":
    """One static batch, a lane a request: left its first step, which computes the prompts as a
    rectangle; right all of its steps, until the longest answer is done.

    prompts, outputs: tokens of each prompt and of each answer. Red outlines: padding on the left,
    an idle place on the right.
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
        axes.set_title(f"{'the first step' if label else 'all steps'}: {lost} of "
                       f"{B * max(lens)} {what}", loc="left", fontsize=9, color=INK)
        axes.set(xlim=(0, max(lens)), ylim=(B, 0))
        axes.set_xticks([x + 0.5 for x in range(max(lens))], range(max(lens)), fontsize=8)
        axes.set_xlabel("position in the prompt" if label else "step", fontsize=9)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    left.set_yticks([y + 0.5 for y in range(B)], [f"place {y}" for y in range(B)], fontsize=8)
    return closed(figure)


def seat_lanes(lens: list[int], seats: int) -> "Figure":
    """Requests that arrive together, a lane each, a column a step: in batches that wait for their
    longest answer, and below with a free seat taken at the next step.

    lens: tokens of each answer    seats: requests that run at a time. A number counts the tokens
    of the answer. Dark: the step computes the prompt, too. Red: a seat held for nothing.
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


def chunk_steps(N: int, decodes: int, chunks: list[int], plain: int = 2) -> "Figure":
    """A prompt beside requests that decode, in chunks of several sizes, a panel for each: a lane a
    request, and each step as wide as it has tokens.

    N: tokens of the prompt    decodes: requests that decode    chunks: sizes
    plain: steps before the prompt comes. Red: the longest time between two tokens of an answer.
    """
    import matplotlib.pyplot as plt

    runs = {chunk: [0] * plain + chunks_of(N, decodes, N + decodes, chunk) for chunk in chunks}
    steps = max(map(len, runs.values())) + 1
    width = N + decodes * steps
    figure, every = plt.subplots(len(runs), 1, sharex=True, layout="constrained",
                                 figsize=(7.5, len(runs) * (0.55 + 0.24 * (decodes + 1)) + 0.35))
    for axes, (chunk, counts) in zip(every, runs.items(), strict=True):
        draw_steps(axes, counts + [0] * (steps - len(counts)), decodes)
        title = "the whole prompt in one step" if chunk >= N else f"in chunks of {chunk}"
        axes.set_title(f"{title}: an answer waits for at most {decodes + max(counts)} tokens",
                       loc="left", fontsize=9, color=INK)
        axes.set(xlim=(0, width), ylim=(decodes + 1.1, -0.5))
        axes.set_yticks([y + 0.5 for y in range(decodes + 1)],
                        ["prompt", *(f"answer {i}" for i in range(decodes))], fontsize=8)
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
    every[-1].set_xlabel("tokens computed so far", fontsize=9)
    return closed(figure)


def draw_steps(axes: "Axes", counts: list[int], decodes: int) -> None:
    """The steps of one panel. counts: tokens of the prompt in each step"""
    from matplotlib.patches import Rectangle

    ends = list(accumulate(n + decodes for n in counts))
    longest = max(counts)
    for n, end in zip(counts, ends, strict=True):
        begin = end - n - decodes
        if n:
            axes.add_patch(Rectangle((begin + 0.12, 0.1), end - begin - 0.24, 0.8, fc=INK))
            axes.text((begin + end) / 2, 0.48, f"{n}", ha="center", va="center", fontsize=8,
                      color="white")
        for y in range(1, decodes + 1):
            axes.add_patch(Rectangle((begin + 0.12, y + 0.1), end - begin - 0.24, 0.8, fc=BLUE))
    at = counts.index(longest)
    axes.annotate("", (ends[at], -0.2), (ends[at] - longest - decodes, -0.2),
                  arrowprops={"arrowstyle": "<->", "lw": 1.3, "color": RED, "shrinkA": 0,
                              "shrinkB": 0})


def step_arrays(requests: dict[str, tuple[list[int], int, int, list[int]]], S: int) -> "Figure":
    """The six arrays of a Batch, in strips: the entries of each of two requests in its colour.

    requests: {name: (its tokens, how many were computed before, how many this step computes,
    its block table)}    S: slots of a page. Pale: what fills up a row of block_tables.
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
