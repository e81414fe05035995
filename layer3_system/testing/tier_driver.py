"""Given code round the exercises of s11: a pool between two memories that hold names."""

from typing import Any

from layer3_system.s11_kv_offload import TieredPool

__all__ = ["Memories"]


class Memories:
    """A TieredPool, and what would lie in each page and each place: the name of its text.

    copies: [(what, from, to, name of what was copied)], as they ran
    """

    def __init__(self, pool: TieredPool):
        self.pool = pool
        self.device: dict[int, bytes | None] = {}
        self.below: dict[int, bytes | None] = {}
        self.copies: list[tuple[str, Any, Any, bytes | None]] = []

    def run(self) -> None:
        """Make the copies that were asked for."""
        for what, source, target in self.pool.copies.queue:
            old, new = ((self.device, self.below) if what == "out" else
                        (self.below, self.device))
            new[target] = old.get(source)
            self.copies.append((what, source, target, new[target]))
        self.pool.copies.queue.clear()

    def compute(self, names: list[bytes], full: bool = True) -> list[int]:
        """Take a page for each name, run the copies, write: the pages, which stay held.

        full: else they are only part full, and their names are not known
        """
        pages = [self.pool.take() for _ in names]
        self.run()
        for page, name in zip(pages, names, strict=True):
            self.device[page] = name
            if full:
                self.pool.index.page_of[name] = page
                self.pool.index.name_of[page] = name
        return pages

    def pass_by(self, names: list[bytes], full: bool = True) -> list[int]:
        """The same, and they are free again: the pages that they had."""
        pages = self.compute(names, full)
        self.pool.release(list(pages))
        return pages

    def put_below(self, names: list[bytes]) -> None:
        """Pages that went below long ago, the oldest first."""
        for name in names:
            self.below[self.pool.host.put(name)] = name

    def pin(self, names: list[bytes]) -> None:
        for name in names:
            self.pool.host.pin(name)

    def state(self) -> dict[str, Any]:
        """What there is after the copies have run."""
        self.run()
        pool = self.pool
        return {"device": dict(self.device), "below": dict(self.below),
                "copies": list(self.copies), "page_of": dict(pool.index.page_of),
                "name_of": dict(pool.index.name_of), "place_of": dict(pool.host.place_of),
                "order": list(pool.host.place_of), "pinned": sorted(pool.host.pinned),
                "free": list(pool.free), "refs": list(pool.refs)}
