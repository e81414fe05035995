"""Tensor cores: ldmatrix, mma and wmma multiply small matrices spread over a warp.

Which lane holds which element is given by the PTX ISA manual, section "Matrix fragments". With lane
= 4 g + q (g: group, q: thread in group) and 16-bit elements, a register of A holds row g or g + 8
and columns 2 q, 2 q + 1 (+ 8); a register of B rows 2 q, 2 q + 1 (+ 8) and column g; C and D hold
row g or g + 8 and columns 2 q, 2 q + 1.
"""

import re

import numpy as np

from ..access import load
from ..decode import WARP_SYNC, address, destination, opcode, source
from ..dtypes import F16, F32, F64, S32, S64, U16, U32
from ..lanes import WARP
from ..ptx import Vector
from ..rounding import bf16_to_f32

G, Q = np.arange(WARP) // 4, np.arange(WARP) % 4


def elements(word, ptx_type):
    """A register -> its elements as numbers, lowest bits first: list of arrays."""
    if ptx_type == "f16":
        return [((word >> U32.type(s)).astype(U16)).view(F16).astype(F32) for s in (0, 16)]
    if ptx_type == "bf16":
        return [bf16_to_f32((word >> U32.type(s)).astype(U16)) for s in (0, 16)]
    if ptx_type == "tf32":                                  # the hardware ignores the low 13 bits
        return [(word & U32.type(0xFFFFE000)).view(F32)]
    if ptx_type in ("s8", "u8"):
        kind = np.int8 if ptx_type == "s8" else np.uint8
        return [(word >> U32.type(s)).astype(np.uint8).view(kind).astype(F64)
                for s in (0, 8, 16, 24)]
    raise KeyError(ptx_type)


WIDTH = {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4}   # elements a register


def a_places(count, ptx_type):
    """-> for register i and element e of it, (rows, columns) of the 32 lanes."""
    w = WIDTH[ptx_type]
    return [[(G + 8 * (i % 2), w * Q + e + 4 * w * (i // 2)) for e in range(w)]
            for i in range(count)]


def b_places(count, ptx_type):
    w = WIDTH[ptx_type]
    return [[(w * Q + e + 4 * w * i, G) for e in range(w)] for i in range(count)]


@opcode("mma", kind=WARP_SYNC)
def mma(inst, mods):
    """D = A · B + C for one warp; m16n8k{4,8,16,32}."""
    if not mods.flag("sync") or not mods.flag("aligned"):
        mods.refuse()
    shape = mods.one_of(*[m for m in mods.left if re.match(r"m\d+n\d+k\d+$", m)])
    mods.flag("row"), mods.flag("col"), mods.flag("satfinite")
    d, a, b, c = mods.type(), mods.type(), mods.type(), mods.type()
    M, N, K = map(int, re.findall(r"\d+", shape))
    if (M, N) != (16, 8) or a not in WIDTH or b not in WIDTH or d != c:
        mods.refuse()
    inst.flops = 2 * M * N * K // WARP
    operands = [o.items if isinstance(o, Vector) else (o,) for o in inst.operands]
    reads = [[source(item, "b32") for item in items] for items in operands[1:]]
    places = a_places(len(operands[1]), a), b_places(len(operands[2]), b)
    writes = [destination(item, "b32") for item in operands[0]]

    def run(wave):
        words = [[per_warp(wave, read(wave)) for read in group] for group in reads]
        left = gather(words[0], places[0], a, (M, K))       # (W, M, K)
        right = gather(words[1], places[1], b, (K, N))      # (W, K, N)
        product = np.matmul(left, right)                    # (W, M, N)
        for i, (write, word) in enumerate(zip(writes, words[2], strict=True)):
            write(wave, scatter(wave, accumulate(product, word, i, d)))
    return run


def per_warp(wave, value):
    """One register of every lane -> (W, 32)."""
    return wave.per_lane(value).reshape(-1, WARP)


def scatter(wave, value):
    """(W, 32) -> the layout of a register."""
    return value.reshape(-1) if wave.flat else value.reshape(wave.shape)


def gather(words, places, ptx_type, shape):
    """Registers (W, 32) of a fragment -> matrices (W, rows, columns)."""
    matrix = np.empty((len(words[0]), *shape), F64 if ptx_type in ("s8", "u8") else F32)
    for word, parts in zip(words, places, strict=True):
        for value, (row, column) in zip(elements(word, ptx_type), parts, strict=True):
            matrix[:, row, column] = value
    return matrix


def accumulate(product, word, i, d):
    """Register i of D: the product's elements that it holds, plus C."""
    if d == "f16":                                          # two columns a register
        parts = [(product[:, G + 8 * i, 2 * Q + e] + c).astype(F16).view(U16).astype(U32)
                 for e, c in enumerate(elements(word, "f16"))]
        return parts[0] | (parts[1] << U32.type(16))
    part = product[:, G + 8 * (i // 2), 2 * Q + i % 2]
    if d == "s32":
        return (part.astype(S64) + word.view(S32)).astype(S64).astype(U32)
    return part + word.view(F32)


@opcode("ldmatrix", kind=WARP_SYNC)
def ldmatrix(inst, mods):
    """Load 8x8 matrices of 16-bit elements: lane 8 i + r gives the address of row r of matrix i,
    and lane 4 r + q gets elements 2 q, 2 q + 1 of row r (of column r with .trans)."""
    if not (mods.flag("sync") and mods.flag("aligned") and mods.flag("m8n8")):
        mods.refuse()
    count = int(mods.one_of("x1", "x2", "x4")[1:])
    trans = mods.flag("trans")
    mods.one_of("shared", "shared::cta")
    if mods.type() != "b16":
        mods.refuse()
    target, where = inst.operands[0], address(inst.operands[1])
    items = target.items if isinstance(target, Vector) else (target,)
    writes = [destination(item, "b32") for item in items]

    def run(wave):
        place = wave.per_lane(where(wave)).reshape(-1, WARP)            # (W, 32)
        place = np.tile(place[:, :8 * count], (1, 4 // count))          # rows of x1, x2 for all lanes
        if not wave.flat:
            place = place.reshape(wave.shape)
        else:
            place = place.reshape(-1)
        data = wave.per_lane(load(wave, inst, place, 16, "shared"))
        rows = np.ascontiguousarray(data).view(U16).reshape(-1, WARP, 8)  # (W, lane, element)
        for i, write in enumerate(writes):
            tile = rows[:, 8 * i:8 * i + 8]                             # (W, 8, 8)
            tile = tile.transpose(0, 2, 1) if trans else tile
            low, high = (tile[:, G, 2 * Q + e].astype(U32) for e in (0, 1))
            write(wave, scatter(wave, low | (high << U32.type(16))))
    return run


@opcode("movmatrix", kind=WARP_SYNC)
def movmatrix(inst, mods):
    """Transpose an 8x8 matrix of 16-bit elements that lies in one register of each lane."""
    for word in ("sync", "aligned", "m8n8", "trans"):
        if not mods.flag(word):
            mods.refuse()
    mods.type()
    read, write = source(inst.operands[1], "b32"), destination(inst.operands[0], "b32")

    def run(wave):
        word = per_warp(wave, read(wave))
        tile = np.empty((len(word), 8, 8), U32)
        for e in (0, 1):
            tile[:, G, 2 * Q + e] = (word >> U32.type(16 * e)) & U32.type(0xFFFF)
        write(wave, scatter(wave, tile[:, 2 * Q, G] | (tile[:, 2 * Q + 1, G] << U32.type(16))))
    return run
