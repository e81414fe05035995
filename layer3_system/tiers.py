"""Below the device's pages: places in host memory, and the copies between the two

P: pages of the device   S: slots of a page   L G D: layers, kv heads, head width
A page and a place hold the same: keys and values of S tokens, of all layers.
"""

from collections import Counter, OrderedDict, deque
from typing import Any

import torch

from layer3_system.s02_block_pool import Pages

__all__ = ["Copies", "HostTier", "TieredPages"]


class Copies:
    """Copies that the next step needs, in the order in which they were asked for.

    A page must not be written while its copy is under way, nor read before its copy has come.
    So all run before the step's own work, one after the other.
    On a GPU they have a stream of their own, which waits for the last step's work, and the next
    step waits for it.
    queue: [(what, from, to)]    pages, bytes: {what: how many so far}
    """

    def __init__(self) -> None:
        self.queue: list[tuple[str, Any, Any]] = []
        self.pages: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.memory: torch.Tensor | None = None
        self.stream: torch.cuda.Stream | None = None

    def connect(self, pages: Pages, places: int) -> None:
        """Make host memory for these pages, with room for `places`; on a GPU it is pinned."""
        L, _, *rest = pages.k.shape
        on_gpu = pages.k.is_cuda
        self.memory = torch.zeros((places, 2, L, *rest), dtype=pages.k.dtype, pin_memory=on_gpu)
        self.stream = torch.cuda.Stream(pages.k.device) if on_gpu else None

    # ---- asked for

    def out(self, page: int, place: int) -> None:
        """From a page of the device to a place in host memory."""
        self.queue.append(("out", page, place))

    def into(self, place: int, page: int) -> None:
        """From a place in host memory into a page of the device."""
        self.queue.append(("into", place, page))

    # ---- done

    def run(self, pages: Pages) -> None:
        """Make all copies."""
        if not self.queue:
            return
        queue = self.queue
        self.queue = []
        if self.stream is None:
            self.make(queue, pages)
            return
        current = torch.cuda.current_stream(pages.k.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            self.make(queue, pages)
        current.wait_stream(self.stream)

    def make(self, queue: list[tuple[str, Any, Any]], pages: Pages) -> None:
        for what, source, target in queue:
            getattr(self, f"copy_{what}")(pages, source, target)
            self.pages[what] += 1
            self.bytes[what] += self.memory[0].nbytes

    def copy_out(self, pages: Pages, page: int, place: int) -> None:
        both = torch.stack((pages.k[:, page], pages.v[:, page]))        # (2, L, S, G, D)
        self.memory[place].copy_(both, non_blocking=True)

    def copy_into(self, pages: Pages, place: int, page: int) -> None:
        both = self.memory[place].to(pages.k.device, non_blocking=True)
        pages.k[:, page] = both[0]
        pages.v[:, page] = both[1]

    def wait(self) -> None:
        """Until the copies so far are made: before the host itself reads or writes its memory."""
        if self.stream is not None:
            self.stream.synchronize()


class HostTier:
    """Which names have a place in host memory.
    It knows nothing of what lies there.

    The name that was used longest ago is given up first.
    While a place is pinned it is not given up.
    A name that was just loaded goes to the front, since the device has it now, too; `renew` puts it
    back to the end once the device has given it up.
    """

    def __init__(self, places: int):
        if places < 1:
            raise ValueError(f"HostTier: expected 1 place or more, found {places}")
        self.places = places
        self.copies = Copies()
        self.place_of: OrderedDict[bytes, int] = OrderedDict()  # the first is given up next
        self.free = deque(range(places))
        self.pinned: set[bytes] = set()

    def __contains__(self, name: bytes) -> bool:
        return name in self.place_of

    def get(self, name: bytes) -> int | None:
        """The place of a name; None if it has none."""
        return self.place_of.get(name)

    def put(self, name: bytes) -> int | None:
        """A place for a name that has none; None if all places are pinned."""
        if not self.free and not self.give_up():
            return None
        place = self.free.popleft()
        self.place_of[name] = place
        return place

    def renew(self, name: bytes) -> None:
        """It was used just now."""
        if name in self.place_of:
            self.place_of.move_to_end(name)

    def pin(self, name: bytes) -> None:
        """Do not give its place up."""
        self.pinned.add(name)

    def unpin(self, name: bytes) -> None:
        """Its contents are on the device, too: it may be given up, before all others."""
        self.pinned.discard(name)
        self.place_of.move_to_end(name, last=False)

    def give_up(self) -> bool:
        """Free the place of the name that was used longest ago.
        False if all are pinned."""
        name = next((name for name in self.place_of if name not in self.pinned), None)
        if name is None:
            return False
        place = self.place_of.pop(name)
        self.fall(name, place)
        self.free.append(place)
        return True

    def fall(self, name: bytes, place: int) -> None:
        """A name is about to lose its place, whose contents are still there."""


class TieredPages(Pages):
    """The pages of an engine, with copies to and from the tiers below before those of a step."""

    def __init__(self, pages: Pages, host: HostTier):
        self.k = pages.k
        self.v = pages.v
        self.copies = host.copies
        self.copies.connect(pages, host.places)

    def copy(self, pairs: dict[int, int]) -> None:
        """Copies of the tiers, then whole pages: {to: from}."""
        self.copies.run(self)
        super().copy(pairs)

    def write(self, table: list[int], k: torch.Tensor, v: torch.Tensor) -> None:
        """Copies of the tiers, then `read`'s result into the first pages of a table."""
        self.copies.run(self)
        super().write(table, k, v)
