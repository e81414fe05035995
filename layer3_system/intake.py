"""Requests on their way into an engine: what is refused, and what a prompt becomes"""

from collections.abc import Callable
from typing import Protocol

from layer2_graph import Config
from layer3_system.s01_request import Request, RequestError, SamplingParams
from layer3_system.writer import Writer


class Codec(Protocol):
    """A tokenizer, as an engine takes one."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str: ...


def check_prompt(prompt: list[int], params: SamplingParams, V: int, room: int,
                 max_seqs: int) -> None:
    """RequestError if an engine cannot serve a prompt.

    V: vocabulary    room: tokens of a context, prompt and answer together
    """
    if not prompt:
        raise RequestError("prompt: expected one token or more, found none")
    if not all(isinstance(t, int) and 0 <= t < V for t in prompt):
        wrong = next(t for t in prompt if not (isinstance(t, int) and 0 <= t < V))
        raise RequestError(f"prompt: expected tokens from 0 to {V - 1}, found {wrong!r}")
    if len(prompt) >= room:
        raise RequestError(f"prompt: expected at most {room - 1} tokens, since the context has "
                           f"room for {room} with the answer; found {len(prompt)}")
    if params.max_tokens is not None and len(prompt) + params.max_tokens > room:
        raise RequestError(f"max_tokens: expected at most {room - len(prompt)} after a prompt "
                           f"of {len(prompt)} tokens, found {params.max_tokens}")
    beyond = [token for token, _ in params.logit_bias if token >= V]
    if beyond:
        raise RequestError(f"logit_bias: expected tokens from 0 to {V - 1}, found {beyond[0]}")
    if params.n > max_seqs:
        raise RequestError(f"n: expected at most {max_seqs}, found {params.n}")


def requests_of(prompt: list[int], params: SamplingParams, id: str, salt: str, now: float,
                room: int, decode: Callable[[list[int]], str]) -> list[Request]:
    """[Request], one for each of a prompt's n answers. The first leads: the others wait in its
    `forks` until its prompt is computed, and share its seed.

    now: the time of arrival    decode: a tokenizer's, from tokens to text
    """
    limit = room if params.max_tokens is None else len(prompt) + params.max_tokens
    answers = [Request(id, list(prompt), params, index, salt, arrival=now, limit=limit)
               for index in range(params.n)]
    leader, *others = answers
    for request in answers:
        request.seed = leader.seed
        request.writer = Writer(decode, request)
    leader.forks = list(others)
    for other in others:
        other.leader = leader
    return answers


def default_pages(config: Config, S: int) -> int:
    """Pages of S slots for 16 whole contexts of a model, for at most 2¹⁶ tokens."""
    return max(min(16 * config.room, 2**16) // S, 1)
