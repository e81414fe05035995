"""Pages: which entry of which table names them, how a page gets its name, and what hits save.

P: pages of the pool   S: slots of a page, one token each   N: tokens of a sequence
"""

from itertools import count
from typing import TYPE_CHECKING

from lab.plots import BLUE, GREY, INK, RED, closed
from layer3_system.s01_request import Request, SamplingParams
from layer3_system.s02_block_pool import slots_of
from layer3_system.s06_prefix_cache import HashChain, Node, RadixTree, split

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALE = "#d0d7de"


def table_arrows(P: int, S: int, sequences: dict[str, tuple[list[int], int]]) -> "Figure":
    """Block tables above, the pages of the pool below, an arrow from each entry to its page.

    sequences: {name: (its block table, its tokens)}. Red: a page in several tables.
    Blue: in one.
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

    texts: {name: text}, a token a character.
    Red: a page whose name another text has, too.
    Blue:
    a page of one text.
    Grey: not full, without a name.
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


def node_cut(texts: list[str], S: int, place: int) -> "Figure":
    """The radix tree of texts that begin alike, and the same tree after its first node is cut.

    A token is a character.
    Blue: nodes and links from before.
    Red: the new ones.
    """
    import matplotlib.pyplot as plt

    tree = RadixTree()
    pages = count()
    for text in texts:
        request = Request("text", list(text.encode()), SamplingParams())
        for i in range(len(text) // S):
            request.table.append(next(pages))
            request.table[i] = tree.note(request, i, S)
    (node,) = tree.root.children.values()
    figure, every = plt.subplots(2, 1, figsize=(7.5, 3.2), layout="constrained", sharex=True)
    draw_node(every[0], tree.root, 0.0, 0.0, {tree.root: "root", node: "the node"})
    rest = split(node, place)
    draw_node(every[1], tree.root, 0.0, 0.0,
              {tree.root: "root", node: "the node", rest: "the new node"}, rest)
    for axes, title in zip(every, ("before", f"after split(node, {place})"), strict=True):
        axes.set_title(title, loc="left", fontsize=10, color=INK)
        axes.set(xlim=(-0.2, 10.2), ylim=(0.9 - 1.5 * len(texts), 1.6))
        axes.axis("off")
    return closed(figure)


def draw_node(axes: "Axes", node: Node, x: float, y: float, names: dict[Node, str],
              new: Node | None = None) -> None:
    """A node's pages in a row from (x, y) on, and its children to the right of it."""
    from matplotlib.patches import Rectangle

    width = max(len(node.pages), 1)
    axes.text(x, y + 0.95, names.get(node, "a child"), fontsize=8, color=INK, va="bottom")
    colour = RED if node is new else BLUE if node.pages else PALE
    for i, key in enumerate(node.keys or [()]):
        axes.add_patch(Rectangle((x + i, y), 1, 0.85, fc=colour, ec="white", lw=1.5))
        tokens = bytes(token for token in key if isinstance(token, int)).decode()   # not the salt
        axes.text(x + i + 0.5, y + 0.4, tokens.replace(" ", "␣"), color="white", fontsize=9,
                  ha="center", va="center", family="DejaVu Sans Mono")
    for i, child in enumerate(node.children.values()):
        link = RED if new is not None and new in (node, child) else GREY
        below = y - 1.5 * i
        axes.annotate("", (x + width + 0.75, below + 0.42), (x + width, y + 0.42),
                      arrowprops={"arrowstyle": "-|>", "lw": 1.3, "color": link})
        draw_node(axes, child, x + width + 0.8, below, names, new)


def cost_sweep(title: str, rates: list[float], curves: dict[str, list[float]]) -> "Figure":
    """Costs against the hit rate, each in % of its value without hits.

    rates: [share from 0 to 1]    curves: {name: [cost at each rate]}, two at most
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
    percent = [100 * rate for rate in rates]
    for (name, costs), (mark, colour) in zip(curves.items(), (("o-", BLUE), ("s--", RED)),
                                             strict=False):
        axes.plot(percent, [100 * cost / costs[0] for cost in costs], mark, color=colour, lw=1.8,
                  ms=5, label=name)
    axes.set(title=title, xlabel="hit rate, %", ylabel="% of the cost without hits", ylim=(0, 110))
    axes.grid(color="#eaeef2")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return closed(figure)
