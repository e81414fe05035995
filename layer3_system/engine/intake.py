"""Requests on their way into an engine: what is refused, and what a prompt becomes"""

from collections.abc import Callable
from itertools import count
from typing import Protocol

import torch

from layer2_graph import Config
from layer3_system.engine.guide import Guide
from layer3_system.engine.writer import Writer
from layer3_system.s01_request import Request, RequestError, SamplingParams
from layer3_system.s02_block_pool import BlockPool
from layer3_system.s03_static_batching import StaticScheduler
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.sampling_params import StructuredOutputs


class Codec(Protocol):
    """A tokenizer, as an engine takes one."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str: ...


class Grammars(Protocol):
    """Makes the Guide of an answer that must match something."""

    def guide(self, form: StructuredOutputs) -> Guide: ...


class Intake:
    """Refuses prompts that an engine cannot serve and queues the others.

    room: tokens of a context, prompt and answer together
    held: {finished request: its pages, which are still kept}
    """

    def __init__(self, config: Config, tokenizer: Codec, pool: BlockPool,
                 scheduler: Scheduler | StaticScheduler, clock: Callable[[], float],
                 grammars: Grammars | None = None, state: bool = False):
        """state: the model keeps one of each request: answers to one prompt do not share it, and
        pages that go elsewhere would not be all there is
        """
        self.V = config.V
        self.room = min(config.room, pool.P * pool.S)
        self.tokenizer = tokenizer
        self.pool = pool
        self.scheduler = scheduler
        self.clock = clock
        self.grammars = grammars
        self.state = state
        self.held: dict[Request, list[int]] = {}
        self.numbers = count()

    def submit(self, prompt: list[int], params: SamplingParams, id: str | None = None,
               salt: str = "", hold: bool = False,
               received: tuple[torch.Tensor, torch.Tensor] | None = None) -> list[Request]:
        """Queue a prompt: its [Request], as `Engine.submit` has it."""
        self.check(prompt, params)
        if self.state and (hold or received):
            raise RequestError("hold and received: expected neither for a model that keeps a "
                               "state, which pages do not hold")
        id = id or f"request-{next(self.numbers)}"
        answers = requests_of(prompt, params, id, salt, self.clock(), self.room,
                              self.tokenizer.decode, not self.state)
        if params.structured_outputs:
            for request in answers:
                request.guide = self.grammars.guide(params.structured_outputs)
        first = answers[0]
        first.hold = hold
        first.received = received if params.prompt_logprobs is None else None
        for request in answers:
            if request.leader is None:
                self.scheduler.add(request)
        return answers

    def check(self, prompt: list[int], params: SamplingParams) -> None:
        """RequestError if a prompt cannot be served.
        It reads only what never changes."""
        if not prompt:
            raise RequestError("prompt: expected one token or more, found none")
        wrong = [t for t in prompt if not (isinstance(t, int) and 0 <= t < self.V)]
        if wrong:
            raise RequestError(f"prompt: expected tokens from 0 to {self.V - 1}, found "
                               f"{wrong[0]!r}")
        if len(prompt) >= self.room:
            raise RequestError(f"prompt: expected at most {self.room - 1} tokens, since the "
                               f"context has room for {self.room} with the answer; found "
                               f"{len(prompt)}")
        left = self.room - len(prompt)
        if params.max_tokens is not None and params.max_tokens > left:
            raise RequestError(f"max_tokens: expected at most {left} after a prompt of "
                               f"{len(prompt)} tokens, found {params.max_tokens}")
        beyond = [token for token, _ in params.logit_bias if token >= self.V]
        if beyond:
            raise RequestError(f"logit_bias: expected tokens from 0 to {self.V - 1}, found "
                               f"{beyond[0]}")
        if params.n > self.scheduler.max_seqs:
            raise RequestError(f"n: expected at most {self.scheduler.max_seqs}, found {params.n}")
        if params.structured_outputs:
            if self.grammars is None:
                raise RequestError("structured_outputs: this engine was made without grammars")
            self.grammars.guide(params.structured_outputs)

    def keep(self, request: Request) -> None:
        """Before an answer ends by itself: hold its pages if that was form for."""
        if request.hold and request.status == "running":
            self.held[request] = list(request.table)
            self.pool.share(request.table)

    def release(self, request: Request) -> None:
        """Give back the pages held for a finished request; once."""
        self.pool.release(self.held.pop(request))


def requests_of(prompt: list[int], params: SamplingParams, id: str, salt: str, now: float,
                room: int, decode: Callable[[list[int]], str],
                shared: bool = True) -> list[Request]:
    """[Request], one for each of a prompt's n answers, with one seed.
    The first leads: the others wait in its `forks` until its prompt is computed.

    now: the time of arrival    decode: a tokenizer's, from tokens to text
    shared: whether they can go on from one computed prompt; else each computes its own
    """
    limit = room if params.max_tokens is None else len(prompt) + params.max_tokens
    answers = [Request(id, list(prompt), params, index, salt, arrival=now, limit=limit)
               for index in range(params.n)]
    leader, *others = answers
    for request in answers:
        request.seed = leader.seed
        request.writer = Writer(decode, request)
    if shared:
        leader.forks = list(others)
        for other in others:
            other.leader = leader
    return answers


def default_pages(config: Config, S: int) -> int:
    """Pages of S slots for 16 whole contexts of a model, for at most 2¹⁶ tokens."""
    return max(min(16 * config.room, 2**16) // S, 1)
