"""Reciprocals, roots and the functions of the special function unit.

On a GPU the .approx forms differ from the right result by one or two units in the last place; here
they are as exact as numpy makes them.
So compare with a tolerance, never bit by bit.
"""

import numpy as np

from ..decode import destination, elementwise, opcode, source
from ..dtypes import F32, F64, U64
from ..exact import correctly
from ..rounding import TINY, canonical, flush, flush_below, round_to
from .floating import MODES, packable, widen

FUNCTIONS = {
    "rcp": lambda x: 1 / x, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin, "cos": np.cos, "ex2": np.exp2, "lg2": np.log2, "tanh": np.tanh,
}
APPROXIMATE = {                 # opcode -> the modifiers that .approx may have with each type
    "rcp": {"f32": ("", "ftz"), "f64": ("ftz",)}, "sqrt": {"f32": ("", "ftz")},
    "rsqrt": {"f32": ("", "ftz"), "f64": ("", "ftz")}, "sin": {"f32": ("", "ftz")},
    "cos": {"f32": ("", "ftz")}, "lg2": {"f32": ("", "ftz")},
    "ex2": {"f32": ("", "ftz"), "f16": ("",), "bf16": ("ftz",)},
    "tanh": {"f32": ("",), "f16": ("",), "bf16": ("",)},
}
ROUNDED = (("f32", False), ("f32", True), ("f64", False))


@opcode(*FUNCTIONS)
def special_function(inst, mods):
    name, ptx_type = inst.opcode, mods.type()
    base, ftz = ptx_type.removesuffix("x2"), mods.flag("ftz")
    inst.flops = 2 if ptx_type.endswith("x2") else 1
    if mods.flag("approx"):
        if ("ftz" if ftz else "") not in APPROXIMATE[name].get(base, ()):
            mods.refuse()
        function = approximate(name, ptx_type, base, ftz)
    else:
        mode = mods.need(*MODES)
        if name not in ("rcp", "sqrt") or (ptx_type, ftz) not in ROUNDED:
            mods.refuse()
        function = rounded(name, ptx_type, mode, ftz)
    read, write = source(inst.operands[1], ptx_type), destination(inst.operands[0], ptx_type)
    return elementwise(inst, function, [read], write)


def rounded(name, ptx_type, mode, ftz):
    """rcp and sqrt, rounded once.
    For float32 the double is good enough, see floating.EXACT."""
    if ptx_type == "f32" and mode == "rn" and not ftz:
        return lambda value: canonical(FUNCTIONS[name](value))
    if ptx_type == "f32":
        def on_f32(value):
            exact = FUNCTIONS[name](widen(value, "f32", ftz))
            return round_to(flush_below(exact, TINY[F32]) if ftz else exact, "f32", mode)
        return on_f32
    if mode == "rn":
        return FUNCTIONS[name]
    if name == "sqrt":
        return lambda value: correctly("sqrt", mode, value)
    return lambda value: correctly("div", mode, np.ones_like(value), value)


def approximate(name, ptx_type, base, ftz):
    function = FUNCTIONS[name]
    if ptx_type == "f64":
        return (lambda value: upper_half(function, value)) if ftz else function
    if ptx_type == "f32":
        def on_f32(value):
            result = function(flush(value) if ftz else value)
            return canonical(flush(result) if ftz else result)
        return on_f32
    tiny = TINY[F32] if ftz else 0.0                        # bf16 has the exponents of f32
    return packable(ptx_type, lambda value: round_to(
        flush_below(function(widen(value, base)), tiny), base))


def upper_half(function, value):
    """rcp and rsqrt .approx.ftz.f64 read the upper 32 bits of a double, and write those only."""
    mask = U64.type(0xFFFFFFFF << 32)
    result = function(flush_below((value.view(U64) & mask).view(F64), 2.0**-1022))
    masked = (flush_below(result, 2.0**-1022).view(U64) & mask).view(F64)
    return np.where(np.isnan(result), U64.type(0x7FFFFFFF << 32).view(F64), masked)
