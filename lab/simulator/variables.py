"""__device__ and __constant__ variables as the host sees them: RawModule.get_global(name)."""

import re
from functools import lru_cache

import numpy as np

from .dtypes import SIZES
from .errors import KernelError
from .ptx import Symbol
from .signature import POINTEES, QUALIFIERS, strip_comments

NUMBERS = {kind: names[-1] if kind[0] == "u" or kind == "size_t" else names[0]
           for kind, names in POINTEES.items()} | {
    "char": "int8", "signed char": "int8", "unsigned char": "uint8", "int8_t": "int8",
    "uint8_t": "uint8", "uchar": "uint8", "int16_t": "int16", "uint16_t": "uint16",
    "ushort": "uint16", "uint": "uint32", "__nv_bfloat16": "uint16", "nv_bfloat16": "uint16"}
ALIGNMENT = r"\b(?:__align__|alignas)\s*\([^)]*\)"
DECLARATION = (r"(?:__device__|__constant__|__managed__)\s([^;(){{}}]*?)\b{}\b"
               r"\s*((?:\[[^\]]*\]\s*)*)[=;,{{]")


class DeviceVariable:
    """A variable in the memory of a module, for NumPy.

    variable[...] and numpy.asarray(variable) copy from the device; variable[...] = values, also to
    a part of it, copies to the device. dtype and shape are those of the declaration; bytes where
    its type is a struct, then view() says what they mean.

    memory   has read() -> its bytes (a uint8 array of its own) and write(bytes)
    """

    def __init__(self, name, memory, dtype, shape):
        self.name = name
        self.memory = memory
        self.dtype = np.dtype(dtype)
        self.shape = shape

    def view(self, dtype, shape=(-1,)):
        """The same memory as elements of another dtype."""
        return DeviceVariable(self.name, self.memory, dtype, shape)

    def __array__(self, dtype=None, copy=None):
        return self.memory.read().view(self.dtype).reshape(self.shape).astype(dtype or self.dtype)

    def __getitem__(self, place):
        return np.asarray(self)[place]

    def __setitem__(self, place, values):
        array = np.asarray(self)
        array[place] = values
        self.memory.write(array.reshape(-1).view(np.uint8))


class HostMemory:
    """A variable's bytes in the simulator."""

    def __init__(self, data):
        self.bytes = data

    def read(self):
        return self.bytes.copy()

    def write(self, data):
        self.bytes[:] = data


def memory_of(variable, segments):
    """The bytes of a .global or .const variable of the PTX.
    `segments` keeps them between launches, since such a variable outlives a kernel.
    Initial addresses come with a launch, see run.py."""
    if variable.name not in segments:
        segments[variable.name] = np.zeros(max(variable.size, 1), np.uint8)
        if not holds_addresses(variable):
            fill(variable, variable.values, segments[variable.name])
    return segments[variable.name]


@lru_cache(1 << 12)
def holds_addresses(variable):
    return any(isinstance(value, Symbol) for value in variable.values)


def fill(variable, values, memory):
    """Write initial values, as integers, into a variable's memory."""
    size = SIZES[variable.type]
    data = b"".join((v & (2 ** (8 * size) - 1)).to_bytes(size, "little") for v in values)
    memory[:len(data)] = np.frombuffer(data, np.uint8)


def find(module, name, source, path):
    """The variable that the source calls `name`, such as "weights" or "filters::weights"."""
    variables = {source_name(v.name): v for v in module.variables.values()
                 if v.space in ("global", "const")}
    if name not in variables:
        known = ", ".join(f"`{n}`" for n in variables if re.search(
            rf"\b{re.escape(n.split('::')[-1])}\b", source))   # and not what a header has
        raise KernelError(f"{path} has no __device__ or __constant__ variable `{name}`; it has "
                          f"{known or 'none'} (the compiler drops a static one that no kernel "
                          f"uses)", "argument", path=path)
    return variables[name]


def source_name(name):
    """A mangled name -> the name with its namespaces: _ZN2ns1xE -> ns::x. What the compiler adds to
    a static variable, and to a namespace without a name, is left out."""
    if not name.startswith("_ZN"):
        return name
    words = []
    rest = name[3:]
    while match := re.match(r"\d+", rest):
        end = match.end() + int(match[0])
        words.append(rest[match.end():end])
        rest = rest[end:]
    return "::".join(w for w in words if not w.startswith(("_INTERNAL_", "_GLOBAL__N_")))


def declared(source, name, size):
    """-> dtype and shape of a variable of `size` bytes as its declaration says; bytes, or one
    dimension, where that cannot be read without a compiler."""
    text = re.sub(ALIGNMENT, " ", strip_comments(source))
    match = re.search(DECLARATION.format(re.escape(name.split("::")[-1])), text)
    if match is None:
        return "uint8", (-1,)
    kind = type_name(match[1])
    parts = kind[-1] if kind[-1:] in ("2", "3", "4") and kind[:-1] in NUMBERS else ""
    item = NUMBERS.get(kind.removesuffix(parts), "uint8")
    shape = tuple(int(n) for n in (*re.findall(r"\[\s*(\d+)\s*\]", match[2]), *parts))
    fits = np.prod(shape, dtype=int) * np.dtype(item).itemsize == size
    return item, shape if fits else (-1,)


def type_name(text):
    """The text before a variable's name, such as "static const float " -> "float"."""
    text = re.sub(r"\b(__device__|static|inline|extern)\b", " ", QUALIFIERS.sub(" ", text))
    first, *others = re.sub(r"\[[^\]]*\]|=[^,]*", " ", text).split(",")   # of `int a = 1, b[4];`
    kind = " ".join(first.split()[:-1 if others else None])
    return re.sub(r"^(unsigned (?:long long|long|short)|long long|long|short) int$", r"\1", kind)
