"""Number formats by the book: every code decoded one by one, neighbours and spacings from those."""

from functools import cache

import numpy as np

FORMATS = {"e4m3": (4, 3, "nan"), "e5m2": (5, 2, "ieee"), "e2m1": (2, 1, "none"),
           "fp16": (5, 10, "ieee"), "bf16": (8, 7, "ieee"), "tf32": (8, 10, "ieee"),
           "fp32": (8, 23, "ieee")}


def top_code(name):
    """Of the largest finite number."""
    E, M, specials = FORMATS[name]
    return 2 ** (E + M) - 1 - {"ieee": 2**M, "nan": 1, "none": 0}[specials]


def by_book(name, code):
    """The number that a code stands for, read from its bits as text."""
    E, M, specials = FORMATS[name]
    text = f"{code:0{1 + E + M}b}"
    sign, e, m = -1.0 if text[0] == "1" else 1.0, int(text[1:1 + E], 2), int(text[1 + E:], 2)
    if specials == "ieee" and text[1:1 + E] == "1" * E:
        return sign * np.inf if m == 0 else np.nan
    if specials == "nan" and "0" not in text[1:]:
        return np.nan
    bias = 2 ** (E - 1) - 1
    return sign * ((1 + m / 2**M) * 2.0 ** (e - bias) if e else m / 2**M * 2.0 ** (1 - bias))


@cache
def numbers(name):
    """All finite numbers from 0 up, so that the place of a number is its code."""
    E, M, _ = FORMATS[name]
    every = np.array([by_book(name, code) for code in range(2 ** (E + M))])
    return every[np.isfinite(every)]


@cache
def with_next(name):
    """These, and where the next one would be."""
    v = numbers(name)
    return np.append(v, 2 * v[-1] - v[-2])


def beyond(name):
    """(numbers, the first of their codes) from the largest finite number on, had the exponents no
    end: those of five more exponents."""
    E, M, _ = FORMATS[name]
    top = top_code(name)
    e, m = np.divmod(np.arange(top, min(top + 5 * 2**M, top + 20_000) + 1), 2**M)
    return np.ldexp(1 + m / 2**M, e + 1 - 2 ** (E - 1)), top


def places(name):
    """Numbers of a format and points between them, largest subnormal and powers of two included."""
    if name == "fp32":
        x = np.ldexp(1 + np.arange(8) / 8, np.arange(-152, 128)[:, None]).ravel()
        return np.concatenate(([0.0, 2.0**-126 - 2.0**-149], x))
    v = numbers(name)
    v = v[:: max(1, len(v) // 4096)]
    return np.concatenate((v, (v[1:] + 3 * v[:-1]) / 4))


def true_spacing(name, x):
    if name == "fp32":
        low = x.astype(np.float32)
        low = np.where(low > x, np.nextafter(low, np.float32(0)), low)
        return np.spacing(low).astype(np.float64)
    v = with_next(name)             # the largest has no next one; its step is the one before it
    place = np.searchsorted(v, x, side="right") - 1
    return v[place + 1] - v[place]


def around(name, x):
    """(code of the number below x or at it, distance to it, distance to the next), x >= 0."""
    v = with_next(name)
    low = np.minimum(np.searchsorted(v, x, side="right") - 1, len(v) - 2)
    return low, x - v[low], v[low + 1] - x


def rounded(name, x):
    """The code nearest to each x >= 0, the even one on a tie, found in the list of all."""
    if name == "fp32":
        with np.errstate(over="ignore"):
            return x.astype(np.float32).view(np.uint32).astype(np.int64)
    low, below, above = around(name, x)
    return low + np.where(below == above, low & 1, above < below)


def hard(name, rng):
    """x >= 0 up to where rounding passes the largest number: ties, their neighbours, and others."""
    E, M, _ = FORMATS[name]
    if name == "fp32":
        v = np.float32(2.0) ** np.arange(-149, 128).astype(np.float32)
        v = np.concatenate((v, rng.integers(0, 0x7F7FFFFF, 20_000).astype(np.uint32).view("f4")))
        v = np.unique(v)
        after = np.nextafter(v, np.float32(np.inf)).astype(np.float64)
        v, ties = v.astype(np.float64), (v.astype(np.float64) + after) / 2
        end = 2.0**128 - 2.0**103
    else:
        v = numbers(name)
        ties, end = (v[1:] + v[:-1]) / 2, v[-1] + (v[-1] - v[-2]) / 2
        if len(v) > 40_000:
            v, ties = v[::7], ties[::7]
    others = v[-1] * 2.0 ** -rng.uniform(0, 2 ** (E - 1) + M + 6, 2000)
    x = np.concatenate((ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf), v, others,
                        2.0 ** -np.arange(1075.0), [0.0]))         # float64's own subnormals, too
    return x[(x >= 0) & (x < end)]


def encoded(x, E, M, least=-1023):
    """Codes of x where the exponent does not fall below `least`."""
    own = (x.view(np.int64) >> 52) - 1023
    significand = 1 + (x.view(np.int64) & 2**52 - 1) / 2**52
    exponent = np.maximum(own, least)
    kept = np.rint(np.ldexp(significand, M + own - exponent)).astype(np.int64)
    return (exponent + 2 ** (E - 1) - 2 << M) + kept


def shorter(x, dtype):
    """x, where it fits, by way of a shorter type."""
    with np.errstate(over="ignore"):
        y = x.astype(dtype).astype(np.float64)
    return np.where(np.isinf(y), x, y)
