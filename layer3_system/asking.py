"""What a client asks for: a body of JSON, read to its last field. Nothing is ignored in silence."""

import json
from typing import NamedTuple

from layer3_system.answers import ApiError
from layer3_system.s01_request import SamplingParams
from layer3_system.s08_server import SAME, to_params, truth

KNOWN = {*SAME, "model", "stop", "stop_token_ids", "logprobs", "stream", "stream_options", "user"}
ONLY_TEXT = {"prompt", "echo"}
ONLY_CHAT = {"messages", "max_completion_tokens", "top_logprobs"}
# What this server does not do: the values that ask for nothing. null does so everywhere.
NOTHING = {"best_of": (1,), "suffix": ("",), "presence_penalty": (0,), "frequency_penalty": (0,),
           "repetition_penalty": (1,), "logit_bias": ({},), "tools": ([],), "functions": ([],),
           "tool_choice": ("none",), "function_call": ("none",), "store": (False,),
           "response_format": ({"type": "text"},), "modalities": (["text"],),
           "parallel_tool_calls": (True, False), "service_tier": ("auto", "default")}
ROLES = ("developer", "system", "user", "assistant")


class Asked(NamedTuple):
    """A request that was read: its words, how to sample, and how the answer is wanted."""

    prompts: list               # texts or lists of tokens; of a chat one list of messages
    params: SamplingParams
    stream: bool
    usage: bool                 # in a stream: tell the tokens at its end
    echo: bool                  # the prompt first
    names: dict                 # of some fields: what the client calls them


def read_fields(body):
    """The fields of a request's JSON. ApiError 400 where it holds none."""
    try:
        fields = json.loads(body.decode(), parse_constant=not_json)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ApiError(400, f"the body: expected a JSON object, found {fields!r}")
    return fields


def not_json(word):
    raise ValueError(f"{word} is no number in JSON")


def asked(fields, chat, limits):
    """The Asked of a request's fields. ApiError 400 names the one that is wrong, unknown or asks
    for what is not done here."""
    known = KNOWN | (ONLY_CHAT if chat else ONLY_TEXT)
    for name, value in fields.items():
        if name in known or name in NOTHING and asks_nothing(name, value):
            continue
        raise ApiError(400, f"{name}: not supported here, found {value!r}" if name in NOTHING else
                       f"{name}: unknown field", name)
    if not isinstance(fields.get("user") or "", str):
        raise ApiError(400, f"user: expected a text, found {fields['user']!r}", "user")
    prompts = [messages_of(fields)] if chat else prompts_of(fields)
    stream, echo = truth(fields, "stream"), truth(fields, "echo")
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict) or set(options) - {"include_usage"} or options and not stream:
        raise ApiError(400, f"stream_options: expected include_usage, and that with stream; found "
                       f"{options!r}", "stream_options")
    names = {"prompt": "messages", "logprobs": "top_logprobs"} if chat else {}
    if fields.get("max_completion_tokens") is not None:
        names["max_tokens"] = "max_completion_tokens"
        if fields.get("max_tokens") is not None:
            raise ApiError(400, "max_tokens: expected it or max_completion_tokens, found both",
                           "max_tokens")
    params = to_params(fields, chat, names, limits)
    if echo and params.logprobs is not None:
        raise ApiError(400, "echo: not supported with logprobs", "echo")
    return Asked(prompts, params, stream, truth(options, "include_usage"), echo, names)


def asks_nothing(name, value):
    """Whether a field that is not supported asks for nothing. true is no 1 here."""
    return value is None or any(value == nothing and isinstance(value, bool) == isinstance(
        nothing, bool) for nothing in NOTHING[name])


def prompts_of(fields):
    """[text or [token]] of the field prompt: one of them, or a list."""
    given = fields.get("prompt")
    alone = isinstance(given, str) or given != [] and tokens(given)
    prompts = [given] if alone else given
    if not isinstance(prompts, list) or not prompts or not all(
            isinstance(p, str) or tokens(p) for p in prompts):
        raise ApiError(400, f"prompt: expected a text, a list of tokens, or a list of those; found "
                       f"{given!r}", "prompt")
    return prompts


def tokens(value):
    return isinstance(value, list) and all(type(token) is int for token in value)   # true is none


def messages_of(fields):
    """[{"role", "content"}] of the field messages; a content in parts becomes one text."""
    given, found = fields.get("messages"), []
    if not isinstance(given, list) or not given:
        raise ApiError(400, f"messages: expected a list of one or more, found {given!r}",
                       "messages")
    for i, message in enumerate(given):
        parts = message.get("content") if isinstance(message, dict) else None
        if isinstance(parts, str):
            parts = [{"type": "text", "text": parts}]
        right = isinstance(parts, list) and message.get("role") in ROLES and set(message) == {
            "role", "content"} and all(isinstance(part, dict) and part.get("type") == "text" and
                                       isinstance(part.get("text"), str) for part in parts)
        if not right:
            raise ApiError(400, f"messages[{i}]: expected a role of {', '.join(ROLES)} and a "
                           f"content of text, and nothing else; found {message!r}", "messages")
        found.append({"role": message["role"], "content": "".join(p["text"] for p in parts)})
    return found


def tokens_of(asked, chat, tokenizer):
    """[[token]] of what was asked. ApiError 400 where the tokenizer refuses."""
    try:
        if chat and not hasattr(tokenizer, "chat"):
            raise ValueError("this model takes no conversation; give it a text")
        return [tokenizer.chat(p) if chat else tokenizer.encode(p) if isinstance(p, str) else p
                for p in asked.prompts]
    except ValueError as error:
        field = "messages" if chat else "prompt"
        raise ApiError(400, f"{field}: {error}", field) from None
