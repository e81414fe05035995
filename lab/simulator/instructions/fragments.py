"""Fragments: how a matrix lies in the registers of a warp.

A register of 32 bits holds e elements: two halves, four bytes, one tf32.
A core matrix has 8 rows of 4 e elements and lies in one register of each of the 32 lanes: lane 4 g
+ q holds elements e q to e q + e - 1 of row g.
Larger matrices are made of core matrices.
These are the tables of the PTX ISA manual, "Matrix fragments for mma"; it leaves the layout for
wmma open, and here it is the same.

W counts the warps that run the instruction.
A fragment of r registers is an array (W, r, 32).
"""

import numpy as np

from ..dtypes import F16, F32, F64, U8, U16, U32
from ..lanes import WARP
from ..rounding import bf16_to_f32, fp8_to_f16

G, Q = np.arange(WARP) // 4, np.arange(WARP) % 4
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s32": 32, "f64": 64, "e4m3": 8, "e5m2": 8,
        "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1}
INTEGERS = ("s8", "u8", "s4", "u4", "b1")


class Places:
    """Rows and columns of the elements of a fragment, for each lane: (elements, 32)."""

    def __init__(self, rows, columns, shape):
        self.rows, self.columns, self.shape = np.asarray(rows), np.asarray(columns), shape
        self.count = len(rows)
        cell = (self.rows * shape[1] + self.columns).reshape(-1)
        self.cell = cell                                    # (elements · 32,) of the flat matrix
        self.slot = np.zeros(shape[0] * shape[1], np.int64)
        self.slot[cell[::-1]] = np.arange(len(cell))[::-1]  # where each matrix element lies

    def transposed(self):
        return Places(self.columns, self.rows, self.shape[::-1])


def core_matrices(corners, width, shape):
    """corners: (row, column) where each register's core matrix begins."""
    rows = [r + G for r, c in corners for _ in range(width)]
    columns = [c + width * Q + e for r, c in corners for e in range(width)]
    return Places(rows, columns, shape)


def width_of(ptx_type):
    """Elements of a register."""
    return max(1, 32 // BITS[ptx_type])


def a_places(M, K, ptx_type):
    """Row-wise core matrices, first down 16 rows, then along K."""
    w = width_of(ptx_type)
    corners = [(tile + half, k) for tile in range(0, M, 16) for k in range(0, K, 4 * w)
               for half in range(0, min(M, 16), 8)]
    return core_matrices(corners, w, (M, K))


def b_places(K, N, ptx_type):
    """Column-wise core matrices, first along K, then along N."""
    w = width_of(ptx_type)
    corners = [(n, k) for n in range(0, N, 8) for k in range(0, K, 4 * w)]
    return core_matrices(corners, w, (N, K)).transposed()


def c_places(M, N):
    """A lane holds two neighbours of a row, in one register or in two."""
    corners = [(tile + half, n) for tile in range(0, M, 16) for n in range(0, N, 8)
               for half in range(0, min(M, 16), 8)]
    return core_matrices(corners, 2, (M, N))


# ---- registers to numbers

def by_element(words, ptx_type, numbers):
    """(W, r, 32) registers -> (W, r · e, 32) numbers, lowest bits first."""
    W, r, _ = words.shape
    values = numbers(np.ascontiguousarray(words))           # (W, r, 32 · e)
    values = values.reshape(W, r, WARP, -1)
    return values.transpose(0, 1, 3, 2).reshape(W, -1, WARP) if values.shape[3] > 1 else \
        values.reshape(W, r, WARP)


def nibbles(words):
    parts = words.view(U8)
    return np.stack([parts & U8.type(15), parts >> U8.type(4)], axis=-1)


E4M3, E5M2 = (fp8_to_f16(kind).astype(F64) for kind in ("e4m3", "e5m2"))
DECODERS = {                    # registers -> float64: all these types are exact in it, and so are
                                # products of two
    "f16": lambda w: w.view(F16).astype(F64),
    "bf16": lambda w: bf16_to_f32(w.view(U16)).astype(F64),
    "tf32": lambda w: (w & U32.type(0xFFFFE000)).view(F32).astype(F64),  # 13 bits are ignored
    "f64": lambda w: w.view(F64),
    "e4m3": lambda w: E4M3[w.view(U8)],
    "e5m2": lambda w: E5M2[w.view(U8)],
    "s8": lambda w: w.view(np.int8).astype(F64),
    "u8": lambda w: w.view(U8).astype(F64),
    "s4": lambda w: (nibbles(w) ^ U8.type(8)).astype(F64) - 8,
    "u4": lambda w: nibbles(w).astype(F64),
    "b1": lambda w: np.unpackbits(w.view(U8), axis=-1, bitorder="little").astype(F64),
    "f32": lambda w: w.view(F32).astype(F64),
    "s32": lambda w: w.view(np.int32).astype(F64),
}


# ---- registers of the wave

def read_fragment(wave, reads):
    """-> (W, r, 32)"""
    return np.stack([wave.per_lane(read(wave)).reshape(-1, WARP) for read in reads], axis=1)


def write_fragment(wave, writes, words):
    for i, write in enumerate(writes):
        write(wave, in_layout(wave, words[:, i]))


def in_layout(wave, value):
    """(W, 32) -> the layout that registers have now."""
    return np.ascontiguousarray(value).reshape(-1 if wave.flat else wave.shape)


def require_whole_warps(wave, inst):
    """.aligned: all 32 lanes of a warp must execute the instruction, and together."""
    lanes = wave.lanes
    if lanes.whole:
        return
    bits = lanes.bits.reshape(-1)
    broken = np.flatnonzero((bits != 0) & (bits != 0xFFFFFFFF))
    if not len(broken):
        return
    here = int(bits[broken[0]])
    absent = [str(lane) for lane in range(WARP) if not here >> lane & 1]
    first = int(broken[0]) * WARP + (here & -here).bit_length() - 1
    raise wave.launch.error(
        inst, "mask", f"all lanes of a warp must execute this together ({inst.opcode}.sync): lane "
        f"{', '.join(absent)} does not come", wave, first)


def require_one_value(wave, inst, value, what):
    """An operand that must be the same in all lanes of a warp (n,) -> it, per warp (W, 1)."""
    values = value.reshape(-1, WARP)
    differs = (values != values[:, :1]).any(axis=1)
    if differs.any():
        lane = int(wave.lanes.index[int(np.flatnonzero(differs)[0]) * WARP])
        raise wave.launch.error(inst, "mask", f"the lanes of a warp give `{inst.opcode}` different "
                                f"{what}", wave, lane)
    return values[:, :1]
