"""Prefill here, decode there: the pages of a prompt go from one engine to another

The first engine computes a prompt and holds its pages until the transfer has ended, well or badly.
The second continues from them: it computes the prompt's last token again, since an answer begins
with the scores after it.
If the transfer failed, it computes the whole prompt.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from layer3_system.s01_request import Request, SamplingParams

if TYPE_CHECKING:
    from layer3_system.s07_engine import Engine

__all__ = ["TransferError", "hand_over", "prefill"]


class TransferError(RuntimeError):
    """Pages that did not arrive."""


def prefill(engine: "Engine", prompt: list[int], params: SamplingParams) -> Request:
    """Queue a prompt for its pages alone: a Request, to be handed over when it is finished."""
    (request,) = engine.submit(prompt, replace(params, max_tokens=1, min_tokens=0, n=1), hold=True)
    return request


def hand_over(request: Request, source: "Engine", target: "Engine", params: SamplingParams,
              send: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
              policy: str = "recompute") -> list[Request]:
    """Continue in `target` a request that `source` has prefilled: its [Request] there.

    send(k, v) -> (k, v): the wire, which raises TransferError if it fails; k and v as `Pages.read`
    gives them. policy: then "recompute" the prompt in target, or "fail" with the TransferError
    """
    if policy not in ("recompute", "fail"):
        raise ValueError(f"hand_over: expected the policy recompute or fail, found {policy!r}")
    received = None
    try:
        if request not in source.intake.held:           # its step failed
            raise TransferError(request.error or f"{request.id} holds no pages")
        received = send(*source.pages.read(source.intake.held[request]))
    except TransferError:
        if policy == "fail":
            raise
    finally:
        if request in source.intake.held:
            source.release(request)
    return target.submit(request.prompt, params, request.id, request.salt, received=received)
