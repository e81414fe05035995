"""s07 · The engine: scheduler, pages, model and sampler, one step after the other

B: requests of a step   T: its new tokens, of all of them   S: slots of a page   V: vocabulary
A step asks the scheduler who computes how much, lays it out for the model, samples where a request
has caught up with its tokens, and tells everybody what is new. It keeps no phases: a prompt, a part
of one, and one token more are the same to it.
"""

import logging
import time
from itertools import accumulate, count
from typing import NamedTuple

import torch

from layer1_kernels import Sampling, kernels
from layer2_graph import Step
from layer3_system.s01_request import (
    Detokenizer,
    Request,
    RequestError,
    SamplingParams,
    StopStrings,
    finish_reason,
    logprobs_of,
    uniform,
)
from layer3_system.s02_block_pool import Broken, Pages, check_pool, pages_for, slots_of
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s06_prefix_cache import PrefixPool

__all__ = ["Engine", "Flight", "Output", "build_step", "check_engine"]

log = logging.getLogger(__name__)


# ---- what the model gets


def build_step(counts, S):
    """The Step that computes the newest counts[request] of the computed tokens of each request.

    S: slots of a page. Expects num_computed to count them already, and pages for them.
    """
    # exercise: for each request its tokens, positions and slots; then tables, cu_q and lens
    tokens, positions, slots = [], [], []
    for request, n in counts.items():
        end = request.num_computed
        known = [*request.tokens, *request.draft, 0]        # 0: a token that is still computed
        tokens += known[end - n:end]
        positions += range(end - n, end)
        slots += slots_of(request.table, end - n, end, S)
    width = max(len(r.table) for r in counts)
    tables = [r.table + [0] * (width - len(r.table)) for r in counts]
    cu_q = [0, *accumulate(counts.values())]
    lens = [r.num_computed for r in counts]
    return Step(*map(torch.tensor, (tokens, positions, slots)), *(
        torch.tensor(a, dtype=torch.int32) for a in (tables, cu_q, lens)))


class Writer:
    """The text of an answer as it comes: characters whole, and nothing of a stop."""

    def __init__(self, decode, request):
        self.letters = Detokenizer(decode, request.prompt)
        self.stops, self.min_tokens = StopStrings(request.params.stop), request.params.min_tokens

    def add(self, token, written):
        """Text to show now. written: tokens of the answer so far, this one included."""
        text = self.letters.add(token)
        return self.stops.add(text) if written > self.min_tokens else text

    def rest(self):
        """What was held back, at the end of an answer that no stop ended."""
        return self.stops.add(self.letters.rest()) + self.stops.rest()


class Draw(NamedTuple):
    """One token to sample: for whom, from which row of the scores, and its place behind the known
    tokens."""

    request: Request
    row: int
    place: int


class Flight(NamedTuple):
    """A step that was launched: who takes part, what is sampled, and the results, which need not be
    there yet."""

    counts: dict
    step: Step
    draws: list
    logits: torch.Tensor        # (rows, V)
    tokens: torch.Tensor        # (draws,)


class Output(NamedTuple):
    """What is new of a request: tokens, the text to show now, and at the end why it ended."""

    request: Request
    tokens: list
    text: str
    reason: str | None


# ---- the engine


class Engine:
    """It serves requests with a model. Its parts are arguments."""

    def __init__(self, model, tokenizer, pool=None, scheduler=None, sample=None, drafter=None,
                 overlap=False, clock=time.monotonic):
        """model: with config and forward, as g01's Llama    tokenizer: with encode and decode
        pool: a BlockPool; else pages for 16 contexts of the model's room, at most 2¹⁶ tokens
        scheduler: a Scheduler on that pool    sample: as `sample` of the kernels
        drafter: with propose(tokens) -> [guesses at the next tokens]
        overlap: launch a step before the results of the one before are read
        """
        if overlap and drafter:
            raise ValueError("Engine: overlap and a drafter exclude each other: guesses rest on "
                             "the newest token")
        m = model.config
        self.model, self.tokenizer, self.clock = model, tokenizer, clock
        self.pool = pool or PrefixPool(min(16 * m.room, 2**16) // 16)
        self.scheduler = scheduler or Scheduler(self.pool)
        self.sample = sample or kernels("torch").sample
        self.drafter, self.overlap = drafter, overlap
        self.flights, self.counts, self.failed = [], {}, []     # of the newest step
        self.submitted = self.finished = 0
        weight = model.embedding
        self.device = weight.device
        self.pages = Pages(m, self.pool.P, self.pool.S, weight.dtype, weight.device)
        self.room = min(m.room, self.pool.P * self.pool.S)
        self.numbers = count()

    # ---- requests

    def submit(self, prompt, params=None, id=None, salt=""):
        """Queue a prompt, [int]; [Request], one for each of its n answers. RequestError says what
        cannot be served."""
        params = params or SamplingParams()
        self.check(prompt, params)
        id = id or f"request-{next(self.numbers)}"
        limit = self.room if params.max_tokens is None else len(prompt) + params.max_tokens
        now = self.clock()
        first, *others = answers = [
            Request(id, list(prompt), params, index, salt, arrival=now, limit=limit)
            for index in range(params.n)]
        for request in answers:
            request.seed = first.seed
            request.writer = Writer(self.tokenizer.decode, request)
        first.forks = list(others)
        for other in others:
            other.leader = first
        self.submitted += params.n
        self.scheduler.add(first)
        return answers

    def check(self, prompt, params):
        """RequestError where a prompt cannot be served."""
        V, room = self.model.config.V, self.room
        if not prompt:
            raise RequestError("prompt: expected one token or more, found none")
        if not all(isinstance(t, int) and 0 <= t < V for t in prompt):
            wrong = next(t for t in prompt if not (isinstance(t, int) and 0 <= t < V))
            raise RequestError(f"prompt: expected tokens from 0 to {V - 1}, found {wrong!r}")
        if len(prompt) >= room:
            raise RequestError(f"prompt: expected at most {room - 1} tokens, since the context has "
                               f"room for {room} with the answer; found {len(prompt)}")
        if params.max_tokens is not None and len(prompt) + params.max_tokens > room:
            raise RequestError(f"max_tokens: expected at most {room - len(prompt)} behind a prompt "
                               f"of {len(prompt)} tokens, found {params.max_tokens}")
        if params.n > self.scheduler.max_seqs:
            raise RequestError(f"n: expected at most {self.scheduler.max_seqs}, found {params.n}")

    def abort(self, requests):
        """End requests, whatever they are doing; those that are over stay as they are."""
        # exercise: each of them, and those that wait for its prompt
        for request in requests:
            self.end(request, "abort")

    def end(self, request, reason, error=None):
        if request.status == "finished":
            return
        if request.leader:
            request.leader.forks.remove(request)
        else:
            self.scheduler.finish(request, reason)
        for each in (request, *request.forks):
            each.status, each.reason, each.error = "finished", reason, error
            each.finished_at = self.clock()
            self.finished += 1
        request.forks = []

    @property
    def busy(self):
        """Whether a step would do anything."""
        return bool(self.scheduler.running or self.scheduler.waiting or self.flights)

    # ---- a step

    def step(self):
        """Compute one step, or launch it; [Output] of what is known by now."""
        # exercise: guess, pick, launch; what was launched is committed now, or one step later
        self.guess()
        self.counts = self.scheduler.pick()
        flights = self.launch(self.counts) if self.counts else []
        if self.overlap:
            flights, self.flights = self.flights, flights
        outputs = [output for flight in flights for output in self.commit(flight)]
        failed, self.failed = self.failed, []
        return outputs + [Output(request, [], "", request.reason) for request in failed]

    def guess(self):
        """Guesses for those that lack one token, no more of them than may still come."""
        for request in self.scheduler.running if self.drafter else ():
            if request.num_tokens - request.num_computed == 1 and not request.forks:
                most = request.limit - request.num_tokens - 1
                request.draft = self.drafter.propose(request.tokens)[:max(most, 0)]

    def launch(self, counts):
        """[Flight]: all in one; where a kernel raises, each request by itself, so that only the one
        at fault ends."""
        now = self.clock()
        for request in counts:
            request.scheduled_at = request.scheduled_at or now
        self.pages.copy(self.scheduler.copies)
        try:
            return [self.forward(counts)]
        except Exception as error:              # a kernel may raise anything
            if len(counts) > 1:
                self.scheduler.copies = {}
                return [flight for request, n in counts.items()
                        for flight in self.launch({request: n})]
            (request,) = counts
            log.warning("request %s failed: %s: %s", request.id, type(error).__name__, error)
            self.failed += [request, *request.forks]
            self.end(request, "error", f"{type(error).__name__}: {error}")
            return []

    def forward(self, counts):
        """Run the model and sample: a Flight."""
        every = any(r.draft or r.params.prompt_logprobs is not None for r in counts)
        step = build_step(counts, self.pool.S)
        draws = to_draw(counts, every)
        self.carry_over(step, counts)
        logits = self.model.forward(Step(*(a.to(self.device) for a in step)), self.pages, every)
        rows = torch.tensor([draw.row for draw in draws], dtype=torch.long, device=self.device)
        tokens = self.sample(logits[rows], sampling(draws, self.device)) if draws else rows
        for request in {draw.request for draw in draws if draw.request in counts}:
            request.pending += 1
        return Flight(counts, step, draws, logits, tokens)

    def carry_over(self, step, counts):
        """Put tokens that are still being computed into a step that builds on them."""
        came = {draw.request: flight.tokens[i] for flight in self.flights
                for i, draw in enumerate(flight.draws)}
        for request, end in zip(counts, step.cu_q[1:].tolist(), strict=True):
            if request.num_computed > request.num_tokens + len(request.draft):
                step.tokens[end - 1] = came[request]

    def commit(self, flight):
        """Read what a step computed, and tell everybody: [Output]."""
        found, outputs = {}, []
        for draw, token in zip(flight.draws, flight.tokens.tolist(), strict=True):
            found.setdefault(draw.request, []).append((token, flight.logits[draw.row]))
        for request, begin in zip(flight.counts, flight.step.cu_q.tolist(), strict=False):
            if request.status == "finished":
                continue
            self.note_prompt(request, flight, begin)
            if request not in found:
                self.pool.remember(request)
            elif request.status == "running":
                self.scheduler.fork(request)
            elif request.forks:             # preempted meanwhile: they need its prompt once more
                del found[request]
                request.pending -= 1
        for request, drawn in found.items():
            if request.status != "finished" and not request.leader:
                outputs.append(self.take(request, drawn))
        return outputs

    def take(self, request, drawn):
        """The next tokens of a request: the guesses that came true, and one more. An Output."""
        # exercise: append token by token until one ends it; then roll back, remember, finish
        new, text, reason = [], "", None
        request.pending -= request.pending > 0
        for i, (token, scores) in enumerate(drawn):
            if i and request.draft[i - 1] != new[-1]:
                break
            if token < 0:
                reason, request.error = "error", "the scores of the next token are not finite"
                break
            new.append(token)
            request.output.append(token)
            request.token_times.append(self.clock())
            if request.params.logprobs is not None:
                request.logprobs.append(logprobs_of(scores, token, request.params.logprobs))
            reason = finish_reason(request, self.model.config.ends)
            if reason != "stop":
                text += request.writer.add(token, len(request.output))
                reason = "stop" if request.writer.stops.found else reason
            if reason:
                break
        request.num_computed = min(request.num_computed, request.num_computed
                                   - len(request.draft) + max(len(new) - 1, 0))
        request.draft = []
        self.pool.remember(request)
        if reason:
            text += "" if request.writer.stops.found else request.writer.rest()
            self.end(request, reason, request.error)
        return Output(request, new, text, reason)

    def note_prompt(self, request, flight, begin):
        """Log probabilities of the prompt's tokens, where they are wanted. begin: its first row."""
        if request.params.prompt_logprobs is None:
            return
        for row in range(begin, begin + flight.counts[request]):
            at = int(flight.step.positions[row]) + 1
            if at == len(request.prompt_logprobs) + 1 < len(request.prompt):
                request.prompt_logprobs.append(logprobs_of(
                    flight.logits[row], request.prompt[at], request.params.prompt_logprobs))


def to_draw(counts, every):
    """[Draw] of a step: one for each request that has caught up with its tokens, one more for each
    guess, and for each answer that waits for its prompt.

    every: whether the scores have a row for each token, or one for each request
    """
    draws, end = [], 0
    for b, (request, n) in enumerate(counts.items()):
        end += n
        guesses = len(request.draft)
        if request.num_computed < request.num_tokens + request.pending:
            continue
        last = end - 1 if every else b
        draws += [Draw(request, last - guesses + i, i) for i in range(guesses + 1)]
        if request.num_computed == len(request.prompt):
            draws += [Draw(other, last, 0) for other in request.forks]
    return draws


def sampling(draws, device):                        # -> Sampling of (draws,)
    """How each token is sampled."""
    params = [draw.request.params for draw in draws]
    numbers = [uniform(r.seed, r.index, len(r.output) + r.pending + place)
               for r, _, place in draws]
    return Sampling(
        torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device),
        torch.tensor([max(p.top_k, 0) for p in params], dtype=torch.int32, device=device),
        torch.tensor([p.top_p for p in params], dtype=torch.float32, device=device),
        torch.tensor(numbers, dtype=torch.float32, device=device))


# ---- what must hold


def check_engine(engine):
    """Broken where one of the invariants does not hold. Call it after any step."""
    pool, scheduler = engine.pool, engine.scheduler
    running, waiting = scheduler.running, scheduler.waiting
    check_pool(pool, [r.table for r in [*running, *waiting]])
    if len(running) > scheduler.max_seqs:
        raise Broken(f"{len(running)} requests run, at most {scheduler.max_seqs} may")
    if sum(engine.counts.values()) > scheduler.budget:
        raise Broken(f"{sum(engine.counts.values())} tokens in a step of at most "
                     f"{scheduler.budget}")
    for request in waiting:
        if request.table or request.num_computed or request.status != "waiting":
            raise Broken(f"{request.id} waits, with pages or as {request.status}")
    holders = {}
    for request in running:
        known, capacity = request.num_tokens + request.pending, len(request.table) * pool.S
        if request.status != "running" or not request.num_computed <= known <= request.limit:
            raise Broken(f"{request.id}: {request.num_computed} tokens computed of {known}, at "
                         f"most {request.limit}; {request.status}")
        if request.num_computed > capacity:
            raise Broken(f"{request.id}: {request.num_computed} tokens in {capacity} slots")
        for i, page in enumerate(request.table):
            holders.setdefault(page, []).append((request, i))
    for page, held in holders.items():
        end = min([(held[0][1] + 1) * pool.S, *(r.num_computed for r, _ in held)])
        for request, i in held:
            if i != held[0][1] or request.tokens[:end] != held[0][0].tokens[:end]:
                raise Broken(f"page {page} is shared by texts that begin apart")
    if engine.submitted != engine.finished + sum(1 + len(r.forks) for r in [*running, *waiting]):
        raise Broken("a request is neither waiting nor running nor finished")
    if not running and not waiting and pool.used:
        raise Broken(f"nobody is there, and {pool.used} pages are held")
