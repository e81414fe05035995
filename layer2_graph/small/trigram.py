"""What three tokens in a row tell: the trigram model that the small model must beat.

Interpolated Kneser–Ney with one discount: the chance after two tokens comes from their count, less
the discount, plus the chance after one token; there a token counts once for each different token
that it was seen after.
Source: Chen and Goodman, An empirical study of smoothing techniques for language modeling (1998),
section 2.7.
"""

from collections import Counter
from itertools import islice
from math import log

DISCOUNT = 0.75


class Level:
    """Counts of the n-grams of one length: what follows a context, and how often."""

    def __init__(self, counts):
        """counts: {(token, …): how often}"""
        self.counts = counts
        self.total = Counter()
        self.kinds = Counter()
        for gram, count in counts.items():
            self.total[gram[:-1]] += count
            self.kinds[gram[:-1]] += 1

    def chance(self, gram, shorter):
        """Of the last token after those before it; shorter: its chance after one token less."""
        context = gram[:-1]
        if context not in self.total:
            return shorter
        counted = max(self.counts.get(gram, 0) - DISCOUNT, 0)
        return (counted + DISCOUNT * self.kinds[context] * shorter) / self.total[context]


class Trigram:
    def __init__(self, documents, V):
        """documents: [[token]], each from its mark of beginning.
        V: size of the vocabulary."""
        threes = Counter(gram for tokens in documents for gram in grams(tokens))
        twos = Counter(gram[1:] for gram in threes)         # once for each different context
        ones = Counter(gram[1:] for gram in twos)
        self.levels = [Level(ones), Level(twos), Level(threes)]
        self.V = V

    def loss(self, tokens):
        """-log of the chance of each token but the first."""
        losses = []
        for gram in grams(tokens):
            chance = 1 / self.V
            for n, level in enumerate(self.levels, 1):
                chance = level.chance(gram[-n:], chance)
            losses.append(-log(chance))
        return losses


def grams(tokens):
    """Three tokens in a row; the first document mark stands twice."""
    tokens = [tokens[0], *tokens]
    return zip(tokens, islice(tokens, 1, None), islice(tokens, 2, None), strict=False)
