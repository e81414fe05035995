"""What a grammar says about the tokens of one answer: masks for its scores, and guesses that stand

V: vocabulary   W: words of 32 bits, V/32 rounded up   n: guesses
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Matcher(Protocol):
    """Where an answer is in its grammar."""

    @property
    def ended(self) -> bool:
        """Whether the newest token ended the answer."""

    def mask(self) -> np.ndarray:                           # (W,) int32
        """The tokens that may come next, as bits."""

    def accept(self, token: int) -> bool:
        """Go on by a token.
        False if it is not allowed; then nothing changes."""

    def rollback(self, count: int) -> None:
        """Take the newest tokens back."""


MaskGuesses = Callable[[Matcher, list[int]], tuple[np.ndarray, list[int]]]


class Guide:
    """The grammar of one answer.
    It has accepted the tokens of the answer, and no guesses."""

    def __init__(self, matcher: Matcher, mask_guesses: MaskGuesses):
        """mask_guesses: as s13's"""
        self.matcher = matcher
        self.mask_guesses = mask_guesses

    def rows(self, guesses: list[int]) -> Tensor:           # (n + 1, W) int32
        """The masks at the place of each of the guesses, all of which stand, and after them."""
        masks, _ = self.mask_guesses(self.matcher, guesses)
        return torch.from_numpy(masks)

    def standing(self, guesses: list[int]) -> list[int]:
        """The guesses up to the first that the grammar refuses."""
        return self.mask_guesses(self.matcher, guesses)[1] if guesses else []

    def accept(self, token: int) -> None:
        """A token of the answer.
        ValueError if the grammar refuses it, which masks prevent."""
        if not self.matcher.accept(token):
            raise ValueError(f"token {token} is not allowed here: was the mask left out?")


def masked(z: Tensor, bits: Tensor) -> Tensor:              # (V,), (W,) int32 -> (V,)
    """Scores with -inf for all tokens whose bit is 0."""
    bits = bits.to(z.device)
    places = torch.arange(32, dtype=torch.int32, device=z.device)
    allowed = bits[:, None] >> places & 1                   # (W, 32)
    return z.masked_fill(allowed.flatten()[:len(z)] == 0, -torch.inf)
