"""s03 · The batch that waits: requests start together and wait for the longest of them

B: seats of a batch, one answer each   n: requests of a trace
The first step of a batch computes its prompts and the first token of each answer, each later step
one token of each answer that has not finished.
So a batch takes as many steps as its longest answer has tokens.
A slot-step is one seat in one step.
It gives a token or is idle; every step reads all weights, however many seats are idle.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from layer3_system.s01_request import Request, SamplingParams
from layer3_system.s02_block_pool import BlockPool

if TYPE_CHECKING:
    from layer3_system.s07_engine import Engine

__all__ = ["Job", "StaticScheduler", "best_batches", "equal_trace", "expected_longest",
           "idle_slot_steps", "mixed_trace", "padded_tokens", "serve_jobs", "static_steps",
           "useful_share"]


# ---- traces


class Job(NamedTuple):
    """A request of a trace, described by its sizes."""

    arrival: float      # seconds
    prompt: int         # tokens
    output: int         # tokens of the answer


def mixed_trace(count: int, rng: np.random.Generator, rate: float | None = None,
                prompt: tuple[int, int] = (48, 256), output: tuple[int, int] = (48, 256),
                spread: float = 1.0) -> list[Job]:
    """Jobs with lognormal lengths: many short, a few long.

    prompt, output: (median, maximum) in tokens
    spread: standard deviation of the logarithm of a length
    rate: arrivals a second (Poisson); None: all arrive at 0 s
    """
    prompts, outputs = (np.clip(rng.lognormal(np.log(median), spread, count).astype(int), 1, most)
                        for median, most in (prompt, output))
    arrivals = np.cumsum(rng.exponential(1 / rate, count)) if rate else np.zeros(count)
    return [Job(*job) for job in zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(),
                                     strict=True)]


def equal_trace(count: int, prompt: int, output: int) -> list[Job]:
    """Jobs of equal size, all arriving at 0 s."""
    return [Job(0.0, prompt, output)] * count


# ---- what a static batch wastes


def predict_useful_share() -> float:
    """The useful share of slot-steps, from 0 to 1, in static batches of 8.

    Answers have 1 to 200 tokens, all lengths equally likely.
    """
    # exercise: within 0.03 counts as right; how long is one on average, and the longest of eight?
    return 100 / (200 * 8 / 9)      # eight points cut the line into nine pieces of one mean length


def padded_tokens(prompts: Sequence[int], B: int) -> int:
    """Number of padding tokens, if each batch is as wide as its longest prompt.

    prompts: [tokens of each prompt].
    The first B form a batch, then the next B; the last batch may be smaller, and has no rows for
    missing prompts.
    """
    # exercise: for each batch, the tokens computed minus the tokens of its prompts
    batches = [prompts[i:i + B] for i in range(0, len(prompts), B)]
    return sum(len(batch) * max(batch) for batch in batches) - sum(prompts)


def static_steps(outputs: Sequence[int], B: int) -> int:
    """Total steps of static batches of B, one batch after another.

    outputs: [tokens of each answer], 1 or more.
    The step that computes the prompts also gives the first token of each answer.
    """
    # exercise: how many steps does each batch take?
    return sum(max(outputs[i:i + B]) for i in range(0, len(outputs), B))


def idle_slot_steps(outputs: Sequence[int], B: int) -> int:
    """Slot-steps without a token.
    Each step has B seats, also in a last batch that is not full."""
    return B * static_steps(outputs, B) - sum(outputs)


def useful_share(outputs: Sequence[int], B: int) -> float:
    """The share of slot-steps that give a token, from 0 to 1, in static batches of B."""
    return sum(outputs) / (B * static_steps(outputs, B))


def expected_longest(lens: Sequence[int], B: int) -> float:
    """The expected maximum of B lengths, drawn independently from lens.

    A length may be drawn more than once; each entry of lens is equally likely in each draw.
    """
    # exercise: B draws are all among the i shortest of n with probability (i / n) ** B
    n = len(lens)
    return sum(length * ((i / n) ** B - ((i - 1) / n) ** B)
               for i, length in enumerate(sorted(lens), 1))


def best_batches(outputs: Sequence[int], B: int) -> list[list[int]]:
    """Batches that take the fewest steps in total: [[index into outputs]].

    At most B indices in each batch, and every index once.
    """
    # exercise: group similar lengths; if B does not divide n, which batch should be the small one?
    order = sorted(range(len(outputs)), key=lambda i: -outputs[i])
    return [order[i:i + B] for i in range(0, len(order), B)]


# ---- in the engine


class StaticScheduler:
    """Decides which requests run in the next step, and how many tokens of each: the whole batch,
    until all of it has finished.

    waiting: requests without pages, in order of arrival
    running: requests of the batch that have not finished
    copies: {new page: old page}, to be copied before the step
    budget: most tokens in a step; here the number of slots in the pool
    """

    def __init__(self, pool: BlockPool, max_seqs: int = 8):
        """max_seqs: seats of a batch"""
        if max_seqs < 1:
            raise ValueError(f"StaticScheduler: expected 1 seat or more, found {max_seqs}")
        self.pool = pool
        self.max_seqs = max_seqs
        self.budget = pool.P * pool.S
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.copies: dict[int, int] = {}
        self.next_copies: dict[int, int] = {}

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def schedule(self) -> dict[Request, int]:
        """{request: number of its tokens that the next step computes}. They count as computed from
        now on."""
        self.copies = self.next_copies
        self.next_copies = {}
        if not self.running:
            self.admit_batch()
        counts = {}
        for request in self.running:
            known = request.num_tokens + request.pending + len(request.draft)
            missing = min(known, request.limit - 1) - request.num_computed
            if missing:             # 0: its last token is being computed
                counts[request] = missing
                request.num_computed += missing
        return counts

    def admit_batch(self) -> None:
        """Admit waiting requests in order, while there are seats, and pages for the longest answer
        that each may give."""
        while self.waiting:
            request = self.waiting[0]
            seats = sum(1 + len(r.forks) for r in [*self.running, request])
            if seats > self.max_seqs or not self.pool.grow(request.table, request.limit):
                return
            request.status = "running"
            request.num_cached_pages = 0
            self.running.append(self.waiting.popleft())

    def fork(self, request: Request) -> None:
        """Start the other answers to a request's prompt.
        They share its full pages, and copy its last one.
        Those without enough free pages wait for the next batch."""
        full = len(request.prompt) // self.pool.S
        late = []
        for other in request.forks:
            other.leader = None
            table = request.table[:full]
            self.pool.share(table)
            if not self.pool.grow(table, other.limit):
                self.pool.release(table)
                late.append(other)
                continue
            self.next_copies[table[full]] = request.table[full]
            other.table = table
            other.num_computed = len(request.prompt)
            other.status = "running"
            self.running.append(other)
        self.waiting.extendleft(reversed(late))
        request.forks = []

    def preempt(self, request: Request) -> None:
        """Free a request's pages and put it at the head of the queue; the next batch computes it
        again from the start."""
        self.running.remove(request)
        self.pool.release(request.table)
        request.num_computed = 0
        request.status = "waiting"
        request.draft = []
        request.preemptions += 1
        self.waiting.appendleft(request)

    def finish(self, request: Request, reason: str) -> None:
        """Finish a request in any state.
        Its seat stays empty until the batch has finished."""
        if request.status == "finished":
            return
        (self.running if request.status == "running" else self.waiting).remove(request)
        self.pool.release(request.table)
        request.status = "finished"
        request.reason = reason


# ---- served


def serve_jobs(engine: "Engine", jobs: Iterable[Job]) -> list[list[int]]:
    """The indices of the jobs that ran in each step: [[index]].

    They are served greedily and to their full lengths, with made-up prompts.
    All arrive at once.
    """
    indices = {}
    steps = []
    V = engine.model.config.V
    for i, job in enumerate(jobs):
        prompt = [2 + (31 * i + t) % (V - 2) for t in range(job.prompt)]
        params = SamplingParams(max_tokens=job.output, temperature=0, ignore_eos=True)
        indices[engine.submit(prompt, params)[0]] = i
    while engine.busy:
        engine.step()
        steps.append([indices[request] for request in engine.counts])
    return steps
