"""ld and st: between registers and memory."""

import numpy as np

from ..access import load, store
from ..decode import MEMORY, address, destination, opcode, source
from ..dtypes import SIZES, U64, UNSIGNED
from ..errors import Unsupported
from ..ptx import Immediate, Register, Symbol, Vector

SPACES = ("global", "shared", "local", "param", "const")
CACHE_HINTS = (                 # where a line is kept changes the time and not the value
    "nc", "ca", "cg", "cs", "cv", "lu", "wb", "wt", "L1::evict_normal", "L1::evict_unchanged",
    "L1::evict_first", "L1::evict_last", "L1::no_allocate", "L2::64B", "L2::128B", "L2::256B",
    "L2::evict_last", "L2::evict_normal", "L2::evict_first")
ORDERS = ("weak", "volatile", "relaxed", "acquire", "release", "mmio")
SCOPES = ("cta", "cluster", "gpu", "sys")


def take_space(mods):
    """The state space of the operand; none means a generic address."""
    space = mods.one_of(*SPACES, "shared::cta", "param::entry", "param::func", default="generic")
    return space.split("::")[0]


def take_hints(mods):
    order = mods.one_of(*ORDERS, default="weak")
    mods.flag(*SCOPES)
    while mods.flag(*CACHE_HINTS):
        pass
    if mods.flag("L2::cache_hint"):
        mods.inst.operands.pop()                            # the policy register
    return order


@opcode("ld", "ldu", kind=MEMORY)
def ld(inst, mods):
    take_hints(mods)
    space = take_space(mods)
    mods.flag("v2", "v4")
    ptx_type = mods.type()
    target, place = inst.operands
    items = target.items if isinstance(target, Vector) else [target]
    if space == "param":
        read = parameter_reader(inst, place, ptx_type, len(items))
    else:
        where, size = address(place), SIZES[ptx_type] * len(items)
        space = "global" if space == "const" else space

        def read(wave):
            return load(wave, inst, where(wave), size, space)
    if len(items) == 1:
        write, unsigned = destination(items[0], ptx_type, wider=True), UNSIGNED[SIZES[ptx_type]]
        return lambda wave: write(wave, read(wave).view(unsigned))
    writes = [destination(item, ptx_type, wider=True) for item in items]
    unsigned = UNSIGNED[SIZES[ptx_type]]

    def run(wave):
        parts = read(wave)
        parts = parts.view(unsigned).reshape(*parts.shape, len(items))
        for i, write in enumerate(writes):
            write(wave, np.ascontiguousarray(parts[..., i]))
    return run


@opcode("st", kind=MEMORY)
def st(inst, mods):
    take_hints(mods)
    space = take_space(mods)
    mods.flag("v2", "v4")
    ptx_type = mods.type()
    place, value = inst.operands
    items = value.items if isinstance(value, Vector) else [value]
    size, part = SIZES[ptx_type] * len(items), f"b{8 * SIZES[ptx_type]}"
    reads = [source(item, part, wider=True) for item in items]
    where = param_address(place) if space == "param" else address(place)
    space = "local" if space == "param" else space
    if len(items) == 1:
        return lambda wave: store(wave, inst, where(wave), size, space, reads[0](wave))

    def run(wave):
        values = [read(wave) for read in reads]
        packed = np.empty((*np.broadcast_shapes(*(v.shape for v in values)), len(items)),
                          values[0].dtype)
        for i, v in enumerate(values):
            packed[..., i] = v
        packed = packed.view(np.uint64 if size == 8 else np.complex128 if size == 16
                             else UNSIGNED[size])[..., 0]
        store(wave, inst, where(wave), size, space, packed)
    return run


def parameter_reader(inst, place, ptx_type, count):
    """ld.param reads the kernel's arguments, or what a call passed in local memory."""
    size = SIZES[ptx_type] * count
    function = inst.function
    names = {v.name: v for v in function.parameters} if function.is_kernel else {}
    if isinstance(place.base, Symbol) and place.base.name in names:
        start = names[place.base.name].offset + place.base.offset + place.offset

        def read(wave):
            value = wave.launch.parameters[start:start + size].copy()
            return value.view({2: np.uint16, 1: np.uint8, 4: np.uint32, 8: np.uint64,
                               16: np.complex128}[size]).reshape((1,) if wave.flat else (1, 1))
        return read
    if isinstance(place.base, Register) and function.is_kernel:
        where = address(place)                              # a dynamic index into a struct
        if SIZES[place.base.type] == 8:
            return lambda wave: load(wave, inst, where(wave), size, "global")
        # The lower half of an address, as Triton 3.9 keeps it: all parameters have one upper half.
        return lambda wave: load(wave, inst, where(wave) + U64.type(
            wave.launch.place_of_parameters >> 32 << 32), size, "global")
    where = param_address(place)
    return lambda wave: load(wave, inst, where(wave), size, "local")


def param_address(place):
    if not isinstance(place.base, Symbol):
        raise Unsupported(f"the simulator does not know the parameter address {place}")
    return source(Symbol(place.base.name, place.base.offset + place.offset), "u64")


@opcode("prefetch", "prefetchu", "discard", "applypriority")
def prefetch(inst, mods):
    """Hints to the caches, of which there are none here."""
    mods.flag("global", "local")
    mods.flag("L1", "L2", "L2::evict_last", "L2::evict_normal")
    return lambda wave: None


@opcode("createpolicy")
def createpolicy(inst, mods):
    """How long the caches should keep a line, as a number that only loads and stores understand."""
    if not mods.flag("fractional"):
        mods.refuse()
    mods.need("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged")
    mods.flag("L2::evict_first", "L2::evict_unchanged")
    read = source(Immediate(0, None), mods.type("b64"))
    write = destination(inst.operands[0], "b64")
    return lambda wave: write(wave, read(wave))
