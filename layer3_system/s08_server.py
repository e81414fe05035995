"""s08 · The server: a client's JSON becomes a request, and its tokens go back as they come

The engine computes one step after another and waits for no client. Clients connect when they like,
read as slowly as they like and may disconnect at any time. So the engine has a thread of its own.
Between the two are a mailbox, emptied before each step, and for each call the news not read yet.
Costs the engine one wake-up of the other side a step, however many clients there are.
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

__all__ = ["ApiError", "Bridge", "Call", "Limits", "News", "server_sent_event", "to_params"]

DONE = b"data: [DONE]\n\n"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What a server accepts."""

    body: int = 2**20           # bytes of one request
    tokens: int | None = None   # of one answer; None: what the context has room for
    queue: int = 1024           # answers that wait, beyond those that can run
    seconds: float = 600.0      # to read a request, and then to answer it
    grace: float = 20.0         # seconds that open answers get when the server shuts down


LIMITS = Limits()


def refused(error, names):
    """The ApiError of a RequestError, which begins with the field's name. names: what the client
    calls some fields."""
    field, _, why = str(error).partition(":")
    field = (names or {}).get(field, field)
    return ApiError(400, f"{field}:{why}", field)


# ---- how an answer is to be sampled


def boolean(fields, name):
    """A field that is true, false or absent."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name}: expected true or false, found {value!r}", name)
    return bool(value)


def to_params(fields: dict[str, Any], chat: bool, names: dict[str, str] | None = None,
              limits: Limits = LIMITS) -> SamplingParams:
    """SamplingParams of a request's fields; ApiError 400 names a wrong one. null is the default.

    A chat's answer is as long as the context allows, max_tokens = None; a completion's has the
    default, 16 tokens. names: {ours: the client's} for fields that came under another name, such as
    {"max_tokens": "max_completion_tokens"}: read them there. None: no such field
    PASSED_THROUGH lists fields with the same name; stop and stop_token_ids become tuples by
    as_tuple(value); chat_logprobs(fields) is a chat's count. within(params, limits) raises a
    RequestError, as SamplingParams does; refused(error, names) makes an ApiError of it.
    """
    # exercise: the fields with the same name; stops; what differs in a chat; refuse
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


def within(params, limits):
    """The params. RequestError if an answer may be longer than the server's limit."""
    if limits.tokens and (params.max_tokens or 0) > limits.tokens:
        raise RequestError(f"max_tokens: expected at most {limits.tokens}, found "
                           f"{params.max_tokens}")
    return params


def as_tuple(value):
    """A text or a list as a tuple; anything else unchanged, to be refused later."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(
        value, list) else value


def chat_logprobs(fields):
    """How many log probabilities a chat wants: top_logprobs, or None without logprobs."""
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


def predict_pieces():
    """How many pieces wait for a client that reads nothing.

    It asked for 4 answers to its prompt. They end after 5, 120, 500 and 500 tokens, and a step
    writes one token of each that goes on. Then the client begins to read.
    """
    # exercise: what is joined with what, and what stays apart?
    return 4        # one an answer, its end included, however many tokens are in it


class News(NamedTuple):
    """What is new of one answer since it was last read."""

    text: str = ""
    tokens: int = 0             # how many
    reason: str | None = None   # at the end, why


class Call:
    """The answers to one HTTP request, on their way.

    News that is not read yet is joined, so that a slow reader's news does not pile up.
    """

    def __init__(self, id: str, count: int):
        self.id, self.open = id, count      # open: answers that are not finished
        self.answers: list[Request] = []    # n for the first prompt, n for the next
        self.news: dict[int, News] = {}
        self.error: tuple[int, str] | None = None
        self.woken = asyncio.Event()
        self.timer: Any = None

    def add(self, index: int, output: Output) -> None:
        """Add what a step wrote of answer `index`: an Output, with tokens, text and reason.

        reason: None, or why the answer ended. If it is "error", the whole call fails, with status
        500 and output.request.error.
        """
        # exercise: join it to what was not read yet; at its end one fewer is open; an error; wake
        text, tokens, _ = self.news.get(index, News())
        self.news[index] = News(text + output.text, tokens + len(output.tokens), output.reason)
        self.open -= output.reason is not None
        if output.reason == "error":
            self.fail(500, f"this request failed: {output.request.error}")
        self.woken.set()

    def fail(self, status: int, message: str) -> None:
        """Tell the reader that no answer will come."""
        self.error = self.error or (status, message)
        self.woken.set()

    async def pieces(self) -> AsyncIterator[dict[int, News]]:
        """{index: News} not read yet, as soon as there is any. ApiError if the call failed."""
        while self.open or self.news:
            await self.woken.wait()
            self.woken.clear()
            if self.error:
                raise ApiError(*self.error)
            news = self.news
            self.news = {}
            yield news


class Bridge:
    """The engine in a thread of its own, and the ways there and back.

    Only that thread touches the engine. The clients' side leaves letters, functions to be called
    between two steps. After a step all its news goes back at once.
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
        """Queue prompts, [[token]]: their Call. ApiError if they are refused."""
        self.check_open()
        try:
            for prompt in prompts:
                self.engine.check(prompt, params)           # it reads only what never changes
        except RequestError as error:
            raise refused(error, names) from None
        if params.max_tokens is None and self.limits.tokens:
            left = self.engine.room - max(map(len, prompts))
            params = replace(params, max_tokens=min(self.limits.tokens, left))
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
        """ApiError if there is no room for count more answers.

        max_seqs may run and limits.queue wait. 400, naming prompt, if count can never fit. Else
        429, with the header Retry-After, a text: the seconds in which enough will end, rounded up,
        1 to 60. ends: when answers ended, oldest first, by loop.time(). The seconds an answer takes
        are the time since the first of them, divided by their number; 1 s if there are none.
        """
        # exercise: those taken and not finished, against those that may run and wait
        most = self.engine.scheduler.max_seqs + self.limits.queue
        if count > most:
            raise ApiError(400, f"prompt: expected at most {most} answers, found {count}", "prompt")
        over = self.taken - self.engine.finished + count - most
        if over > 0:
            now = self.loop.time()
            each = (now - self.ends[0]) / len(self.ends) if self.ends else 1
            wait = min(max(math.ceil(over * each), 1), 60)
            raise ApiError(429, f"{most} answers run and wait already; try again in {wait} s",
                           code="queue_full", headers={"Retry-After": str(wait)})

    def close(self, call: Call) -> None:
        """The client is done with a call: abort its answers that are not finished."""
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

    def deliver(self, news: list[tuple[Call, int, Output]]) -> None:
        """Hand what one step wrote to its calls."""
        for call, index, output in news:
            call.add(index, output)
            if output.reason:
                self.ends.append(self.loop.time())

    def die(self, error: Exception) -> None:
        """The engine's thread has ended: fail all that wait for it."""
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
        await asyncio.to_thread(self.thread.join, 5)    # a step that hangs ends with the process

    # ---- the engine's side: its thread

    def run(self) -> None:
        """Mail, a step, its news; until the mail ends it."""
        try:
            while self.read_mail():
                self.report(self.engine.step())
        except Exception as error:              # else every client would wait for ever
            log.exception("the engine has stopped")
            self.tell(self.die, error)

    def read_mail(self) -> bool:
        """Do what the letters say; if there is nothing else to do, wait for one.

        A letter is a function without arguments, or None, which ends the thread. True: a step
        follows. False: None has come.
        self.mail: get() takes the next letter and waits if there is none; empty()
        """
        # exercise: while there are letters, or the engine is not busy
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
        news = [(*self.places[output.request], output) for output in outputs]
        for output in outputs:
            if output.reason:
                del self.places[output.request]
        for observer in self.observers:
            observer.stepped(self.engine, outputs)
        if news:
            self.tell(self.deliver, news)

    def tell(self, function: Callable[..., Any], *values: Any) -> None:
        """Have the clients' side call a function."""
        self.loop.call_soon_threadsafe(function, *values)
