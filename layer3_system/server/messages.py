"""The messages of a chat as clients send them, earlier answers included"""

from layer3_system.api_error import ApiError

ROLES = ("developer", "system", "user", "assistant")
# Fields of answers that mean nothing: clients send answers back unchanged. null always means that.
NEUTRAL = {"refusal": ("",), "tool_calls": ([],), "annotations": ([],), "reasoning": ("",),
           "reasoning_content": ("",)}


def messages_of(fields):
    """[{"role", "content"}], with "name" if there is one, of the field messages; a content in parts
    becomes one text. ApiError 400 names the message, and what is wrong with it."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, f"messages: expected a list of one or more, found {messages!r}",
                       "messages")
    return [message_of(message, f"messages[{i}]") for i, message in enumerate(messages)]


def message_of(message, place):
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise wrong(f"{place}: expected a role from {', '.join(ROLES)} and a content of text",
                    message)
    for key, value in message.items():
        if key not in ("role", "content", "name") and not is_neutral(key, value):
            raise wrong(f"{place}.{key}: not supported here, expected only a role, a content and a "
                        f"name", value)
    name = message.get("name")
    if name is not None and not isinstance(name, str):
        raise wrong(f"{place}.name: expected a text", name)
    content = text_of(message.get("content"), message["role"], place)
    return {"role": message["role"], "content": content} | ({"name": name} if name else {})


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
