"""Clients that leave, are slow or many, and text over the wire."""

import asyncio
import json
import re
import socket
from collections import Counter

import pytest

from layer3_system import Call, Limits, Output, Piece
from layer3_system.server import app as addresses
from tests.layer3_system.server.http_server import (
    NAME,
    Gated,
    alone,
    dechunked,
    events,
    let_through,
    read_all,
    request,
    scripted,
    served,
    step,
    until,
)

# ---- clients that leave or are slow


@pytest.mark.parametrize("stream", [False, True])
def test_case_20_a_client_that_vanishes(stream):
    """Case 20: aborted within two steps, streaming or not; its pages are free then."""
    model = Gated()
    with served(model) as server:
        kept = server.open(prompt="stays", max_tokens=40, ignore_eos=True, seed=1)
        until(lambda: server.engine.submitted == 1)
        lost = server.open(prompt="goes", max_tokens=400, ignore_eos=True, stream=stream)
        until(lambda: server.engine.submitted + server.bridge.mail.qsize() == 2)
        step(server, model, 5)
        assert len(server.engine.scheduler.running) == 2
        lost.close()
        until(lambda: not server.bridge.mail.empty())       # the abort waits for the next step
        step(server, model, 2)
        assert [r.prompt for r in server.engine.scheduler.running] == [list(b"stays")]
        model.gate.release(1000)
        ((want, *_),) = alone("stays", max_tokens=40, ignore_eos=True, seed=1)
        answer = json.loads(read_all(kept).partition(b"\r\n\r\n")[2])
        assert answer["choices"][0]["text"] == want


def test_case_19_aborts_in_every_state():
    """Case 19: clients leave while they wait, in a part of the prompt, in the answer, after its
    end; a call is closed twice.
    Pages are given back once, and the others' answers stay."""
    model = Gated()
    with served(model, max_seqs=3, budget=16, chunk=4) as server:
        stays = server.open(prompt="stays", max_tokens=60, ignore_eos=True, seed=1)
        until(lambda: server.engine.submitted == 1)
        step(server, model, 3)                          # it is in its answer
        answers = server.open(prompt="b", max_tokens=60, ignore_eos=True, n=2)
        until(lambda: server.bridge.taken == 3)
        step(server, model, 3)
        waits = server.open(prompt="c", max_tokens=60)
        until(lambda: server.bridge.taken == 4)
        step(server, model, 1)
        assert len(server.engine.scheduler.waiting) == 1
        waits.close()
        until(lambda: not server.bridge.mail.empty())
        step(server, model, 1)
        until(lambda: not server.engine.scheduler.waiting)
        answers.close()
        until(lambda: not server.bridge.mail.empty())
        step(server, model, 1)
        until(lambda: len(server.engine.scheduler.running) == 1)
        chunked = server.open(prompt="d" * 100, max_tokens=60)
        until(lambda: server.bridge.taken == 5)
        step(server, model, 3)
        newest = server.engine.scheduler.running[-1]
        assert 0 < newest.num_computed < 100            # amid its prompt
        chunked.close()
        until(lambda: not server.bridge.mail.empty())
        step(server, model, 2)
        assert len(server.engine.scheduler.running) == 1
        (call,) = server.bridge.calls
        model.gate.release(1000)
        ((want, *_),) = alone("stays", max_tokens=60, ignore_eos=True, seed=1)
        answer = json.loads(read_all(stays).partition(b"\r\n\r\n")[2])
        assert answer["choices"][0]["text"] == want
        server.drained()
        for _ in range(2):                              # finished already, and again
            server.bridge.mail.put(lambda: server.bridge.abort(call))
        server.drained()
        assert server.engine.submitted == server.engine.finished == 5


def test_case_21_ids_are_the_servers_own():
    """Case 21: clients that claim one id share nothing; one that leaves late ends no other."""
    model = Gated()
    with served(model) as server:
        fields = {"model": NAME, "prompt": "a", "max_tokens": 30, "ignore_eos": True, "seed": 1,
                  "user": "me"}
        clients = []
        for i in range(2):
            client = socket.create_connection(("127.0.0.1", server.port), timeout=300)
            client.sendall(request(fields, head="X-Request-Id: mine\r\n"))
            clients.append(client)
            until(lambda i=i: server.bridge.taken == i + 1)
        step(server, model, 4)
        ids = [call.id for call in server.bridge.calls]
        assert len(set(ids)) == 2 and "mine" not in " ".join(ids)
        clients[0].close()
        model.gate.release(1000)
        answer = json.loads(read_all(clients[1]).partition(b"\r\n\r\n")[2])
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 30


@pytest.mark.parametrize("sent", [b"", b"POST /v1/compl", b"POST /v1/completions HTTP/1.1\r\n\r\n",
                                  b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                                  b"Content-Length: 50\r\n\r\n{", b"\x16\x03\x01" * 100])
def test_a_client_that_does_not_finish_its_request(mock, sent):
    client = socket.create_connection(("127.0.0.1", mock.port), timeout=300)
    client.sendall(sent)
    client.close()
    assert mock.post(prompt="a").status_code == 200


def test_what_a_slow_reader_has_not_read_is_one_piece():
    async def one():
        call = Call("id", 2)
        for i in range(1000):
            call.add(i % 2, Output(None, [i], "a", "length" if i >= 998 else None))
        return [pieces async for pieces in call.pieces()]
    assert asyncio.run(one()) == [{0: Piece("a" * 500, 500, "length"),
                                   1: Piece("a" * 500, 500, "length")}]


def test_a_slow_reader_stalls_nobody():
    """It reads a byte at a time: the engine goes on to its end, its events are joined, and what
    the server holds for it is the socket's buffer and one piece of text."""
    with served(buffer=4096) as server:
        ((want, _, _),) = alone("slow", seed=1, max_tokens=500, ignore_eos=True)
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(request({"model": NAME, "prompt": "slow", "seed": 1, "max_tokens": 500,
                              "ignore_eos": True, "stream": True, "logprobs": 20}))
        found = b"".join(slow.recv(1) for _ in range(20))
        assert server.post(prompt="quick", max_tokens=20).status_code == 200
        until(lambda: server.engine.finished == 2 and not server.engine.busy)
        assert server.engine.pool.used == 0
        (call,) = server.bridge.calls                   # it still waits for its reader
        until(lambda: sum(piece.tokens for piece in call.unread.values()) > 100)
        assert len(call.unread) == 1
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**18)     # it is quick from here on
        found = (found + read_all(slow)).partition(b"\r\n\r\n")[2]
        pieces = [json.loads(e) for e in re.findall(rb"data: (\{.*\})", dechunked(found))]
        assert "".join(p["choices"][0]["text"] for p in pieces) == want
        assert len(pieces) < 400                        # some came joined
        assert sum(len(p["choices"][0]["logprobs"]["tokens"]) for p in pieces) == 500


def test_a_reader_that_is_too_slow_is_let_go(monkeypatch):
    monkeypatch.setattr(addresses, "STREAM_GRACE", 0.2)
    with served(buffer=4096, limits=Limits(seconds=1)) as server:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(request({"model": NAME, "prompt": "slow", "max_tokens": 500, "logprobs": 20,
                              "ignore_eos": True, "stream": True}))
        slow.recv(1)
        until(lambda: server.bridge.taken)
        until(lambda: not server.bridge.calls)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**18)
        assert b"[DONE]" not in read_all(slow)


def many(port, fields, count, pause=0.0):
    """The contents of `count` answers to one request on as many connections at once."""
    async def one():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(fields))
        found = await reader.read(-1)
        writer.close()
        return found

    async def every():
        return await asyncio.gather(*(one() for _ in range(count)))
    return asyncio.run(every())


def test_a_thousand_connections_at_once():
    with served() as server:
        fields = {"model": NAME, "prompt": "hello", "max_tokens": 4, "seed": 1}
        found = many(server.port, fields | {"stream": True}, 1000)
        assert {f.partition(b"\r\n")[0] for f in found} == {b"HTTP/1.1 200 OK"}
        assert all(f.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for f in found)
        server.drained()
        assert server.engine.finished == 1000


def test_a_thousand_connections_and_a_short_queue():
    """Each gets its answer or a 429; no client waits for ever.
    The engine begins when all have been taken or refused."""
    model = Gated()
    with served(model, limits=Limits(queue=50), kind=let_through(model, 1000 - 82)) as server:
        found = many(server.port, {"model": NAME, "prompt": "hello", "max_tokens": 4}, 1000)
        codes = [int(f.split()[1]) for f in found]
        assert Counter(codes) == {200: 82, 429: 1000 - 82}
        assert server.engine.finished == 82


# ---- text over the wire


def test_case_27_a_stop_over_token_boundaries():
    """Case 27: none of it is shown, streaming or not; the earliest wins; text that only looked like
    its beginning is shown in the end."""
    with served(scripted("hello wide world")) as server:
        def text(**fields):
            whole = server.post(prompt="x", max_tokens=50, temperature=0, **fields).json()
            pieces = events(server.post(prompt="x", max_tokens=50, temperature=0, stream=True,
                                        **fields).content)
            (choice,) = whole["choices"]
            assert "".join(p["choices"][0]["text"] for p in pieces) == choice["text"]
            assert pieces[-1]["choices"][0]["finish_reason"] == choice["finish_reason"] == "stop"
            return choice["text"]
        assert text(stop="lo wi") == "hel"
        assert text(stop=["world", "wid"]) == "hello "
        assert text(stop=["worlds", "worst"]) == "hello wide world"
        assert text(stop="x") == "hello wide world"     # the prompt is not part of the answer
        usage = server.post(prompt="x", max_tokens=50, temperature=0, stop="lo").json()["usage"]
        assert usage["completion_tokens"] == 5          # those after it were never computed


def test_case_28_characters_of_several_tokens():
    """Case 28: no half character in any event; together they are the whole text."""
    said = "Grüße 🦊🧑‍🚀, 你好!"
    with served(scripted(said)) as server:
        fields = {"prompt": "x", "max_tokens": 99, "temperature": 0}
        assert server.post(**fields).json()["choices"][0]["text"] == said
        streamed = events(server.post(**fields, stream=True).content)
        texts = [e["choices"][0]["text"] for e in streamed]
        assert "".join(texts) == said and not any("\N{REPLACEMENT CHARACTER}" in t for t in texts)
        cut = server.post(prompt="x", max_tokens=8, temperature=0, stream=True)     # amid a fox
        texts = [e["choices"][0]["text"] for e in events(cut.content)]
        assert "".join(texts) == said.encode()[:8].decode(errors="replace")
        left = list("🦊".encode())                      # a prompt that ends amid a character
        assert "🦊" not in server.post(prompt=[left[:1]], max_tokens=1).text
