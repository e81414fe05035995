"""Comparisons and choices: setp, set, selp, slct."""

import math

from . import formats
from .cases import BITS, FTZ, HALVES, INTEGERS, case
from .formats import FORMATS, decode
from .integers import number

COMPARE = {"eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
           "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b}
SAME = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
COMBINE = {"and": lambda p, c: p and c, "or": lambda p, c: p or c, "xor": lambda p, c: p != c}


def comparison(name, kind, ftz):
    """-> f(bits, bits), the truth"""
    if kind not in FORMATS:
        return lambda a, b: COMPARE[SAME.get(name, name)](number(a, kind), number(b, kind))
    form = FORMATS[kind]

    def value(bits):
        x = decode(bits, form)
        return 0.0 if ftz and x and formats.below(x, form.least) else formats.to_float(x)

    def truth(a, b):
        x, y = value(a), value(b)
        unordered = math.isnan(x) or math.isnan(y)
        if name in ("num", "nan"):
            return unordered == (name == "nan")
        return name.endswith("u") if unordered else COMPARE[name.removesuffix("u")](x, y)
    return truth


def names_for(kind):
    if kind in BITS:
        return "eq", "ne"
    if kind in INTEGERS:
        return (*COMPARE, *(SAME if kind[0] == "u" else ()))
    return (*COMPARE, *(f"{name}u" for name in COMPARE), "num", "nan")


def comparison_cases():
    for kind in (*BITS, *INTEGERS, "f32", "f64", *HALVES):
        base, twice = kind.removesuffix("x2"), kind.endswith("x2")
        for name in names_for(kind):
            for ftz in FTZ if kind in ("f32", "f16", "f16x2") else ("",):
                flag, truth = "." + ftz if ftz else "", comparison(name, base, ftz)

                def truths(a, b, truth=truth, twice=twice):
                    if twice:
                        return truth(a & 0xFFFF, b & 0xFFFF), truth(a >> 16, b >> 16)
                    return truth(a, b), not truth(a, b)
                setp_cases(name, flag, kind, truths)
                set_cases(name, flag, kind, truths)


def setp_cases(name, flag, kind, truths):
    n = 1 if kind in ("f16", "bf16") else 2                 # those have no p|q

    def some(found):
        return tuple(map(int, found[:n])) if n == 2 else int(found[0])

    case(f"setp.{name}{flag}.{kind}", ("pred",) * n, (kind, kind), lambda a, b: some(truths(a, b)))
    if name == "le" and kind == "s32":
        case("setp.le.and.s32 with !c", ("pred",) * 2, (kind, kind, "pred"),
             lambda a, b, c: some([p and not c for p in truths(a, b)]),
             "setp.le.and.s32 {d0}|{d1}, {s0}, {s1}, !{s2};")
    for combine, function in COMBINE.items():
        form = f"setp.{name}.{combine}{flag}.{kind}"
        case(form, ("pred",) * n, (kind, kind, "pred"),
             lambda a, b, c, f=function: some([f(p, bool(c)) for p in truths(a, b)]))


def set_cases(name, flag, kind, truths):
    if kind.endswith("x2"):
        wanted = {kind: 0x3C00 if kind == "f16x2" else 0x3F80, "u32": 0xFFFF, "s32": 0xFFFF}
    elif kind in HALVES:
        wanted = {kind: 0x3C00 if kind == "f16" else 0x3F80, "u16": 0xFFFF, "s16": 0xFFFF,
                  "u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF}
    else:
        wanted = {"f32": 0x3F800000, "f16": 0x3C00, "u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF}

    def value(truths, one):
        if kind.endswith("x2"):
            return one * truths[0] | one * truths[1] << 16
        return one * truths[0]

    for result, one in wanted.items():
        case(f"set.{name}{flag}.{result}.{kind}", result, (kind, kind),
             lambda a, b, one=one: value(truths(a, b), one))
        for combine, function in COMBINE.items():
            case(f"set.{name}.{combine}{flag}.{result}.{kind}", result, (kind, kind, "pred"),
                 lambda a, b, c, one=one, f=function: value(
                     [f(p, bool(c)) for p in truths(a, b)], one))


comparison_cases()
for kind in (*BITS, *INTEGERS, "f32", "f64"):
    case(f"selp.{kind}", kind, (kind, kind, "pred"), lambda a, b, p: a if p else b)
    case(f"slct.{kind}.s32", kind, (kind, kind, "s32"), lambda a, b, c: b if c >> 31 else a)
    for ftz in FTZ:
        from_zero = comparison("ge", "f32", ftz)
        case(f"slct{'.' + ftz if ftz else ''}.{kind}.f32", kind, (kind, kind, "f32"),
             lambda a, b, c, from_zero=from_zero: a if from_zero(c, 0) else b)
