"""The nano Llama: its parts, what a token sees, how a token is drawn."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed


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


def llama_map(title, model):
    """The parts of a Llama in the order of their use, and the shapes between them.

    model: an o02 Llama, whose sizes are in the title.
    Blue: given; red: what the reader writes.
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
    """Left: which of N tokens each of the last T sees.
    Right: the key head of each query head."""
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
