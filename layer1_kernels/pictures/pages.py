"""Pages of a cache: which belong to which sequence."""

from lab.plots import BLUE, GREY, INK, RED, closed


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
    return closed(figure)
