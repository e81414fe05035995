"""Given code round the exercises of s12: parts that arrive, and pages that are to be given back."""

from typing import Any

from layer3_system.disaggregation.parts import Part, Ticket
from layer3_system.s02_block_pool import BlockPool

__all__ = ["Arrivals", "Settlement"]


class Arrivals:
    """Delivers parts to an Inbox."""

    def __init__(self, inbox: Any):
        self.inbox = inbox

    def deliver(self, parts: list[tuple]) -> list[Any]:
        """What accept says to each part."""
        return [self.inbox.accept(Part(*part)) for part in parts]

    def state(self) -> tuple[Any, Any, int]:
        """(keys, values, how many parts are missing)"""
        return self.inbox.k.copy(), self.inbox.v.copy(), len(self.inbox.missing)


class Settlement:
    """A pool, pages of it that an Outbox holds and others that somebody else holds too."""

    def __init__(self, kind: Any, lease_ends: float):
        """kind: the class Outbox"""
        self.pool = BlockPool(8, 4)
        pages = [self.pool.take() for _ in range(3)]
        self.outbox = kind(self.pool, lease_ends)
        self.outbox.hold(pages)
        self.pool.release(list(pages[:2]))          # the third belongs to another request, too

    def become(self, states: list[str], acknowledged: bool, aborted: bool, alive: bool) -> None:
        """states: what the poll of each ticket says"""
        self.outbox.tickets = [Ticket(state) for state in states]
        self.outbox.acknowledged = acknowledged
        self.outbox.aborted = aborted
        self.outbox.receiver_alive = alive

    def settle(self, times: list[float]) -> list[tuple[Any, list[int]]]:
        """(what settle says, holders of each page then) at each time."""
        return [(self.outbox.settle(now), list(self.pool.refs)) for now in times]
