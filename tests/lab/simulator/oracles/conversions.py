"""cvt, in all its forms."""

from functools import partial

from . import formats
from .cases import FTZ, INTEGERS, MODES, RELU, SAT, case, forms
from .formats import FORMATS, NAN_BITS, decode, encode, finite
from .integers import clamp, limits, number
from .program import width

TO_INTEGER = ("rni", "rzi", "rmi", "rpi")
ANY_INTEGER = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
GREATEST = {"f16": 0x7BFF, "bf16": 0x7F7F, "e4m3": 0x7E, "e5m2": 0x7B}


def integer_to_integer(to, frm):
    mask = (1 << width(to)) - 1
    case(f"cvt.{to}.{frm}", to, frm, lambda a: number(a, frm) & mask)
    if limits(to)[0] > limits(frm)[0] or limits(to)[1] < limits(frm)[1]:
        case(f"cvt.sat.{to}.{frm}", to, frm, lambda a: clamp(number(a, frm), to) & mask)


def float_to_integer(to, frm):
    form, mask = FORMATS[frm], (1 << width(to)) - 1
    of_nan = 1 << (width(to) - 1) if frm == "f64" or width(to) == 64 else 0

    def convert(bits, how, ftz):
        x = decode(bits, form)
        if x is None:
            return of_nan
        if not finite(x):
            return limits(to)[0 if x[0] else 1] & mask
        if ftz and formats.below(x, form.least):
            return 0
        return clamp(formats.to_integer(x, how), to) & mask

    for text, (how, ftz, _) in forms(TO_INTEGER, FTZ if frm == "f32" else ("",),
                                     SAT if frm != "bf16" else ("",)):
        case(f"cvt{text}.{to}.{frm}", to, frm, lambda a, how=how, ftz=ftz: convert(a, how, ftz))


def integer_to_float(to, frm):
    for text, (mode, _, sat) in forms(MODES, FTZ if to == "f32" else ("",),
                                      SAT if to != "bf16" else ("",)):
        def convert(a, mode=mode, sat=sat):
            value = number(a, frm)
            value = max(0, min(1, value)) if sat else value
            return encode((int(value < 0), abs(value), 0), FORMATS[to], mode)
        case(f"cvt{text}.{to}.{frm}", to, frm, convert)


def float_to_float(to, frm):
    """For cvt.ftz a result is subnormal if it is so after rounding: the assembler folds
    cvt.rn.ftz.f32.f64 0d380FFFFFFFFFFFFF to the smallest normal number."""
    source, target, smaller = FORMATS[frm], FORMATS[to], width(to) < width(frm) or {to, frm} == {
        "f16", "bf16"}
    whole = ("", *TO_INTEGER) if to == frm else ("",)
    whole = TO_INTEGER if to == frm == "bf16" else whole

    def convert(bits, how, mode, ftz, sat):
        x = decode(bits, source)
        if ftz and frm == "f32" and x and formats.below(x, source.least):
            x = (x[0], 0, 0)
        if how and finite(x):
            x = (x[0], abs(formats.to_integer(x, how)), 0)
        if sat and (x is None or x[0]):
            return 0
        if x is None:
            return NAN_BITS[to] if to in ("f16", "bf16") and to != frm else None
        if sat and not formats.below(x, 0):
            x = (0, 1, 0)
        result = encode(x, target, mode)
        y = decode(result, target)
        return encode((y[0], 0, 0), target) if ftz and to == "f32" and formats.below(
            y, target.least) else result

    for text, (how, mode, ftz, sat) in forms(
            whole, MODES if smaller else ("",), FTZ if "f32" in (to, frm) else ("",),
            SAT if "bf16" not in (to, frm) else ("",)):
        case(f"cvt{text}.{to}.{frm}", to, frm, partial(convert, how=how, mode=mode or "rn", ftz=ftz,
                                                       sat=sat))


def narrowing(to, kind, modes, words):
    """From f32 with .relu and .satfinite; a pair of sources makes a packed result, the first of
    them its upper half."""
    base = to.removesuffix("x2")
    form = formats.TF32 if base == "tf32" else FORMATS[base]
    nan = NAN_BITS.get(base, NAN_BITS["f32"])

    def convert(bits, mode, relu, satfinite):
        x = decode(bits, FORMATS[kind])
        if x is None:
            return nan
        if relu and x[0]:
            return 0
        result = encode(x, form, mode)
        if satfinite:
            sign = result >> (form.width - 1) << (form.width - 1)
            return sign | min(result - sign, GREATEST[base])
        return result << (13 if base == "tf32" else 0)

    for text, (mode, *limit) in forms(modes, *words):
        one = partial(convert, mode=mode, relu="relu" in limit, satfinite="satfinite" in limit)
        size = form.width
        if base == to:
            case(f"cvt{text}.{to}.f32", to, "f32", one)
        elif kind == "f32":
            case(f"cvt{text}.{to}.f32", to, ("f32", "f32"),
                 lambda a, b, one=one, size=size: one(a) << size | one(b))
        else:
            case(f"cvt{text}.{to}.{kind}x2", to, f"{kind}x2",
                 lambda a, one=one, size=size: one(a >> 16) << size | one(a & 0xFFFF))


def conversions():
    for to in ANY_INTEGER:
        for frm in ANY_INTEGER:
            integer_to_integer(to, frm)
    for kind in ("f16", "bf16", "f32", "f64"):
        for other in ANY_INTEGER if kind != "bf16" else INTEGERS:
            float_to_integer(other, kind)
            integer_to_float(kind, other)
        for other in ("f16", "bf16", "f32", "f64"):
            float_to_float(other, kind)
    for to in ("f16", "bf16"):
        narrowing(to, "f32", ("rn", "rz"), (("relu",), ("", "satfinite")))
        narrowing(to, "f32", ("rn", "rz"), (("satfinite",),))
        narrowing(to + "x2", "f32", ("rn", "rz"), (RELU, ("", "satfinite")))
    narrowing("tf32", "f32", ("rn", "rz"), (RELU,))
    narrowing("tf32", "f32", ("rna",), ())
    for to in ("e4m3x2", "e5m2x2"):
        for kind in ("f32", "f16"):
            narrowing(to, kind, ("rn",), (("satfinite",), RELU))
        for relu in RELU:
            def widened(a, kind=to[:4], relu=relu):
                def one(bits):
                    x = decode(bits, FORMATS[kind])
                    return 0x7FFF if x is None else 0 if relu and x[0] else encode(x, formats.F16)
                return one(a >> 8) << 16 | one(a & 0xFF)
            case(f"cvt.rn{'.' + relu if relu else ''}.f16x2.{to}", "f16x2", to, widened)


conversions()
