"""What a GPU approximates: .approx and .full, held to a relative error that the manual allows."""

import math

from . import formats
from .cases import FTZ, case
from .formats import FORMATS, NAN_BITS, decode


def near(kind, bound):
    """f(bits, expected): within a relative error, or equal if not a normal number."""
    form = FORMATS[kind]

    def close(bits, expected):
        number = decode(bits, form)
        if expected is None or number is None:
            return expected is None and bits == NAN_BITS[kind] or kind == "f64" and number is None
        got, (value, ftz) = formats.to_float(number), expected
        if ftz and abs(value) < 2.0**form.least:
            value = math.copysign(0, value)
        if value == 0 or math.isinf(value):
            return got == value and math.copysign(1, got) == math.copysign(1, value)
        overflow = abs(value) > 2.0**(1 - form.least) * (2 - bound)
        step = 2.0**(form.least - form.mantissa)            # of subnormal numbers
        return abs(got - value) <= bound * abs(value) + step or (overflow and math.isinf(got))
    return close


def approximation(function, kind, ftz):
    def oracle(*bits):
        values = [formats.to_float(decode(b, FORMATS[kind])) for b in bits]
        if ftz:
            least = 2.0**FORMATS[kind].least
            values = [math.copysign(0, v) if abs(v) < least else v for v in values]
        value = function(*values)
        return None if math.isnan(value) else (value, ftz)
    return oracle


def quotient(a, b):
    if math.isnan(a) or math.isnan(b) or (a == 0 and b == 0) or (math.isinf(a) and math.isinf(b)):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1, b) if b == 0 else a / b


def approximate_quotient(a, b):
    """div.approx: zero, or NaN for infinite a, where 2^126 < |b| < 2^128."""
    if 2.0**126 < abs(b) < math.inf:
        return a * math.copysign(0, b) if math.isfinite(a) else math.nan
    return quotient(a, b)


def logarithm(x):
    return math.nan if x < 0 else -math.inf if x == 0 else math.log2(x)


def inverse_root(x):
    return math.nan if x < 0 else math.copysign(math.inf, x) if x == 0 else 1 / math.sqrt(x)


def power_of_two(x):
    return math.nan if math.isnan(x) else 2.0**max(-1000, min(x, 1000))


def of_finite(function):
    return lambda x: function(x) if math.isfinite(x) else math.nan


FUNCTIONS = {
    "rcp": lambda x: quotient(1.0, x), "rsqrt": inverse_root, "ex2": power_of_two,
    "sqrt": lambda x: math.nan if x < 0 else math.sqrt(x), "lg2": logarithm, "tanh": math.tanh,
    "sin": of_finite(math.sin), "cos": of_finite(math.cos),
}
for name, function in FUNCTIONS.items():
    for ftz in FTZ if name != "tanh" else ("",):
        case(f"{name}.approx{'.' + ftz if ftz else ''}.f32", "f32", "f32",
             approximation(function, "f32", ftz), close=near("f32", 2.0**-22))
for kind, ftz in (("f16", ""), ("bf16", "ftz")):
    for name in ("ex2", "tanh"):
        flush = ftz if name == "ex2" else ""
        for x2 in ("", "x2"):
            close = near(kind, 2.0**-(FORMATS[kind].mantissa + 1))
            oracle = approximation(FUNCTIONS[name], kind, flush)
            case(f"{name}.approx{'.' + flush if flush else ''}.{kind}{x2}", kind + x2, kind + x2,
                 oracle if not x2 else lambda word, oracle=oracle: (
                     oracle(word & 0xFFFF), oracle(word >> 16)),
                 close=close if not x2 else lambda bits, expected, close=close: (
                     close(bits & 0xFFFF, expected[0]) and close(bits >> 16, expected[1])))
case("rsqrt.approx.f64", "f64", "f64", approximation(inverse_root, "f64", ""),
     close=near("f64", 2.0**-50))
for name in ("rcp", "rsqrt"):                               # of the upper half of a double
    oracle, close = approximation(FUNCTIONS[name], "f64", "ftz"), near("f64", 2.0**-20)
    case(f"{name}.approx.ftz.f64", "f64", "f64",
         lambda bits, oracle=oracle: oracle(bits >> 32 << 32),
         close=lambda bits, want, close=close: bits & 0xFFFFFFFF == 0 and close(bits, want))
for ftz in FTZ:
    for how, function in (("approx", approximate_quotient), ("full", quotient)):
        case(f"div.{how}{'.' + ftz if ftz else ''}.f32", "f32", ("f32",) * 2,
             approximation(function, "f32", ftz), close=near("f32", 2.0**-22))
