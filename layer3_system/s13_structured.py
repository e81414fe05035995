"""s13 · Output that must parse: an automaton says which tokens may come next

V: vocabulary   states: of an automaton   W: words of 32 bits, V/32 rounded up   n: guesses
A state is what may still come of a text, so it decides which tokens may come: its mask.
Scores of all others are set to -inf before a token is drawn, and nothing has to be repaired
afterwards.
Costs one walk over the bytes of the vocabulary a state, once; a row of scores a step.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from layer3_system.automaton import Automaton
from layer3_system.engine.guide import Matcher

__all__ = ["forced_bytes", "mask_guesses", "pack_mask", "step_token", "token_mask"]


def predict_allowed() -> int:
    """How many of these eight tokens may come first, if the whole answer must be {"a": 1}

    {   {"   {"a   "   "a   a   a"   and a space followed by {
    """
    # exercise: which of them does the text begin with?
    return 3                        # { and {" and {"a


def predict_mask_bytes() -> int:
    """Bytes of the masks of 32 rows for a vocabulary of 128,256 tokens: a bit a token, in words of
    four bytes."""
    # exercise: words of a row, bytes of a word, rows
    return 32 * 4 * (128_256 // 32)


# ---- which tokens may come


def step_token(table: np.ndarray, state: int, token: bytes) -> int | None:
    """The state after all bytes of a token; None if one of them leads nowhere.

    table: (states, 256), the state after a byte; -1: no text goes on so
    """
    # exercise: byte after byte; a dead byte ends it
    for byte in token:
        state = int(table[state, byte])
        if state < 0:
            return None
    return state


def token_mask(automaton: Automaton, state: int, vocabulary: Sequence[bytes | None],
               ends: Iterable[int]) -> np.ndarray:                              # (V,) bool
    """Which tokens may come in a state.

    vocabulary: the bytes of each token; None for a mark such as <|user|>, which has none
    ends: the tokens that end an answer, allowed where a text may end and nowhere else
    Neither a mark nor an empty token (b"") may come: they lead nowhere.
    """
    # exercise: the tokens that survive their step; then those that end the text
    mask = np.zeros(len(vocabulary), dtype=bool)
    for v, token in enumerate(vocabulary):
        if token:
            mask[v] = step_token(automaton.table, state, token) is not None
    mask[list(ends)] = automaton.accepting[state]
    return mask


def pack_mask(mask: np.ndarray) -> np.ndarray:              # (V,) bool -> (W,) int32
    """A mask as bits: token v is bit v % 32 of number v // 32, where bit 0 is worth 1. Bits after
    the last token are 0."""
    # exercise: as many bits as whole words have; np.packbits makes bytes of them
    bits = np.zeros(-(-len(mask) // 32) * 32, dtype=bool)
    bits[:len(mask)] = mask
    return np.packbits(bits, bitorder="little").view("<i4")


# ---- guesses


def mask_guesses(matcher: Matcher, guesses: list[int]) -> tuple[np.ndarray, list[int]]:
    """(masks (1 + allowed, W), allowed): the guesses that the grammar lets stand, and the mask of
    the place of each of them and of the place after the last one.

    matcher.mask() is the mask of the next token, int32. matcher.accept(token) goes one token on and
    returns True; where the token is not allowed it returns False and stays. matcher.ended: the
    answer is over, and there is no mask any more; the row after its end is all zeros.
    The first guess that is not allowed ends the guesses. matcher.rollback(count) takes tokens back:
    afterwards the matcher is where it was, since no guess is part of the answer yet.
    """
    # exercise: a mask, then guess after guess, each with the mask after it; and all the way back
    masks = [matcher.mask()]
    allowed = []
    for guess in guesses:
        if not matcher.accept(guess):
            break
        allowed.append(guess)
        if matcher.ended:
            masks.append(np.zeros_like(masks[0]))
            break
        masks.append(matcher.mask())
    matcher.rollback(len(allowed))
    return np.stack(masks), allowed


# ---- where there is no choice


def forced_bytes(automaton: Automaton, state: int) -> bytes:
    """What must come in a state: one byte after the other, as long as no text may end and a single
    byte goes on."""
    # exercise: while there is no end here, the bytes that go on; is it one?
    forced = bytearray()
    while not automaton.accepting[state]:
        (ways,) = np.nonzero(automaton.table[state] >= 0)
        if len(ways) > 1:
            break
        forced.append(ways[0])
        state = automaton.table[state, ways[0]]
    return bytes(forced)
