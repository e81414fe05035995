"""Merging: which numbers of a matrix a factor scales, and what moved brackets compute."""

from lab.plots import BLUE, GREY, INK, RED, closed

PALE = "#d0d7de"


def factors(rows, columns):
    """A matrix twice: a factor on an input scales a column, one on an output a row."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, every = plt.subplots(1, 2, figsize=(7.5, 2.2), layout="constrained")
    for axes, word in zip(every, ("input", "output"), strict=True):
        def cell(left, top, scaled, axes=axes):
            axes.add_patch(Rectangle((left + 0.05, top + 0.05), 0.9, 0.9,
                                     fc=RED if scaled else PALE))

        marked = (columns if word == "input" else rows) // 2
        for k in range(columns):
            cell(k, -1.6, word == "input" and k == marked)
            for n in range(rows):
                cell(k, n, (k if word == "input" else n) == marked)
        for n in range(rows):
            cell(columns + 0.6, n, word == "output" and n == marked)
        axes.text(-0.3, -1.1, "inputs", ha="right", va="center", fontsize=9, color=INK)
        axes.text(columns + 1.9, rows / 2, "outputs", va="center", fontsize=9, color=INK)
        axes.set_title(f"a factor on an {word} scales a {'column' if word == 'input' else 'row'}",
                       fontsize=10, color=INK)
        axes.set(xlim=(-2.2, columns + 4), ylim=(rows + 0.2, -1.8), aspect="equal")
        axes.axis("off")
    return closed(figure)


def brackets(ways):
    """What is multiplied by a matrix before the scores: squares whose areas are counts of numbers.

    ways: {title: [(name, numbers)]}; an arrow leads from each square to the next
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    largest = max(numbers for chain in ways.values() for _, numbers in chain)
    figure, every = plt.subplots(1, len(ways), figsize=(7.5, 2.3), layout="constrained")
    for axes, (title, chain) in zip(every, ways.items(), strict=True):
        for place, (name, numbers) in enumerate(chain):
            x, side = 2.2 * place, (numbers / largest) ** 0.5
            colour = RED if place else BLUE
            axes.add_patch(Rectangle((x - side / 2, -side / 2), side, side, fc=colour))
            axes.plot([x], [0], marker="s", ms=2, color=colour)         # the least that one sees
            axes.text(x, 0.75, f"{name}\n{numbers:,}", ha="center", va="top", fontsize=9, color=INK)
            if place:
                axes.annotate("", (x - side / 2 - 0.1, 0), (x - 1.7, 0),
                              arrowprops={"arrowstyle": "->", "color": GREY})
        axes.set_title(title, fontsize=10, color=INK)
        axes.set(xlim=(-1.1, 2.2 * (len(chain) - 1) + 1.1), ylim=(1.5, -0.6), aspect="equal")
        axes.axis("off")
    return closed(figure)
