"""A server on a port of its own, for the tests that talk to one over HTTP.

`scripted` is a model that writes a given text.
`Gated` is one whose steps a test lets through one by one.
`Fails` is one with a kernel that raises.
`let_through` opens a gate when enough answers were refused.
"""

import json
import socket
import threading
import time
from contextlib import contextmanager

import httpx
import openai
import torch

from layer3_system import (
    Bridge,
    ByteTokenizer,
    Engine,
    MockLlama,
    PrefixPool,
    SamplingParams,
    Scheduler,
    check_engine,
)
from layer3_system.api_error import ApiError
from layer3_system.s08_server import LIMITS
from layer3_system.server.app import ACCESS, Listener, make_app
from layer3_system.structured import Grammars

NAME = "mock"
JSON = {"Content-Type": "application/json"}
LONG = "x" * 512        # a token each: as long as the context


# ---- models


def scripted(text):
    """A model that writes this text after a prompt of one token, and then its end."""
    tokens = [*text.encode(), 256]

    def scores(context, V):
        return torch.nn.functional.one_hot(torch.tensor(tokens[len(context) - 1]), V) * 100.0
    return MockLlama(scores=scores)


class Gated(MockLlama):
    """A step waits until the test lets it through."""

    def __init__(self, **options):
        super().__init__(**options)
        self.gate, self.at_gate = threading.Semaphore(0), False

    def forward(self, step, cache, every=False):
        self.at_gate = True
        self.gate.acquire()
        self.at_gate = False
        return super().forward(step, cache, every)


def let_through(model, refusals):
    """The kind of a Bridge that opens the model's gate when it has refused a number of answers."""
    class Full(Bridge):
        refused = 0

        def make_room(self, count):
            try:
                super().make_room(count)
            except ApiError:
                self.refused += 1
                if self.refused == refusals:
                    model.gate.release(10_000)
                raise

    return Full


class Fails(MockLlama):
    """Its kernel raises where a text begins with "!"."""

    def forward(self, step, cache, every=False):
        if (0, ord("!")) in zip(step.positions.tolist(), step.tokens.tolist(), strict=True):
            raise ValueError("an illegal memory access")
        return super().forward(step, cache, every)


# ---- a server


class Served:
    def __init__(self, engine, limits=LIMITS, key=None, buffer=None, kind=Bridge, access=ACCESS):
        self.engine, self.app = engine, make_app(engine, NAME, limits, key, kind, access)
        self.bridge = self.app.state.bridge
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.listener = Listener(self.app)
        self.thread = threading.Thread(target=self.listener.run,
                                       kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()
        self.http = httpx.Client(base_url=self.url, timeout=300, trust_env=False, headers=JSON)
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key or "none",
                                    max_retries=0, timeout=300)
        until(lambda: self.listener.started)

    def post(self, path="completions", **fields):
        return self.http.post(f"/v1/{path}", content=json.dumps({"model": NAME} | fields))

    def open(self, **fields):
        """A socket that asked for a completion, and has read nothing yet."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=300)
        client.sendall(request({"model": NAME} | fields))
        return client

    def end(self):
        self.listener.should_exit = True
        self.thread.join(300)
        assert not self.thread.is_alive()

    def drained(self):
        """Nothing runs, waits or holds a page, and every book balances."""
        until(lambda: not self.bridge.calls)
        until(lambda: not self.engine.busy and self.bridge.mail.empty())
        check_engine(self.engine)
        assert self.engine.pool.used == 0 and not self.bridge.places


def request(fields, path="completions", head=""):
    body = json.dumps(fields).encode()
    return (f"POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{head}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            ).encode() + body


def until(true):
    end = time.monotonic() + 300
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.002)


@contextmanager
def served(model=None, limits=LIMITS, key=None, buffer=None, pages=64, tokenizer=None,
           kind=Bridge, access=ACCESS, **options):
    """A Served; at the end its books must balance."""
    pool = PrefixPool(pages)
    model = model or MockLlama()
    codec = tokenizer or ByteTokenizer()
    engine = Engine(model, codec, pool, Scheduler(pool, **options),
                    grammars=Grammars(codec, model.config))
    one = Served(engine, limits, key, buffer, kind, access)
    try:
        yield one
        one.drained()
    finally:
        one.end()


def events(content):
    """The JSON of each event of a stream, which must have ended in order."""
    assert content.endswith(b"data: [DONE]\n\n")
    lines = content.decode().split("\n\n")[:-2]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [json.loads(line[6:]) for line in lines]


def told(answer, status, field=None, says=""):
    """An error as OpenAI has it."""
    error = answer.json()["error"]
    assert answer.status_code == status, answer.text
    assert error["param"] == field and says in error["message"], error
    assert set(error) == {"message", "type", "param", "code"} and len(error["message"]) < 600
    return error


def read_all(client):
    found = b""
    while part := client.recv(2**16):
        found += part
    client.close()
    return found


def step(server, model, count=1):
    """Let steps through, until they are done and the next one is at the gate, if there is one."""
    before = model.steps
    model.gate.release(count)
    until(lambda: model.steps == before + count and (
        model.at_gate or not server.engine.busy and server.bridge.mail.empty()))


def dechunked(content):
    """The bytes of a body in chunks."""
    found = b""
    while content:
        size, _, content = content.partition(b"\r\n")
        found, content = found + content[:int(size, 16)], content[int(size, 16) + 2:]
    return found


def alone(prompt, **params):
    """What an engine without a server answers: a list of texts and their reasons."""
    engine = Engine(MockLlama(), ByteTokenizer())
    answers = engine.submit(list(prompt.encode()), SamplingParams(**params))
    texts = dict.fromkeys(answers, "")
    while engine.busy:
        for output in engine.step():
            texts[output.request] += output.text
    return [(text, request.reason, request) for request, text in texts.items()]
