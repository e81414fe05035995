"""s03 · The batch that waits: requests start together, and the longest says when they end

B: places of a batch, one request each   n: requests of a trace
The first step of a batch computes its prompts and one token for each place, any later one a token
for each place that is not done. So a batch takes as many steps as its longest answer has tokens.
A slot-step is one place in one step. It gives a token or is idle; the weights are read for all.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from lab import plots
from layer3_system.s01_request import SamplingParams

__all__ = ["Job", "StaticScheduler", "best_batches", "draw_places", "equal_trace",
           "expected_longest", "idle_slot_steps", "mixed_trace", "padded_tokens", "serve_jobs",
           "static_steps", "useful_share"]


# ---- traces


class Job(NamedTuple):
    """A request of a trace, by its sizes."""

    arrival: float      # seconds
    prompt: int         # tokens
    output: int         # tokens


def mixed_trace(count, rng, rate=None, prompt=(48, 256), output=(48, 256), spread=1.0):
    """[Job] with lognormal lengths: many short ones, a few long ones.

    prompt, output: (median, most), tokens    spread: standard deviation of a length's logarithm
    rate: requests a second, at random (Poisson); None: all are there at 0 s
    """
    prompts, outputs = (np.clip(rng.lognormal(np.log(median), spread, count).astype(int), 1, most)
                        for median, most in (prompt, output))
    arrivals = np.cumsum(rng.exponential(1 / rate, count)) if rate else np.zeros(count)
    return [Job(*job) for job in zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(),
                                     strict=True)]


def equal_trace(count, prompt, output):
    """[Job] of one size, all there at 0 s."""
    return [Job(0.0, prompt, output)] * count


# ---- what a static batch wastes


def predict_useful_share():
    """The share of slot-steps that give a token, from 0 to 1, in batches of 8.

    Any length from 1 to 200 tokens is as likely as any other.
    """
    # exercise: within 0.03 is right; how long is one on average, and the longest of eight?
    return 100 / (200 * 8 / 9)      # eight cut the line into nine parts, of one mean length


def padded_tokens(prompts, B):
    """Prompt tokens that are padding, where each batch is as wide as its longest prompt.

    prompts: [tokens of each prompt]; the first B are a batch, then the next. The last may have
    fewer than B.
    """
    # exercise: for each batch, what it computes less what was asked for
    batches = [prompts[i:i + B] for i in range(0, len(prompts), B)]
    return sum(len(batch) * max(batch) for batch in batches) - sum(prompts)


def static_steps(outputs, B):
    """Steps that batches of B take, one batch after the other.

    outputs: [tokens of each answer], at least 1. The step that computes the prompts gives each
    answer its first token.
    """
    # exercise: how long does each batch last?
    return sum(max(outputs[i:i + B]) for i in range(0, len(outputs), B))


def idle_slot_steps(outputs, B):
    """Slot-steps without a token: B places a step, also where the last batch has fewer."""
    return B * static_steps(outputs, B) - sum(outputs)


def useful_share(outputs, B):
    """The share of slot-steps that give a token, from 0 to 1."""
    return sum(outputs) / (B * static_steps(outputs, B))


def expected_longest(lens, B):
    """The expected largest of B lengths, each drawn from lens, where all are equally likely."""
    # exercise: B draws are all among the i shortest of n with a chance of (i / n) ** B
    n = len(lens)
    return sum(length * ((i / n) ** B - ((i - 1) / n) ** B)
               for i, length in enumerate(sorted(lens), 1))


def best_batches(outputs, B):
    """Batches that take the fewest steps in all: [[place in outputs]], at most B in each."""
    # exercise: put alike together; where n is no multiple of B, which batch is to be small?
    order = sorted(range(len(outputs)), key=lambda i: -outputs[i])
    return [order[i:i + B] for i in range(0, len(order), B)]


# ---- in the engine


class StaticScheduler:
    """Who computes how many tokens in the next step: everybody of a batch, until all are done.

    waiting: requests without pages, in the order of arrival    running: the batch, without those
    that are done    copies: {new page: old page}, to be copied before the step
    budget: tokens a step, as many as the pool has slots
    """

    def __init__(self, pool, max_seqs=8):
        """max_seqs: places of a batch"""
        if max_seqs < 1:
            raise ValueError(f"StaticScheduler: expected 1 place or more, found {max_seqs}")
        self.pool, self.max_seqs, self.budget = pool, max_seqs, pool.P * pool.S
        self.waiting, self.running = deque(), []
        self.copies, self.next_copies = {}, {}

    def add(self, request):
        self.waiting.append(request)

    def schedule(self):
        """{request: tokens that the next step computes of it}. They count as computed from here."""
        self.copies, self.next_copies = self.next_copies, {}
        if not self.running:
            self.admit_batch()
        counts = {}
        for request in self.running:
            known = request.num_tokens + request.pending + len(request.draft)
            missing = min(known, request.limit - 1) - request.num_computed
            if missing:             # 0: its last token is on its way
                counts[request] = missing
                request.num_computed += missing
        return counts

    def admit_batch(self):
        """The first of the waiting, as many as there are places and pages for, whatever they may
        write."""
        while self.waiting:
            request = self.waiting[0]
            places = sum(1 + len(r.forks) for r in [*self.running, request])
            if places > self.max_seqs or not self.pool.grow(request.table, request.limit):
                return
            request.status, request.num_cached_pages = "running", 0
            self.running.append(self.waiting.popleft())

    def fork(self, request):
        """The other answers to its prompt run from here on, behind its full pages and a copy of the
        last. Those for whom there are no pages wait for the next batch."""
        full, late = len(request.prompt) // self.pool.S, []
        for other in request.forks:
            other.leader, table = None, request.table[:full]
            self.pool.share(table)
            if not self.pool.grow(table, other.limit):
                self.pool.release(table)
                late.append(other)
                continue
            self.next_copies[table[full]] = request.table[full]
            other.table, other.num_computed = table, len(request.prompt)
            other.status = "running"
            self.running.append(other)
        self.waiting.extendleft(reversed(late))
        request.forks = []

    def preempt(self, request):
        """Take its pages; it is the first of the next batch, and will be computed anew."""
        self.running.remove(request)
        self.pool.release(request.table)
        request.num_computed, request.status, request.draft = 0, "waiting", []
        request.preemptions += 1
        self.waiting.appendleft(request)

    def finish(self, request, reason):
        """It is over, wherever it was. Its place stays empty until the batch is done."""
        if request.status == "finished":
            return
        (self.running if request.status == "running" else self.waiting).remove(request)
        self.pool.release(request.table)
        request.status, request.reason = "finished", reason


# ---- served and drawn


def serve_jobs(engine, jobs):
    """Serve jobs that are all there, greedily and to their full lengths. Prompts are made up.

    [[place in jobs]]: who took part in each step
    """
    places, steps, V = {}, [], engine.model.config.V
    for i, job in enumerate(jobs):
        prompt = [2 + (31 * i + t) % (V - 2) for t in range(job.prompt)]
        params = SamplingParams(max_tokens=job.output, temperature=0, ignore_eos=True)
        places[engine.submit(prompt, params)[0]] = i
    while engine.busy:
        engine.step()
        steps.append([places[request] for request in engine.counts])
    return steps


def lanes(steps):
    """{request: (place, first step, steps)} of who took part in each step; a newcomer takes the
    first place that is empty. Expects nobody to pause."""
    spans, seats = {}, {}
    for step, who in enumerate(steps):
        seats = {request: place for request, place in seats.items() if request in who}
        for request in who:
            if request not in seats:
                seats[request] = min(set(range(len(seats) + 1)) - set(seats.values()))
            place = seats[request]
            first = spans[request][1] if request in spans else step
            spans[request] = place, first, step + 1 - first
    return spans


def draw_places(title, B, runs):
    """Who held which of B places in which step, a bar a request; red where a place was idle.

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
    plt.close(figure)           # a notebook shows what is returned, and open figures once more
    return figure
