"""The router: which process gets a request, and what happens to it when one of them dies

It starts nothing and waits for nothing: messages go to `send`, news comes in by methods.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, NamedTuple

from layer3_system.s01_request import Request, RequestError, SamplingParams
from layer3_system.s02_block_pool import pages_for
from layer3_system.s06_prefix_cache import HashChain
from layer3_system.s12_disaggregation import DecodeLoad, PrefillLoad, choose_workers

ATTEMPTS = 5            # at a request: one that ends every process that it meets is given up
LEAD = 4                # answers that a replica may run more than another for a longer prefix


@dataclass(eq=False)
class Call:
    """A client's request on its way."""

    request: Request                # never in an engine; it has the tokens that the client has
    names: list[bytes]              # of its full pages
    attempt: int = 0
    prefill: int | None = None      # where its prompt is, until that has arrived
    decode: int | None = None
    todo: int = 0                   # tokens to compute at the prefill worker
    text: str = ""                  # that the client has
    again: list[int] = field(default_factory=list)      # that this attempt has written
    again_text: str = ""

    @property
    def answer(self) -> int:
        """Tokens of the answer, at most."""
        return self.request.limit - len(self.request.prompt)


class Router:
    """Calls, and the workers that serve them.

    send(kind, number, message): a tuple for worker `number`; kind is "prefill" or "decode"
    outputs: [(id, tokens, text, reason)] for clients, taken by whoever reads them
    """

    def __init__(self, prefills: int, decodes: int, pages: int, S: int, room: int,
                 send: Callable[[str, int, tuple], None], choose=choose_workers):
        """pages: of each worker, S slots each    room: tokens of a context"""
        self.pages = pages
        self.S = S
        self.room = min(room, pages * S)
        self.send = send
        self.choose = choose
        self.prefills: dict[int, OrderedDict[bytes, None]] = {}     # names, the living alone
        self.decodes: set[int] = set()
        self.waiting: deque[Call] = deque()
        self.calls: dict[str, Call] = {}
        self.outputs: list[tuple[str, list[int], str, str | None]] = []
        for kind, count in (("prefill", prefills), ("decode", decodes)):
            for number in range(count):
                self.came(kind, number)

    # ---- clients

    def submit(self, id: str, prompt: list[int], params: SamplingParams, salt: str = "",
               index: int = 0) -> Request:
        """A request.
        RequestError if no worker could ever serve it.

        index: which of several answers to its prompt, which have one seed
        """
        if params.n != 1 or params.prompt_logprobs is not None:
            raise RequestError("n, prompt_logprobs: expected one answer and no scores of the "
                               "prompt: its pages alone are sent")
        limit = self.room if params.max_tokens is None else len(prompt) + params.max_tokens
        if not prompt or limit > self.room or len(prompt) >= limit:
            raise RequestError(f"prompt: expected at least one token, and at most {self.room} "
                               f"with the answer; found {len(prompt)}, up to {limit}")
        request = Request(id, list(prompt), params, index, salt, limit=limit)
        names = HashChain().names(request, (len(prompt) - 1) // self.S, self.S)
        self.calls[id] = Call(request, names)
        self.waiting.append(self.calls[id])
        self.route()
        return request

    def abort(self, id: str) -> None:
        """The client has left."""
        call = self.calls.pop(id, None)
        if call is None:
            return
        if call in self.waiting:
            self.waiting.remove(call)
        else:
            self.tell_prefill(call, "aborted")
            self.send("decode", call.decode, ("abort", id, call.attempt))
            self.route()

    # ---- choices

    def route(self) -> None:
        """Hand out what waits, first come, first served, while there is room."""
        while self.waiting and self.decodes:
            choice = self.pick(self.waiting[0])
            if choice is None:
                return
            self.begin(self.waiting.popleft(), *choice)

    def pick(self, call: Call) -> tuple[int | None, int] | None:
        """The numbers of a prefill worker and of a decode worker.

        None in place of the first: there are no prefill workers.
        None alone: no worker has room.
        """
        decodes = sorted(self.decodes)
        prefills = sorted(self.prefills)
        choice = self.choose(call.names, len(call.request.prompt), call.answer, self.S,
                             [self.prefill_load(i) for i in prefills] or [PrefillLoad(0, ())],
                             [self.decode_load(j) for j in decodes])
        return choice and (prefills[choice[0]] if prefills else None, decodes[choice[1]])

    def prefill_load(self, i: int) -> PrefillLoad:
        queue = sum(call.todo for call in self.calls.values() if call.prefill == i)
        return PrefillLoad(queue, self.prefills[i])

    def decode_load(self, j: int) -> DecodeLoad:
        running = self.calls_of(j)
        used = sum(pages_for(call.request.limit, self.S) for call in running)
        return DecodeLoad(self.pages - used, len(running))

    def calls_of(self, j: int) -> list[Call]:
        """Those of decode worker j."""
        return [call for call in self.calls.values() if call.decode == j]

    def begin(self, call: Call, i: int | None, j: int) -> None:
        """Start an attempt: prefill worker i, decode worker j; i None: all of it at j."""
        call.attempt += 1
        call.prefill = i
        call.decode = j
        call.again = []
        call.again_text = ""
        request = call.request
        seed = (request.seed + 2**63) % 2**64 - 2**63       # as SamplingParams take it, signed
        params = replace(request.params, seed=seed)         # so each attempt writes the same
        self.send("decode", j, ("expect", request.id, call.attempt, request.prompt, params,
                                request.index, request.arrival))
        if i is None:
            self.send("decode", j, ("compute", request.id, call.attempt))
            return
        call.todo = len(request.prompt) - hits(call.names, self.prefills[i]) * self.S
        self.remember(self.prefills[i], call.names)
        self.send("prefill", i, ("begin", request.id, call.attempt, request.prompt, j,
                                 request.salt))

    def remember(self, own: OrderedDict[bytes, None], names: Sequence[bytes]) -> None:
        """What a worker has in its pages, roughly: the newest names."""
        for name in names:
            own.pop(name, None)
            own[name] = None
        while len(own) > self.pages:
            own.popitem(last=False)

    # ---- news of workers

    def hear(self, what: str, *values: Any) -> None:
        """News of a side, as sides have it."""
        receivers: dict[str, Callable[..., None]] = {
            "found": self.found, "arrived": self.arrived, "tokens": self.wrote}
        receivers[what](*values)

    def found(self, id: str, attempt: int, cached: int) -> None:
        """A prefill worker had some tokens of a prompt in its pages."""
        call = self.calls.get(id)
        if call and call.attempt == attempt:
            call.request.num_cached = cached

    def arrived(self, id: str, attempt: int) -> None:
        """A decode worker has all pages of a prompt, or will compute them itself."""
        call = self.calls.get(id)
        if call and call.attempt == attempt:
            self.tell_prefill(call, "acknowledged")

    def tell_prefill(self, call: Call, why: str) -> None:
        """The prefill worker's part of a call is over."""
        if call.prefill is not None:
            self.send("prefill", call.prefill, ("settle", call.request.id, call.attempt, why))
        call.prefill = None

    def wrote(self, id: str, attempt: int, tokens: list[int], text: str, reason: str | None,
              logprobs: Sequence[dict[int, float]] = (), cached: int | None = None,
              error: str | None = None) -> None:
        """A decode worker wrote tokens.
        What an earlier attempt wrote, the client has already.

        logprobs: of these tokens, if they are wanted    cached: tokens of a prompt computed
        there that were in its pages    error: why the answer failed
        """
        call = self.calls.get(id)
        if call is None or call.attempt != attempt:
            return
        request = call.request
        call.again += tokens
        call.again_text += text
        new = call.again[len(request.output):]
        more = call.again_text[len(call.text):]
        request.output += new
        request.logprobs += logprobs[len(tokens) - len(new):] if logprobs else []
        request.num_cached = request.num_cached if cached is None else cached
        request.error = error
        call.text += more
        if reason:
            del self.calls[id]
        if new or more or reason:
            self.outputs.append((id, new, more, reason))
        if reason:
            self.route()

    def died(self, kind: str, number: int) -> None:
        """A worker is gone, with all that it held."""
        if kind == "prefill":
            self.prefills.pop(number, None)
            for call in self.calls.values():
                if call.prefill == number:
                    call.prefill = None
                    self.send("decode", call.decode, ("compute", call.request.id, call.attempt))
            return
        self.decodes.discard(number)
        for call in self.calls_of(number)[::-1]:
            self.tell_prefill(call, "dead")
            call.decode = None
            if call.attempt < ATTEMPTS:
                self.waiting.appendleft(call)
            else:
                self.give_up(call)
        self.route()

    def give_up(self, call: Call) -> None:
        """End a call with an error."""
        del self.calls[call.request.id]
        call.request.error = f"{ATTEMPTS} processes ended while they worked on it"
        self.outputs.append((call.request.id, [], "", "error"))

    def leaves(self, kind: str, number: int) -> None:
        """A worker gets nothing new.
        What it has, it finishes."""
        if kind == "prefill":
            self.prefills.pop(number, None)
        else:
            self.decodes.discard(number)

    def is_idle(self, kind: str, number: int) -> bool:
        """Whether no call needs a worker."""
        return all(number != (call.prefill if kind == "prefill" else call.decode)
                   for call in self.calls.values())

    def came(self, kind: str, number: int) -> None:
        """A worker is there, and empty."""
        if kind == "prefill":
            self.prefills[number] = OrderedDict()
        else:
            self.decodes.add(number)
            self.route()


class ReplicaRouter(Router):
    """A router of whole engines: workers that write answers and compute their prompts, too.

    seats: answers that a replica runs at a time; the others wait here, so that they go to the
    replica that is free first
    """

    def __init__(self, replicas: int, seats: int, pages: int, S: int, room: int,
                 send: Callable[[str, int, tuple], None]):
        self.seats = seats
        self.names: dict[int, OrderedDict[bytes, None]] = {}
        super().__init__(0, replicas, pages, S, room, send)

    def pick(self, call: Call) -> tuple[None, int] | None:
        loads = {j: ReplicaLoad(len(self.calls_of(j)), self.names[j]) for j in self.decodes}
        j = choose_replica(call.names, {j: load for j, load in sorted(loads.items())
                                        if load.running < self.seats})
        if j is None:
            return None
        self.remember(self.names[j], call.names)
        return None, j

    def came(self, kind: str, number: int) -> None:
        self.names[number] = OrderedDict()
        super().came(kind, number)


class ReplicaLoad(NamedTuple):
    """What the router knows of a whole engine."""

    running: int                    # answers
    names: Collection[bytes]        # of the pages that it remembers


def choose_replica(names: Sequence[bytes], replicas: Mapping[int, ReplicaLoad]) -> int | None:
    """Which replica gets a prompt: its number; None if there is none.

    names: of the prompt's full pages.
    The one that has the longest prefix, if it runs at most LEAD answers more than the one with the
    fewest; of equals the one that runs the fewest.
    """
    if not replicas:
        return None
    fewest = min(load.running for load in replicas.values())
    near = {j: load for j, load in replicas.items() if load.running <= fewest + LEAD}
    return max(near, key=lambda j: (hits(names, near[j].names), -near[j].running))


def hits(names: Iterable[bytes], remembered: Collection[bytes]) -> int:
    """How many names are remembered, from the first on without a gap."""
    return sum(1 for _ in takewhile(lambda name: name in remembered, names))
