"""Given code round expert parallelism: which rank gets which expert, and fewer bytes a row

W: ranks   E: experts   R: rows   C: model width
"""

import torch
from torch import Tensor

__all__ = ["own_experts", "place_experts", "to_fp8"]


def own_experts(w: Tensor, r: int, W: int) -> Tensor:       # (E, …) -> (E/W, …)
    """Rank r's experts.
    ValueError unless W divides E."""
    if len(w) % W:
        raise ValueError(f"own_experts: {len(w)} experts do not divide by {W} ranks")
    return w.chunk(W)[r].clone()                # a view would keep all experts in memory


def place_experts(loads: list[int], W: int) -> list[list[int]]:
    """The experts of each rank, as many on each: the busiest first, each to the rank that has
    least to do and a place left."""
    room = len(loads) // W
    if len(loads) % W:
        raise ValueError(f"place_experts: {len(loads)} experts do not divide by {W} ranks")
    ranks: list[list[int]] = [[] for _ in range(W)]
    for e in sorted(range(len(loads)), key=lambda e: -loads[e]):
        free = [own for own in ranks if len(own) < room]
        min(free, key=lambda own: sum(loads[i] for i in own)).append(e)
    return ranks


def to_fp8(rows: Tensor) -> tuple[Tensor, Tensor]:          # (R, C) -> (R, C), (R, 1)
    """Rows in 8 bits (e4m3) and a scale for each, fp32: rows ≈ numbers · scale."""
    largest = rows.abs().amax(-1, keepdim=True).float().clamp(min=1e-12)        # (R, 1)
    scale = largest / torch.finfo(torch.float8_e4m3fn).max
    return (rows / scale).to(torch.float8_e4m3fn), scale
