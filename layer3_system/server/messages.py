"""The messages of a chat as clients send them, earlier answers included"""

import json

from layer3_system.api_error import ApiError

ROLES = ("developer", "system", "user", "assistant", "tool")
# Fields of answers that mean nothing: clients send answers back unchanged. null always means that.
NEUTRAL = {"refusal": ("",), "tool_calls": ([],), "annotations": ([],), "reasoning": ("",),
           "reasoning_content": ("",)}
# Fields that messages of some roles have besides a role, a content and a name.
OF_ROLES = {"assistant": {"tool_calls"}, "tool": {"tool_call_id"}}


def messages_of(fields):
    """[{"role", "content"}], with "name", "tool_calls" and "tool_call_id" if there are such, of the
    field messages; a content in parts becomes one text, the arguments of a call an object.
    ApiError 400 names the message, and what is wrong with it."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, f"messages: expected a list of one or more, found {messages!r}",
                       "messages")
    return [message_of(message, f"messages[{i}]") for i, message in enumerate(messages)]


def message_of(message, place):
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise wrong(f"{place}: expected a role from {', '.join(ROLES)} and a content of text",
                    message)
    known = {"role", "content", "name"} | OF_ROLES.get(message["role"], set())
    for key, value in message.items():
        if key not in known and not is_neutral(key, value):
            raise wrong(f"{place}.{key}: not supported here, expected only a role, a content and a "
                        f"name", value)
    name = message.get("name")
    if name is not None and not isinstance(name, str):
        raise wrong(f"{place}.name: expected a text", name)
    content = text_of(message.get("content"), message["role"], place)
    call = message.get("tool_call_id")
    if call is not None and not isinstance(call, str):
        raise wrong(f"{place}.tool_call_id: expected a text", call)
    more = {"name": name, "tool_call_id": call,
            "tool_calls": calls_of(message.get("tool_calls"), f"{place}.tool_calls")}
    return {"role": message["role"], "content": content} | {
        key: value for key, value in more.items() if value}


def calls_of(calls, place):
    """Earlier calls as templates take them: with their arguments as an object."""
    if not isinstance(calls, list | None):
        raise wrong(f"{place}: expected a list", calls)
    return [with_arguments(call, place) for call in calls or []]


def with_arguments(call, place):
    """A call with its arguments, which clients send as the text of a JSON object, as an object."""
    function = call.get("function") if isinstance(call, dict) else None
    try:
        arguments = json.loads(function["arguments"])
        json.dumps(arguments, ensure_ascii=False).encode()      # half a character cannot be written
    except (TypeError, KeyError, ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict) or not isinstance(function.get("name"), str):
        raise wrong(f"{place}: expected functions, each with a name and arguments, the text of a "
                    f"JSON object", call)
    return call | {"function": function | {"arguments": arguments}}


def is_neutral(key, value):
    """Whether the value of an unsupported field means nothing."""
    return value is None or any(type(value) is type(nothing) and value == nothing
                                for nothing in NEUTRAL.get(key, ()))


def text_of(content, role, place):
    """A content as one text; null is the empty answer of an assistant."""
    if content is None and role == "assistant":
        return ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(
            isinstance(part, dict) and part.get("type") == "text"
            and isinstance(part.get("text"), str) for part in parts):
        raise wrong(f"{place}.content: expected a content of text", content)
    return "".join(part["text"] for part in parts)


def wrong(expected, value):
    return ApiError(400, f"{expected}; found {value!r}", "messages")
