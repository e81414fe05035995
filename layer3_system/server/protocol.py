"""What a client asks for: a body of JSON, read to its last field. Nothing is ignored in silence."""

import json
from dataclasses import replace
from typing import NamedTuple

from layer3_system.api_error import ApiError
from layer3_system.s01_request import RequestError, SamplingParams
from layer3_system.s08_server import PASSED_THROUGH, boolean, refused, to_params
from layer3_system.server.messages import messages_of

# Beside PASSED_THROUGH: what changes the scores before a token is drawn.
SCORE_FIELDS = ("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
                "logit_bias")
KNOWN = {*PASSED_THROUGH, *SCORE_FIELDS, "model", "stop", "stop_token_ids", "logprobs", "stream",
         "stream_options", "user"}
ONLY_TEXT = {"prompt", "echo"}
ONLY_CHAT = {"messages", "max_completion_tokens", "top_logprobs"}
# What this server does not do: the values that ask for nothing. null does so everywhere.
NEUTRAL = {"best_of": (1,), "suffix": ("",), "tools": ([],), "functions": ([],),
           "tool_choice": ("none",), "function_call": ("none",), "store": (False,),
           "response_format": ({"type": "text"},), "modalities": (["text"],),
           "parallel_tool_calls": (True, False), "service_tier": ("auto", "default")}


class CompletionRequest(NamedTuple):
    """A request that was read: its words, how to sample, and how the answer is wanted."""

    prompts: list               # texts or lists of tokens; of a chat one list of messages
    params: SamplingParams
    stream: bool
    usage: bool                 # in a stream: tell the tokens at its end
    running: bool               # and with each piece those of its answer so far
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
    if b"\\ud" in body.lower():                         # else there can be none
        refuse_halves(fields)
    return fields


def refuse_halves(fields):
    """ApiError 400 where a text has half a character, a surrogate without its other half. JSON can
    write that and UTF-8 cannot, so no tokenizer takes it."""
    for name, value in fields.items():
        try:
            name.encode()
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise ApiError(400, f"{name}: expected whole characters, found half of one, {half!r}: "
                           f"surrogates not allowed", name) from None


def not_json(word):
    raise ValueError(f"{word} is no number in JSON")


def parse(fields, chat, limits):
    """The CompletionRequest of a request's fields. ApiError 400 names the one that is wrong,
    unknown or asks for what is not done here."""
    refuse_unknown(fields, KNOWN | (ONLY_CHAT if chat else ONLY_TEXT), NEUTRAL)
    if not isinstance(fields.get("user") or "", str):
        raise ApiError(400, f"user: expected a text, found {fields['user']!r}", "user")
    prompts = [messages_of(fields)] if chat else prompts_of(fields)
    stream, echo = boolean(fields, "stream"), boolean(fields, "echo")
    usage, running = usage_of(fields, stream)
    names = {"prompt": "messages", "logprobs": "top_logprobs"} if chat else {}
    if fields.get("max_completion_tokens") is not None:
        names["max_tokens"] = "max_completion_tokens"
        if fields.get("max_tokens") is not None:
            raise ApiError(400, "max_tokens: expected it or max_completion_tokens, found both",
                           "max_tokens")
    params = with_more(to_params(fields, chat, names, limits), fields)
    if echo and params.logprobs is not None:
        raise ApiError(400, "echo: not supported with logprobs", "echo")
    return CompletionRequest(prompts, params, stream, usage, running, echo, names)


def with_more(params, fields):
    """SamplingParams with the fields of SCORE_FIELDS. ApiError 400 names a wrong one."""
    more = {name: fields[name] for name in SCORE_FIELDS if fields.get(name) is not None}
    bias = more.get("logit_bias")
    if isinstance(bias, dict):                          # JSON's keys are texts
        more["logit_bias"] = tuple(
            (int(token) if token.isdecimal() and len(token) < 20 else token, value)
            for token, value in bias.items())
    try:
        return replace(params, **more)
    except RequestError as error:
        raise refused(error, None) from None


def refuse_unknown(fields, known, neutral):
    """ApiError 400 where a field is neither known nor asks for nothing. neutral: {name: values that
    ask for nothing}, of what is not done here; null does, and true is no 1"""
    for name, value in fields.items():
        if name in known or name in neutral and (value is None or any(
                value == nothing and isinstance(value, bool) == isinstance(nothing, bool)
                for nothing in neutral[name])):
            continue
        raise ApiError(400, f"{name}: not supported here, found {value!r}" if name in neutral else
                       f"{name}: unknown field", name)


def usage_of(fields, stream):
    """(whether a stream ends with its usage, whether each piece has it), of stream_options.

    As in vLLM the second asks for the first, where that is not said.
    """
    options = fields.get("stream_options") or {}
    expected = {"include_usage", "continuous_usage_stats"}
    if not isinstance(options, dict) or set(options) - expected or options and not stream:
        raise ApiError(400, f"stream_options: expected include_usage and continuous_usage_stats, "
                       f"and those with stream; found {options!r}", "stream_options")
    running = boolean(options, "continuous_usage_stats")
    usage = running if options.get("include_usage") is None else boolean(options, "include_usage")
    return usage, running and usage


def prompts_of(fields):
    """[text or [token]] of the field prompt: one of them, or a list."""
    prompt = fields.get("prompt")
    alone = isinstance(prompt, str) or prompt != [] and tokens(prompt)
    prompts = [prompt] if alone else prompt
    if not isinstance(prompts, list) or not prompts or not all(
            isinstance(p, str) or tokens(p) for p in prompts):
        raise ApiError(400, f"prompt: expected a text, a list of tokens, or a list of those; found "
                       f"{prompt!r}", "prompt")
    return prompts


def tokens(value):
    return isinstance(value, list) and all(type(token) is int for token in value)   # true is none


def tokens_of(prompts, chat, tokenizer):
    """[[token]] of prompts as in CompletionRequest. ApiError 400 where the tokenizer refuses."""
    try:
        if chat and not hasattr(tokenizer, "chat"):
            raise ValueError("this model takes no conversation; give it a text")
        return [tokenizer.chat(p) if chat else tokenizer.encode(p) if isinstance(p, str) else p
                for p in prompts]
    except ValueError as error:
        field = "messages" if chat else "prompt"
        raise ApiError(400, f"{field}: {error}", field) from None
