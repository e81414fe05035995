"""Text for a training: tokens in a row, of which a batch takes windows."""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

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
    """Batches of windows from a text.
    Which windows batch i has depends on (seed, i) alone, so a training that goes on at its place
    sees what it would have seen."""

    def __init__(self, text: Tensor, B: int, T: int, seed: int) -> None:    # (tokens of the text,)
        if len(text) < T + 1:
            raise ValueError(f"Loader: a text of {len(text)} tokens, expected at least "
                             f"T + 1 = {T + 1}")
        self.text = text
        self.digest = hashlib.sha256(text.contiguous().numpy().tobytes()).hexdigest()[:16]
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

    def place(self) -> dict[str, Any]:
        """A new dict of where the next batch is, and in which text.
        Another tokenizer makes other tokens of the same text, so it is another text here."""
        return {"number": self.number, "seed": self.seed, "B": self.B, "T": self.T,
                "tokens": len(self.text), "digest": self.digest}

    def seek(self, place: dict[str, Any]) -> None:
        """Go on at a place.
        ValueError if it is one of another text, seed or shape."""
        own = self.place() | {"number": place.get("number")}
        if place != own:
            raise ValueError(f"Loader: the place {place} is not one of this loader, {own}")
        self.number = place["number"]


def tokens_of(texts: list[str]) -> Tensor:                      # -> (tokens of all texts,)
    """Texts one after another in the small model's tokens, without marks of its own."""
    tokenizer = Tokenizer.from_file(str(SMALL / "tokenizer.json"))
    rows = tokenizer.encode_batch(texts, add_special_tokens=False)
    return torch.tensor([token for row in rows for token in row.ids], dtype=torch.long)


def story_tokens(part: str, count: int) -> Tensor:              # -> (tokens of all stories,)
    """The first stories of "train", "dev" or "held out", with their marks.
    They are the same on every machine."""
    return tokens_of(stories(part)[:count])


def file_tokens(path: Path) -> tuple[Tensor, Tensor]:
    """(to learn from, held out): the first nine tenths of a file's tokens, and the rest.
    ValueError where the file is empty, or not UTF-8"""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8, found {error}") from None
    if not text:
        raise ValueError(f"{path}: expected text, found an empty file")
    tokens = tokens_of([text])
    return tokens[:len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10:]
