"""From a JSON schema to a pattern of its texts, as far as no stack is needed

A schema without recursion has texts of bounded depth, so they are regular.
The pattern writes all properties, in their order, with one space after each comma and colon.
What it would not enforce is refused, never ignored.
"""

import json
from typing import Any

__all__ = ["SchemaError", "StackNeeded", "check_schema", "pattern_of"]

MAX_DEPTH = 12          # of schemas within each other: each takes a few parentheses
MAX_LENGTH = 100_000    # of a pattern: definitions that use others twice double it at each level
CHARACTER = r'([^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-cA-C][0-9a-fA-F]{3})'     # no surrogates
INTEGER = "-?(0|[1-9][0-9]{0,15})"                  # 16 digits: a float64 holds nearly all of them
SIMPLE = {"integer": INTEGER, "number": rf"{INTEGER}(\.[0-9]{{1,15}})?", "boolean": "true|false",
          "null": "null"}
SPECIAL = set(r"\.[]{}()*+?|^$")
SAYS_NOTHING = {"title", "description", "default", "examples", "$schema", "$defs", "deprecated"}
KEYS = {"string": {"minLength", "maxLength"}, "array": {"items", "minItems", "maxItems"},
        "object": {"properties", "required", "additionalProperties"}}
Schema = dict[str, Any]
# Among the names of `refs`, which lead to a place:
RECURSIVE = "$ref may lead back"        # the first, where a pattern is not wanted
INSIDE = "a value inside another"       # between two names: the second is a part of the first


class SchemaError(ValueError):
    """A schema that cannot be served: what is wrong, and where."""


class StackNeeded(SchemaError):
    """A schema that is part of itself: no pattern says what it allows."""


def pattern_of(schema: Schema) -> str:
    """The pattern of texts that a schema allows.
    SchemaError says what is wrong, and where.

    Known are enum, const, anyOf, $ref to $defs, and the types with the keys of KEYS.
    """
    return read(schema, "#", schema, ())


def check_schema(schema: Schema) -> None:
    """SchemaError as `pattern_of` has it, but of schemas that are part of themselves only for one
    that has no text that ends."""
    read(schema, "#", schema, (RECURSIVE,))
    if not ends(schema, schema, ()):
        raise SchemaError("no text of this schema ends: a part of it requires itself")


def ends(schema: Schema, root: Schema, refs: tuple[str, ...]) -> bool:
    """Whether a schema that was checked has a text without another of the definitions `refs`."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return name not in refs and ends(root["$defs"][name], root, (*refs, name))
    if "anyOf" in schema:
        return any(ends(each, root, refs) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return True
    kinds = {schema["type"]} if isinstance(schema["type"], str) else set(schema["type"])
    if not kinds <= {"array", "object"}:
        return True
    of_object = all(ends(schema["properties"][name], root, refs)
                    for name in schema.get("required", []))
    of_array = not schema.get("minItems") or ends(schema["items"], root, refs)
    return "array" in kinds and of_array or "object" in kinds and of_object


def literal(value: Any) -> str:
    """The pattern of one value as JSON."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(f"\\{letter}" if letter in SPECIAL else letter for letter in text)


def read(schema: Any, at: str, root: Schema, refs: tuple[str, ...]) -> str:
    """The pattern of a schema at a place in the root.    refs: those that lead here"""
    pattern = read_part(schema, at, root, refs)
    if len(pattern) > MAX_LENGTH:
        raise SchemaError(f"its pattern would have more than {MAX_LENGTH} characters at {at[:60]}")
    return pattern


def read_part(schema: Any, at: str, root: Schema, refs: tuple[str, ...]) -> str:
    if not isinstance(schema, dict):
        raise SchemaError(f"expected an object, found {schema!r:.40} at {at}")
    if at.count("/") > 2 * MAX_DEPTH:
        raise SchemaError(f"nested more than {MAX_DEPTH} levels deep at {at[:60]}")
    keys = set(schema) - SAYS_NOTHING
    if "$ref" in keys:
        only(keys, {"$ref"}, at)
        return follow(schema["$ref"], at, root, refs)
    for name in ("enum", "anyOf"):
        if name in keys and (not isinstance(schema[name], list) or not schema[name]):
            raise SchemaError(f"{name}: expected a list that is not empty at {at}")
    if "enum" in keys or "const" in keys:
        only(keys, {"enum", "const", "type"} - ({"enum"} if "const" in keys else set()), at)
        values = [schema["const"]] if "const" in keys else schema["enum"]
        return choice(literal(value) for value in values if fits(value, schema.get("type"), at))
    if "anyOf" in keys:
        only(keys, {"anyOf"}, at)
        return choice(read(each, f"{at}/anyOf/{i}", root, refs)
                      for i, each in enumerate(schema["anyOf"]))
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) and kinds else [kinds]
    return choice(read_type(schema, kind, keys, at, root, refs) for kind in kinds)


def fits(value: Any, kind: Any, at: str) -> bool:
    """True.
    SchemaError if a value of enum or const has another type than the schema says."""
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array",
             dict: "object"}
    own = kinds.get(type(value), "null")
    allowed = kind if isinstance(kind, list) else [kind]
    if kind is not None and own not in allowed and (own != "integer" or "number" not in allowed):
        raise SchemaError(f"{value!r:.40} is not of type {kind!r:.40} at {at}")
    return True


def choice(patterns: Any) -> str:
    return f"({'|'.join(patterns)})"


def only(keys: set[str], known: set[str], at: str) -> None:
    """SchemaError if there are keys that are not known."""
    others = sorted(keys - known)
    if others:
        raise SchemaError(f"{', '.join(others)}: not enforced here, at {at}")


def follow(ref: Any, at: str, root: Schema, refs: tuple[str, ...]) -> str:
    """The pattern of what $ref names."""
    definitions = root.get("$defs")
    name = ref.removeprefix("#/$defs/") if isinstance(ref, str) else None
    if not isinstance(definitions, dict) or name == ref or name not in definitions:
        raise SchemaError(f"$ref {ref!r:.60} leads nowhere at {at}")
    if name in refs:
        if INSIDE not in refs[refs.index(name):]:
            raise SchemaError(f"$ref {ref} is nothing but itself at {at}")
        if refs[0] == RECURSIVE:
            return ""
        raise StackNeeded(f"$ref {ref} is part of itself, which needs a stack, at {at}")
    return read(definitions[name], f"#/$defs/{name}", root, (*refs, name))


def read_type(schema: Schema, kind: Any, keys: set[str], at: str, root: Schema,
              refs: tuple[str, ...]) -> str:
    """The pattern of one type."""
    if not isinstance(kind, str) or kind not in SIMPLE | KEYS:
        raise SchemaError(f"type: expected one of {', '.join(SIMPLE | KEYS)}; found {kind!r:.40} "
                          f"at {at}")
    several = isinstance(schema["type"], list)
    others = set().union(*(KEYS.get(each, set()) for each in schema["type"]
                           if several and isinstance(each, str)))   # the others are refused in turn
    only(keys, {"type"} | KEYS.get(kind, set()) | others, at)
    if kind == "string":
        return f'"{CHARACTER}{bounds(schema, "minLength", "maxLength", at)}"'
    if kind == "array":
        return read_array(schema, at, root, refs)
    return SIMPLE[kind] if kind in SIMPLE else read_object(schema, at, root, refs)


def bounds(schema: Schema, low: str, high: str, at: str, less: int = 0) -> str:
    """How often a part is repeated, `less` times fewer than the schema's two numbers say."""
    least = schema.get(low, 0)
    most = schema.get(high)
    for name, value in ((low, least), (high, most)):
        if value is not None and (type(value) is not int or value < 0):
            raise SchemaError(f"{name}: expected an integer from 0, found {value!r:.40} at {at}")
    if most is not None and least > most:
        raise SchemaError(f"{low} {least} is above {high} {most} at {at}")
    return f"{{{max(least - less, 0)},{'' if most is None else most - less}}}"


def read_array(schema: Schema, at: str, root: Schema, refs: tuple[str, ...]) -> str:
    if "items" not in schema:
        raise SchemaError(f"items: expected a schema, found none at {at}")
    bounds(schema, "minItems", "maxItems", at)
    if schema.get("maxItems") == 0:
        return r"\[\]"
    item = read(schema["items"], f"{at}/items", root, (*refs, INSIDE))
    some = rf"\[{item}(, {item}){bounds(schema, 'minItems', 'maxItems', at, 1)}\]"
    return some if schema.get("minItems") else rf"(\[\]|{some})"


def read_object(schema: Schema, at: str, root: Schema, refs: tuple[str, ...]) -> str:
    """All properties, in their order."""
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise SchemaError(f"properties and required: expected an object and a list at {at}")
    missing = [name for name in required if not isinstance(name, str) or name not in properties]
    if missing:
        raise SchemaError(f"required: {missing[0]!r:.40} is not among the properties at {at}")
    if not isinstance(schema.get("additionalProperties", False), bool):
        raise SchemaError(f"additionalProperties: expected true or false at {at}")
    inside = (*refs, INSIDE)
    return r"\{" + ", ".join(
        f"{literal(name)}: {read(each, f'{at}/properties/{name}', root, inside)}"
        for name, each in properties.items()) + r"\}"
