"""The router: which process gets a request, and what happens to it when one of them dies

It starts nothing and waits for nothing: messages go to `send`, news comes in by methods.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from layer3_system.s01_request import Request, RequestError, SamplingParams
from layer3_system.s02_block_pool import pages_for
from layer3_system.s06_prefix_cache import HashChain
from layer3_system.s12_disaggregation import DecodeLoad, PrefillLoad, choose_workers


@dataclass(eq=False)
class Call:
    """A client's request on its way."""

    request: Request                # its prompt and params, never in an engine
    names: list[bytes]              # of its full pages
    attempt: int = 0
    prefill: int | None = None      # where its prompt is, until that has arrived
    decode: int | None = None
    todo: int = 0                   # tokens to compute at the prefill worker
    tokens: list[int] = field(default_factory=list)     # that the client has
    text: str = ""
    again: list[int] = field(default_factory=list)      # that this attempt has written
    again_text: str = ""

    @property
    def answer(self) -> int:
        """Tokens of the answer, at most."""
        return self.request.limit - len(self.request.prompt)


class Router:
    """Calls, and who works on them.

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

    def submit(self, id: str, prompt: list[int], params: SamplingParams, salt: str = "") -> None:
        """A request. RequestError if no worker could ever serve it."""
        if params.n != 1 or params.prompt_logprobs is not None:
            raise RequestError("n, prompt_logprobs: expected one answer and no scores of the "
                               "prompt: its pages alone are sent")
        limit = self.room if params.max_tokens is None else len(prompt) + params.max_tokens
        if not prompt or limit > self.room or len(prompt) >= limit:
            raise RequestError(f"prompt: expected at least one token, and at most {self.room} "
                               f"with the answer; found {len(prompt)}, up to {limit}")
        request = Request(id, list(prompt), params, salt=salt, limit=limit)
        names = HashChain().names(request, (len(prompt) - 1) // self.S, self.S)
        self.calls[id] = Call(request, names)
        self.waiting.append(self.calls[id])
        self.route()

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
            call = self.waiting[0]
            decodes = sorted(self.decodes)
            prefills = sorted(self.prefills)
            choice = self.choose(call.names, len(call.request.prompt), call.answer, self.S,
                                 [self.prefill_load(i) for i in prefills] or [PrefillLoad(0, ())],
                                 [self.decode_load(j) for j in decodes])
            if choice is None:
                return
            self.waiting.popleft()
            self.begin(call, prefills[choice[0]] if prefills else None, decodes[choice[1]])

    def prefill_load(self, i: int) -> PrefillLoad:
        queue = sum(call.todo for call in self.calls.values() if call.prefill == i)
        return PrefillLoad(queue, self.prefills[i])

    def decode_load(self, j: int) -> DecodeLoad:
        running = [call for call in self.calls.values() if call.decode == j]
        used = sum(pages_for(call.request.limit, self.S) for call in running)
        return DecodeLoad(self.pages - used, len(running))

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
        self.send("decode", j, ("expect", request.id, call.attempt, request.prompt, params))
        if i is None:
            self.send("decode", j, ("compute", request.id, call.attempt))
            return
        hits = 0
        while hits < len(call.names) and call.names[hits] in self.prefills[i]:
            hits += 1
        call.todo = len(request.prompt) - hits * self.S
        self.remember(i, call.names)
        self.send("prefill", i, ("begin", request.id, call.attempt, request.prompt, j,
                                 request.salt))

    def remember(self, i: int, names: Sequence[bytes]) -> None:
        """What a prefill worker has in its pages, roughly: the newest names."""
        own = self.prefills[i]
        for name in names:
            own.pop(name, None)
            own[name] = None
        while len(own) > self.pages:
            own.popitem(last=False)

    # ---- news of workers

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

    def wrote(self, id: str, attempt: int, tokens: list[int], text: str,
              reason: str | None) -> None:
        """A decode worker wrote tokens. What an earlier attempt wrote, the client has already."""
        call = self.calls.get(id)
        if call is None or call.attempt != attempt:
            return
        call.again += tokens
        call.again_text += text
        new = call.again[len(call.tokens):]
        more = call.again_text[len(call.text):]
        call.tokens += new
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
        for call in [call for call in self.calls.values() if call.decode == number][::-1]:
            self.tell_prefill(call, "dead")
            call.decode = None
            self.waiting.appendleft(call)
        self.route()

    def came(self, kind: str, number: int) -> None:
        """A worker is there, and empty."""
        if kind == "prefill":
            self.prefills[number] = OrderedDict()
        else:
            self.decodes.add(number)
            self.route()
