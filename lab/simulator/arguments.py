"""Python arguments of a launch -> the bytes that the kernel finds in its parameters.

Arrays keep their memory: the kernel reads and writes it in place. torch is looked at only if the
caller has imported it.
"""

import numbers
import sys

import numpy as np

from .errors import KernelError
from .memory import Segment
from .signature import POINTEES, SIGNED, VECTORS, Parameter
from .textures import Texture


def bind(kernel_name, variables, declared, arguments, space):
    """-> parameter bytes (uint8).

    variables   ptx.Variable of each parameter
    declared    signature.Parameter of each, or None
    space       AddressSpace that receives a Segment for each array; None where arguments are only
                checked, and arrays may lie on a GPU
    """
    if declared is None or len(declared) != len(variables):
        declared = [Parameter(f"parameter {i}", "", None) for i in range(len(variables))]
    if len(arguments) != len(variables):
        names = ", ".join(p.name for p in declared)
        raise KernelError(f"kernel `{kernel_name}` takes {len(variables)} arguments ({names}), "
                          f"{len(arguments)} were given", "argument")
    size = max((v.offset + v.size for v in variables), default=0)
    data = np.zeros(size, np.uint8)
    for variable, parameter, value in zip(variables, declared, arguments, strict=True):
        try:
            raw = encode(variable, parameter, value, space)
        except ArgumentProblem as problem:
            kind = f" ({shown(parameter)})" if parameter.type else ""
            raise KernelError(f"kernel `{kernel_name}`, parameter `{parameter.name}`{kind}: "
                              f"{problem}", "argument") from None
        data[variable.offset:variable.offset + variable.size] = np.frombuffer(raw, np.uint8)
    return data


class ArgumentProblem(Exception):
    """What is wrong with one argument."""


def shown(parameter):
    return parameter.type + ("*" if parameter.pointer else "")


def encode(variable, parameter, value, space):
    """One argument -> bytes of the parameter's size."""
    if value is None and variable.size == 8:
        return bytes(8)                                     # a null pointer
    if isinstance(value, Texture):
        if parameter.type not in ("cudaTextureObject_t", ""):
            raise ArgumentProblem("takes no texture")
        return space.add_texture(value).to_bytes(8, "little") if space else bytes(8)
    if is_array(value):
        if parameter.type == "cudaTextureObject_t":
            raise ArgumentProblem("takes a simulator.Texture(array), not an array "
                                  f"{describe(value)}")
        if variable.size != 8 or parameter.pointer is False:
            raise ArgumentProblem(f"takes one value, not an array {describe(value)}")
        check_array(value, parameter)
        if space is None:
            return bytes(8)
        segment = space.add(segment_of(value, parameter))
        segment.opaque = parameter.type.startswith("curandState")
        return segment.base.to_bytes(8, "little")
    if parameter.pointer and not (isinstance(value, int) and value == 0):
        raise ArgumentProblem(f"takes an array, not {type(value).__name__} {value!r}")
    return encode_scalar(variable, parameter, value)


def encode_scalar(variable, parameter, value):
    kind = variable.type[0]
    size = variable.size
    if isinstance(value, (np.void, bytes)):
        raw = bytes(value) if isinstance(value, bytes) else value.tobytes()
        if len(raw) != size:
            raise ArgumentProblem(f"takes {size} bytes, the struct given has {len(raw)}")
        return raw
    floating = kind == "f" or parameter.type in ("half", "__half", "__nv_bfloat16", "nv_bfloat16")
    if isinstance(value, (bool, np.bool_)):
        if size != 1 or floating:
            raise ArgumentProblem(f"takes {wanted(variable, parameter)}, not a bool")
        return bytes([bool(value)])
    if isinstance(value, np.generic):
        if value.dtype.itemsize != size or (value.dtype.kind == "f") != floating:
            raise ArgumentProblem(f"takes {wanted(variable, parameter)}, not {value.dtype}")
        return value.tobytes()
    if isinstance(value, float):
        if not floating:
            raise ArgumentProblem(f"takes {wanted(variable, parameter)}, not the float {value!r}")
        return float_bytes(value, size, parameter)
    if isinstance(value, numbers.Integral):
        if floating:
            raise ArgumentProblem(f"takes {wanted(variable, parameter)}, not the integer {value}; "
                                  f"write {float(value)!r}")
        return integer_bytes(int(value), variable, parameter)
    raise ArgumentProblem(f"cannot take {type(value).__name__}")


def float_bytes(value, size, parameter):
    if "bfloat16" in parameter.type:
        from .rounding import f32_to_bf16
        return f32_to_bf16(np.array([value], np.float32)).tobytes()
    return np.array(value, {2: np.float16, 4: np.float32, 8: np.float64}[size]).tobytes()


def integer_bytes(value, variable, parameter):
    bits = 8 * variable.size
    if variable.size > 8:
        raise ArgumentProblem(f"takes a struct of {variable.size} bytes, not the integer {value}")
    low = -(1 << (bits - 1))
    high = (1 << bits) - 1
    if parameter.type in SIGNED:
        high = (1 << (bits - 1)) - 1
    elif parameter.type.startswith(("unsigned", "uint", "size_t")):
        low = 0
    if not low <= value <= high:
        raise ArgumentProblem(f"takes {wanted(variable, parameter)}, {value} does not fit")
    return (value & ((1 << bits) - 1)).to_bytes(variable.size, "little")


def wanted(variable, parameter):
    if parameter.type and not parameter.pointer:
        return f"{parameter.type} ({variable.size} bytes)"
    return f"{variable.size} bytes of type .{variable.type}"


# ---- arrays

def torch_module():
    return sys.modules.get("torch")


def is_tensor(value):
    torch = torch_module()
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value):
    return isinstance(value, np.ndarray) or is_tensor(value)


def dtype_name(value):
    return str(value.dtype).removeprefix("torch.")


def describe(value):
    return f"of {dtype_name(value)}, shape {tuple(value.shape)}"


def check_array(value, parameter):
    check_element(value, parameter)
    if isinstance(value, np.ndarray) and not value.flags.c_contiguous:
        raise ArgumentProblem("takes a C-contiguous array; use np.ascontiguousarray")


def segment_of(value, parameter):
    """The memory of an array as a Segment."""
    name = dtype_name(value)
    if isinstance(value, np.ndarray):
        data = value.reshape(-1).view(np.uint8) if value.size else np.zeros(0, np.uint8)
        return Segment(data, parameter.name, name, writable=value.flags.writeable)
    return tensor_segment(value, parameter.name)


def check_element(value, parameter):
    """Is it an array of what the parameter points to?
    Vectors also carry bytes: float4 and its like may move narrower elements, as long as these
    fill whole vectors."""
    allowed = POINTEES.get(parameter.type) if parameter.pointer else None
    if parameter.type.endswith("*"):
        allowed = "int64", "uint64"                         # a table of addresses
    name = dtype_name(value)
    if not allowed or name in allowed:
        return
    wanted = f"takes an array of {' or '.join(allowed)}"
    if width := VECTORS.get(parameter.type):
        size = value.element_size() if is_tensor(value) else value.dtype.itemsize
        count = int(np.prod(value.shape))
        if size <= 4 and size * count % width == 0:
            return
        wanted += f", or of elements of up to 4 bytes that fill whole vectors of {width} bytes"
        name += f", {size * count} bytes"
    raise ArgumentProblem(f"{wanted}, not one of {name}")


def tensor_segment(tensor, name):
    """The memory from the tensor's first element to the end of its last row, padding included as in
    the rows before.
    With a stride of 0, where the kernel chooses its own steps, to the end of the storage."""
    torch = torch_module()
    if tensor.device.type != "cpu":
        raise ArgumentProblem(f"is on {tensor.device}; the simulator runs on CPU tensors")
    size = tensor.element_size()
    extent = 0 if tensor.numel() == 0 else \
        1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.storage_offset() * size
    memory = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    if extent:
        rest = (len(memory) - start) // size
        rows = [n * s if s else rest
                for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]
        extent = min(max([extent, *rows]), rest)
    data = memory.numpy()[start:start + extent * size]
    element = "" if tensor.dtype in (torch.bfloat16,) or size > 8 else dtype_name(tensor)
    element = element if element in np.sctypeDict else ("uint16" if size == 2 else "uint8")
    return Segment(data, name, element, skew=start % 256)
