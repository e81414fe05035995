"""RawKernel on a real GPU, through CuPy, with the arguments and errors of the simulator.

CuPy compiles with the same NVRTC options, for the device at hand, and launches on torch's current
stream where torch is in use. numpy arrays are copied in and, where the kernel may write, out.
"""

import tempfile
from functools import lru_cache

import numpy as np

from . import arguments, nvrtc, signature
from .errors import CompileError
from .ptx import GRID_WORKSPACE
from .session import session
from .textures import Texture
from .variables import source_name


def launch(module, name, grid, block, args, shared_mem):
    """Check the arguments as the simulator does, then launch for real."""
    import cupy
    function = module.function(name)        # compiled for the simulator too: our compile errors
    declared = signature.parameters(module.source, name)
    stream = current_stream(cupy)
    with stream:
        values, copies = device_arguments(cupy, name, function, declared, args)
        kernel = gpu_kernel(cupy, module, name)
        if kernel.shared_size_bytes + shared_mem > 48 * 1024:   # the driver wants to be asked
            kernel.max_dynamic_shared_size_bytes = shared_mem
        kernel(grid, block, tuple(values), shared_mem=shared_mem)
        for host, device in copies:
            host[...] = cupy.asnumpy(device).reshape(host.shape)


def gpu_kernel(cupy, module, name):
    if session.compiler is None:
        return gpu_module(cupy, module).get_function(module.lowered(name))
    if module.on_gpu is None:
        module.on_gpu = loaded(cupy, module)
    return module.on_gpu.get_function(module.lowered(name))


def loaded(cupy, module):
    """A module that another process compiles for the device at hand: this one compiles nothing."""
    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    cubin = session.compiler("cubin", module.source, module.path, module.options,
                             tuple(module.expressions()), arch)
    with tempfile.NamedTemporaryFile(suffix=".cubin", delete=False) as file:
        file.write(cubin)                       # CuPy reads it once for each kernel, and later
    return cupy.RawModule(path=file.name, enable_cooperative_groups=waits_for_grid(module))


def waits_for_grid(module):
    return any(GRID_WORKSPACE in f.mentions for f in module.ptx.functions.values())


def gpu_module(cupy, module):
    if module.on_gpu is None:
        options = tuple(o for o in nvrtc.STANDARD_OPTIONS if o != "-default-device")
        try:
            module.on_gpu = cupy.RawModule(
                code=module.source, backend="nvrtc",
                name_expressions=[*module.expressions(), *hidden_variables(module)] or None,
                enable_cooperative_groups=waits_for_grid(module),
                options=(*options, "-default-device", *nvrtc.includes(module.path),
                         *module.options))
        except cupy.cuda.compiler.CompileException as error:
            raise CompileError(str(error), path=module.path) from None
    return module.on_gpu


def hidden_variables(module):
    """Name expressions of the static variables in namespaces: CuPy's compiler names these by
    another file than ours."""
    return [f"&{source_name(v.name)}" for v in module.compile().variables.values()
            if "_INTERNAL_" in v.name and v.space in ("global", "const")]


class DeviceMemory:
    """A variable's bytes on the GPU, read and written on the stream that kernels run on."""

    def __init__(self, cupy, pointer, size):
        self.cupy = cupy
        self.bytes = cupy.ndarray((size,), np.uint8, pointer)

    def read(self):
        with current_stream(self.cupy):
            return self.cupy.asnumpy(self.bytes)

    def write(self, data):
        with current_stream(self.cupy):
            self.bytes[...] = self.cupy.asarray(data)


def memory_of(module, variable):
    """-> DeviceMemory of a ptx.Variable"""
    import cupy
    symbol = variable.name
    if session.compiler is None:
        on_gpu = gpu_module(cupy, module)
        expression = f"&{source_name(symbol)}"
        if expression in hidden_variables(module):
            symbol = on_gpu.module.mapping[expression]
    else:
        on_gpu = module.on_gpu = module.on_gpu or loaded(cupy, module)
    return DeviceMemory(cupy, on_gpu.get_global(symbol), variable.size)


def current_stream(cupy):
    """torch's current stream as CuPy's, or CuPy's own if torch is not in use."""
    torch = arguments.torch_module()
    if torch is not None and torch.cuda.is_available():
        return external_stream(cupy, torch.cuda.current_stream().cuda_stream)
    return cupy.cuda.get_current_stream()


@lru_cache(maxsize=64)
def external_stream(cupy, address):
    return cupy.cuda.ExternalStream(address)


def device_arguments(cupy, name, function, declared, args):
    """-> CuPy's arguments, and [(numpy array, its copy on the device)] to copy back."""
    arguments.bind(name, function.parameters, declared, args, None)
    values = []
    copies = []
    for value, variable in zip(args, function.parameters, strict=True):
        if isinstance(value, np.ndarray):
            device = cupy.asarray(value)
            values.append(device)
            if value.flags.writeable:
                copies.append((value, device))
        elif arguments.is_tensor(value):
            values.append(tensor_pointer(name, value, copies, cupy))
        elif value is None:
            values.append(np.uintp(0))
        elif isinstance(value, Texture):
            values.append(texture_object(cupy, value, fetches(function)))
        else:
            values.append(scalar(value, variable))
    return values, copies


def fetches(function):
    """Does a kernel read textures by tex1Dfetch, which wants them in linear memory?"""
    return any(i.opcode == "tex" and "1d" in i.modifiers and "s32" in i.modifiers[-1:]
               for i in function.code)


def texture_object(cupy, texture, linear):
    """-> CuPy's TextureObject, made once and kept with the texture."""
    if linear not in texture.on_gpu:
        runtime = cupy.cuda.runtime
        objects = cupy.cuda.texture
        array = texture.array
        bits = [8 * array.itemsize] * texture.channels + [0] * (4 - texture.channels)
        kind = {"f": runtime.cudaChannelFormatKindFloat, "i": runtime.cudaChannelFormatKindSigned,
                "u": runtime.cudaChannelFormatKindUnsigned}[array.dtype.kind]
        channel = objects.ChannelFormatDescriptor(*bits, kind)
        if linear:
            resource = objects.ResourceDescriptor(
                runtime.cudaResourceTypeLinear, arr=cupy.asarray(array), chDesc=channel,
                sizeInBytes=array.nbytes)
        else:
            sizes = array.shape[:texture.dimensions]
            memory = objects.CUDAarray(channel, *sizes[::-1], *[0] * (3 - len(sizes)))
            memory.copy_from(array.reshape(*sizes[:-1], -1))        # channels beside each other
            resource = objects.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=memory)
        descriptor = objects.TextureDescriptor(
            (getattr(runtime, f"cudaAddressMode{texture.address.title()}"),) * texture.dimensions,
            getattr(runtime, f"cudaFilterMode{texture.filter.title()}"),
            runtime.cudaReadModeElementType if texture.read == "element" else
            runtime.cudaReadModeNormalizedFloat, normalizedCoords=int(texture.normalized))
        texture.on_gpu[linear] = objects.TextureObject(resource, descriptor)
    return texture.on_gpu[linear]


def tensor_pointer(name, tensor, copies, cupy):
    if tensor.device.type == "cuda":
        return np.uintp(tensor.data_ptr())
    segment = arguments.tensor_segment(tensor, "")
    device = cupy.asarray(segment.bytes)
    copies.append((segment.bytes, device))
    return np.uintp(device.data.ptr)


def scalar(value, variable):
    """A number with exactly the parameter's size: CuPy would pass a Python int as 8 bytes."""
    if isinstance(value, (np.generic, np.void)):
        return value
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, float):
        return {2: np.float16, 4: np.float32, 8: np.float64}[variable.size](value)
    return np.dtype(f"u{variable.size}").type(int(value) & ((1 << 8 * variable.size) - 1))
