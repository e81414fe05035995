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
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from layer3_system.s01_request import RequestError, SamplingParams, whole

__all__ = ["ApiError", "Asked", "Bridge", "Call", "Limits", "News", "asked", "event", "prompts_of",
           "read_fields", "to_params", "tokens_of"]

MOST = 500              # characters of a message: a wrong value may be as long as the body
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


class ApiError(Exception):
    """What a client is told in place of an answer, in OpenAI's shape."""

    def __init__(self, status, message, field=None, code=None, headers=None):
        super().__init__(message if len(message) <= MOST else message[:MOST] + " …")
        self.status, self.field, self.code, self.headers = status, field, code, headers or {}

    def content(self):
        kind = ("server_error" if self.status >= 500 else
                "rate_limit_error" if self.status == 429 else "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.field,
                          "code": self.code}}


def refused(error, names):
    """A RequestError as a client is told it: it begins with the field. names: what the client
    calls some fields."""
    field, _, why = str(error).partition(":")
    field = names.get(field, field)
    return ApiError(400, f"{field}:{why}", field)


# ---- what a client asks for

SAME = ("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "seed", "n", "ignore_eos")
KNOWN = {*SAME, "model", "stop", "stop_token_ids", "logprobs", "stream", "stream_options", "user"}
ONLY_TEXT = {"prompt", "echo"}
ONLY_CHAT = {"messages", "max_completion_tokens", "top_logprobs"}
# What this server does not do: the values that ask for nothing. null does so everywhere.
NOTHING = {"best_of": (1,), "suffix": ("",), "presence_penalty": (0,), "frequency_penalty": (0,),
           "repetition_penalty": (1,), "logit_bias": ({},), "tools": ([],), "functions": ([],),
           "tool_choice": ("none",), "function_call": ("none",), "store": (False,),
           "response_format": ({"type": "text"},), "modalities": (["text"],),
           "parallel_tool_calls": (True, False), "service_tier": ("auto", "default")}
ROLES = ("developer", "system", "user", "assistant")


class Asked(NamedTuple):
    """A request that was read: its words, how to sample, and how the answer is wanted."""

    prompts: list               # texts or lists of tokens; of a chat one list of messages
    params: SamplingParams
    stream: bool
    usage: bool                 # in a stream: tell the tokens at its end
    echo: bool                  # the prompt first
    names: dict                 # of some fields: what the client calls them


def read_fields(body):
    """The fields of a request's JSON. ApiError 400 where it holds none."""
    try:
        fields = json.loads(body.decode(), parse_constant=not_json)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ApiError(400, f"the body: expected a JSON object, found {fields!r}")
    return fields


def not_json(word):
    raise ValueError(f"{word} is no number in JSON")


def asked(fields, chat, limits):
    """The Asked of a request's fields. ApiError 400 names the one that is wrong, unknown or asks
    for what is not done here: nothing is ignored in silence."""
    known = KNOWN | (ONLY_CHAT if chat else ONLY_TEXT)
    for name, value in fields.items():
        if name in known or name in NOTHING and asks_nothing(name, value):
            continue
        raise ApiError(400, f"{name}: not supported here, found {value!r}" if name in NOTHING else
                       f"{name}: unknown field", name)
    prompts = [messages_of(fields)] if chat else prompts_of(fields)
    stream, echo = truth(fields, "stream"), truth(fields, "echo")
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict) or set(options) - {"include_usage"} or options and not stream:
        raise ApiError(400, f"stream_options: expected include_usage, and that with stream; found "
                       f"{options!r}", "stream_options")
    names = {"prompt": "messages"} if chat else {}
    if chat and fields.get("max_completion_tokens") is not None:
        names["max_tokens"] = "max_completion_tokens"
    params = to_params(fields, chat, names, limits)
    if echo and params.logprobs is not None:
        raise ApiError(400, "echo: not supported with logprobs", "echo")
    return Asked(prompts, params, stream, truth(options, "include_usage"), echo, names)


def asks_nothing(name, value):
    """Whether a field that is not supported asks for nothing. true is no 1 here."""
    return value is None or any(value == nothing and isinstance(value, bool) == isinstance(
        nothing, bool) for nothing in NOTHING[name])


def truth(fields, name):
    """A field that is true, false or not there."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name}: expected true or false, found {value!r}", name)
    return bool(value)


def to_params(fields, chat, names={}, limits=Limits()):
    """SamplingParams of a request's fields; ApiError 400 names a wrong one. null is the default.

    An answer of a chat is as long as the context allows, of a completion 16 tokens. names: what the
    client calls some of them
    """
    # exercise: what has the same name; then stop as a tuple; then logprobs, which differ in a chat
    given = {name: fields[name] for name in SAME if fields.get(name) is not None}
    given |= {name: as_tuple(fields[name]) for name in ("stop", "stop_token_ids")
              if fields.get(name) is not None}
    given["logprobs"] = chat_logprobs(fields) if chat else fields.get("logprobs")
    if chat:
        given["max_tokens"] = fields.get(names.get("max_tokens", "max_tokens"))
    try:
        params = SamplingParams(**given)
        most = limits.tokens
        if most and (params.max_tokens is None or params.max_tokens > most):
            raise RequestError(f"max_tokens: expected at most {most}, found {params.max_tokens}")
    except RequestError as error:
        raise refused(error, names) from None
    return params


def as_tuple(value):
    """One text or a list as a tuple; anything else as it is, to be refused as what it is."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(
        value, list) else value


def chat_logprobs(fields):
    """How many log probabilities a chat wants: none without logprobs, with it top_logprobs."""
    if truth(fields, "logprobs"):
        return fields.get("top_logprobs") or 0
    if fields.get("top_logprobs"):
        raise ApiError(400, "top_logprobs: expected logprobs to be true with it", "top_logprobs")
    return None


def prompts_of(fields):
    """[text or [token]] of the field prompt: one of them, or a list."""
    # exercise: a text or a list of tokens alone is one prompt
    given = fields.get("prompt")
    alone = isinstance(given, str) or isinstance(given, list) and given and all(map(whole, given))
    prompts = [given] if alone else given
    if not isinstance(prompts, list) or not prompts or not all(
            isinstance(p, str) or isinstance(p, list) and all(map(whole, p)) for p in prompts):
        raise ApiError(400, f"prompt: expected a text, a list of tokens, or a list of those; found "
                       f"{given!r}", "prompt")
    return prompts


def messages_of(fields):
    """[{"role", "content"}] of the field messages; a content in parts becomes one text."""
    given, found = fields.get("messages"), []
    if not isinstance(given, list) or not given:
        raise ApiError(400, f"messages: expected a list of one or more, found {given!r}",
                       "messages")
    for i, message in enumerate(given):
        parts = message.get("content") if isinstance(message, dict) else None
        if isinstance(parts, str):
            parts = [{"type": "text", "text": parts}]
        right = isinstance(parts, list) and message.get("role") in ROLES and set(message) == {
            "role", "content"} and all(isinstance(part, dict) and part.get("type") == "text" and
                                       isinstance(part.get("text"), str) for part in parts)
        if not right:
            raise ApiError(400, f"messages[{i}]: expected a role of {', '.join(ROLES)} and a "
                           f"content of text, and nothing else; found {message!r}", "messages")
        found.append({"role": message["role"], "content": "".join(p["text"] for p in parts)})
    return found


def tokens_of(asked, chat, tokenizer):
    """[[token]] of what was asked. ApiError 400 where the tokenizer refuses."""
    try:
        if chat and not hasattr(tokenizer, "chat"):
            raise ValueError("this model takes no conversation; give it a text")
        return [tokenizer.chat(p) if chat else tokenizer.encode(p) if isinstance(p, str) else p
                for p in asked.prompts]
    except ValueError as error:
        field = "messages" if chat else "prompt"
        raise ApiError(400, f"{field}: {error}", field) from None


# ---- what goes back


def event(data):
    """One server-sent event: a line of JSON behind "data: ", and an empty line."""
    # exercise: JSON has no line end of its own, so one line holds it
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


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
        """What a step wrote of answer `index`."""
        # exercise: join it to what was not read yet; one answer less is open at its end; wake
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
        # exercise: until all are through and read; sleep until woken, then take all at once
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

    def __init__(self, engine, limits=Limits(), observers=()):
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

    def submit(self, id, prompts, params, names={}):
        """Queue prompts, [[token]]; their Call. ApiError where they are not taken."""
        self.check_open()
        try:
            for prompt in prompts:
                self.engine.check(prompt, params)           # it reads only what never changes
        except RequestError as error:
            raise refused(error, names) from None
        call = Call(id, len(prompts) * params.n)
        self.make_room(call.open)
        self.taken += call.open
        self.calls.add(call)
        call.timer = self.loop.call_later(self.limits.seconds, call.fail, 504,
                                          f"no answer in {self.limits.seconds:g} s")
        self.mail.put(partial(self.queue, call, prompts, params))
        return call

    def check_open(self):
        if self.dead:
            raise ApiError(500, self.dead)
        if self.closing:
            raise ApiError(503, "the server is shutting down", headers={"Connection": "close"})

    def make_room(self, count):
        """ApiError 429 where the queue is full, with the seconds after which it may not be."""
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
        self.calls.discard(call)
        if call.open:
            self.mail.put(partial(self.abort, call))

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
        # exercise: whatever is raised here must be told, or everybody waits for ever
        try:
            while self.read_mail():
                self.report(self.engine.step())
        except Exception as error:
            log.exception("the engine has stopped")
            self.tell(self.die, error)

    def read_mail(self):
        """Do what the letters say; where there is nothing else to do, wait for one. False: end."""
        # exercise: as long as there are some, or the engine is not busy
        while not self.mail.empty() or not self.engine.busy:
            letter = self.mail.get()
            if letter is None:
                return False
            letter()
        return True

    def queue(self, call, prompts, params):
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
