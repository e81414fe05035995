"""ldmatrix and movmatrix: 8x8 matrices of 16-bit elements, spread over a warp."""

import numpy as np

from ..access import load, only_shared
from ..decode import WARP_SYNC, address, destination, opcode, source
from ..dtypes import U16, U32
from ..lanes import WARP, Lanes
from ..ptx import Vector
from . import fragments
from .collective import by_the_warp
from .fragments import in_layout, read_fragment, require_whole_warps


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
