"""Tensor cores: mma multiplies small matrices spread over a warp; ldmatrix loads them.

How exact? The PTX ISA manual promises sums of at least the accumulator's precision, in an order of
the hardware's own. Here the K products and the accumulator are added up in double precision and
rounded once to the accumulator's type: half, float, or integer modulo 2³² unless .satfinite. The
hardware cuts bits off where this rounds, so that the last bits differ. A float32 operand of a tf32
mma counts with its upper 19 bits only, here as there.
"""

import re
from functools import cache

import numpy as np

from ..access import load, only_shared
from ..decode import WARP_SYNC, address, destination, opcode, source
from ..dtypes import U16, U32
from ..lanes import WARP, Lanes
from ..ptx import Register, Vector
from . import fragments, products
from .collective import by_the_warp
from .fragments import INTEGERS, Places, in_layout, read_fragment, require_whole_warps

SHAPES = {                      # of the types of A and B: what sm_80 has, for fp8 sm_89
    "f16": ("m8n8k4", "m16n8k8", "m16n8k16"),
    "bf16": ("m16n8k8", "m16n8k16"),
    "tf32": ("m16n8k4", "m16n8k8"),
    "f64": ("m8n8k4",),
    "8": ("m8n8k16", "m16n8k16", "m16n8k32"),
    "4": ("m8n8k32", "m16n8k32", "m16n8k64"),
    "b1": ("m8n8k128", "m16n8k128", "m16n8k256"),
    "fp8": ("m16n8k16", "m16n8k32"),
}
FAMILY = {"s8": "8", "u8": "8", "s4": "4", "u4": "4", "e4m3": "fp8", "e5m2": "fp8"}


@opcode("mma", kind=WARP_SYNC)
def mma(inst, mods):
    """D = A · B + C for one warp."""
    if not (mods.flag("sync") and mods.flag("aligned")):
        mods.refuse()
    shape, layouts = take_shape(mods), take_layouts(mods)
    multiply, saturate = take_bit_operation(mods), mods.flag("satfinite")
    d, a, b, c = take_types(mods, 4)
    family = FAMILY.get(a, a)
    if FAMILY.get(b, b) != family or "m{}n{}k{}".format(*shape) not in SHAPES.get(family, ()):
        mods.refuse()
    if c not in accumulators(a) or (multiply is not None) != (a == "b1") or \
            (saturate and family not in ("8", "4")):
        mods.refuse()
    quads = shape == (8, 8, 4) and a == "f16"
    if d != c and not (quads and (d, c) == ("f32", "f16")):
        mods.refuse()
    if layouts != ["row", "col"] and not quads:
        mods.refuse()
    M, N, K = shape
    return multiply_accumulate(inst, mods, form_of(
        shape, (a, b, d, c), tuple(layouts) if quads else None, saturate, multiply))


@cache
def form_of(shape, types, quads=None, saturate=False, multiply=None):
    """-> products.Form. quads: the layouts of A and B where a warp computes four products"""
    (M, N, K), (a, b, d, c) = shape, types
    if quads:
        places = quad_a(quads[0]), quad_b(quads[1]), quad_c(d), quad_c(c)
    else:
        places = (fragments.a_places(M, K, a), fragments.b_places(K, N, b),
                  fragments.c_places(M, N), fragments.c_places(M, N))
    return products.Form(shape, types, places, saturate, multiply, 4 if quads else 1)


def multiply_accumulate(inst, mods, form):
    """-> run(wave)"""
    operands = [o.items if isinstance(o, Vector) else (o,) for o in inst.operands]
    if len(operands) != 4:
        mods.refuse()
    d, a, b, c = operands
    if [len(d), len(c)] != form.registers[2:] or len(a) < form.registers[0] or \
            len(b) < form.registers[1]:
        mods.refuse()
    a, b = a[:form.registers[0]], b[:form.registers[1]]     # the others hold copies
    size = ["b64" if t == "f64" else "b32" for t in form.types]
    reads = [[source(item, s) for item in items]
             for items, s in zip((a, b, c), (size[0], size[1], size[3]), strict=True)]
    writes = [destination(item, size[2]) for item in d]
    M, N, K = form.shape
    inst.flops = 2 * form.matrices * M * N * K // WARP      # of integers: operations
    together = all(isinstance(o, Register) for items in (a, b, c, d) for o in items) and \
        len({o.name for o in d}) == len(d)
    names = [tuple(o.name for o in items) for items in (d, a, b, c)] if together else ()

    def run(wave):
        require_whole_warps(wave, inst)
        if together and wave.lanes.whole:
            products.issue(form, wave.registers, wave.shape, *names)
            return
        left, right, start = (form.values(role, read_fragment(wave, group), 1, 1)
                              for role, group in zip((0, 1, 3), reads, strict=True))
        (words,) = form.words(form.sums(left, right, start), 1, 1)
        for write, word in zip(writes, words, strict=True):
            write(wave, in_layout(wave, word))
    return run


# ---- modifiers

def take_shape(mods):
    """-> (M, N, K)"""
    shape = mods.one_of(*[m for m in mods.left if re.match(r"m\d+n\d+k\d+$", m)])
    if shape is None:
        mods.refuse()
    return tuple(map(int, re.findall(r"\d+", shape)))


def take_layouts(mods):
    """-> [of A, of B], each "row" or "col" """
    layouts = [word for word in mods.left if word in ("row", "col")]
    if len(layouts) != 2:
        mods.refuse()
    mods.left = [word for word in mods.left if word not in ("row", "col")]
    return layouts


def take_types(mods, count):
    types = [word for word in mods.left if word in fragments.BITS]
    if len(types) != count:
        mods.refuse()
    mods.left = [word for word in mods.left if word not in fragments.BITS]
    return types


def take_bit_operation(mods):
    """.xor.popc, .and.popc: how matrices of single bits are multiplied -> function or None"""
    name = mods.one_of("xor", "and")
    if name is None:
        return None
    if not mods.flag("popc"):
        mods.refuse()
    return np.matmul if name == "and" else differing


def differing(left, right):
    """How many bits of a row and a column differ."""
    return np.matmul(left, 1 - right) + np.matmul(1 - left, right)


def accumulators(ptx_type):
    """The types of C and D that go with a type of A and B."""
    if ptx_type in INTEGERS:
        return ("s32",)
    return {"f64": ("f64",), "bf16": ("f32",), "tf32": ("f32",)}.get(ptx_type, ("f16", "f32"))


# ---- m8n8k4 in half precision: four products a warp, one for lanes 4 i to 4 i + 3 together with
# ---- 16 + 4 i to 19 + 4 i. Stacked, they are one fragment.

LANE = np.arange(WARP)
QUAD, UPPER = LANE % 16 // 4, LANE // 16 * 4                # number of the product, row 0 or 4


def quad_a(layout):
    one, along = UPPER + LANE % 4, LANE % 4
    rows = [8 * QUAD + (one if layout == "row" else UPPER + i) for i in range(4)]
    return Places(rows, [0 * LANE + i if layout == "row" else along for i in range(4)], (32, 4))


def quad_b(layout):
    rows = [4 * QUAD + (LANE % 4 if layout == "row" else i) for i in range(4)]
    columns = [UPPER + (i if layout == "row" else LANE % 4) for i in range(4)]
    return Places(rows, columns, (16, 8))


def quad_c(ptx_type):
    if ptx_type == "f16":
        return Places([8 * QUAD + UPPER + LANE % 4] * 8, [0 * LANE + i for i in range(8)], (32, 8))
    return Places([8 * QUAD + UPPER + (LANE & 1) + (i & 2) for i in range(8)],
                  [(i & 4) + (LANE & 2) + (i & 1) for i in range(8)], (32, 8))


# ---- loads

@opcode("ldmatrix", kind=WARP_SYNC)
def ldmatrix(inst, mods):
    """Load 8x8 matrices of 16-bit elements: lane 8 i + r gives the address of row r of matrix i,
    and lane 4 r + q gets elements 2 q, 2 q + 1 of row r (of column r with .trans)."""
    if not (mods.flag("sync") and mods.flag("aligned") and mods.flag("m8n8")):
        mods.refuse()
    count = int(mods.need("x1", "x2", "x4")[1:])
    trans = mods.flag("trans")
    space = "shared" if mods.flag("shared", "shared::cta") else "generic"
    if mods.type() != "b16":
        mods.refuse()
    target, where = inst.operands[0], address(inst.operands[1])
    items = target.items if isinstance(target, Vector) else (target,)
    writes = [destination(item, "b32") for item in items]
    if len(writes) != count:
        mods.refuse()
    fetcher = None if count < 4 else columns_of_four if trans else rows_of_four

    def run(wave):
        require_whole_warps(wave, inst)
        place = where(wave)
        if space == "generic":
            place = only_shared(wave, inst, place)
        everyone = wave.lanes
        if count < 4:                                       # only these lanes' addresses count
            chosen = everyone.index % WARP < 8 * count
            place = wave.per_lane(place)[chosen]
            wave.select(Lanes(wave.shape, index=everyone.index[chosen]), True)
        with by_the_warp(wave):
            data = load(wave, inst, place, 16, "shared", fetcher)
        if isinstance(data, list):                          # dealt out already
            for write, register in zip(writes, data, strict=True):
                write(wave, register)
            return
        data = wave.per_lane(data)
        wave.select(everyone, True)
        rows = np.ascontiguousarray(data).view(U16).reshape(-1, count, 8, 8)
        if trans:
            rows = rows.transpose(0, 1, 3, 2)
        pairs = np.ascontiguousarray(rows).view(U32).reshape(-1, count, WARP)
        fragments.write_fragment(wave, writes, pairs)
    return run


def rows_of_four(row):
    """Where each lane's address leads, as a number of 16 bytes (T,) -> fetch(memory), which gives
    the registers of four matrices, each (B, T): a row of 16 bytes is one word of four lanes."""
    matrices = row.reshape(-1, 4, 8).transpose(1, 0, 2).reshape(4, -1)
    return lambda memory: [memory.take(rows, axis=1, mode="wrap").view(U32) for rows in matrices]


def columns_of_four(row):
    """The same with .trans: column r is elements r of the 8 rows, two of them one word."""
    elements = 8 * row.reshape(-1, 4, 1, 8) + np.arange(8).reshape(8, 1)    # (warp, matrix, r, row)
    matrices = elements.transpose(1, 0, 2, 3).reshape(4, -1)
    return lambda memory: [memory.view(U16).take(halves, axis=1, mode="wrap").view(U32)
                           for halves in matrices]


@opcode("stmatrix", kind=WARP_SYNC)
def stmatrix(inst, mods):
    """It came with sm_90; the simulator is an sm_80, for fp8 an sm_89."""
    mods.refuse()


@opcode("movmatrix", kind=WARP_SYNC)
def movmatrix(inst, mods):
    """Transpose an 8x8 matrix of 16-bit elements that lies in one register of each lane."""
    for word in ("sync", "aligned", "m8n8", "trans"):
        if not mods.flag(word):
            mods.refuse()
    if mods.type() != "b16":
        mods.refuse()
    read, write = source(inst.operands[1], "b32"), destination(inst.operands[0], "b32")

    def run(wave):
        require_whole_warps(wave, inst)
        tile = read_fragment(wave, [read]).view(U16).reshape(-1, 8, 8)
        turned = np.ascontiguousarray(tile.transpose(0, 2, 1)).view(U32)
        write(wave, in_layout(wave, turned.reshape(-1, WARP)))
    return run
