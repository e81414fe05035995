"""What becomes of the tokens of a step: answers that grow, their text, and why they end"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from layer3_system.engine.drafts import Drafter
from layer3_system.engine.draws import UNDRAWN, Flight
from layer3_system.s01_request import Request, finish_reason, logprobs_of
from layer3_system.s02_block_pool import BlockPool
from layer3_system.s03_static_batching import StaticScheduler
from layer3_system.s04_continuous_batching import Scheduler


class Output(NamedTuple):
    """News of a request: its new tokens, the text to show now, and at the end why it ended."""

    request: Request
    tokens: list[int]
    text: str
    reason: str | None


class Outputs:
    """Reads what steps computed.
    It ends no request; an Output says which one is over."""

    def __init__(self, pool: BlockPool, scheduler: Scheduler | StaticScheduler,
                 ends: Sequence[int], clock: Callable[[], float],
                 drafter: Drafter | None = None):
        """ends: tokens that end a text    clock: gives the time of each token, in seconds
        drafter: what makes the requests' guesses
        """
        self.pool = pool
        self.scheduler = scheduler
        self.ends = ends
        self.clock = clock
        self.drafter = drafter

    def commit(self, flight: Flight) -> Iterator[Output]:
        """An Output of each request with news.
        A request that is over is to be ended before the
        next Output is asked for: the pages that it gives back come first."""
        drawn: dict[Request, list[tuple[int, int]]] = {}
        for draw, token in zip(flight.draws, flight.tokens.tolist(), strict=True):
            drawn.setdefault(draw.request, []).append((token, draw.row))
        for request, begin in zip(flight.counts, flight.batch.cu_q.tolist(), strict=False):
            if request.status == "finished":
                continue
            note_prompt(request, flight, begin)
            if request not in drawn:
                self.pool.cache_pages(request)
            elif request.forks and request.status == "running":
                self.scheduler.fork(request)
            elif request.forks:             # preempted meanwhile: its forks need the prompt again
                del drawn[request]
                request.pending -= 1
        for request, tokens in drawn.items():
            if request.status != "finished" and not request.leader:
                yield self.take(request, tokens, flight.logits)

    def take(self, request: Request, drawn: list[tuple[int, int]],
             logits: torch.Tensor) -> Output:
        """Add the next tokens to a request: the guesses that came true, and one more.
        An Output.

        drawn: [(token, row of logits that it was drawn from)]; a token of -1 is an error
        """
        tokens: list[int] = []
        text = ""
        reason = None
        if request.pending:
            request.pending -= 1
        for i, (token, row) in enumerate(drawn):
            if token == UNDRAWN or i and request.draft[i - 1] != tokens[-1]:
                break
            if token < 0:
                reason = "error"
                request.error = "the scores of the next token are not finite"
                break
            tokens.append(token)
            piece, reason = self.add(request, token, logits[row])
            text += piece
            if reason:
                break
        if request.draft:
            self.drafter.settle(request, max(len(tokens) - 1, 0), self.pool)
        else:
            self.pool.cache_pages(request)
        if reason in ("stop", "length") and not request.writer.stops.found:
            text += request.writer.rest()
        return Output(request, tokens, text, reason)

    def add(self, request: Request, token: int,
            scores: torch.Tensor) -> tuple[str, str | None]:            # (V,)
        """Add a token to an answer: (the text to show, why the answer ends with it or None)."""
        try:
            return self.read(request, token, scores)
        except Exception as error:              # a tokenizer or a grammar may raise anything
            request.error = f"{type(error).__name__}: {error}"
            return "", "error"

    def read(self, request: Request, token: int,
             scores: torch.Tensor) -> tuple[str, str | None]:           # (V,)
        """As `add`, with whatever a tokenizer or a grammar raises."""
        request.output.append(token)
        request.token_times.append(self.clock())
        if request.guide:
            request.guide.accept(token)
        if request.params.logprobs is not None:
            request.logprobs.append(logprobs_of(scores, token, request.params.logprobs))
        reason = finish_reason(request, self.ends)
        if reason == "stop":
            return "", reason
        text = request.writer.add(token, len(request.output))
        return text, "stop" if request.writer.stops.found else reason


def note_prompt(request: Request, flight: Flight, begin: int) -> None:
    """Note the log probabilities of the prompt's tokens if they are wanted. begin: the request's
    first row."""
    if request.params.prompt_logprobs is None:
        return
    for row in range(begin, begin + flight.counts[request]):
        at = int(flight.batch.positions[row]) + 1
        if at == len(request.prompt_logprobs) + 1 < len(request.prompt):
            request.prompt_logprobs.append(logprobs_of(
                flight.logits[row], request.prompt[at], request.params.prompt_logprobs))
