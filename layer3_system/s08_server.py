"""s08 · The server: a client's JSON becomes a request, and its tokens go back as they come

The engine takes one step after another and never waits for a client.
Clients connect at any time, read as slowly as they like and disconnect without notice.
So the engine has a thread of its own.
Between the two are a mailbox, emptied before each step, and for each call its unread output.
Costs one wake-up of the event loop a step, however many clients there are.
"""

import asyncio
import json
import logging
import math
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from layer3_system.api_error import ApiError
from layer3_system.engine.outputs import Output
from layer3_system.s01_request import Request, RequestError, SamplingParams
from layer3_system.s07_engine import Engine
from layer3_system.sampling_params import PASSED_THROUGH

__all__ = ["ApiError", "Bridge", "Call", "Limits", "Piece", "server_sent_event", "to_params"]

DONE = b"data: [DONE]\n\n"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What a server accepts."""

    body: int = 2**20           # bytes of one request
    tokens: int | None = None   # of one answer; None: what the context has room for
    queue: int = 1024           # answers that wait, beyond those that can run
    seconds: float = 600.0      # time limit to read a request, and again to answer it
    grace: float = 20.0         # seconds that open answers get when the server shuts down


LIMITS = Limits()


def refused(error: RequestError, names: dict[str, str] | None) -> ApiError:
    """The ApiError 400 for a RequestError.

    Its message starts with the field, under the client's name for it.
    """
    field, _, why = str(error).partition(":")
    field = (names or {}).get(field, field)
    return ApiError(400, f"{field}:{why}", field)


# ---- how an answer is to be sampled


def boolean(fields: dict[str, Any], name: str) -> bool:
    """A field that is true, false or absent."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name}: expected true or false, found {value!r}", name)
    return bool(value)


def to_params(fields: dict[str, Any], chat: bool, names: dict[str, str] | None = None,
              limits: Limits = LIMITS) -> SamplingParams:
    """The SamplingParams for a request's fields.
    ApiError 400, naming the field, if one is wrong.

    None counts as absent.
    A chat without max_tokens may fill the context (None); a completion has
    16 tokens, the default of SamplingParams. fields have the client's names; names: {our name: the
    client's} where they differ, such as {"max_tokens": "max_completion_tokens"}; None: nowhere.
    SamplingParams(…) and within(params, limits) raise RequestError; raise refused(error, names)
    instead.
    """
    # exercise: fields with equal names; stops as tuples; what differs in a chat; the errors
    values = {name: fields[name] for name in PASSED_THROUGH if fields.get(name) is not None}
    values |= {name: as_tuple(fields[name]) for name in ("stop", "stop_token_ids")
              if fields.get(name) is not None}
    values["logprobs"] = chat_logprobs(fields) if chat else fields.get("logprobs")
    if chat:
        values["max_tokens"] = fields.get((names or {}).get("max_tokens", "max_tokens"))
    try:
        return within(SamplingParams(**values), limits)
    except RequestError as error:
        raise refused(error, names) from None


def within(params: SamplingParams, limits: Limits) -> SamplingParams:
    """The params; RequestError if max_tokens exceeds the server's limit."""
    if limits.tokens and (params.max_tokens or 0) > limits.tokens:
        raise RequestError(f"max_tokens: expected at most {limits.tokens}, found "
                           f"{params.max_tokens}")
    return params


def as_tuple(value: Any) -> Any:
    """A string or a list as a tuple; any other value unchanged, for SamplingParams to reject."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(
        value, list) else value


def chat_logprobs(fields: dict[str, Any]) -> int | None:
    """The number of log probabilities that a chat asks for: None without logprobs, otherwise
    top_logprobs, or 0."""
    top = fields.get("top_logprobs")
    if boolean(fields, "logprobs"):
        return 0 if top is None else top
    if top is not None:
        raise ApiError(400, "top_logprobs: expected logprobs to be true with it", "top_logprobs")
    return None


# ---- what goes back


def server_sent_event(data: dict[str, Any]) -> bytes:
    """One server-sent event: a line of JSON after "data: ", and an empty line."""
    # JSON writes a line break within a text as \n, so one line holds it all
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def predict_pieces() -> int:
    """How many pieces there are after step 500, for a client that has read nothing so far.

    It asked for 4 answers to its prompt.
    They end after 5, 120, 500 and 500 tokens; each step writes one token of every answer that has
    not ended.
    """
    # exercise: which pieces can be joined, and which cannot?
    return 4        # one an answer, its end included, however many tokens are in it


class Piece(NamedTuple):
    """The unread part of one answer."""

    text: str = ""
    tokens: int = 0             # how many
    reason: str | None = None   # why it ended, if it has


class Call:
    """The answers to one HTTP request, while they are being written.

    Unread output is joined, so that a slow reader's pieces do not pile up.
    """

    def __init__(self, id: str, count: int):
        self.id = id
        self.open = count                   # answers that have not ended
        self.answers: list[Request] = []    # n for the first prompt, n for the next
        self.unread: dict[int, Piece] = {}  # of each answer, if there is any
        self.error: tuple[int, str] | None = None
        self.woken = asyncio.Event()
        self.timer: Any = None

    def add(self, index: int, output: Output) -> None:
        """Add what a step wrote of answer `index`: output.tokens, output.text and output.reason.

        reason: None, or why the answer ended.
        An "error" ends it, too, and fails the whole call:
        self.fail(500, …) with output.request.error in the message.
        """
        # exercise: join it to the unread piece; count `open` down at an end; fail on an error; wake
        text, tokens, _ = self.unread.get(index, Piece())
        self.unread[index] = Piece(text + output.text, tokens + len(output.tokens), output.reason)
        if output.reason:
            self.open -= 1
        if output.reason == "error":
            self.fail(500, f"this request failed: {output.request.error}")
        self.woken.set()

    def fail(self, status: int, message: str) -> None:
        """Tell the reader that no answer will come."""
        self.error = self.error or (status, message)
        self.woken.set()

    async def pieces(self) -> AsyncIterator[dict[int, Piece]]:
        """Yields {index: Piece}, all that is unread, whenever there is some, until all answers have
        ended.
        ApiError if the call has failed."""
        while self.open or self.unread:
            await self.woken.wait()
            self.woken.clear()
            if self.error:
                raise ApiError(*self.error)
            pieces = self.unread
            self.unread = {}
            yield pieces


class Bridge:
    """The engine in a thread of its own, and both directions of traffic.

    Only that thread touches the engine.
    The event loop posts letters, functions to be called between two steps.
    After a step, everything new is sent back together.
    """

    def __init__(self, engine: Engine, limits: Limits = LIMITS, observers: Sequence[Any] = ()):
        """observers: called in the engine's thread, stepped(engine, outputs) after each step and
        aborted(requests) after an abort"""
        self.engine = engine
        self.limits = limits
        self.observers = observers
        self.mail: Any = queue.SimpleQueue()                # letters, and None at the end
        self.places: dict[Request, tuple[Call, int]] = {}
        self.calls: set[Call] = set()
        self.questions: set[asyncio.Future] = set()
        self.taken = 0
        self.ends: deque[float] = deque(maxlen=64)          # when answers ended, seconds
        self.dead: str | None = None
        self.closing = False
        self.thread = threading.Thread(target=self.run, name="engine", daemon=True)

    # ---- the clients' side: one event loop, one thread

    def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread.start()

    def submit(self, id: str, prompts: list[list[int]], params: SamplingParams,
               names: dict[str, str] | None = None) -> Call:
        """Queue prompts, [[token]]: their Call.
        ApiError if they are refused."""
        self.check_open()
        try:
            for prompt in prompts:
                self.engine.check(prompt, params)           # it reads only what never changes
            if params.max_tokens is None and self.limits.tokens:
                left = self.engine.room - max(map(len, prompts))
                params = replace(params, max_tokens=min(self.limits.tokens, left))
        except RequestError as error:
            raise refused(error, names) from None
        call = Call(id, len(prompts) * params.n)
        self.make_room(call.open)
        call.timer = self.loop.call_later(self.limits.seconds, call.fail, 504,
                                          f"no answer in {self.limits.seconds:g} s")
        self.mail.put(partial(self.enqueue, call, prompts, params))
        self.taken += call.open
        self.calls.add(call)
        return call

    def check_open(self) -> None:
        """ApiError if the engine has stopped or the server is shutting down."""
        if self.dead:
            raise ApiError(500, self.dead)
        if self.closing:
            raise ApiError(503, "the server is shutting down", headers={"Connection": "close"})

    def make_room(self, count: int) -> None:
        """ApiError if there is no room for `count` more answers.

        At most engine.scheduler.max_seqs answers run and self.limits.queue wait.
        If count alone exceeds their sum: 400, with field="prompt".
        Otherwise 429 with the header Retry-After: the seconds until enough answers will have ended,
        rounded up, from 1 to 60, as a string.
        self.ends: times at which recent answers ended, oldest first.
        If it is empty, assume 1 s an answer.
        Nothing is changed: `submit` adds to self.taken afterwards.
        """
        # exercise: compare the answers taken and not finished with those that may run and wait
        most = self.engine.scheduler.max_seqs + self.limits.queue
        if count > most:
            raise ApiError(400, f"prompt: expected at most {most} answers, found {count}", "prompt")
        over = self.taken - self.engine.finished + count - most
        if over > 0:
            now = self.loop.time()
            each = (now - self.ends[0]) / len(self.ends) if self.ends else 1
            wait = min(max(math.ceil(over * each), 1), 60)
            raise ApiError(429, f"no room for {count} more: at most {most} answers may run or "
                                f"wait; try again in {wait} s",
                           code="queue_full", headers={"Retry-After": str(wait)})

    def close(self, call: Call) -> None:
        """The client has gone: abort the answers of this call that have not ended."""
        call.timer.cancel()
        if call.open:
            self.mail.put(partial(self.abort, call))
        self.calls.discard(call)

    async def ask(self, question: Callable[[Engine], Any]) -> Any:
        """question(engine), answered between two steps."""
        self.check_open()
        answer = self.loop.create_future()
        self.questions.add(answer)
        self.mail.put(lambda: self.tell(self.settle, answer, question(self.engine)))
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await answer
        except TimeoutError:
            raise ApiError(504, f"no step ended in {self.limits.seconds:g} s") from None
        finally:
            self.questions.discard(answer)

    def settle(self, answer: asyncio.Future, value: Any) -> None:
        if not answer.done():
            answer.set_result(value)

    def deliver(self, parcels: list[tuple[Call, int, Output]]) -> None:
        """Hand what one step wrote to its calls."""
        for call, index, output in parcels:
            call.add(index, output)
            if output.reason:
                self.ends.append(self.loop.time())

    def die(self, error: Exception) -> None:
        """The engine thread has died: fail every open call and question."""
        self.dead = f"the engine has stopped: {type(error).__name__}: {error}"
        for call in self.calls:
            call.fail(500, self.dead)
        for answer in self.questions:
            if not answer.done():
                answer.set_exception(ApiError(500, self.dead))

    def drain(self) -> None:
        """Take nothing new; open calls have limits.grace seconds to end by themselves."""
        self.closing = True
        self.loop.call_later(self.limits.grace, self.end_all)

    def end_all(self) -> None:
        for call in self.calls:
            call.fail(503, "the server is shutting down")

    async def stop(self) -> None:
        self.mail.put(None)
        await asyncio.to_thread(self.thread.join, 5)    # a hanging step ends with the process

    # ---- the engine's side: its thread

    def run(self) -> None:
        """Read the mail, take a step, report it; until a letter says stop."""
        try:
            while self.read_mail():
                self.report(self.engine.step())
        except Exception as error:              # every client would wait for ever
            log.exception("the engine has stopped")
            self.tell(self.die, error)

    def read_mail(self) -> bool:
        """Call the letters in the mailbox; if the engine has no work, sleep until it has.

        A letter is a function without arguments; do not catch what it raises, `run` does.
        Returns True to go on with a step, False if a letter was None. self.mail.get() returns the
        next letter and sleeps until there is one; self.mail.empty() says whether none is there.
        """
        # exercise: read letters while there are any, or while the engine is not busy
        while not self.mail.empty() or not self.engine.busy:
            letter = self.mail.get()
            if letter is None:
                return False
            letter()
        return True

    def enqueue(self, call: Call, prompts: list[list[int]], params: SamplingParams) -> None:
        """Submit a call's prompts to the engine."""
        for i, prompt in enumerate(prompts):
            for request in self.engine.submit(prompt, params, f"{call.id}-{i}"):
                self.places[request] = call, len(call.answers)
                call.answers.append(request)

    def abort(self, call: Call) -> None:
        unfinished = [request for request in call.answers if request.status != "finished"]
        self.engine.abort(unfinished)
        for request in unfinished:
            del self.places[request]
        for observer in self.observers:
            observer.aborted(unfinished)

    def report(self, outputs: Iterable[Output]) -> None:
        """Send what a step wrote, in one go."""
        parcels = [(*self.places[output.request], output) for output in outputs]
        for output in outputs:
            if output.reason:
                del self.places[output.request]
        for observer in self.observers:
            observer.stepped(self.engine, outputs)
        if parcels:
            self.tell(self.deliver, parcels)

    def tell(self, function: Callable[..., Any], *values: Any) -> None:
        """Have the clients' side call a function."""
        self.loop.call_soon_threadsafe(function, *values)
