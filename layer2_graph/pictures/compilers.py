"""Compilers: what they made of a layer, and which calls they compiled for."""

from lab.plots import BLUE, INK, RED, closed

COLOURS = {"matrix": BLUE, "arithmetic": "#d4a72c", "moves": "#d0d7de"}
NAMES = {"matrix": "multiplies matrices", "arithmetic": "other arithmetic",
         "moves": "copies, or looks at numbers in another way"}


def compiled(layers):
    """A row of boxes for each compiler, a box each launch, in the order in which they run.

    layers: {compiler: [kind of a launch: "matrix", "arithmetic" or "moves"]}
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(figsize=(7.5, 0.45 * len(layers) + 0.7), layout="constrained")
    longest = max(map(len, layers.values()))
    for y, kinds in enumerate(layers.values()):
        for x, kind in enumerate(kinds):
            axes.add_patch(Rectangle((x + 0.08, y + 0.12), 0.84, 0.76, fc=COLOURS[kind]))
        axes.text(len(kinds) + 0.6, y + 0.5, len(kinds), va="center", fontsize=9, color=INK)
    axes.set(xlim=(0, longest + 4), ylim=(len(layers), 0))
    axes.set_yticks([y + 0.5 for y in range(len(layers))], layers, fontsize=9)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.legend([Rectangle((0, 0), 1, 1, fc=COLOURS[kind]) for kind in NAMES], NAMES.values(),
                  loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return closed(figure)


def recompiled(runs):
    """Calls from left to right: red where a graph was compiled, blue where one was there already.

    runs: {title: ([T of each call], [graphs compiled after each])}
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(runs), squeeze=False, sharey=True, figsize=(7.5, 2.3),
                                 layout="constrained")
    for axes, (title, (sizes, counts)) in zip(every[0], runs.items(), strict=True):
        new = [count > before for count, before in zip(counts, [0, *counts], strict=False)]
        axes.bar(range(len(sizes)), [1 if fresh else 0.3 for fresh in new],
                 color=[RED if fresh else BLUE for fresh in new])
        axes.set_xticks(range(len(sizes)), sizes, fontsize=8)
        axes.set_yticks([0.3, 1], ["run", "compile, run"], fontsize=8)
        axes.set_title(f"{title}: {counts[-1]} graphs", loc="left", fontsize=9, color=INK)
        axes.set_xlabel("T of a call", fontsize=9)
        axes.tick_params(length=0)
        axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)
