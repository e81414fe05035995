"""What a client asks for: a body of JSON, read to its last field.
Nothing is ignored silently."""

import json
from typing import Any, NamedTuple, NoReturn

from layer3_system.api_error import ApiError
from layer3_system.s01_request import SamplingParams
from layer3_system.s08_server import Limits, boolean, to_params
from layer3_system.sampling_params import CLIENT_FIELDS, RequestError, StructuredOutputs
from layer3_system.server.messages import messages_of
from layer3_system.server.tools import Tools, tool_template, tools_of

KNOWN = {*CLIENT_FIELDS, "response_format", "model", "stream", "stream_options", "user"}
ONLY_TEXT = {"prompt", "echo"}
ONLY_CHAT = {"messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice",
             "parallel_tool_calls"}
# Features that this server lacks: the values that ask for nothing. null always asks for nothing.
NEUTRAL = {"best_of": (1,), "suffix": ("",), "tools": ([],), "functions": ([],),
           "tool_choice": ("none",), "function_call": ("none",), "store": (False,),
           "modalities": (["text"],), "parallel_tool_calls": (True, False),
           "service_tier": ("auto", "default"), "metadata": ({},)}


class CompletionRequest(NamedTuple):
    """A request as read: its prompts, how to sample, and the form of the answer."""

    prompts: list               # texts or lists of tokens; for a chat one list of messages
    params: SamplingParams
    stream: bool
    usage: bool                 # in a stream: the counts of tokens at its end
    running: bool               # and with each piece those of its answer so far
    echo: bool                  # the prompt first
    names: dict                 # what the client calls some fields
    tools: Tools | None = None


def read_fields(body: bytes) -> dict[str, Any]:
    """The fields of a request's JSON.
    ApiError 400 if it is not an object."""
    try:
        fields = json.loads(body.decode(), parse_constant=not_json)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ApiError(400, f"the body: expected a JSON object, found {fields!r}")
    if b"\\ud" in body.lower():                         # only then can there be halves
        refuse_halves(fields)
    return fields


def refuse_halves(fields: dict[str, Any]) -> None:
    """ApiError 400 if a text has half a character, a surrogate without its other half.
    JSON can write that and UTF-8 cannot, so no tokenizer takes it."""
    for name, value in fields.items():
        try:
            name.encode()
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise ApiError(400, f"{name}: expected whole characters, found half of one, {half!r}: "
                           f"surrogates not allowed", name) from None


def not_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number in JSON")


def parse(fields: dict[str, Any], chat: bool, limits: Limits) -> CompletionRequest:
    """The CompletionRequest of a request's fields.
    ApiError 400 names a field that is wrong, unknown or not supported."""
    refuse_unknown(fields, KNOWN | (ONLY_CHAT if chat else ONLY_TEXT), NEUTRAL)
    if not isinstance(fields.get("user") or "", str):
        raise ApiError(400, f"user: expected a text, found {fields['user']!r}", "user")
    prompts = [messages_of(fields)] if chat else prompts_of(fields)
    stream = boolean(fields, "stream")
    echo = boolean(fields, "echo")
    usage, running = usage_of(fields, stream)
    names = {"prompt": "messages", "logprobs": "top_logprobs"} if chat else {}
    if fields.get("max_completion_tokens") is not None:
        names["max_tokens"] = "max_completion_tokens"
        if fields.get("max_tokens") is not None:
            raise ApiError(400, "max_tokens: expected this or max_completion_tokens, found both",
                           "max_tokens")
    if fields.get("response_format") not in (None, {"type": "text"}):
        names["structured_outputs"] = "response_format"
    tools = tools_of(fields) if chat else None
    if not chat and limits.tokens and fields.get(names.get("max_tokens", "max_tokens")) is None:
        fields = fields | {"max_tokens": min(SamplingParams.max_tokens, limits.tokens)}
    params = to_params(with_format(with_pairs(fields)), chat, names, limits)
    if echo and params.logprobs is not None:
        raise ApiError(400, "echo: not supported with logprobs", "echo")
    return CompletionRequest(prompts, params, stream, usage, running, echo, names, tools)


def with_pairs(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, with logit_bias as pairs of a token and a number.
    JSON's keys are texts."""
    bias = fields.get("logit_bias")
    if not isinstance(bias, dict):
        return fields
    return fields | {"logit_bias": tuple(
        (int(token) if token.isdecimal() and len(token) < 20 else token, value)
        for token, value in bias.items())}


def with_format(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, with structured_outputs as an object, from its own field or response_format."""
    ours = fields.get("structured_outputs")
    theirs = fields.get("response_format")
    if theirs is None or theirs == {"type": "text"}:
        if ours is None:
            return fields
        if not isinstance(ours, dict) or set(ours) - {"regex", "json", "json_object"}:
            raise ApiError(400, f"structured_outputs: expected regex, json or json_object, found "
                           f"{ours!r}", "structured_outputs")
        return fields | {"structured_outputs": structured(ours, "structured_outputs")}
    if ours is not None:
        raise ApiError(400, "structured_outputs: expected this or response_format, found both",
                       "structured_outputs")
    if theirs == {"type": "json_object"}:
        return fields | {"structured_outputs": StructuredOutputs(json_object=True)}
    form = theirs.get("json_schema") if isinstance(theirs, dict) else None
    if not isinstance(form, dict) or theirs.get("type") != "json_schema" or "schema" not in form:
        raise ApiError(400, f"response_format: expected the type text, json_object, or json_schema "
                       f"with a json_schema that has a schema; found {theirs!r}",
                       "response_format")
    return fields | {"structured_outputs": structured({"json": form["schema"]}, "response_format")}


def structured(form: dict[str, Any], field: str) -> StructuredOutputs:
    """StructuredOutputs of a pattern or a schema.
    ApiError 400 names the client's field."""
    try:
        schema = form.get("json")
        text = schema if schema is None or isinstance(schema, str) else json.dumps(schema)
        return StructuredOutputs(form.get("regex"), text, form.get("json_object"))
    except (RequestError, RecursionError) as error:
        message = str(error).removeprefix("structured_outputs: ")
        raise ApiError(400, f"{field}: {message}", field) from None


def refuse_unknown(fields: dict[str, Any], known: set[str],
                   neutral: dict[str, tuple]) -> None:
    """ApiError 400 if a field is neither known nor neutral. neutral: {name of an unsupported field:
    values that ask for nothing}; null asks for nothing in any field, and true is not 1"""
    for name, value in fields.items():
        if value is None or name in known or any(
                value == nothing and isinstance(value, bool) == isinstance(nothing, bool)
                for nothing in neutral.get(name, ())):
            continue
        raise ApiError(400, f"{name}: not supported here, found {value!r}" if name in neutral else
                       f"{name}: unknown field", name)


def usage_of(fields: dict[str, Any], stream: bool) -> tuple[bool, bool]:
    """(whether a stream ends with its usage, whether each piece has it), from stream_options.

    As in vLLM, the second asks for the first, too, unless the client says otherwise.
    """
    options = fields.get("stream_options") or {}
    expected = {"include_usage", "continuous_usage_stats"}
    if not isinstance(options, dict) or set(options) - expected or options and not stream:
        raise ApiError(400, f"stream_options: expected include_usage and continuous_usage_stats, "
                       f"and only with stream; found {options!r}", "stream_options")
    running = boolean(options, "continuous_usage_stats")
    usage = running if options.get("include_usage") is None else boolean(options, "include_usage")
    return usage, running and usage


def prompts_of(fields: dict[str, Any]) -> list:
    """[text or [token]] of the field prompt: one of them, or a list."""
    prompt = fields.get("prompt")
    alone = isinstance(prompt, str) or prompt != [] and tokens(prompt)
    prompts = [prompt] if alone else prompt
    if not isinstance(prompts, list) or not prompts or not all(
            isinstance(p, str) or tokens(p) for p in prompts):
        raise ApiError(400, f"prompt: expected a text, a list of tokens, or a list of those; found "
                       f"{prompt!r}", "prompt")
    return prompts


def tokens(value: object) -> bool:
    return isinstance(value, list) and all(type(token) is int for token in value)   # true is not


def tokens_of(prompts: list, chat: bool, tokenizer: Any,
              tools: Tools | None = None) -> list[list[int]]:
    """[[token]] of prompts as in CompletionRequest.
    ApiError 400 if the tokenizer refuses."""
    try:
        if chat:
            return [chat_tokens(messages, tools, tokenizer) for messages in prompts]
        return [tokenizer.encode(p) if isinstance(p, str) else p for p in prompts]
    except ValueError as error:
        field = "messages" if chat else "prompt"
        raise ApiError(400, f"{field}: {error}", field) from None


def chat_tokens(messages: list[dict], tools: Tools | None, tokenizer: Any) -> list[int]:
    """The tokens of a conversation.
    ValueError if the model has no template for it."""
    if not hasattr(tokenizer, "chat"):
        raise ValueError("this model has no chat template; send a plain prompt")
    if any(message.get("tool_calls") or message["role"] == "tool" for message in messages):
        tool_template(tokenizer)
    called = tools and tools.choice != "none"
    return tokenizer.chat(messages, tools.entries) if called else tokenizer.chat(messages)
