"""Every arithmetic instruction, in every form that the simulator accepts, against exact oracles."""

import pytest

from lab import simulator

from .oracles import CASES
from .oracles.formats import FORMATS, decode
from .oracles.operands import columns
from .oracles.program import LANES, SPARSE, Operands, execute


def groups():
    """Forms with the same opcode and sources go into one kernel -> {name: [form]}"""
    found = {}
    for form, (operands, _, _) in CASES.items():
        found.setdefault(" ".join((form.split(".")[0], *operands.sources)), []).append(form)
    return found


GROUPS = groups()


@pytest.mark.parametrize("group", GROUPS)
def test_every_form_against_its_oracle(group):
    batch = {form: CASES[form].operands for form in GROUPS[group]}
    sources = columns(CASES[GROUPS[group][0]].operands.sources)
    found, share = iter(execute(batch, sources)), 4 if len(batch) > 32 else 1
    for i, (form, operands) in enumerate(batch.items()):    # many forms share out the operands
        check(form, sources, [next(found) for _ in operands.results], i % share, share)


def check(form, sources, results, start, step):
    """results: for each result the three layouts of all lanes, see program.py."""
    rows = list(zip(*sources, strict=True))
    of_one = [(rows[0][0], *row[1:]) for row in rows]
    for layout, some, lanes in ((0, rows, range(start, LANES, step)),
                                (1, of_one, range(start, LANES, 8 * step)),
                                (2, rows, range(0, LANES, SPARSE))):
        for lane in lanes:
            compare(form, some[lane], [result[layout][lane] for result in results])


def compare(form, row, got):
    operands, oracle, close = CASES[form]
    wanted = oracle(*row)
    if len(got) == 1:
        wanted = (wanted,)
    for bits, expected, kind in zip(got, wanted, operands.results, strict=True):
        if close:
            right = close(bits, expected)
        elif expected is None:
            right = not_a_number(bits, kind)
        else:
            right = bits == expected
        assert right, (f"{form} of {', '.join(map(hex, row))}: {bits:#x} instead of "
                       f"{hex(expected) if isinstance(expected, int) else expected}")


LITERALS = {                    # instruction -> its result, which the assembler folds to the same
    "mov.f32 {d0}, 0f3F800001;": 0x3F800001, "mov.b32 {d0}, 0f3F800001;": 0x3F800001,
    "mov.f32 {d0}, 1.00000008;": 0x3F800001, "mov.f32 {d0}, 0d3FF0000010000000;": 0x3F800000,
    "mov.f32 {d0}, 0d3FF0000010000001;": 0x3F800001,
    "mov.f32 {d0}, 0d3FF0000030000000;": 0x3F800002,
    "mov.f32 {d0}, 0d47EFFFFFF0000000;": 0x7F800000, "mov.f32 {d0}, 0d3690000000000001;": 1,
    "mov.f64 {d0}, 0f3F800001;": 0x3FF0000020000000, "mov.f64 {d0}, 1.1;": 0x3FF199999999999A,
    "add.s32 {d0}, 5, 0x1FFFFFFFF;": 4, "mov.b16 {d0}, -2;": 0xFFFE, "mov.u32 {d0}, 017;": 15,
    "mov.u32 {d0}, 0b101;": 5, "mov.u32 {d0}, 4294967295U;": 0xFFFFFFFF,
    "mov.u64 {d0}, -3;": 2**64 - 3, "mov.u64 {d0}, 0xFFFFFFFF;": 0xFFFFFFFF,
    "selp.b32 {d0}, 1, 2, {s0};": 2, "mov.u32 {d0}, WARP_SZ;": 32,
}


@pytest.mark.parametrize("text", LITERALS)
def test_literals(text):
    operands = Operands((text.split()[0].split(".")[1],), ("pred",), text)
    result, = execute({text: operands}, [[0] * LANES])
    assert result[0] == [LITERALS[text]] * LANES


@pytest.mark.parametrize("form, count", [("bfe.u64", 3), ("bfe.s64", 3), ("bfi.b64", 4)])
def test_positions_that_manual_and_assembler_read_differently(form, count):
    kinds = ("u64",) * (count - 2) + ("u32", "u32")
    operands = Operands(("u64",), kinds)
    for start, length in ((255, 256), (256, 255)):
        values = [[1] * LANES] * (count - 2) + [[start] * LANES, [length] * LANES]
        with pytest.raises(simulator.Unsupported, match="above 255"):
            execute({form: operands}, values)
    execute({form: operands}, [[1] * LANES] * (count - 2) + [[255] * LANES] * 2)


def not_a_number(bits, kind):
    base = kind.removesuffix("x2")
    halves = (bits & 0xFFFF, bits >> 16) if base != kind else (bits,)
    return any(decode(half, FORMATS[base]) is None for half in halves)
