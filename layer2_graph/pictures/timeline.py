"""Instructions: when each of them runs, and on which multiprocessor."""

from lab.plots import GREY, INK, RED, STROKES, closed

COLOURS = ("#0969da", "#8250df", "#1a7f37", "#cf222e", "#bc4c00", "#57606a", "#d0d7de")


def timelines(runs, program, names, unit):
    """A row for each multiprocessor: pale while weights are loaded, a colour for each operation.

    runs: {title: [Span]} of one program    program: [Instruction]
    names: of the operations, by their number    unit: of the spans' times
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    longest = max(span.end for spans in runs.values() for span in spans)
    figure, every = plt.subplots(len(runs), 1, sharex=True, figsize=(7.5, 1.5 * len(runs) + 0.6),
                                 squeeze=False, layout="constrained")
    for axes, (title, spans) in zip(every[:, 0], runs.items(), strict=True):
        for span, instruction in zip(spans, program, strict=True):
            colour = COLOURS[instruction.op]
            axes.add_patch(Rectangle((span.load, span.block + 0.1), span.loaded - span.load, 0.8,
                                     fc=colour, alpha=0.3, ec="white", lw=0.4))
            axes.add_patch(Rectangle((span.start, span.block + 0.1), span.end - span.start, 0.8,
                                     fc=colour, ec="white", lw=0.4))
        end = max(span.end for span in spans)
        axes.axvline(end, color=INK, lw=1)
        axes.set_title(f"{title}: {end:.0f} {unit}", loc="left", fontsize=9, color=INK)
        blocks = max(span.block for span in spans) + 1
        axes.set(xlim=(0, longest * 1.01), ylim=(blocks, 0))
        axes.set_yticks([b + 0.5 for b in range(blocks)], [f"SM {b}" for b in range(blocks)],
                        fontsize=8)
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
    every[-1, 0].set_xlabel(unit, fontsize=9)
    shown = sorted({instruction.op for instruction in program})
    figure.legend([Rectangle((0, 0), 1, 1, fc=COLOURS[op]) for op in shown],
                  [names[op] for op in shown],
                  loc="outside lower center", ncols=len(shown), fontsize=8, frameon=False)
    return closed(figure)


def by_blocks(curves, bound):
    """How much sooner a step ends with more multiprocessors.

    curves: {title: {multiprocessors: speed-up over one}}
    bound: (what no number of them exceeds, its name)
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    sizes = list(next(iter(curves.values())))
    axes.plot(sizes, sizes, color=GREY, lw=1, ls=":")
    axes.annotate("in proportion to SMs", (sizes[2], sizes[2]), xytext=(-6, 2), ha="right",
                  textcoords="offset points", fontsize=8, color=GREY)
    for (title, curve), (colour, line) in zip(curves.items(), STROKES[1:], strict=False):
        axes.plot(curve.keys(), curve.values(), marker="o", ms=4, color=colour, ls=line,
                  label=title)
    axes.axhline(bound[0], color=RED, lw=1)
    axes.annotate(bound[1], (sizes[-1], bound[0]), xytext=(0, 4), ha="right",
                  textcoords="offset points", fontsize=8, color=RED)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, sizes)
    axes.set(xlabel="multiprocessors", ylabel="times sooner than on one",
             ylim=(0, bound[0] * 1.5))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return closed(figure)
