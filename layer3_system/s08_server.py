"""s08 · The server: a client's JSON becomes a request, and its tokens go back as they come

The engine computes one step after the other and waits for nobody. Clients come when they like, read
as slowly as they like and leave without a word. So the engine has a thread of its own. Between the
two lie a mailbox, emptied before each step, and for each call what is new and was not read yet.
Costs the engine one wake-up of the other side a step, however many clients there are.
"""

import asyncio
import json
import logging
import math
import queue
import threading
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from layer3_system.api_error import ApiError
from layer3_system.s01_request import RequestError, SamplingParams

__all__ = ["ApiError", "Bridge", "Call", "Limits", "News", "server_sent_event", "to_params"]

DONE = b"data: [DONE]\n\n"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What a server takes on."""

    body: int = 2**20           # bytes of one request
    tokens: int | None = None   # of one answer; None: what the context has room for
    queue: int = 1024           # answers that wait, beyond those that can run
    seconds: float = 600.0      # to read a request, and then to answer it
    grace: float = 20.0         # seconds that open answers get when the server is to end


LIMITS = Limits()


def refused(error, names):
    """A RequestError as a client is told it: it begins with the field. names: what the client
    calls some fields."""
    field, _, why = str(error).partition(":")
    field = (names or {}).get(field, field)
    return ApiError(400, f"{field}:{why}", field)


# ---- how an answer is to be sampled

PASSED_THROUGH = ("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "seed", "n",
                  "ignore_eos")


def boolean(fields, name):
    """A field that is true, false or not there."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name}: expected true or false, found {value!r}", name)
    return bool(value)


def to_params(fields, chat, names=None, limits=LIMITS):
    """SamplingParams of a request's fields; ApiError 400 names a wrong one. null is the default.

    An answer of a chat is as long as the context allows, of a completion 16 tokens. names: what the
    client calls some of them, {"max_tokens": "max_completion_tokens"}, or None
    PASSED_THROUGH lists what has the same name; stop and stop_token_ids are tuples, as_tuple(value)
    makes them; chat_logprobs(fields) is a chat's count. within(params, limits) raises a
    RequestError, as SamplingParams does; refused(error, names) is the ApiError of it.
    """
    # exercise: what is there under the same name; stops; what differs in a chat; refuse
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
    """The params. RequestError where an answer may be longer than a server's limit."""
    if limits.tokens and (params.max_tokens or 0) > limits.tokens:
        raise RequestError(f"max_tokens: expected at most {limits.tokens}, found "
                           f"{params.max_tokens}")
    return params


def as_tuple(value):
    """One text or a list as a tuple; anything else as it is, to be refused as what it is."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(
        value, list) else value


def chat_logprobs(fields):
    """How many log probabilities a chat wants: none without logprobs, with it top_logprobs."""
    top = fields.get("top_logprobs")
    if boolean(fields, "logprobs"):
        return 0 if top is None else top
    if top is not None:
        raise ApiError(400, "top_logprobs: expected logprobs to be true with it", "top_logprobs")
    return None


# ---- what goes back


def server_sent_event(data):
    """One server-sent event: a line of JSON behind "data: ", and an empty line."""
    # JSON writes a line end within a text as \n, so one line holds it all
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def predict_pieces():
    """How many pieces wait for a client that reads nothing.

    It asked for 4 answers to its prompt. They end after 5, 120, 500 and 500 tokens, and a step
    writes one token of each that goes on. Then the client begins to read.
    """
    # exercise: what is joined with what, and what with nothing?
    return 4        # one an answer, of an end as well, however many tokens are in it


class News(NamedTuple):
    """What is new of one answer since it was last read."""

    text: str = ""
    tokens: int = 0             # how many
    reason: str | None = None   # at the end, why


class Call:
    """The answers to one HTTP request, on their way.

    What comes while nobody reads is joined: a reader as slow as may be has one News an answer to
    wait for it, never more text than the answer has.
    """

    def __init__(self, id, count):
        self.id, self.open = id, count  # open: answers that go on
        self.answers = []               # their Requests: n for the first prompt, n for the next
        self.news, self.error = {}, None
        self.woken, self.timer = asyncio.Event(), None

    def add(self, index, output):
        """What a step wrote of answer `index`: an Output, with tokens, text and reason.

        reason: None, or why the answer ended. Where it is "error" the whole call fails, with status
        500 and output.request.error.
        """
        # exercise: join it to what was not read yet; at its end one less is open; an error; wake
        text, tokens, _ = self.news.get(index, News())
        self.news[index] = News(text + output.text, tokens + len(output.tokens), output.reason)
        self.open -= output.reason is not None
        if output.reason == "error":
            self.fail(500, f"this request failed: {output.request.error}")
        self.woken.set()

    def fail(self, status, message):
        """No answer will come: say so."""
        self.error = self.error or (status, message)
        self.woken.set()

    async def pieces(self):             # yields {index: News}
        """What is new, as soon as there is something. ApiError where it failed."""
        while self.open or self.news:
            await self.woken.wait()
            self.woken.clear()
            if self.error:
                raise ApiError(*self.error)
            news, self.news = self.news, {}
            yield news


class Bridge:
    """The engine in a thread of its own, and the ways there and back.

    Only that thread touches the engine. The clients' side leaves letters, functions to be called
    between two steps. After a step all that is new goes back at once.
    """

    def __init__(self, engine, limits=LIMITS, observers=()):
        """observers: told of each step, stepped(engine, outputs), and of what was aborted,
        aborted(requests), in the engine's thread"""
        self.engine, self.limits, self.observers = engine, limits, observers
        self.mail, self.places = queue.SimpleQueue(), {}    # Request -> (Call, index)
        self.calls, self.questions, self.taken = set(), set(), 0
        self.ends = deque(maxlen=64)                        # when answers ended, seconds
        self.dead, self.closing = None, False
        self.thread = threading.Thread(target=self.run, name="engine", daemon=True)

    # ---- the clients' side: one event loop, one thread

    def start(self):
        self.loop = asyncio.get_running_loop()
        self.thread.start()

    def submit(self, id, prompts, params, names=None):
        """Queue prompts, [[token]]; their Call. ApiError where they are not taken."""
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

    def check_open(self):
        if self.dead:
            raise ApiError(500, self.dead)
        if self.closing:
            raise ApiError(503, "the server is shutting down", headers={"Connection": "close"})

    def make_room(self, count):
        """ApiError where there is no place for count more answers.

        max_seqs may run and limits.queue wait. 400, naming prompt: so many never fit. 429 else,
        with the header Retry-After, a text: the seconds in which enough have ended, rounded up, 1
        to 60. ends: when answers ended, the oldest first, by loop.time(); without any, say 1 s each
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

    def close(self, call):
        """Nobody waits for a call any more: what goes on of it is aborted."""
        call.timer.cancel()
        if call.open:
            self.mail.put(partial(self.abort, call))
        self.calls.discard(call)

    async def ask(self, question):
        """question(engine), answered between two steps."""
        self.check_open()
        answer = self.loop.create_future()
        self.questions.add(answer)
        self.mail.put(lambda: self.tell(self.settle, answer, question(self.engine)))
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await answer
        except TimeoutError:
            raise ApiError(504, "the engine is at one step all the time") from None
        finally:
            self.questions.discard(answer)

    def settle(self, answer, value):
        if not answer.done():
            answer.set_result(value)

    def deliver(self, news):
        """What one step wrote: [(Call, index, Output)]."""
        for call, index, output in news:
            call.add(index, output)
            if output.reason:
                self.ends.append(self.loop.time())

    def die(self, error):
        """The engine's thread has ended: everybody is told."""
        self.dead = f"the engine has stopped: {type(error).__name__}: {error}"
        for call in self.calls:
            call.fail(500, self.dead)
        for answer in self.questions:
            if not answer.done():
                answer.set_exception(ApiError(500, self.dead))

    def drain(self):
        """Take nothing new; what is open has limits.grace seconds to end by itself."""
        self.closing = True
        self.loop.call_later(self.limits.grace, self.end_all)

    def end_all(self):
        for call in self.calls:
            call.fail(503, "the server is shutting down")

    async def stop(self):
        self.mail.put(None)
        await asyncio.to_thread(self.thread.join, 5)    # a step that hangs ends with the process

    # ---- the engine's side: its thread

    def run(self):
        """Mail, a step, its news; until the mail says so."""
        try:
            while self.read_mail():
                self.report(self.engine.step())
        except Exception as error:              # untold, everybody would wait for ever
            log.exception("the engine has stopped")
            self.tell(self.die, error)

    def read_mail(self):
        """Do what the letters say; where there is nothing else to do, wait for one.

        A letter is a function of nothing; then True, and a step follows. None is the end: False.
        self.mail: get() takes the next letter and waits where there is none; empty()
        """
        # exercise: as long as there are some, or the engine is not busy
        while not self.mail.empty() or not self.engine.busy:
            letter = self.mail.get()
            if letter is None:
                return False
            letter()
        return True

    def enqueue(self, call, prompts, params):
        for i, prompt in enumerate(prompts):
            for request in self.engine.submit(prompt, params, f"{call.id}-{i}"):
                self.places[request] = call, len(call.answers)
                call.answers.append(request)

    def abort(self, call):
        goes_on = [request for request in call.answers if request.status != "finished"]
        self.engine.abort(goes_on)
        for request in goes_on:
            del self.places[request]
        for observer in self.observers:
            observer.aborted(goes_on)

    def report(self, outputs):
        """Send what a step wrote, in one go."""
        news = [(*self.places[output.request], output) for output in outputs]
        for output in outputs:
            if output.reason:
                del self.places[output.request]
        for observer in self.observers:
            observer.stepped(self.engine, outputs)
        if news:
            self.tell(self.deliver, news)

    def tell(self, function, *values):
        self.loop.call_soon_threadsafe(function, *values)
