"""Pictures of day 2. Each function draws one figure and returns it."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, STROKES, closed


def heads(title, text, weights):
    """Attention weights of one layer: a row asks, a column is asked; dark is a large weight.

    text: a letter a token    weights: (heads, tokens, tokens)
    """
    import matplotlib.pyplot as plt

    letters = [{"\n": "⏎", " ": "·"}.get(letter, letter) for letter in text]
    figure, every = plt.subplots(1, len(weights), figsize=(3.0 * len(weights), 3.5), sharey=True,
                                 squeeze=False, layout="constrained")
    for h, axes in enumerate(every[0]):
        axes.imshow(weights[h], cmap="Blues", vmin=0, vmax=1)
        axes.set_title(f"head {h}", fontsize=10, color=INK)
        axes.set_xticks(range(len(text)), letters, fontsize=7)
        axes.set_yticks(range(len(text)), letters, fontsize=7)
        axes.tick_params(length=0)
    figure.suptitle(title)
    return closed(figure)


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


def laws(title, x, y, curves, points, scale="linear"):
    """Lines through points, or beside them: the x axis is logarithmic, the y axis as `scale` says.

    x, y: the axes' names    curves, points: {label: (xs, ys)}, seven labels at most; one label has
    one colour in both, and its name stands at the end of its curve, or at its last point.
    """
    import matplotlib.pyplot as plt

    labels = list(dict.fromkeys([*curves, *points]))
    shades = dict(zip(labels, ("#54aeff", BLUE, "#0a3069", GREY, RED, INK, "#9cd2ff"),
                      strict=False))
    figure, axes = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
    for label in labels:
        if label in curves:
            axes.plot(*curves[label], color=shades[label], lw=1.5)
        if label in points:
            axes.plot(*points[label], "o", color=shades[label], ms=6)
        xs, ys = curves.get(label) or points[label]
        aside = (7, 0) if label in curves else (0, -13)     # a point may lie on another's curve
        axes.annotate(label, (xs[-1], ys[-1]), xytext=aside, textcoords="offset points",
                      va="center", color=shades[label], annotation_clip=False)
    axes.set(title=title, xlabel=x, ylabel=y, xscale="log", yscale=scale)
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    return closed(figure)


def valleys(title, curves, marks, x, y, inside=None):
    """Losses over model sizes, a curve each, and marked points; x is logarithmic.

    curves: {name: (xs, ys)}, nine at most    marks: {label: (x, y)}    x, y: the axes' names
    inside: (from, to, why) of the sizes that are shaded
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator

    figure, axes = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
    if inside:
        low, high, why = inside
        axes.axvspan(low, high, color="#eaeef2", label=why)
    for (name, (xs, ys)), (colour, style) in zip(curves.items(), STROKES, strict=False):
        axes.semilogx(xs, ys, color=colour, ls=style, lw=1.8, label=name)
    for label, (at, value) in marks.items():
        axes.plot(at, value, "o", color=RED, ms=5)
        axes.annotate(label, (at, value), xytext=(0, -14), textcoords="offset points", ha="center",
                      color=RED, bbox={"fc": "white", "ec": "none", "pad": 0.5, "alpha": 0.8})
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(y=0.1)
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return closed(figure)


def timelines(title, groups, kinds):
    """What happened, a lane each, on an axis from 0 to 100 % of each group's time.

    groups: {label: [[(start, end, kind), …], … a lane each]}   kinds: in the order of their colours
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    shades = dict(zip(kinds, (BLUE, "#54aeff", "#d0d7de", GREY, RED), strict=True))
    lanes = [(label if not i else "", lane) for label, group in groups.items()
             for i, lane in enumerate(group)]
    figure, axes = plt.subplots(figsize=(7.5, 1.2 + 0.4 * len(lanes)), layout="constrained")
    for y, (_, lane) in enumerate(lanes):
        whole = max(end for _, end, _ in lane)
        for start, end, kind in lane:
            axes.barh(y, 100 * (end - start) / whole, left=100 * start / whole, height=0.72,
                      color=shades[kind], lw=0, snap=False)     # else short ones vanish
    axes.set(title=title, xlim=(0, 100), xlabel="share of the time, %")
    axes.set_yticks(range(len(lanes)), [label for label, _ in lanes])
    axes.invert_yaxis()
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(handles=[Patch(color=shade, label=kind) for kind, shade in shades.items()],
                  loc="outside lower center", ncols=len(kinds), frameon=False, handlelength=1)
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


def llama_map(title, model):
    """The parts of a Llama in the order of their use, and the shapes between them.

    model: an o02 Llama, whose sizes are in the title. Blue: given; red: what the reader writes.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(figsize=(7.5, 5.0), layout="constrained")
    axes.add_patch(Rectangle((24, 17), 54, 50, fc="#fff5f5", ec=RED))
    axes.text(25, 64.5, "block, one layer; L times", color=RED, fontsize=9, va="center")
    course = {"tokens": (6, 22), "embedding": (16, 22), "norm": (31, 31), "q, k, v": (31, 41),
             "rope": (31, 51), "o": (46, 41), "+": (46, 22), "norm ": (59, 31),
             "gate, up": (59, 41), "swiglu": (66, 51), "down": (73, 41), "+ ": (73, 22),
             "norm  ": (86, 8), "head": (67, 8)}
    reader = {"attention": (46, 51), "next_token": (46, 8)}
    for colour, boxes in ((BLUE, course), (RED, reader)):
        for name, place in boxes.items():
            axes.text(*place, name.strip(), ha="center", va="center", fontsize=9, color=INK,
                      bbox={"boxstyle": "round,pad=0.35", "fc": "white", "ec": colour}, zorder=3)
    axes.text(46, 61, "cache of keys and values", ha="center", va="center", fontsize=9, color=INK,
              bbox={"boxstyle": "square,pad=0.3", "fc": "#ddf4ff", "ec": BLUE}, zorder=3)
    paths = [[(9, 22), (11, 22)], [(21, 22), (44, 22)], [(48, 22), (71, 22)],
             [(75, 22), (93, 22), (93, 8), (89, 8)], [(83, 8), (70, 8)], [(64, 8), (53, 8)],
             [(31, 22), (31, 28.5)], [(31, 33.5), (31, 38.5)], [(31, 43.5), (31, 48.5)],
             [(34, 51), (39.5, 51)], [(34, 53), (34, 61), (35, 61)], [(46, 58.5), (46, 53.5)],
             [(46, 48.5), (46, 43.5)], [(46, 38.5), (46, 24.5)], [(59, 22), (59, 28.5)],
             [(59, 33.5), (59, 38.5)], [(59, 43.5), (59, 51), (61.5, 51)],
             [(70.5, 51), (73, 51), (73, 43.5)], [(73, 38.5), (73, 24.5)]]
    for path in paths:
        arrow(axes, path, INK)
    arrow(axes, [(39.5, 8), (6, 8), (6, 19.5)], RED)
    shapes = {(6, 26): "(T,)", (26.5, 24): "(T, C)", (52, 24): "x", (82, 24): "(T, C)",
              (58.5, 10): "(T, V)", (27.4, 46): "(T, H, D)\n(T, G, D)", (41.5, 46): "(T, H, D)",
              (64.5, 46): "(T, F)", (22, 10): "generate: the new token"}
    for place, words in shapes.items():
        axes.text(*place, words, ha="center", va="center", fontsize=8, color=GREY)
    axes.set(xlim=(0, 96), ylim=(4, 68))
    axes.axis("off")
    figure.suptitle(f"{title}: {sizes(model)}")
    return closed(figure)


def arrow(axes, path, colour):
    """A line through the points of a path, with a head at its last."""
    xs, ys = zip(*path, strict=True)
    axes.plot(xs[:-1], ys[:-1], color=colour, lw=1.2, zorder=1)
    axes.annotate("", path[-1], path[-2], zorder=1, arrowprops={
        "arrowstyle": "->", "color": colour, "lw": 1.2, "shrinkA": 0, "shrinkB": 0})


def sizes(model):
    """The letters of an o02 Llama with their numbers."""
    layer = model.layers[0]
    V, C = model.embedding.shape
    D = model.D
    numbers = {"C": C, "H": len(layer.q) // D, "G": len(layer.k) // D, "D": D,
               "F": len(layer.gate), "V": V, "L": len(model.layers)}
    return ", ".join(f"{letter} = {number}" for letter, number in numbers.items())


def draw_line(title, weights, u):
    """The probabilities of tokens end to end, from 0 to 1, and the number u above them."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 1.7), layout="constrained")
    ends = np.cumsum(weights)
    starts = ends - weights
    drawn = int((ends <= u).sum())
    for i, (start, weight) in enumerate(zip(starts, weights, strict=True)):
        axes.barh(0, weight, left=start, height=0.8, color="#ffcecb" if i == drawn else "#ddf4ff",
                  edgecolor=INK)
        axes.text(start + weight / 2, 0, f"token {i}", ha="center", va="center", color=INK)
    axes.annotate(f"u = {u}", (u, 0.4), (u, 0.95), ha="center", color=RED,
                  arrowprops={"arrowstyle": "->", "color": RED})
    axes.set(title=title, xlim=(-0.01, 1.01), ylim=(-0.45, 1.3))
    axes.set_xticks([0, *ends], [f"{x:g}" for x in (0, *ends)])
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    return closed(figure)


def visible_tokens(title, T, N, H, G):
    """Left: which of N tokens each of the last T sees. Right: the key head of each query head."""
    import matplotlib.pyplot as plt

    visible = np.arange(N) <= np.arange(N - T, N)[:, None]                          # (T, N)
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 2.8), width_ratios=[N, 4],
                                         layout="constrained")
    for t, n in np.ndindex(T, N):
        left.text(n, t, "" if visible[t, n] else "−inf", ha="center", va="center", color=GREY)
    left.imshow(np.where(visible, 1.0, 0.1), cmap="Blues", vmin=0, vmax=1.6)
    left.vlines(np.arange(N - 1) + 0.5, -0.5, T - 0.5, color="white")
    left.hlines(np.arange(T - 1) + 0.5, -0.5, N - 0.5, color="white")
    left.set(title="causal", xlabel="n: key and value")
    left.set_xticks(range(N))
    left.set_yticks(range(T), [f"t = {t}, token {N - T + t}" for t in range(T)])
    left.tick_params(length=0)
    places = [(h // (H // G) + 0.5) * (H / G) - 0.5 for h in range(H)]
    for h in range(H):
        right.plot([0, 1], [h, places[h]], color=GREY, zorder=0)
        right.text(0, h, f"query head {h}", ha="right", va="center", color=INK)
        right.text(1, places[h], f"key head {h // (H // G)}", va="center", color=INK)
    right.set(title="grouped", xlim=(-1.3, 2.2), ylim=(H - 0.5, -0.5))
    right.axis("off")
    figure.suptitle(title)
    return closed(figure)
