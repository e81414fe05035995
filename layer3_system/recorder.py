"""What an engine did, step by step, as plain data

A recorder takes notes after each step, in dicts, lists, strings and numbers alone, so that they can
be written as JSON: the figures of pictures/recorded.py and the live page of a server are drawn from
the same notes.
"""

from collections import deque
from typing import Any

from layer3_system.engine.outputs import Output
from layer3_system.s01_request import Request
from layer3_system.s07_engine import Engine

__all__ = ["Recorder", "pages_of"]


def name_of(request: Request) -> str:
    """A request's name in notes: its id, and which answer it is if there are several."""
    return request.id if request.params.n == 1 else f"{request.id}/{request.index}"


def pages_of(engine: Engine) -> dict[str, Any]:
    """Which request holds which page now:

    {"pages": P, "slots": S,
     "refs": [tables that hold it, for each page],
     "remembered": [free pages whose contents are still known],
     "requests": {name of a running request: {"table": [its pages, in order],
                                              "computed": tokens with keys and values in them}}}
    """
    pool = engine.pool
    return {"pages": pool.P, "slots": pool.S, "refs": list(pool.refs),
            "remembered": [page for page in pool.free if pool.is_cached(page)],
            "requests": {name_of(r): {"table": list(r.table), "computed": r.num_computed}
                         for r in engine.scheduler.running}}


class Recorder:
    """Takes notes of an engine: call recorder.step() in place of engine.step().

    history: a note for each step, oldest first:
    {"step": its number, from 0,
     "counts": {name: tokens that it computed}, "prompts": {name: of those, tokens of its prompt},
     "new": {name: [tokens that it wrote]},
     "running": [names], "waiting": [names], in their order, after it,
     "preempted": [names], "ended": {name: reason}, "errors": {name: what went wrong},
     "pages": what pages_of gives, if wanted}
    """

    def __init__(self, engine: Engine, pages: bool = False, keep: int | None = None):
        """pages: note them, too, at a cost of O(P) a step
        keep: how many of the newest notes; None: all
        """
        self.engine = engine
        self.pages = pages
        self.steps = 0
        self.history: deque[dict[str, Any]] = deque(maxlen=keep)
        self.seen: dict[Request, int] = {}                  # {request: its preemptions so far}

    def step(self) -> list[Output]:
        """Take a step and note it: the outputs of the step."""
        self.look()
        begun = {r: r.num_computed for r in self.engine.scheduler.running}
        outputs = self.engine.step()
        self.look()
        self.history.append(self.note(begun, outputs))
        self.steps += 1
        return outputs

    def run(self, steps: int = 1000) -> list[dict[str, Any]]:
        """Step until no request is left, at most `steps` times: the notes so far, as a list."""
        for _ in range(steps):
            if not self.engine.busy:
                break
            self.step()
        return list(self.history)

    def look(self) -> None:
        """Note the requests that are new."""
        for each in (*self.engine.scheduler.running, *self.engine.scheduler.waiting):
            for request in (each, *each.forks):
                self.seen.setdefault(request, 0)

    def note(self, begun: dict[Request, int], outputs: list[Output]) -> dict[str, Any]:
        """The note of a step. begun: {request: tokens computed before it}"""
        engine = self.engine
        over = [r for r in self.seen if r.status == "finished"]
        note: dict[str, Any] = {
            "step": self.steps, "counts": {}, "prompts": {}, "new": {},
            "running": [name_of(r) for r in engine.scheduler.running],
            "waiting": [name_of(r) for r in engine.scheduler.waiting],
            "preempted": [name_of(r) for r, n in self.seen.items() if r.preemptions > n],
            "ended": {name_of(r): r.reason for r in over},
            "errors": {name_of(r): r.error for r in over if r.error}}
        for request, n in engine.counts.items():
            begin = begun.get(request, request.num_computed - n)
            note["counts"][name_of(request)] = n
            if (part := min(n, len(request.prompt) - begin)) > 0:
                note["prompts"][name_of(request)] = part
        for output in outputs:
            note["new"].setdefault(name_of(output.request), []).extend(output.tokens)
        if self.pages:
            note["pages"] = pages_of(engine)
        self.seen = {r: r.preemptions for r in self.seen if r.status != "finished"}
        return note
