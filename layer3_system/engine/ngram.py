"""Guesses at the next tokens from the text itself: what followed the same tokens before"""

from typing import Protocol

LONGEST = 4             # tokens that are looked for


class Drafter(Protocol):
    """What guesses for an engine."""

    def propose(self, tokens: list[int]) -> list[int]: ...


class NGrams:
    """A Drafter; vLLM's method ngram."""

    def __init__(self, count: int):
        """count: guesses at a time, at most"""
        self.count = count

    def propose(self, tokens: list[int]) -> list[int]:
        """The tokens that followed the last earlier occurrence of the longest possible run of
        newest tokens; [] if not even the newest token occurred before."""
        for n in range(min(LONGEST, len(tokens) - 1), 0, -1):
            end = tokens[-n:]
            for begin in range(len(tokens) - n - 1, -1, -1):
                if tokens[begin:begin + n] == end:
                    return tokens[begin + n:begin + n + self.count]
        return []
