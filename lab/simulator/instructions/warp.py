"""Instructions in which the 32 lanes of a warp exchange values: shfl, vote, match, redux."""

from functools import cache

import numpy as np

from ..decode import MEMORY, WARP_SYNC, destination, opcode, source
from ..dtypes import DTYPES, U32
from ..lanes import WARP
from ..ptx import Immediate, Pair

FULL = 0xFFFFFFFF


def take_mask(inst):
    """The last operand says which lanes take part; the scheduler waits for them."""
    operand = inst.operands[-1]
    inst.mask = None if operand == Immediate(-1, None) else source(operand, "u32")


def check_member(wave, inst):
    """A lane that executes the instruction must be in its own mask -> masks (n,) or FULL."""
    if wave.shadow:
        wave.shadow.shuffle(wave)
    if inst.mask is None:
        return U32.type(FULL)
    masks = inst.mask(wave)
    if masks.size == 1 and masks.flat[0] == FULL:
        return U32.type(FULL)
    masks = wave.per_lane(masks)
    lane = (wave.lanes.index % WARP).astype(U32)
    outside = (masks >> lane) & U32.type(1) == 0
    if outside.any():
        i = int(np.flatnonzero(outside)[0])
        raise wave.launch.error(
            inst, "mask", f"lane {lane[i]} executes this warp-wide instruction but is not in its "
            f"mask 0x{masks[i]:08x}", wave, int(wave.lanes.index[i]))
    return masks


@opcode("shfl", kind=WARP_SYNC)
def shfl(inst, mods):
    """Every lane reads a register of another lane: `up` from the lane b below, `down` from b above,
    `bfly` from the lane number xor b, `idx` from lane b. c holds the segment's mask and bound."""
    if not mods.flag("sync"):
        mods.refuse()
    mode, _ = mods.need("up", "down", "bfly", "idx"), mods.type("b32")
    take_mask(inst)
    target = inst.operands[0]
    first, second = target if isinstance(target, Pair) else (target, None)
    write, in_range = destination(first, "b32"), destination(second, "pred") if second else None
    a, b, c = (source(operand, "u32") for operand in inst.operands[1:4])

    def run(wave):
        check_member(wave, inst)
        value, by, clamp = a(wave), b(wave), c(wave)
        if by.size == clamp.size == 1 and not wave.flat:
            lane, other, inside = block_partners(mode, wave.shape[1], by.item(), clamp.item())
        else:
            lane = wave.lanes.index % WARP if wave.flat else \
                np.arange(wave.shape[1]).reshape(1, -1) % WARP
            other, inside = partners(mode, lane, by.astype(np.int64), clamp.astype(np.int64))
        write(wave, fetch(wave, inst, value, lane, other))
        if in_range:
            in_range(wave, inside)
    return run


def partners(mode, lane, by, clamp):
    """-> from which lane each lane reads, itself where that is out of bounds; is it within them?"""
    by, segment, bound = by & 31, clamp >> 8 & 31, clamp & 31
    limit = (lane & segment) | (bound & ~segment)
    if mode == "up":
        other = lane - by
        inside = other >= limit
    else:
        other = {"down": lane + by, "bfly": lane ^ by,
                 "idx": (lane & segment) | (by & ~segment)}[mode]
        inside = other <= limit
    return np.where(inside, other, lane), inside


@cache
def block_partners(mode, T, by, clamp):
    """The same of all lanes of a block, with the lanes before (1, T)."""
    lane = np.arange(T).reshape(1, T) % WARP
    return lane, *partners(mode, lane, by, clamp)


def fetch(wave, inst, value, lane, other):
    """Each lane's value from another lane of its warp."""
    if value.size == 1 and (wave.lanes.whole or (other == lane).all()):
        return value
    if not wave.flat:                                       # all lanes are here
        T = wave.shape[1]
        base = np.arange(T) // WARP * WARP
        if other.shape[0] == 1:
            return np.broadcast_to(value, (value.shape[0], T)).take((base + other)[0], axis=1)
        start = np.arange(wave.shape[0]).reshape(-1, 1) * T
        return wave.full(value).take(start + base + other)
    index = wave.lanes.index
    from_lane = (index & ~31) + other
    here = np.zeros(wave.live.size, bool)
    here[index] = True
    absent = ~here[from_lane]
    result = wave.full(value)[from_lane]
    if absent.any():
        i = int(np.flatnonzero(absent)[0])
        wave.launch.warn(inst, f"a shuffle reads lane {other[i]}, which does not take part: the "
                               f"value is undefined (thread {wave.thread_of(index[i])} of block "
                               f"{wave.block_of(index[i])})")
        result = np.where(absent, result.dtype.type(FULL), result)
    return result


def ballot(wave, predicate):
    """Per warp of the wave the active lanes for which the predicate holds, as bits (B·T/32,)."""
    truth = wave.full(predicate)
    if not wave.lanes.whole:
        truth = truth & np.broadcast_to(wave.lanes.mask, wave.shape).reshape(-1)
    return np.packbits(truth.reshape(-1, WARP), axis=1, bitorder="little").view(U32).reshape(-1)


def to_lanes(wave, per_warp):
    """One value per warp -> to each of its lanes."""
    if wave.flat:
        return per_warp[wave.lanes.warp_of]
    return np.repeat(per_warp, WARP).reshape(wave.shape)


@opcode("vote", kind=WARP_SYNC)
def vote(inst, mods):
    if not mods.flag("sync"):
        mods.refuse()
    mode, _ = mods.need("all", "any", "uni", "ballot"), mods.type("pred", "b32")
    take_mask(inst)
    p, write = source(inst.operands[1], "pred"), destination(
        inst.operands[0], "b32" if mode == "ballot" else "pred")

    def run(wave):
        masks = check_member(wave, inst)
        masks = masks if wave.flat or masks.ndim == 0 else masks.reshape(wave.shape)
        yes = to_lanes(wave, ballot(wave, p(wave))) & masks
        here = to_lanes(wave, wave.lanes.bits.reshape(-1)) & masks
        write(wave, {"ballot": lambda: yes, "any": lambda: yes != 0, "all": lambda: yes == here,
                     "uni": lambda: (yes == here) | (yes == 0)}[mode]())
    return run


@opcode("activemask", kind=MEMORY)
def activemask(inst, mods):
    mods.type()
    write = destination(inst.operands[0], "b32")
    return lambda wave: write(wave, to_lanes(wave, wave.lanes.bits.reshape(-1)))


def by_warp(wave, value, masks):
    """-> for each active lane the 32 values of its warp (n, 32), and which of these lanes are both
    active and in the mask (n, 32)."""
    warp = wave.lanes.warp_of
    values = wave.full(value).reshape(-1, WARP)[warp]
    bits = wave.lanes.bits.reshape(-1)[warp] & masks
    return values, (bits[:, None] >> np.arange(WARP, dtype=U32)) & U32.type(1) == 1


def from_lanes(wave, per_lane):
    return per_lane if wave.flat else per_lane.reshape(wave.shape)


@opcode("redux", kind=WARP_SYNC)
def redux(inst, mods):
    """One value for the warp: the sum, minimum, ... over the lanes of the mask."""
    if not mods.flag("sync"):
        mods.refuse()
    name = mods.need("add", "min", "max", "and", "or", "xor")
    ptx_type = mods.type(*(("b32",) if name in ("and", "or", "xor") else ("u32", "s32")))
    take_mask(inst)
    dtype = DTYPES[ptx_type]
    ufunc = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
             "or": np.bitwise_or, "xor": np.bitwise_xor}[name]
    limits = np.iinfo(dtype)
    neutral = dtype.type({"min": limits.max, "max": limits.min, "and": -1 if limits.min else
                          limits.max}.get(name, 0))
    a, write = source(inst.operands[1], ptx_type), destination(inst.operands[0], ptx_type)

    def run(wave):
        values, member = by_warp(wave, a(wave), check_member(wave, inst))
        write(wave, from_lanes(wave, ufunc.reduce(np.where(member, values, neutral), axis=1,
                                                  dtype=dtype)))
    return run


@opcode("match", kind=WARP_SYNC)
def match(inst, mods):
    """any: which lanes hold my value; all: do all lanes hold one value?"""
    mode, _ = mods.need("any", "all"), mods.need("sync")
    ptx_type = mods.type("b32", "b64")
    take_mask(inst)
    target = inst.operands[0]
    first, second = target if isinstance(target, Pair) else (target, None)
    write, all_equal = destination(first, "b32"), destination(second, "pred") if second else None
    a = source(inst.operands[1], ptx_type)

    def run(wave):
        own = a(wave)
        values, member = by_warp(wave, own, check_member(wave, inst))
        same = (values == wave.per_lane(own)[:, None]) & member
        bits = np.packbits(same, axis=1, bitorder="little").view(U32).reshape(-1)
        if mode == "all":
            agree = (same == member).all(axis=1)
            bits = np.where(agree, bits, U32.type(0))
            if all_equal:
                all_equal(wave, from_lanes(wave, agree))
        write(wave, from_lanes(wave, bits))
    return run
