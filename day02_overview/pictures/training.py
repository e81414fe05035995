"""Training: what one GPU keeps over a step, and how a sum goes around a ring."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed


def memory_of_step(title, L, layer, entry, state=0, room=None, unit="GB"):
    """What is kept over one step: forward through L layers, backward through them again.

    layer: what one layer keeps    entry: its input alone, which recomputation keeps
    state: what stays    room: what the GPU has    All in `unit`.
    """
    import matplotlib.pyplot as plt

    forward = np.arange(1, L + 1)
    stored = layer * np.concatenate([forward, forward[::-1]])
    again = np.concatenate([entry * forward, entry * (forward[::-1] - 1) + layer])
    edges = np.arange(2 * L + 1)
    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    axes.fill_between(edges[[0, -1]], 0, state, color="#54aeff", label="weights, gradients, Adam")
    axes.stairs(state + stored, edges, baseline=state, fill=True, color="#d0d7de",
                label="activations kept")
    axes.stairs(state + again, edges, baseline=None, color=BLUE, lw=1.5, label="recomputed")
    if room:
        axes.axhline(room, color=RED, label=f"memory of the GPU, {room} {unit}")
    axes.axvline(L, color=INK, lw=0.8, ls=":")
    axes.set(title=title, ylabel=unit, xlim=(0, 2 * L), ylim=(0, None))
    axes.set_xticks([L / 2, 1.5 * L], [f"forward, layers 1 to {L}", f"backward, layers {L} to 1"])
    axes.tick_params(bottom=False)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[not state:], labels[not state:], loc="outside lower center", ncols=2,
                  frameon=False)
    return closed(figure)


def ring_states(W):
    """An all_reduce on a ring, round by round: (how many ranks' numbers a piece holds, pieces that
    have just arrived), two arrays (W ranks, W pieces)."""
    numbers = np.ones((W, W), int)
    yield numbers, np.zeros((W, W), bool)
    for number in range(2 * (W - 1)):
        arrived = np.zeros((W, W), bool)
        later = numbers.copy()
        for rank in range(W):
            piece = (rank - number) % W if number < W - 1 else (rank + 1 - number + W - 1) % W
            arrived[(rank + 1) % W, piece] = True
            later[(rank + 1) % W, piece] = min(numbers[rank, piece] + 1, W)
        numbers = later
        yield numbers, arrived


def ring_rounds(title, W):
    """A panel a round of an all_reduce: the pieces of each rank; a red frame has just arrived."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    states = list(ring_states(W))
    figure, every = plt.subplots(1, len(states), figsize=(7.5, 1.9), layout="constrained")
    for number, (axes, (numbers, arrived)) in enumerate(zip(every, states, strict=True)):
        axes.imshow(numbers, cmap="Blues", vmin=0, vmax=1.6 * W)
        for rank, piece in np.ndindex(W, W):
            axes.text(piece, rank, numbers[rank, piece], ha="center", va="center", color=INK)
            if arrived[rank, piece]:
                axes.add_patch(Rectangle((piece - 0.5, rank - 0.5), 1, 1, fill=False, ec=RED, lw=2))
        axes.set_title("start" if not number else f"round {number}", fontsize=9, color=INK)
        axes.set_xticks([])
        axes.set_yticks(range(W) if not number else [],
                        [f"rank {rank}" for rank in range(W)] if not number else [])
        axes.tick_params(length=0)
        axes.spines[:].set_color(GREY)
    figure.suptitle(title)
    return closed(figure)
