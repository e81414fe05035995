"""Two machines on paper: when each token comes if they share all work, or split it

A step takes STEP seconds, PROMPT for each token of a prompt and WRITER for each request that writes
its next token.
One FIFO of prompts a machine, as many requests at a time as there are.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from layer3_system.s03_static_batching import Job
from layer3_system.s09_load_test import Objective, Sample, goodput, poisson_arrivals

STEP = 0.010            # seconds of a step, whatever is in it
PROMPT = 0.0004         # for each token of a prompt
WRITER = 0.0006         # for each request that writes
BUDGETS = (64, 96, 256)     # tokens a step, of which the best counts


def machine(jobs: Sequence[Job], budget: int) -> list[list[float]]:
    """When one machine writes each token of each job, in seconds.  budget: tokens a step

    jobs: in order of arrival.
    A prompt is cut where the budget ends.
    """
    left = [job.prompt for job in jobs]
    times: list[list[float]] = [[] for _ in jobs]
    waiting = deque(range(len(jobs)))
    active: list[int] = []
    now = 0.0
    while waiting or active:
        if not active:
            now = max(now, jobs[waiting[0]].arrival)
        while waiting and jobs[waiting[0]].arrival <= now:
            active.append(waiting.popleft())
        writers = [i for i in active if not left[i]]
        room = budget - len(writers)
        for i in active:
            n = min(left[i], max(room, 0))
            left[i] -= n
            room -= n
        now += STEP + PROMPT * (budget - len(writers) - room) + WRITER * len(writers)
        for i in [i for i in active if not left[i]]:
            times[i].append(now)
        active = [i for i in active if len(times[i]) < jobs[i].output]
    return times


def together(jobs: Sequence[Job], budget: int) -> list[list[float]]:
    """Two machines that each do all; jobs go to them by turns."""
    times: list[list[float]] = [[] for _ in jobs]
    for first in (0, 1):
        times[first::2] = machine(jobs[first::2], budget)
    return times


def split(jobs: Sequence[Job], budget: int) -> list[list[float]]:
    """One machine for the prompts; the other computes each one's last token, and its answer.
    The wire hides."""
    ready = machine([job._replace(output=1) for job in jobs], budget)
    order = sorted(range(len(jobs)), key=lambda i: ready[i])
    written = machine([jobs[i]._replace(arrival=ready[i][0], prompt=1) for i in order], budget)
    times: list[list[float]] = [[] for _ in jobs]
    for i, tokens in zip(order, written, strict=True):
        times[i] = tokens
    return times


def best_goodput(kind, jobs, objective):
    """Requests a second within the objective, with the best of BUDGETS."""
    rates = []
    for budget in BUDGETS:
        samples = [Sample(job.arrival, times[0], times[-1], job.output)
                   for job, times in zip(jobs, kind(jobs, budget), strict=True)]
        rates.append(goodput(samples, objective, jobs[-1].arrival))
    return max(rates)


def frontier(prompt: int, answer: int, objective: Objective, rates: Sequence[float],
             count: int = 300) -> dict[str, list[float]]:
    """{"together", "split": requests a second within the objective, at each rate offered}

    prompt, answer: tokens of every request    count: how many requests
    """
    curves: dict[str, list[float]] = {"together": [], "split": []}
    for rate in rates:
        arrivals = poisson_arrivals(rate, count, np.random.default_rng(12))
        arrivals *= count / rate / arrivals[-1]     # else a short trace misses its rate
        jobs = [Job(float(arrival), prompt, answer) for arrival in arrivals]
        for kind in (together, split):
            curves[kind.__name__].append(best_goodput(kind, jobs, objective))
    return curves


def layer_lanes(L: int, compute: float, wire: float) -> tuple[list[tuple[float, float]],
                                                               list[tuple[float, float]]]:
    """(begin, end) of each layer: when it is computed, and when it is on the wire.

    compute, wire: seconds of one layer.
    A layer is sent once it is computed and the wire is free.
    """
    computed = [(i * compute, (i + 1) * compute) for i in range(L)]
    sent: list[tuple[float, float]] = []
    free = 0.0
    for _, end in computed:
        begin = max(end, free)
        free = begin + wire
        sent.append((begin, free))
    return computed, sent
