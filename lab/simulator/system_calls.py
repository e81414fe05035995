"""Functions that CUDA C calls and the driver provides: printf, assert, malloc and free."""

import re
import struct

import numpy as np

from .heap import Heap
from .memory import LOCAL_WINDOW, OFFSET_BITS, SEGMENT_SHIFT, SHARED_WINDOW

CONVERSION = re.compile(r"%%|%([-+ #0]*)(\d+|\*|)(\.(?:\d+|\*|)|)(hh|h|ll|l|z|t|j|)"
                        r"([diouxXeEfFgGaAcsp])")


def argument(wave, name, dtype=np.uint64):
    """The value of a call's argument for each active lane (n,)."""
    memory = wave.local_memory(np.dtype(dtype))             # (B·T, elements)
    return memory[wave.lanes.index, wave.frame.local[name] // np.dtype(dtype).itemsize]


def give(wave, name, values):
    """The result of a call for each active lane (n,)."""
    memory = wave.local_memory(values.dtype)                # (B·T, elements)
    memory[wave.lanes.index, wave.frame.local[name] // values.dtype.itemsize] = values


def memory_at(wave, lane, address):
    """(the memory that a generic address names for this lane, the byte in it)"""
    window, start = address >> SEGMENT_SHIFT, address & OFFSET_BITS
    if window == LOCAL_WINDOW:
        return wave.local_memory(np.dtype(np.uint8))[lane], start
    if window == SHARED_WINDOW:
        return wave.shared[lane // wave.shape[1]], start
    segment = wave.launch.space.find(address)
    return (segment.bytes, address - segment.base) if segment else (b"", 0)


def text_at(wave, inst, lane, address):
    """The C string at a generic address, as this lane sees it."""
    if not address:
        return "(null)"
    memory, start = memory_at(wave, lane, address)
    if not 0 <= start < len(memory):
        raise wave.launch.error(inst, "out_of_bounds", f"printf: no text lies at 0x{address:x}",
                                wave, lane)
    return bytes(memory[start:]).split(b"\0")[0].decode(errors="replace")


def vprintf(wave, inst, results, arguments):
    """printf(format, arguments) -> how many arguments the format takes.
    They lie packed in local memory."""
    formats, buffers = (argument(wave, name).tolist() for name in arguments)
    local = wave.local_memory(np.dtype(np.uint8))
    counts = []
    for lane, fmt, buffer in zip(wave.lanes.index.tolist(), formats, buffers, strict=True):
        place = buffer & OFFSET_BITS if buffer >> SEGMENT_SHIFT == LOCAL_WINDOW else 0
        packed = Packed(local[lane], place)
        text = format_text(text_at(wave, inst, lane, fmt), packed,
                           lambda address, lane=lane: text_at(wave, inst, lane, address))
        wave.launch.output.append(text)
        counts.append(packed.taken)
    if results:
        give(wave, results[0], np.array(counts, np.uint32))


class Packed:
    """The arguments after a format, of 4 or 8 bytes, each aligned to its size."""

    def __init__(self, memory, place):
        self.memory = memory                                # uint8
        self.place = place
        self.taken = 0

    def take(self, size):
        start = -(-self.place // size) * size
        self.place = start + size
        self.taken += 1
        return self.memory[start:start + size].tobytes().ljust(size, b"\0")

    def number(self, text):
        """A width or a precision; * has it among the arguments."""
        return str(int.from_bytes(self.take(4), "little", signed=True)) if text == "*" else text


def format_text(fmt, packed, text_of):
    """C's format. text_of: the text at an address"""
    def convert(match):
        if match[0] == "%%":
            return "%"
        flags, width, precision, length, kind = match.groups()
        spec = "%" + flags + packed.number(width)
        if precision and not (least := packed.number(precision[1:])).startswith("-"):
            spec += "." + least
        raw = packed.take(8 if kind in "eEfFgGaAsp" or length in ("l", "ll", "z", "t", "j") else 4)
        if kind in "eEfFgGaA":
            value, = struct.unpack("<d", raw)
            return value.hex() if kind in "aA" else (spec + kind) % value
        number = int.from_bytes(raw, "little", signed=kind in "di")
        if kind in "spc":
            text = {"s": text_of, "p": "0x{:x}".format, "c": lambda n: chr(n & 0xFF)}[kind](number)
            return (spec + "s") % text
        return (spec + kind.replace("u", "d")) % number
    return CONVERSION.sub(convert, fmt)


def assert_fail(wave, inst, results, arguments):
    message = argument(wave, arguments[0]).tolist()
    line = argument(wave, arguments[2], np.uint32)
    lane = int(wave.lanes.index[0])
    raise wave.launch.error(
        inst, "assert", f"assertion `{text_at(wave, inst, lane, message[0])}` failed in line "
                        f"{line[0]}", wave, lane, also=len(message))


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
