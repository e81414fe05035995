"""Floating-point numbers as integers, for oracles: exact, slow, and without numpy.

A number is (sign, m, e), which means (-1)^sign · m · 2^e with an integer m; or (sign, None, None),
which is infinite; or None, which is not a number.
"""

import math
from functools import lru_cache
from typing import NamedTuple


class Format(NamedTuple):
    exponent: int               # bits
    mantissa: int               # bits
    infinite: bool = True       # does it have infinities? e4m3 does not

    @property
    def width(self):
        return 1 + self.exponent + self.mantissa

    @property
    def least(self):
        """The exponent of subnormal numbers, and of the smallest normal ones."""
        return 2 - (1 << (self.exponent - 1))

    @property
    def infinity(self):
        return ((1 << self.exponent) - 1) << self.mantissa

    @property
    def greatest(self):
        """The bits of the largest number."""
        return self.infinity - 1 if self.infinite else (1 << (self.width - 1)) - 2


F64, F32, F16, BF16 = Format(11, 52), Format(8, 23), Format(5, 10), Format(8, 7)
TF32 = Format(8, 10)
E4M3, E5M2 = Format(4, 3, infinite=False), Format(5, 2)
FORMATS = {"f64": F64, "f32": F32, "f16": F16, "bf16": BF16, "e4m3": E4M3, "e5m2": E5M2}
NAN_BITS = {"f64": 0x7FF8 << 48, "f32": 0x7FFFFFFF, "f16": 0x7FFF, "bf16": 0x7FFF, "e4m3": 0x7F,
            "e5m2": 0x7F}


@lru_cache(1 << 16)
def decode(bits, form):
    sign, rest = bits >> (form.width - 1), bits & ((1 << (form.width - 1)) - 1)
    if rest > (form.infinity if form.infinite else form.greatest):
        return None
    if form.infinite and rest == form.infinity:
        return sign, None, None
    exponent, m = rest >> form.mantissa, rest & ((1 << form.mantissa) - 1)
    if exponent:
        m |= 1 << form.mantissa
    return sign, m, max(exponent, 1) - 1 + form.least - form.mantissa


def encode(number, form, mode="rn"):
    """Round once: rn to nearest even, rna to nearest away, rz to zero, rm down, rp up.
    No NaN."""
    sign, m, e = number
    top = sign << (form.width - 1)
    if m is None:
        return top | (form.infinity if form.infinite else form.greatest)
    if m == 0:
        return top
    exponent = max(e + m.bit_length() - 1, form.least)
    drop = exponent - form.mantissa - e                     # bits that do not fit
    kept, rest = (m >> drop, m & ((1 << drop) - 1)) if drop > 0 else (m << -drop, 0)
    half = 1 << (drop - 1) if drop > 0 else 1
    up = {"rn": rest > half or (rest == half and kept & 1), "rna": rest >= half, "rz": False,
          "rm": sign and rest, "rp": not sign and rest}[mode]
    kept += bool(up)
    bits = ((exponent - form.least) << form.mantissa) + kept
    if bits > form.greatest:
        stays = mode == "rz" or mode == ("rp" if sign else "rm") or not form.infinite
        bits = form.greatest if stays else form.infinity
    return top | bits


# ---- arithmetic, exactly

def signed(number):
    return -number[1] if number[0] else number[1]


def finite(number):
    return number is not None and number[1] is not None


def add(x, y, mode="rn"):
    if x is None or y is None:
        return None
    if not (finite(x) and finite(y)):
        if not finite(x) and not finite(y) and x[0] != y[0]:
            return None
        return y if finite(x) else x
    e = min(x[2], y[2])
    m = (signed(x) << (x[2] - e)) + (signed(y) << (y[2] - e))
    if m == 0:
        sign = x[0] if x[0] == y[0] else int(mode == "rm")
        return sign, 0, 0
    return int(m < 0), abs(m), e


def negated(x):
    return x and (1 - x[0], *x[1:])


def multiply(x, y):
    if x is None or y is None:
        return None
    sign = x[0] ^ y[0]
    if not (finite(x) and finite(y)):
        return None if 0 in (x[1], y[1]) else (sign, None, None)
    return sign, x[1] * y[1], x[2] + y[2]


def divide(x, y):
    """128 bits of the quotient; the last is set where it goes on."""
    if x is None or y is None or (not finite(x) and not finite(y)) or x[1] == y[1] == 0:
        return None
    sign = x[0] ^ y[0]
    if not finite(x) or y[1] == 0:
        return sign, None, None
    if not finite(y) or x[1] == 0:
        return sign, 0, 0
    quotient, rest = divmod(x[1] << 128, y[1])
    return sign, quotient << 1 | (rest > 0), x[2] - y[2] - 129


def root(x):
    """128 bits of the root; the last is set where it goes on."""
    if x is None or (x[0] and x[1] != 0):
        return None
    if not finite(x) or x[1] == 0:
        return x
    m, e = (x[1] << 256, x[2] - 256) if x[2] % 2 == 0 else (x[1] << 257, x[2] - 257)
    whole = math.isqrt(m)
    return 0, whole << 1 | (whole * whole < m), e // 2 - 1


def below(x, exponent):
    """Is |x| < 2^exponent?"""
    return finite(x) and (x[1] == 0 or x[2] + x[1].bit_length() <= exponent)


def to_integer(x, how):
    """A finite number -> the integer that it rounds to: rni, rzi, rmi, rpi."""
    m, e = signed(x), x[2]
    if e >= 0:
        return m << e
    down, rest = m >> -e, m & ((1 << -e) - 1)
    half = 1 << (-e - 1)
    up = {"rni": rest > half or (rest == half and down & 1), "rzi": rest and m < 0, "rmi": False,
          "rpi": rest > 0}[how]
    return down + bool(up)


def to_float(x):
    """A number of at most 53 bits -> Python float."""
    if x is None:
        return math.nan
    if x[1] is None:
        return -math.inf if x[0] else math.inf
    return math.copysign(math.ldexp(x[1], x[2]), -1 if x[0] else 1)
