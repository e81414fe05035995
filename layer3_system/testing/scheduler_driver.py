"""A scheduler driven without a model: requests come, and steps are computed."""

from typing import Any
from zlib import crc32

from layer3_system.engine.invariants import broken_rules
from layer3_system.s01_request import Request, SamplingParams, finish_reason
from layer3_system.s02_block_pool import BlockPool, slots_of
from layer3_system.s03_static_batching import StaticScheduler
from layer3_system.s04_continuous_batching import Scheduler

__all__ = ["Drive", "counts_of_newest"]


class Drive:
    """Everything around a scheduler, without a model.

    A request is a name, how many tokens its prompt has and how many its answer gets.
    A step lets the scheduler choose, writes tokens into slots, reads each context back, and gives
    the requests that have caught up their next token, which depends on all that was read.
    history: for each step {name: (what, tokens)}, what: prefill, decode or waiting
    faults: broken rules, in words
    """

    def __init__(self, scheduler: Scheduler | StaticScheduler):
        self.scheduler = scheduler
        self.pool = scheduler.pool
        self.requests: dict[str, Request] = {}
        self.history: list[dict[str, tuple[str, int]]] = []
        self.sent: dict[str, list[int]] = {}
        self.faults: list[str] = []
        self.slots: dict[int, Any] = {}             # slot -> the token in it

    # ---- requests that come

    def make(self, name: str, prompt: int, count: int, answers: int = 1) -> Request:
        """A request, with `answers` answers to its prompt; it is not queued."""
        tokens = [crc32(f"{name} {i}".encode()) for i in range(prompt)]
        names = [name, *(f"{name}.{i}" for i in range(1, answers))]
        first, *others = [Request(each, list(tokens), SamplingParams(max_tokens=count), index,
                                  limit=prompt + count) for index, each in enumerate(names)]
        for request in (first, *others):
            self.requests[request.id], self.sent[request.id] = request, []
            request.leader = None if request is first else first
        first.forks = others
        return first

    def add(self, name: str, prompt: int, count: int, answers: int = 1) -> None:
        """Queue a request, with `answers` answers to its prompt."""
        self.scheduler.add(self.make(name, prompt, count, answers))

    def seat(self, name: str, prompt: int, count: int, computed: int) -> None:
        """Add a request after those that run, as if it ran already, with `computed` tokens."""
        request = self.make(name, prompt, count)
        request.output = [crc32(f"{name} said {i}".encode()) for i in range(computed - prompt + 1)]
        self.pool.grow(request.table, computed)
        request.num_computed = computed
        request.status = "running"
        self.slots |= zip(slots_of(request.table, 0, computed, self.pool.S), request.tokens,
                          strict=False)
        self.scheduler.running.append(request)

    # ---- steps

    def step(self) -> dict[str, int]:
        """Compute one step: {name: tokens}."""
        counts = self.scheduler.schedule()
        S = self.pool.S
        self.slots |= {new * S + i: self.slots.get(old * S + i)
                       for new, old in self.scheduler.copies.items() for i in range(S)}
        self.note(counts)
        contexts = self.compute(counts)
        for request, context in contexts.items():
            if request.num_computed == request.num_tokens:
                others = request.forks
                self.scheduler.fork(request)
                for each in (request, *others):
                    self.answer(each, context)
        return {request.id: n for request, n in counts.items()}

    def run(self, most: int = 1000) -> int:
        """Step until no request is left or there were `most` steps: how many there were."""
        while (self.scheduler.running or self.scheduler.waiting) and len(self.history) < most:
            self.step()
        return len(self.history)

    def compute(self, counts: dict[Request, int]) -> dict[Request, list]:
        """Write the new tokens, then read the contexts back: {request: [token]}."""
        places = {}                                 # request -> its slots
        for request, n in counts.items():
            end = request.num_computed
            room = len(request.table) * self.pool.S
            if end > room:
                self.fault(f"{request.id} writes token {end} into pages for {room}")
                continue
            places[request] = slots_of(request.table, 0, end, self.pool.S)
            self.slots |= zip(places[request][end - n:], request.tokens[end - n:end], strict=False)
        contexts = {r: [self.slots.get(slot) for slot in slots] for r, slots in places.items()}
        for request, context in contexts.items():
            if context != request.tokens[:request.num_computed]:
                self.fault(f"{request.id} reads slots that do not hold its own tokens")
        return contexts

    def answer(self, request: Request, context: list) -> None:
        """Give a request its next token, and finish it if that is its last."""
        request.output.append(crc32(repr((context, request.index)).encode()))
        self.sent[request.id].append(len(self.history))
        reason = finish_reason(request, ())
        if reason:
            self.scheduler.finish(request, reason)

    # ---- what happened

    def note(self, counts: dict[Request, int]) -> None:
        """Note what each request does in this step, and each invariant that does not hold."""
        self.history.append(
            {r.id: ("waiting", 0) for r in self.scheduler.waiting} | {r.id: (
                "decode" if r.output and r.num_computed - n + 1 == r.num_tokens else "prefill", n)
                for r, n in counts.items()})
        for rule in broken_rules(self.scheduler, counts):
            self.fault(rule)
        for request in self.scheduler.waiting:
            if request in counts:
                self.fault(f"{request.id} waits, but has a part in the step")

    def fault(self, text: str) -> None:
        self.faults.append(f"step {len(self.history)}: {text}")

    @property
    def computed(self) -> int:
        """Tokens computed so far, in all steps."""
        return sum(n for step in self.history for _, n in step.values())

    @property
    def waiting(self) -> list[str]:
        return [request.id for request in self.scheduler.waiting]

    @property
    def running(self) -> list[str]:
        return [request.id for request in self.scheduler.running]

    def timeline(self) -> dict[str, tuple[list[tuple[str, int, int]], list[int]]]:
        """What plots.timeline draws, in steps: {name: ([(what, begin, end)], [tokens sent])}."""
        return {name: ([(step[name][0], i, i + 1) for i, step in enumerate(self.history)
                        if name in step], sent) for name, sent in self.sent.items()}


def counts_of_newest(trace: list[tuple[int, int]], P: int, S: int,
                     budget: int) -> list[tuple[int, int, int]]:
    """(num_tokens, num_computed, preemptions) of the newest request before the first step and after
    each, until it is finished.

    trace: [(tokens of the prompt, tokens of the answer)], oldest first; all arrive at step 0
    P: pages of the pool    S: slots of a page    budget: tokens of a step
    """
    drive = Drive(Scheduler(BlockPool(P, S), len(trace), budget))
    for i, sizes in enumerate(trace):
        drive.add(f"{i}", *sizes)
    request = list(drive.requests.values())[-1]
    counts = [(request.num_tokens, 0, 0)]
    while request.status != "finished":
        drive.step()
        counts.append((request.num_tokens, request.num_computed, request.preemptions))
    return counts
