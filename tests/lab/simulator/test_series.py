"""Instructions that run as one give what each alone gives."""

import numpy as np
import pytest

from lab.simulator import ptx, series
from lab.simulator.arguments import bind
from lab.simulator.run import Run

from .conftest import run
from .oracles import CASES
from .oracles.operands import columns
from .oracles.program import DTYPES, move, register, width

LANES = 128
COPIES = 3                      # of an instruction, with operands turned by this many lanes:
TURN = 7
OPCODES = ("abs", "add", "cos", "cvt", "div", "ex2", "fma", "lg2", "mad", "max", "min", "mul",
           "neg", "rcp", "rsqrt", "sin", "sqrt", "sub", "tanh")


def program(form, operands):
    """Load all operands, run the copies in a row, store all results."""
    names = [(f"{kind}_{i}_{c}", types[i], c) for kind, types in
             (("s", operands.sources), ("d", operands.results))
             for c in range(COPIES) for i in range(len(types))]
    registers = " ".join(register(ptx_type, f"%{name}") for name, ptx_type, _ in names)
    loads, stores = ("\n    ".join(
        move(opcode, letter, name[1:], ptx_type, f"%lane{c if letter == 's' else 0}",
             c * LANES if letter == "d" else 0).replace(
                 f"[{name}]", f"[{name.rpartition('_')[0]}]")
        for name, ptx_type, c in names if name[0] == letter)
        for opcode, letter in (("ld", "s"), ("st", "d")))
    copies = "\n    ".join(
        f"{form} {'|'.join(f'%d_{i}_{c}' for i in range(len(operands.results)))}, "
        f"{', '.join(f'%s_{i}_{c}' for i in range(len(operands.sources)))};"
        for c in range(COPIES))
    turns = " ".join(f"add.u32 %lane{c}, %t, {TURN * c}; and.b32 %lane{c}, %lane{c}, {LANES - 1};"
                     for c in range(COPIES))
    pointers = [f"s_{i}" for i in range(len(operands.sources))] + \
        [f"d_{i}" for i in range(len(operands.results))]
    return f""".version 8.7
.target sm_89
.address_size 64
.visible .entry k({", ".join(f".param .u64 {name}" for name in pointers)})
{{
    .reg .b16 %byte; .reg .b32 %t, %lane<{COPIES}>; .reg .b64 %base, %place;
    {registers}
    mov.u32 %t, %tid.x;
    {turns}
    {loads}
    {copies}
    {stores}
    ret;
}}
"""


def results_of(module, operands, sources):
    results = [np.zeros((COPIES, LANES), DTYPES[width(kind)]) for kind in operands.results]
    kernel = module.functions["k"]
    launch = Run(module, kernel, (1, 1, 1), (LANES, 1, 1), sources={}, checks=False)
    launch.parameters = bind("k", kernel.parameters, None, sources + results, launch.space)
    launch.run()
    return [result.tobytes() for result in results]


@pytest.mark.parametrize("opcode", OPCODES)
def test_copies_in_a_row_give_what_each_gives(opcode, monkeypatch):
    tried = 0
    for form, (operands, _, _) in CASES.items():
        if form.split(".")[0] != opcode or operands.text:
            continue
        sources = [np.array(column[::4], DTYPES[width(kind)]) for column, kind in
                   zip(columns(operands.sources), operands.sources, strict=True)]
        module = ptx.parse(program(form, operands))
        with monkeypatch.context() as patch:
            patch.setattr(series, "FEWEST", COPIES + 1)
            alone = results_of(module, operands, sources)
        for inst in module.functions["k"].code:
            inst.run = None                                 # decode again
        assert results_of(module, operands, sources) == alone, form
        tried += any(inst.series for inst in module.functions["k"].code
                     if inst.text.startswith(form + " "))
    assert tried


UNROLLED = """extern "C" __global__ void k(const float* a, float* b, int n) {
    int t = threadIdx.x;
    float x[8], least = a[t];
    #pragma unroll
    for (int i = 0; i < 8; i++) x[i] = a[8 * t + i];
    if (t % 3 == n)
        #pragma unroll
        for (int i = 0; i < 8; i++) x[i] = fmaf(x[i], a[i], least);
    for (int k = 0; k < n; k++) {
        #pragma unroll
        for (int i = 0; i < 8; i++) x[i] = x[(i + 1) % 8] * a[t + k];       // each reads the next's
        #pragma unroll
        for (int i = 0; i < 8; i++) least = fminf(least, x[i]);             // and its own result
    }
    #pragma unroll
    for (int i = 0; i < 8; i++) b[8 * t + i] = x[i] / least;
}"""


@pytest.mark.parametrize("checks", [False, True])
def test_an_unrolled_kernel(checks, rng, monkeypatch):
    a = rng.standard_normal(8 * 96).astype(np.float32)
    alone, together = np.zeros((2, 8 * 96), np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(series, "FEWEST", 1000)
        one = run(UNROLLED, 1, 96, a, alone, 2, checks=checks)
    two = run(UNROLLED, 1, 96, a, together, 2, checks=checks)
    assert alone.tobytes() == together.tobytes() and alone.any()
    assert one.as_data() == two.as_data()


@pytest.mark.parametrize("code, lengths", [
    ("add.f32 a, x, y; add.f32 b, x, y; add.f32 c, y, y; sub.f32 d, x, y;", [3]),
    ("add.f32 a, x, y; add.f32 b, x, y; sub.f32 c, y, y; add.f32 d, x, y;", []),
    ("add.f32 a, x, y; add.f32 b, x, y; add.f32 c, x, y; add.f32 d, a, y;", [3]),
    ("add.f32 a, x, y; add.f32 b, x, y; add.f32 c, x, y; add.f32 b, x, y;", [3]),
    ("add.f32 a, b, y; add.f32 b, c, y; add.f32 c, d, y; add.f32 d, a, y;", [3]),
    ("add.f32 a, x, y; add.f32 b, x, y; L: add.f32 c, x, y; add.f32 d, x, y;", []),
    ("add.f32 a, x, y; add.f32 b, x, y; @p add.f32 c, x, y; add.f32 d, x, y;", []),
    ("add.f32 a, x, y; add.rz.f32 b, x, y; add.f32 c, x, y; add.f32 d, x, y;", []),
])
def test_what_a_series_is(code, lengths):
    text = f""".version 8.0 .target sm_80 .address_size 64
    .entry k() {{ .reg .pred p; .reg .f32 a, b, c, d, x, y; {code} ret; }}"""
    code, found, pc = ptx.parse(text).functions["k"].code, [], 0
    while pc < len(code):
        one = series.series_of(code[pc])
        found += [len(one.members)] if one else []
        pc += len(one.members) if one else 1
    assert found == lengths
