"""Operands that find mistakes: edges, everyday numbers, ties and cancellations."""

import random
from functools import cache

from . import formats
from .formats import FORMATS, decode, encode, finite
from .program import LANES, width


def edges(kind):
    """The numbers at which a type's arithmetic changes its ways, as bits; at most 16."""
    w = width(kind)
    if kind == "pred":
        return [0, 1]
    if kind in FORMATS:
        form = FORMATS[kind]
        one, infinity = encode((0, 1, 0), form), form.infinity
        some = [0, 1, (1 << form.mantissa) - 1, 1 << form.mantissa, one, one + 1, infinity - 1,
                infinity]
        return [*some, *(bits | 1 << (w - 1) for bits in some[:-1]), infinity + 1]
    if kind.endswith("x2"):
        base = FORMATS[kind[:-2]]
        own = edges(kind[:-2])
        return [a | b << base.width for a, b in zip(own, own[5:] + own[:5], strict=True)]
    ones = (1 << w) - 1
    return [0, 1, 2, 3, 7, 31, 32, w, 0x80 & ones, 0xFF & ones, ones, ones - 1, ones >> 1,
            (ones >> 1) + 1, ones // 3, ones // 5 * 4]


def anything(kind, rng):
    """A random number of the type, everyday ones more often than the bits would give."""
    w = width(kind)
    if kind == "pred":
        return rng.getrandbits(1)
    if kind.endswith("x2"):
        size = w // 2
        return anything(kind[:-2], rng) | anything(kind[:-2], rng) << size
    if kind in FORMATS and rng.random() < 0.7:
        form = FORMATS[kind]
        return encode((rng.getrandbits(1), rng.getrandbits(rng.randint(1, form.mantissa + 1)),
                       rng.randint(-form.mantissa - 3, 3)), form)
    bits = rng.getrandbits(w)
    return bits if kind in FORMATS or rng.random() < 0.5 else bits >> rng.randrange(w)


def ties(kind, rng):
    """a, b, c with a · b halfway between two numbers, and c zero or so small that it decides."""
    form = FORMATS[kind]
    p = form.mantissa + 1
    while True:
        a = rng.getrandbits(p // 2 + 1) | 1 << p // 2 | 1
        b = rng.getrandbits(p - p // 2 + 1) | 1 << p - p // 2 | 1
        if (a * b).bit_length() == p + 1:
            break
    low = rng.random() < 0.3                                # a subnormal product
    e = form.least // 2 - p if low else rng.randint(-p // 2, 2)
    drop = rng.randint(0, 2) if low else 0
    c = (rng.getrandbits(1), rng.getrandbits(1), form.least - form.mantissa + rng.randint(0, 40))
    a, b = ((rng.getrandbits(1), x, e - (drop if i else 0)) for i, x in enumerate((a, b)))
    return [encode(x, form) for x in (a, b, c)]


def close_to_cancelling(kind, rng):
    """a, b, c with c next to -a · b."""
    form = FORMATS[kind]
    a, b = (decode(anything(kind, rng), form) for _ in range(2))
    product = formats.multiply(a, b)
    if not finite(product):
        return [anything(kind, rng) for _ in range(3)]
    c = encode(formats.negated(product), form)
    return [encode(a, form), encode(b, form), c ^ rng.getrandbits(1)]


@cache
def columns(kinds):
    """LANES operands for each source: all pairs of edges, then random numbers and hard cases."""
    rng = random.Random(str(kinds))
    own = [edges(kind) for kind in kinds]
    rows = []
    for i in range(LANES // 2):
        row = [values[(i if j == 0 else i // 16) % len(values)] for j, values in enumerate(own)]
        for j in range(2, len(kinds)):
            row[j] = rng.choice(own[j])
        rows.append(row)
    while len(rows) < LANES:
        row = [anything(kind, rng) for kind in kinds]
        kind = kinds[0].removesuffix("x2")
        if kind in FORMATS and 2 <= len(kinds) <= 3 and set(kinds) == {kinds[0]}:
            hard = rng.choice([ties, close_to_cancelling, None])
            size = FORMATS[kind].width
            if hard:
                halves = [hard(kind, rng) for _ in range(2 if kind != kinds[0] else 1)]
                row = [sum(half[j] << size * i for i, half in enumerate(halves))
                       for j in range(len(kinds))]
        rows.append(row)
    return [list(column) for column in zip(*rows, strict=True)]
