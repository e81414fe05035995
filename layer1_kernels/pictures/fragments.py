"""Fragments: one step of a warp's product, and the quarters of a block's tile."""

from lab.plots import BLUE, INK, RED, closed
from layer1_kernels.pictures.tiles import matrix

SIDE = 16               # rows and columns of a fragment


def mma_step(K, step):
    """A warp's rows of a, its rows of w as columns, and its tile of c: which fragments one step
    multiplies, and in which direction their memory runs.

    K: a multiple of 16    step: of the walk along k
    """
    import matplotlib.pyplot as plt

    far = K + 10
    tile = (SIDE, SIDE)
    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    matrix(axes, "a", (0, far), (SIDE, K), tile, {(0, step): BLUE})
    matrix(axes, "wᵀ", (far, 0), (K, SIDE), tile, {(step, 0): BLUE})
    matrix(axes, "", (far, far), tile, tile, {(0, 0): RED})
    axes.text(far + SIDE + 2, far + SIDE / 2, "c", va="center", color=INK)
    begin = SIDE * step + 2
    end = SIDE * step + 14
    middle = far + SIDE / 2
    for start, stop in (((begin, middle), (end, middle)), ((middle, begin), (middle, end))):
        axes.annotate("", stop, start, arrowprops={"arrowstyle": "->", "color": "white", "lw": 2,
                                                   "shrinkA": 0, "shrinkB": 0})
    axes.set(xlim=(-1, far + SIDE + 10), ylim=(far + SIDE + 1, -8), aspect="equal", xticks=[],
             yticks=[])
    axes.spines[:].set_visible(False)
    return closed(figure)


def warp_quarters(tile, warp, step):
    """The tile of c of a block of four warps: the four sums of one warp, and the fragments of a and
    of w that one step multiplies for them.

    tile: rows and columns of each tile    warp: 0 to 3    step: 16 k of the tiles
    """
    import matplotlib.pyplot as plt

    far = tile + 14
    half = tile // 2
    row, column = warp // 2 * half // SIDE, warp % 2 * half // SIDE
    figure, axes = plt.subplots(figsize=(7.5, 4.8), layout="constrained")
    chosen(axes, "a_tile", (0, far), tile, "a_part", [(row + i, step) for i in (0, 1)])
    chosen(axes, "w_tile, transposed", (far, 0), tile, "w_part",
           [(step, column + i) for i in (0, 1)])
    chosen(axes, "", (far, far), tile, "sums", [(row + i // 2, column + i % 2) for i in range(4)])
    axes.plot([far, far + tile], [far + half] * 2, color=INK, lw=1)
    axes.plot([far + half] * 2, [far, far + tile], color=INK, lw=1)
    for i in {0, 1, 2, 3} - {warp}:
        axes.text(far + (i % 2 + 0.5) * half, far + (i // 2 + 0.5) * half, f"warp {i}", color=INK,
                  ha="center", va="center", bbox={"fc": "white", "ec": "none", "pad": 2})
    axes.set(xlim=(-1, far + tile + 1), ylim=(far + tile + 2, -9), aspect="equal", xticks=[],
             yticks=[])
    axes.spines[:].set_visible(False)
    return closed(figure)


def chosen(axes, name, corner, tile, part, places):
    """A square tile in fragments, those at `places` with their names, `part`[0] on."""
    matrix(axes, name, corner, (tile, tile), (SIDE, SIDE),
           dict.fromkeys(places, RED if part == "sums" else BLUE))
    left, top = corner
    for i, (row, column) in enumerate(places):
        axes.text(left + (column + 0.5) * SIDE, top + (row + 0.5) * SIDE, f"{part}\n[{i}]",
                  ha="center", va="center", fontsize=7, color="white")
