"""Integer arithmetic, logic, shifts, carries and bit fields, with Python's integers."""

from .cases import BITS, INTEGERS, WORDS, case
from .program import width


def number(bits, kind):
    """The bits of an integer type -> int."""
    w = width(kind)
    return bits - (1 << w) if kind[0] == "s" and bits >> (w - 1) else bits


def integer(kind, function, result=None):
    """An oracle: function of Python integers, wrapped to the result's width."""
    mask = (1 << width(result or kind)) - 1
    return lambda *bits: function(*(number(b, kind) for b in bits)) & mask


def clamp(value, kind):
    low, high = limits(kind)
    return max(low, min(high, value))


def limits(kind):
    w = width(kind)
    return (-(1 << (w - 1)), (1 << (w - 1)) - 1) if kind[0] == "s" else (0, (1 << w) - 1)


def towards_zero(a, b):
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a, b):
    """By zero: all ones, like the quotient, as the assembler folds it."""
    return -1 if b == 0 else a - b * towards_zero(a, b)


def significant(a):
    """How many bits are left without the copies of the sign."""
    return (a if a >= 0 else ~a).bit_length()


for kind in INTEGERS:
    w = width(kind)
    for name, function in {
            "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "min": min, "max": max,
            "div": towards_zero, "rem": remainder}.items():
        case(f"{name}.{kind}", kind, (kind,) * 2, integer(kind, function))
    case(f"sad.{kind}", kind, (kind,) * 3, integer(kind, lambda a, b, c: c + abs(a - b)))
    if kind[0] == "s":
        case(f"neg.{kind}", kind, kind, integer(kind, lambda a: -a))
        case(f"abs.{kind}", kind, kind, integer(kind, abs))
    for part in ("lo", "hi"):
        shift = w if part == "hi" else 0
        case(f"mul.{part}.{kind}", kind, (kind,) * 2,
             integer(kind, lambda a, b, s=shift: a * b >> s))
        case(f"mad.{part}.{kind}", kind, (kind,) * 3,
             integer(kind, lambda a, b, c, s=shift: (a * b >> s) + c))
    if w < 64:
        wide = f"{kind[0]}{2 * w}"
        case(f"mul.wide.{kind}", wide, (kind,) * 2, integer(kind, lambda a, b: a * b, wide))
        case(f"mad.wide.{kind}", wide, (kind, kind, wide),
             lambda a, b, c, k=kind, w=w: (number(a, k) * number(b, k) + c) & ((1 << 2 * w) - 1))
    if kind in WORDS:
        case(f"bfind.{kind}", "u32", kind, integer(kind, lambda a: significant(a) - 1, "u32"))
        case(f"bfind.shiftamt.{kind}", "u32", kind, integer(
            kind, lambda a, w=w: w - significant(a) if significant(a) else -1, "u32"))
for name, function in {"add": lambda a, b: a + b, "sub": lambda a, b: a - b}.items():
    case(f"{name}.sat.s32", "s32", ("s32",) * 2,
         integer("s32", lambda a, b, f=function: clamp(f(a, b), "s32")))


def low_24(value, kind):
    value &= 0xFFFFFF
    return value - (1 << 24) if kind == "s32" and value >> 23 else value


for kind in ("u32", "s32"):
    for part, shift in (("lo", 0), ("hi", 16)):
        def product(a, b, c=0, kind=kind, shift=shift):
            return (low_24(a, kind) * low_24(b, kind) >> shift) + c & 0xFFFFFFFF
        case(f"mul24.{part}.{kind}", kind, (kind,) * 2, product)
        case(f"mad24.{part}.{kind}", kind, (kind,) * 3, product)


def carry_cases():
    """The carry is seen by adding it to zero, and comes from an instruction of its own.
    After sub.cc addc sees the opposite of the borrow, as the assembler folds it."""
    for kind in WORDS:
        w = width(kind)
        mask = (1 << w) - 1
        see = f"addc.{kind} {{d1}}, 0, 0;"
        for name, sign in (("add", 1), ("sub", -1)):
            def without(a, b, sign=sign, mask=mask):
                exact = a + sign * b
                return exact & mask, int((0 <= exact <= mask) == (sign < 0))

            def within(a, b, x, y, sign=sign, mask=mask):
                before = int(not 0 <= x + sign * y <= mask)
                exact = a + sign * (b + before)
                return exact & mask, int((0 <= exact <= mask) == (sign < 0))
            case(f"{name}.cc.{kind}", (kind,) * 2, (kind,) * 2, without,
                 f"{name}.cc.{kind} {{d0}}, {{s0}}, {{s1}}; {see}")
            put = f"{name}.cc.{kind} {{d0}}, {{s2}}, {{s3}};"
            case(f"{name}c.cc.{kind}", (kind,) * 2, (kind,) * 4, within,
                 f"{put} {name}c.cc.{kind} {{d0}}, {{s0}}, {{s1}}; {see}")
            case(f"{name}c.{kind}", kind, (kind,) * 4,
                 lambda *bits, within=within: within(*bits)[0],
                 f"{put} {name}c.{kind} {{d0}}, {{s0}}, {{s1}};")
        for part, shift in (("lo", 0), ("hi", w)):
            def fused(a, b, c, x=0, y=0, kind=kind, mask=mask, shift=shift):
                term = number(a, kind) * number(b, kind) >> shift & mask
                exact = term + c + (x + y > mask)
                return exact & mask, int(exact > mask)
            put = f"add.cc.{kind} {{d0}}, {{s3}}, {{s4}};"
            case(f"mad.{part}.cc.{kind}", (kind,) * 2, (kind,) * 3, fused,
                 f"mad.{part}.cc.{kind} {{d0}}, {{s0}}, {{s1}}, {{s2}}; {see}")
            case(f"madc.{part}.cc.{kind}", (kind,) * 2, (kind,) * 5, fused,
                 f"{put} madc.{part}.cc.{kind} {{d0}}, {{s0}}, {{s1}}, {{s2}}; {see}")
            case(f"madc.{part}.{kind}", kind, (kind,) * 5,
                 lambda *bits, fused=fused: fused(*bits)[0],
                 f"{put} madc.{part}.{kind} {{d0}}, {{s0}}, {{s1}}, {{s2}};")


carry_cases()

for kind in ("pred", *BITS):
    mask = 1 if kind == "pred" else (1 << width(kind)) - 1
    for name, function in {"and": lambda a, b: a & b, "or": lambda a, b: a | b,
                           "xor": lambda a, b: a ^ b}.items():
        case(f"{name}.{kind}", kind, (kind,) * 2, function)
    case(f"not.{kind}", kind, kind, lambda a, mask=mask: a ^ mask)
    if kind != "pred":
        case(f"cnot.{kind}", kind, kind, lambda a: int(a == 0))
for kind in (*BITS, *INTEGERS):
    mask = (1 << width(kind)) - 1
    case(f"shr.{kind}", kind, (kind, "u32"),
         lambda a, n, kind=kind, mask=mask: number(a, kind) >> n & mask)
    if kind in BITS:
        case(f"shl.{kind}", kind, (kind, "u32"),
             lambda a, n, mask=mask: a << min(n, 64) & mask)
for kind in ("b32", "b64"):
    w = width(kind)
    case(f"popc.{kind}", "u32", kind, lambda a: a.bit_count())
    case(f"clz.{kind}", "u32", kind, lambda a, w=w: w - a.bit_length())
    case(f"brev.{kind}", kind, kind, lambda a, w=w: int(f"{a:0{w}b}"[::-1], 2))


def extract(kind):
    top = width(kind) - 1

    def oracle(a, start, length):                           # bit by bit, as the manual has it
        start, length = start & 255, length & 255
        fill = a >> min(start + length - 1, top) & 1 if kind[0] == "s" and length else 0
        bits = [a >> (start + i) & 1 if i < length and start + i <= top else fill
                for i in range(top + 1)]
        return sum(bit << i for i, bit in enumerate(bits))
    return oracle


def insert(kind):
    top = width(kind) - 1

    def oracle(a, b, start, length):
        start, length = start & 255, length & 255
        for i in range(min(length, top + 1 - start)):
            b = b & ~(1 << (start + i)) | (a >> i & 1) << (start + i)
        return b
    return oracle


def permute(a, b, selector):
    both, result = (b << 32 | a).to_bytes(8, "little"), 0
    for i in range(4):
        pick = selector >> 4 * i & 15
        byte = both[pick & 7]
        result |= (255 * (byte >> 7) if pick & 8 else byte) << 8 * i
    return result


def funnel(left, wrap):
    def oracle(a, b, n):
        n = n & 31 if wrap else min(n, 32)
        pair = b << 32 | a
        return (pair << n >> 32 if left else pair >> n) & 0xFFFFFFFF
    return oracle


def within_a_byte(form, sources):
    """In the 64-bit forms a position or length above 255 is refused: the last two sources, cut."""
    *plain, start, length = (f"{{s{i}}}" for i in range(sources))
    return (f"{{{{ .reg .b32 %x, %y; and.b32 %x, {start}, 255; and.b32 %y, {length}, 255; "
            f"{form} {{d0}}, {', '.join(plain)}, %x, %y; }}}}")


for kind in WORDS:
    form = f"bfe.{kind}"
    case(form, kind, (kind, "u32", "u32"), extract(kind),
         within_a_byte(form, 3) if width(kind) == 64 else "")
for kind in ("b32", "b64"):
    form = f"bfi.{kind}"
    case(form, kind, (kind, kind, "u32", "u32"), insert(kind),
         within_a_byte(form, 4) if kind == "b64" else "")
case("prmt.b32", "b32", ("b32",) * 3, permute)
for direction in "lr":
    for how in ("wrap", "clamp"):
        case(f"shf.{direction}.{how}.b32", "b32", ("b32",) * 3,
             funnel(direction == "l", how == "wrap"))


def split(word, size, kind):
    return [number(word >> i & (1 << size) - 1, f"{kind[0]}{size}") for i in range(0, 32, size)]


for a_kind in ("u32", "s32"):
    for b_kind in ("u32", "s32"):
        types = f"{a_kind}.{b_kind}"
        case(f"dp4a.{types}", "b32", ("b32",) * 3, lambda a, b, c, k=a_kind, m=b_kind: c + sum(
            x * y for x, y in zip(split(a, 8, k), split(b, 8, m), strict=True)) & 0xFFFFFFFF)
        for part, half in (("lo", slice(0, 2)), ("hi", slice(2, 4))):
            case(f"dp2a.{part}.{types}", "b32", ("b32",) * 3,
                 lambda a, b, c, k=a_kind, m=b_kind, half=half: c + sum(
                     x * y for x, y in zip(split(a, 16, k), split(b, 8, m)[half], strict=True))
                 & 0xFFFFFFFF)


def any_logic(table):
    def oracle(a, b, c):
        return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i
                   for i in range(32))
    return oracle


case("lop3.b32", ("b32",) * 4, ("b32",) * 3,
     lambda a, b, c: tuple(any_logic(table)(a, b, c) for table in (0x96, 0xE8, 0x01, 0xCA)),
     "".join(f"lop3.b32 {{d{i}}}, {{s0}}, {{s1}}, {{s2}}, {table};"
             for i, table in enumerate((0x96, 0xE8, 0x01, 0xCA))))
