"""Tensor cores: mma multiplies small matrices spread over a warp, mma.sp with half of A left out.

How exact?
The PTX ISA manual promises sums of at least the accumulator's precision, in an order of the
hardware's own.
Here the K products and the accumulator are added up in double precision and rounded once to the
accumulator's type: half, float, or integer modulo 2³² unless .satfinite.
The hardware cuts bits off where this rounds, so that the last bits differ.
A float32 operand of a tf32 mma counts with its upper 19 bits only, here as there.
"""

import re
from functools import cache

import numpy as np

from ..decode import WARP_SYNC, destination, opcode, source
from ..dtypes import F64
from ..lanes import WARP
from ..ptx import Immediate, Register, Vector
from . import fragments, products
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
    kind = mods.one_of("sp", "sp::ordered_metadata")
    if kind:
        return sparse(inst, mods, kind)
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


# ---- A with two of each four neighbours of a row (2:4)

CHUNK, STAY = 4, 2
SELECTED = {16: 1, 32: 2}           # K -> lanes of four whose metadata counts


def sparse(inst, mods, kind):
    """mma.sp{::ordered_metadata}.sync.aligned.m16n8k16|k32.row.col, f16 and bf16.

    A holds K / 2 numbers of each row, in the layout of a full A as wide.
    Their places are in the metadata, 2 bits each, the lowest first: of lanes 4 g + selector (K =
    16), or 4 g + 2 · selector and the next (K = 32), each for 16 columns: rows g and, in the
    upper half, g + 8."""
    form = sparse_form(*take_sparse(mods))
    operands = [o.items if isinstance(o, Vector) else (o,) for o in inst.operands]
    M, N, K = form.shape
    lanes = SELECTED[K]
    if [len(o) for o in operands] != [form.registers[2], *form.registers[:2],
                                      form.registers[3], 1, 1]:
        mods.refuse()
    selector = operands[5][0]
    if not isinstance(selector, Immediate) or not 0 <= selector.bits < 4 // lanes:
        mods.refuse()
    reads = [[source(item, "b32") for item in group] for group in operands[1:5]]
    writes = [destination(item, "b32") for item in operands[0]]
    inst.flops = M * N * K // WARP              # 2 · M · N · K / 2: of the numbers that stay
    chosen = slice(selector.bits * lanes, (selector.bits + 1) * lanes)

    def run(wave):
        require_whole_warps(wave, inst)
        a, b, c, metadata = (read_fragment(wave, group) for group in reads)
        metadata = metadata.reshape(-1, WARP // 4, 4)[:, :, chosen]
        left = spread_out(form.values(0, a, 1, 1), places_of(wave, inst, metadata, kind))
        total = form.sums(left, form.values(1, b, 1, 1), form.values(3, c, 1, 1))
        (words,) = form.words(total, 1, 1)
        for write, word in zip(writes, words, strict=True):
            write(wave, in_layout(wave, word))
    return run


def take_sparse(mods):
    """-> (M, N, K), types of A, B, D, C"""
    if not (mods.flag("sync") and mods.flag("aligned")):
        mods.refuse()
    shape, layouts = take_shape(mods), take_layouts(mods)
    d, a, b, c = take_types(mods, 4)
    if shape not in ((16, 8, 16), (16, 8, 32)) or layouts != ["row", "col"] or \
            a not in ("f16", "bf16") or b != a or d != c or c not in accumulators(a):
        mods.refuse()
    return shape, (a, b, d, c)


@cache
def sparse_form(shape, types):
    (M, N, K), (a, b, *_) = shape, types
    return products.Form(shape, types, (
        fragments.a_places(M, K // STAY, a), fragments.b_places(K, N, b),
        fragments.c_places(M, N), fragments.c_places(M, N)))


def places_of(wave, inst, metadata, kind):
    """Registers (W, 8, lanes) -> where the numbers of A stand among their four neighbours
    (W, 16, chunks, 2)."""
    halves = np.stack([metadata & 0xFFFF, metadata >> 16], axis=1)          # (W, 2, 8, lanes)
    shifts = np.arange(16 // CHUNK).reshape(-1, 1) * CHUNK + np.array([0, 2])
    places = halves[..., None, None] >> shifts & 3
    places = places.reshape(len(metadata), 16, -1, STAY).astype(np.int64)
    first, second = places[..., 0], places[..., 1]
    wrong = first >= second if kind == "sp::ordered_metadata" else first == second
    if wrong.any():
        warp, row, chunk = np.argwhere(wrong)[0]
        pair = int(first[warp, row, chunk]), int(second[warp, row, chunk])
        order = "two different places" if kind == "sp" else "two places that rise"
        raise wave.launch.error(
            inst, "argument", f"the metadata of row {row}, columns {CHUNK * chunk} to "
            f"{CHUNK * chunk + 3} names the places {pair[0]} and {pair[1]}: expected {order}",
            wave, int(wave.lanes.index[warp * WARP + row % 8 * 4]))
    return places


def spread_out(stored, places):
    """(W, 16, K / 2) and their places -> (W, 16, K)"""
    W, rows, chunks, _ = places.shape
    full = np.zeros((W, rows, chunks, CHUNK), F64)
    np.put_along_axis(full, places, stored.reshape(places.shape), axis=3)
    return full.reshape(W, rows, -1)
