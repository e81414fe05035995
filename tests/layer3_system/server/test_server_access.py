"""Access to the server: hosts, origins, kinds of bodies, sizes of headers, and silence."""

import json
import socket
import time
from contextlib import closing

import pytest

from layer3_system.server import cli as serving
from layer3_system.server.hosts import Access, host_of, is_trusted
from tests.layer3_system.server.http_server import NAME, Gated, request, served, told, until

PATHS = (("GET", "/"), ("GET", "/health"), ("GET", "/ping"), ("GET", "/metrics"),
         ("GET", "/engine"), ("GET", "/version"), ("GET", "/v1/models"), ("GET", "/nowhere"),
         ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("POST", "/tokenize"),
         ("POST", "/detokenize"))
ORIGIN = "https://notes.example"
PREFLIGHT = {"Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "content-type, authorization"}


def connect(server):
    return closing(socket.create_connection(("127.0.0.1", server.port), timeout=300))


# ---- hosts


@pytest.mark.parametrize("method, path", PATHS)
def test_a_foreign_host_is_refused_everywhere(mock, method, path):
    """A foreign name that was made to point here: DNS rebinding."""
    answer = mock.http.request(method, path, headers={"Host": "evil.example:8000"})
    told(answer, 421, None, "--allow-host evil.example")


LOOPBACK = ("localhost", "LOCALHOST", "localhost:1", "127.0.0.1", "127.9.8.7:80", "[::1]",
            "[::1]:8000", "localhost.")


@pytest.mark.parametrize("host", LOOPBACK)
def test_this_machines_own_names_are_served(mock, host):
    assert mock.http.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0",
                                  "10.0.0.1", "[::]", "[", "a b", "localhost@evil.example", "::1",
                                  "user@localhost", "user:word@127.0.0.1:8000", "@localhost"])
def test_what_only_looks_like_this_machine_is_refused(mock, host):
    told(mock.http.get("/v1/models", headers={"Host": host}), 421, None, "--allow-host")


def test_which_hosts_are_trusted():
    """Listed names, the address it listens on, and any address if it listens on all."""
    listed = Access(hosts=("10.0.0.5", "Box.Example", "fe80::1"))
    for header in ("10.0.0.5:8000", "box.example", "BOX.example:80", "[fe80::1]:8000"):
        assert is_trusted(host_of(header), listed), header
    for header in ("10.0.0.6", "other.example", "sub.box.example", "", "[fe80::2]"):
        assert not is_trusted(host_of(header), listed), header
    for everywhere in ("0.0.0.0", "::"):
        network = Access(hosts=(everywhere,))
        assert all(is_trusted(host_of(a), network) for a in ("10.0.0.6", "[fe80::2]:1"))
        assert not is_trusted(host_of("box.example"), network)


def test_a_listed_host_is_served():
    with served(access=Access(hosts=("box.example",))) as server:
        assert server.http.get("/health", headers={"Host": "box.example:1"}).status_code == 200
        told(server.http.get("/health", headers={"Host": "box.other"}), 421)


def test_the_command_hands_over_hosts_and_origins(command, monkeypatch):
    given = []
    monkeypatch.setattr(serving, "listener_of", lambda *values: given.append(values[-1]))
    monkeypatch.setattr(serving, "run", lambda *_: None)
    code, _, wrong = command(serving.app, "serve", "--port", 0, "--allow-host", "a.example",
                             "--allow-host", "b.example", "--allow-origin", ORIGIN)
    assert not code, wrong
    assert given == [Access(hosts=("127.0.0.1", "a.example", "b.example"), origins=(ORIGIN,))]


# ---- bodies


@pytest.mark.parametrize("kind", [
    "text/plain", "text/plain;charset=UTF-8", "", "multipart/form-data", "application/jsonx",
    "application/x-www-form-urlencoded", "text/plain; application/json"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize",
                                  "/detokenize"])
def test_what_is_no_json_is_not_read(mock, path, kind):
    """A page elsewhere may post these kinds without permission."""
    body = json.dumps({"model": NAME, "prompt": "a"}).encode()
    answer = mock.http.post(path, content=body, headers={"Content-Type": kind})
    told(answer, 415, None, "expected application/json, found")
    assert not mock.bridge.calls


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_is_read_however_it_is_spelled(mock, kind):
    body = json.dumps({"model": NAME, "prompt": "a", "max_tokens": 1}).encode()
    answer = mock.http.post("/v1/completions", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 200


# ---- origins


def test_no_other_origin_is_let_in_unasked(mock):
    before = mock.http.options("/v1/completions", headers={"Origin": ORIGIN} | PREFLIGHT)
    plain = mock.http.get("/v1/models", headers={"Origin": ORIGIN})
    assert before.status_code == 405 and plain.status_code == 200
    for answer in (before, plain):
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_an_origin_that_is_listed():
    with served(access=Access(origins=(ORIGIN,)), key="k") as server:
        before = server.http.options("/v1/completions", headers={"Origin": ORIGIN} | PREFLIGHT)
        assert before.status_code == 200
        assert before.headers["access-control-allow-origin"] == ORIGIN
        assert "POST" in before.headers["access-control-allow-methods"]
        assert "authorization" in before.headers["access-control-allow-headers"]
        other = server.http.options("/v1/completions", headers={
            "Origin": "https://evil.example"} | PREFLIGHT)
        assert other.status_code == 400 and "access-control-allow-origin" not in other.headers
        heads = {"Origin": ORIGIN, "Authorization": "Bearer k"}
        for answer in (server.http.get("/v1/models", headers=heads),
                       server.http.get("/v1/models", headers={"Origin": ORIGIN}),    # no key: 401
                       server.http.get("/nowhere", headers=heads)):
            assert answer.headers["access-control-allow-origin"] == ORIGIN
            assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()


def test_an_origin_may_read_why_the_server_failed(monkeypatch):
    with served(access=Access(origins=(ORIGIN,))) as server:
        monkeypatch.setattr(server.bridge, "submit", None)
        answer = server.http.post("/v1/completions", json={"model": NAME, "prompt": "a"},
                                  headers={"Origin": ORIGIN})
        told(answer, 500, None, "NoneType")
        assert answer.headers["access-control-allow-origin"] == ORIGIN


# ---- the name of a request


def test_each_answer_names_its_request(mock):
    for method, path in PATHS:
        made = mock.http.request(method, path).headers["x-request-id"]
        echoed = mock.http.request(method, path, headers={"X-Request-Id": "mine-7"})
        assert len(made) == 32 and echoed.headers.get_list("x-request-id") == ["mine-7"]
    stream = mock.post(prompt="a", stream=True)
    assert stream.headers["x-request-id"] != made
    assert stream.headers["x-answer-id"] in stream.text         # the live page knows its own by it
    assert mock.openai.completions.create(model=NAME, prompt="a")._request_id
    refused = mock.http.get("/health", headers={"Host": "evil.example", "X-Request-Id": "r"})
    assert refused.headers["x-request-id"] == "r"


@pytest.mark.parametrize("name", ["x" * 201, "a b", "a\tb", "ü".encode(), ""])
def test_a_name_that_is_none_is_replaced(mock, name):
    answer = mock.http.get("/health", headers={"X-Request-Id": name})
    assert len(answer.headers["x-request-id"]) == 32


def test_a_fault_of_the_server_names_its_request(mock, monkeypatch):
    monkeypatch.setattr(mock.bridge, "submit", None)
    answer = mock.http.post("/v1/completions", json={"model": NAME, "prompt": "a"},
                            headers={"X-Request-Id": "mine-8"})
    assert answer.status_code == 500 and answer.headers["x-request-id"] == "mine-8"


# ---- headers that are too large, and clients that say no more


def read_all(client):
    found = b""
    try:
        while part := client.recv(2**16):
            found += part
    except ConnectionResetError:
        pass                                # it closed with some of what was sent unread
    return found


def error_of(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"x-request-id: " in head.lower()
    return head.split(b"\r\n")[0], json.loads(body)["error"]["message"]


def test_headers_may_be_large_and_no_larger(mock):
    value = {"X-Filler": "x" * 60_000}
    assert mock.http.get("/health", headers=value).status_code == 200
    told(mock.http.get("/health", headers={"X-Filler": "x" * 66_000}), 431, None, "65536 bytes")


def test_headers_that_never_end_are_refused(mock):
    with connect(mock) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        client.sendall(b"X-Filler: " + b"x" * 70_000)
        line, message = error_of(read_all(client))
        assert line == b"HTTP/1.1 431 Request Header Fields Too Large" and "65536" in message


def test_what_is_no_http_is_told_so(mock):
    with connect(mock) as client:
        client.sendall(b"hello\r\n\r\n")
        line, message = error_of(read_all(client))
        assert line == b"HTTP/1.1 400 Bad Request" and "HTTP" in message


@pytest.fixture(scope="module")
def impatient():
    with served(access=Access(patience=1)) as one:
        yield one


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: local"])
def test_a_client_that_does_not_finish_its_headers_is_let_go(impatient, sent):
    with connect(impatient) as client:
        client.sendall(sent)
        assert read_all(client) == b""


def test_headers_that_drip_are_let_go(impatient):
    """The time is for all of them: one byte now and then does not buy more."""
    with connect(impatient) as client:
        client.settimeout(0.05)
        client.sendall(b"GET /health HTTP/1.1\r\nX: ")

        def is_closed():
            try:
                client.sendall(b"x")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True
        until(is_closed)


def test_the_second_request_of_a_connection_has_the_same_time(impatient):
    first = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(impatient) as client:
        client.sendall(first)
        while not (answer := client.recv(2**16)).startswith(b"HTTP/1.1 200"):
            assert answer
        client.sendall(first[:20])
        assert read_all(client) == b""


def test_a_body_that_stalls_is_let_go(impatient):
    whole = request({"model": NAME, "prompt": "a"}).replace(b"Connection: close\r\n", b"")
    with connect(impatient) as client:
        client.sendall(whole[:-5])
        line, message = error_of(read_all(client))
        assert line == b"HTTP/1.1 408 Request Timeout" and "for 1 s" in message
    assert impatient.post(prompt="a", max_tokens=1).status_code == 200


def test_a_refused_body_that_stalls_is_let_go(impatient):
    """It was answered before its end, and then the client sends no more."""
    head = (b"POST /v1/nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n")
    with connect(impatient) as client:
        client.sendall(head + b"x" * 10)
        assert client.recv(2**16).startswith(b"HTTP/1.1 404")
        client.sendall(b"x")
        assert b"HTTP/1.1" not in read_all(client)


def test_a_slow_answer_is_no_silence():
    """The client's time does not run while the server computes."""
    model = Gated()
    with served(model, access=Access(patience=1)) as server:
        client = server.open(prompt="a", max_tokens=2)
        until(lambda: server.bridge.taken == 1)
        time.sleep(1.5)
        model.gate.release(100)
        assert read_all(client).startswith(b"HTTP/1.1 200")
        client.close()
