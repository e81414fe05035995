"""Parts: what travels is one page of one layer at a time

size: bytes of the keys of a page in a layer, S·G·D numbers; the values have as many
"""

from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from layer1_kernels import Kernels
from layer2_graph import Batch, PagedCache
from layer3_system.s02_block_pool import Pages

__all__ = ["Part", "Ticket", "checksum"]


class Part(NamedTuple):
    """One page of one layer of a request, as it travels."""

    id: str                 # of the request
    attempt: int            # which try at it, 1 for the first: a worker may have died meanwhile
    layer: int
    place: int              # which page of the prompt, 0 for the first: the same on both sides
    page: int               # which page of the sender's pool, for its log: means nothing elsewhere
    k: bytes
    v: bytes
    crc: int                # checksum(part) as it was sent


class Ticket:
    """A part that is being sent.  state: pending, done or error"""

    def __init__(self, state: str = "pending"):
        self.state = state

    def poll(self) -> str:
        return self.state


def checksum(part: Part) -> int:
    """CRC-32 of all that a part says and holds."""
    head = repr((part.id, part.attempt, part.layer, part.place)).encode()
    return crc32(part.v, crc32(part.k, crc32(head)))


def part_of(pages: Pages, id: str, attempt: int, layer: int, place: int, page: int) -> Part:
    """The part with what is in a page now."""
    k, v = (raw(each[layer, page]) for each in (pages.k, pages.v))
    part = Part(id, attempt, layer, place, page, k, v, 0)
    return part._replace(crc=checksum(part))


def raw(array: Tensor) -> bytes:
    """The bytes of a tensor."""
    return array.contiguous().view(torch.uint8).cpu().numpy().tobytes()


def page_bytes(pages: Pages) -> int:
    """Bytes of the keys of a page in a layer."""
    return pages.k[0, 0].nbytes


def to_pages(k: np.ndarray, v: np.ndarray, like: Pages) -> tuple[Tensor, Tensor]:
    """2 × (L, n, size) bytes -> 2 × (L, n, S, G, D), as `Pages.read` gives them."""
    shape = (*k.shape[:2], *like.k.shape[2:])
    return tuple(torch.from_numpy(each).view(like.k.dtype).view(shape)      # type: ignore
                 for each in (k, v))


class StreamingPages(Pages):
    """The pages of an engine.
    After the attention of a layer its keys and values do not change any
    more: post(layer) is called then, while the next layers are still to be computed."""

    def __init__(self, pages: Pages, post: Callable[[int], None]):
        self.k = pages.k
        self.v = pages.v
        self.post = post

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch, ops: Kernels,
               scale: float) -> Tensor:             # (T, H, D), 2 × (T, G, D) -> (T, H, D)
        mixed = PagedCache.attend(self, layer, q, k, v, batch, ops, scale)  # type: ignore
        self.post(layer)
        return mixed
