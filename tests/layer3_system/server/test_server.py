"""The server over HTTP: OpenAI's own client, clients that misbehave, and what breaks below it.

Most run on a model that can be worked out, in milliseconds; its text is noise.
"""

import asyncio
import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from functools import partial
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import httpx
import openai
import psutil
import pytest
import torch

from lab import course
from lab.course import ROOT
from lab.desk.desk import Desk
from lab.judge.check import Verdict
from layer2_graph import Tokenizer, load
from layer3_system import (
    BlockPool,
    Bridge,
    ByteTokenizer,
    Call,
    Engine,
    Limits,
    MockLlama,
    News,
    Output,
    PrefixPool,
    SamplingParams,
    Scheduler,
    check_engine,
    mock_scores,
)
from layer3_system.server import app as addresses
from layer3_system.server import assembly, protocol
from layer3_system.server import cli as serving
from tests.layer3_system.server.http_server import (
    NAME,
    Fails,
    Gated,
    Served,
    events,
    let_through,
    request,
    scripted,
    served,
    told,
    until,
)

SMALL = ROOT / "layer2_graph" / "small"


@pytest.fixture(scope="module")
def mock():
    """One server for all tests that only ask."""
    with served() as one:
        yield one


def alone(prompt, **params):
    """What an engine without a server answers: a list of texts and their reasons."""
    engine = Engine(MockLlama(), ByteTokenizer())
    answers = engine.submit(list(prompt.encode()), SamplingParams(**params))
    texts = dict.fromkeys(answers, "")
    while engine.busy:
        for output in engine.step():
            texts[output.request] += output.text
    return [(text, request.reason, request) for request, text in texts.items()]


# ---- OpenAI's client


def test_a_completion_is_what_the_engine_answers(mock):
    want = [(text, reason) for text, reason, _ in alone("hello", seed=7, n=3, max_tokens=30,
                                                        temperature=0.8, top_k=50, top_p=0.9)]
    got = mock.openai.completions.create(
        model=NAME, prompt="hello", seed=7, n=3, max_tokens=30, temperature=0.8, top_p=0.9,
        extra_body={"top_k": 50})
    assert [(c.text, c.finish_reason) for c in got.choices] == want
    assert [c.index for c in got.choices] == [0, 1, 2] and len({text for text, _ in want}) == 3
    assert got.object == "text_completion" and got.id.startswith("cmpl-") and got.model == NAME
    assert (got.usage.prompt_tokens, got.usage.total_tokens) == (5, 5 + got.usage.completion_tokens)


def test_a_stream_has_the_same_text(mock):
    want = alone("hello", seed=7, n=2, max_tokens=30)
    texts, reasons, usages = ["", ""], [None, None], []
    for chunk in mock.openai.completions.create(
            model=NAME, prompt="hello", seed=7, n=2, max_tokens=30, stream=True,
            stream_options={"include_usage": True}):
        for choice in chunk.choices:
            assert reasons[choice.index] is None        # nothing comes after the end
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
        usages.append(chunk.usage)
    assert list(zip(texts, reasons, strict=True)) == [(text, reason) for text, reason, _ in want]
    *none, usage = usages
    assert set(none) == {None} and usage.prompt_tokens == 5
    assert usage.completion_tokens == sum(len(r.output) for *_, r in want)


def test_a_chat(mock):
    messages = [{"role": "system", "content": "Be short."},
                {"role": "user", "content": [{"type": "text", "text": "Hi, "},
                                             {"type": "text", "text": "you."}]}]
    said = "<system>Be short.<user>Hi, you.<assistant>"
    ((want, reason, _),) = alone(said, seed=3, max_tokens=20)
    got = mock.openai.chat.completions.create(model=NAME, messages=messages, seed=3,
                                              max_completion_tokens=20)
    message = got.choices[0].message
    assert (message.role, message.content, got.choices[0].finish_reason) == ("assistant", want,
                                                                             reason)
    assert got.object == "chat.completion" and got.usage.prompt_tokens == len(said)
    chunks = list(mock.openai.chat.completions.create(model=NAME, messages=messages, seed=3,
                                                      max_tokens=20, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [d.role for d in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(d.content or "" for d in deltas) == want
    assert chunks[-1].choices[0].finish_reason == reason


def test_prompts_in_every_form(mock):
    one = mock.post(prompt="ab", seed=1).json()["choices"][0]["text"]
    two = mock.post(prompt="c", seed=1).json()["choices"][0]["text"]
    assert mock.post(prompt=[97, 98], seed=1).json()["choices"][0]["text"] == one
    for prompts in (["ab", "c"], [[97, 98], [99]], ["ab", [99]]):
        got = mock.post(prompt=prompts, seed=1, n=2).json()
        assert [c["index"] for c in got["choices"]] == [0, 1, 2, 3]
        assert [c["text"] for c in got["choices"]][::2] == [one, two]
        assert got["usage"]["prompt_tokens"] == 3       # once, whatever n
    echoed = mock.post(prompt=["ab", [99]], seed=1, echo=True).json()["choices"]
    assert [c["text"] for c in echoed] == ["ab" + one, "c" + two]
    streamed = events(mock.post(prompt="ab", seed=1, echo=True, stream=True).content)
    assert "".join(e["choices"][0]["text"] for e in streamed) == "ab" + one


def test_logprobs_of_completions(mock):
    ((text, _, request),) = alone("hi", seed=5, max_tokens=9, logprobs=3)
    got = mock.openai.completions.create(model=NAME, prompt="hi", seed=5, max_tokens=9, logprobs=3)
    found = got.choices[0].logprobs
    decode = ByteTokenizer().decode
    assert found.tokens == [decode([t]) for t in request.output]
    assert found.token_logprobs == pytest.approx(
        [p[t] for t, p in zip(request.output, request.logprobs, strict=True)])
    for top, right in zip(found.top_logprobs, request.logprobs, strict=True):
        assert set(top) == {decode([t]) for t in right}
        assert max(top.values()) == pytest.approx(max(right.values()))
    assert found.text_offset == [len("".join(found.tokens[:i])) for i in range(9)]
    streamed = [c for e in events(mock.post(prompt="hi", seed=5, max_tokens=9, logprobs=3,
                                            stream=True).content) for c in e["choices"]]
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        pieces = [x for c in streamed if c["logprobs"] for x in c["logprobs"][name]]
        assert pieces == getattr(found, name)
    assert mock.post(prompt="hi").json()["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("top", [0, 2])
def test_logprobs_of_chats(mock, top):
    ((_, _, request),) = alone("<user>hi<assistant>", seed=5, max_tokens=9, logprobs=top)
    fields = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "seed": 5,
              "max_tokens": 9, "logprobs": True, "top_logprobs": top}
    whole = mock.openai.chat.completions.create(**fields).choices[0].logprobs.content
    pieces = [one for chunk in mock.openai.chat.completions.create(**fields, stream=True)
              if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content]
    assert whole == pieces and len(whole) == 9
    for one, token, right in zip(whole, request.output, request.logprobs, strict=True):
        text = ByteTokenizer().decode([token])
        assert one.token == text and one.logprob == pytest.approx(right[token])
        assert one.bytes == (None if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode()))
        assert [t.logprob for t in one.top_logprobs] == pytest.approx(
            sorted(right.values(), reverse=True)[:top])


def test_models(mock):
    (only,) = mock.openai.models.list().data
    assert only.id == NAME and mock.openai.models.retrieve(NAME) == only
    with pytest.raises(openai.NotFoundError):
        mock.openai.models.retrieve("gpt-4")


def test_the_shipped_model():
    """The text of the small Llama, by an engine without a server and by OpenAI's client."""
    model = load(SMALL, dtype=torch.float32)
    tokenizer = Tokenizer(SMALL, model.config)
    engine = Engine(model, tokenizer)
    (request,) = engine.submit(tokenizer.encode("Once upon a time"),
                               SamplingParams(max_tokens=24, temperature=0))
    want = ""
    while engine.busy:
        want += "".join(output.text for output in engine.step())
    with served(model, tokenizer=tokenizer) as server:
        fields = {"model": NAME, "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
        got = server.openai.completions.create(**fields)
        streamed = "".join(chunk.choices[0].text
                           for chunk in server.openai.completions.create(**fields, stream=True))
        assert got.choices[0].text == streamed == want and " there was" in want
        chat = server.openai.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=8,
            extra_body={"ignore_eos": True})
        assert chat.usage.completion_tokens == 8
        with pytest.raises(openai.BadRequestError, match="messages"):
            server.openai.chat.completions.create(
                model=NAME, messages=[{"role": "user", "content": "long " * 600}])


# ---- what is asked wrongly


LONG = "x" * 512
BAD = {
    "no model": ({"model": None, "prompt": "a"}, "model", "expected a text, found None"),
    "no prompt": ({}, "prompt", "found None"),
    "prompt of nothing": ({"prompt": []}, "prompt", "found []"),
    "prompt of a number": ({"prompt": 5}, "prompt", "found 5"),
    "prompt of both": ({"prompt": ["a", 5]}, "prompt", "expected a text, a list of tokens"),
    "tokens that are true": ({"prompt": [True]}, "prompt", "expected"),
    "no token": ({"prompt": [[]]}, "prompt", "expected one token or more"),
    "token too large": ({"prompt": [257]}, "prompt", "expected tokens from 0 to 256, found 257"),
    "token below 0": ({"prompt": [-1]}, "prompt", "found -1"),
    "half a character": ({"prompt": "\ud800"}, "prompt", "surrogates not allowed"),
    "max_tokens in words": ({"prompt": "a", "max_tokens": "ten"}, "max_tokens", "found 'ten'"),
    "max_tokens with a part": ({"prompt": "a", "max_tokens": 1.5}, "max_tokens", "found 1.5"),
    "max_tokens true": ({"prompt": "a", "max_tokens": True}, "max_tokens", "found True"),
    "max_tokens huge": ({"prompt": "a", "max_tokens": 10**30}, "max_tokens", "at most 511"),
    "min above max": ({"prompt": "a", "min_tokens": 5, "max_tokens": 4}, "min_tokens", "at most"),
    "too hot": ({"prompt": "a", "temperature": 1000}, "temperature", "from 0 to 100"),
    "cold": ({"prompt": "a", "temperature": -0.1}, "temperature", "found -0.1"),
    "top_p": ({"prompt": "a", "top_p": 0}, "top_p", "above 0, at most 1"),
    "top_k": ({"prompt": "a", "top_k": -2}, "top_k", "found -2"),
    "n of none": ({"prompt": "a", "n": 0}, "n", "from 1 to 128"),
    "n beyond the seats": ({"prompt": "a", "n": 100}, "n", "at most 32"),
    "seed": ({"prompt": "a", "seed": 2**63}, "seed", "64 bits"),
    "stop": ({"prompt": "a", "stop": 5}, "stop", "at most 16 texts"),
    "stops of nothing": ({"prompt": "a", "stop": ["a", ""]}, "stop", "none of them empty"),
    "stop tokens": ({"prompt": "a", "stop_token_ids": ["a"]}, "stop_token_ids", "list of tokens"),
    "logprobs": ({"prompt": "a", "logprobs": 21}, "logprobs", "from 0 to 20"),
    "logprobs true": ({"prompt": "a", "logprobs": True}, "logprobs", "found True"),
    "stream": ({"prompt": "a", "stream": "yes"}, "stream", "expected true or false"),
    "stream_options": ({"prompt": "a", "stream_options": {"include_usage": True}},
                       "stream_options", "with stream"),
    "user": ({"prompt": "a", "user": 5}, "user", "expected a text"),
    "unknown": ({"prompt": "a", "beams": 4}, "beams", "unknown field"),
    "its own id": ({"prompt": "a", "request_id": "x"}, "request_id", "unknown field"),
    "best_of": ({"prompt": "a", "best_of": 3}, "best_of", "not supported"),
    "best_of true": ({"prompt": "a", "best_of": True}, "best_of", "not supported"),
    "bias of a word": ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "(('x', 1),)"),
    "bias beyond": ({"prompt": "a", "logit_bias": {"257": 1}}, "logit_bias", "0 to 256, found 257"),
    "large bias": ({"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias", "from -100 to 100"),
    "bias twice": ({"prompt": "a", "logit_bias": {"5": 1, "05": 2}}, "logit_bias", "each with a"),
    "no bias": ({"prompt": "a", "logit_bias": [[5, 1]]}, "logit_bias", "found [[5, 1]]"),
    "presence": ({"prompt": "a", "presence_penalty": 2.1}, "presence_penalty", "from -2 to 2"),
    "frequency": ({"prompt": "a", "frequency_penalty": True}, "frequency_penalty", "found True"),
    "repetition": ({"prompt": "a", "repetition_penalty": 0}, "repetition_penalty", "from 0.01"),
    "min_p": ({"prompt": "a", "min_p": 1.5}, "min_p", "from 0 to 1, found 1.5"),
    "echo": ({"prompt": "a", "echo": True, "logprobs": 1}, "echo", "not supported with logprobs"),
    "long value": ({"prompt": "a", "temperature": "x" * 10**5}, "temperature", "…"),
}
BAD_CHATS = {
    "no messages": ({}, "messages", "found None"),
    "empty": ({"messages": []}, "messages", "one or more"),
    "texts": ({"messages": ["hi"]}, "messages", "messages[0]"),
    "role": ({"messages": [{"role": "king", "content": "hi"}]}, "messages", "expected a role"),
    "picture": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages",
                "a content of text"),
    "calls": ({"messages": [{"role": "user", "content": "hi", "tool_calls": [{}]}]},
              "messages", "expected only"),
    "tools": ({"tools": [{"type": "function"}]}, "tools", "not supported"),
    "format": ({"response_format": {"type": "json_object"}}, "response_format", "json_schema"),
    "prompt": ({"prompt": "a"}, "prompt", "unknown field"),
    "length": ({"max_completion_tokens": 0}, "max_completion_tokens", "found 0"),
    "logprobs": ({"logprobs": 1}, "logprobs", "true or false"),
    "top too many": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
    "two lengths": ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens", "found both"),
    "top": ({"top_logprobs": 2}, "top_logprobs", "expected logprobs to be true"),
    "too long": ({"messages": [{"role": "user", "content": LONG}]}, "messages", "at most 511"),
    "no room": ({"max_completion_tokens": 511}, "max_completion_tokens", "expected at most"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_field_is_named(mock, case):
    fields, field, says = BAD[case]
    told(mock.post(**fields), 400, field, says)


@pytest.mark.parametrize("case", BAD_CHATS)
def test_a_wrong_field_of_a_chat_is_named(mock, case):
    fields, field, says = BAD_CHATS[case]
    messages = {} if "messages" in case or "messages" in fields else {
        "messages": [{"role": "user", "content": "hi"}]}
    told(mock.post("chat/completions", **messages, **fields), 400, field, says)


def test_what_asks_for_nothing_is_taken(mock):
    nothing = {name: values[0] for name, values in protocol.NEUTRAL.items()}
    null = dict.fromkeys([*nothing, "temperature", "max_tokens", "n", "stop", "seed", "logprobs",
                          "stream", "stream_options"])
    for fields in (nothing, null):
        assert mock.post(prompt="a", seed=1, **{k: v for k, v in fields.items() if k != "seed"}
                         ).status_code == 200


BODIES = {
    "not UTF-8": (b'{"model": "\xff"}', "not UTF-8"),
    "not JSON": (b"hello", "not JSON"),
    "nothing": (b"", "not JSON"),
    "half": (b'{"model": "mock", "prompt": "a', "not JSON"),
    "a list": (b"[1]", "expected a JSON object, found [1]"),
    "no number": (b'{"model": "mock", "prompt": "a", "temperature": NaN}', "NaN is not a number"),
    "deep": (b"[" * 200_000, "not JSON"),
    "many digits": (b'{"n": ' + b"9" * 10_000 + b"}", "not JSON"),
    "UTF-16": ('{"model": "mock"}'.encode("utf-16"), "not UTF-8"),
}


@pytest.mark.parametrize("case", BODIES)
def test_a_body_that_is_no_json(mock, case):
    body, says = BODIES[case]
    for path in ("completions", "chat/completions"):
        told(mock.http.post(f"/v1/{path}", content=body), 400, None, says)


def test_case_5_a_prompt_that_is_too_long(mock):
    """Case 5: as long as the context, or with its answer longer: 400, and never silence."""
    told(mock.post(prompt=LONG), 400, "prompt", "expected at most 511 tokens")
    told(mock.post(prompt=LONG * 100, stream=True), 400, "prompt")
    told(mock.post(prompt=LONG[:500], max_tokens=13), 400, "max_tokens", "at most 12")
    whole = mock.post(prompt=LONG[:500], max_tokens=12, ignore_eos=True).json()
    assert whole["usage"]["total_tokens"] == 512
    said = mock.post("chat/completions", messages=[{"role": "user", "content": LONG[:480]}],
                     ignore_eos=True).json()            # as much as there is room for
    assert said["usage"]["total_tokens"] == 512
    assert said["choices"][0]["finish_reason"] == "length"


def test_case_22_no_tokens(mock):
    """Case 22: an empty prompt, no or fewer tokens are refused; one token takes one step."""
    told(mock.post(prompt=""), 400, "prompt", "expected one token or more, found none")
    for most in (0, -1):
        told(mock.post(prompt="a", max_tokens=most), 400, "max_tokens", f"found {most}")
    before = mock.engine.model.steps
    got = mock.post(prompt="abc", max_tokens=1).json()
    assert mock.engine.model.steps == before + 1 and got["usage"]["completion_tokens"] == 1


def test_unknown_addresses_and_models(mock):
    told(mock.http.get("/v1/completions"), 405, None, "Method Not Allowed")
    told(mock.http.post("/v1/embeddings", json={}), 404, None, "Not Found")
    assert told(mock.post(model="gpt-4", prompt="a"), 404, "model")["code"] == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        mock.openai.completions.create(model="gpt-4", prompt="a")


def test_the_key():
    with served(key="secret 🗝".encode().decode("latin-1")) as server:
        for head in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"},
                     {"Authorization": b"Bearer \xff"}):
            for method, path in (("POST", "/v1/completions"), ("POST", "/v1/chat/completions"),
                                 ("GET", "/v1/models"), ("GET", "/v1/models/mock"),
                                 ("GET", "/engine")):
                answer = server.http.request(method, path, headers=head)
                assert told(answer, 401)["code"] == "invalid_api_key"
                assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert server.http.get("/health").status_code == 200
        assert server.http.get("/metrics").status_code == 200
    with served(key="secret") as server:
        assert server.openai.completions.create(model=NAME, prompt="a", max_tokens=1).choices
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="x").models.list()


# ---- limits


def test_a_body_that_is_too_large():
    with served(limits=Limits(body=1000)) as server:
        told(server.post(prompt="x" * 1000), 413, None, "larger than 1000 bytes")
        parts = (b"x" * 100 for _ in range(100))        # its length is not announced
        told(server.http.post("/v1/completions", content=parts), 413)
        assert server.post(prompt="a").status_code == 200


def test_answers_that_are_too_long():
    with served(limits=Limits(tokens=8)) as server:
        told(server.post(prompt="a", max_tokens=9), 400, "max_tokens", "at most 8")
        assert server.post(prompt="a", max_tokens=8).status_code == 200
        for words, most in (("hi", 8), (LONG[:490], 5)):        # 17 are the template's
            said = server.post("chat/completions", ignore_eos=True,
                               messages=[{"role": "user", "content": words}]).json()
            assert said["usage"]["completion_tokens"] == most


def test_a_full_queue():
    model = Gated()
    with served(model, limits=Limits(queue=3), max_seqs=2) as server:
        told(server.post(prompt=["a"] * 6), 400, "prompt", "at most 5 answers, found 6")
        clients = [server.open(prompt="a", max_tokens=2) for _ in range(5)]
        until(lambda: server.bridge.taken == 5)
        answer = server.post(prompt="a")
        assert told(answer, 429)["code"] == "queue_full"
        assert int(answer.headers["Retry-After"]) >= 1
        with pytest.raises(openai.RateLimitError):
            server.openai.completions.create(model=NAME, prompt="a")
        model.gate.release(1000)
        assert all(b"200 OK" in read_all(client) for client in clients)
        assert server.post(prompt="a").status_code == 200


def test_a_step_that_never_ends():
    """A kernel that hangs costs a client its time limit, no more."""
    model = Gated()
    with served(model, limits=Limits(seconds=1)) as server:
        told(server.post(prompt="a"), 504, None, "no answer in 1 s")
        streamed = events(server.post(prompt="a", stream=True).content)
        assert [e["error"]["type"] for e in streamed] == ["server_error"]
        told(server.http.get("/engine"), 504)
        model.gate.release(1000)


def test_a_body_that_never_ends():
    with served(limits=Limits(seconds=0.3)) as server:
        client = socket.create_connection(("127.0.0.1", server.port), timeout=300)
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                       b"Content-Type: application/json\r\n"
                       b"Content-Length: 100\r\n\r\n{")
        assert b"408 Request Timeout" in read_all(client)


# ---- clients that leave or are slow


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
    end; a call is closed twice. Pages are given back once, and the others' answers stay."""
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
        return [news async for news in call.pieces()]
    assert asyncio.run(one()) == [{0: News("a" * 500, 500, "length"),
                                   1: News("a" * 500, 500, "length")}]


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
        until(lambda: sum(news.tokens for news in call.news.values()) > 100)
        assert len(call.news) == 1
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**18)     # it is quick from here on
        found = (found + read_all(slow)).partition(b"\r\n\r\n")[2]
        pieces = [json.loads(e) for e in re.findall(rb"data: (\{.*\})", dechunked(found))]
        assert "".join(p["choices"][0]["text"] for p in pieces) == want
        assert len(pieces) < 400                        # some came joined
        assert sum(len(p["choices"][0]["logprobs"]["tokens"]) for p in pieces) == 500


def dechunked(content):
    """The bytes of a body in chunks."""
    found = b""
    while content:
        size, _, content = content.partition(b"\r\n")
        found, content = found + content[:int(size, 16)], content[int(size, 16) + 2:]
    return found


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
    """Each gets its answer or a 429; no client waits for ever. The engine begins when all have been
    taken or refused."""
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
        stream = server.open(prompt="a", stream=True)
        whole = server.open(prompt="a")
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
        clients = [server.open(prompt="a"), server.open(prompt="a", stream=True)]
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


# ---- what it tells of itself


def values(server):
    """{line's name with its labels: value} of /metrics."""
    text = server.http.get("/metrics").text
    assert text.splitlines()[0].startswith("# HELP vllm:")
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in text.splitlines() if line[0] != "#"}


def value(found, name, **labels):
    inside = ",".join(f'{k}="{v}"' for k, v in sorted((labels | {"model_name": NAME}).items()))
    return found[f"vllm:{name}{{{inside}}}"]


def test_case_33_metrics():
    """Case 33: counted once, by the engine's clock; TTFT has the wait in the queue and is not begun
    again by a preemption; an answer of one token has no TPOT."""
    model = Gated()
    with served(model, pages=8, max_seqs=4) as server:
        fields = {"max_tokens": 40, "ignore_eos": True}
        clients = [server.open(prompt=f"{i}" * 20, **fields) for i in range(4)]
        until(lambda: server.bridge.taken == 4)
        step(server, model, 2)
        time.sleep(0.3)                                 # they wait for it, all of them
        assert value(values(server), "num_requests_running") >= 1
        model.gate.release(10_000)
        for client in clients:
            read_all(client)
        found = values(server)
        assert value(found, "num_preemptions_total") > 0        # 4 · 60 tokens, 8 · 16 slots
        assert value(found, "time_to_first_token_seconds_count") == 4
        assert value(found, "request_queue_time_seconds_count") == 4
        assert value(found, "prompt_tokens_total") == 80
        assert value(found, "generation_tokens_total") == 160
        assert value(found, "inter_token_latency_seconds_count") == 156
        assert value(found, "request_time_per_output_token_seconds_count") == 4
        assert value(found, "request_success_total", finished_reason="length") == 4
        assert value(found, "e2e_request_latency_seconds_sum") >= value(
            found, "time_to_first_token_seconds_sum") >= value(
            found, "request_queue_time_seconds_sum") > 0
        assert value(found, "num_requests_running") == value(found, "num_requests_waiting") == 0
        assert value(found, "kv_cache_usage_perc") == 0
        server.post(prompt="0" * 20, max_tokens=1)
        server.post(prompt="0" * 40, max_tokens=1)
        server.post(prompt="0" * 40, max_tokens=1)
        after = values(server)
        assert value(after, "request_time_per_output_token_seconds_count") == 4
        assert value(after, "time_to_first_token_seconds_count") == 7
        assert value(after, "prefix_cache_queries_total") == 180
        assert value(after, "prefix_cache_hits_total") >= 32    # two full pages of the last one


def test_case_33_counters_never_fall():
    """Case 33: under load, with clients that leave and kernels that raise."""
    with served(Fails(), pages=16, max_seqs=8) as server:
        seen = []
        for i in range(60):
            client = server.open(prompt="!" * (i % 5 == 0) + f"{i}" * 20, max_tokens=30, n=2)
            if i % 3:
                threading.Thread(target=read_all, args=(client,), daemon=True).start()
            else:
                client.close()
            seen.append(values(server))
        server.drained()
        seen.append(values(server))
        gauges = ("num_requests", "kv_cache", "_created")
        for before, after in zip(seen, seen[1:], strict=False):
            for name in before:
                if not any(word in name for word in gauges):
                    assert after[name] >= before[name], name
        reasons = {reason: value(seen[-1], "request_success_total", finished_reason=reason)
                   for reason in ("abort", "error", "length")}
        assert all(reasons.values()), reasons
        assert server.engine.submitted == sum(
            n for name, n in seen[-1].items() if "request_success_total" in name)


def test_what_the_engine_is_doing():
    """/engine shows what live.py lists, at one moment between two steps."""
    model = Gated()
    with served(model, max_seqs=2) as server:
        clients = [server.open(prompt="the same begin of " * 2, max_tokens=9, ignore_eos=True,
                               seed=i) for i in range(3)]
        until(lambda: server.bridge.taken == 3)
        step(server, model, 4)

        async def between():                            # asked while a step is at the gate
            async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
                protocol = asyncio.ensure_future(http.get("/engine"))
                while server.bridge.mail.empty():
                    await asyncio.sleep(0.002)
                model.gate.release()
                return (await protocol).json()
        found = asyncio.run(between())
        assert set(found) == {"pages", "slots", "requests", "refs", "remembered", "running",
                              "waiting", "steps", "seconds", "ttft", "tpot", "throughput", "tiers"}
        assert found["tiers"] == []                     # no memory below
        assert (found["pages"], found["slots"], len(found["refs"])) == (64, 16, 64)
        assert (found["running"], found["waiting"], len(found["requests"])) == (2, 1, 3)
        *running, waiting = found["requests"].values()
        assert [r["status"] for r in running] == ["running"] * 2
        assert waiting["status"] == "waiting" and waiting["table"] == []
        held = [page for r in running for page in r["table"]]
        assert sum(found["refs"]) == len(held) and len(set(held)) == 4      # two are shared
        for r in running:
            assert r["prompt"] == 36 and r["computed"] == r["known"] - 1 > 36
        first, *_, last = found["steps"]
        assert first["step"] == 1 and first["counts"] == first["prompts"]
        assert sum(last["counts"].values()) == 2 and last["prompts"] == {}
        assert found["ttft"] > 0 and found["throughput"] > 0 and found["tpot"] is None
        model.gate.release(1000)
        for client in clients:
            read_all(client)
        found = server.http.get("/engine").json()
        assert found["requests"] == {} and set(found["refs"]) == {0} and found["tpot"] > 0
        assert len(found["remembered"]) >= 2 and len(found["steps"]) <= 200


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_memory_stays_flat():
    """20,000 requests, some of whose clients leave: no object and not 20 MB more than after the
    first 4,000. Below that is what malloc and the threads keep for later."""
    with served(limits=Limits(queue=10**6)) as server:
        fields = {"model": NAME, "prompt": "hello", "max_tokens": 2}

        async def client(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            data = request(fields).replace(b"Connection: close\r\n", b"")
            for _ in range(count):
                writer.write(data)
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(re.search(rb"content-length: (\d+)", head)[1])
                await reader.readexactly(length)
            writer.write(request(fields | {"max_tokens": 100}))     # and goes
            await writer.drain()
            writer.close()

        async def every(count):
            await asyncio.gather(*(client(count // 16) for _ in range(16)))
        def held(count):
            asyncio.run(every(count))
            server.drained()
            gc.collect()
            return len(gc.get_objects()), psutil.Process().memory_info().rss

        before, bytes_before = held(4_000)
        after, bytes_after = held(16_000)
        assert server.engine.finished >= 20_000
        assert after - before < 1_000, f"{after - before:,} objects more"
        assert bytes_after - bytes_before < 20e6, f"{bytes_after - bytes_before:,} bytes more"


# ---- the command


@pytest.fixture
def run(command):
    return partial(command, serving.app, "serve")


BAD_WORDS = {
    "back end": (["--kernels", "metal"], "'metal', expected torch, triton, cuda or mine"),
    "model": (["no/such"], "no folder no/such, and no model of that name was fetched"),
    "a file": (["README.md"], "no folder README.md"),
    "not a model": (["docs"], "no folder docs"),
    "dtype": (["--dtype", "int8"], "expected float32, bfloat16, float16"),
    "budget": (["--budget", "8", "--max-seqs", "9"], "expected 1 <= max_seqs <= budget"),
    "host": (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
    "port": (["--port", "70000"], "--port"),
    "no desk": (["--kernels", "mine", "--desk", "no such"], "run `lab start`"),
}


@pytest.mark.parametrize("case", BAD_WORDS)
def test_bad_words_are_one_line_and_exit_2(run, monkeypatch, case):
    words, says = BAD_WORDS[case]
    if "kernels" in str(words):
        monkeypatch.setattr(serving.device, "use_simulator", lambda: None)
    code, _, wrong = run(*words)
    assert code == 2 and says in wrong and len(wrong.splitlines()) == 1, wrong


def folder_with(folder, **entries):
    """The small model's files, and these entries in config.json besides its own."""
    for path in SMALL.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    own = json.loads((SMALL / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(own | entries), "utf-8")
    return folder


def test_an_entry_that_is_not_implemented_is_refused_unless_it_is_to_be_ignored(
        run, monkeypatch, tmp_path):
    folder = folder_with(tmp_path, logits_scaling=8.0)
    code, _, wrong = run(folder, "--port", 0)
    assert code == 2 and "logits_scaling is 8.0" in wrong and len(wrong.splitlines()) == 1
    assert "--ignore-config logits_scaling" in wrong
    monkeypatch.setattr(serving, "run", lambda *given: print("it serves"))
    code, said, _ = run(folder, "--port", 0, "--ignore-config", "logits_scaling")
    assert not code and "it serves" in said


def test_heads_that_the_kernels_do_not_take_are_refused_before_it_listens(
        run, monkeypatch, tmp_path):
    """The small model's 6 heads of 32 numbers as 24 of 8: the same matrices."""
    folder = folder_with(tmp_path, num_attention_heads=24, num_key_value_heads=8, head_dim=8)
    monkeypatch.setattr(serving.device, "use_simulator", lambda: None)
    monkeypatch.setattr(serving, "run", lambda *given: print("it serves"))
    code, said, wrong = run(folder, "--port", 0, "--kernels", "triton")
    assert code == 2 and "24 heads, 8 wide" in wrong and len(wrong.splitlines()) == 1
    assert "expected a multiple of 16, 16 to 128; --kernels torch takes them" in wrong
    code, said, wrong = run(folder, "--port", 0)
    assert not code and "it serves" in said, wrong


def test_where_a_model_is_found(monkeypatch, tmp_path):
    fetched = tmp_path / "models" / "somebody" / "a-model"
    fetched.mkdir(parents=True)
    monkeypatch.setattr(serving.device, "cache_folder", lambda: tmp_path)
    assert serving.find_model("somebody/a-model", False) == (fetched, "somebody/a-model")
    assert serving.find_model(str(SMALL), False) == (SMALL, "small")
    assert serving.find_model(None, False) == (SMALL, "small")
    assert serving.find_model(None, True)[1] == "nano"      # in the simulator


def test_a_port_that_is_taken(run):
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, _, wrong = run("--port", other.getsockname()[1])
    assert code == 2 and "Address already in use" in wrong and len(wrong.splitlines()) == 1


def test_what_is_small_is_sent_at_once():
    """Else a piece of a stream waits until the one before is acknowledged, for up to 40 ms."""
    with (serving.listen("127.0.0.1", 0) as listening,
          socket.create_connection(listening.getsockname(), timeout=5),
          listening.accept()[0] as end):
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_it_says_whose_parts_run(run, monkeypatch):
    monkeypatch.setattr(serving, "run", lambda *given: print(given[1:4]))
    code, said, _ = run("--port", 0, "--name", "mine", "--tokens", 50, "--api-key", "k")
    assert not code and "paged_attention_cpu" in said and "BlockPool        reference" in said
    assert "('mine', Limits(body=1048576, tokens=50, queue=1024" in said and "'k')" in said


class Desks(Desk):
    """A desk with given modules, on which some exercises passed."""

    def __init__(self, passed, **modules):
        self.names, self.modules = passed, modules

    def passed(self, exercise):
        return exercise.name in self.names

    def module(self, lesson):
        return self.modules[lesson.id]


@pytest.fixture
def lessons(monkeypatch):
    def lesson(id, *names, reached=()):
        exercises = [SimpleNamespace(name=name) for name in names]
        return SimpleNamespace(id=id, exercises=exercises, reached=lambda name: [
            e for e in exercises if e.name in reached])
    monkeypatch.setattr(assembly.course, "lessons", lambda: [
        lesson("s01_request", "sample_row", "predict_seed", reached=("sample_row",)),
        lesson("s02_block_pool", "BlockPool.take", "BlockPool.copy_on_write", "pages_for",
               reached=("pages_for",))])


def test_a_part_is_the_learners_where_all_of_it_passed(lessons):
    pool, sample = object(), object()
    modules = {"s02_block_pool": SimpleNamespace(BlockPool=pool),
               "s01_request": SimpleNamespace(sample_rows=sample)}

    def own(*passed):
        desk = Desks(passed, **modules)
        return {name for name in assembly.PARTS if assembly.own_part(desk, name)}
    assert own() == set()
    assert own("BlockPool.take", "BlockPool.copy_on_write") == set()
    assert own("BlockPool.take", "BlockPool.copy_on_write", "pages_for") == {"BlockPool"}
    assert own("sample_row") == {"sample_rows"}


def test_the_learners_parts_run_in_the_engine():
    """Their block pool below the prefix cache, their chain, scheduler and sampler."""
    seen = set()

    def counted(kind, *names):
        def method(name):
            def called(self, *values):
                seen.add(f"{kind.__name__}.{name}")
                return getattr(kind, name)(self, *values)
            return called
        return type(kind.__name__, (kind,), {name: method(name) for name in names})

    parts = assembly.PARTS

    def sample_rows(logits, params):
        seen.add("sample_rows")
        return parts["sample_rows"](logits, params)
    own = {"BlockPool": counted(BlockPool, "take", "release", "match_prefix"),
           "HashChain": counted(parts["HashChain"], "find"),
           "PrefixPool": counted(PrefixPool, "match_prefix"),
           "Scheduler": counted(Scheduler, "admit"), "sample_rows": sample_rows}
    engine = assembly.build(MockLlama(), ByteTokenizer(), None, own, 32)
    for _ in range(2):
        (request,) = engine.submit(list(b"a text of more than a page"), SamplingParams(seed=1))
        while engine.busy:
            engine.step()
        check_engine(engine)
    assert request.num_cached == 16
    assert seen == {"BlockPool.take", "BlockPool.release", "HashChain.find",
                    "PrefixPool.match_prefix", "Scheduler.admit", "sample_rows"}
    (want,) = alone("a text of more than a page", seed=1)
    assert request.output == want[2].output


S08 = course.find("s08_server")
OF_A_BRIDGE = ("Bridge.read_mail", "Bridge.make_room", "Call.add")
OWN_WORDS = {"run and wait already": "are on MY desk", "request failed": "is MY error"}


def desk_with(folder, *passed):
    """A desk with right answers to all of s08, of which these passed. Two sentences are its own."""
    desk = Desk(folder)
    desk.prepare()
    desk.start(S08)
    text = S08.sources["python"]
    for ours, own in OWN_WORDS.items():
        assert text.count(ours) == 1
        text = text.replace(ours, own)
    desk.path(S08, ".py").write_text(text)
    desk.record(S08, desk.candidate(S08), [Verdict(name, "pass", 1, 1) for name in passed])
    return desk


def test_the_learners_bridge_serves(tmp_path):
    """Its refusals and failures reach the client as the course's own do."""
    bridge = assembly.own_part(desk_with(tmp_path, *OF_A_BRIDGE), "Bridge")
    model = Gated()
    with served(model, limits=Limits(queue=0), max_seqs=1, kind=bridge) as server:
        told(server.post(prompt=["a"] * 2), 400, "prompt", "at most 1 answers, found 2")
        told(server.post(prompt=LONG + "x"), 400, "prompt")
        client = server.open(prompt="a", max_tokens=2)
        until(lambda: server.bridge.taken == 1)
        answer = server.post(prompt="a")
        assert told(answer, 429, says="on MY desk")["code"] == "queue_full"
        assert int(answer.headers["Retry-After"]) >= 1
        model.gate.release(1000)
        assert b"200 OK" in read_all(client)
    with served(Fails(), kind=bridge) as server:
        told(server.post(prompt="!bad"), 500, says="MY error")
        *_, last = events(server.post(prompt="!bad", stream=True).content)
        assert last["error"]["type"] == "server_error" and "MY error" in last["error"]["message"]
        ((want, *_),) = alone("good", seed=1)
        assert server.post(prompt="good", seed=1).json()["choices"][0]["text"] == want


@pytest.mark.parametrize("left_out", OF_A_BRIDGE)
def test_a_bridge_of_which_a_part_did_not_pass_does_not_serve(tmp_path, left_out):
    desk = desk_with(tmp_path, *(name for name in OF_A_BRIDGE if name != left_out))
    assert assembly.own_part(desk, "Bridge") is None


@pytest.mark.parametrize("passed, whose", [(OF_A_BRIDGE, "mine"), ((), "reference")])
def test_the_command_serves_with_the_learners_bridge(run, monkeypatch, tmp_path, passed, whose):
    desk_with(tmp_path, *passed)
    apps = []
    monkeypatch.setattr(serving.device, "use_simulator", lambda: None)
    monkeypatch.setattr(addresses, "Listener", lambda app, **_: SimpleNamespace(
        run=lambda sockets: apps.append(app)))
    code, said, wrong = run("--kernels", "mine", "--desk", tmp_path, "--port", 0)
    assert not code, wrong
    assert f"  {'Bridge':16} {whose}\n" in said
    assert (type(apps[0].state.bridge) is Bridge) == (whose == "reference")


def test_an_address_that_others_reach_is_said():
    assert serving.is_own("127.0.0.1") and serving.is_own("::1") and serving.is_own("localhost")
    assert not serving.is_own("0.0.0.0") and not serving.is_own("10.0.0.1")
    assert not serving.is_own("::") and not serving.is_own("example.org")


def test_heavy_imports_are_lazy():
    code = ("import sys, layer3_system; print([m for m in ('fastapi', 'uvicorn', "
            "'prometheus_client') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_pyproject_registers_it():
    with open(ROOT / "pyproject.toml", "rb") as file:
        registered = tomllib.load(file)["project"]["entry-points"]["lab.commands"]
    assert EntryPoint("serve", registered["serve"], "lab.commands").load() is serving.app
