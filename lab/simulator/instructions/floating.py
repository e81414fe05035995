"""Floating-point arithmetic: f32, f64, f16, bf16 and the packed f16x2 and bf16x2.

Halves are computed in float32 or float64 and rounded once at the end. A fused multiply-add rounds
once: its product is exact in the next wider format.
"""

import numpy as np

from ..decode import destination, opcode, source
from ..dtypes import F16, F32, F64, U16, U32
from ..rounding import bf16_to_f32, f32_to_bf16, f64_to_bf16, flush, fma_f64, round_to

FLOPS = {"add": 1, "sub": 1, "mul": 1, "fma": 2, "mad": 2, "div": 1}


FUNCTIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
             "min": np.fmin, "max": np.fmax, "neg": np.negative, "abs": np.abs,
             "fma": lambda a, b, c: a * b + c, "mad": lambda a, b, c: a * b + c}


def float_arithmetic(inst, mods):
    """Decode add, sub, mul, div, min, max, neg, abs, fma, mad on any float type."""
    name = inst.opcode
    mode = mods.one_of("rn", "rz", "rm", "rp", default="rn")
    if name == "div":
        mods.flag("full", "approx")                         # within 2 ulp on a GPU; exact here
    ftz, saturate, relu = mods.flag("ftz"), mods.flag("sat"), mods.flag("relu")
    nan, magnitude = mods.flag("NaN"), mods.flag("xorsign")
    ptx_type = mods.type()
    if magnitude or (nan and name not in ("min", "max")):
        mods.refuse()
    inst.flops = FLOPS.get(name, 0) * (2 if ptx_type.endswith("x2") else 1)
    function = FUNCTIONS[name]
    if nan:
        function = {"min": np.minimum, "max": np.maximum}[name]
    reads = [source(operand, ptx_type) for operand in inst.operands[1:]]
    write = destination(inst.operands[0], ptx_type)
    if name in ("neg", "abs") and ptx_type != "f64":
        return sign_bits(name, ptx_type, reads[0], write, ftz)
    if ptx_type == "f32" and not (ftz or saturate):
        return plain_f32(name, mode, function, reads, write)
    compute = {"f32": on_f32, "f64": on_f64, "f16": on_f16, "bf16": on_bf16}[ptx_type.removesuffix("x2")]

    def finish(values):
        result = compute(name, mode, function, values, ftz)
        if saturate:
            result = clamp(result, ptx_type)
        return rectify(result, ptx_type) if relu else result

    if ptx_type.endswith("x2"):
        def run(wave):
            words = [read(wave) for read in reads]
            low = finish([(word & U32.type(0xFFFF)).astype(U16) for word in words])
            high = finish([(word >> U32.type(16)).astype(U16) for word in words])
            write(wave, low.view(U16).astype(U32) | (high.view(U16).astype(U32) << U32.type(16)))
        return run
    return lambda wave: write(wave, finish([read(wave) for read in reads]))


def plain_f32(name, mode, function, reads, write):
    """The hot path: float32 without modifiers."""
    if name in ("fma", "mad"):
        a, b, c = reads
        if mode == "rn":
            return lambda wave: write(wave, fma_f32(a(wave), b(wave), c(wave)))
        return lambda wave: write(wave, round_to(
            a(wave).astype(F64) * b(wave) + c(wave), F32, mode))
    if len(reads) == 1:
        a, = reads
        return lambda wave: write(wave, function(a(wave)))
    a, b = reads
    if mode == "rn":
        return lambda wave: write(wave, function(a(wave), b(wave)))
    return lambda wave: write(wave, round_to(function(a(wave).astype(F64), b(wave)), F32, mode))


def fma_f32(a, b, c):
    """The product of two floats is exact in a double; so the sum is rounded to 53 bits and then to
    24, which differs from one rounding in about one case of 2^29."""
    product = a.astype(F64) * b.astype(F64)
    if product.shape == c.shape:
        product += c.astype(F64)                            # in place: less memory to touch
        return product.astype(F32)
    return (product + c).astype(F32)


def on_f32(name, mode, function, values, ftz):
    if ftz:
        values = [flush(value) for value in values]
    result = round_to(function(*(value.astype(F64) for value in values)), F32, mode)
    return flush(result) if ftz else result


def on_f64(name, mode, function, values, ftz):
    if mode != "rn":
        return directed_f64(name, mode, function, values)
    return fma_f64(*values) if name in ("fma", "mad") else function(*values)


def directed_f64(name, mode, function, values):
    """Directed rounding of doubles: compare with the result in the 64-bit mantissa of x86."""
    exact = function(*(value.astype(np.longdouble) for value in values))
    near = exact.astype(F64)
    wrong = {"rz": np.abs(near) > np.abs(exact), "rm": near > exact, "rp": near < exact}[mode]
    towards = {"rz": 0.0, "rm": -np.inf, "rp": np.inf}[mode]
    return np.where(wrong, np.nextafter(near, towards), near)


def on_f16(name, mode, function, values, ftz):
    values = [value.view(F16) for value in values]
    if ftz:
        values = [flush(value) for value in values]
    if mode == "rn" and name not in ("fma", "mad"):         # 24 bits hold 2 · 11 + 2: no double rounding
        result = function(*(value.astype(F32) for value in values)).astype(F16)
    else:
        result = round_to(function(*(value.astype(F64) for value in values)), F16, mode)
    return flush(result) if ftz else result


def on_bf16(name, mode, function, values, ftz):
    wide = [bf16_to_f32(value) for value in values]
    if name in ("fma", "mad") or mode != "rn":
        return f64_to_bf16(function(*(value.astype(F64) for value in wide)), mode)
    return f32_to_bf16(function(*wide))


def sign_bits(name, ptx_type, read, write, ftz):
    """neg and abs touch the sign bit only, also that of a NaN."""
    masks = {"f32": 0x80000000, "f16": 0x8000, "bf16": 0x8000, "f16x2": 0x80008000,
             "bf16x2": 0x80008000}
    size = 4 if ptx_type in ("f32", "f16x2", "bf16x2") else 2
    unsigned = U32 if size == 4 else U16
    sign = unsigned.type(masks[ptx_type])

    def run(wave):
        value = read(wave)
        bits = (flush(value) if ftz and ptx_type in ("f32", "f16") else value).view(unsigned)
        bits = bits ^ sign if name == "neg" else bits & ~sign
        write(wave, bits.view(value.dtype))
    return run


def clamp(value, ptx_type):
    """.sat: to [0, 1], and NaN to 0."""
    if ptx_type.startswith("bf16"):
        return f32_to_bf16(clamp(bf16_to_f32(value), "f32"))
    return np.where(np.isnan(value), value.dtype.type(0), np.clip(value, 0, 1)).astype(value.dtype)


def rectify(value, ptx_type):
    """.relu: negative numbers become 0; NaN stays, in its canonical form."""
    if ptx_type.startswith("bf16"):
        return f32_to_bf16(rectify(bf16_to_f32(value), "f32"))
    return np.maximum(value, value.dtype.type(0))


@opcode("fma")
def fma(inst, mods):
    return float_arithmetic(inst, mods)


@opcode("copysign")
def copysign(inst, mods):
    """The sign of a on the magnitude of b."""
    ptx_type = mods.type()
    a, b = (source(operand, ptx_type) for operand in inst.operands[1:])
    write = destination(inst.operands[0], ptx_type)
    return lambda wave: write(wave, np.copysign(b(wave), a(wave)))


@opcode("testp")
def testp(inst, mods):
    kind = mods.one_of("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    ptx_type = mods.type()
    a, write = source(inst.operands[1], ptx_type), destination(inst.operands[0], "pred")
    tiny = {"f32": 2.0**-126, "f64": 2.0**-1022}[ptx_type]
    test = {"finite": np.isfinite, "infinite": np.isinf, "notanumber": np.isnan,
            "number": lambda x: ~np.isnan(x),
            "normal": lambda x: np.isfinite(x) & (np.abs(x) >= tiny),
            "subnormal": lambda x: (np.abs(x) < tiny) & (x != 0)}[kind]
    return lambda wave: write(wave, test(a(wave)))
