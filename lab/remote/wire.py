"""Values that cross between the trusted process and the code under test: as trees of JSON's kinds
and raw bytes, the parts of a frame (frames.py)."""

import ctypes
import math
import sys
from collections import Counter, OrderedDict, defaultdict

import numpy as np

from lab.remote.frames import WireError

MAX_ELEMENTS = 2**28        # of an array: strides of 0 make any number out of a few bytes
PLAIN = (type(None), bool, int, float, str)
DICTS = (dict, Counter, OrderedDict, defaultdict)       # they arrive as a dict
DTYPES = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "float16", "float32", "float64", "complex64", "complex128"}
TENSOR_DTYPES = (DTYPES - {"uint16", "uint32", "uint64"}
                 | {"bfloat16", "float8_e4m3fn", "float8_e5m2"})


class Unsendable(TypeError):
    """The value is of a type that does not cross."""


# ---- values to messages


def pack(value, handle=None):
    """(JSON-able tree, list of bytes). handle: None, or it numbers an object that is not data."""
    packer = Packer(handle)
    return packer.tree(value), packer.buffers


class Packer:
    """Values as trees of JSON's own kinds, their bytes in `buffers`."""

    def __init__(self, handle):
        self.handle = handle
        self.buffers = []
        self.numbers = {}                   # {id of an array: its number}

    def tree(self, v):
        if type(v) is int and v.bit_length() > 64:      # JSON's readers limit its digits
            return {"$": "int", "hex": hex(v)}
        if type(v) in PLAIN:
            return v
        if type(v) is list:
            return [self.tree(x) for x in v]
        if type(v) is tuple:
            return {"$": "tuple", "items": [self.tree(x) for x in v]}
        if type(v) in DICTS:
            return {"$": "dict", "items": [[self.tree(k), self.tree(x)] for k, x in v.items()]}
        if type(v) is bytes:
            return {"$": "bytes", "at": self.add(v)}
        if isinstance(v, np.generic):
            v = np.asarray(v)
            return {"$": "scalar", "dtype": dtype_name(v), "at": self.add(v.tobytes())}
        if type(v) is np.ndarray or is_tensor(v):
            return self.once(v)
        if self.handle is not None:
            return {"$": "handle", "id": self.handle(v), "type": type(v).__name__}
        raise Unsendable("expected numbers, text, arrays, or lists and dictionaries of them, found "
                         f"a value of type {type(v).__name__}")

    def add(self, data):
        self.buffers.append(data)
        return len(self.buffers) - 1

    def once(self, v):
        """An array or tensor; sent twice, it arrives as one object."""
        if id(v) in self.numbers:
            return self.numbers[id(v)]
        self.numbers[id(v)] = {"$": "same", "as": len(self.numbers)}
        return self.array(v) if type(v) is np.ndarray else self.tensor(v)

    def array(self, v):
        low, span = extent(v.shape, v.strides, v.itemsize)
        data = ctypes.string_at(v.ctypes.data + low, span) if span else b""
        return {"$": "array", "dtype": dtype_name(v), "shape": list(v.shape),
                "strides": list(v.strides), "start": -low, "at": self.add(data)}

    def tensor(self, v):
        import torch

        t = torch.Tensor.detach(v).resolve_conj().resolve_neg()
        if t.device.type != "cpu":
            raise Unsendable(f"a tensor on {t.device} does not cross: move it to the CPU first")
        if t.layout != torch.strided:
            raise Unsendable(f"a tensor of layout {t.layout} does not cross: make it dense first")
        size = t.element_size()
        strides = [s * size for s in t.stride()]
        _, span = extent(t.shape, strides, size)
        data = ctypes.string_at(t.data_ptr(), span) if span else b""
        return {"$": "tensor", "dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape),
                "strides": strides, "start": 0, "at": self.add(data), "grad": bool(v.requires_grad)}


def is_tensor(v):
    torch = sys.modules.get("torch")
    return torch is not None and type(v) in (torch.Tensor, torch.nn.Parameter)


def arrays(value):
    """The arrays and tensors in a value, in the order in which it is read."""
    if type(value) is np.ndarray or is_tensor(value):
        return [value]
    if type(value) is dict:
        value = list(value.values())
    return [a for v in value for a in arrays(v)] if type(value) in (list, tuple) else []


def dtype_name(v):
    if v.dtype.name not in DTYPES or not v.dtype.isnative:
        raise Unsendable(f"expected an array of numbers, found one of dtype {v.dtype}")
    return v.dtype.name


def extent(shape, strides, itemsize):
    """(offset of the lowest byte from the first element, bytes from the lowest to the highest)."""
    if 0 in shape:
        return 0, 0
    steps = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    low = sum(min(s, 0) for s in steps)
    high = sum(max(s, 0) for s in steps)
    return low, high - low + itemsize


# ---- messages to values


def unpack(tree, buffers, handle=None):
    """The value of a message.
    Every field is checked: the sender may be hostile."""
    try:
        return Unpacker(buffers, handle).value(tree)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError,
            RuntimeError) as error:         # torch's own errors and too deep a nesting are the last
        raise WireError(f"malformed message: {error!r}") from None


class Unpacker:
    """The values of a message's trees."""

    def __init__(self, buffers, handle):
        self.buffers = buffers
        self.handle = handle
        self.objects = []                   # arrays and tensors, in the order in which they came

    def value(self, t):
        if type(t) in PLAIN:
            return t
        if type(t) is list:
            return [self.value(x) for x in t]
        kind = t.get("$")
        if kind == "tuple":
            return tuple(self.value(x) for x in t["items"])
        if kind == "dict":
            return {self.value(k): self.value(x) for k, x in t["items"]}
        if kind == "int":
            return int(t["hex"], 16)
        if kind == "bytes":
            return bytes(self.buffers[t["at"]])
        if kind == "scalar":
            return np.frombuffer(self.buffers[t["at"]], checked(t["dtype"], DTYPES), 1)[0]
        if kind == "same":
            return self.objects[t["as"]]
        if kind in ("array", "tensor"):
            self.objects.append(self.array(t) if kind == "array" else self.tensor(t))
            return self.objects[-1]
        if kind == "handle" and self.handle is not None:
            return self.handle(t["id"], str(t.get("type")))
        raise WireError(f"unknown kind {kind!r}")

    def layout(self, t, itemsize):
        shape = tuple(t["shape"])
        strides = tuple(t["strides"])
        if len(shape) != len(strides) or len(shape) > 32:
            raise WireError("shape and strides disagree")
        if any(type(n) is not int for n in shape + strides) or any(n < 0 for n in shape):
            raise WireError("sizes are not whole numbers")
        if math.prod(max(n, 1) for n in shape) > MAX_ELEMENTS:
            raise WireError(f"an array of shape {shape}")
        low, span = extent(shape, strides, itemsize)
        if t["start"] != -low or span != len(self.buffers[t["at"]]):
            raise WireError("the bytes do not fit the shape")
        return shape, strides

    def array(self, t):
        dtype = np.dtype(checked(t["dtype"], DTYPES))
        shape, strides = self.layout(t, dtype.itemsize)
        if 0 in shape:
            return np.zeros(shape, dtype)
        return np.ndarray(shape, dtype, bytearray(self.buffers[t["at"]]), t["start"], strides)

    def tensor(self, t):
        import torch

        dtype = getattr(torch, checked(t["dtype"], TENSOR_DTYPES))
        size = torch.empty(0, dtype=dtype).element_size()
        shape, strides = self.layout(t, size)
        if any(s < 0 or s % size for s in strides):
            raise WireError("a tensor's strides are whole elements, none negative")
        if 0 in shape:
            return torch.zeros(shape, dtype=dtype).requires_grad_(bool(t.get("grad")))
        flat = torch.frombuffer(bytearray(self.buffers[t["at"]]), dtype=dtype)
        view = flat.as_strided(shape, [s // size for s in strides])
        return view.requires_grad_() if t.get("grad") else view


def checked(name, allowed):
    if name not in allowed:
        raise WireError(f"unknown dtype {name!r}")
    return name
