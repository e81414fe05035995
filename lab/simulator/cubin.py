"""What the assembler has put into a cubin: registers and stack of a kernel.

A cubin is an ELF file.
Its sections `.nv.info` hold a list of facts, each as (format, attribute, size, value); two of them
are about a kernel that is named by its number in the symbol table.
"""

import struct
from typing import NamedTuple

FRAME_SIZE, REGISTERS = 0x11, 0x2F          # attributes: (symbol, bytes), (symbol, registers)
SIZED = 4                                   # the format whose value has as many bytes as it says
SYMBOLS = 2                                 # section type


class Needs(NamedTuple):
    registers: int          # per thread
    stack: int              # bytes of local memory per thread: spilled registers and local arrays


def needs(cubin, name):
    """-> Needs of a kernel.
    Raises ValueError if the cubin does not say."""
    sections = list(read_sections(cubin))
    number = symbol_number(cubin, sections, name)
    facts = {}
    for title, _, start, size, _ in sections:
        if title == ".nv.info":
            facts |= {attribute: value for attribute, symbol, value in read_facts(
                cubin[start:start + size]) if symbol == number}
    if REGISTERS not in facts:
        raise ValueError(f"the cubin does not say how many registers `{name}` needs")
    return Needs(facts[REGISTERS], facts.get(FRAME_SIZE, 0))


def read_sections(elf):
    """-> (title, type, start, size, the section that its numbers refer to)"""
    table, = struct.unpack_from("<Q", elf, 0x28)
    entry, count, titles = struct.unpack_from("<HHH", elf, 0x3A)
    heads = [struct.unpack_from("<IIQQQQII", elf, table + i * entry) for i in range(count)]
    for title, kind, _, _, start, size, link, _ in heads:
        yield text_at(elf, heads[titles][4] + title), kind, start, size, link


def symbol_number(elf, sections, name):
    for _, kind, start, size, link in sections:
        if kind == SYMBOLS:
            texts = sections[link][2]
            for i in range(size // 24):
                title, = struct.unpack_from("<I", elf, start + 24 * i)
                if text_at(elf, texts + title) == name:
                    return i
    raise ValueError(f"the cubin has no kernel `{name}`")


def read_facts(data):
    """-> (attribute, symbol, value) of the facts about a symbol"""
    place = 0
    while place + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, place)
        place += 4
        if form == SIZED:
            if attribute in (FRAME_SIZE, REGISTERS):
                yield attribute, *struct.unpack_from("<II", data, place)
            place += size


def text_at(elf, place):
    return elf[place:elf.index(b"\0", place)].decode()
