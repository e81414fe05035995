"""What a test asked of the code under test and what that returned, in the words of a message."""

from typing import NamedTuple

from lab.judge.compare import MAX_VALUE_CHARS, brief


class Call(NamedTuple):
    """What was asked of the code under test and what it returned, in the words of a message."""

    name: str
    arguments: str | None           # None for an attribute
    result: str
    kind: str                       # of what it returned

    def __str__(self):
        return f"{self.name}({self.arguments})" if self.arguments is not None else self.name


def call(name, args, kwargs, result, changed=()):
    """A Call. args: None for an attribute; changed: [(which, the array that it became)]."""
    text = None
    if args is not None:
        text = ", ".join([*map(brief, args), *(f"{k}={brief(v)}" for k, v in kwargs.items())])
        text = text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]} …"
    left = ", ".join(brief(value, items=4) for _, value in changed)
    return Call(name, text, brief(result) + (f" and left {left}" if left else ""), kind_of(result))


def kind_of(value):
    """What kind of value it is, without giving it away."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    kinds = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
    return kinds.get(type(value)) or f"an object of type {type(value).__name__}"
