"""Pages: which entry of which table names them, and how a page gets its name.

P: pages of the pool   S: slots of a page, one token each   N: tokens of a sequence
"""

from typing import TYPE_CHECKING

from lab.plots import BLUE, GREY, INK, RED, closed
from layer3_system.s01_request import Request, SamplingParams
from layer3_system.s02_block_pool import slots_of
from layer3_system.s06_prefix_cache import HashChain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALE = "#d0d7de"


def table_arrows(P: int, S: int, sequences: dict[str, tuple[list[int], int]]) -> "Figure":
    """Block tables above, the pages of the pool below, an arrow from each entry to its page.

    sequences: {name: (its block table, its tokens)}. Red: a page in several tables. Blue: in one.
    A filled slot holds the position of its token in the sequence; below it is the slot's number.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    holders = [page for table, _ in sequences.values() for page in table]
    page_colour = {page: RED if holders.count(page) > 1 else BLUE for page in holders}
    positions = {slot: i for table, N in sequences.values()
                 for i, slot in enumerate(slots_of(table, 0, N, S))}
    figure, axes = plt.subplots(figsize=(7.5, 2.9), layout="constrained")
    pitch = S + 1                                       # from a page to the next, in slots
    width = P * pitch - 1
    entries = sum(len(table) for table, _ in sequences.values())
    gap = (width - 2 * entries) / (len(sequences) + 1)  # entries are two slots wide
    x, top = gap, 4.2
    for name, (table, N) in sequences.items():
        axes.text(x, top + 1.2, f"block table of {name}, {N} tokens", ha="left", fontsize=9,
                  color=INK)
        for page in table:
            axes.add_patch(Rectangle((x, top), 2, 1, fc=page_colour[page], ec="white", lw=1.5))
            axes.text(x + 1, top + 0.48, f"{page}", ha="center", va="center", color="white",
                      fontsize=10)
            axes.annotate("", (page * pitch + S / 2 + 0.05 * (x - width / 2), 1.75),
                          (x + 1, top), arrowprops={"arrowstyle": "-|>", "lw": 1.2,
                                                    "color": page_colour[page]})
            x += 2
        x += gap
    for page in range(P):
        axes.text(page * pitch + S / 2, 1.2, f"page {page}", ha="center", fontsize=9, color=INK)
        for place in range(S):
            slot = page * S + place
            left = page * pitch + place
            colour = page_colour[page] if slot in positions else PALE
            axes.add_patch(Rectangle((left, 0), 1, 1, fc=colour, ec="white", lw=1.5))
            axes.text(left + 0.5, 0.46, f"{positions.get(slot, '')}", ha="center", va="center",
                      color="white", fontsize=9)
            axes.text(left + 0.5, -0.25, f"{slot}", ha="center", va="top", color=GREY, fontsize=7)
    axes.text(-0.3, 0.46, "token", ha="right", va="center", fontsize=8, color=INK)
    axes.text(-0.3, -0.25, "slot", ha="right", va="top", fontsize=8, color=GREY)
    axes.set(xlim=(-2.2, width), ylim=(-0.9, top + 1.9))
    axes.axis("off")
    return closed(figure)


def hash_chain(texts: dict[str, str], S: int) -> "Figure":
    """Texts in pages of S characters, and below each full page the beginning of its name; an arrow
    leads from a name to the page whose name it goes into.

    texts: {name: text}, a token a character. Red: a page whose name another text has, too. Blue:
    a page of one text. Grey: not full, without a name.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    names = {label: HashChain().names(Request(label, list(text.encode()), SamplingParams()),
                                      len(text) // S, S) for label, text in texts.items()}
    every = [name for row in names.values() for name in row]
    figure, axes = plt.subplots(figsize=(7.5, 0.25 + 0.95 * len(texts)), layout="constrained")
    pitch = S + 1.6                                     # from a page to the next, in characters
    for row, (label, text) in enumerate(texts.items()):
        top = -3.4 * row
        axes.text(-0.5, top + 0.5, label, ha="right", va="center", fontsize=10, color=INK)
        for i in range(-(-len(text) // S)):
            tokens = text[i * S:(i + 1) * S]
            full = i < len(names[label])
            colour = PALE if not full else RED if every.count(names[label][i]) > 1 else BLUE
            for place in range(S):
                x = i * pitch + place
                axes.add_patch(Rectangle((x, top), 1, 1, ec="white", lw=1.5,
                                         fc=colour if place < len(tokens) else "#f3f5f7"))
                axes.text(x + 0.5, top + 0.47, tokens[place:place + 1].replace(" ", "␣"),
                          ha="center", va="center", fontsize=9, family="DejaVu Sans Mono",
                          color="white" if full else INK)
            middle = i * pitch + S / 2
            axes.text(middle, top - 0.75, f"{names[label][i].hex()[:6]} …" if full else "no name",
                      ha="center", va="center", fontsize=9, family="DejaVu Sans Mono",
                      color=colour if full else GREY)
            if full and i + 1 < len(names[label]):
                axes.annotate("", ((i + 1) * pitch - 0.05, top + 0.3), (middle + 1.9, top - 0.7),
                              arrowprops={"arrowstyle": "-|>", "lw": 1.1, "color": GREY})
    axes.set(xlim=(-1.6, pitch * -(-max(map(len, texts.values())) // S)),
             ylim=(-3.4 * len(texts) + 2.0, 1.3))
    axes.axis("off")
    return closed(figure)
