"""wmma: the warp-wide matrix instructions behind nvcuda::wmma.

load and store move whole matrices between memory and fragments, with rows (or columns) `stride`
elements apart; mma multiplies them.
How a fragment lies in the lanes is the hardware's secret: a kernel may change elements one by one,
each in the same way, and nothing more.
Here the layout is that of mma (fragments.py).
Half-precision A and B have room for more elements than a matrix has; the surplus registers hold
copies.

Accesses are counted as the lanes make them: a register at a time, or 8 bytes of a float32
accumulator's row.
Matrices of 16-bit elements that lie across are read along their rows in memory and transposed in
registers.
"""

import numpy as np

from ..access import load, store
from ..decode import WARP_SYNC, address, destination, opcode, source
from ..dtypes import U16, U32, U64, UNSIGNED
from ..lanes import WARP
from ..memory import raw
from ..ptx import Vector
from . import fragments
from .collective import by_the_warp
from .fragments import in_layout, read_fragment, require_one_value, require_whole_warps
from .matrix import (
    FAMILY,
    accumulators,
    form_of,
    multiply_accumulate,
    take_bit_operation,
    take_layouts,
    take_shape,
    take_types,
)

SHAPES = {                      # of the types of A and B
    "f16": ("m16n16k16", "m32n8k16", "m8n32k16"), "bf16": ("m16n16k16", "m32n8k16", "m8n32k16"),
    "8": ("m16n16k16", "m32n8k16", "m8n32k16"), "tf32": ("m16n16k8",), "f64": ("m8n8k4",),
    "4": ("m8n8k32",), "b1": ("m8n8k128",),
}
ALIGNED = 16                    # bytes: what loads of a row need
BEST_ALIGNED = 32               # what the manual asks of the address


@opcode("wmma", kind=WARP_SYNC)
def wmma(inst, mods):
    operation = mods.need("load", "store", "mma")
    if not (mods.flag("sync") and mods.flag("aligned")):
        mods.refuse()
    return {"load": wmma_load, "store": wmma_store, "mma": wmma_mma}[operation](inst, mods)


def wmma_mma(inst, mods):
    """D = A · B + C. In half precision the text names D and C only."""
    multiply, saturate = take_bit_operation(mods), mods.flag("satfinite")
    shape, layouts = take_shape(mods), take_layouts(mods)
    types = [word for word in mods.left if word in fragments.BITS]
    take_types(mods, len(types))
    if len(types) == 2:
        types = [types[0], "f16", "f16", types[1]]
    if len(types) != 4:
        mods.refuse()
    d, a, b, c = types
    if a != b or c not in accumulators(a) or d not in accumulators(a) or not legal(shape, a) or \
            (multiply is not None) != (a == "b1") or (saturate and accumulators(a) != ("s32",)):
        mods.refuse()
    if a == "f64":
        mods.flag("rn")
    if FAMILY.get(a, a) in ("4", "b1") and layouts != ["row", "col"]:
        mods.refuse()
    return multiply_accumulate(inst, mods, form_of(shape, (a, b, d, c), None, saturate, multiply))


def legal(shape, ptx_type):
    return "m{}n{}k{}".format(*shape) in SHAPES.get(FAMILY.get(ptx_type, ptx_type), ())


class Transfer:
    """What wmma.load and wmma.store share: which lane moves which piece of the matrix.

    pieces     [(lead, along)]: row as it lies in memory and place within it, for the 32 lanes
    width      elements of a piece
    turned     is the matrix read along its rows in memory, and transposed in registers?
    """

    def __init__(self, inst, mods, role, registers, place, stride):
        M, N, K = shape = take_shape(mods)
        layout = mods.need("row", "col")
        self.space = (mods.one_of("global", "shared", "shared::cta") or "generic").split("::")[0]
        (self.type,) = take_types(mods, 1)
        if not self.known(shape, role):
            mods.refuse()
        if role == "a":
            self.places = fragments.a_places(M, K, self.type)
        elif role == "b":
            self.places = fragments.b_places(K, N, self.type)
        else:
            self.places = fragments.c_places(M, N)
        (rows, columns), rowwise = self.places.shape, role != "b"
        self.inst, self.bits = inst, fragments.BITS[self.type]
        per_register = fragments.width_of(self.type)
        self.registers = self.places.count // per_register
        if registers != (8 if self.type == "f16" and role in "ab" else self.registers):
            mods.refuse()
        natural = (layout == "row") == rowwise
        if self.bits < 8 and not natural:
            mods.refuse()
        self.turned = not natural and self.bits == 16
        across = fragments.b_places if rowwise else fragments.a_places
        self.in_memory = across(rows, columns, self.type) if self.turned else self.places
        places = self.in_memory if layout == "row" else self.in_memory.transposed()
        self.width = (2 if role in "cd" else per_register) if natural or self.turned else 1
        self.pieces = [(places.rows[i], places.columns[i])
                       for i in range(0, places.count, self.width)]
        self.size = max(1, self.width * self.bits // 8)     # bytes of a piece
        self.where = address(place)
        self.fragment = registers * (8 if self.type == "f64" else 4)    # bytes of a lane's share
        self.stride = source(stride, "u32") if stride is not None else None
        self.default_stride = columns if layout == "row" else rows

    def known(self, shape, role):
        if role in "ab":
            return legal(shape, self.type)
        return any(legal(shape, t) for t in SHAPES_OF_ACCUMULATORS.get(self.type, ()))

    def addresses(self, wave):
        """-> for each piece the addresses of the lanes, checked."""
        base = require_one_value(wave, self.inst, wave.per_lane(self.where(wave)),
                                 "addresses")                                           # (W, 1)
        stride = np.full(base.shape, self.default_stride, np.int64)
        if self.stride is not None:
            stride = require_one_value(wave, self.inst, wave.per_lane(self.stride(wave)),
                                       "strides").astype(np.int64)
        self.check_aligned(wave, base, stride)
        for lead, along in self.pieces:
            offset = (lead * stride + along) * self.bits // 8                           # (W, 32)
            yield in_layout(wave, base + offset.astype(U64))

    def check_aligned(self, wave, base, stride):
        need, best = min(ALIGNED, self.fragment), min(BEST_ALIGNED, self.fragment)
        step = (stride * self.bits // 8).astype(U64)
        wrong = ((base | step) % U64.type(need) != 0).reshape(-1)
        if wrong.any():
            lane = int(wave.lanes.index[int(np.flatnonzero(wrong)[0]) * WARP])
            raise wave.launch.error(
                self.inst, "misaligned", f"misaligned matrix: its address and the "
                f"{int(step.max())} bytes from one row to the next must be multiples of {need}",
                wave, lane)
        if (base % U64.type(best) != 0).any():
            wave.launch.warn(self.inst, f"the address of a matrix is not a multiple of {best}, as "
                                        f"the PTX ISA manual demands: the behaviour is undefined")

    def permute(self, words, frm, to):
        """Registers of 16-bit elements (W, r, 32) from one layout to another."""
        halves = fragments.by_element(words, self.type, lambda w: w.view(U16))
        values = halves.reshape(len(words), -1).take(frm.slot[to.cell], axis=1)
        values = values.reshape(len(words), -1, WARP).astype(U32)
        return values[:, 0::2] | (values[:, 1::2] << U32.type(16))


SHAPES_OF_ACCUMULATORS = {"f16": ("f16",), "f32": ("f16", "tf32"), "s32": ("s8", "s4", "b1"),
                          "f64": ("f64",)}


def wmma_load(inst, mods):
    role = mods.need("a", "b", "c")
    target, place, *stride = inst.operands
    items = target.items if isinstance(target, Vector) else (target,)
    transfer = Transfer(inst, mods, role, len(items), place, *(stride or [None]))
    register = 8 if transfer.type == "f64" else 4
    writes = [destination(item, f"b{8 * register}") for item in items]

    def run(wave):
        require_whole_warps(wave, inst)
        pieces = []
        with by_the_warp(wave):
            for addresses in transfer.addresses(wave):
                data = wave.per_lane(load(wave, inst, addresses, transfer.size, transfer.space))
                pieces.append(np.ascontiguousarray(data).reshape(-1, WARP))
        words = to_registers(np.stack(pieces, axis=1), register)
        if transfer.turned:
            words = transfer.permute(words, transfer.in_memory, transfer.places)
        for i, write in enumerate(writes):
            write(wave, in_layout(wave, words[:, i % transfer.registers]))
    return run


def wmma_store(inst, mods):
    if not mods.flag("d"):
        mods.refuse()
    place, data, *stride = inst.operands
    items = data.items if isinstance(data, Vector) else (data,)
    transfer = Transfer(inst, mods, "d", len(items), place, *(stride or [None]))
    register = 8 if transfer.type == "f64" else 4
    reads = [source(item, f"b{8 * register}") for item in items]

    def run(wave):
        require_whole_warps(wave, inst)
        words = read_fragment(wave, reads)
        if transfer.turned:
            words = transfer.permute(words, transfer.places, transfer.in_memory)
        pieces = from_registers(words, transfer.size, register)
        with by_the_warp(wave, stores=True):
            for i, addresses in enumerate(transfer.addresses(wave)):
                store(wave, inst, addresses, transfer.size, transfer.space,
                      in_layout(wave, pieces[:, i]))
    return run


def to_registers(pieces, register):
    """Pieces of memory (W, p, 32), wider or narrower than a register -> registers (W, r, 32)."""
    W, p, _ = pieces.shape
    size = pieces.dtype.itemsize
    if size >= register:
        parts = pieces.view(UNSIGNED[register]).reshape(W, p, WARP, size // register)
        return np.ascontiguousarray(parts.transpose(0, 1, 3, 2)).reshape(W, -1, WARP)
    parts = pieces.reshape(W, -1, register // size, WARP).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(parts).view(UNSIGNED[register])[..., 0]


def from_registers(words, size, register):
    """Registers (W, r, 32) -> pieces of `size` bytes, which is no less than a register's."""
    W, r, _ = words.shape
    many = size // register
    parts = words.view(UNSIGNED[register]).reshape(W, r // many, many, WARP).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(parts).view(raw(size))[..., 0]
