"""Calls of a client's functions: what it may call, the grammar of a call, and calls in a text

A model writes a call as JSON, {"name": …, "arguments": {…}}, between the marks that its template
teaches it.
The server runs no function: it hands the call to the client.
"""

import json
import re
import secrets
from dataclasses import replace
from typing import Any, NamedTuple

from layer3_system.api_error import ApiError
from layer3_system.json_schema import SchemaError, literal, pattern_of
from layer3_system.s08_server import refused
from layer3_system.sampling_params import RequestError, StructuredOutputs

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
BEGIN, END = "<tool_call>", "</tool_call>"      # as templates of Hermes and Qwen have it
# What is between the two. A text in quotes is taken whole, since END may be a part of it.
MARKED = re.compile(rf'{BEGIN}((?>"(?:[^"\\]|\\.)*"|.)*?){END}', re.DOTALL)
WORDS = ("none", "auto", "required")
Fields = dict[str, Any]


class Tools(NamedTuple):
    """What a chat may call. choice: one of WORDS, or the name of the function that must be called
    several: whether an answer may have more calls than one"""

    entries: list[Fields]           # as the client sent them
    schemas: dict[str, Fields]      # of each function's arguments, by its name
    choice: str
    several: bool


def tools_of(fields: Fields) -> Tools | None:
    """The tools of a chat; None without any.
    ApiError 400 names what is wrong."""
    entries = fields.get("tools")
    if entries is not None and not isinstance(entries, list):
        raise ApiError(400, f"tools: expected a list, found {entries!r:.60}", "tools")
    choice = fields.get("tool_choice")
    several = fields.get("parallel_tool_calls")
    if several is not None and not isinstance(several, bool):
        raise ApiError(400, f"parallel_tool_calls: expected true or false, found {several!r:.60}",
                       "parallel_tool_calls")
    if not entries:
        if choice not in (None, "none"):
            raise ApiError(400, f"tool_choice: expected tools with it, found {choice!r:.60} and "
                           f"none", "tool_choice")
        return None
    schemas: dict[str, Fields] = {}
    for i, entry in enumerate(entries):
        name, schema = function_of(entry, f"tools[{i}]")
        if name in schemas:
            raise ApiError(400, f"tools[{i}]: expected a name of its own, found {name!r} again",
                           "tools")
        schemas[name] = schema
    return Tools(entries, schemas, choice_of(choice, schemas), several is not False)


def function_of(entry: Any, at: str) -> tuple[str, Fields]:
    """(name, schema of its arguments) of one tool."""
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(function, dict) or entry.get("type") != "function":
        raise ApiError(400, f"{at}: expected the type function and a function, found "
                       f"{entry!r:.60}", "tools")
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ApiError(400, f"{at}.function.name: expected up to 64 letters, digits, _ and -, "
                       f"found {name!r:.60}", "tools")
    others = set(function) - {"name", "description", "parameters", "strict"}
    if others:
        raise ApiError(400, f"{at}.function: expected a name, a description, parameters and "
                       f"strict, found {', '.join(sorted(others))}", "tools")
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ApiError(400, f"{at}.function.parameters: expected a schema of an object, found "
                       f"{schema!r:.60}", "tools")
    try:
        pattern_of(schema)
    except (SchemaError, RecursionError) as error:
        raise ApiError(400, f"{at}.function.parameters: {error}", "tools") from None
    return name, schema


def choice_of(choice: Any, schemas: dict[str, Fields]) -> str:
    """One of WORDS, or the name of a function."""
    if choice is None:
        return "auto"
    if isinstance(choice, str) and choice in WORDS:
        return choice
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or choice.get("type") != "function":
        raise ApiError(400, f"tool_choice: expected one of {', '.join(WORDS)}, or a function with "
                       f"a name, found {choice!r:.60}", "tool_choice")
    if name not in schemas:
        raise ApiError(400, f"tool_choice names {name}, tools has {', '.join(schemas)}",
                       "tool_choice")
    return name


def grammar(tools: Tools, marked: bool) -> str:
    """The pattern of an answer that must call a function. marked: calls stand between BEGIN and
    END, each on a line of its own; else there is one call, and nothing around it"""
    names = [tools.choice] if tools.choice not in WORDS else list(tools.schemas)
    calls = "|".join(rf'\{{"name": {literal(name)}, "arguments": {pattern_of(tools.schemas[name])}'
                     r"\}" for name in names)
    if not marked:
        return f"({calls})"
    one = rf"{BEGIN}\n({calls})\n{END}"
    return rf"{one}(\n{one})*" if tools.several and tools.choice in WORDS else one


def tool_template(tokenizer: Any) -> str:
    """The template that tells a model of its tools.
    ValueError if the model has none."""
    if not hasattr(tokenizer, "tool_template"):
        raise ValueError("this model has no chat template that knows tools")
    return tokenizer.tool_template()


def with_calls(wanted: Any, tokenizer: Any) -> Any:
    """A CompletionRequest whose answer calls a function, if the client wants it to: with a grammar.
    ApiError 400 if this model's calls cannot be read, or another grammar is wanted as well."""
    tools = wanted.tools
    if tools is None or tools.choice == "none":
        return wanted
    try:
        marked = BEGIN in tool_template(tokenizer)
    except ValueError as error:
        raise ApiError(400, f"tools: {error}", "tools") from None
    if tools.choice == "auto":
        if not marked:
            raise ApiError(400, f"tool_choice: expected required, or a function with a name: this "
                           f"model's template does not write {BEGIN}, so its calls are not known "
                           f"from its words; found auto, the default", "tool_choice")
        return wanted
    if wanted.params.structured_outputs:
        raise ApiError(400, "response_format: expected this or a tool_choice that calls, found "
                       "both", "response_format")
    try:
        params = replace(wanted.params,
                         structured_outputs=StructuredOutputs(regex=grammar(tools, marked)))
    except RequestError as error:
        raise refused(error, wanted.names) from None
    return wanted._replace(params=params, names=wanted.names | {"structured_outputs": "tools"})


def reader(tools: Tools | None, tokenizer: Any) -> "CallReader | None":
    """What reads the calls in an answer; None where there are none to be read."""
    if tools is None or tools.choice == "none":
        return None
    return CallReader(BEGIN in tool_template(tokenizer), tools.choice != "auto", tools.several)


# ---- calls in a text


class CallReader:
    """Takes the text of an answer, and holds back what is, or may become, a call."""

    def __init__(self, marked: bool, forced: bool, several: bool = True):
        """marked: as grammar's    forced: the answer is nothing but calls    several: all calls of
        the answer count, not the first alone"""
        self.marked = marked
        self.forced = forced
        self.several = several
        self.held = ""

    def add(self, text: str) -> str:
        """What of the text so far is for the reader now."""
        self.held += text
        if self.forced:
            return ""
        if not self.marked:
            return self.release(len(self.held))
        begin = self.held.find(BEGIN)
        if begin >= 0:
            return self.release(begin)
        tail = max(n for n in range(len(BEGIN)) if self.held.endswith(BEGIN[:n]))
        return self.release(len(self.held) - tail)

    def release(self, count: int) -> str:
        text = self.held[:count]
        self.held = self.held[count:]
        return text

    def end(self) -> tuple[str, list[Fields]]:
        """(what was held back and is no call after all, the calls), at the end of the answer."""
        parts = (MARKED.findall(self.held) if self.marked
                 else [self.held] if self.forced else [])
        calls = [call_of(part) for part in parts]
        if not calls or None in calls:
            return self.held, []
        return "", calls if self.several else calls[:1]


def call_of(text: str) -> Fields | None:
    """A call as clients expect it; None if the text is none."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not isinstance(
            call.get("arguments"), dict):
        return None
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function",
            "function": {"name": call["name"], "arguments": arguments}}
