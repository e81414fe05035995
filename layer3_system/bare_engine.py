"""All of an engine but its step: requests come in, results go out. s07 adds the step

B: requests of a step   V: vocabulary
A step that was launched is a Flight. Its results are read when it is committed: at once, or, where
steps overlap, after the next one was launched.
"""

import logging
import time
from itertools import count
from typing import NamedTuple

import torch

from layer1_kernels import Sampling, kernels
from layer2_graph import Step
from layer3_system.penalties import adjusted
from layer3_system.s01_request import (
    Request,
    RequestError,
    SamplingParams,
    finish_reason,
    logprobs_of,
    uniform,
)
from layer3_system.s02_block_pool import Pages
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s06_prefix_cache import PrefixPool
from layer3_system.writer import Writer

log = logging.getLogger(__name__)


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


class BareEngine:
    """What surrounds a step. s07's Engine adds step, forward and end."""

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
        self.model = self.runner = model
        self.tokenizer, self.clock = tokenizer, clock
        self.pool = pool or PrefixPool(min(16 * m.room, 2**16) // 16)
        self.scheduler = scheduler or Scheduler(self.pool)
        self.sample = sample or kernels("torch").sample
        self.drafter, self.overlap = drafter, overlap
        self.flights, self.counts, self.failed = [], {}, []     # of the newest step
        self.submitted = self.finished = 0
        self.held = {}                      # {request that is over: its pages, not yet given back}
        weight = model.embedding
        self.device = weight.device
        self.pages = Pages(m, self.pool.P, self.pool.S, weight.dtype, weight.device)
        self.room = min(m.room, self.pool.P * self.pool.S)
        self.numbers = count()

    def use(self, runner):
        """Compute with another forward, such as g06's GraphRunner on this engine's pages, where one
        row of scores a request is enough."""
        self.runner = runner

    # ---- requests

    def submit(self, prompt, params=None, id=None, salt="", hold=False, received=None):
        """Queue a prompt, [int]; [Request], one for each of its n answers. RequestError says what
        cannot be served.

        hold: keep the pages of an answer that came to its end, until `release`
        received: keys and values of the prompt from elsewhere, as `Pages.read` gives them
        """
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
        first.hold = hold
        first.received = received if params.prompt_logprobs is None else None
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
        beyond = [token for token, _ in params.logit_bias if token >= V]
        if beyond:
            raise RequestError(f"logit_bias: expected tokens from 0 to {V - 1}, found {beyond[0]}")
        if params.n > self.scheduler.max_seqs:
            raise RequestError(f"n: expected at most {self.scheduler.max_seqs}, found {params.n}")

    def abort(self, requests):
        """End requests, whatever they are doing; those that are over stay as they are."""
        for request in requests:
            self.end(request, "abort")

    def keep(self, request, reason):
        """Hold the pages of a request that comes to its end, where somebody wants them."""
        if request.hold and request.status == "running" and reason in ("stop", "length"):
            self.held[request] = list(request.table)
            self.pool.share(request.table)

    def release(self, request):
        """Give back what was held of a request that is over; once."""
        self.pool.release(self.held.pop(request))

    @property
    def busy(self):
        """Whether a step would do anything."""
        return bool(self.scheduler.running or self.scheduler.waiting or self.flights)

    # ---- before a step

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
            if request.received:
                self.pages.write(request.table, *request.received)
                request.received = None
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

    def newest(self):
        """{request: its token that is still being computed}."""
        return {draw.request: flight.tokens[i] for flight in self.flights
                for i, draw in enumerate(flight.draws)}

    def carry_over(self, step, counts):
        """Put tokens that are still being computed into a step that builds on them."""
        newest = self.newest()
        for request, end in zip(counts, step.cu_q[1:].tolist(), strict=True):
            if newest and request.num_computed > request.num_tokens + len(request.draft):
                step.tokens[end - 1] = newest[request]

    def adjust(self, logits, draws):                # (draws, V) -> (draws, V)
        """The scores with what their requests want of them: penalties, min_p, a bias."""
        return adjusted(logits, draws, self.newest())

    # ---- after a step

    def commit(self, flight):
        """Read what a step computed, and tell everybody: [Output]."""
        tokens_of, outputs = {}, []
        for draw, token in zip(flight.draws, flight.tokens.tolist(), strict=True):
            tokens_of.setdefault(draw.request, []).append((token, draw.row))
        for request, begin in zip(flight.counts, flight.step.cu_q.tolist(), strict=False):
            if request.status == "finished":
                continue
            self.note_prompt(request, flight, begin)
            if request not in tokens_of:
                self.pool.cache_pages(request)
            elif not request.forks:
                continue
            elif request.status == "running":
                self.scheduler.fork(request)
            else:                           # preempted meanwhile: they need its prompt once more
                del tokens_of[request]
                request.pending -= 1
        for request, drawn in tokens_of.items():
            if request.status != "finished" and not request.leader:
                outputs.append(self.take(request, drawn, flight.logits))
        return outputs

    def take(self, request, drawn, logits):
        """The next tokens of a request: the guesses that came true, and one more. An Output.

        drawn: [(token, row of logits that it was drawn from)]
        """
        new, text, reason = [], "", None
        request.pending -= request.pending > 0
        for i, (token, row) in enumerate(drawn):
            if i and request.draft[i - 1] != new[-1]:
                break
            if token < 0:
                reason, request.error = "error", "the scores of the next token are not finite"
                break
            new.append(token)
            request.output.append(token)
            request.token_times.append(self.clock())
            if request.params.logprobs is not None:
                request.logprobs.append(
                    logprobs_of(logits[row], token, request.params.logprobs))
            reason = finish_reason(request, self.model.config.ends)
            if reason != "stop":
                text += request.writer.add(token, len(request.output))
                reason = "stop" if request.writer.stops.found else reason
            if reason:
                break
        if request.draft:
            request.num_computed -= max(len(request.draft) - max(len(new) - 1, 0), 0)
            request.draft = []
        self.pool.cache_pages(request)
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


# ---- what is sampled, and how


def draws_of(pairs):
    """[Draw] of (request, row): one for each guess, too, from the rows before. It ends with the one
    that follows the last guess."""
    return [Draw(request, row - len(request.draft) + i, i)
            for request, row in pairs for i in range(len(request.draft) + 1)]


def sampling(draws, device):                        # -> Sampling of (draws,)
    """How each token is sampled."""
    params = [draw.request.params for draw in draws]
    numbers = [uniform(r.seed, r.index, len(r.output) + r.pending + place)
               if r.params.temperature else 0.0 for r, _, place in draws]     # greedy needs none
    return Sampling(
        torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device),
        torch.tensor([max(p.top_k, 0) for p in params], dtype=torch.int32, device=device),
        torch.tensor([p.top_p for p in params], dtype=torch.float32, device=device),
        torch.tensor(numbers, dtype=torch.float32, device=device))
