"""s06 · Never compute twice: pages that remember what is in them

S: slots of a page   N: tokens of a request
The keys and values of a page rest on its tokens and on all before them, and on nothing else. So a
page that is full can serve every request that begins alike. A chain of hashes names it: the hash of
its tokens and of the page before. Whoever begins with it shares it, as long as it was not taken.
Costs one SHA-256 of 8·S + 32 bytes a page, on the host; saves the model's whole work for S tokens.
"""

from hashlib import sha256

import numpy as np

from layer3_system.s02_block_pool import BlockPool

__all__ = ["HashChain", "PrefixPool"]


def page_hash(parent, tokens):                      # bytes, [int] -> bytes
    """The name of a full page: 32 bytes, by its tokens and by the name of the page before it.

    SHA-256, so that two pages of one name hold the same tokens, whoever chose the tokens.
    """
    # exercise: one hash of both; 8 bytes a token
    return sha256(parent + np.array(tokens, np.int64).tobytes()).digest()


class HashChain:
    """Names of pages: what is in which, and the other way."""

    def __init__(self):
        self.page_of, self.name_of = {}, {}

    def names(self, request, count, S):
        """The names of the first `count` pages of a request. They are kept with it."""
        # exercise: go on behind those that it has; the first one's parent comes from the salt
        names = request.hashes
        tokens = request.tokens if len(names) < count else ()
        while len(names) < count:
            parent = names[-1] if names else sha256(request.salt.encode()).digest()
            begin = len(names) * S
            names.append(page_hash(parent, tokens[begin:begin + S]))
        return names[:count]

    def find(self, request, count, S):
        """Pages that hold the first tokens of a request, at most `count`, without a gap."""
        # exercise: up to the first name that is not known
        pages = []
        for name in self.names(request, count, S):
            if name not in self.page_of:
                break
            pages.append(self.page_of[name])
        return pages

    def note(self, request, i, S):
        """The page that has what page i of a request has: an older one, or its own from now on."""
        name = self.names(request, i + 1, S)[i]
        page = self.page_of.setdefault(name, request.table[i])
        self.name_of[page] = name
        return page

    def drop(self, page):
        """A page is about to hold something else."""
        # exercise: both ways; a page that was never named is nothing special
        name = self.name_of.pop(page, None)
        if name is not None:
            del self.page_of[name]


class PrefixPool(BlockPool):
    """A BlockPool that remembers what is in its pages, in free ones, too, until they are taken.

    Free pages are taken from the one that was given back longest ago: least recently used.
    """

    def __init__(self, P, S=16, index=None):
        super().__init__(P, S)
        self.index = index or HashChain()

    def find(self, request):
        """Pages that hold the begin of a request already; never all of it, since the scores of its
        last token must be computed. None where the prompt's own scores are wanted."""
        # exercise: how many full pages may it be at most? Then ask the index
        if request.params.prompt_logprobs is not None:
            return []
        return self.index.find(request, (request.num_tokens - 1) // self.S, self.S)

    def remember(self, request):
        """Note the pages of a request that are full. One whose contents another page has already
        is given back: first the table names the other one, then it becomes free."""
        # exercise: those between request.remembered and num_computed; a copy makes way
        for i in range(request.remembered, request.num_computed // self.S):
            own = request.table[i]
            page = self.index.note(request, i, self.S)
            if page != own:
                self.share([page])
                request.table[i] = page
                self.release([own])
        request.remembered = max(request.remembered, request.num_computed // self.S)

    def forget(self, page):
        self.index.drop(page)
