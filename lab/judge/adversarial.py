"""Inputs on which plausible wrong answers differ from right ones: each kind once, with its reason.

Graders draw from the generators; `lab verify --gaps` recognises the kinds in what a grader hands
over (observer.py beside this), whatever made it.
A generator gives an array of `shape`, float32 unless it says otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lab.judge.inputs import uniform

# ---- values: generators


def unrounded(rng, shape):
    """All 24 bits of a float32 are in use: rounding through a 16-bit type shows."""
    return (3 * rng.standard_normal(shape)).astype(np.float32)


def exact_sums(rng, shape):
    """Eighths up to ±250, whose sums are exact in float32 in any order, and in no shorter type."""
    return (rng.integers(-2000, 2001, shape) / 8).astype(np.float32)


def shifted(rng, shape, by=200.0):
    """Rows around `by`: a maximum that starts at 0, or a variance as a difference of squares."""
    return (by + rng.standard_normal(shape)).astype(np.float32)


def negative(rng, shape):
    """Every number below 0: a maximum that starts at 0, zeros that fill a tile."""
    return -(0.5 + np.abs(rng.standard_normal(shape))).astype(np.float32)


def equal(rng, shape):
    """One number throughout each row: a variance of 0, a range of 0, ties in every comparison."""
    rows = rng.standard_normal((shape[0], *[1] * (len(shape) - 1)))
    return np.broadcast_to(rows, shape).astype(np.float32)


def uneven(rng, shape):
    """Rows of sizes from 0.001 to 1000: a factor that one row takes from another."""
    sizes = np.logspace(-3, 3, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    return (sizes * rng.standard_normal(shape)).astype(np.float32)


def infinite(rng, shape):
    """-inf in a quarter of the places, as masks have it."""
    x = unrounded(rng, shape)
    x[rng.random(shape) < 0.25] = -np.inf
    x.flat[:1] = -np.inf
    return x


def not_a_number(rng, shape):
    """One NaN: it must come out where it belongs, and nowhere else."""
    x = unrounded(rng, shape)
    x.flat[x.size // 2] = np.nan
    return x


def signed_zeros(rng, shape):
    """0 and -0 among the numbers: a division by an entry, a sign taken from a comparison."""
    x = unrounded(rng, shape)
    x.flat[::3], x.flat[1::3] = 0.0, -0.0
    return x


def denormal(rng, shape):
    """Numbers of 1e-40: a scale of them underflows, its inverse is infinite."""
    return (1e-40 * rng.integers(1, 9, shape)).astype(np.float32)


def tied(rng, shape):
    """Whole numbers from 0 to 2: most comparisons meet equals; the first of them counts, or all."""
    return rng.integers(0, 3, shape).astype(np.float32)


VALUES = {f.__name__: f for f in (unrounded, exact_sums, shifted, negative, equal, uneven, infinite,
                                  not_a_number, signed_zeros, denormal, tied)}
WORDS = {               # what a message calls the numbers of a kind
    "unrounded": "numbers of 24 bits", "exact_sums": "multiples of 1/8",
    "shifted": "numbers around 200", "negative": "negative numbers",
    "equal": "rows of equal numbers", "uneven": "rows of sizes from 0.001 to 1000",
    "infinite": "numbers, a quarter of them -inf", "not_a_number": "numbers and one NaN",
    "signed_zeros": "numbers, mostly 0 or -0", "denormal": "numbers of about 1e-40",
    "tied": "numbers from 0, 1 and 2"}


def factors(rng, K):
    """(a, w, parts): matrices of K columns for a · wᵀ, rows of hard numbers in a, then in w.
    Those below 0, and those of very different sizes, are matrices of their own.

    parts: [(rows, columns, words, precision)] of the product that are to be compared alone
    """
    kinds = VALUES | {"around -3000": lambda rng, shape: shifted(rng, shape, -3000)}
    alone = ["negative"], ["uneven"]
    for names in ([kind for kind in kinds if [kind] not in alone], *alone):
        hard = np.concatenate([kinds[kind](rng, (4, K)) for kind in names])     # (4 · kinds, K)
        other = np.concatenate([unrounded(rng, (2, K)), tied(rng, (2, K)),
                                np.abs(unrounded(rng, (2, K)))])                # (6, K)
        if "infinite" in names:
            hard[4 * names.index("infinite") + 3, -1] = -np.inf     # where the last step ends
        yield hard, other, [*parts_of(names, "a")]
        yield other, hard, [(columns, rows, *words) for rows, columns, *words in
                            parts_of(names, "w")]


def parts_of(names, matrix):
    """(rows, columns, words, precision) of hard · otherᵀ in factors."""
    columns = {"exact_sums": np.s_[2:4], "infinite": np.s_[4:6]}    # the latter: NaN is wrong
    for row in range(4 * len(names)):
        kind = names[row // 4]
        yield (np.s_[row:row + 1], columns.get(kind, np.s_[:2]),
               f", {kind.replace('_', ' ')} in row {row} of {matrix}, looked at alone",
               "exact" if kind == "exact_sums" else "float32")


# ---- sizes and layouts: generators


def around(tile):
    """Sizes at the edges of a tile: 1, one less, the tile, one more, and two that are ragged."""
    sizes = {1, tile - 1, tile, tile + 1, 2 * tile + 1, 3 * tile - 5}
    return sorted(n for n in sizes if n > 0)


def views(x):
    """{layout: the same numbers} of a matrix, numpy or torch: strided rows, columns first, and a
    base in the middle of another array."""
    wide = _room(x, (x.shape[0], 2 * x.shape[1] + 3))[:, 1:x.shape[1] + 1]
    turned = _room(x, x.shape[::-1]).T
    offset = _room(x, (x.shape[0] + 1, x.shape[1]))[1:]
    for view in (wide, turned, offset):
        view[...] = x
    return {"rows far apart": wide, "columns first": turned, "a base within an array": offset}


def apart(*arrays):
    """The same numbers in wider arrays, so that the strides of no two are alike."""
    wide = [_room(x, (*x.shape[:-1], x.shape[-1] + 8 * n))[..., :x.shape[-1]]
            for n, x in enumerate(arrays, 1)]
    for view, x in zip(wide, arrays, strict=True):
        view[...] = x
    return wide


def _room(x, shape):
    """An array like x, in another shape, that holds 77."""
    return np.full(shape, 77, x.dtype) if isinstance(x, np.ndarray) else x.new_full(shape, 77)


# ---- recognition: what a call was handed


@dataclass
class Handed:
    """What one call or launch of the code under test was given."""

    arrays: list            # as numpy, bfloat16 as float32
    numbers: set            # whole numbers: sizes of the arrays, and those among the arguments
    again: bool             # the same was called before in this process, with other sizes
    launch: bool            # of a kernel
    objects: bool           # objects and functions are among the arguments

    @property
    def floats(self):
        return [a for a in self.arrays if a.dtype.kind == "f"]


def some(test):
    """Whether an array with several numbers passes a test.
    In a launch, one that holds one value throughout is left out: it is an output."""
    return lambda handed: any(
        x.size > 1 and not (handed.launch and uniform(x)) and bool(test(x)) for x in handed.floats)


def rows(x):
    return x.reshape(-1, x.shape[-1]) if x.ndim else x.reshape(1, 1)


def _unrounded(x):
    with np.errstate(over="ignore", invalid="ignore"):
        return x.dtype.itemsize > 2 and (x.astype(np.float16) != x).any() \
            and bool((x.astype(np.float32).view(np.uint32) & 0xFFFF).any())


def _shifted(x):
    with np.errstate(invalid="ignore", over="ignore"):
        spread = rows(x).std(-1)
        return ((np.abs(rows(x).mean(-1)) > 20 * spread) & (spread > 0)).any()


def _equal(x):
    with np.errstate(invalid="ignore"):
        return x.ndim and x.shape[-1] > 1 and (rows(x) == rows(x)[:, :1]).all(-1).any()


def _uneven(x):
    sizes = np.abs(rows(x)).max(-1, initial=0)
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    return len(sizes) > 1 and sizes.max() > 1000 * sizes.min()


def edges(handed):
    """One less or one more than a multiple of 16."""
    return any(n > 8 and n % 16 in (1, 15) for n in handed.numbers)


@dataclass(frozen=True)
class Kind:
    """A kind of input. needs: what an exercise must take for the kind to apply."""

    reason: str
    needs: str
    seen: Callable


INPUTS = {
    "unrounded": Kind("rounding through a 16-bit type shows", "floats", some(_unrounded)),
    "shifted": Kind("a maximum that starts at 0, a variance by shortcut", "floats", some(_shifted)),
    "negative": Kind("a maximum that starts at 0, a fill of 0", "floats",
                     some(lambda x: (x < 0).all())),
    "equal": Kind("a range or variance of 0, ties", "floats", some(_equal)),
    "uneven": Kind("a factor taken from another row", "floats", some(_uneven)),
    "infinite": Kind("-inf minus -inf, masks", "floats", some(lambda x: np.isinf(x).any())),
    "not_a_number": Kind("NaN where it belongs and nowhere else", "floats",
                         some(lambda x: np.isnan(x).any())),
    "signed_zeros": Kind("a division by an entry, a sign from a comparison", "floats",
                         some(lambda x: (x == 0).any())),
    "denormal": Kind("a scale that underflows", "floats",
                     some(lambda x: ((x != 0) & (np.abs(x) < 1e-38)).any())),
    "zero": Kind("nothing to do: size, count or length 0", "numbers", lambda h: 0 in h.numbers),
    "one": Kind("a single one: size, count or length 1", "numbers", lambda h: 1 in h.numbers),
    "edges": Kind("one less and one more than a tile", "sizes", edges),
    "far": Kind("past 15 bits: a count in a short type", "widths",
                lambda h: any(n >= 2**15 for n in h.numbers)),
    "farther": Kind("past 31 bits: a product in 32 bits", "widths",
                    lambda h: any(n >= 2**31 for n in h.numbers)),
    "strided": Kind("rows that do not follow one another", "views", lambda h: any(
        a.ndim > 1 and not a.flags.c_contiguous for a in h.arrays)),
    "again": Kind("the same called twice, with other sizes: what is kept goes stale", "calls",
                  lambda h: h.again),
}

# Mistakes that no input shows by itself. A mutant that is one says so: kind = "work".
MISTAKES = {
    "work": ("kernels", "right numbers by other work: an extra pass, a second launch, no sharing"),
    "few": ("kernels", "one thread or one block does all"),
    "precision": ("floats", "sums or results in a shorter type"),
    "bound": ("order", "an equality of a comparison that the text decides: less for at most"),
    "tie": ("states", "equal priorities, times or maxima resolved the other way"),
    "order": ("states", "the same steps in another order"),
    "abort": ("states", "an end, a refusal or a failure in between"),
    "ignored": ("handed", "something handed in is not used"),
}
