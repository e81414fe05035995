"""What a request makes of the tokens that were sampled for it"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from layer3_system.flight import Flight
from layer3_system.s01_request import Request, finish_reason, logprobs_of


class Output(NamedTuple):
    """News of a request: its new tokens, the text to show now, and at the end why it ended."""

    request: Request
    tokens: list[int]
    text: str
    reason: str | None


def extend(request: Request, drawn: list[tuple[int, int]], logits: torch.Tensor,
           ends: Sequence[int], clock: Callable[[], float]) -> Output:
    """Add the next tokens to a request: the guesses that came true, and one more. An Output.

    drawn: [(token, row of logits that it was drawn from)]    ends: tokens that end a text
    clock: gives the time of each token, in seconds
    """
    new: list[int] = []
    text = ""
    reason = None
    request.pending -= request.pending > 0
    for i, (token, row) in enumerate(drawn):
        if i and request.draft[i - 1] != new[-1]:
            break
        if token < 0:
            reason = "error"
            request.error = "the scores of the next token are not finite"
            break
        new.append(token)
        request.output.append(token)
        request.token_times.append(clock())
        if request.params.logprobs is not None:
            request.logprobs.append(logprobs_of(logits[row], token, request.params.logprobs))
        reason = finish_reason(request, ends)
        if reason != "stop":
            text += request.writer.add(token, len(request.output))
            reason = "stop" if request.writer.stops.found else reason
        if reason:
            break
    if request.draft:
        guesses_kept = max(len(new) - 1, 0)
        request.num_computed -= max(len(request.draft) - guesses_kept, 0)
        request.draft = []
    if reason and not request.writer.stops.found:
        text += request.writer.rest()
    return Output(request, new, text, reason)


def note_prompt(request: Request, flight: Flight, begin: int) -> None:
    """Note the log probabilities of the prompt's tokens if they are wanted. begin: the request's
    first row."""
    if request.params.prompt_logprobs is None:
        return
    for row in range(begin, begin + flight.counts[request]):
        at = int(flight.step.positions[row]) + 1
        if at == len(request.prompt_logprobs) + 1 < len(request.prompt):
            request.prompt_logprobs.append(logprobs_of(
                flight.logits[row], request.prompt[at], request.params.prompt_logprobs))
