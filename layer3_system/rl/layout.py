"""Which part of a matrix each rank has, in a layout of training or of serving.

N, K: rows and columns of the whole matrix   W: ranks
"""

import math

from torch import Tensor

from layer2_graph import Config
from layer2_graph.checkpoint import shapes
from layer3_system.s22_tensor_parallel import BY_COLUMNS, BY_HEADS, BY_ROWS

Span = tuple[int, int]                  # from the first to before the last
Place = tuple[Span, Span]               # rows and columns of the whole matrix
Piece = tuple[int, int, Place]          # (the rank that has it, the rank that gets it, where it is)

LAYOUTS = "fsdp", "rows", "columns", "all"


def band(length: int, rank: int, W: int) -> Span:
    """A rank's share of a length, as torch.chunk cuts it: the last ranks may have fewer, or none.
    """
    size = math.ceil(length / W)
    return min(rank * size, length), min((rank + 1) * size, length)


def part(layout: str, shape: tuple[int, int], rank: int, W: int) -> Place:
    """Where a rank's part of a matrix lies in the whole.

    layout: "fsdp" and "rows": a band of rows.  "columns": of columns.  "all": each rank has all
    """
    N, K = shape
    if layout not in LAYOUTS:
        raise ValueError(f"part: expected a layout of {', '.join(LAYOUTS)}, found {layout!r}")
    if layout == "all":
        return (0, N), (0, K)
    if layout == "columns":
        return (0, N), band(K, rank, W)
    return band(N, rank, W), (0, K)


def window(matrix: Tensor, at: Place, place: Place) -> Tensor:      # (a, b) -> a view of a part
    """The part of a matrix that lies at `place` of the whole; the matrix itself lies at `at`."""
    (top, _), (left, _) = at
    rows, columns = place
    return matrix[rows[0] - top:rows[1] - top, columns[0] - left:columns[1] - left]


def numbers(place: Place) -> int:
    """How many numbers lie there."""
    rows, columns = place
    return (rows[1] - rows[0]) * (columns[1] - columns[0])


def moved(plan: list[Piece]) -> int:
    """Numbers that change their rank."""
    return sum(numbers(place) for source, target, place in plan if source != target)


def serving_layout(name: str) -> str:
    """The layout in which s22 serves a weight of this name."""
    kind = name.split(".")[-2]
    if kind in BY_ROWS or kind in BY_HEADS:
        return "rows"
    return "columns" if kind in BY_COLUMNS else "all"


def matrices(m: Config) -> dict[str, tuple[int, int]]:
    """{name: (N, K)} of all weights; a vector is a matrix of one column."""
    return {name: (shape[0], math.prod(shape[1:])) for name, shape in shapes(m)}
