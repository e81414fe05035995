"""Functions that CUDA C calls and the driver provides: printf, assert, malloc and free."""

import re
import struct

import numpy as np

from .heap import Heap
from .memory import LOCAL_WINDOW, OFFSET_BITS, SEGMENT_SHIFT

CONVERSION = re.compile(r"%%|%[-+ #0]*(?:\d+|\*)?(?:\.\d+)?(hh|h|ll|l|z|t|j)?([diouxXeEfFgGaAcsp])")


def argument(wave, name, dtype=np.uint64):
    """The value of a call's argument for each active lane (n,)."""
    memory = wave.local_memory(np.dtype(dtype))             # (B·T, elements)
    return memory[wave.lanes.index, wave.frame.local[name] // np.dtype(dtype).itemsize]


def give(wave, name, values):
    """The result of a call for each active lane (n,)."""
    memory = wave.local_memory(values.dtype)                # (B·T, elements)
    memory[wave.lanes.index, wave.frame.local[name] // values.dtype.itemsize] = values


def text_at(wave, address):
    """The C string at a generic address."""
    segment = wave.launch.space.find(address)
    start = int(address) - segment.base
    return bytes(segment.bytes[start:]).split(b"\0")[0].decode(errors="replace")


def vprintf(wave, inst, results, arguments):
    """printf(format, arguments): the arguments lie packed in local memory."""
    formats, buffers = (argument(wave, name) for name in arguments)
    local = wave.local_memory(np.dtype(np.uint8))
    for lane, fmt, buffer in zip(wave.lanes.index, formats, buffers, strict=True):
        place = int(buffer) & OFFSET_BITS if int(buffer) >> SEGMENT_SHIFT == LOCAL_WINDOW else 0
        wave.launch.output.append(format_text(wave, text_at(wave, fmt), local[lane], place))
    if results:
        give(wave, results[0], np.zeros(len(formats), np.uint32))


def format_text(wave, fmt, memory, place):
    """C's format with arguments of 4 or 8 bytes, each aligned to its size."""
    def convert(match):
        nonlocal place
        if match[0] == "%%":
            return "%"
        length, kind = match.groups()
        size = 8 if kind in "eEfFgGaAsp" or length in ("l", "ll", "z", "t", "j") else 4
        place = -(-place // size) * size
        raw = memory[place:place + size].tobytes()
        place += size
        spec = match[0].replace(length or "", "", 1) if length else match[0]
        if kind in "eEfFgGaA":
            value, = struct.unpack("<d", raw)
            return value.hex() if kind in "aA" else spec % value
        number = int.from_bytes(raw, "little", signed=kind in "di")
        if kind == "s":
            return spec % text_at(wave, number)
        if kind == "p":
            return f"0x{number:x}"
        if kind == "c":
            return chr(number & 0xFF)
        return (spec[:-1] + "d" if kind == "u" else spec) % number
    return CONVERSION.sub(convert, fmt)


def assert_fail(wave, inst, results, arguments):
    message = argument(wave, arguments[0])
    line = argument(wave, arguments[2], np.uint32)
    raise wave.launch.error(inst, "assert",
                            f"assertion `{text_at(wave, message[0])}` failed in line {line[0]}",
                            wave, int(wave.lanes.index[0]), also=len(message))


def heap_of(launch):
    heap = next((s for s in launch.space.segments if isinstance(s, Heap)), None)
    return heap or launch.space.add(Heap())


def malloc(wave, inst, results, arguments):
    heap = heap_of(wave.launch)
    sizes = argument(wave, arguments[0]).tolist()
    give(wave, results[0], np.array([heap.allocate(size) for size in sizes], np.uint64))


def free(wave, inst, results, arguments):
    heap = heap_of(wave.launch)
    for lane, address in zip(wave.lanes.index, argument(wave, arguments[0]).tolist(), strict=True):
        if address and not heap.release(address):
            raise wave.launch.error(inst, "out_of_bounds", "free() of an address that malloc() did "
                                    "not return, or that was freed before", wave, int(lane))


SYSTEM_CALLS = {"vprintf": vprintf, "__assertfail": assert_fail, "__assert_fail": assert_fail,
                "malloc": malloc, "free": free}
