"""LangChain's chat model, unchanged, gets answers that parse and calls of its tools.

Nothing else needs it, so it is in no extra: `pip install langchain-openai`.
Tried with 1.7.4.
"""

import pytest
from pydantic import BaseModel

from tests.layer3_system.server.http_server import NAME, served
from tests.layer3_system.server.test_tools import ToolTokenizer

langchain = pytest.importorskip("langchain_openai",
                                reason="not proven here: langchain-openai is not installed")


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    days: int


def now() -> str:
    """What time it is."""
    raise NotImplementedError


@pytest.fixture(scope="module")
def chat():
    """A chat model of a server whose model writes tokens at random."""
    with served(tokenizer=ToolTokenizer()) as server:
        yield langchain.ChatOpenAI(base_url=f"{server.url}/v1", api_key="none", model=NAME,
                                   max_tokens=400, temperature=2, seed=3, max_retries=0)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(chat, method):
    for seed in range(4):
        found = chat.model_copy(update={"seed": seed}).with_structured_output(
            Weather, method=method).invoke("how is it in Bern?")
        assert isinstance(found, Weather)


def test_json_mode(chat):
    schema = {"title": "weather", "type": "object", "properties": {"city": {"type": "string"}}}
    found = chat.with_structured_output(schema, method="json_mode").invoke("JSON, please")
    assert isinstance(found, dict)


@pytest.mark.parametrize("stream", [False, True])
def test_bound_tools_are_called(chat, stream):
    bound = chat.bind_tools([Weather, now], tool_choice="any", parallel_tool_calls=False)
    if stream:
        first, *others = bound.stream("how is it in Bern?")
        answer = sum(others, first)
    else:
        answer = bound.invoke("how is it in Bern?")
    (call,) = answer.tool_calls
    if call["name"] == "Weather":
        Weather(**call["args"])
    else:
        assert (call["name"], call["args"]) == ("now", {})
