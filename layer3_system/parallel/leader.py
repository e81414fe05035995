"""A model on several ranks that looks like one to an engine

Rank 0 says what comes next in two broadcasts: a header of five whole numbers, then arrays of them,
glued together.
Nothing is pickled.
All ranks then do the same, each on its own heads' pages.

T: tokens of a step   B: requests   L P S: layers, pages, slots of a page
G D: kv heads of the whole model, width of a head   g: kv heads of a rank
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor

from layer2_graph import Batch, Llama
from layer3_system.s02_block_pool import Pages
from layer3_system.s22_tensor_parallel import TensorParallelLlama

__all__ = ["Leader", "follow"]


class Kind(IntEnum):
    """What comes next."""

    END = 0
    PAGES = 1           # sizes: P, S
    STEP = 2            # sizes: T, B, width of the block tables, whether scores of every token
    COPY = 3            # sizes: pairs
    READ = 4            # sizes: pages of a table
    WRITE = 5           # sizes: pages of a table


HEADER = 5              # numbers


# ---- from rank 0 to all


def tell(device: torch.device, kind: Kind, *sizes: int) -> None:
    """Announce what comes next."""
    header = [kind, *sizes, *[0] * (HEADER - 1 - len(sizes))]
    dist.broadcast(torch.tensor(header, device=device), 0)


def hear(device: torch.device) -> tuple[Kind, list[int]]:
    """What rank 0 announces: (kind, sizes)."""
    header = torch.empty(HEADER, dtype=torch.int64, device=device)
    dist.broadcast(header, 0)
    kind, *sizes = header.tolist()
    return Kind(kind), sizes


def numbers(count: int, device: torch.device, values: Tensor | None = None) -> Tensor:  # (count,)
    """Whole numbers of rank 0, on every rank. values: there, on rank 0"""
    array = torch.empty(count, dtype=torch.int64, device=device) if values is None else values
    dist.broadcast(array, 0)
    return array


def batch_sizes(T: int, B: int, width: int) -> list[int]:
    """Numbers of each array of a Batch."""
    return [T, T, T, B * width, B + 1, B]


def glued(batch: Batch) -> Tensor:
    """All arrays of a Batch in a row, int64."""
    return torch.cat([array.reshape(-1).long() for array in batch])


def apart(flat: Tensor, T: int, B: int, width: int) -> Batch:
    """The Batch of such a row."""
    tokens, positions, slots, tables, cu_q, lens = flat.split(batch_sizes(T, B, width))
    return Batch(tokens, positions, slots, tables.view(B, width).int(), cu_q.int(), lens.int())


# ---- pages on all ranks


def gather_heads(own: Tensor, G: int) -> Tensor:    # (L, pages, S, g, D) -> (L, pages, S, G, D)
    """The pages of all ranks' heads.
    A head that several ranks have is taken once."""
    n = dist.get_world_size()
    every = [torch.empty_like(own) for _ in range(n)]
    dist.all_gather(every, own.contiguous())
    return torch.cat(every[::max(1, n // G)], 3)


def own_heads(whole: Tensor, g: int) -> Tensor:     # (L, pages, S, G, D) -> (L, pages, S, g, D)
    """This rank's heads of whole pages."""
    first = dist.get_rank() * whole.shape[3] // dist.get_world_size()
    return whole[:, :, :, first:first + g]


class LeaderPages(Pages):
    """Rank 0's pages.
    What happens to them happens on every rank."""

    leader: "Leader"

    def copy(self, pairs: dict[int, int]) -> None:
        """Copy whole pages: {to: from}."""
        if pairs:
            with self.leader.together():
                tell(self.k.device, Kind.COPY, len(pairs))
                numbers(0, self.k.device, torch.tensor([*pairs, *pairs.values()],
                                                       device=self.k.device))
                super().copy(pairs)

    def read(self, table: list[int]) -> tuple[Tensor, Tensor]:      # 2 × (L, pages, S, G, D)
        """A copy of a sequence's pages, with the heads of all ranks."""
        with self.leader.together():
            tell(self.k.device, Kind.READ, len(table))
            numbers(0, self.k.device, torch.tensor(table, device=self.k.device))
            k, v = super().read(table)
            return gather_heads(k, self.leader.G), gather_heads(v, self.leader.G)

    def write(self, table: list[int], k: Tensor, v: Tensor) -> None:
        """Put such a copy into the first pages of a table."""
        table = table[:k.shape[1]]
        with self.leader.together():
            tell(self.k.device, Kind.WRITE, len(table))
            numbers(0, self.k.device, torch.tensor(table, device=self.k.device))
            g = self.k.shape[3]
            whole = [array.to(self.k).contiguous() for array in (k, v)]
            for array in whole:
                dist.broadcast(array, 0)
            super().write(table, *(own_heads(array, g) for array in whole))


class Leader:
    """Rank 0's model.
    An engine takes it for one whole model."""

    def __init__(self, model: TensorParallelLlama, G: int,
                 fault: Callable[[str], str] = str):
        """G: kv heads of the whole model.  fault: from words for what this rank has met to those
        for what has happened; called once"""
        self.model = model
        self.config = model.config
        self.embedding = model.embedding
        self.ops = model.ops
        self.G = G
        self.fault = fault
        self.broken: str | None = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Within, all ranks do the same.
        One that fails leaves the others in the middle of it, so nothing can be asked of them any
        more: RuntimeError."""
        if self.broken:
            raise RuntimeError(self.broken)
        try:
            yield
        except Exception as error:                  # a kernel may raise anything
            self.broken = self.fault(f"rank 0: {type(error).__name__}: {error}")
            raise RuntimeError(self.broken) from error

    def make_cache(self, P: int, S: int, dtype: torch.dtype, device: torch.device) -> LeaderPages:
        """P pages of S slots on every rank, for its heads."""
        with self.together():
            tell(device, Kind.PAGES, P, S)
            pages = LeaderPages(self.config, P, S, dtype, device)
        pages.leader = self
        return pages

    def forward(self, batch: Batch, cache: Pages, every: bool = False) -> Tensor:
        """As `TensorParallelLlama.forward`, on all ranks."""
        device = self.embedding.device
        with self.together():
            tell(device, Kind.STEP, len(batch.tokens), *batch.block_tables.shape, every)
            numbers(0, device, glued(batch))
            return self.model.forward(batch, cache, every)

    def alone(self) -> Llama:
        """This rank's part as a model that meets no other: for what looks at operations alone."""
        return Llama(self.config, self.model.weights, self.ops)

    def close(self) -> None:
        """Let the other ranks' `follow` return."""
        with self.together():
            tell(self.embedding.device, Kind.END)


def follow(model: TensorParallelLlama, G: int) -> None:
    """The life of a rank other than 0: it does what rank 0 does, until that closes.

    G: kv heads of the whole model
    """
    device = model.embedding.device
    pages = Pages(model.config, 0, 1)
    while True:
        kind, sizes = hear(device)
        if kind is Kind.END:
            return
        if kind is Kind.PAGES:
            P, S, *_ = sizes
            pages = Pages(model.config, P, S, model.embedding.dtype, device)
        elif kind is Kind.STEP:
            *shape, every = sizes
            flat = numbers(sum(batch_sizes(*shape)), device)
            model.forward(apart(flat, *shape), pages, bool(every))
        elif kind is Kind.COPY:
            new, old = numbers(2 * sizes[0], device).view(2, -1).tolist()
            pages.copy(dict(zip(new, old, strict=True)))
        else:
            move_pages(kind, pages, numbers(sizes[0], device).tolist(), G)


def move_pages(kind: Kind, pages: Pages, table: list[int], G: int) -> None:
    """A rank's part of reading or writing the pages of a table."""
    if kind is Kind.READ:
        for array in pages.read(table):
            gather_heads(array, G)
        return
    L, _, S, g, D = pages.k.shape
    whole = [pages.k.new_empty(L, len(table), S, G, D) for _ in range(2)]
    for array in whole:
        dist.broadcast(array, 0)
    pages.write(table, *(own_heads(array, g) for array in whole))
