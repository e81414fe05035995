"""Two sides of a transfer: an engine that computes prompts, and one that writes answers

They know no process and no wire: messages come in and go out as tuples, and parts go to `post`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from layer2_graph import Batch
from layer3_system.disaggregation.parts import (
    Part,
    StreamingPages,
    Ticket,
    page_bytes,
    part_of,
    to_pages,
)
from layer3_system.model import Runner
from layer3_system.s01_request import Request, SamplingParams
from layer3_system.s02_block_pool import Pages, pages_for
from layer3_system.s07_engine import Engine, Output
from layer3_system.s12_disaggregation import Inbox, Outbox, parts_done

Key = tuple[str, int]       # a request's id and which attempt at it
Post = Callable[[Any, Callable[[], Part]], Ticket]


class Announcing:
    """A Runner that says when a step is computed, layers that no attention announced included."""

    def __init__(self, runner: Runner, announce: Callable[[], None]):
        self.runner = runner
        self.announce = announce

    def forward(self, batch: Batch, cache: Pages) -> Tensor:            # (B, V)
        logits = self.runner.forward(batch, cache)
        self.announce()
        return logits


class Side:
    """An engine, and what looks on.

    observers: called as those of a Bridge, stepped(engine, outputs) and aborted(requests)
    news: what the router is to be told, tuples that `Router.hear` takes
    """

    def __init__(self, engine: Engine):
        self.engine = engine
        self.news: list[tuple] = []
        self.observers: Sequence[Any] = ()

    def compute_step(self) -> list[Output]:
        """A step, if there is one to do."""
        if not self.engine.busy:
            return []
        outputs = self.engine.step()
        for observer in self.observers:
            observer.stepped(self.engine, outputs)
        return outputs

    def end(self, request: Request) -> None:
        """End a request, wherever it is."""
        if request.status != "finished":
            self.engine.abort([request])
            for observer in self.observers:
                observer.aborted([request])


class PrefillSide(Side):
    """An engine that computes prompts and sends their pages.

    post(address, read) -> Ticket: send the part that read() gives; its page stays as it is until
    the ticket is not pending.    lease: seconds after the last page is posted
    """

    def __init__(self, engine: Engine, post: Post, lease: float = 30.0,
                 outbox: type[Outbox] = Outbox):
        super().__init__(engine)
        self.post = post
        self.lease = lease
        self.outbox = outbox
        self.open: dict[Key, tuple[Request, Outbox]] = {}
        self.settled: deque[Key] = deque(maxlen=1024)       # before they began
        self.keys: dict[Request, tuple[Key, Any]] = {}      # and to whom its parts go
        self.sent: dict[Request, int] = {}                  # tokens whose pages were posted
        self.final: dict[Request, list[int]] = {}           # places that this step makes final
        self.layers: set[int] = set()                       # posted in this step
        self.L = engine.model.config.L
        engine.pages = StreamingPages(engine.pages, self.post_layer)
        engine.use(Announcing(engine.runner, self.post_rest))

    def begin(self, id: str, attempt: int, prompt: list[int], address: Any,
              salt: str = "") -> None:
        """Queue a prompt, unless it is settled already.
        Its one token is thrown away: the decode side draws it."""
        if (id, attempt) in self.settled:
            self.settled.remove((id, attempt))
            return
        (request,) = self.engine.submit(prompt, SamplingParams(1, temperature=0), id, salt)
        self.open[id, attempt] = request, self.outbox(self.engine.pool, float("inf"))
        self.keys[request] = (id, attempt), address
        self.sent[request] = 0

    def settle(self, id: str, attempt: int, why: str) -> None:
        """News of a receiver.  why: acknowledged, aborted or dead

        It may come before `begin`, which goes by way of the decode side.
        """
        if (id, attempt) not in self.open:
            self.settled.append((id, attempt))
            return
        request, outbox = self.open[id, attempt]
        if why == "acknowledged":
            outbox.acknowledged = True
        elif why == "aborted":
            outbox.aborted = True
        else:
            outbox.receiver_alive = False
        self.end(request)

    def step(self, now: float) -> list[Key]:
        """Compute a step if there is one; give pages back: the keys of those that are over."""
        self.compute_step()
        for request, outbox in self.open.values():
            if request.status == "finished" and outbox.lease_ends == float("inf"):
                outbox.lease_ends = now + self.lease
        over = [key for key, (request, outbox) in self.open.items()
                if request.status == "finished" and outbox.settle(now)]
        for key in over:
            request, _ = self.open.pop(key)
            self.engine.intake.held.pop(request, None)
            del self.keys[request], self.sent[request]
        return over

    def post_layer(self, layer: int) -> None:
        """Post what this step makes final in a layer that was just computed."""
        if not self.layers or layer in self.layers:     # a step begins, perhaps after one that fell
            self.layers = set()
            self.final = self.final_places()
        self.layers.add(layer)
        for request, places in self.final.items():
            key, address = self.keys[request]
            _, outbox = self.open[key]
            for place in places:
                read = partial(part_of, self.engine.pages, *key, layer, place,
                               request.table[place])
                outbox.tickets.append(self.post(address, read))

    def post_rest(self) -> None:
        """The step is computed: post the layers that were not announced.
        Only now it is sent: one that fell is computed again, and its parts posted again."""
        for layer in sorted(set(range(self.L)) - self.layers):
            self.post_layer(layer)
        for request in self.final:
            self.sent[request] = min(request.num_computed, len(request.prompt))
        self.layers = set()

    def final_places(self) -> dict[Request, list[int]]:
        """{request: places} of this step; their pages are held from now on."""
        S = self.engine.pool.S
        final = {}
        for request in self.engine.computing:
            N = len(request.prompt)
            begin = self.sent[request]              # pages from the cache are sent, too
            end = min(request.num_computed, N)
            if begin < end and request.status == "running":
                if not begin:
                    self.news.append(("found", *self.keys[request][0], request.num_cached))
                final[request] = parts_done(begin, end, N, S)
                _, outbox = self.open[self.keys[request][0]]
                outbox.hold([request.table[place] for place in final[request]])
                self.engine.intake.held[request] = outbox.table     # check_engine counts them
        return final


class Expected(NamedTuple):
    """A prompt whose parts are on their way."""

    box: Inbox
    prompt: list[int]
    params: SamplingParams
    number: int                     # which of several answers to the prompt
    arrival: float                  # of the request at the router, seconds
    until: float                    # when patience ends


class DecodeSide(Side):
    """An engine that writes answers to prompts computed elsewhere.

    patience: seconds for all parts of a prompt; then it is computed here
    """

    def __init__(self, engine: Engine, patience: float = 10.0, inbox: type[Inbox] = Inbox):
        super().__init__(engine)
        self.patience = patience
        self.inbox = inbox
        self.boxes: dict[Key, Expected] = {}
        self.requests: dict[Key, Request] = {}
        self.keys: dict[Request, Key] = {}
        self.recomputed = 0
        self.own: set[Key] = set()                  # whose prompts are computed here

    def expect(self, id: str, attempt: int, prompt: list[int], params: SamplingParams,
               index: int, arrival: float, now: float) -> None:
        """Parts of this prompt will come."""
        n = pages_for(len(prompt), self.engine.pool.S)
        box = self.inbox(id, attempt, self.engine.model.config.L, n, page_bytes(self.engine.pages))
        self.boxes[id, attempt] = Expected(box, prompt, params, index, arrival,
                                           now + self.patience)

    def arrive(self, part: Part) -> None:
        """Take a part.
        Drop one that is not expected: its request is over, or was begun again."""
        key = part.id, part.attempt
        if key in self.boxes and self.boxes[key].box.accept(part):
            expected = self.boxes.pop(key)
            box = expected.box
            self.start(key, expected, to_pages(box.k, box.v, self.engine.pages))

    def compute(self, id: str, attempt: int) -> None:
        """The parts will not come: compute the prompt here."""
        if (id, attempt) in self.boxes:
            self.recomputed += 1
            self.own.add((id, attempt))
            self.start((id, attempt), self.boxes.pop((id, attempt)), None)

    def start(self, key: Key, expected: Expected, received: Any) -> None:
        (request,) = self.engine.submit(expected.prompt, expected.params, key[0],
                                        received=received)
        request.index = expected.number
        request.arrival = expected.arrival
        self.requests[key] = request
        self.keys[request] = key
        self.news.append(("arrived", *key))

    def abort(self, id: str, attempt: int) -> None:
        """The client has left."""
        self.boxes.pop((id, attempt), None)
        if (id, attempt) in self.requests:
            self.end(self.requests[id, attempt])
            self.forget((id, attempt))

    def step(self, now: float) -> None:
        """Compute a step if there is one; lose patience."""
        for key, expected in list(self.boxes.items()):
            if now >= expected.until:
                self.compute(*key)
        self.report(self.compute_step())

    def report(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            request = output.request
            key = self.keys[request]
            logprobs = request.logprobs[len(request.logprobs) - len(output.tokens):] \
                if request.logprobs else []
            self.news.append(("tokens", *key, output.tokens, output.text, output.reason, logprobs,
                              request.num_cached if key in self.own else None, request.error))
            if output.reason:
                self.forget(key)

    def forget(self, key: Key) -> None:
        """A request is over."""
        del self.keys[self.requests.pop(key)]
        self.own.discard(key)
