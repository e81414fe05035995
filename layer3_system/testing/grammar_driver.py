"""A grammar that is a list of texts: what may come is looked up, not worked out by an automaton"""

import struct

import numpy as np

__all__ = ["TextMatcher"]


class TextMatcher:
    """A matcher of the texts of a list.
    As strict as a library's: once the answer has ended there is no mask, and nothing before its
    beginning can be taken back.

    texts: all that an answer may be    vocabulary: the bytes of each token, None for a mark
    end: the token that ends an answer    tokens: those of the answer so far
    """

    def __init__(self, texts: list[bytes], vocabulary: list[bytes | None], end: int,
                 tokens: list[int]):
        self.texts = texts
        self.vocabulary = vocabulary
        self.end = end
        self.tokens = list(tokens)

    @property
    def ended(self) -> bool:
        return self.tokens[-1:] == [self.end]

    def allowed(self, token: int) -> bool:
        written = b"".join(self.vocabulary[t] or b"" for t in self.tokens)
        if token == self.end:
            return written in self.texts
        more = self.vocabulary[token]
        return bool(more) and any(text.startswith(written + more) for text in self.texts)

    def mask(self) -> np.ndarray:                           # (W,) int32
        if self.ended:
            raise RuntimeError("the answer has ended: there is no mask")
        V = len(self.vocabulary)
        words = [sum(self.allowed(v) << v % 32 for v in range(begin, min(begin + 32, V)))
                 for begin in range(0, V, 32)]
        return np.array(struct.unpack(f"<{len(words)}i", struct.pack(f"<{len(words)}I", *words)),
                        dtype=np.int32)

    def accept(self, token: int) -> bool:
        if self.ended or not self.allowed(token):
            return False
        self.tokens.append(token)
        return True

    def rollback(self, count: int) -> None:
        if not 0 <= count <= len(self.tokens):
            raise RuntimeError(f"{count} tokens cannot be taken back, there are "
                               f"{len(self.tokens)}")
        del self.tokens[len(self.tokens) - count:]
