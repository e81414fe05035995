"""Codes by the book: each number compared with every level, in float64."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Levels = Sequence[float]


def book(x: np.ndarray, levels: Levels) -> np.ndarray:
    """Codes of numbers without ties: of the nearest level."""
    away = np.abs(np.abs(x)[..., None] - np.array(levels))
    return (away.argmin(-1) * np.sign(x)).astype(int)


def over(x: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """x / scale; x where a scale is 0."""
    return x / np.where(scales > 0, scales, 1)


def coded(x: np.ndarray, levels: Levels) -> tuple[np.ndarray, np.ndarray]:
    """(what the codes stand for, the scales), a scale for each row."""
    scales = np.abs(x).max(-1, keepdims=True) / levels[-1]
    codes = book(over(x, scales), levels)
    return np.array(levels)[np.abs(codes)] * np.sign(codes), scales


def whole_numbers(x: np.ndarray, scales: np.ndarray) -> tuple[str, np.ndarray]:
    """A likely mistake: (sentence, the codes that it gives)."""
    return ("x / scale is rounded to a whole number; codes number the nearest levels",
            np.rint(over(x, scales).astype(np.float32)).clip(-127, 127).astype(int))


def product(x: np.ndarray, w: np.ndarray, levels: Levels) -> np.ndarray:
    """x wᵀ of rounded rows of both."""
    a, p = coded(x, levels)
    b, q = coded(w, levels)
    return a @ b.T * p * q.T


def zeroed(x: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """x with zeros in some columns."""
    x = x.copy()
    x[:, columns] = 0
    return x


def dequantized(x: np.ndarray, columns: np.ndarray, levels: Levels) -> np.ndarray:
    """What codes of x without some columns stand for: the scales are of the others alone."""
    values, scales = coded(zeroed(x, columns), levels)
    return values * scales


def split_product(x: np.ndarray, w: np.ndarray, columns: np.ndarray, levels: Levels) -> np.ndarray:
    """x wᵀ of numbers in some columns and of codes in all others."""
    rest = np.setdiff1d(np.arange(x.shape[1]), columns)
    out = x[:, columns] @ w[:, columns].T
    return out + product(x[:, rest], w[:, rest], levels) if len(rest) else out


def settled(codes: np.ndarray, x: np.ndarray, scales: np.ndarray, levels: Levels) -> np.ndarray:
    """The codes, replaced by the book's where two levels are almost equally near to x / scale."""
    codes = np.asarray(codes)
    ratio = over(x, scales)
    own = book(ratio, levels)
    values = np.array(levels)
    some = np.abs(codes.astype(int)).clip(max=len(levels) - 1)
    as_good = (np.abs(np.abs(ratio) - values[some])
               <= np.abs(np.abs(ratio) - values[np.abs(own)]) + 1e-4)
    return np.where(as_good & (codes * own >= 0) & (np.abs(codes.astype(int)) == some), own, codes)


def packed(codes: np.ndarray, levels: Levels) -> np.ndarray:        # (…, D) -> (…, bytes)
    """Bytes of rows of codes, digit by digit."""
    n, radix = {1: (5, 3), 7: (2, 16)}.get(len(levels) - 1, (1, 256))
    digits = np.pad(codes + len(levels) - 1, [(0, 0)] * (codes.ndim - 1)
                    + [(0, -codes.shape[-1] % n)], constant_values=len(levels) - 1)
    parts = digits.reshape(*codes.shape[:-1], digits.shape[-1] // n, n)
    return (parts * radix ** np.arange(n)).sum(-1)


class Pages:
    """Pages for the codes and scales of x (T, G, D), and what they must hold after a call.

    slots: of each token    layout: "codes" or "scales", if that array is part of a larger one
    """

    def __init__(self, x: Tensor, slots: list[int], levels: Levels, P: int, S: int,
                 layout: str = ""):
        self.x = x
        self.slots = slots
        self.levels = levels
        self.P = P
        self.S = S
        _, G, D = x.shape
        n = {1: 5, 7: 2}.get(len(levels) - 1, 1)                    # codes in a byte
        self.codes = self.laid((P, S, G, -(-D // n)), 77, torch.uint8, layout == "codes")
        self.scales = self.laid((P, S, G), 0.5, torch.float16, layout == "scales")
        self.numbers = x.double().numpy()
        largest = np.abs(x.float().numpy()).max(-1)
        self.exact = (largest / np.float32(levels[-1])).astype(np.float32)      # (T, G)
        self.own = self.exact.astype(np.float16)

    @staticmethod
    def laid(shape: tuple, value: float, dtype: torch.dtype, apart: bool) -> Tensor:
        """An array of one value; apart: neighbouring pages, places and heads are not adjacent."""
        room = torch.full((shape[0], shape[1] + 1, shape[2] + 2, *shape[3:]), value, dtype=dtype)
        return room[:, 1:, 1:-1] if apart else torch.full(shape, value, dtype=dtype)

    def write(self, side: Any) -> None:
        slots = torch.tensor(self.slots, dtype=torch.int64)
        side.write_quantized(self.x, self.codes, self.scales, slots, self.levels)

    def bytes_of(self, scales: np.ndarray,
                 x: np.ndarray | None = None) -> np.ndarray:        # (T, G) -> (T, G, bytes)
        """The packed codes of the tokens, or of another x, over some scales."""
        ratio = over(self.numbers if x is None else x, scales[..., None].astype(float))
        return packed(book(ratio, self.levels), self.levels)

    def filled(self, value: float, rows: np.ndarray, slots: Iterable[int] | None = None,
               swap: bool = False) -> np.ndarray:
        """Pages of one value after rows[t] is stored at slots[t], if not -1.

        swap: whether page and place are exchanged
        """
        out = np.full((self.P, self.S, *rows.shape[1:]), value, float)
        for row, slot in zip(rows, self.slots if slots is None else slots, strict=True):
            page, place = divmod(slot, self.S)
            if slot >= 0:
                out[(place, page) if swap else (page, place)] = row
        return out

    def place(self, slot: int) -> str:
        return f"page {slot // self.S}, place {slot % self.S}"

    def intruder(self, slot: int, got: np.ndarray, rows: np.ndarray) -> dict[str, tuple]:
        """{id: (sentence, what it gives)} where a slot of no token holds the row of one."""
        for t, own in enumerate(self.slots):
            if own >= 0 and np.array_equal(got, rows[t]):
                name = "elsewhere"
                why = ""
                if slot == own // self.P * self.S + own % self.P:
                    name = "pages_for_places"
                    why = ": its slot is divided by the number of pages"
                elif own > 2**15:
                    name = "short_slot"
                    why = ": its slot is counted in 16 bits"
                return {name: (f"token {t}, which belongs on {self.place(own)}, is written "
                               f"here{why}", rows[t])}
        return {}
