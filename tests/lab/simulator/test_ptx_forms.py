"""Which forms of the arithmetic instructions the simulator accepts: those that NVIDIA's assembler
accepts and an oracle checks.
It refuses the others; the legal ones among them are listed."""

import re
import subprocess
from itertools import product

import numpy as np
import pytest

from lab import simulator
from lab.simulator import ptx
from lab.simulator.decode import decode

from .oracles import CASES
from .oracles.cases import BITS, FTZ, INTEGERS, MODES, RELU, SAT
from .oracles.program import Operands, instruction, register, width

TYPES = ("pred", *BITS, *INTEGERS, "f16", "bf16", "f16x2", "bf16x2", "f32", "f64")
NUMBERS = ("u8", "s8", *INTEGERS, "f16", "bf16", "f32", "f64", "tf32")
PAIRS = ("f16x2", "bf16x2", "e4m3x2", "e5m2x2")
ROUND, CC, PART = ("", *MODES), ("", "cc"), ("", "lo", "hi", "wide")
FUNCTION = ((*ROUND, "approx", "full"), FTZ)
EXTREME = (FTZ, ("", "NaN"), ("", "xorsign.abs"), RELU)
COMPARE = (("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu",
            "gtu", "geu", "num", "nan"), ("", "and", "or", "xor"), FTZ)
CLASS = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
ONE_TYPE = {                    # opcode -> words that may precede the type, number of sources
    "add": ((ROUND, FTZ, SAT, CC), 2), "sub": ((ROUND, FTZ, SAT, CC), 2), "addc": ((CC, SAT), 2),
    "subc": ((CC, SAT), 2), "mul": ((PART, ROUND, FTZ, SAT), 2), "mul24": ((PART, SAT), 2),
    "mad": ((PART, ROUND, FTZ, SAT, CC), 3), "mad24": ((PART, SAT), 3),
    "madc": ((PART, SAT, CC), 3), "fma": ((ROUND, FTZ, SAT, RELU, ("", "oob")), 3),
    "div": (FUNCTION, 2), "rem": ((), 2), "sad": ((), 3), "min": (EXTREME, 2), "max": (EXTREME, 2),
    "neg": ((FTZ,), 1), "abs": ((FTZ,), 1),
    **dict.fromkeys(("rcp", "sqrt", "rsqrt", "sin", "cos", "ex2", "lg2", "tanh"), (FUNCTION, 1)),
    "and": ((), 2), "or": ((), 2), "xor": ((), 2), "not": ((), 1), "cnot": ((), 1), "popc": ((), 1),
    "clz": ((), 1), "bfind": ((("", "shiftamt"),), 1), "brev": ((), 1), "shl": ((), 2),
    "shr": ((), 2), "shf": ((("", "l", "r"), ("", "wrap", "clamp")), 3), "bfe": ((), 3),
    "bfi": ((), 4), "prmt": ((), 3), "copysign": ((), 2), "testp": ((CLASS,), 1), "selp": ((), 3),
    "mov": ((), 1), "setp": (COMPARE, 2),
}
RESULT = dict.fromkeys(("popc", "clz", "bfind"), "b32") | dict.fromkeys(("testp", "setp"), "pred")
COUNTS = {"shl": (1,), "shr": (1,), "shf": (2,), "bfe": (1, 2), "bfi": (2, 3)}     # 32-bit sources


def candidates():
    """{form: Operands}, legal or not."""
    found = {}
    for opcode, (groups, count) in ONE_TYPE.items():
        for *words, kind in product(*groups, TYPES):
            found[named(opcode, *words, kind)] = operands(opcode, words, kind, count)
    for *words, to, frm in product(COMPARE[0], ("", "or"), FTZ, TYPES[1:], TYPES):
        sources = (frm, frm, "pred") if words[1] else (frm, frm)
        found[named("set", *words, to, frm)] = Operands((to,), sources)
    for ftz, kind, condition in product(FTZ, TYPES, ("s32", "u32", "f32", "f64")):
        found[named("slct", ftz, kind, condition)] = Operands((kind,), (kind, kind, condition))
    for opcode, part, a, b in product(("dp4a", "dp2a"), ("", "lo", "hi"), INTEGERS, INTEGERS):
        found[named(opcode, part, a, b)] = Operands(("b32",), ("b32",) * 3)
    return found | conversions()


def conversions():
    rounding = ("", *MODES, "rna", "rni", "rzi", "rmi", "rpi")
    limits = ("", "sat", "relu", "satfinite")
    found = {}
    for mode, ftz, limit, to, frm in product(rounding, FTZ, limits, NUMBERS, NUMBERS):
        found[named("cvt", mode, ftz, limit, to, frm)] = Operands((to,), (frm,))
    for mode, to in product(("rn", "rz", "rna"), ("f16", "bf16", "tf32")):
        found[named("cvt", mode, "relu.satfinite", to, "f32")] = Operands((to,), ("f32",))
    for to, frm in product(PAIRS, (*PAIRS, "f32")):
        both = "satfinite.relu" if to[0] == "e" else "relu.satfinite"
        for mode, limit in product(rounding, (*limits, both)):
            found[named("cvt", mode, limit, to, frm)] = Operands(
                (to,), (frm, frm) if frm == "f32" else (frm,))
    return found


def named(*words):
    return ".".join(word for word in words if word)


def operands(opcode, words, kind, count):
    wide = f"b{2 * width(kind)}" if "wide" in words and kind[-2:] in ("16", "32") else kind
    sources = ["b32" if i in COUNTS.get(opcode, ()) else kind for i in range(count)]
    if opcode == "mad":
        sources[2] = wide
    if opcode == "selp":
        sources[2] = "pred"
    if opcode == "setp":
        sources += ["pred"] * (words[1] != "")
        return Operands(("pred",) * (1 if kind in ("f16", "bf16") else 2), tuple(sources))
    return Operands((RESULT.get(opcode, wide),), tuple(sources))


CANDIDATES = candidates()


def lines():
    """One candidate a line, with registers of its own."""
    for form, kinds in CANDIDATES.items():
        registers = [register(kind, f"%{letter}{i}") for letter, types in
                     (("d", kinds.results), ("s", kinds.sources)) for i, kind in enumerate(types)]
        yield f"{{ {' '.join(registers)} {instruction(form, kinds)} }}"


HEADER = """.version 8.4
.target sm_90
.address_size 64
.visible .entry k()
{
"""


@pytest.fixture(scope="module")
def accepted():
    """The forms that the simulator decodes."""
    code = ptx.parse(HEADER + "\n".join(lines()) + "\n}\n").functions["k"].code
    found = set()
    for form, inst in zip(CANDIDATES, code, strict=True):
        try:
            decode(inst)
        except simulator.Unsupported as error:
            assert f"`{inst.text}`" in str(error)
        else:
            found.add(form)
    return found


@pytest.fixture(scope="module")
def legal(tmp_path_factory):
    """The forms that the assembler takes for the newest GPU whose PTX we meet."""
    knobs = pytest.importorskip("triton.knobs")             # its wheel has an assembler
    file = tmp_path_factory.mktemp("ptx") / "forms.ptx"
    file.write_text(HEADER + "\n".join(lines()) + "\n}\n", encoding="utf-8")
    done = subprocess.run([knobs.nvidia.ptxas.path, "-arch=sm_90", str(file), "-o", "/dev/null"],
                          capture_output=True, text=True)
    first = HEADER.count("\n") + 1
    bad = {int(n) - first for n in re.findall(r"line (\d+); error", done.stderr)}
    assert bad, f"expected errors of the assembler, found: {done.stderr[:200]}"
    return {form for i, form in enumerate(CANDIDATES) if i not in bad}


# Legal for sm_90, but refused: what no compiler emits and what we could not verify.
REFUSED = (
    r"(mad|madc|mad24)\.hi\.sat\.s32",
    r"(min|max)\.relu\.s32",
    r"(min|max).*\.xorsign\.abs\..*",
    r"fma.*\.oob\..*",                                      # not documented: which NaN gives zero
    r"set\..*\.bf16\.(?!bf16).*",
    r"cvt\.rna\.satfinite\.tf32\.f32",                       # the assembler folds a NaN to a number
    # Not in the manual, though the assembler takes them:
    r"(addc|subc)\.[us]16", r"(addc|subc)\.sat\.s32", r"madc\.(lo|hi)\.[us]16",
    r"fma\.r[zmp](\.relu)?\.bf16(x2)?",
    r"rcp\.r[nzmp]\.ftz\.f64",
    r"cvt\.(r[nzmp]\.)?(ftz\.)?f(32|64)\.bf16", r"cvt\.(bf16\.bf16|bf16\.f16|f16\.bf16)",
)
OTHER_OPCODES = (               # legal, and wholly unknown to the simulator
    "szext.wrap.s32 %r1, %r2, %r3;",
    "fns.b32 %r1, %r2, %r3, %r4;", "cvt.pack.sat.s16.s32 %r1, %r2, %r3;",
    "prmt.b32.f4e %r1, %r2, %r3, %r4;", "lop3.or.b32 %r1|%p1, %r2, %r3, %r4, 0x1, %p2;",
    "vadd.u32.u32.u32 %r1, %r2, %r3;", "vavrg4.u32.u32.u32 %r1, %r2, %r3, %r4;",
    "add.s16x2 %r1, %r2, %r3;", "min.u16x2 %r1, %r2, %r3;",
)


def test_every_accepted_form_is_legal(accepted, legal):
    assert accepted - legal == set()


def test_every_accepted_form_has_an_oracle(accepted):
    assert accepted - set(CASES) == set()
    assert (set(CASES) & set(CANDIDATES)) - accepted == set()


def test_the_legal_forms_that_are_refused(accepted, legal):
    refused = legal - accepted
    unlisted = [form for form in refused if not any(re.fullmatch(p, form) for p in REFUSED)]
    assert sorted(unlisted) == []
    for pattern in REFUSED:
        assert any(re.fullmatch(pattern, form) for form in refused), pattern


@pytest.mark.parametrize("line", OTHER_OPCODES)
def test_other_opcodes_are_refused_by_name(line):
    registers = ".reg .b32 %r<9>; .reg .pred %p<9>;"
    inst, = ptx.parse(f"{HEADER}{registers} {line}\n}}\n").functions["k"].code
    with pytest.raises(simulator.Unsupported, match=re.escape(line.rstrip(";"))):
        decode(inst)


@pytest.mark.parametrize("line, words", [
    ("add.f32 %f1, %f2, 1;", "no such literal"), ("mov.b16 %h1, 0f3F800000;", "no such literal"),
    ("mov.b32 %r1, 0d3FF0000000000000;", "no such literal"),
    ("add.f16 %h1, %h2, 1.5;", "no such literal"), ("add.s32 %d1, %d2, %d3;", "does not fit"),
    ("shl.b64 %d1, %d2, %d3;", "does not fit"), ("add.u16 %r1, %r2, %r3;", "does not fit"),
    ("selp.b32 %r1, %r2, %r3, %r4;", "does not fit"),
])
def test_operands_that_no_assembler_takes(line, words):
    registers = ".reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<9>;"
    inst, = ptx.parse(f"{HEADER}{registers} {line}\n}}\n").functions["k"].code
    with pytest.raises(simulator.Unsupported, match=words):
        decode(inst)


def test_the_error_names_the_instruction_and_the_learners_line():
    kernel = simulator.RawKernel("""extern "C" __global__ void k(int* a) {
    int x = a[0];
    asm("mad.hi.sat.s32 %0, %0, %0, %0;" : "+r"(x));
    a[0] = x;
}""", "k", path="kernel.cu")
    with pytest.raises(simulator.Unsupported, match="this form of.*mad.hi.sat.s32") as caught:
        kernel(1, 1, (np.zeros(1, np.int32),))
    assert caught.value.line == 3
