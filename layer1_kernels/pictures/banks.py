"""Shared memory: in which bank each number of a small tile lies."""

import numpy as np

from lab.plots import BLUE, GREY, INK, RED, closed


def small_banks(tiles, banks=8):
    """Small tiles in shared memory, a column of the picture for each bank.
    The number in a word is the tile's column that it holds.
    Column 0 is blue, and red where its words share a bank; a white word is not used.

    tiles: {title: (rows, columns) of int, the word in which each number of the tile lies}
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    deep = max(int(words.max()) // banks + 1 for words in tiles.values())
    figure, every = plt.subplots(1, len(tiles), squeeze=False, layout="constrained",
                                 figsize=(3.7 * len(tiles), 0.28 * deep + 0.8))
    for axes, (title, words) in zip(every[0], tiles.items(), strict=True):
        for word in range(banks * deep):
            axes.add_patch(Rectangle((word % banks, word // banks), 0.92, 0.88, fc="white",
                                     ec="#d0d7de", lw=0.6))
        wanted = list(words[:, 0] % banks)
        for (_, c), word in np.ndenumerate(words):
            bank = word % banks
            colour = "#d0d7de" if c else RED if wanted.count(bank) > 1 else BLUE
            axes.add_patch(Rectangle((bank, word // banks), 0.92, 0.88, fc=colour))
            axes.text(bank + 0.46, word // banks + 0.46, c, ha="center", va="center", fontsize=8,
                      color=INK if c else "white")
        axes.set(xlim=(-0.1, banks), ylim=(deep, -0.1), yticks=[],
                 xticks=[bank + 0.46 for bank in range(banks)], xticklabels=range(banks))
        axes.set_xlabel("bank", color=GREY)
        axes.set_title(title, loc="left", fontsize=10, color=INK)
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
    return closed(figure)
