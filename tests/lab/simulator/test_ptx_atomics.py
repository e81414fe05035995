"""Every atomic operation on every type, in global and in shared memory, against exact oracles.

A GPU promises no order among lanes.
The simulator's is that of their numbers, so that the values which lanes get back can be predicted
too.
"""

import random

import numpy as np
import pytest

from lab import simulator
from lab.simulator import ptx
from lab.simulator.arguments import bind
from lab.simulator.run import Run

from .oracles.cases import packed
from .oracles.floating import arithmetic
from .oracles.formats import FORMATS, NAN_BITS, decode
from .oracles.integers import number
from .oracles.operands import anything, edges
from .oracles.program import DTYPES, width

LANES, CELLS = 64, 12
HALVES = ("f16", "f16x2", "bf16", "bf16x2")
TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64", *HALVES), "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"), "and": ("b32", "b64"), "or": ("b32", "b64"),
    "xor": ("b32", "b64"), "inc": ("u32",), "dec": ("u32",), "exch": ("b32", "b64"),
    "cas": ("b16", "b32", "b64"),
}


def step(name, kind, space):
    """-> f(what is there, value, second value), what is there afterwards"""
    mask = (1 << width(kind)) - 1
    if name == "add" and kind[0] in "fb":
        base = kind.removesuffix("x2")
        add = arithmetic("add", base, ftz=kind == "f32" and space == "global")
        add = packed(add) if kind != base else add
        return lambda old, a, b: NAN_BITS[base] if add(old, a) is None else add(old, a)
    return {
        "add": lambda old, a, b: (old + a) & mask, "and": lambda old, a, b: old & a,
        "or": lambda old, a, b: old | a, "xor": lambda old, a, b: old ^ a,
        "min": lambda old, a, b: min(old, a, key=lambda x: number(x, kind)),
        "max": lambda old, a, b: max(old, a, key=lambda x: number(x, kind)),
        "inc": lambda old, a, b: 0 if old >= a else old + 1,
        "dec": lambda old, a, b: a if old == 0 or old > a else old - 1,
        "exch": lambda old, a, b: a, "cas": lambda old, a, b: b if old == a else old,
    }[name]


def program(instruction, kind, space, returns, operands):
    """Lane i applies the instruction to cell which[i].
    In shared memory the cells are copied there first and back at the end."""
    size = width(kind) // 8
    move = f"b{8 * size}"
    copy = f"""
    setp.ge.u32 %p, %t, {CELLS};
    @%p bra {{0}};
    mad.wide.u32 %q, %t, {size}, %cells;
    mad.lo.u32 %r, %t, {size}, %s;
    {{1}}
{{0}}:
    bar.sync 0;"""
    into = copy.format("IN", f"ld.global.{move} %x, [%q]; st.shared.{move} [%r], %x;")
    back = copy.format("OUT", f"ld.shared.{move} %x, [%r]; st.global.{move} [%q], %x;")
    target = "%r" if space == "shared" else "%q"
    result = "%old, " if returns else ""
    return f""".version 8.4
.target sm_90
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 c, .param .u64 w, .param .u64 x, .param .u64 y)
{{
    .reg .pred %p; .reg .b32 %t, %i, %r, %s; .reg .b64 %cells, %q, %z;
    .reg .{move} %x, %y, %old;
    .shared .align 16 .b8 memory[{CELLS * 8}];
    mov.u32 %t, %tid.x;
    mov.u32 %s, memory;
    ld.param.u64 %cells, [c];
    {into if space == "shared" else ""}
    ld.param.u64 %z, [w]; mad.wide.u32 %q, %t, 4, %z; ld.global.b32 %i, [%q];
    ld.param.u64 %z, [x]; mad.wide.u32 %q, %t, {size}, %z; ld.global.{move} %x, [%q];
    ld.param.u64 %z, [y]; mad.wide.u32 %q, %t, {size}, %z; ld.global.{move} %y, [%q];
    mad.wide.u32 %q, %i, {size}, %cells;
    mad.lo.u32 %r, %i, {size}, %s;
    {instruction} {result}[{target}], %x{", %y" if operands == 2 else ""};
    ld.param.u64 %z, [a]; mad.wide.u32 %q, %t, {size}, %z;
    {f"st.global.{move} [%q], %old;" if returns else ""}
    bar.sync 0;
    {back if space == "shared" else ""}
    ret;
}}
"""


def operand(kind, rng):
    return rng.choice(edges(kind)) if rng.random() < 0.4 else anything(kind, rng)


FORMS = [(opcode, name, kind) for opcode in ("atom", "red") for name in TYPES
         for kind in TYPES[name] if opcode == "atom" or name not in ("exch", "cas")]


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("opcode, name, kind", FORMS)
def test_atomic(opcode, space, name, kind):
    rng = random.Random(f"{name} {kind}")
    dtype, noftz = DTYPES[width(kind)], ".noftz" if kind in HALVES else ""
    for cells_used in (CELLS, 1):                           # few collisions, and only collisions
        which = [rng.randrange(cells_used) for _ in range(LANES)]
        cells = [operand(kind, rng) for _ in range(CELLS)]
        first, second = ([operand(kind, rng) for _ in range(LANES)] for _ in range(2))
        if name == "cas":                                   # let some of them succeed
            first = [cells[which[i]] if rng.random() < 0.5 else a for i, a in enumerate(first)]
        memory, back = np.array(cells, dtype), np.zeros(LANES, dtype)
        text = program(f"{opcode}.{space}.{name}{noftz}.{kind}", kind, space, opcode == "atom",
                       2 if name == "cas" else 1)
        launch(text, back, memory, np.array(which, np.uint32), np.array(first, dtype),
               np.array(second, dtype))
        after, change = list(cells), step(name, kind, space)
        for lane in range(LANES):
            i = which[lane]
            if opcode == "atom":
                assert same(int(back[lane]), after[i], kind), f"lane {lane} of {name}.{kind}"
            after[i] = change(after[i], first[lane], second[lane])
        for i in range(CELLS):
            assert same(int(memory[i]), after[i], kind), f"cell {i} of {name}.{kind}"


def same(got, wanted, kind):
    """The bits of a NaN are not compared."""
    if kind in ("f32", "f64") and decode(wanted, FORMATS[kind]) is None:
        return decode(got, FORMATS[kind]) is None
    return got == wanted


def launch(text, *arrays):
    module = ptx.parse(text)
    kernel = module.functions["k"]
    run = Run(module, kernel, (1, 1, 1), (LANES, 1, 1), sources={}, checks=False)
    run.parameters = bind("k", kernel.parameters, None, arrays, run.space)
    run.run()


@pytest.mark.parametrize("form", [
    "atom.global.add.b32", "atom.global.add.f16", "atom.global.add.noftz.f32",
    "atom.global.min.f32", "atom.global.inc.s32", "atom.global.exch.f32", "atom.global.cas.u32",
    "red.global.exch.b32", "atom.global.add.noftz.vec_32_bit.f32",
])
def test_forms_that_there_are_not(form):
    kind = form.rsplit(".", 1)[1]
    text = program(form, kind, "global", form.startswith("atom"), 2 if "cas" in form else 1)
    dtype = DTYPES[width(kind)]
    with pytest.raises(simulator.Unsupported, match=form):
        launch(text, *(np.zeros(LANES, kind) for kind in (dtype, dtype, np.uint32, dtype, dtype)))
