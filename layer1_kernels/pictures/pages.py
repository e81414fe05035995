"""Pages of a cache: whose they are, how a token is looked up, which program takes which keys."""

import math

from lab.plots import BLUE, GREY, INK, RED, closed

PALE = "#eaeef2"


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
                                     fc=colours[name] if used else PALE))
        label = "free" if name is None else \
            f"{name}, tokens {i * S} to {min((i + 1) * S, lens[name]) - 1}"
        axes.annotate(label, (S + 0.2, page + 0.5), va="center", annotation_clip=False,
                      color=GREY if name is None else colours[name])
    axes.set(xlim=(0, S), ylim=(P, 0), xlabel="place", ylabel="page", title=title,
             xticks=range(0, S, 2))
    axes.set_yticks([page + 0.5 for page in range(P)], range(P))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return closed(figure)


def page_lookup(table, N, token, S):
    """From a token to its slot: the tokens of a sequence, its block table, and the token's page.

    table: its pages in order    N: its length    token: a number below N    S: slots of a page
    """
    import matplotlib.pyplot as plt

    entry, place = divmod(token, S)
    page = table[entry]
    width = len(table) * S
    box = S / 2                                         # width of an entry
    middles = [(i + 0.5) * S for i in range(len(table))]
    start = width / 2 - S / 2                           # of the page
    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    cells(axes, [(n, 0, 1, 2) for n in range(N)], token, S)
    cells(axes, [(x - box / 2, 6, box, 3) for x in middles], entry, 1)
    cells(axes, [(start + s, 13, 1, 2) for s in range(S)], place, S)
    for i, x in enumerate(middles):
        axes.text(x, 7.5, f"entry {i}:\npage {table[i]}", ha="center", va="center", fontsize=8,
                  color="white" if i == entry else INK)
    arrow(axes, (token + 0.5, 2), (middles[entry], 6), f"{token} // {S} = {entry}")
    arrow(axes, (middles[entry], 9), (start + place + 0.5, 13), f"{token} % {S} = {place}")
    axes.text(0, -0.5, f"tokens 0 to {N - 1} of the sequence", va="bottom", color=INK, fontsize=9)
    axes.text(0, 5.5, "block table", va="bottom", color=INK, fontsize=9)
    axes.text(start - 0.7, 14, f"page {page}", ha="right", va="center", color=INK, fontsize=9)
    axes.text(width / 2, 16, f"slot = {page} · {S} + {place} = {page * S + place}", ha="center",
              va="top", color=RED)
    axes.set(xlim=(-0.5, width + 0.5), ylim=(17.5, -2), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return closed(figure)


def cells(axes, boxes, marked, group):
    """Boxes (left, top, width, height), one in red; the others change colour after each `group`."""
    from matplotlib.patches import Rectangle

    for i, (left, top, width, height) in enumerate(boxes):
        colour = RED if i == marked else ("#9cd2ff", "#d0d7de")[i // group % 2]
        axes.add_patch(Rectangle((left, top), width, height, fc=colour, ec="white"))


def arrow(axes, start, end, words):
    """An arrow from start to end, its words to the right of its middle."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": RED, "shrinkA": 0,
                                              "shrinkB": 0})
    x = (start[0] + end[0]) / 2
    y = (start[1] + end[1]) / 2
    axes.text(x + 1.2, y + 0.3, words, va="center", color=RED, fontsize=9)


def attention_programs(cu_q, lens, BQ, splits, BN):
    """Which keys the new tokens of each sequence see, and which split takes them; a panel for each
    sequence.

    cu_q, lens: as in paged_attention    BQ: tokens of a tile of queries    BN: keys of a tile
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    counts = [end - begin for begin, end in zip(cu_q[:-1], cu_q[1:], strict=True)]
    figure, every = plt.subplots(len(lens), 1, sharex=True, squeeze=False, layout="constrained",
                                 figsize=(7.5, len(lens) + 0.3 * sum(counts)),
                                 height_ratios=counts)
    for b, (axes, N, count) in enumerate(zip(every[:, 0], lens, counts, strict=True)):
        for t in range(count):
            share = share_of(min(N - count + t // BQ * BQ + BQ, N), BN, splits)
            for n in range(N):
                colour = (BLUE, RED)[n // share % 2] if n <= N - count + t else PALE
                axes.add_patch(Rectangle((n, t), 1, 1, fc=colour, ec="white", lw=0.8))
        share = share_of(min(N - count + BQ, N), BN, splits)
        for n in range(0, N, share):
            axes.annotate(f"split {n // share}", (n, 0), xytext=(1, 2), textcoords="offset points",
                          va="bottom", fontsize=9, color=(BLUE, RED)[n // share % 2])
        axes.set_title(f"sequence {b}: {N} tokens, {count} new", loc="left", fontsize=10, pad=17)
        axes.set(xlim=(0, max(lens)), ylim=(count, 0), xticks=range(0, max(lens), BN))
        axes.set_yticks([t + 0.5 for t in range(count)], [
            f"tile {cu_q[b] // BQ + b + t // BQ}, token {N - count + t}" for t in range(count)])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    every[-1, 0].set_xlabel("key")
    return closed(figure)


def share_of(reach, BN, splits):
    """Keys of a split: whole tiles of BN."""
    return math.ceil(math.ceil(reach / BN) / splits) * BN
