"""Guesses at the next tokens from the text itself: what followed the same tokens before"""

LONGEST = 4             # tokens that are looked for


class NGrams:
    """A drafter, as the engine takes one; vLLM's method ngram."""

    def __init__(self, count):
        """count: guesses at a time, at most"""
        self.count = count

    def propose(self, tokens):
        """What followed the newest tokens where they came last before, as many as possible of them;
        [] where not even the newest did."""
        for n in range(min(LONGEST, len(tokens) - 1), 0, -1):
            end = tokens[-n:]
            for begin in range(len(tokens) - n - 1, -1, -1):
                if tokens[begin:begin + n] == end:
                    return tokens[begin + n:begin + n + self.count]
        return []
