"""Text for a training: tokens in a row, of which a batch takes windows."""

from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from layer2_graph.models import SMALL
from layer2_graph.small.corpus import stories

IGNORED = -100          # the target of a token without a loss: k11's cross_entropy


class Batch(NamedTuple):
    tokens: Tensor          # (B, T) int64
    targets: Tensor         # (B, T) int64: the next token, or IGNORED


class Loader:
    """Batches of windows from a text. Which windows batch i has depends on (seed, i) alone, so a
    training that goes on at its place sees what it would have seen."""

    def __init__(self, text: Tensor, B: int, T: int, seed: int) -> None:    # (tokens of the text,)
        if len(text) < T + 1:
            raise ValueError(f"Loader: a text of {len(text)} tokens, expected at least "
                             f"T + 1 = {T + 1}")
        self.text = text
        self.B = B
        self.T = T
        self.seed = seed
        self.number = 0                             # of the next batch

    def next(self) -> Batch:
        """The next batch: T tokens of each window, and the token after each."""
        rng = np.random.default_rng((self.seed, self.number))
        self.number += 1
        starts = rng.integers(0, len(self.text) - self.T, self.B)
        windows = torch.stack([self.text[s:s + self.T + 1] for s in starts])    # (B, T + 1)
        return Batch(windows[:, :-1], windows[:, 1:])

    def place(self) -> dict[str, int]:
        """A new dict of where the next batch is, and in which text."""
        return {"number": self.number, "seed": self.seed, "B": self.B, "T": self.T,
                "tokens": len(self.text)}

    def seek(self, place: dict[str, int]) -> None:
        """Go on at a place. ValueError if it is one of another text, seed or shape."""
        own = self.place() | {"number": place.get("number")}
        if place != own:
            raise ValueError(f"Loader: the place {place} is not one of this loader, {own}")
        self.number = place["number"]


def story_tokens(part: str, count: int) -> Tensor:              # -> (tokens of all stories,)
    """The first stories of "train", "dev" or "held out", with their marks, one after another, in
    the small model's tokens. They are the same on every machine."""
    tokenizer = Tokenizer.from_file(str(SMALL / "tokenizer.json"))
    rows = tokenizer.encode_batch(stories(part)[:count], add_special_tokens=False)
    return torch.tensor([token for row in rows for token in row.ids])
