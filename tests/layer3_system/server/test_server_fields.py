"""What clients may write in a request: whole characters, earlier answers, tokens."""

import json

import pytest

from lab.course import ROOT
from layer2_graph import Tokenizer, read_config
from layer3_system.server.tokenization import detokenize, tokenize
from tests.layer3_system.server.http_server import NAME, events, served, told

SMALL = ROOT / "layer2_graph" / "small"
HALF = "a\ud800b"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def small():
    """The shipped tokenizer on a model that can be worked out: its library speaks Rust's UTF-8."""
    from layer3_system import MockLlama

    with served(MockLlama(V=4096), tokenizer=Tokenizer(SMALL, read_config(SMALL))) as one:
        yield one


# ---- half a character


HALVES = {
    "prompt": ("completions", {"prompt": HALF}),
    "prompts": ("completions", {"prompt": ["a", HALF]}),
    "stop": ("completions", {"prompt": "a", "stop": HALF}),
    "stops": ("completions", {"prompt": "a", "stop": ["x", HALF]}),
    "user": ("completions", {"prompt": "a", "user": HALF}),
    "suffix": ("completions", {"prompt": "a", "suffix": HALF}),
    "model": ("completions", {"prompt": "a", "model": HALF}),
    "logit_bias": ("completions", {"prompt": "a", "logit_bias": {HALF: 1}}),
    "an unknown field": ("completions", {"prompt": "a", HALF: 1}),
    "messages": ("chat/completions", {"messages": [{"role": "user", "content": HALF}]}),
    "parts": ("chat/completions", {"messages": [{"role": "user", "content": [
        {"type": "text", "text": HALF}]}]}),
    "role": ("chat/completions", {"messages": [{"role": HALF, "content": "a"}]}),
    "name": ("chat/completions", {"messages": [{"role": "user", "content": "a", "name": HALF}]}),
    "tools": ("chat/completions", {"messages": HI, "tools": [{"function": {"name": HALF}}]}),
    "format": ("chat/completions", {"messages": HI, "response_format": {"type": HALF}}),
}


@pytest.mark.parametrize("server", ["mock", "small"])
@pytest.mark.parametrize("case", HALVES)
def test_half_a_character_is_refused(server, case, request):
    path, fields = HALVES[case]
    for stream in (False, True):
        answer = request.getfixturevalue(server).post(path, **fields | {"stream": stream})
        error = answer.json()["error"]
        assert answer.status_code == 400 and "surrogates not allowed" in error["message"], error
        assert error["param"] in fields


@pytest.mark.parametrize("path, field", [("tokenize", "prompt"), ("tokenize", "messages"),
                                         ("detokenize", "tokens"), ("detokenize", "model")])
def test_half_a_character_is_no_token(small, path, field):
    answer = small.http.post(f"/{path}", content=json.dumps({"tokens": [1], field: [HALF]}))
    told(answer, 400, field, "surrogates not allowed")


def test_two_halves_are_a_character(mock):
    answer = mock.http.post("/v1/completions", content=json.dumps(
        {"model": NAME, "prompt": "\U0001f98a", "echo": True, "max_tokens": 1}))
    assert answer.request.content.count(b"\\ud") == 2           # escaped, both halves
    assert answer.json()["choices"][0]["text"].startswith("\U0001f98a")


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_what_asks_for_nothing_is_passed_over(mock, path):
    """null in any field, also in one that the server does not know."""
    own = {"messages": HI} if path.startswith("chat") else {"prompt": "a"}
    nothing = {"metadata": {}, "reasoning_effort": None, "whatever": None, "best_of": None}
    answers = [mock.post(path, seed=1, **own, **more) for more in ({}, nothing, {"metadata": None})]
    assert len({json.dumps(answer.json()["choices"]) for answer in answers}) == 1
    told(mock.post(path, **own, metadata={"a": "b"}), 400, "metadata", "not supported here")
    told(mock.post(path, **own, reasoning_effort="low"), 400, "reasoning_effort", "unknown field")


# ---- messages that come back


NEUTRAL = {"tool_calls": None, "refusal": None, "annotations": None, "audio": None,
           "function_call": None, "reasoning_content": None, "reasoning": None, "whatever": None,
           "name": None}
EMPTY = {"tool_calls": [], "annotations": [], "refusal": "", "reasoning_content": ""}


@pytest.mark.parametrize("more", [NEUTRAL, EMPTY])
def test_what_says_nothing_in_a_message_is_passed_over(mock, more):
    said = {"role": "assistant", "content": "well"}
    answers = [mock.post("chat/completions", seed=1, messages=[*HI, message, *HI]).json()
               for message in (said, said | more)]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert len({answer["usage"]["prompt_tokens"] for answer in answers}) == 1


def test_an_assistant_may_have_said_nothing(mock):
    answers = [mock.post("chat/completions", seed=1, messages=[
        *HI, {"role": "assistant", "content": content}, *HI]).json() for content in (None, "")]
    assert answers[0]["choices"] == answers[1]["choices"]
    told(mock.post("chat/completions", messages=[{"role": "user", "content": None}]), 400,
         "messages", "messages[0].content: expected a content of text; found None")


@pytest.mark.parametrize("key, value", [
    ("tool_calls", [{"id": "1"}]), ("refusal", "no"), ("audio", {"id": "1"}), ("name", 5),
    ("function_call", {"name": "f"}), ("annotations", [{}]), ("reasoning_content", "hm"),
    ("tool_calls", {}), ("refusal", False), ("whatever", "")])
def test_what_says_something_else_is_refused_by_name(mock, key, value):
    messages = [*HI, {"role": "assistant", "content": "well", key: value}]
    told(mock.post("chat/completions", messages=messages), 400, "messages", f"messages[1].{key}:")


@pytest.mark.parametrize("form", [lambda message: message, lambda message: message.model_dump(),
                                  lambda message: message.to_dict()])
def test_an_answer_can_be_sent_back(form):
    """The client's own object, all that is in it, or what the server sent."""
    with served() as server:
        messages = list(HI)
        for _ in range(3):
            answer = server.openai.chat.completions.create(model=NAME, messages=messages,
                                                           max_tokens=4)
            messages += [form(answer.choices[0].message), {"role": "user", "content": "and?"}]
        assert answer.choices[0].message.role == "assistant"


def test_a_name_reaches_the_template(mock, monkeypatch):
    seen = []
    chat = mock.engine.tokenizer.chat
    monkeypatch.setattr(mock.engine.tokenizer, "chat",
                        lambda messages: seen.extend(messages) or chat(messages))
    assert mock.post("chat/completions", messages=[HI[0] | {"name": "Mira"}]).status_code == 200
    assert seen == [{"role": "user", "content": "hi", "name": "Mira"}]


# ---- usage while an answer grows


@pytest.mark.parametrize("path, fields", [("completions", {"prompt": "abc"}),
                                          ("chat/completions", {"messages": HI})])
def test_usage_in_each_piece(mock, path, fields):
    """Of a piece's own answer so far; the last event has the sum of all."""
    asked = fields | {"n": 2, "max_tokens": 6, "ignore_eos": True, "stream": True, "seed": 1}
    *pieces, last = events(mock.post(path, **asked, stream_options={
        "include_usage": True, "continuous_usage_stats": True}).content)
    counts = {0: [], 1: []}
    for piece in pieces:
        (choice,), usage = piece["choices"], piece["usage"]
        counts[choice["index"]].append(usage["completion_tokens"])
        assert usage["prompt_tokens"] == last["usage"]["prompt_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    for each in counts.values():
        assert each == sorted(each) and each[0] >= 1 and each[-1] == 6
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 12


def test_which_pieces_have_usage(mock):
    def usages(**options):
        return [event.get("usage", "none") for event in events(mock.post(
            prompt="a", max_tokens=2, ignore_eos=True, stream=True, stream_options=options
            ).content)]
    assert set(usages(include_usage=False, continuous_usage_stats=True)) == {"none"}
    assert usages(include_usage=True, continuous_usage_stats=False)[:-1].count(None) >= 1
    assert None not in usages(continuous_usage_stats=True)
    told(mock.post(prompt="a", stream=True, stream_options={"continuous_usage_stats": 1}), 400,
         "continuous_usage_stats", "expected true or false")
    told(mock.post(prompt="a", stream_options={"continuous_usage_stats": True}), 400,
         "stream_options", "with stream")
    told(mock.post(prompt="a", stream=True, stream_options={"other": True}), 400,
         "stream_options", "found {'other': True}")


# ---- what vLLM has beside OpenAI's


def test_version_and_ping(mock):
    assert list(mock.http.get("/version").json()) == ["version"]
    assert mock.http.get("/ping").status_code == mock.http.post("/ping").status_code == 200


def test_tokens_of_a_text_and_back(mock):
    said = mock.http.post("/tokenize", json={"model": NAME, "prompt": "né"}).json()
    assert said == {"count": 3, "max_model_len": 512, "tokens": [110, 195, 169],
                    "token_strs": None}
    back = mock.http.post("/detokenize", json={"model": NAME, "tokens": said["tokens"]})
    assert back.json() == {"prompt": "né"}
    assert mock.http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    assert mock.http.post("/tokenize", json={"prompt": ""}).json()["tokens"] == []


def test_tokens_of_a_chat(mock):
    said = mock.http.post("/tokenize", json={"messages": HI, "return_token_strs": True}).json()
    asked = mock.post("chat/completions", messages=HI, max_tokens=1).json()
    assert "".join(said["token_strs"]) == "<user>hi<assistant>"
    assert said["count"] == len(said["tokens"]) == asked["usage"]["prompt_tokens"]


def test_tokens_as_the_tokenizer_has_them(small):
    own = small.engine.tokenizer.own
    text = "Once upon a time"
    for special in (True, False):
        said = small.http.post("/tokenize", json={"prompt": text, "add_special_tokens": special,
                                                  "return_token_strs": True}).json()
        want = own.encode(text, add_special_tokens=special)
        assert said["tokens"] == want.ids and said["token_strs"] == want.tokens
        back = small.http.post("/detokenize", json={"tokens": want.ids}).json()["prompt"]
        assert back == own.decode(want.ids, skip_special_tokens=False)
    whole = small.http.post("/tokenize", json={"prompt": text}).json()
    assert whole["tokens"] == own.encode(text).ids
    chat = small.http.post("/tokenize", json={"messages": HI}).json()
    assert "<|user|>" in small.http.post("/detokenize", json={"tokens": chat["tokens"]}
                                         ).json()["prompt"]


BAD = {
    "no prompt": ("tokenize", {}, "prompt", "expected a text, found None"),
    "two prompts": ("tokenize", {"prompt": ["a", "b"]}, "prompt", "expected a text"),
    "unknown": ("tokenize", {"prompt": "a", "beams": 1}, "beams", "unknown field"),
    "both": ("tokenize", {"prompt": "a", "messages": HI}, "prompt", "unknown field"),
    "special": ("tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens",
                "true or false"),
    "no answer": ("tokenize", {"messages": HI, "add_generation_prompt": False},
                  "add_generation_prompt", "not supported"),
    "strs": ("tokenize", {"prompt": "a", "return_token_strs": "yes"}, "return_token_strs",
             "true or false"),
    "model": ("tokenize", {"model": "other", "prompt": "a"}, "model", "expected 'mock'"),
    "no tokens": ("detokenize", {}, "tokens", "found None"),
    "a text": ("detokenize", {"tokens": "a"}, "tokens", "from 0 to 256, found 'a'"),
    "too large": ("detokenize", {"tokens": [257]}, "tokens", "found [257]"),
    "below 0": ("detokenize", {"tokens": [-1]}, "tokens", "found [-1]"),
    "true": ("detokenize", {"tokens": [True]}, "tokens", "found [True]"),
    "unknown back": ("detokenize", {"tokens": [1], "prompt": "a"}, "prompt", "unknown field"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_text_and_no_tokens_is_refused(mock, case):
    path, fields, field, says = BAD[case]
    answer = mock.http.post(f"/{path}", json=fields)
    told(answer, 404 if case == "model" else 400, field, says)


def test_a_key_guards_them():
    with served(key="k") as server:
        for path in ("tokenize", "detokenize"):
            told(server.http.post(f"/{path}", json={"prompt": "a"}), 401)
        for path in ("version", "ping"):
            assert server.http.get(f"/{path}").status_code == 200


def test_a_model_without_conversations_has_no_tokens_of_them():
    from layer2_graph.generate import Letters

    with pytest.raises(Exception, match="has no chat template"):
        tokenize({"messages": HI}, Letters(), 100)
    assert tokenize({"prompt": "a", "add_special_tokens": True}, Letters(), 100)["count"] == 2
    with pytest.raises(Exception, match="cannot leave them out"):
        tokenize({"prompt": "a", "add_special_tokens": False}, Letters(), 100)
    assert detokenize({"tokens": [97]}, Letters(), 128) == {"prompt": "a"}
