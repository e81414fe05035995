"""The C parameters of a kernel, read from the source, so that messages speak of `a` and not of
kernel_param_0."""

import re
from functools import lru_cache
from typing import NamedTuple


class Parameter(NamedTuple):
    name: str
    type: str               # without const, __restrict__ and the like: "float", "int", "float*"
    pointer: bool           # to this type


POINTEES = {                # C element type -> numpy dtypes that it may be given
    "float": ("float32",), "double": ("float64",), "half": ("float16",), "__half": ("float16",),
    "__nv_bfloat16": ("bfloat16", "uint16"), "nv_bfloat16": ("bfloat16", "uint16"),
    "half2": ("float16",), "__half2": ("float16",), "__nv_bfloat162": ("bfloat16", "uint16"),
    "float2": ("float32",), "float4": ("float32",), "double2": ("float64",),
    "int": ("int32", "uint32"), "int32_t": ("int32", "uint32"), "uint32_t": ("int32", "uint32"),
    "unsigned": ("int32", "uint32"), "unsigned int": ("int32", "uint32"),
    "int2": ("int32", "uint32"), "int4": ("int32", "uint32"),
    "long long": ("int64", "uint64"), "unsigned long long": ("int64", "uint64"),
    "int64_t": ("int64", "uint64"), "uint64_t": ("int64", "uint64"), "size_t": ("int64", "uint64"),
    "long": ("int64", "uint64"), "unsigned long": ("int64", "uint64"),
    "short": ("int16", "uint16"), "unsigned short": ("int16", "uint16"),
    "bool": ("bool", "uint8", "int8"),
}
VECTORS = {"float2": 8, "float4": 16, "int2": 8, "int4": 16}     # C type -> bytes
SIGNED = {"int", "short", "long", "long long", "char", "signed char", "int32_t", "int64_t",
          "int16_t", "int8_t"}
QUALIFIERS = re.compile(r"\b(const|volatile|__restrict__|__restrict|restrict|struct|"
                        r"__grid_constant__|__constant__)\b")


def strip_comments(source):
    """Comments become spaces, so that line numbers stay."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), source, flags=re.S)


@lru_cache(maxsize=512)                     # a launch on a GPU takes less time than reading them
def parameters(source, name):
    """C parameters of the kernel `name`, "scale" or "scale<float>", or None where the source
    does not show them (a macro)."""
    base = re.split(r"[<(]", name)[0].split("::")[-1].strip()
    arguments = split_top(name[name.find("<") + 1:name.rfind(">")]) if "<" in name else []
    text = strip_comments(source)
    for match in re.finditer(r"__global__[^;{}]*?\b" + re.escape(base) + r"\s*\(", text, re.S):
        inner = text[match.end():closing(text, match.end())]
        names = template_names(re.split("[;{}]", text[:match.start()])[-1])
        types = dict(zip(names, arguments, strict=False))
        return tuple(parameter(part, types) for part in split_top(inner)
                     if part.strip() not in ("", "void"))
    return None


def template_names(before):
    """The names of a template's parameters. before: what stands between the declaration and the end
    of the last one"""
    match = re.search(r"\btemplate\s*<(.*)>", before, re.S)
    return [re.findall(r"\w+", part.split("=")[0])[-1] for part in split_top(match[1])
            if part.strip()] if match else []


def closing(text, start):
    """The place of the bracket that closes the one before `start`."""
    depth = 1
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    return len(text)


def split_top(text):
    parts = []
    depth = 0
    start = 0
    for i, char in enumerate(text):
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def parameter(text, types):
    """types: {name: what a template has it stand for}"""
    text = QUALIFIERS.sub(" ", text.split("=")[0])
    for name, own in types.items():
        text = re.sub(rf"\b{name}\b", own.strip(), text)
    stars = text.count("*") + ("[" in text and "(" not in text)
    text = re.sub(r"\[[^\]]*\]", "", text).replace("*", " ").replace("&", " ")
    words = re.findall(r"[\w:]+(?:<[^>]*>)?", text)
    kind = " ".join(words[:-1]) if len(words) > 1 else " ".join(words)
    kind = re.sub(r"^(unsigned (?:long long|long|short)|long long|long|short) int$", r"\1", kind)
    return Parameter(words[-1] if words else "?", kind + "*" * (stars - 1), stars > 0)
