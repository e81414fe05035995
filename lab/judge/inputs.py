"""Inputs that a call changed, as the other process reports them, and words for them."""

import numpy as np

from lab.judge import compare
from lab.judge.failures import Stopped
from lab.remote import wire


class Changed(AssertionError):
    """A call changed an input that it only reads."""

    mistake = "input_changed"


def written(own, changed, edited=()):
    """{("array", its number among the arrays), ("list", position or name)} of what a call changed.

    own: the arrays as they were.
    One that held a single value throughout is left out: it is an output, or scratch.
    ValueError where the other process reports nonsense.
    """
    arrays = {number for number, _ in changed}
    plain = {number for number in arrays if number < len(own) and uniform(own[number])}
    return {("array", n) for n in arrays - plain} | {("list", key) for key in edited}


def uniform(array):
    """Whether an array holds one value throughout."""
    flat = array.reshape(-1)
    return not len(flat) or bool((flat == flat[0]).all())


def described(which, args, kwargs):
    """Words for an input of a call."""
    kind, key = which
    places = dict([*enumerate(args), *kwargs.items()])
    if kind == "array":
        owners = [place for place, value in places.items() for _ in wire.arrays(value)]
        key = owners[key]
    place = f"its argument {key!r}" if isinstance(key, str) else f"its argument number {key + 1}"
    return f"{place}, {compare.brief(places[key])}"


def restore(arrays, values):
    """Write these values into these arrays."""
    for array, value in zip(arrays, values, strict=True):
        if isinstance(array, np.ndarray):
            array[...] = value
        else:
            array.detach().copy_(value)


def copy_back(values, changed):
    """Write what a call changed into the caller's own arrays."""
    own = wire.arrays(values)
    try:
        pairs = [(own[i], new) for i, new in changed]
        restore([a for a, _ in pairs], [b for _, b in pairs])
    except (TypeError, ValueError, IndexError, RuntimeError):
        raise Stopped("garbled",
                      "its answer cannot be read: the changed arrays do not fit") from None
