"""Reciprocals, roots and the functions of the special function unit.

On a GPU the .approx forms differ from the right result by one or two units in the last place; here
they are as exact as numpy makes them. So compare with a tolerance, never bit by bit.
"""

import numpy as np

from ..decode import destination, opcode, source
from ..dtypes import F16, F32, F64, U16, U32
from ..rounding import bf16_to_f32, f32_to_bf16, flush, round_to

FUNCTIONS = {
    "rcp": lambda x: 1 / x, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin, "cos": np.cos, "ex2": np.exp2, "lg2": np.log2, "tanh": np.tanh,
}


@opcode(*FUNCTIONS)
def special_function(inst, mods):
    function = FUNCTIONS[inst.opcode]
    mods.flag("approx")
    mode = mods.one_of("rn", "rz", "rm", "rp", default="rn")
    ftz, ptx_type = mods.flag("ftz"), mods.type()
    inst.flops = 2 if ptx_type.endswith("x2") else 1
    read, write = source(inst.operands[1], ptx_type), destination(inst.operands[0], ptx_type)

    def on_f32(value):
        value = flush(value) if ftz else value
        result = round_to(function(value.astype(F64)), F32, mode)
        return flush(result) if ftz else result

    def on_half(value):
        if ptx_type.startswith("bf16"):
            return f32_to_bf16(function(bf16_to_f32(value)))
        return function(value.view(F16).astype(F32)).astype(F16).view(U16)

    if ptx_type == "f32" and inst.opcode in ("ex2", "lg2", "sin", "cos", "tanh"):
        def run(wave):                                      # approximate anyway: float32 will do
            value = read(wave)
            value = flush(value) if ftz else value
            result = function(value)
            write(wave, flush(result) if ftz else result)
    elif ptx_type == "f32":
        def run(wave):
            write(wave, on_f32(read(wave)))
    elif ptx_type == "f64":
        if mode != "rn":
            mods.refuse()

        def run(wave):
            write(wave, function(read(wave)))
    elif ptx_type.endswith("x2"):
        def run(wave):
            word = read(wave)
            low = on_half((word & U32.type(0xFFFF)).astype(U16)).astype(U32)
            high = on_half((word >> U32.type(16)).astype(U16)).astype(U32)
            write(wave, low | (high << U32.type(16)))
    else:
        def run(wave):
            write(wave, on_half(read(wave).view(U16)))
    return run
