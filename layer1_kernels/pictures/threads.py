"""Threads and what each takes: grids, programs, loads, rounds of a reduction."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed


def grid(blocks, threads, n, thread=(2, 5)):
    """A launch over an array: each block's threads above the elements that they take, and one
    block opened.

    blocks, threads: of the launch    n: elements, at most blocks * threads; the last block may
    reach past them    thread: (block, thread in it, one of the first ten) that is followed to its
    element
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import ConnectionPatch, Rectangle

    figure, (above, below) = plt.subplots(2, 1, figsize=(7.5, 3.0), layout="constrained")
    block, place = thread
    for b in range(blocks):
        begin = b * threads
        here = min(max(n - begin, 0), threads)          # its threads that have an element
        chosen = b == block
        above.add_patch(Rectangle((begin, 0), here, 1, fc=BLUE if chosen else "#d0d7de",
                                  ec="white", lw=1.5))
        above.add_patch(Rectangle((begin + here, 0), threads - here, 1, fc="white", ec=RED,
                                  lw=1 if here < threads else 0, ls="--"))
        above.text(begin + threads / 2, 0.5, f"block {b}", ha="center", va="center", fontsize=9,
                   color="white" if chosen else INK)
    above.set(xlim=(0, blocks * threads), ylim=(0, 1), yticks=[],
              xticks=range(0, blocks * threads + 1, threads))
    above.xaxis.tick_top()
    above.tick_params(length=0)
    ragged = f"; threads with i ≥ {n} have no element" if n < blocks * threads else ""
    above.set_title(f"{blocks} blocks of {threads} threads over {n} elements{ragged}", loc="left",
                    fontsize=10, color=INK)
    for t in [*range(10), threads - 1]:
        column = min(t, 11)                             # 10 stands for those that are left out
        chosen = t == place
        below.add_patch(Rectangle((column, 0), 1, 1, fc=BLUE if chosen else "#d0d7de", ec="white",
                                  lw=1.5))
        below.text(column + 0.5, 0.66, f"thread {t}", ha="center", va="center", fontsize=7,
                   color="white" if chosen else INK)
        below.text(column + 0.5, 0.3, f"i = {block * threads + t}", ha="center", va="center",
                   fontsize=8, color="white" if chosen else INK)
    below.text(10.5, 0.5, "…", ha="center", va="center", fontsize=12, color=INK)
    below.set(xlim=(0, 12), ylim=(0, 1), xticks=[], yticks=[])
    below.set_xlabel(f"in block {block}:  i = {block} · {threads} + threadIdx.x", color=INK)
    for edge, end in ((0, 0), (threads, 1)):
        figure.add_artist(ConnectionPatch(
            (block * threads + edge, 0), (end, 1.0), "data", below.transAxes, axesA=above,
            axesB=below, color=GREY, lw=0.8))
    for axes in (above, below):
        axes.spines[:].set_visible(False)
    return closed(figure)


def strides(blocks, threads, n):
    """A grid-stride loop: which thread of the grid takes which element, a row for each round.
    Red is thread 0, an outline is a place past the end.

    blocks, threads: of the launch    n: elements
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    step = blocks * threads
    number = -(-n // step)                              # of rounds
    figure, axes = plt.subplots(figsize=(7.5, 0.5 * number + 0.8), layout="constrained")
    for i in range(number * step):
        colour = RED if i % step == 0 else BLUE
        inside = i < n
        axes.add_patch(Rectangle((i, i // step), 0.92, 0.8, fc=colour if inside else "white",
                                 ec=colour, ls="-" if inside else "--"))
        axes.text(i + 0.46, i // step + 0.4, i % step, ha="center", va="center", fontsize=9,
                  color="white" if inside else colour)
    axes.set(xlim=(-0.1, number * step), ylim=(number, -0.2),
             xticks=[i + 0.46 for i in range(number * step)], xticklabels=range(number * step),
             yticks=[turn + 0.4 for turn in range(number)],
             yticklabels=[f"round {turn}" for turn in range(number)])
    axes.set_xlabel("element i", color=INK)
    axes.set_title(f"{blocks} blocks of {threads} threads over {n} elements: the thread that takes "
                   "element i", loc="left", fontsize=10, color=INK)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    return closed(figure)


def masked(n, block):
    """Which positions of each Triton program exist: blue inside the array, an outline past it.

    n: elements    block: positions of a program
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    programs = -(-n // block)
    figure, axes = plt.subplots(figsize=(7.5, 0.5 * programs + 0.4), layout="constrained")
    for program in range(programs):
        for place in range(block):
            i = program * block + place
            axes.add_patch(Rectangle((place, -program), 0.92, 0.8, fc=BLUE if i < n else "white",
                                     ec=BLUE if i < n else RED, ls="-" if i < n else "--"))
            axes.text(place + 0.46, 0.4 - program, i, ha="center", va="center", fontsize=9,
                      color="white" if i < n else RED)
    axes.set(xlim=(-0.1, block), ylim=(0.9 - programs, 0.9), xticks=[],
             yticks=[0.4 - program for program in range(programs)],
             yticklabels=[f"program {program}" for program in range(programs)])
    axes.set_title(f"n = {n}, BLOCK = {block}:  i, and in red where the mask i < n is False",
                   loc="left", fontsize=10, color=INK)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return closed(figure)


def lanes(requests):
    """What one load request of a warp moves: the sectors it touches, wanted bytes in blue.

    requests: {label: (byte offset of each of the 32 lanes, bytes that a lane wants)}
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    sector = 32
    figure, every = plt.subplots(len(requests), 1, sharex=True, squeeze=False,
                                 figsize=(7.5, 0.95 * len(requests) + 0.5), layout="constrained")
    span = max(max(offsets) + size for offsets, size in requests.values())
    span = -(-span // sector) * sector                  # the last sector whole
    for axes, (label, (offsets, size)) in zip(every[:, 0], requests.items(), strict=True):
        touched = sorted({b // sector for o in offsets for b in (o, o + size - 1)})
        for number in touched:
            axes.add_patch(Rectangle((number * sector, 0), sector, 1, fc="#d0d7de", ec="white",
                                     lw=1.2))
        for offset in offsets:
            axes.add_patch(Rectangle((offset, 0.12), size, 0.76, fc=BLUE, ec="white", lw=0.3))
        moved = len(touched) * sector
        axes.set_title(f"{label}   →   {len(touched)} sectors, "
                       f"{len(offsets) * size} of {moved} bytes wanted",
                       loc="left", fontsize=10, color=INK)
        axes.set(xlim=(0, span), ylim=(0, 1), yticks=[])
        axes.spines[:].set_visible(False)
    every[-1, 0].set(xticks=range(0, span + 1, 64), xlabel="byte offset")
    return closed(figure)


def one_round(columns, reads):
    """The places of some arrays that threads of a warp access at one moment: blue, and in each the
    numbers of the threads.

    columns: of every array    reads: {title: [(row, column) of each thread]}, a panel each
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    rows = max(row for places in reads.values() for row, _ in places) + 1
    figure, every = plt.subplots(1, len(reads), squeeze=False, layout="constrained",
                                 figsize=(7.5, 6.8 / len(reads) * rows / columns + 0.5))
    for axes, (title, places) in zip(every[0], reads.items(), strict=True):
        for row, column in np.ndindex(rows, columns):
            threads = [thread for thread, place in enumerate(places) if place == (row, column)]
            axes.add_patch(Rectangle((column, row), 1, 1, fc=BLUE if threads else "#d0d7de",
                                     ec="white", lw=1))
            axes.text(column + 0.5, row + 0.5, "–".join(map(str, threads[:1] + threads[1:][-1:])),
                      ha="center", va="center_baseline", fontsize=8, color="white")
        axes.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", xticks=[], yticks=[])
        axes.set_title(title, loc="left", fontsize=10, color=INK)
        axes.spines[:].set_visible(False)
    return closed(figure)


def tree(numbers):
    """A sum in pairs: the numbers in shared memory at the start and after each round.
    Blue where a thread has added, white where a number was taken and is not needed any more.

    numbers: one a thread; as many as a power of two
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    a = list(numbers)
    steps = [2**i for i in range(len(a).bit_length() - 1)]
    figure, axes = plt.subplots(figsize=(7.5, 0.58 * len(steps) + 0.75), layout="constrained")
    for row, s in enumerate([0, *steps]):
        for t in range(len(a)):
            alive = s == 0 or t % (2 * s) == 0
            if s and alive:
                a[t] += a[t + s]
                arrows(axes, row, t, t + s)
            colour = "#d0d7de" if s == 0 else BLUE if alive else "white"
            axes.add_patch(Rectangle((t, row), 0.92, 0.6, fc=colour, zorder=3,
                                     ec=BLUE if s and alive else "#d0d7de"))
            axes.text(t + 0.46, row + 0.31, a[t], ha="center", va="center", fontsize=9, zorder=4,
                      color=INK if s == 0 else "white" if alive else GREY)
    frame(axes, len(a), "thread t, and the place of a[t]",
          ["a at the start", *(f"after s = {s}" for s in steps)])
    return closed(figure)


def shuffle(numbers):
    """The sum of a warp by shuffles: the value v of each lane at the start and after each of them.
    Blue lanes still matter, white ones do not.

    numbers: one a lane; as many as a power of two
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    v = list(numbers)
    lanes = len(v)
    steps = [lanes >> i for i in range(1, lanes.bit_length())]      # lanes / 2, … 2, 1
    figure, axes = plt.subplots(figsize=(7.5, 0.62 * len(steps) + 0.75), layout="constrained")
    for row, away in enumerate([0, *steps]):
        before = list(v)
        for lane in range(lanes):
            other = lane + away if lane + away < lanes else lane    # there is none: its own
            v[lane] = before[lane] + before[other] if away else before[lane]
            matters = not away or lane < away
            if away and matters:
                arrows(axes, row, lane, other)
            colour = "#d0d7de" if not away else BLUE if matters else "white"
            axes.add_patch(Rectangle((lane, row), 0.92, 0.6, fc=colour, ec="#d0d7de", zorder=3))
            axes.text(lane + 0.46, row + 0.31, v[lane], ha="center", va="center", fontsize=9,
                      zorder=4, color=INK if not away else "white" if matters else GREY)
    frame(axes, lanes, "lane", ["v at the start", *(f"after away = {away}" for away in steps)])
    return closed(figure)


def butterfly(numbers):
    """The maximum of a warp by exchanges: the value v of each lane at the start and after each
    round, in which lanes `away` apart exchange and both keep the larger.
    Red is the maximum of all.

    numbers: one a lane; as many as a power of two
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    v = np.asarray(numbers)
    lanes = np.arange(len(v))
    steps = [len(v) >> i for i in range(1, len(v).bit_length())]    # lanes / 2, … 2, 1
    figure, axes = plt.subplots(figsize=(7.5, 0.62 * len(steps) + 0.75), layout="constrained")
    for row, away in enumerate([0, *steps]):
        v = np.maximum(v, v[lanes ^ away])
        for lane in lanes:
            for source in (lane, lane ^ away) if away else ():
                axes.plot([source + 0.46, lane + 0.46], [row - 0.4, row], color=GREY, lw=0.7,
                          antialiased=False)        # a smaller file
            largest = v[lane] == v.max()
            axes.add_patch(Rectangle((lane, row), 0.92, 0.6, fc=RED if largest else "#d0d7de",
                                     ec="#d0d7de", zorder=3))
            axes.text(lane + 0.46, row + 0.31, v[lane], ha="center", va="center", fontsize=9,
                      zorder=4, color="white" if largest else INK)
    frame(axes, len(v), "lane", ["v at the start", *(f"after away = {away}" for away in steps)])
    return closed(figure)


def arrows(axes, row, place, other):
    """From two places of the row above to the first of them."""
    for source, end in ((place, 0.46), (other, 0.7)):
        axes.annotate("", (place + end, row), (source + 0.46, row - 0.4), arrowprops={
            "arrowstyle": "->", "color": GREY, "lw": 1, "shrinkA": 0, "shrinkB": 0})


def frame(axes, columns, name, rows):
    """Numbers over columns of cells, which are called `name`, and labels beside rows."""
    axes.set(xlim=(-0.1, columns), ylim=(len(rows) - 0.3, -0.1),
             xticks=[column + 0.46 for column in range(columns)], xticklabels=range(columns),
             yticks=[row + 0.3 for row in range(len(rows))], yticklabels=rows)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(name, fontsize=9, color=INK)
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)


def rounds(kernels, warp=32):
    """Which threads of a block work in each round: blue where they do, grey where their warp is
    busy for others, white where the whole warp is free.

    kernels: {label: (rounds, threads) of bool}
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap

    figure, every = plt.subplots(len(kernels), 1, sharex=True, squeeze=False, layout="constrained",
                                 figsize=(7.5, 1.9 * len(kernels) + 0.3))
    for axes, (label, works) in zip(every[:, 0], kernels.items(), strict=True):
        number, threads = works.shape
        busy = works.reshape(number, -1, warp).any(-1)              # (rounds, warps)
        axes.imshow(np.repeat(busy, warp, axis=1) + works.astype(int), vmin=0, vmax=2,
                    cmap=ListedColormap(["white", "#d0d7de", BLUE]), aspect="auto",
                    interpolation="nearest", extent=(0, threads, number + 0.5, 0.5))
        axes.set_title(f"{label}   →   {works.sum()} additions; busy warps, summed over all "
                       f"rounds: {busy.sum()}", loc="left", fontsize=10, color=INK)
        axes.set(ylabel="round", xticks=range(0, threads + 1, warp), yticks=range(1, number + 1))
        axes.grid(axis="x", color=GREY, lw=0.5)
        axes.hlines(np.arange(1, number) + 0.5, 0, threads, color="#eaeef2", lw=0.8)
    every[-1, 0].set_xlabel("thread, and the borders of the warps")
    return closed(figure)


def two_passes(numbers, blocks):
    """A sum by two launches: the numbers, the sum that each block of the first one makes of its
    share, and the total that the only block of the second one makes of these sums.

    numbers: a multiple of `blocks`
    """
    import matplotlib.pyplot as plt

    share = len(numbers) // blocks
    sums = [sum(numbers[b * share:(b + 1) * share]) for b in range(blocks)]
    middles = [b * share + share / 2 for b in range(blocks)]
    centre = len(numbers) / 2
    figure, axes = plt.subplots(figsize=(7.5, 2.3), layout="constrained")
    for row, places, values in ((0, [t + 0.5 for t in range(len(numbers))], numbers),
                                (1, middles, sums), (2, [centre], [sum(sums)])):
        for place, value in zip(places, values, strict=True):
            cell(axes, place, row, value)
    for b, middle in enumerate(middles):
        below = [b * share + 0.5 + t for t in range(share)]
        for place, end, row in [*((place, middle, 1) for place in below), (middle, centre, 2)]:
            axes.annotate("", (end, row), (place, row - 0.5), arrowprops={
                "arrowstyle": "->", "color": GREY, "lw": 1, "shrinkA": 0, "shrinkB": 0})
        axes.text(middle + 0.6, 1.26, f"block {b}", va="center", fontsize=8, color=GREY)
    axes.text(centre + 0.6, 2.26, "block 0", va="center", fontsize=8, color=GREY)
    axes.set(xlim=(0, len(numbers)), ylim=(2.6, -0.1), xticks=[], yticks=[0.25, 1.25, 2.25],
             yticklabels=["x", "launch 1: `partial`", "launch 2: the sum"])
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    return closed(figure)


def cell(axes, place, row, value):
    """A number in a box that is centred at `place`: grey in row 0, blue below it."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((place - 0.46, row), 0.92, 0.5, ec="#d0d7de", zorder=3,
                             fc=BLUE if row else "#d0d7de"))
    axes.text(place, row + 0.26, value, ha="center", va="center", fontsize=9, zorder=4,
              color="white" if row else INK)
