"""Floating-point arithmetic: f32, f64, f16, bf16 and the packed f16x2 and bf16x2.

The hot path computes float32 in float32.
All else is computed as a double that is exact, or as good, and then rounded once to the type and in
the direction asked for.
"""

import numpy as np

from ..decode import destination, elementwise, opcode, source
from ..dtypes import DTYPES, F16, F32, F64, U16, U32, U64
from ..exact import correctly, fma_f64
from ..rounding import (
    TINY,
    bf16_to_f32,
    canonical,
    f32_to_bf16,
    flush,
    flush_below,
    round_to,
    sum_to_odd,
    to_odd,
    two_sum,
)

FLOPS = {"add": 1, "sub": 1, "mul": 1, "fma": 2, "mad": 2, "div": 1}
MODES = {"rn", "rz", "rm", "rp"}
SUM = {"f32": MODES | {"ftz", "sat"}, "f64": MODES, "f16": {"rn", "ftz", "sat"}, "bf16": {"rn"}}
FUSED = {"f32": MODES | {"ftz", "sat"}, "f64": MODES, "f16": {"rn", "ftz", "sat", "relu"},
         "bf16": {"rn", "relu"}}
EXTREME = {"f32": {"ftz", "NaN"}, "f64": set(), "f16": {"ftz", "NaN"}, "bf16": {"NaN"}}
SIGN = {"f32": {"ftz"}, "f64": set(), "f16": {"ftz"}, "bf16": set()}
LEGAL = {                       # opcode -> type -> the modifiers that it may have
    "add": SUM, "sub": SUM, "mul": SUM, "fma": FUSED,
    "mad": {"f32": FUSED["f32"], "f64": MODES}, "div": {"f32": MODES | {"ftz"}, "f64": MODES},
    "min": EXTREME, "max": EXTREME, "neg": SIGN, "abs": SIGN,
}


@opcode("fma")
def float_arithmetic(inst, mods):
    """Decode add, sub, mul, div, min, max, neg, abs, fma, mad on any float type."""
    name, ptx_type = inst.opcode, mods.type()
    base = ptx_type.removesuffix("x2")
    if name == "div" and ptx_type == "f32" and mods.flag("approx", "full"):
        return approximate_division(inst, mods)
    if base not in LEGAL[name] or not set(mods.left) <= LEGAL[name][base]:
        mods.refuse()
    mode = mods.need(*MODES) if name in ("fma", "mad", "div") else mods.one_of(*MODES, default="rn")
    ftz, saturate, relu, nan = (mods.flag(word) for word in ("ftz", "sat", "relu", "NaN"))
    if saturate and relu:
        mods.refuse()
    inst.flops = FLOPS.get(name, 0) * (2 if ptx_type.endswith("x2") else 1)
    name = "fma" if name == "mad" else name
    if name in ("neg", "abs"):
        function = packable(ptx_type, lambda value: sign_bit(name, base, ftz, value))
    elif name in ("min", "max"):
        function = packable(ptx_type, lambda *values: extreme(name, base, ftz, nan, *values))
    elif base == "f64":
        function = double_function(name, mode)
    elif base == "f32" and mode == "rn" and not (ftz or saturate):
        function = FAST[name]
    else:
        function = packable(ptx_type, lambda *values: arithmetic(
            name, base, values, mode, ftz, saturate, relu))
    reads = [source(operand, ptx_type) for operand in inst.operands[1:]]
    write = destination(inst.operands[0], ptx_type)
    return elementwise(inst, function, reads, write)


def packable(ptx_type, function):
    """A function of f16 or bf16 for the two halves of x2 registers."""
    if not ptx_type.endswith("x2"):
        return function

    def on_halves(*words):
        low = function(*((word & U32.type(0xFFFF)).astype(U16) for word in words))
        high = function(*((word >> U32.type(16)).astype(U16) for word in words))
        return low.view(U16).astype(U32) | (high.view(U16).astype(U32) << U32.type(16))
    return on_halves


# ---- float32 to nearest

LOW_BITS = U64.type(0x0FFFFFFF)


def fma_f32(a, b, c):
    """The product of two floats is exact in a double.
    The sum is rounded to 53 bits and then to 24, which goes wrong only where the first rounding
    makes a tie: then its 28 low bits are zero.
    Those of infinities and NaNs are, too."""
    total = rounded_twice(a, b, c)
    result = total.astype(F32)
    low_bits = total.view(U64)
    low_bits &= LOW_BITS                                    # in place: memory takes the time here
    return result if low_bits.min() else canonical(mended(result, low_bits == 0, a, b, c))


def rounded_twice(a, b, c):
    product = np.multiply(a, b, dtype=F64)
    fits = product.shape == np.broadcast(product, c).shape
    return np.add(product, c, out=product if fits else None)


def mended(result, suspects, a, b, c):
    """Round the suspects once."""
    if 16 * np.count_nonzero(suspects) > suspects.size:     # whole numbers, say: exact all the same
        suspects &= rounded_twice(a, b, c) != result
    where = np.flatnonzero(suspects)
    a, b, c = (np.broadcast_to(value, suspects.shape).flat[where].astype(F64)
               for value in (a, b, c))
    total, error = two_sum(a * b, c)
    if error.any():                                         # mostly the sum was exact
        result.flat[where] = to_odd(total, error).astype(F32)
    return result


FAST = {
    "add": lambda a, b: canonical(a + b), "sub": lambda a, b: canonical(a - b),
    "mul": lambda a, b: canonical(a * b), "div": lambda a, b: canonical(a / b), "fma": fma_f32,
}


# ---- any type and rounding

def exact_sum(a, b):
    """float64 a + b, exact or as good when it is rounded to 24 bits: a sum with low bits is neither
    a float nor a tie, and its own rounding has not moved it past one."""
    total = a + b
    suspects = np.flatnonzero(total.view(U64) & LOW_BITS == 0)
    if len(suspects):
        a, b = (np.broadcast_to(value, total.shape).flat[suspects] for value in (a, b))
        total.flat[suspects] = sum_to_odd(a, b)
    return total


# On doubles, exact or as good. A quotient or a root of floats that is neither a float nor a tie
# keeps a relative distance of 2^-50 to those.
EXACT = {
    "add": exact_sum, "sub": lambda a, b: exact_sum(a, -b), "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b, "fma": lambda a, b, c: exact_sum(a * b, c),
}


def arithmetic(name, base, values, mode="rn", ftz=False, saturate=False, relu=False):
    """add, sub, mul, div or fma of f32, f16 or bf16."""
    values = [widen(value, base, ftz) for value in values]
    exact = EXACT[name](*values)
    if mode == "rm" and name in ("add", "sub", "fma"):
        exact = np.where((exact == 0) & ~both_positive(name, *values), -0.0, exact)
    if ftz:                             # what is subnormal before it is rounded is flushed, as
        exact = flush_below(exact, TINY[F32 if base == "f32" else F16])     # the assembler has it
    if saturate:
        exact = clamp(exact)
    if relu:
        exact = np.where(exact <= 0, 0.0, exact)
    return round_to(exact, base, mode)


def widen(value, base, ftz=False):
    """A float of any type as registers hold it -> float64."""
    if base == "bf16":
        return bf16_to_f32(value.view(U16)).astype(F64)
    value = value.view(DTYPES[base])
    return (flush(value) if ftz and base != "f64" else value).astype(F64)


def both_positive(name, a, b, c=None):
    """Is neither addend negative?
    A sum of zero is -0 when rounding down, unless both are +0."""
    first = np.signbit(a) != np.signbit(b) if name == "fma" else np.signbit(a)
    second = {"add": lambda: np.signbit(b), "sub": lambda: ~np.signbit(b),
              "fma": lambda: np.signbit(c)}[name]()
    return ~first & ~second


def clamp(value):
    """.sat: to [+0, 1], and NaN to +0."""
    return np.where(value > 0, np.minimum(value, value.dtype.type(1)), value.dtype.type(0))


def double_function(name, mode):
    if mode != "rn":
        return lambda *values: correctly(name, mode, *values)
    return {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
            "fma": fma_f64}[name]


def approximate_division(inst, mods):
    """Within 2 units in the last place on a GPU, exact here; but div.approx gives 0 where the
    divisor is beyond 2^126, and NaN if the dividend is infinite then."""
    approx = "approx" in inst.modifiers
    ftz = mods.flag("ftz")
    inst.flops = 1

    def divide(x, y):
        x, y = (flush(value) if ftz else value for value in (x, y))
        result = x / y
        if approx:
            huge = np.isfinite(y) & (np.abs(y) > 2.0**126)
            result = np.where(huge, x * np.copysign(F32.type(0), y), result)
        return canonical(flush(result) if ftz else result)
    reads = [source(operand, "f32") for operand in inst.operands[1:]]
    return elementwise(inst, divide, reads, destination(inst.operands[0], "f32"))


# ---- without rounding

def extreme(name, base, ftz, nan, a, b):
    """min and max.
    A NaN loses against a number, or wins with .NaN; -0 is less than +0."""
    if base == "bf16":
        a, b = (bf16_to_f32(value.view(U16)) for value in (a, b))
    else:
        a, b = (value.view(DTYPES[base]) for value in (a, b))
        a, b = (flush(value) if ftz else value for value in (a, b))
    function = {"min": (np.fmin, np.minimum), "max": (np.fmax, np.maximum)}[name][nan]
    result = function(a, b)
    if not result.all():
        both = np.logical_or if name == "min" else np.logical_and
        negative = both(np.signbit(a), np.signbit(b))
        zero = result.dtype.type(0)
        result = np.where((a == 0) & (b == 0), np.where(negative, -zero, zero), result)
    if base == "bf16":
        return f32_to_bf16(result)
    return result if base == "f64" else canonical(result)


def sign_bit(name, base, ftz, value):
    """neg and abs touch the sign bit only, even that of a NaN."""
    if ftz:
        value = flush(value.view(F32 if base == "f32" else F16))
    unsigned = {"f32": U32, "f64": U64}.get(base, U16)
    bits, sign = value.view(unsigned), unsigned.type(1 << (8 * unsigned.itemsize - 1))
    return bits ^ sign if name == "neg" else bits & ~sign


@opcode("copysign")
def copysign(inst, mods):
    """The sign of a on the magnitude of b."""
    ptx_type = mods.type("f32", "f64")
    a, b = (source(operand, ptx_type) for operand in inst.operands[1:])
    write = destination(inst.operands[0], ptx_type)
    return lambda wave: write(wave, np.copysign(b(wave), a(wave)))


@opcode("testp")
def testp(inst, mods):
    """What kind of number is it?
    Zero counts as normal, says the manual."""
    kind = mods.need("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    ptx_type = mods.type("f32", "f64")
    a, write = source(inst.operands[1], ptx_type), destination(inst.operands[0], "pred")
    tiny = {"f32": 2.0**-126, "f64": 2.0**-1022}[ptx_type]
    test = {"finite": np.isfinite, "infinite": np.isinf, "notanumber": np.isnan,
            "number": lambda x: ~np.isnan(x),
            "normal": lambda x: np.isfinite(x) & ((np.abs(x) >= tiny) | (x == 0)),
            "subnormal": lambda x: (np.abs(x) < tiny) & (x != 0)}[kind]
    return lambda wave: write(wave, test(a(wave)))
