"""What breaks below the server, and how it ends."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import openai
import pytest

from lab.course import ROOT
from layer3_system import (
    ByteTokenizer,
    Engine,
    Limits,
    MockLlama,
    PrefixPool,
    Scheduler,
    mock_scores,
)
from layer3_system.server import app as addresses
from tests.layer3_system.server.http_server import (
    NAME,
    Fails,
    Gated,
    Served,
    dechunked,
    events,
    read_all,
    request,
    served,
    step,
    told,
    until,
)

# ---- what breaks


def test_a_kernel_that_raises_ends_one_request():
    with served(Fails()) as server:
        def good(_):
            return server.post(prompt="good", max_tokens=40, seed=1).json()["choices"][0]["text"]
        want = good(0)
        clients = [server.open(prompt="!bad" if i % 2 else "good", max_tokens=40, seed=1,
                               stream=i % 4 > 1, n=1 + i % 3) for i in range(24)]
        for i, found in enumerate(map(read_all, clients)):
            head, _, content = found.partition(b"\r\n\r\n")
            if i % 4 > 1:
                *_, last = events(dechunked(content))
                assert ("error" in last) == bool(i % 2)
                assert not i % 2 or "an illegal memory access" in last["error"]["message"]
            elif i % 2:
                assert b" 500 " in head and b"an illegal memory access" in content
            else:
                assert json.loads(content)["choices"][0]["text"] == want
        with pytest.raises(openai.InternalServerError):
            server.openai.completions.create(model=NAME, prompt="!bad")
        with pytest.raises(openai.APIError, match="illegal memory access"):
            list(server.openai.completions.create(model=NAME, prompt="!bad", stream=True))
        assert server.http.get("/health").status_code == 200


def test_scores_that_are_not_finite_end_one_request():
    def scores(context, V):
        return mock_scores(context, V) * (float("nan") if context[0] == ord("!") else 1)
    with served(MockLlama(scores=scores)) as server:
        for n in (1, 3):
            clients = [server.open(prompt=prompt, max_tokens=30, n=n) for prompt in ("!a", "a")]
            heads = [read_all(client).partition(b"\r\n")[0] for client in clients]
            assert heads == [b"HTTP/1.1 500 Internal Server Error", b"HTTP/1.1 200 OK"]
        *_, last = events(server.post(prompt="!a", stream=True).content)
        assert "not finite" in last["error"]["message"]


def test_a_fault_of_the_server_itself_is_told(mock, monkeypatch):
    """It ends one answer: with an error, or with its stream."""
    def broken(*given):
        raise KeyError("a shape that is wrong")
    monkeypatch.setattr(addresses.TextResponses, "choice", broken)
    monkeypatch.setattr(addresses.TextResponses, "delta", broken)
    told(mock.post(prompt="a"), 500, None, "KeyError")
    with pytest.raises(httpx.TransportError):
        mock.post(prompt="a", stream=True)
    mock.drained()
    monkeypatch.undo()
    assert mock.post(prompt="a").status_code == 200


def test_an_engine_that_dies_is_told_to_everybody(monkeypatch):
    model = Gated()
    pool = PrefixPool(64)
    server = Served(Engine(model, ByteTokenizer(), pool, Scheduler(pool)))
    try:
        stream = server.open(prompt="a", ignore_eos=True, stream=True)  # else it may end before
        whole = server.open(prompt="a", ignore_eos=True)
        until(lambda: server.bridge.taken == 2)
        step(server, model, 3)

        def broken():
            raise IndexError("a page that is not there")
        monkeypatch.setattr(server.engine.scheduler, "schedule", broken)
        model.gate.release(10)
        *_, last = events(dechunked(read_all(stream).partition(b"\r\n\r\n")[2]))
        assert "IndexError: a page that is not there" in last["error"]["message"]
        assert b" 500 " in read_all(whole).partition(b"\r\n")[0]
        for answer in (server.post(prompt="a"), server.http.get("/health"),
                       server.http.get("/engine")):
            told(answer, 500, None, "the engine has stopped: IndexError")
        assert server.http.get("/metrics").status_code == 200
    finally:
        server.end()


# ---- the end


def test_told_to_end_it_lets_open_answers_end():
    model = Gated()
    with served(model) as server:
        fields = {"prompt": "a", "max_tokens": 20, "ignore_eos": True, "seed": 1}
        clients = [server.open(**fields), server.open(**fields, stream=True)]
        until(lambda: server.bridge.taken == 2)
        step(server, model, 2)
        server.listener.should_exit = True
        until(lambda: server.bridge.closing)
        model.gate.release(1000)
        whole, stream = map(read_all, clients)
        (choice,) = json.loads(whole.partition(b"\r\n\r\n")[2])["choices"]
        assert choice["finish_reason"] == "length"
        *_, last = events(dechunked(stream.partition(b"\r\n\r\n")[2]))
        assert last["choices"][0]["finish_reason"] == "length"
        server.thread.join(300)
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", server.port), timeout=5)


def test_told_to_end_it_ends_what_takes_too_long():
    model = Gated()
    with served(model, limits=Limits(grace=0.3)) as server:
        fields = {"prompt": "a", "ignore_eos": True}       # else it may end before
        clients = [server.open(**fields), server.open(**fields, stream=True)]
        until(lambda: server.bridge.taken == 2)
        step(server, model, 2)
        server.listener.should_exit = True
        whole, stream = map(read_all, clients)
        assert b" 503 " in whole.partition(b"\r\n")[0]
        *_, last = events(dechunked(stream.partition(b"\r\n\r\n")[2]))
        assert last["error"]["message"] == "the server is shutting down"
        model.gate.release(1000)


@pytest.mark.alone
def test_sigterm_under_load():
    """`lab serve` on the shipped model, SIGTERM when 40 clients have had their first event: each
    stream ends, then the process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "layer3_system.server.cli", "--port", "0", "--grace", "300"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"})
    try:
        said = ""
        while "  curl http://127.0.0.1:" not in said:
            assert process.poll() is None
            said += process.stdout.readline()
        port = int(re.search(r"Listening on http://127\.0\.0\.1:(\d+)", said)[1])
        assert "cpu        add_rmsnorm_cpu" in said and "cpu        CpuLlama.forward" in said
        assert "Scheduler        reference" in said
        fields = {"model": "small", "prompt": "Once upon a time", "max_tokens": 60,
                  "ignore_eos": True, "stream": True}
        started = []

        async def one():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(fields))
            head = await reader.readuntil(b"\n\n")
            started.append(head)
            if len(started) == 40:
                process.send_signal(signal.SIGTERM)
            return head + await reader.read(-1)

        async def every():
            return await asyncio.gather(*(one() for _ in range(40)))

        for stream in asyncio.run(every()):
            *_, last = events(dechunked(stream.partition(b"\r\n\r\n")[2]))
            assert last["choices"][0]["finish_reason"] == "length"
        assert process.wait() == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()
