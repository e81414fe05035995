"""A wire that misbehaves, and both sides in one process around it: accidents by the thousand

Time is counted in rounds, so nothing waits and a run is the same each time.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from layer3_system.disaggregation.parts import Part, Ticket
from layer3_system.disaggregation.router import Router
from layer3_system.disaggregation.sides import DecodeSide, PrefillSide
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s06_prefix_cache import PrefixPool
from layer3_system.s07_engine import Engine, check_engine
from layer3_system.s12_disaggregation import Inbox, Outbox

FAULTS = ("repeat", "shuffle", "tear", "drop")
LATEST = 30             # rounds until a repeat comes


class FaultyWire:
    """Parts on their way.
    A page is read when its part is delivered, as a one-sided read does, so one that was given
    back too early delivers something else.

    faults: {kind: how likely for a part}    counts: {kind: how often so far}
    """

    def __init__(self, chance: Random, faults: dict[str, float]):
        self.chance = chance
        self.faults = faults
        self.counts: Counter[str] = Counter()
        self.queue: list[tuple[int, Any, Ticket, Callable[[], Part]]] = []  # by sender
        self.late: list[tuple[int, Any, Part]] = []     # (rounds to go, address, part)

    def post(self, sender: int, address: Any, read: Callable[[], Part]) -> Ticket:
        ticket = Ticket()
        self.queue.append((sender, address, ticket, read))
        return ticket

    def forget(self, sender: int) -> None:
        """A sender is dead, and what it had not sent with it."""
        self.queue = [entry for entry in self.queue if entry[0] != sender]

    def happens(self, kind: str) -> bool:
        hit = self.chance.random() < self.faults.get(kind, 0)
        self.counts[kind] += hit
        return hit

    def round(self) -> list[tuple[Any, Part]]:
        """What arrives now: [(address, part)]."""
        parts = [(address, part) for wait, address, part in self.late if wait == 0]
        self.late = [(wait - 1, *rest) for wait, *rest in self.late if wait]
        rest = []
        for entry in self.queue:
            if self.happens("shuffle"):             # it comes later, after others
                rest.append(entry)
                continue
            _, address, ticket, read = entry
            dropped = self.happens("drop")
            ticket.state = "error" if dropped else "done"
            if dropped:
                continue
            part = read()
            self.counts["parts"] += 1
            if self.happens("repeat"):
                self.late.append((self.chance.randrange(LATEST), address, part))
            parts.append((address, self.torn(part) if self.happens("tear") else part))
        self.queue = rest
        self.chance.shuffle(parts)
        return parts

    def torn(self, part: Part) -> Part:
        """The same part with some bytes lost or changed."""
        at = self.chance.randrange(len(part.k))
        if self.chance.random() < 0.5:
            return part._replace(v=part.v[:at])
        return part._replace(k=part.k[:at] + bytes([part.k[at] ^ 64]) + part.k[at + 1:])


class OneProcess:
    """A router, prefill and decode workers, without a process or a clock."""

    def __init__(self, model: Callable[[], Any], tokenizer: Any, chance: Random,
                 faults: dict[str, float], prefills: int = 2, decodes: int = 2, P: int = 40,
                 S: int = 4, inbox: type[Inbox] = Inbox, outbox: type[Outbox] = Outbox,
                 lease: float = 60, patience: float = 90):
        """P: pages of each worker, of S slots    lease, patience: rounds"""
        self.wire = FaultyWire(chance, faults)
        self.kinds = inbox, outbox
        self.limits = lease, patience
        self.now = 0
        self.sides: dict[tuple[str, int], Any] = {}
        self.recomputed = 0

        def engine() -> Engine:
            pool = PrefixPool(P, S)
            return Engine(model(), tokenizer, pool, Scheduler(pool, 6, 16))

        self.engine = engine
        for kind, count in (("prefill", prefills), ("decode", decodes)):
            for number in range(count):
                self.start(kind, number)
        self.router = Router(prefills, decodes, P, S, engine().room, self.send)

    def start(self, kind: str, number: int) -> None:
        inbox, outbox = self.kinds
        lease, patience = self.limits
        self.sides[kind, number] = DecodeSide(self.engine(), patience, inbox) \
            if kind == "decode" else PrefillSide(
                self.engine(), lambda address, read: self.wire.post(number, address, read), lease,
                outbox)

    def send(self, kind: str, number: int, message: tuple) -> None:
        what, *rest = message
        side = self.sides[kind, number]
        getattr(side, what)(*rest, *([self.now] if what == "expect" else []))

    def kill(self, kind: str, number: int) -> None:
        """Throw a worker away as it is, and start another."""
        if kind == "prefill":
            self.wire.forget(number)
        else:
            self.recomputed += self.sides[kind, number].recomputed
        self.start(kind, number)
        self.router.died(kind, number)
        self.router.came(kind, number)

    def round(self) -> Sequence[tuple[str, list[int], str, str | None]]:
        """A step of each worker, and what clients get."""
        self.now += 1
        for address, part in self.wire.round():
            self.sides["decode", address].arrive(part)
        for side in self.sides.values():
            side.step(self.now)
            check_engine(side.engine)
        for side in list(self.sides.values()):
            news = side.news
            side.news = []
            for each in news:
                self.router.hear(*each)
        outputs = self.router.outputs
        self.router.outputs = []
        return outputs

    def used(self) -> int:
        """Pages held anywhere."""
        return sum(side.engine.pool.used for side in self.sides.values())

    def again(self) -> int:
        """Prompts that a decode worker computed itself."""
        return self.recomputed + sum(side.recomputed for (kind, _), side in self.sides.items()
                                     if kind == "decode")
