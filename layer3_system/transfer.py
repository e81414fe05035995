"""Prefill here, decode there: the pages of a prompt go from one engine to another

The first engine computes a prompt and holds its pages. They are held until the transfer has ended,
well or badly. The second goes on behind them: it computes the prompt's last token once more, since
the scores behind it are what an answer begins with. Where the transfer failed it computes all.
"""

from dataclasses import replace

__all__ = ["TransferError", "hand_over", "prefill"]


class TransferError(RuntimeError):
    """Pages that did not arrive."""


def prefill(engine, prompt, params):
    """Queue a prompt for its pages alone: a Request, to be handed over when it is finished."""
    (request,) = engine.submit(prompt, replace(params, max_tokens=1, min_tokens=0, n=1), hold=True)
    return request


def hand_over(request, source, target, params, send, policy="recompute"):
    """Go on in `target` with a request that `source` has prefilled: its [Request] there.

    send(k, v) -> (k, v): the wire, which raises TransferError where it fails; k and v as
    `Pages.read` gives them. policy: then "recompute" the prompt in target, or "fail": TransferError
    """
    if policy not in ("recompute", "fail"):
        raise ValueError(f"hand_over: expected the policy recompute or fail, found {policy!r}")
    try:
        received = send(*source.pages.read(source.held[request]))
    except TransferError:
        if policy == "fail":
            raise
        received = None
    finally:
        source.release(request)
    return target.submit(request.prompt, params, request.id, request.salt, received=received)
