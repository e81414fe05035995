"""s03 · The batch that waits: requests start together, and the longest decides when they end

B: places of a batch, one request each   n: requests of a trace
The first step of a batch computes its prompts and one token for each place, each later one a token
for each place that is not done. So a batch takes as many steps as its longest answer has tokens.
A slot-step is one place in one step. It gives a token or is idle; the weights are read either way.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lab import plots
from layer3_system.s01_request import Request, SamplingParams
from layer3_system.s02_block_pool import BlockPool

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from layer3_system.s07_engine import Engine

__all__ = ["Job", "StaticScheduler", "best_batches", "draw_places", "equal_trace",
           "expected_longest", "idle_slot_steps", "mixed_trace", "padded_tokens", "serve_jobs",
           "static_steps", "useful_share"]


# ---- traces


class Job(NamedTuple):
    """A request of a trace, by its sizes."""

    arrival: float      # seconds
    prompt: int         # tokens
    output: int         # tokens


def mixed_trace(count: int, rng: np.random.Generator, rate: float | None = None,
                prompt: tuple[int, int] = (48, 256), output: tuple[int, int] = (48, 256),
                spread: float = 1.0) -> list[Job]:
    """[Job] with lognormal lengths: many short ones, a few long ones.

    prompt, output: (median, most), tokens    spread: standard deviation of a length's logarithm
    rate: requests a second, at random (Poisson); None: all arrive at 0 s
    """
    prompts, outputs = (np.clip(rng.lognormal(np.log(median), spread, count).astype(int), 1, most)
                        for median, most in (prompt, output))
    arrivals = np.cumsum(rng.exponential(1 / rate, count)) if rate else np.zeros(count)
    return [Job(*job) for job in zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(),
                                     strict=True)]


def equal_trace(count: int, prompt: int, output: int) -> list[Job]:
    """[Job] of one size, all arriving at 0 s."""
    return [Job(0.0, prompt, output)] * count


# ---- what a static batch wastes


def predict_useful_share():
    """The share of slot-steps that give a token, from 0 to 1, in batches of 8.

    All lengths from 1 to 200 tokens are equally likely.
    """
    # exercise: within 0.03 is right; how long is one on average, and the longest of eight?
    return 100 / (200 * 8 / 9)      # eight points cut the line into nine parts, equal on average


def padded_tokens(prompts: Sequence[int], B: int) -> int:
    """Prompt tokens that are padding, where each batch is as wide as its longest prompt.

    prompts: [tokens of each prompt]; the first B are a batch, then the next. The last may have
    fewer than B.
    """
    # exercise: for each batch, the tokens it computes less those it was asked for
    batches = [prompts[i:i + B] for i in range(0, len(prompts), B)]
    return sum(len(batch) * max(batch) for batch in batches) - sum(prompts)


def static_steps(outputs: Sequence[int], B: int) -> int:
    """Steps that batches of B take, one batch after another.

    outputs: [tokens of each answer], at least 1. The step that computes the prompts gives each
    answer its first token.
    """
    # exercise: how long does each batch last?
    return sum(max(outputs[i:i + B]) for i in range(0, len(outputs), B))


def idle_slot_steps(outputs: Sequence[int], B: int) -> int:
    """Slot-steps without a token: B places a step, even if the last batch has fewer requests."""
    return B * static_steps(outputs, B) - sum(outputs)


def useful_share(outputs: Sequence[int], B: int) -> float:
    """The share of slot-steps that give a token, from 0 to 1."""
    return sum(outputs) / (B * static_steps(outputs, B))


def expected_longest(lens: Sequence[int], B: int) -> float:
    """The expected largest of B lengths, each drawn from lens, where all are equally likely."""
    # exercise: B draws are all among the i shortest of n with probability (i / n) ** B
    n = len(lens)
    return sum(length * ((i / n) ** B - ((i - 1) / n) ** B)
               for i, length in enumerate(sorted(lens), 1))


def best_batches(outputs: Sequence[int], B: int) -> list[list[int]]:
    """Batches that take the fewest steps in all: [[index into outputs]], at most B in each."""
    # exercise: group similar lengths; if B does not divide n, which batch should be small?
    order = sorted(range(len(outputs)), key=lambda i: -outputs[i])
    return [order[i:i + B] for i in range(0, len(order), B)]


# ---- in the engine


class StaticScheduler:
    """How many tokens each request computes in the next step: a batch runs until all are done.

    waiting: requests without pages, in order of arrival    running: those of the batch that are not
    done    copies: {new page: old page}, to be copied before the step
    budget: tokens a step, as many as the pool has slots
    """

    def __init__(self, pool: BlockPool, max_seqs: int = 8):
        """max_seqs: places of a batch"""
        if max_seqs < 1:
            raise ValueError(f"StaticScheduler: expected 1 place or more, found {max_seqs}")
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
        """{request: how many of its tokens the next step computes}. They count as computed now."""
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
        """Admit from the head of the queue while there are places, and pages for the longest answer
        that each may write."""
        while self.waiting:
            request = self.waiting[0]
            places = sum(1 + len(r.forks) for r in [*self.running, request])
            if places > self.max_seqs or not self.pool.grow(request.table, request.limit):
                return
            request.status = "running"
            request.num_cached_pages = 0
            self.running.append(self.waiting.popleft())

    def fork(self, request: Request) -> None:
        """Start the other answers to its prompt, on its full pages and a copy of the last one.
        Those for which there are no pages wait for the next batch."""
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
        """Take a request's pages; it comes first in the next batch, and is recomputed."""
        self.running.remove(request)
        self.pool.release(request.table)
        request.num_computed = 0
        request.status = "waiting"
        request.draft = []
        request.preemptions += 1
        self.waiting.appendleft(request)

    def finish(self, request: Request, reason: str) -> None:
        """Finish a request in any state. Its place stays empty until the batch is done."""
        if request.status == "finished":
            return
        (self.running if request.status == "running" else self.waiting).remove(request)
        self.pool.release(request.table)
        request.status = "finished"
        request.reason = reason


# ---- served and drawn


def serve_jobs(engine: "Engine", jobs: Iterable[Job]) -> list[list[int]]:
    """Serve jobs that arrive together, greedily and to their full lengths. Prompts are made up.

    [[index into jobs]]: the jobs of each step
    """
    places = {}
    steps = []
    V = engine.model.config.V
    for i, job in enumerate(jobs):
        prompt = [2 + (31 * i + t) % (V - 2) for t in range(job.prompt)]
        params = SamplingParams(max_tokens=job.output, temperature=0, ignore_eos=True)
        places[engine.submit(prompt, params)[0]] = i
    while engine.busy:
        engine.step()
        steps.append([places[request] for request in engine.counts])
    return steps


def lanes(steps):
    """{request: (place, first step, steps)} from the requests of each step; a newcomer takes the
    first empty place. Expects that no request pauses."""
    spans = {}
    seats = {}
    for step, running in enumerate(steps):
        seats = {request: place for request, place in seats.items() if request in running}
        for request in running:
            if request not in seats:
                seats[request] = min(set(range(len(seats) + 1)) - set(seats.values()))
            place = seats[request]
            first = spans[request][1] if request in spans else step
            spans[request] = place, first, step + 1 - first
    return spans


def draw_places(title: str, B: int, runs: dict[str, list[list[int]]]) -> "Figure":
    """Which request held which of B places in which step: a bar a request, red where idle.

    runs: {label: [[request] of each step]}
    """
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(len(runs), 1, sharex=True, squeeze=False, layout="constrained",
                                 figsize=(7.5, 0.6 + len(runs) * (0.5 + 0.2 * B)))
    for axes, (label, run) in zip(every[:, 0], runs.items(), strict=True):
        axes.barh(range(B), len(run), 1.0, color=plots.RED, alpha=0.3)
        for place, first, steps in lanes(run).values():
            axes.barh(place, steps, 0.86, left=first, color="#54aeff", ec="white", lw=0.8)
        useful = sum(map(len, run)) / (B * len(run))
        axes.set_title(f"{label}: {len(run)} steps, {useful:.0%} of slot-steps give a token",
                       loc="left", fontsize=10, color=plots.INK)
        axes.set(ylabel="place", ylim=(B - 0.5, -0.5))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    every[-1, 0].set(xlabel="step")
    figure.suptitle(title)
    plt.close(figure)           # a notebook shows what is returned, and again what is open
    return figure
