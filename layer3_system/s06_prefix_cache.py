"""s06 · Never compute twice: pages that remember what is in them

P: pages of the pool   S: slots of a page, one token each   N: tokens
The keys and values of a page depend on its tokens and all before them, and on nothing else. So a
full page can serve every request with the same beginning. An index finds it, by a chain of hashes
or in a tree of texts. Requests share it until it is taken for something else.
Costs on the host, a page: the chain one SHA-256 of 8·S + 32 bytes, the tree one comparison of S
tokens. A page found saves the model's whole work for S tokens.
"""

from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from lab.plots import BLUE, RED
from layer3_system.s01_request import Request
from layer3_system.s02_block_pool import BlockPool

__all__ = ["HashChain", "PrefixPool", "RadixTree"]


def predict_hit_rate(users, N, U, S):
    """The share of all tokens of all prompts that is found in pages, from 0 to 1.

    users: how many ask, each after the answer to the one before; pages never run out
    N: tokens of a system prompt that starts each prompt    U: tokens that each user adds to it,
    different from the first on; with U = 0 all prompts are the same
    S: slots of a page. Only full pages are found, and never the last token of a prompt.
    """
    # exercise: what a later user finds, in whole pages; what the first one finds
    hit = min(N, N + U - 1) // S * S
    return (users - 1) * hit / (users * (N + U))


def page_tokens(request, i, S):
    """The tokens of page i of a request: a tuple, shorter than S if there are no more."""
    begin = i * S
    end = (i + 1) * S
    N = len(request.prompt)
    return (*request.prompt[begin:end], *request.output[max(begin - N, 0):max(end - N, 0)])


# ---- a chain of hashes


def page_hash(parent, tokens):                      # bytes, (int) -> bytes
    """The name of a full page: 32 bytes, from its tokens and the name of the page before it.

    A token is below 2⁶³. SHA-256: pages of one name hold the same text, whoever chose the tokens.
    """
    # exercise: one hash of both; 8 bytes a token
    return sha256(parent + np.array(tokens, np.int64).tobytes()).digest()


def longest_hit(names, page_of):
    """[page] of the names, from the first on, up to the first that no page has.

    names: of a text's pages, in order    page_of: {name: page}
    """
    # exercise: a page after a gap is of no use
    pages = []
    for name in names:
        if name not in page_of:
            break
        pages.append(page_of[name])
    return pages


class HashChain:
    """An index of pages by name, in both directions."""

    def __init__(self) -> None:
        self.page_of: dict[bytes, int] = {}
        self.name_of: dict[int, bytes] = {}

    def __contains__(self, page: int) -> bool:
        return page in self.name_of

    def names(self, request: Request, count: int, S: int) -> list[bytes]:
        """The names of the first `count` pages of a request. The request keeps them."""
        names = request.hashes
        while len(names) < count:
            parent = names[-1] if names else sha256(request.salt.encode()).digest()
            names.append(page_hash(parent, page_tokens(request, len(names), S)))
        return names[:count]

    def find(self, request: Request, count: int, S: int) -> list[int]:
        """Pages that hold the first tokens of a request, at most `count`, without a gap."""
        return longest_hit(self.names(request, count, S), self.page_of)

    def note(self, request: Request, i: int, S: int) -> int:
        """The page with the text of a request's page i: an older one, or its own from now on."""
        name = self.names(request, i + 1, S)[i]
        page = self.page_of.setdefault(name, request.table[i])
        self.name_of[page] = name
        return page

    def drop(self, page: int) -> None:
        """Forget a page that is about to hold something else."""
        name = self.name_of.pop(page, None)
        if name is not None:
            del self.page_of[name]


# ---- a tree of texts


@dataclass(eq=False)
class Node:
    """A run of pages that some texts have in common, and the runs that continue it."""

    keys: list[tuple]   # each page's tokens; the first page of a text has its salt, too
    pages: list[int]
    parent: "Node | None" = None
    children: dict[tuple, "Node"] = field(default_factory=dict)     # by the first key of its run


def split(node, place):
    """Cut a run: the node keeps the pages before `place`, 0 < place < len(node.pages).

    The rest is a new node, which is returned. It becomes the only child; all that continued the run
    continues the rest.
    """
    # exercise: the rest takes keys, pages and children; then the node lets go of them
    rest = Node(node.keys[place:], node.pages[place:], node, node.children)
    for child in rest.children.values():
        child.parent = rest
    del node.keys[place:], node.pages[place:]
    node.children = {rest.keys[0]: rest}
    return rest


class RadixTree:
    """An index of pages by their texts: a HashChain's methods, without hashes.

    With a page it drops all pages after it, which could not be found without it. A chain finds
    those again once the page is back; the tree does not. A PrefixPool takes the pages of a text
    from its end, and so both find the same.
    """

    def __init__(self) -> None:
        self.root = Node([], [])
        self.place_of: dict[int, tuple[Node, int]] = {}     # page -> (its node, place in the run)

    def __contains__(self, page: int) -> bool:
        return page in self.place_of

    def key(self, request: Request, i: int, S: int) -> tuple:
        tokens = page_tokens(request, i, S)
        return tokens if i else (request.salt, *tokens)

    def find(self, request: Request, count: int, S: int) -> list[int]:
        """Pages that hold the first tokens of a request, at most `count`, without a gap."""
        node, place, pages = self.root, 0, []
        for i in range(count):
            key = self.key(request, i, S)
            if place == len(node.pages):                # the run ends: does a child continue it?
                node = node.children.get(key)
                place = 0
            if node is None or node.keys[place] != key:
                break
            pages.append(node.pages[place])
            place += 1
        return pages

    def note(self, request: Request, i: int, S: int) -> int:
        """The page with the text of a request's page i: an older one, or its own from now on."""
        own = request.table[i]
        key = self.key(request, i, S)
        node, place = self.place_of.get(request.table[i - 1], (None, 0)) if i else (self.root, -1)
        if node is None:                # after an unknown page nothing can be found
            return own
        place += 1
        if place < len(node.pages) and node.keys[place] != key:
            rest = split(node, place)
            self.place_of.update((page, (rest, j)) for j, page in enumerate(rest.pages))
        if place < len(node.pages):
            return node.pages[place]
        if key in node.children:
            return node.children[key].pages[0]
        if node.children or node is self.root:          # start a new run
            run = Node([], [], node)
            node.children[key], node = run, run
        self.place_of[own] = node, len(node.pages)
        node.keys.append(key)
        node.pages.append(own)
        return own

    def drop(self, page: int) -> None:
        """Forget a page that is about to hold something else, and all pages after it."""
        if page not in self.place_of:
            return
        node, place = self.place_of[page]
        pages = node.pages[place:]
        descendants = list(node.children.values())
        while descendants:
            child = descendants.pop()
            pages += child.pages
            descendants += child.children.values()
        for each in pages:
            del self.place_of[each]
        if place == 0:
            del node.parent.children[node.keys[0]]
        del node.keys[place:], node.pages[place:]
        node.children = {}


# ---- the pool


def note_full_pages(pool, request):
    """Note the pages of a request that are full of computed tokens, each once.

    A page whose text another page already holds is given back: first the table names the other one,
    then it becomes free. pool.index.note(request, i, pool.S) says which page that is, or page i
    itself; request.num_cached_pages counts the pages that were noted before.
    """
    # exercise: ask the index about each new full page; a duplicate is given back
    for i in range(request.num_cached_pages, request.num_computed // pool.S):
        own, page = request.table[i], pool.index.note(request, i, pool.S)
        if page != own:
            pool.share([page])
            request.table[i] = page
            pool.release([own])
        request.num_cached_pages = i + 1


class PrefixPool(BlockPool):
    """A BlockPool that remembers the contents of its pages, even of free ones until they are taken.

    The free page that was given back longest ago is taken first: least recently used.
    """

    def __init__(self, P: int, S: int = 16, index: "HashChain | RadixTree | None" = None):
        super().__init__(P, S)
        self.index = index or HashChain()

    def match_prefix(self, request: Request) -> list[int]:
        """Pages that already hold the beginning of a request; never all of it, since the scores of
        its last token must be computed. [] if the prompt's own scores are wanted."""
        if request.params.prompt_logprobs is not None:
            return []
        return self.index.find(request, (request.num_tokens - 1) // self.S, self.S)

    def cache_pages(self, request: Request) -> None:
        """Remember the contents of a request's full pages."""
        note_full_pages(self, request)

    def evict(self, page: int) -> None:
        self.index.drop(page)

    def is_cached(self, page: int) -> bool:
        return page in self.index


# ---- drawn


def draw_sweep(title, rates, curves):
    """How some costs fall as the hit rate grows, in % of each one's first value.

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
    plt.close(figure)           # a notebook shows what is returned, and again what is open
    return figure
