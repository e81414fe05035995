"""Matrices cut into tiles: which are read, which are written, in what order."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed


def matrix(axes, name, corner, shape, tile, colours):
    """A matrix cut into tiles, with its name above.

    corner: (x, y) of its first element    shape, tile: (rows, columns)
    colours: {(row, column) of a tile: its colour}; the others are pale
    """
    from matplotlib.patches import Rectangle

    (left, top), (rows, columns), (height, width) = corner, shape, tile
    for row in range(rows // height):
        for column in range(columns // width):
            axes.add_patch(Rectangle((left + column * width, top + row * height), width, height,
                                     ec="white", lw=1.5, fc=colours.get((row, column), "#d0d7de")))
    axes.text(left + columns / 2, top - 1, name, ha="center", va="bottom", color=INK)


def turned(M, N, tile, size, row):
    """A transpose y[n][m] = x[m][n]: where one warp reads and writes, in the matrices and in
    memory.

    M, N: rows and columns of x    tile: (row, column) of a tile of x in the grid of tiles
    size: rows and columns of a tile, and lanes of the warp    row: of the tile, that the warp reads
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    m0, n0 = tile[0] * size, tile[1] * size
    figure, (above, below) = plt.subplots(2, 1, figsize=(7.5, 3.5), layout="constrained",
                                          height_ratios=(max(M, N), 42))
    shift = 1.6 * N                                 # from the left edge of x to that of y
    for name, left, rows, columns, corner in (("x", 0, M, N, (n0, m0)),
                                              ("y", shift, N, M, (m0, n0))):
        for top in range(0, rows, size):
            for begin in range(0, columns, size):
                chosen = (begin, top) == corner
                above.add_patch(Rectangle((left + begin, top), size, size, ec="#d0d7de", lw=1,
                                          fc="#d0d7de" if chosen else "white"))
        above.annotate(f"{name}: {rows} rows,\n{columns} columns", (left - 3, 0), ha="right",
                       va="top", fontsize=9, color=INK)
    above.plot([n0, n0 + size], [m0 + row + 0.5] * 2, color=BLUE, lw=2.5, solid_capstyle="butt")
    above.plot([shift + m0 + row + 0.5] * 2, [n0, n0 + size], color=RED, lw=2.5,
               solid_capstyle="butt")
    for text, place, colour, align in (
            ("lane 0", (n0 - 1, m0 + row), BLUE, {"ha": "right", "va": "center"}),
            (f"lane {size - 1}", (n0 + size + 1, m0 + row), BLUE, {"ha": "left", "va": "center"}),
            ("lane 0", (shift + m0 + row, n0 - 1), RED, {"ha": "center", "va": "bottom"}),
            (f"lane {size - 1}", (shift + m0 + row, n0 + size + 1), RED,
             {"ha": "center", "va": "top"})):
        above.annotate(text, place, fontsize=8, color=colour, **align)
    above.set(xlim=(-0.4 * N, shift + M + 1), ylim=(max(M, N) + 1, -1), aspect="equal", xticks=[],
              yticks=[])
    for y, apart, colour in ((1, 1, BLUE), (0, M, RED)):
        below.add_patch(Rectangle((0, y + 0.1), size * M, 0.8, fc="white", ec="#d0d7de"))
        for lane in range(size):            # a line wider than its number, which is thin here
            below.plot([lane * apart + 0.5] * 2, [y + 0.1, y + 0.9], color=colour, lw=1.6,
                       snap=False, solid_capstyle="butt")
    below.set(xlim=(-6, size * M + 6), ylim=(0, 2), yticks=[0.5, 1.5],
              yticklabels=["writes to y", "reads from x"], xticks=range(0, size * M + 1, 4 * M))
    below.set_xlabel("place in memory, in numbers after that of lane 0", fontsize=9, color=INK)
    below.tick_params(length=0, labelsize=9)
    for axes in (above, below):
        axes.spines[:].set_visible(False)
    return closed(figure)


def operands(M, N, K, m, n, k=None):
    """What a piece of c = a · wᵀ needs: its rows of a and its rows of w, a cell a number.

    M, N, K: sizes    m, n: ranges of the piece's rows and columns in c
    k: the range that is in work, of a walk along k in steps of its length; None for the whole rows
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    gap = 0.17 * (2 * K + N)                        # room for the names of rows
    cell = 7.3 / (2 * K + N + 3 * gap)              # inches
    margin = 0.28 / cell
    figure, axes = plt.subplots(figsize=(7.5, cell * (max(M, N) + 2 * margin) + 0.1),
                                layout="constrained")
    matrices = (("a", "m", "k", M, K, m, range(K)), ("w", "n", "k", N, K, n, range(K)),
                ("c", "m", "n", M, N, m, n))
    for place, (name, down, across, rows, columns, its_rows, its_columns) in enumerate(matrices):
        left = place * (K + gap)
        for row in range(rows):
            for column in range(columns):
                taken = row in its_rows and column in its_columns
                now = taken and (name == "c" or k is None or column in k)
                axes.add_patch(Rectangle((left + column, row), 1, 1, ec="white", lw=1,
                                         fc=BLUE if now else GREY if taken else "#d0d7de"))
        axes.text(left + columns / 2, -0.3, f"{name}[{down}, {across}]", ha="center", va="bottom",
                  fontsize=10, color=INK)
        axes.text(left - 0.3, (its_rows[0] + its_rows[-1] + 1) / 2, span(down, its_rows),
                  ha="right", va="center", fontsize=9, color=BLUE)
        under = n if name == "c" else k
        if under is not None:
            axes.text(left + (under[0] + under[-1] + 1) / 2, rows + 0.2, span(across, under),
                      ha="center", va="top", fontsize=9, color=BLUE)
        if name != "c" and k is not None:
            y, begin = its_rows[len(its_rows) // 2] + 0.5, left + k[-1] + 1
            axes.annotate("", (begin + len(k) - 0.2, y), (begin + 0.2, y), arrowprops={
                "arrowstyle": "->", "color": "white", "lw": 1.8, "shrinkA": 0, "shrinkB": 0})
    axes.set(xlim=(-gap, 2 * (K + gap) + N), ylim=(max(M, N) + margin, -margin), aspect="equal",
             xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return closed(figure)


def thread_tiles(BM, BN, threads):
    """What one thread reads from shared memory for one k, and the sums that it adds to.

    BM, BN: rows and columns of the block's tile of c
    threads: {label: (range of the thread's rows, range of its columns)}, a panel each
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, every = plt.subplots(1, len(threads), squeeze=False, figsize=(7.5, 3.0),
                                 layout="constrained")
    for axes, (label, (its_rows, its_columns)) in zip(every[0], threads.items(), strict=True):
        for row in range(-1, BM):
            for column in range(-1, BN):
                if row == column == -1:
                    continue
                wanted = (row in its_rows or row == -1) and (column in its_columns or column == -1)
                fill = ("#d0d7de", BLUE) if -1 in (row, column) else ("#eaeef2", INK)
                corner = (-2 if column == -1 else column, -2 if row == -1 else row)
                axes.add_patch(Rectangle(corner, 1, 1, ec="white", lw=1, fc=fill[wanted]))
        axes.text(BN / 2, -2.2, "w_tile[k]", ha="center", va="bottom", fontsize=9, color=BLUE)
        axes.text(-2.3, BM / 2, "a_tile[k]", ha="right", va="center", fontsize=9, color=BLUE,
                  rotation=90)
        axes.text(BN / 2, BM + 0.3, "the block's tile of c: sums in registers", ha="center",
                  va="top", fontsize=9, color=INK)
        axes.set_title(label, loc="center", fontsize=10, color=INK)
        axes.set(xlim=(-3.4, BN + 0.1), ylim=(BM + 1.5, -3.2), aspect="equal", xticks=[],
                 yticks=[])
        axes.spines[:].set_visible(False)
    return closed(figure)


def warp_tiles(ways):
    """The block's tile of c with the part of each warp, and what warp 0 wants of both operands.

    ways: {title: the number of the warp that makes each element of c (rows, columns)}
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap

    colours = ListedColormap([BLUE, "#d0d7de", "#eaeef2"])
    figure, every = plt.subplots(1, len(ways), squeeze=False, figsize=(7.5, 4.0),
                                 layout="constrained")
    for axes, (title, warp) in zip(every[0], ways.items(), strict=True):
        BM, BN = warp.shape
        own = warp == 0
        shade = np.where(own, 0, 1 + warp % 2)
        axes.imshow(shade, cmap=colours, vmin=0, vmax=2, extent=(0, BN, BM, 0))
        for number in np.unique(warp):
            row, column = np.argwhere(warp == number)[0]
            axes.text(column + 2, row + 4, number, fontsize=8, va="center_baseline",
                      color="white" if number == 0 else INK)
        rows = own.any(1)
        columns = own.any(0)
        for strip, box in ((rows[:, None], (-14, -6, BM, 0)), (columns[None], (0, BN, -6, -14))):
            axes.imshow(np.where(strip, 0, 2), cmap=colours, vmin=0, vmax=2, extent=box)
        axes.text(BN / 2, -16, "w_tile[k]", ha="center", va="bottom", fontsize=9, color=BLUE)
        axes.text(-16, BM / 2, "a_tile[k]", ha="right", va="center", fontsize=9, color=BLUE,
                  rotation=90)
        axes.set_title(title, loc="center", fontsize=10, color=INK)
        axes.set(xlim=(-26, BN + 1), ylim=(BM + 1, -26), aspect="equal", xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    return closed(figure)


def span(letter, places):
    """range(4, 8) of m -> 'm = 4 … 7'."""
    return f"{letter} = {places[0]}" + (f" … {places[-1]}" if len(places) > 1 else "")


def tile_orders(title, orders, first):
    """Which tiles of a matrix the first programs take: blue, later ones lighter.

    orders: {label: program numbers (rows, columns)}    first: programs that run at once
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(orders), squeeze=False, sharey=True, figsize=(7.5, 3.6),
                                 layout="constrained")
    for axes, (label, number) in zip(every[0], orders.items(), strict=True):
        blue = np.array([int(BLUE[i:i + 2], 16) / 255 for i in (1, 3, 5)])
        share = np.maximum(0.06, 1 - number[..., None] // first * 0.6)      # a wave, the next, rest
        axes.imshow(1 - share * (1 - blue), aspect="auto")
        axes.set(title=label, xlabel="column of tiles")
        axes.tick_params(length=2)
    every[0, 0].set(ylabel="row of tiles")
    figure.suptitle(title)
    return closed(figure)


def tile_numbers(orders, first):
    """The program of each tile, as a number; blue are the first programs, which run together.

    orders: {label: program numbers (rows, columns)}    first: programs that run at once
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, every = plt.subplots(1, len(orders), squeeze=False, figsize=(7.5, 2.3),
                                 layout="constrained")
    for axes, (label, numbers) in zip(every[0], orders.items(), strict=True):
        for (row, column), number in np.ndenumerate(np.array(numbers)):
            soon = number < first
            axes.add_patch(Rectangle((column, row), 1, 1, fc=BLUE if soon else "#d0d7de",
                                     ec="white", lw=2))
            axes.text(column + 0.5, row + 0.5, number, ha="center", va="center_baseline",
                      fontsize=9, color="white" if soon else INK)
        rows, columns = np.shape(numbers)
        axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
        axes.set_title(label, loc="center", fontsize=10, color=INK)
        axes.set_xlabel("column of tiles: a strip of w", fontsize=9, color=INK)
        axes.set_ylabel("row of tiles:\na strip of a", fontsize=9, color=INK)
        axes.spines[:].set_visible(False)
    return closed(figure)


def tile_map(title, order, BM, BN):
    """Which query sees which key, in tiles: wholly visible in blue, partly in red, not in grey.

    order: (T, N) of bool    BM, BN: queries and keys of a tile
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    T, N = order.shape
    counts = {}
    figure, axes = plt.subplots(figsize=(5.5, 5.5 * T / N + 1), layout="constrained")
    for t in range(0, T, BM):
        for n in range(0, N, BN):
            tile = order[t:t + BM, n:n + BN]
            what, colour = ("whole: no mask", "#9cd2ff") if tile.all() else \
                ("partly visible: masked", RED) if tile.any() else ("future: skipped", "#d0d7de")
            counts[what, colour] = counts.get((what, colour), 0) + 1
            axes.add_patch(Rectangle((n, t), BN, BM, fc=colour, ec="white", lw=1.5))
    for (what, colour), count in counts.items():
        axes.add_patch(Rectangle((0, 0), 0, 0, color=colour, label=f"{count} {what}"))
    ends = [int(row.nonzero()[0].max()) + 1 for row in order]
    axes.step(ends, range(T), where="post", color=INK, lw=1.2, label="the last visible key")
    axes.set(xlim=(0, N), ylim=(T, 0), xlabel="key", ylabel="query", title=title, aspect="equal")
    axes.spines[:].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2,
                  frameon=False)
    return closed(figure)


def tile_walks(order, starts, BM, BN):
    """The two passes of a backward pass over the square of queries and keys, an arrow a program.

    order: (T, N) of bool, which query sees which key    starts: the query at which each tile of
    keys begins    BM, BN: queries and keys of a tile
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    T, N = order.shape
    ends = [int(np.nonzero(order[t:t + BM].any(0))[0].max()) + 1 for t in range(0, T, BM)]
    down = [(((i + 0.5) * BN, start), ((i + 0.5) * BN, T)) for i, start in enumerate(starts)]
    along = [((0, (i + 0.5) * BM), (-(-end // BN) * BN, (i + 0.5) * BM))
             for i, end in enumerate(ends)]
    figure, every = plt.subplots(1, 2, figsize=(7.5, 0.6 + 3.4 * T / N), layout="constrained")
    for axes, title, arrows in zip(every, ("keys pass: down a column", "queries pass: along a row"),
                                   (down, along), strict=True):
        for t in range(0, T, BM):
            for n in range(0, N, BN):
                colour = "#9cd2ff" if order[t:t + BM, n:n + BN].any() else "#eaeef2"
                axes.add_patch(Rectangle((n, t), BN, BM, fc=colour, ec="white", lw=1.2))
        for begin, end in arrows:
            axes.annotate("", end, begin, arrowprops={"arrowstyle": "->", "color": INK, "lw": 1.4,
                                                      "shrinkA": 1, "shrinkB": 1})
        axes.set(xlim=(0, N), ylim=(T, 0), xlabel="key", aspect="equal", xticks=(0, N),
                 yticks=(0, T))
        axes.set_title(title, loc="left", fontsize=10)
        axes.tick_params(length=0, labelsize=9)
        axes.spines[:].set_visible(False)
    every[0].set(ylabel="query")
    return closed(figure)
