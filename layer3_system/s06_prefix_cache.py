"""s06 · Never compute twice: pages that remember what is in them

P: pages of the pool   S: slots of a page, one token each   N: tokens
The keys and values in a page depend on its tokens and all tokens before them, and on nothing else.
So a full page can serve every request with the same prefix.
An index finds the page, by a chain of hashes or in a tree of texts, until the page is evicted.
Cost on the host for each page: the chain one SHA-256 of 8·S + 32 bytes, the tree one comparison of
S tokens.
Each hit saves all of the model's work for a token.
"""

from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from layer3_system.s01_request import Request
from layer3_system.s02_block_pool import BlockPool

__all__ = ["HashChain", "PrefixPool", "RadixTree"]


def predict_hit_rate(users: int, N: int, U: int, S: int) -> float:
    """The hit rate: the share of all prompt tokens that are reused, from 0 to 1.

    users: how many; each asks after the one before was answered, and no page is evicted
    N: tokens of the system prompt, with which every prompt begins    U: tokens of the user's own
    after it, which differ from the first one on; with U = 0 all prompts are equal
    S: slots of a page.
    Only full pages are reused, and never the last token of a prompt.
    """
    # exercise: what does a later user hit, in whole pages, and what does the first one?
    hit = min(N, N + U - 1) // S * S
    return (users - 1) * hit / (users * (N + U))


def page_tokens(request: Request, i: int, S: int) -> tuple[int, ...]:
    """The tokens of page i of a request; the last page may have fewer than S."""
    begin = i * S
    end = (i + 1) * S
    N = len(request.prompt)
    return (*request.prompt[begin:end], *request.output[max(begin - N, 0):max(end - N, 0)])


# ---- a chain of hashes


def page_hash(parent: bytes, tokens: tuple[int, ...]) -> bytes:
    """The name of a full page: 32 bytes, from the name of the page before it and its own tokens.

    A token is below 2⁶³.
    With SHA-256, two pages with one name hold the same text, even if an attacker chose the tokens.
    """
    # exercise: one SHA-256 of the parent's bytes followed by the tokens, 8 bytes each
    return sha256(parent + np.array(tokens, np.int64).tobytes()).digest()


def longest_hit(names: list[bytes], page_of: dict[bytes, int]) -> list[int]:
    """The pages of the leading names, up to the first name that is not in page_of.

    names: of the pages of one text, in order    page_of: {name: page}
    """
    # exercise: a page after a gap is of no use
    pages = []
    for name in names:
        if name not in page_of:
            break
        pages.append(page_of[name])
    return pages


class HashChain:
    """An index of pages by name: which page has a name, and which name a page has."""

    def __init__(self) -> None:
        self.page_of: dict[bytes, int] = {}
        self.name_of: dict[int, bytes] = {}

    def __contains__(self, page: int) -> bool:
        return page in self.name_of

    def names(self, request: Request, count: int, S: int) -> list[bytes]:
        """The names of the first `count` pages of a request; they stay in request.hashes."""
        names = request.hashes
        while len(names) < count:
            parent = names[-1] if names else sha256(request.salt.encode()).digest()
            names.append(page_hash(parent, page_tokens(request, len(names), S)))
        return names[:count]

    def find(self, request: Request, count: int, S: int) -> list[int]:
        """The pages that hold the first tokens of a request: at most `count`, without a gap."""
        return longest_hit(self.names(request, count, S), self.page_of)

    def note(self, request: Request, i: int, S: int) -> int:
        """Enter page i of a request.
        Returns the page to use: an older page with the same text if there is one, otherwise the
        request's own."""
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

    keys: list[tuple]   # the tokens of each page; the first page of a text has its salt as well
    pages: list[int]
    parent: "Node | None" = None
    children: dict[tuple, "Node"] = field(default_factory=dict)     # by the first key of the child


def split(node: Node, place: int) -> Node:
    """Cut a node in two.
    It keeps the pages before `place`, 0 < place < len(node.pages).

    Returns the new node, which takes the pages from `place` on and all children.
    It becomes the old node's only child.
    """
    # exercise: move keys, pages and children to the new node, then link the two
    rest = Node(node.keys[place:], node.pages[place:], node, node.children)
    for child in rest.children.values():
        child.parent = rest
    del node.keys[place:], node.pages[place:]
    node.children = {rest.keys[0]: rest}
    return rest


class RadixTree:
    """An index of pages by their tokens, with the methods of a HashChain.

    Dropping a page drops all pages after it in the tree, because no lookup can reach them any more.
    A chain keeps their names and reaches them again once the missing page is back.
    A PrefixPool evicts a text from its end, so there both return the same pages.
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
        """The pages that hold the first tokens of a request: at most `count`, without a gap."""
        node = self.root
        place = 0
        pages: list[int] = []
        for i in range(count):
            key = self.key(request, i, S)
            if place == len(node.pages):                # the run ends here: is there such a child?
                node = node.children.get(key)
                place = 0
            if node is None or node.keys[place] != key:
                break
            pages.append(node.pages[place])
            place += 1
        return pages

    def note(self, request: Request, i: int, S: int) -> int:
        """Enter page i of a request.
        Returns the page to use: an older page with the same text if there is one, otherwise the
        request's own."""
        own = request.table[i]
        key = self.key(request, i, S)
        node, place = self.place_of.get(request.table[i - 1], (None, 0)) if i else (self.root, -1)
        if node is None:                # a page after an unknown page cannot be reached
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
            node.children[key] = run
            node = run
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


def note_full_pages(pool: "PrefixPool", request: Request) -> None:
    """Enter each page of a request that is full of computed tokens into the index, once.

    pool.index.note(request, i, pool.S) returns an older page with the same text, or the request's
    own page i. If it is an older page: share it, put it into the table, and only then release the
    request's own. request.num_cached_pages is the number of pages entered so far.
    """
    # exercise: note each new full page; replace a copy by the page that the index returns
    for i in range(request.num_cached_pages, request.num_computed // pool.S):
        own = request.table[i]
        page = pool.index.note(request, i, pool.S)
        if page != own:
            pool.share([page])
            request.table[i] = page
            pool.release([own])
        request.num_cached_pages = i + 1


class PrefixPool(BlockPool):
    """A BlockPool that remembers what its pages hold, free pages included, until they are evicted.

    The page that was freed longest ago is taken first: least recently used.
    """

    def __init__(self, P: int, S: int = 16, index: "HashChain | RadixTree | None" = None):
        super().__init__(P, S)
        self.index = index or HashChain()

    def match_prefix(self, request: Request) -> list[int]:
        """The pages that already hold a prefix of a request: never all of it, because the scores
        of its last token must be computed; [] if the log probabilities of the prompt are wanted."""
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
