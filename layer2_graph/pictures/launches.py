"""Launches: how many a layer has, what asks for them and when, and where their results lie."""

from itertools import accumulate

from lab.plots import BLUE, GREY, INK, RED, closed

PALE = "#d0d7de"


def strips(runs, matrices):
    """The launches of a layer in the order in which they run, a box each, a row for each way.

    runs: {title: [name of a launch]}    matrices: words that only the names of matrices contain;
    matrices are blue, and names with " & " were merged
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    widest = max(map(len, runs.values()))
    figure, every = plt.subplots(len(runs), 1, figsize=(7.5, 1.6 * len(runs)), squeeze=False,
                                 layout="constrained")
    for axes, (title, names) in zip(every[:, 0], runs.items(), strict=True):
        for x, name in enumerate(names):
            matrix = any(part in matrices for part in name.split(" & "))
            colour = BLUE if matrix else PALE
            axes.add_patch(Rectangle((x + 0.06, 0), 0.88, 1, fc=colour, ec="white"))
            axes.text(x + 0.5, 0.5, name, ha="center", va="center", rotation=90, fontsize=9,
                      color="white" if matrix else INK,
                      weight="bold" if " & " in name else "normal")
        axes.set_title(f"{title}: {len(names)} launches", loc="left", fontsize=9, color=INK)
        axes.set(xlim=(0, widest), ylim=(0, 1))
        axes.axis("off")
    return closed(figure)


def host_and_device(kernels, ask):
    """When a host asks and when the device works: above launch by launch, below with one replay.

    kernels: µs of each kernel on the device    ask: µs of the host for a launch or a replay
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    ends = []
    for i, cost in enumerate(kernels):
        ends.append(max((i + 1) * ask, ends[-1] if ends else 0) + cost)
    graph = [ask + end for end in accumulate(kernels)]
    runs = {"each launch asked for": (len(kernels), ends), "one replay": (1, graph)}
    figure, every = plt.subplots(2, 1, sharex=True, figsize=(7.5, 2.7), layout="constrained")
    for axes, (title, (asks, ends)) in zip(every, runs.items(), strict=True):
        for i in range(asks):
            axes.add_patch(Rectangle((i * ask + 0.1, 0.1), ask - 0.2, 0.8, fc=INK))
            axes.text((i + 0.5) * ask, 0.48, f"ask {i}" if asks > 1 else "replay", ha="center",
                      va="center", fontsize=8, color="white")
        for i, (cost, end) in enumerate(zip(kernels, ends, strict=True)):
            axes.add_patch(Rectangle((end - cost + 0.06, 1.1), cost - 0.12, 0.8, fc=BLUE))
            axes.text(end - cost / 2, 1.48, i, ha="center", va="center", fontsize=8, color="white")
        waits = ends[-1] - sum(kernels)
        axes.set_title(f"{title}: the step takes {ends[-1]:g} µs, for {waits:g} of which the "
                       "device waits", loc="left", fontsize=9, color=INK)
        axes.set(xlim=(0, (len(kernels) + 1) * ask), ylim=(2, 0))
        axes.set_yticks([0.5, 1.5], ["host", "device"], fontsize=9)
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
    every[-1].set_xlabel("µs", fontsize=9)
    return closed(figure)


def arenas(title, plans):
    """Memory over a run: which storage lies where for how long, and in red how many bytes are live.

    plans: {label: (offsets, lives, sizes)}, each {storage: value}; a life is (first, last launch)
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator

    figure, every = plt.subplots(1, len(plans), squeeze=False, sharey=True, figsize=(7.5, 3.8),
                                 layout="constrained")
    top = max(offsets[s] + sizes[s] for offsets, _, sizes in plans.values() for s in sizes)
    for axes, (label, (offsets, lives, sizes)) in zip(every[0], plans.items(), strict=True):
        last = max(dies for _, dies in lives.values())
        for s, (born, dies) in lives.items():
            axes.add_patch(Rectangle((born, offsets[s]), dies + 1 - born, sizes[s], fc="#9cd2ff",
                                     ec=BLUE, lw=0.6))
        live = [sum(sizes[s] for s, (born, dies) in lives.items() if born <= i <= dies)
                for i in range(last + 1)]
        axes.step(range(last + 2), [*live, live[-1]], where="post", color=RED, lw=1.5)
        peak = max(offsets[s] + sizes[s] for s in sizes)
        axes.set(title=f"{label}: {peak:,} bytes", xlabel="launch", xlim=(0, last + 1),
                 ylim=(0, 1.05 * top))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.spines[["top", "right"]].set_visible(False)
    every[0, 0].set(ylabel="byte of the arena")
    figure.suptitle(title)
    return closed(figure)


def traffic(launches, matrices):
    """The bytes that each launch of a layer moves, from top to bottom in the order of the run.

    launches: [(name, bytes)]    matrices: as in strips
    The bars' scale is logarithmic.
    """
    import matplotlib.pyplot as plt

    names = [name for name, _ in launches]
    sizes = [size / 1000 for _, size in launches]
    colours = [BLUE if any(part in matrices for part in name.split(" & ")) else PALE
               for name in names]
    figure, axes = plt.subplots(figsize=(7.5, 0.28 * len(names) + 0.8), layout="constrained")
    bars = axes.barh(range(len(names)), sizes, color=colours)
    axes.bar_label(bars, [f"{size:,.3g} KB" for size in sizes], padding=4, fontsize=9, color=INK)
    axes.set(xscale="log", ylim=(len(names) - 0.4, -0.6), xlabel="KB read and written")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.15)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def residuals():
    """The last add of a layer, moved into the first kernel of the next: a fixed drawing."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyArrowPatch, Rectangle

    figure, axes = plt.subplots(figsize=(7.5, 1.9), layout="constrained")
    steps = {0: "add + norm", 1.35: "attention", 2.7: "add + norm", 4.05: "MLP",
             5.4: "add:\nold place", 7.15: "add + norm", 8.5: "attention"}
    for x, name in steps.items():
        old = "old" in name
        axes.add_patch(Rectangle((x, 0), 1, 1, fc="white" if old else PALE, ec=GREY,
                                 ls="--" if old else "-"))
        axes.text(x + 0.5, 0.5, name.replace(" + ", "\n+ "), ha="center", va="center", fontsize=9,
                  color=GREY if old else INK, weight="bold" if x == 7.15 else "normal")
    for start, end, height, name in ((1, 1.35, 0.5, ""), (2.35, 2.7, 0.5, ""), (3.7, 4.05, 0.5, ""),
                                     (8.15, 8.5, 0.5, ""), (0.5, 3.2, 1.5, "residual"),
                                     (3.2, 7.65, 1.5, "residual"), (4.55, 7.4, -0.5, "x")):
        if name:
            edge = float(height > 0)
            axes.plot([start, start, end], [edge, height, height], color=BLUE, lw=1.5)
            axes.add_patch(FancyArrowPatch((end, height), (end, edge), arrowstyle="-|>",
                                           mutation_scale=10, shrinkA=0, shrinkB=0, color=BLUE))
            axes.text((start + end) / 2, height + 0.06, name, ha="center", va="bottom", fontsize=9,
                      color=BLUE)
        else:
            axes.add_patch(FancyArrowPatch((start, height), (end, height), arrowstyle="-|>",
                                           mutation_scale=10, shrinkA=0, shrinkB=0, color=GREY))
    axes.axvline(6.77, color=RED, lw=1, ls=":")
    for x, name in ((3.2, "layer i"), (8.35, "layer i + 1")):
        axes.text(x, 2.0, name, ha="center", fontsize=10, color=INK)
    axes.set(xlim=(-0.1, 9.6), ylim=(-0.7, 2.3))
    axes.axis("off")
    return closed(figure)
