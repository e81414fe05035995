"""JSON that needs a stack, by xgrammar: any object, and schemas that are part of themselves

V: vocabulary   W: words of 32 bits, V/32 rounded up
"""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from layer3_system.json_schema import check_schema
from layer3_system.sampling_params import RequestError

MISSING = 'needs xgrammar, which is not installed: pip install "three-floors[structured]"'
FORM = {"any_whitespace": False, "separators": (", ", ": ")}    # as json.dumps writes
# xgrammar lets control characters through where a string's length is bounded; not by a pattern.
# Surrogates have a form in bytes that is no UTF-8: they are left out.
CHARACTER = r'[ !#-\[\]-' + "\ud7ff\ue000-\U0010ffff]"
NAMED = ("properties", "$defs")         # keywords whose own keys are names
VALUES = ("enum", "const")              # those that hold texts' values, no schemas


def xgrammar() -> Any:
    """The library.
    RequestError if it is not installed."""
    try:
        import xgrammar as library
    except ImportError:
        raise RequestError(f"structured_outputs: this {MISSING}") from None
    return library


class StackMatcher:
    """Where an answer is in a grammar of xgrammar's."""

    def __init__(self, library: Any, compiled: Any, V: int):
        self.bits = library.allocate_token_bitmask(1, V)    # (1, W) int32
        self.matcher = library.GrammarMatcher(compiled)
        self.accepted = 0

    @property
    def ended(self) -> bool:
        return self.matcher.is_terminated()

    def mask(self) -> np.ndarray:                           # (W,) int32
        if self.ended:
            raise ValueError("the answer has ended: no token may follow")
        self.matcher.fill_next_token_bitmask(self.bits)
        return self.bits[0].numpy().copy()

    def accept(self, token: int) -> bool:
        right = not self.ended and self.matcher.accept_token(token)
        self.accepted += right
        return right

    def rollback(self, count: int) -> None:
        if not 0 <= count <= self.accepted:
            raise ValueError(f"rollback: expected at most {self.accepted} tokens, found {count}")
        self.matcher.rollback(count)
        self.accepted -= count


class StackGrammars:
    """What makes StackMatchers.
    RequestError if xgrammar is not installed."""

    def __init__(self, vocabulary: list[bytes | None], ends: tuple[int, ...]):
        """ends: tokens that end an answer"""
        self.V = len(vocabulary)
        self.library = xgrammar()
        info = self.library.TokenizerInfo(
            [written or b"" for written in vocabulary], self.library.VocabType.RAW,
            vocab_size=self.V, stop_token_ids=list(ends), add_prefix_space=False)
        self.compiler = self.library.GrammarCompiler(info, max_threads=1)

    def any_object(self) -> Callable[[], StackMatcher]:
        """Of an object with any fields."""
        return self.matchers({"type": "object"}, strict=False)

    def of_schema(self, schema: dict[str, Any]) -> Callable[[], StackMatcher]:
        """Of a JSON schema.
        SchemaError as json_schema has it: xgrammar would ignore a keyword that it does not
        enforce."""
        check_schema(schema)
        return self.matchers(bounded(schema), strict=True)

    def matchers(self, schema: dict[str, Any], strict: bool) -> Callable[[], StackMatcher]:
        try:
            compiled = self.compiler.compile_json_schema(json.dumps(schema), strict_mode=strict,
                                                         **FORM)
        except RuntimeError as error:
            raise ValueError(plain(str(error))) from None
        return lambda: StackMatcher(self.library, compiled, self.V)


def bounded(schema: Any) -> Any:
    """A schema with a pattern in place of each string's bounds."""
    if isinstance(schema, list):
        return [bounded(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "string" and {"minLength", "maxLength"} & set(schema):
        most = schema.get("maxLength")
        times = f"{{{schema.get('minLength', 0)},{'' if most is None else most}}}"
        return {"type": "string", "pattern": f"^{CHARACTER}{times}$"}
    return {key: {name: bounded(each) for name, each in value.items()} if key in NAMED
            else value if key in VALUES else bounded(value) for key, value in schema.items()}


def plain(message: str) -> str:
    """An error of xgrammar's without its clock time and its place in C++."""
    return re.sub(r"^\[[\d:]+\] \S+: (Check failed: .*? is false: )?", "", message).strip()
