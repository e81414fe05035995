"""Pictures that carry a point. Each function draws one figure and returns it."""

import numpy as np

INK, GREY, BLUE, RED = "#24292f", "#8c959f", "#0969da", "#cf222e"


def roofline(name, peak, bandwidth, kernels, measured=None):
    """The two roofs of a machine, and kernels under them.

    peak: FLOP/s    bandwidth: byte/s    kernels: {name: FLOP/byte}
    measured: {name: FLOP/s}; a kernel without a measurement is drawn on the roof, as a bound.
    """
    import matplotlib.pyplot as plt

    measured = measured or {}
    low = min([*kernels.values(), 0.1]) / 2
    high = max([*kernels.values(), peak / bandwidth]) * 8
    x = np.geomspace(low, high, 200)
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    axes.loglog(x, np.minimum(peak, x * bandwidth), color=INK, lw=2)
    ridge = peak / bandwidth
    axes.axvline(ridge, color=GREY, lw=1, ls=":")
    axes.annotate(f"ridge {ridge:.3g} FLOP/byte", (ridge, 0.02), xycoords=("data", "axes fraction"),
                  xytext=(4, 0), textcoords="offset points", color=GREY)
    axes.annotate(f"peak {rate(peak, 'FLOP/s')}", (high, peak), xytext=(-4, 5), ha="right",
                  textcoords="offset points", color=INK)
    slope = low**0.15 * ridge**0.85         # high up, so that the label stays inside
    axes.annotate(f"memory {rate(bandwidth, 'B/s')}", (slope, slope * bandwidth), xytext=(-8, 4),
                  ha="right", textcoords="offset points", color=INK)
    for kernel, intensity in kernels.items():
        roof = min(peak, intensity * bandwidth)
        y, colour = (measured[kernel], BLUE) if kernel in measured else (roof, RED)
        if kernel in measured:
            axes.plot([intensity] * 2, [y, roof], color=GREY, lw=1)
            label = f"{kernel}\n{y / roof:.0%} of its roof"
        else:
            label = f"{kernel}\nat most {rate(y, 'FLOP/s')}"
        axes.plot(intensity, y, "o", color=colour, ms=7)
        under = intensity > ridge
        if under and kernel not in measured:
            label = kernel              # its bound is the peak, which is written above
        axes.annotate(label, (intensity, y), xytext=(0, -8) if under else (8, -2), va="top",
                      ha="center" if under else "left", textcoords="offset points", color=colour)
    axes.set(xlabel="arithmetic intensity, FLOP/byte", ylabel="FLOP/s", title=name,
             xlim=(low, high))
    axes.set_ylim(min([low * bandwidth, *measured.values()]) / 3, peak * 4)      # room for labels
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    plt.close(figure)           # a notebook shows what is returned, and open figures once more
    return figure


def rate(value, unit):
    """312e12 -> '312 TFLOP/s'."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


# Fill and text of a bar's parts.
SHADES = (("#d0d7de", INK), ("#9cd2ff", INK), (RED, "white"), ("#54aeff", INK),
          ("#0a3069", "white"), (BLUE, "white"), (GREY, "white"))


def shares(title, rows):
    """A bar a row, cut into the parts of its whole.

    rows: {label: {part: number}}, seven parts at most; a part has one colour in all rows, and the
    third in order of appearance stands out.
    """
    import matplotlib.pyplot as plt

    parts = list(dict.fromkeys(part for row in rows.values() for part in row))
    shades = dict(zip(parts, SHADES, strict=False))
    figure, axes = plt.subplots(figsize=(7.5, 1.2 + 0.45 * len(rows)), layout="constrained")
    for y, row in enumerate(rows.values()):
        left, whole = 0.0, sum(row.values())
        for part in parts:
            share = 100 * row.get(part, 0) / whole
            axes.barh(y, share, left=left, color=shades[part][0], edgecolor="white", height=0.7)
            if share >= 5:
                axes.annotate(f"{share:.0f}", (left + share / 2, y), ha="center", va="center",
                              color=shades[part][1])
            left += share
    for part in parts:
        axes.barh(0, 0, color=shades[part][0], label=part)
    axes.set(title=title, xlim=(0, 100), xlabel="share, %")
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(parts),
                  frameon=False, handlelength=1, columnspacing=1.2)
    plt.close(figure)           # as above
    return figure


def intensity_by_batch(title, batches, curves, ridge):
    """FLOP/byte as the batch grows; curves that reach the ridge in blue, the others in red.

    curves: {label: [FLOP/byte at each batch]}    ridge: FLOP/byte
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    axes.axhline(ridge, color=INK, lw=1.5, ls=":")
    axes.annotate(f"ridge {ridge:.3g}: arithmetic decides above it",
                  (batches[0], ridge), xytext=(4, 5), textcoords="offset points", color=INK)
    for label, values in curves.items():
        colour = BLUE if max(values) >= ridge else RED
        axes.loglog(batches, values, color=colour, lw=2)
        axes.annotate(label, (batches[-1], values[-1]), xytext=(5, 0), textcoords="offset points",
                      va="center", color=colour, annotation_clip=False)
    axes.set(xlabel="batch, sequences", ylabel="arithmetic intensity, FLOP/byte", title=title,
             xlim=(batches[0], batches[-1]))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    plt.close(figure)           # as above
    return figure


def runs(title, lists):
    """Every run of some lists in the order in which it was taken, with its list's median.

    lists: {label: seconds}, three at most
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    longest = max(map(len, lists.values()))
    for (label, seconds), colour in zip(lists.items(), (BLUE, RED, GREY), strict=False):
        micro = np.asarray(seconds) * 1e6
        axes.semilogy(np.arange(1, len(micro) + 1), micro, "o", color=colour, ms=4)
        median = np.median(micro)
        axes.axhline(median, color=colour, lw=1, ls="--")
        axes.annotate(f"{label}\nmedian {median:.3g} µs", (longest, median), xytext=(10, 0),
                      va="center", textcoords="offset points", color=colour, annotation_clip=False)
    axes.set(xlabel="run", ylabel="µs", title=title, xlim=(0, longest + 0.5))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(which="major", axis="y", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    plt.close(figure)           # as above
    return figure


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
    plt.close(figure)
    return figure


def running(x, maxima, sums):
    """Online softmax along a row: the maximum so far, and the sum of exp(x - maximum so far).

    x, maxima, sums: a number a column
    """
    import matplotlib.pyplot as plt

    columns, grows = np.arange(len(x)), np.flatnonzero(np.diff(maxima) > 0) + 1
    figure, (above, below) = plt.subplots(2, 1, figsize=(7.5, 4.8), sharex=True,
                                          layout="constrained")
    above.plot(columns, x, "o", color=GREY, ms=4)
    above.plot(columns, maxima, color=RED, lw=1.5, drawstyle="steps-post")
    above.annotate("maximum so far, m", (columns[-1], maxima[-1]), xytext=(0, 5), ha="right",
                   textcoords="offset points", color=RED,
                   bbox={"fc": "white", "ec": "none", "pad": 1})
    below.plot(columns, sums, "o-", color=BLUE, lw=1.5, ms=4, label="sum of exp(x - m) so far, s")
    below.plot(columns, np.cumsum(np.exp(x - maxima[-1])), color=GREY, lw=1.5, ls="--",
               label="the sum if the last m were known from the start")
    for axes in (above, below):
        for column in grows:
            axes.axvline(column, color=RED, lw=0.8, ls=":", zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.2)
    above.set(ylabel="x", title="Where the maximum grows, the sum is rescaled")
    below.set(xlabel="column", ylabel="s")
    below.set_ylim(0)
    figure.legend(*below.get_legend_handles_labels(), loc="outside lower center", ncols=2,
                  frameon=False)
    plt.close(figure)           # as above
    return figure


def traffic(title, kernels):
    """What kernels move, in sizes of their input: reads in blue, writes in grey.

    kernels: {name: (times that the input is read, times that as much is written)}
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 1.2 + 0.4 * len(kernels)), layout="constrained")
    narrow = max(map(sum, kernels.values())) / 6        # a bar without room for the word
    for y, (reads, writes) in enumerate(kernels.values()):
        for left, width, colour, verb in ((0, reads, BLUE, "read"),
                                          (reads, writes, GREY, "written")):
            axes.barh(y, width, left=left, color=colour, edgecolor="white", height=0.7)
            axes.annotate(f"{width:g}×" if width < narrow else f"{verb} {width:g}×",
                          (left + width / 2, y), ha="center", va="center", color="white")
    axes.set(title=title, xlabel="bytes moved, in sizes of the input")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_yticks(range(len(kernels)), kernels)
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    plt.close(figure)           # as above
    return figure


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
    plt.close(figure)           # as above
    return figure


def growth(title, curves, x, y):
    """Counts that grow with 1, 2, 3 … of something, one line each.

    curves: {name: [count for 1, for 2, …]}    x, y: what the axes count
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    for (name, values), colour in zip(curves.items(), (GREY, BLUE, RED), strict=False):
        axes.plot(range(1, len(values) + 1), values, color=colour, lw=2)
        last = f"{values[-1]:,}" if isinstance(values[-1], int) else f"{values[-1]:.1f}"
        axes.annotate(f"{name}: {last}", (len(values), values[-1]), xytext=(-6, 6),
                      textcoords="offset points", ha="right", color=colour)
    axes.set(title=title, xlabel=x, ylabel=y, ylim=(0, 1.15 * max(map(max, curves.values()))))
    axes.spines[["top", "right"]].set_visible(False)
    plt.close(figure)           # as above
    return figure


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
    plt.close(figure)           # as above
    return figure


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
        axes.set_title(f"{label}   →   {works.sum()} additions by {busy.sum()} warps",
                       loc="left", fontsize=10, color=INK)
        axes.set(ylabel="round", xticks=range(0, threads + 1, warp), yticks=range(1, number + 1))
        axes.grid(axis="x", color=GREY, lw=0.5)
        axes.hlines(np.arange(1, number) + 0.5, 0, threads, color="#eaeef2", lw=0.8)
    every[-1, 0].set_xlabel("thread, and the borders of the warps")
    plt.close(figure)           # as above
    return figure


def tile_map(title, order, BM, BN):
    """Which query sees which key, in tiles: seen whole in blue, in part in red, never in grey.

    order: (T, N) of bool    BM, BN: queries and keys of a tile
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    (T, N), counts = order.shape, {}
    figure, axes = plt.subplots(figsize=(5.5, 5.5 * T / N + 1), layout="constrained")
    for t in range(0, T, BM):
        for n in range(0, N, BN):
            tile = order[t:t + BM, n:n + BN]
            what, colour = ("whole, no mask", "#9cd2ff") if tile.all() else \
                ("in part, masked", RED) if tile.any() else ("skipped", "#d0d7de")
            counts[what, colour] = counts.get((what, colour), 0) + 1
            axes.add_patch(Rectangle((n, t), BN, BM, fc=colour, ec="white", lw=1.5))
    for (what, colour), count in counts.items():
        axes.add_patch(Rectangle((0, 0), 0, 0, color=colour, label=f"{count} {what}"))
    ends = [int(row.nonzero()[0].max()) + 1 for row in order]
    axes.step(ends, range(T), where="post", color=INK, lw=1.2, label="the last key seen")
    axes.set(xlim=(0, N), ylim=(T, 0), xlabel="key", ylabel="query", title=title, aspect="equal")
    axes.spines[:].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2,
                  frameon=False)
    plt.close(figure)           # as above
    return figure


def falling(title, sizes, curves, x, y):
    """What gets less as a size doubles again and again, one line each, named where it begins.

    sizes: [number]    curves: {name: [value at each size]}, three at most    x, y: the axes' names
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    for (name, values), colour in zip(curves.items(), (RED, BLUE, INK), strict=False):
        axes.plot(sizes, values, "o-", color=colour, lw=2, ms=4)
        axes.annotate(name, (sizes[0], values[0]), xytext=(-8, 0), textcoords="offset points",
                      ha="right", va="center", color=colour)
    axes.set_xscale("log", base=2)
    axes.set(title=title, xlabel=x, ylabel=y, xlim=(sizes[0] / 2.2, sizes[-1] * 1.1),
             ylim=(0, 1.1 * max(map(max, curves.values()))))
    axes.set_xticks(sizes, sizes)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eaeef2")
    plt.close(figure)           # as above
    return figure


def page_map(title, P, S, tables, lens):
    """The pages of a cache, a row of slots each: a colour a sequence, pale where a slot is unused.

    P, S: pages, slots of a page    tables: {sequence: pages in order}    lens: {sequence: tokens}
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(figsize=(7.5, 0.32 * P + 0.9), layout="constrained")
    owners = {page: (name, i) for name, pages in tables.items() for i, page in enumerate(pages)}
    colours = dict(zip(tables, (BLUE, RED, INK), strict=False))
    for page in range(P):
        name, i = owners.get(page, (None, 0))
        for place in range(S):
            used = name is not None and i * S + place < lens[name]
            axes.add_patch(Rectangle((place, page), 1, 1, ec="white", lw=1.2,
                                     fc=colours[name] if used else "#eaeef2"))
        label = "free" if name is None else \
            f"{name}, tokens {i * S} to {min((i + 1) * S, lens[name]) - 1}"
        axes.annotate(label, (S + 0.2, page + 0.5), va="center", annotation_clip=False,
                      color=GREY if name is None else colours[name])
    axes.set(xlim=(0, S), ylim=(P, 0), xlabel="place", ylabel="page", title=title,
             xticks=range(0, S, 2))
    axes.set_yticks([page + 0.5 for page in range(P)], range(P))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    plt.close(figure)           # as above
    return figure


def waves(title, context, curves):
    """Lengths of waves, pair by pair, on a log scale, and the context that they should fit into.

    context: tokens    curves: {name: [tokens of a whole turn]}, two at most
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    for (name, lengths), colour in zip(curves.items(), (GREY, BLUE), strict=False):
        axes.plot(lengths, color=colour, lw=2.5)
        axes.annotate(name, (len(lengths) - 1, lengths[-1]), xytext=(6, 0), color=colour,
                      textcoords="offset points", va="center")
    axes.axhline(context, color=RED, lw=1, ls="--")
    axes.annotate(f"{context:,} tokens", (0, context), xytext=(6, 4), color=RED,
                  textcoords="offset points")
    axes.set_yscale("log")
    axes.set(title=title, xlabel="pair of a head", ylabel="tokens of a whole turn",
             xlim=(0, 1.35 * len(lengths)), xticks=range(0, len(lengths) + 1, 16))
    axes.spines[["top", "right"]].set_visible(False)
    plt.close(figure)           # as above
    return figure


def crossing(title, sizes, curves, at, x, y):
    """Two costs that grow with a size, both axes logarithmic, and the size from which the order
    is the other way round.

    sizes: [number]    curves: {name: [cost at each size]}    at: the size    x, y: the axes' names
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
    for (name, values), colour in zip(curves.items(), (RED, BLUE), strict=True):
        axes.loglog(sizes, values, color=colour, lw=2)
        axes.annotate(name, (sizes[len(sizes) // 5], values[len(sizes) // 5]), xytext=(6, -5),
                      textcoords="offset points", va="top", color=colour)
    axes.axvline(at, color=GREY, lw=1, ls=":")
    axes.annotate(f"{at:,}", (at, 0.03), xycoords=("data", "axes fraction"), xytext=(5, 0),
                  textcoords="offset points", color=GREY)
    axes.set(title=title, xlabel=x, ylabel=y, xlim=(sizes[0], sizes[-1]))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(which="major", color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    plt.close(figure)           # as above
    return figure


def padding(title, ladders, most):
    """The rows with which batches of 1 to `most` run, a panel for each ladder of sizes: sequences
    in blue, padding in red; grey where no size is large enough.

    ladders: {label: [size]}
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(len(ladders), 1, sharex=True, squeeze=False, layout="constrained",
                                 figsize=(7.5, 1.7 * len(ladders) + 0.7))
    batches = np.arange(1, most + 1)
    for axes, (label, sizes) in zip(every[:, 0], ladders.items(), strict=True):
        rows = np.array([min((s for s in sizes if s >= batch), default=0) for batch in batches])
        busy = rows > 0
        spare = np.where(busy, rows - batches, 0)
        axes.bar(batches, batches, 1, color=np.where(busy, "#9cd2ff", "#d0d7de"))
        axes.bar(batches, spare, 1, bottom=batches, color=RED)
        axes.set_title(f"{label}   →   {len(sizes)} graphs, {spare.sum() / rows.sum():.0%} of all "
                       f"their rows are padding", loc="left", fontsize=10, color=INK)
        axes.set(ylabel="rows", xlim=(0.5, most + 0.5))
        axes.spines[["top", "right"]].set_visible(False)
    every[-1, 0].set_xlabel("batch, sequences")
    figure.suptitle(title)
    plt.close(figure)           # as above
    return figure


def arenas(title, plans):
    """Memory over a run: who lies where for how long, and in red how many bytes are live.

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
    plt.close(figure)           # as above
    return figure


# Colour and style of many curves.
STROKES = ((INK, "-"), (GREY, "-"), (BLUE, "-"), (RED, "-"), (BLUE, "--"), (RED, "--"), (INK, ":"),
           (BLUE, ":"), (RED, ":"))


def number_lines(title, lines, densities):
    """Above, the positive numbers of formats, a tick each; below, how dense they are.

    lines: {name: numbers}    densities: {name: (x, x over the spacing there)}, nine at most
    """
    import matplotlib.pyplot as plt

    figure, (ticks, axes) = plt.subplots(2, 1, sharex=True, layout="constrained",
                                         figsize=(7.5, 3.4 + 0.3 * len(lines)),
                                         height_ratios=(0.3 * len(lines), 2.6))
    for row, numbers in enumerate(lines.values()):
        ticks.vlines(numbers, row - 0.36, row + 0.36, color=BLUE, lw=0.6)
    ticks.set_yticks(range(len(lines)), lines)
    ticks.invert_yaxis()
    ticks.tick_params(length=0)
    ticks.spines[["top", "right", "left"]].set_visible(False)
    for (name, (x, density)), (colour, style) in zip(densities.items(), STROKES, strict=False):
        axes.plot(x, density, color=colour, ls=style, lw=1.6, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="x", ylabel="x / spacing")
    axes.grid(color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right lower", frameon=False)
    figure.suptitle(title)
    plt.close(figure)           # as above
    return figure


def panels(title, groups, x, y, log=True):
    """Curves side by side on the same axes, which a legend names; a name has one style in all.

    groups: {label of a panel: {name: (xs, ys)}}, nine names at most    x, y: the axes' names
    log: the y axis too, not only the x axis, is logarithmic
    """
    import matplotlib.pyplot as plt

    names = dict.fromkeys(name for curves in groups.values() for name in curves)
    strokes = dict(zip(names, STROKES, strict=False))
    figure, every = plt.subplots(1, len(groups), sharey=True, squeeze=False, figsize=(7.5, 3.6),
                                 layout="constrained")
    for axes, (label, curves) in zip(every[0], groups.items(), strict=True):
        for name, (xs, ys) in curves.items():
            colour, style = strokes[name]
            axes.plot(xs, ys, color=colour, ls=style, lw=1.8)
        axes.set_xscale("log", base=2)
        if log:
            axes.set_yscale("log", base=2)
        axes.set_title(label, loc="left", fontsize=10, color=INK)
        axes.set(xlabel=x)
        axes.grid(color="#eaeef2")
        axes.spines[["top", "right"]].set_visible(False)
    every[0, 0].set(ylabel=y)
    for name, (colour, style) in strokes.items():
        every[0, 0].plot([], [], color=colour, ls=style, lw=1.8, label=name)
    figure.legend(loc="outside right center", frameon=False)
    plt.close(figure)           # as above
    return figure


def by_bits(title, panels):
    """What bits of a weight cost and gain, panels one below the other; both axes logarithmic.

    panels: {name of the y axis: {series: [(bits, value)]}}, four series at most
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator

    figure, every = plt.subplots(len(panels), 1, sharex=True, squeeze=False, layout="constrained",
                                 figsize=(7.5, 2.6 * len(panels) + 0.4))
    for axes, (name, series) in zip(every[:, 0], panels.items(), strict=True):
        for (label, points), (colour, mark) in zip(
                series.items(), ((BLUE, "o"), (INK, "s"), (GREY, "D"), (RED, "^")), strict=False):
            axes.loglog(*zip(*sorted(points), strict=True), mark + "-", color=colour, lw=1, ms=6,
                        label=label)
        axes.set(ylabel=name)
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.grid(which="major", color="#eaeef2")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="bits of a weight, scales included")
    axes.xaxis.set_major_formatter("{x:g}")
    figure.suptitle(title)
    plt.close(figure)           # as above
    return figure


FLOOR_SHADES = {"kernel": "#54aeff", "graph": RED, "system": "#0a3069", "idle": "#d0d7de"}


def floors_by_step(title, panels):
    """A bar a step, stacked of what each floor took; a panel for each kind of step, on one scale.

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
    plt.close(figure)           # as above
    return figure


def timeline(title, requests):
    """What happened to each request: a bar of waiting, prefill and decode, a dot a token.

    requests: {name: ([(what, begin, end)], [when a token was sent])}, in ms
    """
    import matplotlib.pyplot as plt

    shades = {"waiting": "#d0d7de", "prefill": RED, "decode": "#9cd2ff"}
    figure, axes = plt.subplots(figsize=(7.5, 1.5 + 0.6 * len(requests)), layout="constrained")
    for y, (spans, sent) in enumerate(requests.values()):
        for what, begin, end in spans:
            axes.barh(y, end - begin, 0.6, left=begin, color=shades[what])
        axes.plot(sent, [y] * len(sent), ".", color=INK, ms=5, ls="none")
    for what, colour in shades.items():
        axes.barh(0, 0, color=colour, label=what)
    axes.plot([], [], ".", color=INK, ms=5, ls="none", label="a token is sent")
    axes.set(title=title, xlabel="ms")
    axes.set_yticks(range(len(requests)), requests)
    axes.invert_yaxis()
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4,
                  frameon=False, handlelength=1)
    plt.close(figure)           # as above
    return figure


def laws(title, x, y, curves, points, scale="linear"):
    """Lines through points, or beside them: the x axis is logarithmic, the other one of a scale.

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
    plt.close(figure)           # as above
    return figure


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
    plt.close(figure)           # as above
    return figure


def timelines(title, groups, kinds):
    """What went on, a lane each, on an axis from 0 to 100 % of each group's time.

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
    plt.close(figure)           # as above
    return figure


def decisions(title, steps):
    """Questions from top to bottom, each with what its answers lead to on the right.

    steps: [(question, {answer: (a floor of FLOOR_SHADES, what it leads to)})]
    """
    import matplotlib.pyplot as plt

    rows = sum(len(answers) for _, answers in steps)
    figure, axes = plt.subplots(figsize=(7.5, 0.5 + 0.46 * rows), layout="constrained")
    y, before = 0.0, None
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
    plt.close(figure)           # as above
    return figure
