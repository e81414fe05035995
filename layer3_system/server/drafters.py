"""What `lab serve --draft` makes: guesses from the text or from a model, as many as pay

The cost of a step is measured before the server listens, on the machine as it is then.
"""

import time
from functools import partial
from statistics import median

import numpy as np

from layer3_system.engine.drafts import Drafter
from layer3_system.engine.lengths import Lengths, StepCost
from layer3_system.s01_request import SamplingParams
from layer3_system.s02_block_pool import BlockPool
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s07_engine import Engine
from layer3_system.s10_speculative import accept, draw_by_noise, lookup, roll_back
from layer3_system.speculation import ModelDrafter

REQUESTS = (1, 8, 32)   # of the steps that are measured
GUESSES = (0, 1, 4)     # of each of them
PROMPT = 32             # tokens of each of their prompts
STEPS = 3               # of each kind; the median counts
LEAST = 1e-7            # seconds, of any part: rounding of a fit may give less


def drafter_of(draft, count, model, tokenizer, sample, candidates, P, S=16, seats=32):
    """A Drafter of at most `count` guesses a request. draft: "lookup", or a draft model

    candidates: {name: the learner's part, or None for the course's}    P, S: pages of the engine
    seats: answers that run at a time
    """
    back = candidates.get("roll_back") or roll_back
    small = None if draft == "lookup" else draft
    cost = measured_cost(model, tokenizer, sample, small, [B for B in REQUESTS if seats >= B])
    lengths = Lengths(count, cost)
    if small is None:
        return Drafter(partial(candidates.get("lookup") or lookup, count=count), back, lengths)
    return ModelDrafter(small, count, P, S, candidates.get("accept") or accept,
                        candidates.get("draw_by_noise") or draw_by_noise, back, lengths)


def measured_cost(model, tokenizer, sample, draft=None, sizes=REQUESTS, clock=time.perf_counter):
    """The StepCost of a model on this machine, and of a draft model's step.  clock: in seconds"""
    rows = []
    seconds = []
    for B in sizes:
        for each in GUESSES:
            rows.append([1, B, B * each, bool(each)])
            seconds.append(step_seconds(model, tokenizer, sample, B, each, clock))
    line = fit(rows, seconds)
    if draft is None:
        return StepCost(*line)
    times = [draft_seconds(model, tokenizer, sample, draft, B, clock) for B in sizes]
    return StepCost(*line, *fit([[1, B] for B in sizes], times))


def fit(rows, seconds):
    """[coefficient] with the least squares of relative errors; none below LEAST."""
    weights = 1 / np.array(seconds)
    values = np.linalg.lstsq(np.array(rows) * weights[:, None], np.ones(len(rows)), rcond=None)[0]
    return np.maximum(values, LEAST).tolist()


def running(model, tokenizer, sample, B, drafter=None):
    """An engine in which B requests have computed their prompts."""
    pool = BlockPool(B * (PROMPT // 4), 16)
    engine = Engine(model, tokenizer, pool, Scheduler(pool, B, 2 * B * PROMPT), sample, drafter)
    for b in range(B):
        engine.submit([(7 * b + i) % model.config.V for i in range(PROMPT)],
                      SamplingParams(max_tokens=PROMPT, temperature=0, ignore_eos=True))
    engine.step()
    return engine


def step_seconds(model, tokenizer, sample, B, each, clock):
    """Of a step of B requests with `each` guesses of each."""
    engine = running(model, tokenizer, sample, B, Drafter(lambda tokens: [0] * each))
    engine.step()
    return timed(engine.step, clock)


def draft_seconds(model, tokenizer, sample, draft, B, clock):
    """Of a draft model's step for B requests."""
    drafter = ModelDrafter(draft, 2, B * PROMPT // 4)
    requests = running(model, tokenizer, sample, B).scheduler.running
    drafter.propose(requests)
    return timed(lambda: drafter.propose(requests), clock) / drafter.count


def timed(step, clock):
    """The median of some calls, in seconds."""
    times = []
    for _ in range(STEPS):
        began = clock()
        step()
        times.append(clock() - began)
    return median(times)
