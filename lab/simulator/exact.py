"""Double-precision results that numpy does not give: fused multiply-add and directed roundings.

A fused multiply-add of everyday numbers is put together from error-free sums and products.
The rest is done one number at a time with Python's integers, which never round.
"""

import math
from fractions import Fraction

import numpy as np

from .dtypes import F64
from .rounding import sum_to_odd, two_product, two_sum

TOWARDS = {"rz": 0.0, "rm": -math.inf, "rp": math.inf}
FUNCTIONS = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
             "div": lambda a, b: a / b, "fma": lambda a, b, c: a * b + c, "sqrt": np.sqrt}


def fma_f64(a, b, c):
    """a · b + c on doubles, rounded once to nearest (Boldo and Melquiond 2008)."""
    a, b, c = np.broadcast_arrays(a, b, c)
    product, low = two_product(a, b)
    high, error = two_sum(c, low)
    high, rest = two_sum(product, high)
    result = high + sum_to_odd(error, rest)
    result = np.where(result == 0, product + c, result)     # which has the sign of an exact zero
    size = np.abs(product)
    if size.min() > 2.0**-960 and max(np.abs(a).max(), np.abs(b).max()) < 2.0**480 and (
            np.abs(c).max() < 2.0**960):
        return result
    everyday = (np.abs(a) < 2.0**480) & (np.abs(b) < 2.0**480) & (np.abs(c) < 2.0**960) & (
        (size > 2.0**-960) | (a == 0) | (b == 0))
    if not everyday.all():                                  # near overflow, underflow or not finite
        rest = ~everyday
        result[rest] = correctly("fma", "rn", a[rest], b[rest], c[rest])
    return result


def correctly(name, mode, *arrays):
    """One of FUNCTIONS on arrays of doubles, rounded once in the mode rn, rz, rm or rp."""
    one = np.frompyfunc(lambda *numbers: one_number(name, mode, *numbers), len(arrays), 1)
    return np.asarray(one(*arrays), F64)


def integer_to_f64(value, mode):
    """Integers -> doubles, rounded in the mode rn, rz, rm or rp."""
    return np.asarray(np.frompyfunc(lambda n: rounded(Fraction(n), mode), 1, 1)(value), F64)


def one_number(name, mode, *numbers):
    plain = FUNCTIONS[name](*map(np.float64, numbers))
    if name == "fma" and math.isinf(numbers[2]) and all(map(math.isfinite, numbers[:2])):
        return numbers[2]                                   # though the plain product may overflow
    if not all(map(math.isfinite, numbers)) or (name == "div" and numbers[1] == 0):
        return plain
    if name == "sqrt":
        if not numbers[0] > 0:
            return plain                                    # zero keeps its sign, NaN below
        square = Fraction(float(plain))**2
        exact = Fraction(numbers[0])
        return stepped(float(plain), side(square, exact), mode)
    exact = FUNCTIONS[name](*map(Fraction, numbers))
    return rounded(exact, mode) if exact else exact_zero(name, mode, *numbers)


def rounded(exact, mode):
    """Fraction -> float."""
    try:
        near = exact.numerator / exact.denominator          # Python rounds this once, to nearest
    except OverflowError:
        near = math.inf if exact > 0 else -math.inf
    return stepped(near, side(near, exact), mode)


def side(value, exact):
    """On which side of the exact result a value lies: 1 above, -1 below, 0 for equal."""
    return 1 if value > exact else -1 if value < exact else 0


def stepped(near, side, mode):
    """The nearest double, or its neighbour. side: 1 if near is above the exact number, -1 below."""
    wrong = {"rn": False, "rz": side == math.copysign(1, near), "rm": side > 0, "rp": side < 0}
    return math.nextafter(near, TOWARDS[mode]) if wrong[mode] else near


def exact_zero(name, mode, *numbers):
    """IEEE 754: x - x is +0, or -0 when rounding down."""
    if name in ("mul", "div"):
        return FUNCTIONS[name](*numbers)
    signs = [math.copysign(1, number) for number in numbers]
    first, second = {"add": lambda: signs, "sub": lambda: (signs[0], -signs[1]),
                     "fma": lambda: (signs[0] * signs[1], signs[2])}[name]()
    if first == second:
        return math.copysign(0, first)
    return -0.0 if mode == "rm" else 0.0
