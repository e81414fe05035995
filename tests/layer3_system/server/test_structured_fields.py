"""Answers that must match, as clients ask for them: response_format and structured_outputs."""

import json
import re
import threading

import jsonschema
import pytest
from pydantic import BaseModel

from tests.layer3_system.server.http_server import NAME, told

HI = [{"role": "user", "content": "hi"}]
PATTERN = "[a-d]{3,9}, [0-9]{1,4}"


class Pet(BaseModel):
    """As openai's `parse` takes it."""

    name: str
    age: int | None
    tame: bool


def schema_of(**properties):
    return {"type": "object", "properties": properties, "required": list(properties),
            "additionalProperties": False}


SCHEMA = schema_of(name={"type": "string", "maxLength": 8}, kind={"enum": ["cat", "d.o.g"]},
                   legs={"type": "array", "items": {"type": "boolean"}, "maxItems": 4})


def asked(schema):
    return {"type": "json_schema", "json_schema": {"name": "pet", "schema": schema}}


@pytest.mark.parametrize("seed", range(4))
def test_openais_client_gets_what_a_schema_allows(mock, seed):
    fields = {"model": NAME, "messages": HI, "seed": seed, "n": 2,
              "response_format": asked(SCHEMA)}
    whole = mock.openai.chat.completions.create(**fields)
    texts = {0: "", 1: ""}
    for chunk in mock.openai.chat.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    for choice in whole.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)
        assert choice.message.content == texts[choice.index]


def test_openais_parse_makes_an_object(mock):
    bias = {str(byte): 8 for byte in b'"'}          # so that the text ends soon
    got = mock.openai.chat.completions.parse(model=NAME, messages=HI, seed=1, logit_bias=bias,
                                             response_format=Pet)
    assert isinstance(got.choices[0].message.parsed, Pet)


def test_a_chat_may_ask_for_any_object(mock):
    pytest.importorskip("xgrammar", reason="xgrammar is not installed")
    bias = {str(byte): 6 for byte in b'"}]'}
    for seed in range(8):
        got = mock.openai.chat.completions.create(
            model=NAME, messages=HI, seed=seed, logit_bias=bias,
            response_format={"type": "json_object"})
        assert got.choices[0].finish_reason == "stop"
        assert isinstance(json.loads(got.choices[0].message.content), dict)



def test_a_grammar_is_compiled_beside_the_event_loop(mock, monkeypatch):
    grammars = mock.engine.intake.grammars
    own = grammars.compile
    threads = []

    def compile(form):
        threads.append(threading.current_thread().name)
        return own(form)

    monkeypatch.setattr(grammars, "compile", compile)
    assert mock.post(prompt="a", structured_outputs={"regex": "[xyz]{7}"}).status_code == 200
    assert threads[0].startswith("asyncio"), threads


def test_a_pattern_holds_against_a_bias(mock):
    got = mock.post(prompt="a", seed=3, max_tokens=20, logit_bias={"122": 100, "256": 100}, min_p=1,
                    structured_outputs={"regex": PATTERN}).json()["choices"][0]
    assert got["finish_reason"] == "stop"
    assert re.fullmatch(PATTERN, got["text"]), got["text"]


WRONG = {
    "pattern": ({"structured_outputs": {"regex": "(a"}}, "structured_outputs",
                "the parenthesis is not closed at character 0"),
    "both": ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs",
             "found regex and json"),
    "unknown": ({"structured_outputs": {"grammar": "a"}}, "structured_outputs",
                "regex, json or json_object"),
    "number": ({"structured_outputs": {"regex": 7}}, "structured_outputs", "found 7"),
    "two fields": ({"structured_outputs": {"regex": "a"},
                    "response_format": asked({"type": "null"})}, "structured_outputs",
                   "found both"),
    "contradiction": ({"response_format": asked(schema_of(
        a={"type": "string", "minLength": 5, "maxLength": 3}))}, "response_format",
        "minLength 5 is above maxLength 3 at #/properties/a"),
    "not enforced": ({"response_format": asked({"type": "integer", "multipleOf": 5})},
                     "response_format", "multipleOf: not enforced here, at #"),
    "no json": ({"structured_outputs": {"json": ""}}, "structured_outputs", "Expecting value"),
    "null": ({"structured_outputs": {"json": "null"}}, "structured_outputs", "found None"),
    "required": ({"response_format": asked({"type": "object", "required": [[]]})},
                 "response_format", "required: [] is not among the properties at #"),
    "types": ({"response_format": asked({"type": ["string", []]})}, "response_format",
              "found [] at #"),
    "beside a text": ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "(a"}},
                      "structured_outputs", "is not closed at character 0"),
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
    "ignore_eos": ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos",
                   "not with structured_outputs"),
    "min_tokens": ({"structured_outputs": {"regex": "a"}, "min_tokens": 2}, "min_tokens",
                   "not with structured_outputs"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_enforced_is_refused(mock, case):
    fields, field, says = WRONG[case]
    told(mock.post("chat/completions", messages=HI, **fields), 400, field, says)
