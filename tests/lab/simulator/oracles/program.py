"""PTX instructions as a kernel that the simulator runs on vectors of operands.

Every instruction is in the kernel three times, since values come in three layouts: all lanes take
part; the first operand is the same for all; one lane in 16 takes part.
"""

import re
from functools import cache
from typing import NamedTuple

import numpy as np

from lab.simulator import ptx
from lab.simulator.arguments import bind
from lab.simulator.run import Run

LANES, BLOCK, SPARSE = 512, 256, 16
DTYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


@cache
def width(ptx_type):
    """Bits of a type in memory; a predicate is a byte there."""
    if ptx_type == "pred":
        return 8
    if ptx_type.startswith(("e4m3", "e5m2")):
        return 16 if ptx_type.endswith("x2") else 8
    bits, packed = re.fullmatch(r"[a-z]+(\d+)(x2)?", ptx_type).groups()
    return int(bits) * (2 if packed else 1)


class Operands(NamedTuple):
    results: tuple              # their types
    sources: tuple
    text: str = ""              # if it is not just `form results, sources;`: with {d0}, {s0}, ...


def instruction(form, operands, first=0):
    """The PTX of one form; its results are %d<first>, ..., its sources %s0, ..."""
    results = [f"%d{first + i}" for i in range(len(operands.results))]
    sources = [f"%s{i}" for i in range(len(operands.sources))]
    if operands.text:
        names = {f"d{i}": name for i, name in enumerate(results)}
        return operands.text.format(**names, **{name[1:]: name for name in sources})
    return f"{form} {'|'.join(results)}, {', '.join(sources)};"


def program(batch, target="sm_89"):
    """{form: Operands}, all with the same sources -> the text of the kernel `k`."""
    kinds = next(iter(batch.values())).sources
    results = [kind for operands in batch.values() for kind in operands.results]
    registers = [register(kind, f"%{name}{i}") for name, types in (("s", kinds), ("d", results))
                 for i, kind in enumerate(types)]
    pointers = [f"s{i}" for i in range(len(kinds))] + [f"d{i}" for i in range(len(results))]
    loads = [move("ld", "s", i, kind) for i, kind in enumerate(kinds)]
    return f""".version 8.7
.target {target}
.address_size 64
.visible .entry k({", ".join(f".param .u64 {name}" for name in pointers)})
{{
    .reg .pred %skip; .reg .b16 %byte; .reg .b32 %t, %b, %lane, %rest; .reg .b64 %base, %place;
    {" ".join(registers)}
    mov.u32 %t, %tid.x;
    mov.u32 %b, %ctaid.x;
    mad.lo.u32 %lane, %b, {BLOCK}, %t;
    {" ".join(loads)}
    {section(batch, 0)}
    {move("ld", "s", 0, kinds[0], lane="0")}
    {section(batch, 1)}
    and.b32 %rest, %lane, {SPARSE - 1};
    setp.ne.u32 %skip, %rest, 0;
    @%skip bra END;
    {loads[0]}
    {section(batch, 2)}
END:
    ret;
}}
"""


def section(batch, number):
    """The instructions once, and their results stored in row `number` of the arrays."""
    lines, first = [], 0
    for form, operands in batch.items():
        lines.append(instruction(form, operands, first))
        lines += [move("st", "d", i, kind, offset=number * LANES)
                  for i, kind in enumerate(operands.results, first)]
        first += len(operands.results)
    return "\n    ".join(lines)


def register(kind, name):
    if kind == "pred":
        return f".reg .pred {name};"
    return f".reg .b{max(width(kind), 16)} {name};"         # there is no arithmetic on bytes


def move(opcode, letter, i, kind, lane="%lane", offset=0):
    """Load or store register i of the sources (s) or results (d): element lane + offset of its
    array."""
    size, name = width(kind) // 8, f"%{letter}{i}"
    place = f"ld.param.u64 %base, [{letter}{i}]; mad.wide.u32 %place, {lane}, {size}, %base;"
    memory, access = f"[%place+{offset * size}]", f"{opcode}.global.b{8 * size}"
    if kind != "pred":
        operands = f"{name}, {memory}" if opcode == "ld" else f"{memory}, {name}"
        return f"{place} {access} {operands};"
    if opcode == "ld":
        return f"{place} {access} %byte, {memory}; setp.ne.b16 {name}, %byte, 0;"
    return f"{place} selp.b16 %byte, 1, 0, {name}; {access} {memory}, %byte;"


def execute(batch, columns):
    """-> for each result of each form its bits as Python integers: a list of LANES for each of the
    three layouts."""
    sources = [np.array(column, DTYPES[width(kind)]) for column, kind in
               zip(columns, next(iter(batch.values())).sources, strict=True)]
    results = [np.zeros((3, LANES), DTYPES[width(kind)]) for operands in batch.values()
               for kind in operands.results]
    module = ptx.parse(program(batch))
    kernel = module.functions["k"]
    run = Run(module, kernel, (LANES // BLOCK, 1, 1), (BLOCK, 1, 1), sources={}, checks=False)
    run.parameters = bind("k", kernel.parameters, None, sources + results, run.space)
    run.run()
    return [result.tolist() for result in results]
