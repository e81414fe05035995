"""The server's addresses: OpenAI's, a few of vLLM's, /metrics, /engine and a page

An API key guards /v1, /engine, /tokenize and /detokenize.
Errors have OpenAI's shape.
"""

import asyncio
import importlib.metadata
import secrets
import time
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import Depends, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from layer3_system.api_error import ApiError
from layer3_system.s08_server import DONE, LIMITS, Bridge, refused, server_sent_event
from layer3_system.sampling_params import RequestError
from layer3_system.server.hosts import Access
from layer3_system.server.listener import Listener as Listener  # callers have both from here
from layer3_system.server.middleware import GuardedApp, as_json
from layer3_system.server.monitor import monitor_of
from layer3_system.server.protocol import parse, read_fields, tokens_of
from layer3_system.server.responses import ChatResponses, TextResponses
from layer3_system.server.tokenization import detokenize, tokenize
from layer3_system.server.tools import with_calls

PAGE = Path(__file__).with_name("page.html")
ONLY_OURS = {"Content-Security-Policy":     # the page loads nothing from anywhere else
             "default-src 'self'; img-src data:; style-src 'unsafe-inline'; "
             "script-src 'unsafe-inline'"}
ACCESS = Access()
STREAM_GRACE = 10              # seconds after its time limit that a slow reader keeps its stream


# ---- clients that are slow, or leave


async def read_body(request, limits, patience):
    """The bytes of a request's JSON.
    ApiError 415 if it is not JSON, 413 if it is too large, 408 if it takes too long, or if
    nothing comes for `patience` seconds."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise ApiError(415, f"Content-Type: expected application/json, found {kind!r}")
    body = bytearray()
    too_large = ApiError(413, f"the body is larger than {limits.body} bytes")
    if int(request.headers.get("content-length", 0)) > limits.body:
        raise too_large
    now = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(limits.seconds), asyncio.timeout(patience) as silence:
            async for part in request.stream():
                silence.reschedule(now() + patience)
                body += part
                if len(body) > limits.body:             # its length need not be announced
                    raise too_large
    except TimeoutError:
        late = (f"nothing of the body came for {patience:g} s" if silence.expired() else
                f"the body took more than {limits.seconds:g} s")
        raise ApiError(408, late, headers={"Connection": "close"}) from None
    return bytes(body)


async def while_connected(receive, work):
    """The result of a coroutine; None if the client disconnects first, which cancels it."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect(receive))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def wait_for_disconnect(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


class Events(Response):
    """A stream of server-sent events.
    It ends with the call, or with the client."""

    media_type = "text/event-stream"

    def __init__(self, bridge, call, chunks):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no",
                                  "X-Answer-Id": call.id})      # sent before the first piece
        del self.headers["content-length"]
        self.bridge = bridge
        self.call = call
        self.chunks = chunks

    async def __call__(self, scope, receive, send):
        try:
            await while_connected(receive, self.write(send))
        finally:
            self.bridge.close(self.call)

    async def write(self, send):
        """An error ends a stream as an event of its own.
        A reader that is too slow for its time limit has its stream closed."""
        try:
            async with asyncio.timeout(self.bridge.limits.seconds + STREAM_GRACE):
                await send({"type": "http.response.start", "status": 200,
                            "headers": self.raw_headers})
                async for line in self.lines():
                    await send({"type": "http.response.body", "body": line, "more_body": True})
                await send({"type": "http.response.body", "body": DONE})
        except TimeoutError:
            return

    async def lines(self):
        try:
            async for chunk in self.chunks:
                yield server_sent_event(chunk)
        except ApiError as error:
            yield server_sent_event(error.content())


# ---- the addresses


class Service:
    """What the addresses answer with.
    Arguments as `make_app`'s."""

    def __init__(self, engine, name, limits, key, kind, access):
        self.engine = engine
        self.name = name
        self.limits = limits
        self.key = key
        self.access = access
        self.monitor = monitor_of(engine, name)
        self.bridge = kind(engine, limits, self.monitor.observers)
        self.monitor.connect(self.bridge)
        self.card = {"id": name, "object": "model", "created": int(time.time()),
                     "owned_by": "three-floors", "max_model_len": engine.room}

    @asynccontextmanager
    async def lifespan(self, app):
        self.bridge.start()
        yield
        await self.bridge.stop()

    # ---- what requests have in common

    async def check_key(self, request: Request):
        header = request.headers.get("authorization", "").encode()
        right = f"Bearer {self.key}".encode()
        if self.key is not None and not secrets.compare_digest(header, right):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key",
                           headers={"WWW-Authenticate": "Bearer"})

    def check_model(self, name):
        if name != self.name:
            raise ApiError(404, f"model: expected {self.name!r}, found {name!r}", "model",
                           "model_not_found")

    async def read(self, request):
        return read_fields(await read_body(request, self.limits, self.access.patience))

    def compile_grammar(self, prompt, wanted):
        """It may take long.
        The engine keeps it for `submit`.
        ApiError if it is refused."""
        try:
            self.engine.check(prompt, wanted.params)
        except RequestError as error:
            raise refused(error, wanted.names) from None

    async def answer(self, request, shape):
        chat = shape is ChatResponses
        fields = await self.read(request)
        if not isinstance(fields.get("model"), str):
            raise ApiError(400, f"model: expected a text, found {fields.get('model')!r}", "model")
        self.check_model(fields["model"])
        tokenizer = self.engine.tokenizer
        wanted = with_calls(parse(fields, chat, self.limits), tokenizer)
        tokens = await asyncio.to_thread(tokens_of, wanted.prompts, chat, tokenizer, wanted.tools)
        if wanted.params.structured_outputs:
            await asyncio.to_thread(self.compile_grammar, tokens[0], wanted)
        call = self.bridge.submit(shape.new_id(), tokens, wanted.params, wanted.names)
        answers = shape(call, self.name, wanted, tokenizer)
        if wanted.stream:
            return Events(self.bridge, call, answers.chunks())
        try:
            return as_json(await while_connected(request.receive, answers.whole()))
        finally:
            self.bridge.close(call)

    # ---- addresses that the key guards

    async def completions(self, request: Request):
        return await self.answer(request, TextResponses)

    async def chat_completions(self, request: Request):
        return await self.answer(request, ChatResponses)

    async def tokenize(self, request: Request):
        fields = await self.read(request)
        self.check_model(fields.get("model") or self.name)
        return as_json(await asyncio.to_thread(tokenize, fields, self.engine.tokenizer,
                                               self.engine.room))

    async def detokenize(self, request: Request):
        fields = await self.read(request)
        self.check_model(fields.get("model") or self.name)
        return as_json(await asyncio.to_thread(detokenize, fields, self.engine.tokenizer,
                                               self.engine.intake.V))

    async def models(self):
        return as_json({"object": "list", "data": [self.card]})

    async def one_model(self, model: str):
        self.check_model(model)
        return as_json(self.card)

    async def engine_now(self):
        return as_json(await self.monitor.state(self.bridge))

    async def restart(self, request: Request):
        await self.monitor.restart(self.bridge, (await self.read(request)).get("worker"))
        return Response(status_code=202)

    # ---- addresses for everybody

    async def page(self):
        return Response(PAGE.read_bytes(), 200, ONLY_OURS, "text/html; charset=utf-8")

    async def health(self):
        self.bridge.check_open()
        return Response()

    async def version(self):
        return as_json({"version": own_version()})

    async def metrics_now(self):
        return Response(await self.monitor.text(self.bridge),
                        media_type="text/plain; version=0.0.4; charset=utf-8")


def make_app(engine, name, limits=LIMITS, key=None, kind=Bridge, access=ACCESS):
    """A FastAPI app that serves an engine. name: of the model    key: that clients must send
    kind: the class of the Bridge between the two"""
    service = Service(engine, name, limits, key, kind, access)
    app = GuardedApp(access, lifespan=service.lifespan, openapi_url=None)
    app.state.bridge = service.bridge
    guarded = {"dependencies": [Depends(service.check_key)]}
    app.post("/v1/completions", **guarded)(service.completions)
    app.post("/v1/chat/completions", **guarded)(service.chat_completions)
    app.post("/tokenize", **guarded)(service.tokenize)
    app.post("/detokenize", **guarded)(service.detokenize)
    app.get("/v1/models", **guarded)(service.models)
    app.get("/v1/models/{model:path}", **guarded)(service.one_model)
    app.get("/engine", **guarded)(service.engine_now)
    app.post("/engine/restart", **guarded)(service.restart)
    app.get("/")(service.page)
    app.get("/health")(service.health)
    app.api_route("/ping", methods=["GET", "POST"])(service.health)
    app.get("/version")(service.version)
    app.get("/metrics")(service.metrics_now)
    answer_errors(app)
    return app


def own_version():
    """The version of this package; "unknown" if it is not installed."""
    try:
        return importlib.metadata.version("three-floors")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def answer_errors(app):
    """Give all errors OpenAI's shape, wherever they were raised."""
    @app.exception_handler(ApiError)
    async def on_api_error(request, error):
        return as_json(error.content(), error.status, error.headers)

    @app.exception_handler(HTTPException)
    async def on_http_exception(request, error):
        message = f"{request.method} {request.url.path}: {error.detail}"
        return as_json(ApiError(error.status_code, message).content(), error.status_code,
                       error.headers)

    @app.exception_handler(Exception)
    async def on_crash(request, error):              # uvicorn logs it
        return as_json(ApiError(500, f"{type(error).__name__}: {error}").content(), 500)

    @app.exception_handler(ClientDisconnect)
    async def on_disconnect(request, error):
        return Response(status_code=499)                    # no client reads it
