"""What is around a scheduler, without a model: requests come, and steps are computed."""

from zlib import crc32

from layer3_system.s01_request import Request, SamplingParams, finish_reason
from layer3_system.s02_block_pool import Broken, check_pool, slots_of

__all__ = ["Drive"]


class Drive:
    """All that is around a scheduler, played with numbers: requests come, steps are computed.

    A request is a name, how many tokens its prompt has and how many its answer gets. A step lets
    the scheduler choose, writes tokens into slots, reads each context back, and gives those that
    have caught up their next token, which rests on all that was read.
    history: of each step {name: (what, tokens)}, what: prefill, decode or waiting
    faults: what was not as it must be, in words
    """

    def __init__(self, scheduler):
        self.scheduler, self.pool = scheduler, scheduler.pool
        self.requests, self.history, self.sent, self.faults = {}, [], {}, []
        self.slots = {}                             # slot -> the token in it

    # ---- who comes

    def make(self, name, prompt, count, answers=1):
        tokens = [crc32(f"{name} {i}".encode()) for i in range(prompt)]
        names = [name, *(f"{name}.{i}" for i in range(1, answers))]
        first, *others = [Request(each, list(tokens), SamplingParams(max_tokens=count), index,
                                  limit=prompt + count) for index, each in enumerate(names)]
        for request in (first, *others):
            self.requests[request.id], self.sent[request.id] = request, []
            request.leader = None if request is first else first
        first.forks = others
        return first

    def add(self, name, prompt, count, answers=1):
        """Queue a request, with so many answers to one prompt."""
        self.scheduler.add(self.make(name, prompt, count, answers))

    def seat(self, name, prompt, count, computed):
        """A request that runs already, with so many tokens computed; behind those that run."""
        request = self.make(name, prompt, count)
        request.output = [crc32(f"{name} said {i}".encode()) for i in range(computed - prompt + 1)]
        self.pool.grow(request.table, computed)
        request.num_computed, request.status = computed, "running"
        self.slots |= zip(slots_of(request.table, 0, computed, self.pool.S), request.tokens,
                          strict=False)
        self.scheduler.running.append(request)

    # ---- steps

    def step(self):
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

    def run(self, most=1000):
        """Steps until nobody is left, at most so many; how many there were in all."""
        while (self.scheduler.running or self.scheduler.waiting) and len(self.history) < most:
            self.step()
        return len(self.history)

    def compute(self, counts):
        """Write the new tokens, then read the contexts back: {request: [token]}."""
        places = {}                                 # request -> its slots
        for request, n in counts.items():
            end, room = request.num_computed, len(request.table) * self.pool.S
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

    def answer(self, request, context):
        request.output.append(crc32(repr((context, request.index)).encode()))
        self.sent[request.id].append(len(self.history))
        reason = finish_reason(request, ())
        if reason:
            self.scheduler.finish(request, reason)

    # ---- what went on

    def note(self, counts):
        """Keep who does what in this step, and what must hold and does not."""
        running, waiting = self.scheduler.running, list(self.scheduler.waiting)
        self.history.append(
            {r.id: ("waiting", 0) for r in waiting} | {r.id: (
                "decode" if r.output and r.num_computed - n + 1 == r.num_tokens else "prefill", n)
                for r, n in counts.items()})
        if sum(counts.values()) > self.scheduler.budget:
            self.fault(f"{sum(counts.values())} tokens, the budget is {self.scheduler.budget}")
        if len(running) > self.scheduler.max_seqs:
            self.fault(f"{len(running)} requests run, there are {self.scheduler.max_seqs} seats")
        for request in waiting:
            if request.table or request.num_computed or request in counts:
                self.fault(f"{request.id} waits, with pages, computed tokens or part in the step")
        try:
            check_pool(self.pool, [r.table for r in [*running, *waiting]])
        except Broken as error:
            self.fault(str(error))

    def fault(self, text):
        self.faults.append(f"step {len(self.history)}: {text}")

    @property
    def computed(self):
        """Tokens computed so far, in all steps."""
        return sum(n for step in self.history for _, n in step.values())

    @property
    def waiting(self):
        return [request.id for request in self.scheduler.waiting]

    @property
    def running(self):
        return [request.id for request in self.scheduler.running]

    def timeline(self):
        """What plots.timeline draws, in steps: {name: ([(what, begin, end)], [tokens sent])}."""
        return {name: ([(step[name][0], i, i + 1) for i, step in enumerate(self.history)
                        if name in step], sent) for name, sent in self.sent.items()}
