"""Ranks, a lane each: what they do when."""

from lab.plots import BLUE, GREY, RED, closed


def timelines(title, groups, kinds):
    """What happened, a lane each, on an axis from 0 to 100 % of each group's time.

    groups: {label: [[(start, end, kind), …], … a lane each]}   kinds: in the order of their colours
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    shades = dict(zip(kinds, (BLUE, "#54aeff", "#d0d7de", GREY, RED), strict=True))
    hatches = {kind: "////" for kind, shade in shades.items() if shade == GREY}     # two greys
    lanes = [(label if not i else "", lane) for label, group in groups.items()
             for i, lane in enumerate(group)]
    figure, axes = plt.subplots(figsize=(7.5, 1.2 + 0.4 * len(lanes)), layout="constrained")
    for y, (_, lane) in enumerate(lanes):
        whole = max(end for _, end, _ in lane)
        for start, end, kind in lane:
            axes.barh(y, 100 * (end - start) / whole, left=100 * start / whole, height=0.72,
                      color=shades[kind], lw=0, snap=False, edgecolor="white",  # snap hides short
                      hatch=hatches.get(kind))
    axes.set(title=title, xlim=(0, 100), xlabel="share of the time, %")
    axes.set_yticks(range(len(lanes)), [label for label, _ in lanes])
    axes.invert_yaxis()
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(handles=[Patch(fc=shade, ec="white", hatch=hatches.get(kind), label=kind)
                           for kind, shade in shades.items()],
                  loc="outside lower center", ncols=len(kinds), frameon=False, handlelength=1)
    return closed(figure)
