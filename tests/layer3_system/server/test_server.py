"""The server over HTTP: OpenAI's own client, what is asked wrongly, limits.

Most run on a model that can be worked out, in milliseconds; its text is noise.
"""

import socket

import openai
import pytest
import torch

from lab.course import ROOT
from layer2_graph import Tokenizer, load
from layer3_system import (
    ApiError,
    Bridge,
    ByteTokenizer,
    Engine,
    Limits,
    MockLlama,
    PrefixPool,
    SamplingParams,
)
from layer3_system.server import protocol
from layer3_system.server.app import make_app
from tests.layer3_system.server.http_server import (
    LONG,
    NAME,
    Gated,
    alone,
    events,
    read_all,
    served,
    told,
    until,
)

SMALL = ROOT / "layer2_graph" / "small"


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
    "tools": ({"tools": [{"type": "function"}]}, "tools", "the type function and a f"),
    "format": ({"response_format": {"type": "xml"}}, "response_format", "expected the type text"),
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


def mock_engine():
    return Engine(MockLlama(), ByteTokenizer(), PrefixPool(64))


def test_case_22_an_empty_prompt_costs_nothing():
    """Case 22: it is refused before it is in the mailbox."""
    bridge = Bridge(mock_engine())
    for prompt in ([], [1] * 600):
        with pytest.raises(ApiError) as refused:
            bridge.submit("call", [prompt], SamplingParams())
        assert refused.value.status == 400 and refused.value.field == "prompt"
        assert bridge.mail.empty() and not bridge.calls and bridge.taken == 0


def test_a_server_takes_a_bridge_of_ones_own():
    class Mine(Bridge):
        """As it is."""

    bridge = make_app(mock_engine(), "mock", kind=Mine).state.bridge
    assert type(bridge) is Mine and len(bridge.observers) == 2


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
        told(server.post("chat/completions", min_tokens=9, messages=[
            {"role": "user", "content": "hi"}]), 400, "min_tokens", "at most")
        said = server.post(prompt="a", ignore_eos=True).json()      # 16 where there is no limit
        assert said["usage"]["completion_tokens"] == 8
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
