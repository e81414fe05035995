"""A client's functions: an answer calls them in a form that it can read."""

import json

import jsonschema
import pytest
import torch

from layer3_system import ByteTokenizer, MockLlama
from layer3_system.server.tools import CallReader, call_of
from tests.layer3_system.server.http_server import NAME, events, served, told

HI = [{"role": "user", "content": "hi"}]
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Bern", "Rome"]},
                                            "days": {"type": "integer"}},
           "required": ["city", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "of a city",
                                           "parameters": WEATHER}},
         {"type": "function", "function": {"name": "now"}}]
SCHEMAS = {"weather": WEATHER, "now": {"type": "object", "additionalProperties": False}}
ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "days": 2}}\n</tool_call>'


class ToolTokenizer(ByteTokenizer):
    """Its template tells a model of its tools."""

    def __init__(self, template="<tool_call>"):
        self.template = template
        self.seen = []

    def tool_template(self):
        return self.template

    def chat(self, messages, tools=None):
        self.seen.append((messages, tools))
        return super().chat(messages)


def writes(text):
    """A model that writes this text as the answer of a chat, and then its end."""
    tokens = [*text.encode(), 256]

    def scores(context, V):
        begin = bytes(t for t in context if t < 256).rindex(b"<assistant>") + len(b"<assistant>")
        return torch.nn.functional.one_hot(torch.tensor(tokens[len(context) - begin]), V) * 100.0
    return MockLlama(scores=scores)


@pytest.fixture(scope="module", params=["<tool_call>", "{{ tools }}"])
def server(request):
    with served(tokenizer=ToolTokenizer(request.param)) as one:
        yield one


def called(server, stream, **fields):
    """(calls, content, reason) of an answer by OpenAI's client."""
    fields = {"model": NAME, "messages": HI, "max_tokens": 300} | fields
    if not stream:
        choice = server.openai.chat.completions.create(**fields).choices[0]
        return choice.message.tool_calls or [], choice.message.content, choice.finish_reason
    calls, content, reason = [], "", None
    for chunk in server.openai.chat.completions.create(**fields, stream=True):
        calls += chunk.choices[0].delta.tool_calls or []
        content += chunk.choices[0].delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
    assert [call.index for call in calls] == list(range(len(calls)))
    return calls, content or None, reason


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function",
                                                 "function": {"name": "weather"}}])
def test_an_answer_must_call(server, choice, stream):
    fields = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    names = set()
    for seed in range(6):
        calls, content, reason = called(server, stream, seed=seed, temperature=5, **fields)
        (call,) = calls
        assert (content, reason, call.type) == (None, "tool_calls", "function")
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
        assert call.id.startswith("call_")
        names.add(call.function.name)
    assert names == ({"weather", "now"} if choice == "required" else {"weather"})


def test_an_answer_may_call_several_times():
    with served(tokenizer=ToolTokenizer(), model=writes(f"{ONE}\n{ONE}")) as one:
        calls, content, _ = called(one, False, tools=TOOLS, tool_choice="required")
        assert len(calls) == 2 and content is None and calls[0].id != calls[1].id
        calls, _, _ = called(one, False, tools=TOOLS, tool_choice="required",
                             parallel_tool_calls=False)
        assert len(calls) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text, content, count", [
    (f"I look. {ONE}", "I look. ", 1), (ONE, None, 1), ("No < call.", "No < call.", 0),
    ("<tool_call>\nnot JSON\n</tool_call>", "<tool_call>\nnot JSON\n</tool_call>", 0),
    (ONE[:40], ONE[:40], 0), ("end <tool_", "end <tool_", 0)])
def test_a_model_decides(text, content, count, stream):
    with served(tokenizer=ToolTokenizer(), model=writes(text)) as one:
        calls, written, reason = called(one, stream, tools=TOOLS)
        assert (written, len(calls)) == (content, count)
        assert reason == ("tool_calls" if count else "stop")
        for call in calls:
            assert call.function.name == "weather"
            assert json.loads(call.function.arguments) == {"city": "Bern", "days": 2}


def test_a_model_that_decides_calls_once_where_several_calls_are_not_wanted():
    with served(tokenizer=ToolTokenizer(), model=writes(f"{ONE}\n{ONE}")) as one:
        for several, count in ((True, 2), (False, 1)):
            calls, _, _ = called(one, False, tools=TOOLS, parallel_tool_calls=several)
            assert len(calls) == count


def test_a_conversation_goes_on_after_a_call():
    with served(tokenizer=ToolTokenizer(), model=writes("Rain.")) as one:
        said = {"role": "assistant", "content": None,
                "tool_calls": [{"id": "call_1", "type": "function", "function": {
                    "name": "weather", "arguments": '{"city": "Bern", "days": 2}'}}]}
        got = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
        answer = one.openai.chat.completions.create(model=NAME, messages=[*HI, said, got],
                                                    tools=TOOLS)
        assert answer.choices[0].message.content == "Rain."
        (messages, tools), = one.engine.tokenizer.seen
        assert tools == TOOLS and messages[2] == got
        assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Bern", "days": 2}


def test_none_is_a_chat_without_tools():
    with served(tokenizer=ToolTokenizer(), model=writes("Hello.")) as one:
        calls, content, _ = called(one, False, tools=TOOLS, tool_choice="none")
        assert (calls, content) == ([], "Hello.")
        assert one.engine.tokenizer.seen == [(HI, None)]


def function(**fields):
    return {"tools": [{"type": "function", "function": fields}]}


WRONG = {
    "not a list": ({"tools": {}}, "tools", "tools: expected a list, found {}"),
    "no function": ({"tools": [{"type": "retrieval"}]}, "tools", "tools[0]: expected the type"),
    "name": (function(name="a b"), "tools", "tools[0].function.name: expected up to 64 letters"),
    "unknown": (function(name="f", cost=1), "tools", "found cost"),
    "twice": ({"tools": [TOOLS[0], TOOLS[0]]}, "tools", "tools[1]: expected a name of its own"),
    "schema": (function(name="f", parameters={"type": "array"}), "tools",
               "tools[0].function.parameters: expected a schema of an object"),
    "keyword": (function(name="f", parameters={"type": "object", "properties": {
        "a": {"type": "integer", "multipleOf": 2}}}), "tools",
        "tools[0].function.parameters: multipleOf: not enforced here, at #/properties/a"),
    "choice": ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice",
               "expected one of none, auto, required"),
    "no such": ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
                "tool_choice", "tool_choice names f, tools has weather, now"),
    "no tools": ({"tool_choice": "required"}, "tool_choice", "expected tools with it"),
    "parallel": ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls",
                 "expected true or false, found 1"),
    "format": ({"tools": TOOLS, "tool_choice": "required",
                "response_format": {"type": "json_object"}}, "response_format", "found both"),
    "ignore_eos": ({"tools": TOOLS, "tool_choice": "required", "ignore_eos": True}, "ignore_eos",
                   "not with structured_outputs"),
    "arguments": ({"messages": [*HI, {"role": "assistant", "tool_calls": [
        {"function": {"name": "f", "arguments": "[]"}}]}]}, "messages",
        "messages[1].tool_calls: expected functions"),
    "half a character": ({"messages": [*HI, {"role": "assistant", "tool_calls": [
        {"function": {"name": "f", "arguments": '{"x": "\\ud800"}'}}]}]}, "messages",
        "messages[1].tool_calls: expected functions"),
    "required": (function(name="f", parameters={"type": "object", "required": [[]]}), "tools",
                 "tools[0].function.parameters: required: [] is not among the properties"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(server, case):
    fields, field, says = WRONG[case]
    told(server.post("chat/completions", **{"messages": HI} | fields), 400, field, says)


def test_a_model_without_tools_says_so(mock):
    told(mock.post("chat/completions", messages=HI, tools=TOOLS), 400, "tools",
         "this model has no chat template that knows tools")
    told(mock.post("chat/completions", messages=[*HI, {"role": "tool", "content": "rain"}]), 400,
         "messages", "this model has no chat template that knows tools")


def test_a_model_whose_words_are_not_known_is_asked_for_calls_alone():
    with served(tokenizer=ToolTokenizer("{{ tools }}")) as one:
        told(one.post("chat/completions", messages=HI, tools=TOOLS), 400, "tool_choice",
             "expected required, or a function with a name")


def test_a_stream_holds_back_no_more_than_may_be_a_call():
    reader = CallReader(marked=True, forced=False)
    parts = [reader.add(letter) for letter in "a <b <tool_x"]
    assert "".join(parts) == "a <b <tool_x" and parts[2] == "" and parts[3] == "<b"
    assert call_of('{"name": "f", "arguments": []}') is None


def test_a_mark_inside_a_text_ends_no_call():
    city = r'a</tool_call> \"b'
    reader = CallReader(marked=True, forced=False)
    reader.add(ONE.replace("Bern", city) + "\n" + ONE)
    text, calls = reader.end()
    assert text == "" and [json.loads(call["function"]["arguments"])["city"] for call in calls] == [
        'a</tool_call> "b', "Bern"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_says_so(stream):
    with served(tokenizer=ToolTokenizer(), model=writes(f"{ONE}\n{ONE}")) as one:
        calls, _, reason = called(one, stream, tools=TOOLS, max_tokens=len(ONE) + 30)
        assert (len(calls), reason) == (1, "length")


def test_events_of_a_call(server):
    body = server.post("chat/completions", messages=HI, tools=TOOLS, tool_choice="required",
                       max_tokens=300, seed=1, stream=True).content
    last = events(body)[-1]["choices"][0]
    assert last["finish_reason"] == "tool_calls"
    assert set(last["delta"]["tool_calls"][0]) == {"index", "id", "type", "function"}
