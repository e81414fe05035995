"""One compiled Triton kernel: from the arguments of a launch to a Run."""

import linecache
import re
from functools import cache
from operator import index
from pathlib import Path

import numpy as np

from . import ptx
from .arguments import ArgumentProblem, is_tensor, tensor_segment
from .errors import KernelError, Unsupported
from .report import make_launch
from .run import Run
from .session import session
from .signature import Parameter
from .triton_tuning import tuning

GRID_LIMITS = 2**31 - 1, 65535, 65535
FLOATS = {"fp16": np.float16, "fp32": np.float32, "f32": np.float32, "fp64": np.float64}


class Launcher:
    """Triton makes one of these for a compiled kernel and calls it for every launch."""

    def __init__(self, source, metadata):
        if getattr(metadata, "num_ctas", 1) != 1:
            raise Unsupported("the simulator does not run clusters: num_ctas must be 1")
        if getattr(metadata, "profile_scratch_size", 0):
            raise Unsupported("the simulator does not run kernels changed by Triton's profiler")
        self.name = metadata.name
        self.threads = 32 * metadata.num_warps
        self.shared = metadata.shared
        self.scratch = metadata.global_scratch_size, metadata.global_scratch_align
        self.cooperative = metadata.launch_cooperative_grid
        function = getattr(source, "fn", None)
        self.module = parse_cached(ptx_file(metadata, source.name), python_file(function))
        self.kernel = self.module.functions[self.name]
        names = function.arg_names if function else list(source.signature)
        self.arguments = list(zip(names, source.signature.values(), strict=True))
        self.globals = {}
        self.sources = read_sources(self.kernel)

    def __call__(self, grid_x, grid_y, grid_z, stream, function, kernel_metadata, launch_metadata,
                 enter_hook, exit_hook, *values):
        grid = check_grid(self.name, grid_x, grid_y, grid_z)
        if enter_hook is not None:
            enter_hook(launch_metadata)
        if all(grid):                                       # an empty grid is no launch
            self.launch(grid, values)
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def launch(self, grid, values):
        run = Run(self.module, self.kernel, grid, (self.threads, 1, 1), sources=self.sources,
                  dynamic_shared=self.shared, budget=session.step_budget, checks=session.checks)
        run.keeps_copies = True
        run.cooperative = self.cooperative
        run.parameters = self.bind(values, self.allocate_scratch(grid), run.space)
        run.place_globals(self.globals)
        run.run()
        tuning.steps += run.steps
        session.finish(make_launch(run, self.name))

    def allocate_scratch(self, grid):
        """Memory for the kernel's own use, from the allocator that the user has set in Triton."""
        size, align = self.scratch
        if not size:
            return None
        from triton.runtime import _allocation
        return _allocation._allocator.get()(size * grid[0] * grid[1] * grid[2], align, 0)

    def bind(self, values, scratch, space):
        """-> parameter bytes (uint8)"""
        if len(values) != len(self.arguments):
            names = ", ".join(name for name, _ in self.arguments)
            raise KernelError(f"kernel `{self.name}` takes {len(self.arguments)} arguments "
                              f"({names}), {len(values)} were given", "argument")
        flat = [argument for (name, kind), value in zip(self.arguments, values, strict=True)
                for argument in flatten(name, kind, value)]
        flat += [(Parameter("global scratch", "i8", True), scratch),
                 (Parameter("profile scratch", "i8", True), None)]
        variables = self.kernel.parameters
        if len(flat) != len(variables):
            raise Unsupported(f"kernel `{self.name}` has {len(variables)} parameters in PTX, the "
                              f"simulator made {len(flat)} from its arguments: an unknown Triton?")
        data = np.zeros(max((v.offset + v.size for v in variables), default=0), np.uint8)
        for variable, (parameter, value) in zip(variables, flat, strict=True):
            try:
                raw = encode(variable.size, parameter, value, space)
            except ArgumentProblem as problem:
                raise KernelError(f"kernel `{self.name}`, parameter `{parameter.name}`: {problem}",
                                  "argument") from None
            data[variable.offset:variable.offset + variable.size] = np.frombuffer(raw, np.uint8)
        return data


def check_grid(name, *grid):
    """-> the sizes as ints; numpy's are welcome, floats are not."""
    fits = all(hasattr(size, "__index__") and 0 <= size <= limit
               for size, limit in zip(grid, GRID_LIMITS, strict=True))
    if not fits:
        raise KernelError(f"kernel `{name}`, grid {grid}: expected whole numbers from 0 to "
                          f"{GRID_LIMITS}", "argument")
    return tuple(index(size) for size in grid)


# ---- arguments

def flatten(name, kind, value):
    """One Python argument -> (Parameter, value) of each parameter in PTX.
    What Triton calls a constexpr has become part of the code; a tuple is one parameter for each
    member; a tensor descriptor is its base, shape and strides, and these two again, as Triton's
    own launcher has it.
    """
    if kind == "constexpr":
        return
    if isinstance(kind, tuple):
        fields = [f".{f}" for f in value._fields] if hasattr(value, "_fields") else \
            [f"[{i}]" for i in range(len(kind))]
        for field, inner, member in zip(fields, kind, value, strict=True):
            yield from flatten(name + field, inner, member)
    elif kind.startswith("tensordesc"):
        yield Parameter(name, re.match(r"tensordesc<([^[>]*)", kind)[1], True), value.base
        flags = [value.padding == "nan"]
        if hasattr(value, "round_f32_to_tf32"):             # since Triton 3.7
            flags.append(value.round_f32_to_tf32)
        for size, numbers in (("i64", [*value.shape, *value.strides]), ("i1", flags),
                              ("i32", value.shape), ("i64", value.strides)):
            yield from ((Parameter(name, size, False), number) for number in numbers)
    else:
        yield Parameter(name, kind.lstrip("*"), kind.startswith("*")), value


def encode(size, parameter, value, space):
    """A value -> the `size` bytes of its parameter."""
    if parameter.pointer:
        return encode_pointer(parameter, value, space).to_bytes(8, "little")
    if parameter.type == "bf16":                            # Triton's launcher truncates
        return np.array(value, np.float32).tobytes()[2:]
    if parameter.type in FLOATS:
        return np.array(value, FLOATS[parameter.type]).tobytes()
    value = int(value)
    bits = 8 * size
    signed = parameter.type.startswith("i") and parameter.type != "i1"
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not low <= value <= high:
        raise ArgumentProblem(f"takes {parameter.type}, {value} does not fit")
    return (value & (1 << bits) - 1).to_bytes(size, "little")


def encode_pointer(parameter, value, space):
    """-> the address that the kernel sees"""
    if value is None:
        return 0
    if isinstance(value, int):
        return value                                        # see host_addresses.py
    tensor = value if is_tensor(value) else getattr(value, "base", None)    # of a reinterpret()
    if not is_tensor(tensor):
        if hasattr(value, "data_ptr"):                      # anything else that has one will do
            return value.data_ptr()
        raise ArgumentProblem(f"takes a torch tensor, not {type(value).__name__}")
    segment = tensor_segment(tensor, parameter.name)
    if (tensor.data_ptr() - segment.skew) % 16:             # Triton has compiled for this alignment
        segment.skew = tensor.data_ptr() % 256
    return space.add(segment).base


# ---- compiled code

def ptx_file(metadata, name):
    """The path of the PTX in Triton's cache. name: of the Python function; the kernel may have
    another, by @triton.jit(repr=...)."""
    from triton.runtime.cache import get_cache_manager
    group = get_cache_manager(metadata.hash).get_group(f"{name[:150]}.json") or {}
    paths = [path for name, path in group.items() if name.endswith(".ptx")]
    if not paths:
        raise Unsupported(f"Triton's cache has no PTX of `{metadata.name}`; is its cache off?")
    return paths[0]


def python_file(function):
    """The file of a @triton.jit function, None if it is not known."""
    code = getattr(getattr(function, "fn", None), "__code__", None)
    return code.co_filename if code else None


def read_sources(kernel):
    """Path -> text of the files that a kernel comes from.
    A notebook's cells are no files, but Python remembers them."""
    paths = {inst.location.path for inst in kernel.code if inst.location}
    return {path: text for path in paths if (text := "".join(linecache.getlines(path)))}


@cache
def parse_cached(path, file):
    """-> ptx.Module.
    Triton's cache goes by the text of a kernel alone, so that the PTX may name another file with
    the same text; `file` is the one that the kernel comes from."""
    text = Path(path).read_text(encoding="utf-8")
    if file:
        same_name = rf'(\.file\s+\d+\s+")[^"]*/{re.escape(Path(file).name)}"'
        text = re.sub(same_name, lambda match: f'{match[1]}{file}"', text)
    return ptx.parse(text)
