"""Floating-point arithmetic: one rounding of the exact result."""

import math
from functools import partial

from . import formats
from .cases import FTZ, MODES, RELU, SAT, case, forms, packed
from .formats import FORMATS, NAN_BITS, decode, encode, finite
from .program import width


def arithmetic(name, kind, mode="rn", ftz=False, limit=""):
    """An oracle of add, sub, mul, div, fma, rcp or sqrt. limit: sat or relu."""
    form = FORMATS[kind]

    def read(bits):
        number = decode(bits, form)
        subnormal = ftz and number and formats.below(number, form.least)
        return (number[0], 0, 0) if subnormal else number

    def oracle(*bits):
        x, *rest = (read(b) for b in bits)
        if name == "fma":
            exact = formats.add(formats.multiply(x, rest[0]), rest[1], mode)
        elif name in ("rcp", "sqrt"):
            exact = formats.root(x) if name == "sqrt" else formats.divide((0, 1, 0), x)
        else:
            exact = {"add": lambda y: formats.add(x, y, mode), "div": partial(formats.divide, x),
                     "sub": lambda y: formats.add(x, formats.negated(y), mode),
                     "mul": partial(formats.multiply, x)}[name](*rest)
        return finish(exact, kind, mode, ftz, limit)
    return oracle


def finish(exact, kind, mode="rn", ftz=False, limit=""):
    """Saturate and round.
    What is subnormal before rounding counts as such: the assembler folds mul.ftz.f32 0f00FFFFFF,
    0f3F000000 to zero."""
    form = FORMATS[kind]
    if limit == "sat":                                      # -0 becomes +0, as the assembler has it
        if exact is None or exact[0] or exact[1] == 0:
            return 0
        exact = exact if formats.below(exact, 0) else (0, 1, 0)
    if exact is None:
        return None if kind == "f64" else NAN_BITS[kind]
    if limit == "relu" and exact[0]:
        exact = (0, 0, 0)
    if ftz and formats.below(exact, form.least):
        exact = (exact[0], 0, 0)
    return encode(exact, form, mode)


def float_cases(name, count, kinds):
    for kind, groups in kinds.items():
        base = kind.removesuffix("x2")
        for text, (mode, *flags) in forms(*groups):
            if "sat" in flags and "relu" in flags:
                continue
            limit = next((f for f in flags if f in ("sat", "relu")), "")
            oracle = arithmetic("fma" if name == "mad" else name, base, mode or "rn",
                                "ftz" in flags, limit)
            case(f"{name}{text}.{kind}", kind, (kind,) * count,
                 packed(oracle) if kind != base else oracle)


OF_HALF = {"f16": (("", "rn"), FTZ, SAT), "f16x2": (("", "rn"), FTZ, SAT), "bf16": (("", "rn"),),
           "bf16x2": (("", "rn"),)}
for name in ("add", "sub", "mul"):
    float_cases(name, 2, {"f32": (("", *MODES), FTZ, SAT), "f64": (("", *MODES),)} | OF_HALF)
float_cases("fma", 3, {"f32": (MODES, FTZ, SAT), "f64": (MODES,),
                       **dict.fromkeys(("f16", "f16x2"), (("rn",), FTZ, SAT, RELU)),
                       **dict.fromkeys(("bf16", "bf16x2"), (("rn",), RELU))})
float_cases("mad", 3, {"f32": (MODES, FTZ, SAT), "f64": (MODES,)})
float_cases("div", 2, {"f32": (MODES, FTZ), "f64": (MODES,)})
float_cases("rcp", 1, {"f32": (MODES, FTZ), "f64": (MODES,)})
float_cases("sqrt", 1, {"f32": (MODES, FTZ), "f64": (MODES,)})


def extreme(name, kind, ftz, nan):
    """min and max: -0 is less than +0; a NaN loses, or wins with .NaN."""
    form = FORMATS[kind]

    def order(number):
        sign, m, e = number
        size = math.inf if m is None else math.ldexp(m, e)
        return (-size, 0) if sign else (size, 1)

    def oracle(a, b):
        x, y = (decode(bits, form) for bits in (a, b))
        if ftz:
            x, y = (n and ((n[0], 0, 0) if formats.below(n, form.least) else n) for n in (x, y))
        if x is None or y is None:
            found = None if nan else x or y
        else:
            found = (min if name == "min" else max)(x, y, key=order)
        if found is None:
            return None if kind == "f64" else NAN_BITS[kind]
        return encode(found, form)
    return oracle


def sign_oracle(name, kind, ftz):
    """neg and abs.
    The bits of a NaN that they give are unspecified."""
    def oracle(bits):
        number = decode(bits, FORMATS[kind])
        if number is None:
            return None
        if ftz and formats.below(number, FORMATS[kind].least):
            number = (number[0], 0, 0)
        return encode((0 if name == "abs" else 1 - number[0], *number[1:]), FORMATS[kind])
    return oracle


for kind, groups in {"f32": (FTZ, ("", "NaN")), "f64": (("",), ("",)), "f16": (FTZ, ("", "NaN")),
                     "f16x2": (FTZ, ("", "NaN")), "bf16": (("",), ("", "NaN")),
                     "bf16x2": (("",), ("", "NaN"))}.items():
    base = kind.removesuffix("x2")
    wrap = packed if base != kind else lambda oracle: oracle
    for text, (ftz, nan) in forms(*groups):
        for name in ("min", "max"):
            case(f"{name}{text}.{kind}", kind, (kind,) * 2, wrap(extreme(name, base, ftz, nan)))
    for text, (ftz,) in forms(groups[0]):
        for name in ("neg", "abs"):
            case(f"{name}{text}.{kind}", kind, kind, wrap(sign_oracle(name, base, ftz)))


def float_class(bits, kind):
    """Zero counts as normal."""
    form, number = FORMATS[kind], decode(bits, FORMATS[kind])
    subnormal = finite(number) and formats.below(number, form.least) and number[1] != 0
    return {"finite": finite(number), "infinite": number is not None and not finite(number),
            "number": number is not None, "notanumber": number is None,
            "normal": finite(number) and not subnormal, "subnormal": subnormal}


for kind in ("f32", "f64"):
    w = width(kind)
    case(f"copysign.{kind}", kind, (kind,) * 2,
         lambda a, b, w=w: b & ~(1 << (w - 1)) | a & 1 << (w - 1))
    for what in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        case(f"testp.{what}.{kind}", "pred", kind,
             lambda a, kind=kind, what=what: int(bool(float_class(a, kind)[what])))
