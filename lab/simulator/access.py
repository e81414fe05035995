"""One load or store for the lanes of a wave: find the memory, check, count, move the data.

Addresses come as (B, T) or a broadcast of it when all lanes of the wave take part, else as (n,).
"""

import numpy as np

from .dtypes import U64
from .host_addresses import translate
from .lanes import Lanes
from .memory import LOCAL_WINDOW, OFFSET_BITS, SEGMENT_SHIFT, SHARED_WINDOW, raw
from .patterns import pattern_of, patterns


class SeveralSegments(Exception):
    """The lanes of one instruction point into different arrays: run it once for each."""

    def __init__(self, groups):
        super().__init__()
        self.groups = groups


def window(wave, address):
    """A generic address -> its state space and the address within it.
    Lanes may differ."""
    number = int(address.flat[0]) >> SEGMENT_SHIFT
    if number not in (SHARED_WINDOW, LOCAL_WINDOW):
        return "global", address
    numbers = address >> U64.type(SEGMENT_SHIFT)
    if (numbers != number).any():
        raise SeveralSegments(split(wave, numbers))
    space = "shared" if number == SHARED_WINDOW else "local"
    return space, address & U64.type(OFFSET_BITS)


def only_shared(wave, inst, address):
    """A generic address that must lead to shared memory -> the address within it."""
    space, address = window(wave, address)
    if space != "shared":
        raise wave.launch.error(inst, "out_of_bounds", f"`{inst.opcode}` needs an address in "
                                f"shared memory, this one is {space}", wave, first(wave))
    return address


def split(wave, key):
    """Lanes by the value of a key -> list of Lanes."""
    keys = wave.per_lane(key)
    return [Lanes(wave.shape, index=wave.lanes.index[keys == k]) for k in np.unique(keys)]


def load(wave, inst, address, size, space, fetcher=None):
    """-> raw elements of `size` bytes, in the layout of the addresses; or what the fetcher gives,
    where all blocks read the same places of shared memory, see patterns.py."""
    if space == "generic":
        space, address = window(wave, address)
    if space == "global":
        segment, offset = find_segment(wave, inst, address, size, "read")
        wave.launch.counts.global_access(wave, inst, offset, size, segment)
        if wave.shadow:
            wave.shadow.global_load(wave, inst, segment, offset, size)
        return segment.view(raw(size)).take(offset >> shift(size), mode="wrap")
    if space == "shared":
        offset, index, pattern = shared_place(wave, inst, address, size, "read", fetcher)
        memory = wave.shared_memory(raw(size))                          # (B, elements)
        if wave.shadow:
            wave.shadow.load(wave, inst, offset, size)
            wave.taint.shared_load(index + rows(wave, index, memory), size)
        if pattern:
            return pattern.fetch(memory)
        return memory.reshape(-1).take(index + rows(wave, index, memory), mode="wrap")
    memory, index = local_place(wave, inst, address, size, "read")
    if wave.taint:
        wave.taint.local_load(inst, index, size)
    return memory.take(index, mode="wrap")


def store(wave, inst, address, size, space, value):
    """Write raw elements.
    Where lanes write to one place, the highest lane wins."""
    if space == "generic":
        space, address = window(wave, address)
    segment = offset = None
    if space == "global":
        segment, offset = find_segment(wave, inst, address, size, "write")
        wave.launch.counts.global_access(wave, inst, offset, size, segment)
        memory = segment.view(raw(size))
        index = offset >> shift(size)
    elif space == "shared":
        offset, index, pattern = shared_place(wave, inst, address, size, "write")
        memory = wave.shared_memory(raw(size))
        if pattern and pattern.run and not wave.taint:
            in_order = pattern.order is None or value.shape[1] == 1
            memory[:, pattern.run] = value if in_order else value.take(pattern.order, axis=1)
            return
        index = index + rows(wave, index, memory)
        memory = memory.reshape(-1)
    else:
        memory, index = local_place(wave, inst, address, size, "write")
    if wave.taint:
        checked_store(wave, inst, space, segment, offset, size, memory, index, value)
    else:
        assign(wave, memory, index, value)


def checked_store(wave, inst, space, segment, offset, size, memory, index, value):
    """A store that the race detector and the tracker of uninitialised values watch."""
    taint = wave.taint
    shadow = wave.shadow
    if taint.captured is not None:
        taint.capture_store(space, segment, wave.per_lane(index), size, wave.per_lane(value))
        return

    def now():
        assign(wave, memory, index, value)
    if space == "global":
        shadow.global_store(wave, inst, segment, offset, size, memory, index, value, now)
    elif space == "shared":
        shadow.store(wave, inst, offset, size, memory, index, value, now)
        taint.shared_store(index, size)
    else:
        now()
        taint.local_store(index, size)


def place(wave, inst, address, size, space):
    """For an atomic -> memory as one row of raw elements, each active lane's index in it (n,), and
    the state space."""
    if space == "generic":
        space, address = window(wave, address)
    if space == "global":
        segment, offset = find_segment(wave, inst, address, size, "atomic")
        wave.launch.counts.global_access(wave, inst, offset, size, segment)
        if wave.shadow:
            wave.shadow.global_atomic(wave, inst, segment, offset, size)
        return segment.view(raw(size)), wave.per_lane(offset >> shift(size)), space
    offset, index, _ = shared_place(wave, inst, address, size, "atomic")
    if wave.shadow:
        wave.shadow.atomic(wave, inst, offset, size)
    memory = wave.shared_memory(raw(size))
    return memory.reshape(-1), wave.per_lane(index + rows(wave, index, memory)), space


def assign(wave, memory, index, value):
    """memory[index] = value, lane by lane."""
    shape = wave.shape if index.ndim == 2 else (wave.lanes.count,)
    if index.size == 1:                                 # all lanes, one place: the last one wins
        memory[index.reshape(-1)] = value[..., -1].reshape(-1)[-1]
    else:
        memory[np.broadcast_to(index, shape)] = value


def rows(wave, index, memory):
    """Where each block's shared memory starts, in elements."""
    if index.ndim == 2:
        return (np.arange(wave.shape[0]) * memory.shape[1]).reshape(-1, 1)
    return wave.lanes.blocks * memory.shape[1]


def shift(size):
    return size.bit_length() - 1


# ---- checks

def find_segment(wave, inst, address, size, verb):
    """-> the Segment and the byte offsets within it (int64), all in bounds and aligned."""
    space = wave.launch.space
    segment = space.find(address.flat[0])
    if segment is None:
        if len(groups := split(wave, address >> U64.type(SEGMENT_SHIFT))) > 1:
            raise SeveralSegments(groups)
        if (translated := translate(wave.launch, address)) is not None:
            return find_segment(wave, inst, translated, size, verb)
        raise invalid_address(wave, inst, address, size, verb)
    offset = address - U64.type(segment.base)
    if segment.length < size or int(offset.max()) > segment.length - size:
        if len(groups := split(wave, address >> U64.type(SEGMENT_SHIFT))) > 1:
            raise SeveralSegments(groups)
        raise out_of_bounds(wave, inst, offset.view(np.int64), size, verb, segment)
    if size > 1:
        check_aligned(wave, inst, offset + U64.type(segment.skew) if segment.skew else offset, size,
                      verb, f"`{segment.name}`")
    if verb != "read" and not segment.writable:
        raise wave.launch.error(
            inst, "out_of_bounds", f"{verb} to `{segment.name}`, which is read-only", wave,
            first(wave))
    return segment, offset.view(np.int64)


def shared_offset(wave, inst, address, size, verb):
    """-> byte offsets within the block's shared memory (int64), in bounds and aligned."""
    offset = address.view(np.int64)
    length = wave.launch.shared_size
    if int(address.max()) > length - size or length < size:
        bad = wave.per_lane(address > U64.type(max(length - size, 0))) | (length < size)
        lane = int(wave.lanes.index[np.flatnonzero(bad)[0]])
        where = int(wave.per_lane(offset)[np.flatnonzero(bad)[0]])
        if where >= 1 << 31:
            where -= 1 << 32                            # a 32-bit address below zero
        arrays = ", ".join(f"`{v}` {n}" for v, n in wave.launch.shared_arrays) or "nothing"
        if any(v.extern for v in wave.launch.shared_variables) and not wave.launch.dynamic_shared:
            arrays += "; the launch gave shared_mem=0 for the extern array"
        raise wave.launch.error(
            inst, "out_of_bounds",
            f"out-of-bounds {verb} of {size} bytes at byte {where} of shared memory, which has "
            f"{length} bytes ({arrays})", wave, lane, also=int(bad.sum()))
    if size > 1:
        check_aligned(wave, inst, address, size, verb, "shared memory")
    return offset


def shared_place(wave, inst, address, size, verb, fetcher=None):
    """Check and count an access -> byte offsets within the block's shared memory, indices of
    elements, and the Pattern if all blocks have the same."""
    launch = wave.launch
    if address.shape != (1, wave.shape[1]):
        offset = shared_offset(wave, inst, address, size, verb)
        launch.counts.shared_access(wave, inst, offset, size)
        return offset, offset >> shift(size), None

    def make():
        offset = shared_offset(wave, inst, address, size, verb)
        return pattern_of(offset, size, launch.counts.wavefronts(wave, offset, size), fetcher)
    key = fetcher, size, launch.shared_size, wave.shape[0], address.tobytes()
    pattern = patterns.get(key, make)
    launch.counts.add(wave, inst, "shared", pattern.offset, size, pattern.counts)
    return pattern.offset, pattern.index, pattern


def local_place(wave, inst, address, size, verb):
    """-> local memory as one row of elements, and the index of each lane's element."""
    length = wave.frame.local_end
    if int(address.max()) > length - size:
        bad = wave.per_lane(address > U64.type(length - size))
        i = int(np.flatnonzero(bad)[0])
        raise wave.launch.error(
            inst, "out_of_bounds",
            f"out-of-bounds {verb} of {size} bytes at byte {int(wave.per_lane(address)[i])} of the "
            f"thread's local memory, which has {length} bytes", wave, int(wave.lanes.index[i]))
    if size > 1:
        check_aligned(wave, inst, address, size, verb, "local memory")
    wave.launch.counts.local_access(wave, inst, address, size)
    memory = wave.local_memory(raw(size))                               # (B·T, elements)
    lane = wave.lanes.index if address.ndim == 1 else \
        np.arange(wave.shape[0] * wave.shape[1]).reshape(wave.shape)
    return memory.reshape(-1), (address.view(np.int64) >> shift(size)) + lane * memory.shape[1]


def check_aligned(wave, inst, offset, size, verb, name):
    if int(np.bitwise_or.reduce(offset, axis=None)) & (size - 1):
        bad = wave.per_lane((offset & U64.type(size - 1)) != 0)
        i = int(np.flatnonzero(bad)[0])
        raise wave.launch.error(
            inst, "misaligned",
            f"misaligned {verb} of {size} bytes at byte {int(wave.per_lane(offset)[i])} of {name}: "
            f"the address must be a multiple of {size}", wave, int(wave.lanes.index[i]))


def out_of_bounds(wave, inst, offset, size, verb, segment):
    offsets = wave.per_lane(offset)
    bad = (offsets < 0) | (offsets > segment.length - size)
    i = int(np.flatnonzero(bad)[0])
    begin = int(offsets[i])
    place = segment.name_of(begin)
    if 0 <= begin < segment.length:             # the first of several elements is there
        place = f"the last {begin + size - segment.length} of those that begin at {place}"
    return wave.launch.error(
        inst, "out_of_bounds", f"out-of-bounds {verb} of {size} bytes: {place}", wave,
        int(wave.lanes.index[i]), also=int(bad.sum()))


def invalid_address(wave, inst, address, size, verb):
    value = int(address.flat[0])
    what = "a null pointer" if value < 1 << 12 else \
        f"the address 0x{value:x}, which belongs to no argument"
    return wave.launch.error(inst, "out_of_bounds", f"{verb} of {size} bytes through {what}", wave,
                             first(wave))


def first(wave):
    return int(wave.lanes.index[0])
